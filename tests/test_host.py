"""The host engine: what a callable may take and return, and how its results are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract import registry
from contract.case import Case, find
from contract.declare import Contract, Profile, Scalar, output, tensor
from contract.engines import host
from contract.inputs import typical_case

Tensor = torch.Tensor
PLAIN = {"name": "plain", "layout": "contiguous", "batch": 0, "threads": 1, "arguments": {}}


def reference(r: Any, x: Any, w: Any, scale: float) -> Any:
    return r.round("out", x * scale + w)


@pytest.fixture(autouse=True)
def _registered(project: Path) -> None:
    """The contract `line`: out = x * scale + w in fp32."""
    registry.register(
        Contract(
            name="line", family="sums", reference=reference, scalars=(Scalar("scale", (2.0,)),),
            operands=(tensor("x", "rows d", "fp32"), tensor("w", "d", "fp32"),
                      output("out", "rows d", "fp32")),
            profiles=(Profile("once", {"out": "fp32"}),), row_dims=("rows",),
            shapes=({"rows": 3, "d": 4},), not_applicable={"exact": "a test"},
        )
    )  # fmt: skip


def right(x: Tensor, w: Tensor, scale: float) -> Tensor:
    return x * scale + w


def run(call: Callable[..., Any], **more: Any) -> tuple[str, Mapping[str, Any], Case]:
    """(why it is refused, output bits, case) of one call."""
    registry.implementation("line", name="mine")(call)
    threads = torch.get_num_threads()
    case = typical_case(find("line"), {"rows": 3, "d": 4}, 0)
    payload = {
        "kernel": "line", "profile": "once", "parameters": {}, "shape": dict(case.shape),
        "target": {"kind": "implementation", "name": "mine", "profile": "once"},
        "scalars": dict(case.scalars), "launch": PLAIN, "poison": "finite", **more,
    }  # fmt: skip
    try:
        report, outputs = host.run(payload, dict(case.operands))
    finally:
        torch.set_num_threads(threads)
    return report["bad"], outputs, case


def expected(case: Case) -> Any:
    x, w = (case.operands[name].view(np.float32) for name in ("x", "w"))
    return (x * np.float32(2) + w).view(np.uint32)


# A second call


class Static:
    """Writes every result into the same memory."""

    def __init__(self) -> None:
        self.buffer = torch.empty(3, 4)

    def __call__(self, x: Tensor, w: Tensor, scale: float) -> Tensor:
        return self.buffer.copy_(right(x, w, scale))


class Cached(Static):
    """Hands out what it keeps, and writes there once more at the next call."""

    def __call__(self, x: Tensor, w: Tensor, scale: float) -> Tensor:
        return super().__call__(x, w, scale)[:]


@pytest.mark.parametrize("make", [Static, Cached])
def test_a_second_call_that_writes_over_the_first_result_is_refused(
    make: Callable[[], Static],
) -> None:
    call = make()
    bad, outputs, _ = run(call, twice=True)
    assert (bad, outputs) == ("a second call writes over the result of the first", {})


def test_one_call_into_a_static_buffer_is_read_before_the_next() -> None:
    bad, outputs, case = run(Static())
    assert bad == ""
    np.testing.assert_array_equal(outputs["out"], expected(case))


def test_a_second_call_leaves_a_right_result_as_it_is() -> None:
    bad, outputs, case = run(right, twice=True)
    assert bad == ""
    np.testing.assert_array_equal(outputs["out"], expected(case))


# Results that are views


def negated(x: Tensor, w: Tensor, scale: float) -> Tensor:
    """The neg bit is set: the memory holds the opposite."""
    out = torch._neg_view(-right(x, w, scale))
    assert out.is_neg()
    return out


def of_a_conjugate(x: Tensor, w: Tensor, scale: float) -> Tensor:
    """The imaginary part of a lazy conjugate, as complex kernels return it."""
    out = torch.complex(x, -right(x, w, scale)).conj().imag
    assert out.is_neg()
    return out


def real_part(x: Tensor, w: Tensor, scale: float) -> Tensor:
    """Every second word of the memory."""
    return torch.complex(right(x, w, scale), x).conj().real


def transposed(x: Tensor, w: Tensor, scale: float) -> Tensor:
    return right(x, w, scale).T.contiguous().T


def expanded(x: Tensor, w: Tensor, scale: float) -> Tensor:
    return torch.stack([right(x, w, scale)] * 2).expand(2, 3, 4)[1]


def with_a_gradient(x: Tensor, w: Tensor, scale: float) -> Tensor:
    return right(x.clone().requires_grad_(), w, scale)


@pytest.mark.parametrize(
    "call", [negated, of_a_conjugate, real_part, transposed, expanded, with_a_gradient]
)
def test_a_result_is_read_by_its_values(call: Callable[..., Any]) -> None:
    bad, outputs, case = run(call)
    assert bad == ""
    np.testing.assert_array_equal(outputs["out"], expected(case), strict=True)


# Arguments


class Right(torch.nn.Module):
    def forward(self, x: Tensor, w: Tensor, scale: float) -> Tensor:
        return right(x, w, scale)


class Renamed(torch.nn.Module):
    def forward(self, x: Tensor, weight: Tensor, scale: float) -> Tensor:
        return right(x, weight, scale)


class AskingMore(torch.nn.Module):
    def forward(self, x: Tensor, w: Tensor, scale: float, bias: Tensor) -> Tensor:
        return right(x, w, scale) + bias


class TakingLess(torch.nn.Module):
    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        return x + w


class TakingAnything(torch.nn.Module):
    def forward(self, **given: Any) -> Tensor:
        assert set(given) == {"x", "w", "scale"}
        return right(**given)


@pytest.mark.parametrize("make", [Right, TakingAnything])
def test_a_module_with_the_contracts_arguments_runs(make: Callable[[], Any]) -> None:
    bad, outputs, case = run(make(), twice=True)
    assert bad == ""
    np.testing.assert_array_equal(outputs["out"], expected(case))


MISFITS = [
    (Renamed, "missing a required argument: 'weight'", "(x: 'Tensor', weight: 'Tensor', "),
    (AskingMore, "missing a required argument: 'bias'", "scale: 'float', bias: 'Tensor')"),
    (TakingLess, "got an unexpected keyword argument 'scale'", "(x: 'Tensor', w: 'Tensor') -> "),
]


@pytest.mark.parametrize(
    ("make", "why", "signature"), MISFITS, ids=[m[0].__name__ for m in MISFITS]
)
def test_a_module_of_another_signature_is_told_which(
    make: Callable[[], Any], why: str, signature: str
) -> None:
    bad, outputs, _ = run(make())
    assert bad.startswith(f"does not take the contract's arguments ({why}): it is ")
    assert signature in bad
    assert bad.endswith("the contract passes x, w, scale by name")
    assert outputs == {}


def test_a_type_error_of_the_kernel_itself_is_not_one_of_its_arguments() -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: Tensor, w: Tensor, scale: float) -> Tensor:
            raise TypeError("inside")

    with pytest.raises(TypeError, match="inside"):
        run(Broken())


# What is no result

RETURNED: list[tuple[Callable[..., Any], str]] = [
    (lambda x, w, scale: None, "output out is NoneType, not a tensor"),
    (lambda x, w, scale: right(x, w, scale).tolist(), "returned 3 outputs, the contract has 1"),
    (lambda x, w, scale: right(x, w, scale).numpy(), "output out is ndarray, not a tensor"),
    (lambda x, w, scale: (x, w), "returned 2 outputs, the contract has 1: ['out']"),
    (lambda x, w, scale: {"result": x}, "output out is NoneType, not a tensor"),
    (lambda x, w, scale: right(x, w, scale).double(), "output out has dtype torch.float64"),
    (lambda x, w, scale: right(x, w, scale)[:2], "output out has shape (2, 4), the contract"),
    (lambda x, w, scale: x, "output out shares memory with input x"),
    (lambda x, w, scale: x.T.T[:], "output out shares memory with input x"),
]


@pytest.mark.parametrize(("call", "said"), RETURNED, ids=range(len(RETURNED)))
def test_what_is_no_result_is_refused_by_name(call: Callable[..., Any], said: str) -> None:
    bad, outputs, _ = run(call)
    assert bad.startswith(said)
    assert outputs == {}
