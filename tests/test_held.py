"""Implementations in two steps: judged as one function, and held by their callers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import contract.kernels.kv_append
import contract.kernels.residual_add
import contract.kernels.w4_gemv  # noqa: F401 - they register
from contract import registry
from contract.calls import Call
from contract.case import find
from contract.errors import CaseError, DeclarationError
from contract.held import TwoStep
from contract.verify import implementation_of


def product() -> Call:
    kernel = find("w4_gemv", "kept", {"block": "32", "offsets": "yes"})
    return Call(kernel, implementation_of(kernel, "torch"))


def weight(n: int = 5, k: int = 128) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(3)
    return {
        "words": torch.randint(-(2**31), 2**31, (n, k // 8), generator=made).int(),
        "scales": torch.rand(n, k // 32, generator=made).bfloat16(),
        "offset": torch.randn(n, k // 32, generator=made).bfloat16(),
    }


def vectors(rows: int = 3, k: int = 128) -> torch.Tensor:
    return torch.randn(rows, k, generator=torch.Generator().manual_seed(4)).bfloat16()


def test_held_operands_give_the_bits_of_the_whole_call() -> None:
    call, given = product(), weight()
    held = call.hold(**given)
    for rows in (1, 3):
        x = vectors(rows)
        assert torch.equal(held(x=x), call(x=x, **given))


def test_what_was_taken_in_does_not_follow_its_tensor() -> None:
    call, given = product(), weight()
    held, right = call.hold(**given), call(x=vectors(), **given)
    given["scales"].zero_()
    assert torch.equal(held(x=vectors()), right)
    assert not torch.equal(call(x=vectors(), **given), right)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"words": None}, "operand words= is not given"),
        ({"scales": torch.ones(5, 4)}, "scales has dtype float32"),
        ({"scales": torch.ones(5, 3).bfloat16()}, "offset has groups = 4, scales has 3"),
        ({"scales": torch.full((5, 4), torch.inf).bfloat16()}, r"scales\[0, 0\] is inf"),
        ({"x": vectors()}, "x= is not held; it holds offset, scales, words, zeros"),
        ({"block": "32"}, "block= is not held"),
        ({"zeros": torch.zeros(5, 1, dtype=torch.uint8)}, "it has no operand zeros="),
    ],
)
def test_what_cannot_be_held_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(CaseError, match=said):
        product().hold(**{**weight(), **changed})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "operand x= is not given"),
        ({"x": vectors().float()}, "x has dtype float32"),
        ({"x": vectors(k=96)}, "k = 96|break a rule"),
        ({"x": vectors(), "words": weight()["words"]}, "words= is held already"),
        ({"x": vectors(), "block": "32"}, "block= is held already"),
    ],
)
def test_what_does_not_fit_what_is_held_is_named(given: dict[str, Any], said: str) -> None:
    held = product().hold(**weight())
    with pytest.raises(CaseError, match=said):
        held(**given)


def test_a_function_holds_nothing() -> None:
    kernel = find("residual_add", "once", {})
    call = Call(kernel, implementation_of(kernel, "torch"))
    with pytest.raises(CaseError, match="takes all operands in one call"):
        call.hold()


def test_values_are_looked_at_again_after_a_write() -> None:
    kernel = find("kv_append", "moved", {"store": "bf16", "ring": "no"})
    call = Call(kernel, implementation_of(kernel, "torch"))
    slot = torch.tensor([1], dtype=torch.int32)
    given = {"cache": torch.zeros(1, 2, 1, 4).bfloat16(), "new": torch.ones(1, 1, 4).bfloat16()}
    for _ in range(2):
        call(**given, slot=slot)
    slot[0] = 2
    with pytest.raises(CaseError, match="slot holds 2; values are 0 to 1"):
        call(**given, slot=slot)


class NoCall:
    def __init__(self, weight: Any) -> None: ...


class Both:
    def __init__(self, weight: Any) -> None: ...
    def __call__(self, x: Any, weight: Any) -> Any: ...


class Nameless:
    def __init__(self, *weights: Any) -> None: ...
    def __call__(self, x: Any) -> Any: ...


class Anything:
    def __init__(self, weight: Any) -> None: ...
    def __call__(self, *xs: Any) -> Any: ...


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (NoCall, "without __call__"),
        (Anything, "no name of its own"),
        (Both, "both take weight"),
        (Nameless, r"\*weights.* has no name"),
    ],
)
def test_a_class_that_is_no_two_steps_is_refused(cls: type[Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        registry.implementation("residual_add", name="two")(cls)


def test_the_signature_is_of_both_steps() -> None:
    class Scaled:
        """x times a weight."""

        def __init__(self, weight: Any, *, profile: str) -> None:
            self.weight = weight

        def __call__(self, x: Any, scale: float = 2.0) -> Any:
            return x * self.weight * scale

    step = TwoStep(Scaled)
    assert list(step.__signature__.parameters) == ["weight", "profile", "x", "scale"]
    assert step(x=3.0, weight=5.0, profile="once") == 30.0


class Summed(torch.nn.Module):
    def __init__(self, b: Any) -> None:
        super().__init__()
        self.b = b

    def forward(self, a: Any) -> Any:
        return a + self.b


class SummedAlone(torch.nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return a + b


class Heir(Summed):
    """What it does stands in its base."""


@pytest.mark.parametrize("cls", [Summed, SummedAlone, Heir])
def test_a_torch_module_is_called_by_its_forward(cls: type[Any]) -> None:
    step = TwoStep(cls)
    assert sorted(step.__signature__.parameters) == ["a", "b"]
    assert step(a=torch.ones(1), b=torch.ones(1)).item() == 2.0
