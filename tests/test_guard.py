"""Outside a verified kernel torch may only place and move values."""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from contract import calls
from contract.case import kernels_of
from contract.declare import Contract, Implementation, Profile, output, tensor
from contract.pipelines.guard import KernelsOnly, OutsideKernel, measuring

X = torch.arange(12.0).reshape(3, 4)
IDS = torch.tensor([2, 0])
CONTRACT = Contract(
    name="doubled_here",
    family="elementwise",
    summary="twice x",
    reference=lambda r, x: x + x,
    operands=(tensor("x", "n", "fp32"), output("out", "n", "fp32")),
    profiles=(Profile("p", {}),),
    row_dims=("n",),
    shapes=({"n": 4},),
    not_applicable={"exact": "never judged"},
)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    if x[0] < 0:
        raise ValueError("negative")
    return (x.double() + x).float()


def call_of(function: Callable[..., Any]) -> calls.Call:
    """As contract.verified() gives it, unverified."""
    return calls.Call(
        kernels_of(CONTRACT)[0], Implementation("doubled_here", "torch", "p", function)
    )


DOUBLED = call_of(_doubled)

ALLOWED: dict[str, Callable[[], Any]] = {
    "view": lambda: X.view(4, 3).t().reshape(-1)[None].expand(2, -1).squeeze(0),
    "bits": lambda: X.view(torch.int32).view(torch.uint8),
    "slices": lambda: (X[1:, 2], X[..., None], X.split([1, 3], -1), X.chunk(2), X.unbind()),
    "index": lambda: (X[IDS], X.index_select(0, IDS), X.gather(0, IDS[None])),
    "embedding": lambda: torch.nn.functional.embedding(IDS, X),
    "written": lambda: X.clone().__setitem__(IDS, X[:2]),
    "filled": lambda: X.clone().__setitem__(0, 1.0),
    "copied": lambda: X.clone().__setitem__(slice(0, 2), X[1:]),
    "joined": lambda: (torch.cat([X, X]), torch.stack([X, X]), torch.hstack([X, X])),
    "repeated": lambda: (X.repeat(2, 1), X.repeat_interleave(2, 0), X.flip(0), X.roll(1)),
    "contiguous": lambda: (X.t().contiguous(), X.to(torch.float32), X.float(), X.cpu()),
    "allocated": lambda: (torch.empty(0), torch.zeros(3), torch.full((2,), np.nan), torch.arange(3)),
    "alike": lambda: (torch.zeros_like(X, dtype=torch.int8), X.new_zeros(3), torch.ones(2)),
    "made": lambda: (torch.tensor([1, 2], dtype=torch.int32), torch.tensor(1.5)),
    "read": lambda: (int(IDS[0]), IDS.tolist(), bool(IDS[0]), IDS.numpy()),
    "shape": lambda: (X.shape, X.dim(), X.dtype, X.device, len(X)),
    "kernel": lambda: DOUBLED(X[0]),
}  # fmt: skip

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "add": (lambda: X + X, "aten.add.Tensor"),
    "mul": (lambda: X * 2.0, "aten.mul.Tensor"),
    "negated": (lambda: -X, "aten.neg.default"),
    "integers": (lambda: IDS + 1, "aten.add.Tensor"),
    "matmul": (lambda: X @ X.t(), "aten.mm.default"),
    "linear": (lambda: torch.nn.functional.linear(X, X), "aten.mm.default"),
    "einsum": (lambda: torch.einsum("ij,kj->ik", X, X), "aten.bmm.default"),
    "attention": (
        lambda: torch.nn.functional.scaled_dot_product_attention(X[None], X[None], X[None]),
        "aten.",
    ),
    "softmax": (lambda: X.softmax(-1), "aten._softmax.default"),
    "bfloat16": (lambda: X.to(torch.bfloat16), "aten._to_copy.default changes the dtype"),
    "double": (lambda: X.double(), "bfloat16|float32, float64"),
    "argmax": (lambda: X.argmax(-1), "aten.argmax.default"),
    "compared": (lambda: X > 1.0, "aten.gt.Scalar"),
    "where": (lambda: torch.where(X.view(torch.int32).bool(), X, X), "aten._to_copy.default"),
    "masked": (lambda: X.masked_fill(torch.ones(3, 4, dtype=torch.bool), 0.0), "aten.masked_fill"),
    "in_place": (lambda: X.clone().add_(1.0), "aten.add_.Tensor"),
    "out": (lambda: torch.add(X, X, out=torch.empty(3, 4)), "aten.add.out"),
    "joined_out": (lambda: torch.cat([X, X], out=torch.empty(6, 4)), "aten.cat.out writes to out="),
    "promoted": (lambda: torch.cat([X, X.view(torch.int32)]), "aten.cat.default changes the dtype"),
    "copied": (lambda: torch.empty(3, 4, dtype=torch.float16).copy_(X), "float16, float32"),
    "accumulated": (lambda: X.clone().index_put_((IDS,), X[:2], True), "accumulate=True"),
    "scattered": (lambda: X.clone().scatter_add_(0, IDS[None], X), "aten.scatter_add_"),
    "counted": (lambda: torch.arange(0.0, 1.0, 0.1), "aten.arange.start_step counts"),
    "drawn": (lambda: torch.randn(3), "aten.randn.default"),
    "item": (lambda: X[0, 0].item(), "aten._local_scalar_dense.default hands values"),
    "numpy": (lambda: X.numpy(), r"Tensor.numpy\(\) hands values"),
    "array": (lambda: np.asarray(X), r"Tensor.(__array__|numpy)\(\) hands values"),
    "list": (lambda: X.tolist(), r"Tensor.tolist\(\) hands values"),
    "dlpack": (lambda: np.from_dlpack(X), r"Tensor.__dlpack__\(\) hands values"),
    "applied": (lambda: X.clone().apply_(lambda v: 2 * v), "Tensor.apply_ computes with a function"),
    "mapped": (lambda: X.clone().map_(X, lambda a, b: a + b), "Tensor.map_ computes with a function"),
    "read_anew": (
        lambda: torch.tensor([X[0, 0], X[0, 1]], dtype=torch.bfloat16),
        r"torch.tensor\(\) hands values|_local_scalar_dense",
    ),
    "text": (lambda: repr(X), r"Tensor.__repr__\(\) hands values"),
    "printed": (lambda: str(X), r"Tensor.__repr__\(\) hands values"),
    "float": (lambda: torch.DoubleTensor([X[0, 0]]), r"hands values"),
    "bytes": (lambda: bytes(X.untyped_storage()), r"Tensor.untyped_storage\(\) hands values"),
    "pickled": (lambda: pickle.dumps(X), r"Tensor.untyped_storage\(\) hands values"),
    "filled": (lambda: torch.empty(2, dtype=torch.int32).fill_(2.9), "aten.fill_.Scalar rounds"),
}  # fmt: skip


