"""A verified kernel refuses arguments that its contract does not allow, every kernel of the catalogue alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract import calls, registry, suites
from contract.calls import Call
from contract.case import Kernel, kernels_of
from contract.config import Config
from contract.declare import Contract, Implementation, Operand, Profile, output, served, tensor
from contract.engines.placement import place
from contract.errors import CaseError
from contract.inputs import size_of, typical_case


def _kernels() -> list[Kernel]:
    """One kernel of each contract that this project's suite registers."""
    suites.load(Config(None, Path.cwd(), pythonpath=()))
    return [
        kernels_of(contract)[0]
        for name, contract in sorted(registry.contracts().items())
        if registry.origin(name).startswith("contract.kernels.")
    ]


KERNELS = _kernels()


def own(kernel: Kernel) -> Implementation:
    """The project's own implementation of a kernel."""
    return next(
        item
        for item in registry.implementations(kernel.contract.name)
        if item.name == "torch"
        and item.profile == kernel.profile.name
        and served(item.parameters, kernel.parameters)
    )


def arguments(kernel: Kernel, seed: int = 0) -> dict[str, Any]:
    """Tensors and scalars of a small typical case."""
    contract = kernel.contract
    shape = kernel.sized(min((*contract.awkward, *contract.shapes), key=size_of))
    case = typical_case(kernel, shape, seed)
    tensors = {
        o.name: place(
            o.name, case.operands[o.name], kernel.format(o), "contiguous", "finite"
        ).tensor
        for o in kernel.inputs()
    }
    return {**tensors, **case.scalars}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.contract.name)
def test_every_kernel_refuses_what_its_contract_does_not_allow(kernel: Kernel) -> None:
    call = Call(kernel, own(kernel))
    right = arguments(kernel)
    call(**right)
    for operand in kernel.inputs():
        x = right[operand.name]
        wrong_type = torch.float64 if x.dtype != torch.float64 else torch.float32
        shown = f"{kernel.id}: .*{operand.name}"
        for wrong, said in (
            (x.to(wrong_type), f"{shown} has dtype {str(wrong_type).removeprefix('torch.')}"),
            (x[None], f"{shown} has shape .* needs {x.dim()} dims"),
            (None, f"{shown}= is not given"),
        ):
            with pytest.raises(CaseError, match=said):
                call(**{**right, operand.name: wrong})
        shared = [d for o in kernel.inputs() if o is not operand for d in o.dims]
        for axis, dim in enumerate(operand.dims):
            longer = torch.cat([x, x.narrow(axis, 0, 1)], axis)
            if dim in shared or operand.dims.count(dim) > 1:
                with pytest.raises(CaseError, match=rf"{dim} = |break a rule"):
                    call(**{**right, operand.name: longer})
        limit = operand.limit(
            kernel.sized(
                {
                    d: n
                    for o in kernel.inputs()
                    for d, n in zip(o.dims, right[o.name].shape, strict=True)
                }
            )
        )
        if limit is not None:
            outside = x.clone().reshape(-1)
            outside[-1] = limit
            with pytest.raises(
                CaseError, match=rf"{operand.name} holds {limit}; values are {operand.least} to"
            ):
                call(**{**right, operand.name: outside.reshape(x.shape)})


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.contract.name)
def test_no_kernel_takes_an_argument_that_it_does_not_know(kernel: Kernel) -> None:
    with pytest.raises(CaseError, match="takes no surplus=; it takes "):
        Call(kernel, own(kernel))(**arguments(kernel), surplus=1)


# ---- values, on a kernel of the test's own


def scaled(**more: Any) -> tuple[Kernel, list[Mapping[str, Any]], Call]:
    contract = Contract(
        "scaled_rows",
        "test",
        lambda r, x, ids, scales: r.round(
            "out", x * r.take(scales, r.integers(ids)).reshape(-1, 1)
        ),
        (
            tensor("x", "rows d"),
            tensor("ids", "rows", "int32", below="groups"),
            tensor("scales", "groups", "fp32", finite=True),
            output("out", "rows d"),
        ),
        (Profile("once", {"out": "bf16"}),),
        ("rows",),
        ({"rows": 2, "d": 4, "groups": 3},),
        not_applicable={"exact": "a test"},
        **more,
    )
    seen: list[Mapping[str, Any]] = []

    def times(x: Any, ids: Any, scales: Any) -> Any:
        seen.append({"x": x, "ids": ids, "scales": scales})
        return (x.float() * scales[ids.long()][:, None]).bfloat16()

    kernel = kernels_of(contract)[0]
    return kernel, seen, Call(kernel, Implementation("torch", "scaled_rows", "once", times))


def right() -> dict[str, Any]:
    return {
        "x": torch.ones(2, 4, dtype=torch.bfloat16),
        "ids": torch.tensor([0, 2], dtype=torch.int32),
        "scales": torch.ones(3),
    }


def test_operands_may_be_given_in_order() -> None:
    _, seen, call = scaled()
    given = right()
    assert call(*given.values()).shape == (2, 4)
    assert call(given["x"], scales=given["scales"], ids=given["ids"]).shape == (2, 4)
    assert len(seen) == 2
    with pytest.raises(CaseError, match="ids holds 3; values are 0 to 2"):
        call(given["x"], given["ids"] + 1, given["scales"])
    with pytest.raises(CaseError, match="too many positional"):
        call(*given.values(), 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_refused_also_when_it_is_written_later(value: float) -> None:
    _, seen, call = scaled()
    given = {**right(), "scales": torch.ones(3)}
    call(**given)
    given["scales"][1] = value
    with pytest.raises(CaseError, match=r"scales\[1\] is (nan|inf)"):
        call(**given)
    assert len(seen) == 1


def test_large_operands_are_looked_at_once_and_again_when_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def look(kernel: Kernel, operand: Operand, shape: Mapping[str, int], bits: Any) -> None:
        looked.append(operand.name)

    monkeypatch.setattr(calls, "check_values", look)
    _, _, call = scaled()
    given = {**right(), "scales": torch.ones(5000)}
    call(**given)
    call(**given)
    assert looked.count("scales") == 1
    given["scales"].mul_(2.0)
    call(**given)
    assert looked.count("scales") == 2
    given["scales"][4999] = float("nan")
    with pytest.raises(CaseError, match=r"scales\[4999\]"):
        call(**given)
    # another tensor in its place
    given["scales"] = torch.full((5000,), float("nan"))
    with pytest.raises(CaseError, match=r"scales\[0\]"):
        call(**given)


def test_a_rule_is_named() -> None:
    _, _, call = scaled(rules={"d is a multiple of 4": lambda s: s["d"] % 4 == 0})
    with pytest.raises(CaseError, match=r"d is a multiple of 4; here d = 5 \(of x, .*out\)"):
        call(**{**right(), "x": torch.ones(2, 5, dtype=torch.bfloat16)})


def test_what_is_bound_cannot_be_given_again() -> None:
    kernel = next(k for k in KERNELS if k.contract.name == "rms_norm")
    with pytest.raises(CaseError, match="gain='none' is bound already"):
        Call(kernel, own(kernel))(**arguments(kernel), gain="none")


def test_a_cap_must_be_positive() -> None:
    kernel = next(
        k
        for k in kernels_of(registry.get("attention"))
        if any(o.positive for o in k.inputs()) and k.profile.name == "eager_capped"
    )
    call = Call(kernel, own(kernel))
    given = arguments(kernel)
    call(**given)
    with pytest.raises(CaseError, match="cap holds 0; it must be positive and finite"):
        call(**{**given, "cap": torch.zeros_like(given["cap"])})


def test_what_is_no_tensor_is_told_so() -> None:
    _, _, call = scaled()
    with pytest.raises(CaseError, match=r"x is list, not a tensor; profile .* needs bfloat16"):
        call(**{**right(), "x": [1.0]})


def test_numpy_arrays_are_no_tensors_of_the_kernel() -> None:
    _, _, call = scaled()
    with pytest.raises(CaseError, match="x has dtype float64"):
        call(**{**right(), "x": np.ones((2, 4))})


def test_an_operand_of_other_parameters_is_refused() -> None:
    """One function serves both: given a scale, it would scale rows that are asked for unscaled."""
    plain, scaled = (
        next(k for k in kernels_of(registry.get("embed")) if k.parameters["scaled"] == s)
        for s in ("no", "yes")
    )
    call, given = Call(plain, own(plain)), arguments(scaled)
    refusal = "embed,scaled=no/once: it has no operand scale= under these parameters; it takes ids"
    with pytest.raises(CaseError, match=refusal):
        call(**given)
    with pytest.raises(CaseError, match=refusal):
        call(given["ids"], given["table"], given["scale"])
    assert call(given["ids"], given["table"], None).dtype == torch.bfloat16


def test_a_tensor_on_another_device_is_refused() -> None:
    _, seen, call = scaled()
    with pytest.raises(CaseError, match="x is on meta; the implementation is verified on the cpu"):
        call(**{**right(), "x": torch.ones(2, 4, dtype=torch.bfloat16, device="meta")})
    assert not seen