@pytest.fixture(params=[False, True], ids=["grad", "inference"])
def inference(request: pytest.FixtureRequest) -> Any:
    """Below inference_mode torch shows other operators to a mode."""
    return torch.inference_mode(request.param)


@pytest.mark.parametrize("name", ALLOWED)
def test_placing_and_moving_is_allowed(name: str, inference: Any) -> None:
    with inference:
        expected = ALLOWED[name]()
        with KernelsOnly():
            found = ALLOWED[name]()
    assert repr(found) == repr(expected)


@pytest.mark.parametrize("name", REFUSED)
def test_computing_is_refused_with_operator_and_operands(name: str, inference: Any) -> None:
    program, said = REFUSED[name]
    with inference, KernelsOnly(), pytest.raises(OutsideKernel, match=said) as caught:
        program()
    assert "use a kernel that contract.verified() gives" in str(caught.value)
    assert caught.value.args[0].startswith(__file__)


@pytest.mark.parametrize("name", REFUSED)
def test_computing_is_allowed_in_a_kernel_and_in_a_measurement(name: str, inference: Any) -> None:
    program, _ = REFUSED[name]
    with inference, KernelsOnly():
        with measuring():
            program()
        call_of(lambda x: program())(X[0])
        with pytest.raises(OutsideKernel):
            program()


def test_the_message_names_the_line_and_the_shapes() -> None:
    with KernelsOnly(), pytest.raises(OutsideKernel) as caught:
        torch.nn.functional.gelu(X)
    line = caught.traceback[0].lineno + 1
    said = str(caught.value)
    assert said.startswith(f"{__file__}:{line}: aten.gelu.default is neither"), said
    assert "operands: float32 3x4;" in said


def test_an_error_in_a_kernel_ends_what_is_allowed() -> None:
    with KernelsOnly():
        assert not calls.running()
        with pytest.raises(ValueError, match="negative"):
            DOUBLED(torch.full((2,), -1.0))
        assert not calls.running()
        with pytest.raises(OutsideKernel):
            _doubled(X[0])
        with pytest.raises(RuntimeError, match="left"), measuring():
            raise RuntimeError("left")
        with pytest.raises(OutsideKernel):
            _doubled(X[0])
        assert DOUBLED(X[0]).numpy.__self__.shape == (4,)


def test_a_kernel_of_another_thread_excuses_nothing_here() -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(x: torch.Tensor) -> torch.Tensor:
        entered.set()
        leave.wait(10)
        return x

    thread = threading.Thread(target=call_of(wait), args=(X[0],))
    thread.start()
    try:
        assert entered.wait(10)
        assert not calls.running()
        with KernelsOnly(), pytest.raises(OutsideKernel):
            X + X
    finally:
        leave.set()
        thread.join()


def test_the_guard_ends_with_its_block_and_may_be_nested() -> None:
    guard = KernelsOnly()
    with guard:
        with KernelsOnly(), pytest.raises(OutsideKernel):
            X + X
        with pytest.raises(OutsideKernel):
            X.tolist()
    assert (X + X).tolist()[0] == [0.0, 2.0, 4.0, 6.0]
    with guard, pytest.raises(OutsideKernel):
        X + X


def test_operators_of_other_libraries_are_refused() -> None:
    with torch.library._scoped_library("contract_test", "DEF") as library:
        library.define("view(Tensor x) -> Tensor")
        library.impl("view", lambda x: x + 1, "CPU")
        with KernelsOnly(), pytest.raises(OutsideKernel, match=re.escape("contract_test.view")):
            torch.ops.contract_test.view(X)
