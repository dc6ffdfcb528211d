"""Shared by the tests of freedoms: data that reaches the corners, executions that draw them, and the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from contract import formats
from contract.declare import Contract, Profile, output, tensor
from contract.endpoints import MAY, ONLY, Array, Freedom, Interval, point
from contract.readings.sample import Choice, SampleReading

FREE = Freedom(wide=True, ftz=True)
STRICT = Freedom(wide=False, ftz=False)

# each drives one freedom hard; the first draws all of them
CHOICES = (
    Choice(wide=0.3, ftz=0.5, order="random", ulps="random", fused="random", alternative="random"),
    Choice(order="sequential", ulps="plus"),
    Choice(order="reversed", ulps="minus", fused="yes", alternative="second"),
    Choice(order="sorted", ftz=1.0, ulps="random"),
    Choice(order="tree", ulps="random", fused="random"),
    Choice(order="lanes", wide=1.0, ulps="random"),
)
# no freedom but the order: for ranges that are read without the others
PLAIN_CHOICES = tuple(Choice(order=o) for o in ("sequential", "sorted", "tree", "pairwise"))


def bf16(x: Array) -> Array:
    return np.asarray(formats.round_to(x, "bf16"))


def fp32(x: Array) -> Array:
    return np.asarray(formats.round_to(x, "fp32"))


def operands(kind: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Values of one kind: ordinary, fp32, wide exponent windows, huge, subnormal, or random bit patterns."""
    x = rng.standard_normal(shape)
    if kind == "fp32":
        return fp32(x)
    if kind == "window":
        return bf16(x * np.exp2(rng.integers(-40, 40, shape)))
    if kind == "huge":
        return bf16(x * np.exp2(rng.integers(50, 66, shape)))
    if kind == "subnormal":
        return bf16(x * np.exp2(rng.integers(-76, -58, shape)))
    if kind == "bits":
        words = rng.integers(0, 1 << 16, shape).astype(np.uint16)
        return np.asarray(formats.decode(words, formats.get("bf16")))
    return bf16(x)


KINDS = ("ordinary", "fp32", "window", "huge", "subnormal", "bits")


def outside(r: Interval, values: Array) -> Array:
    """Where an execution is not in the range; zeros count with their sign."""
    nan = (
        np.zeros(values.shape, np.uint8) if r.nan is None else np.broadcast_to(r.nan, values.shape)
    )
    is_nan = np.isnan(values)
    below = (values < r.lo) | ((values == 0) & (r.lo == 0) & np.signbit(values) & ~np.signbit(r.lo))
    above = (values > r.hi) | ((values == 0) & (r.hi == 0) & ~np.signbit(values) & np.signbit(r.hi))
    return np.asarray(np.where(is_nan, nan == 0, below | above | (nan == ONLY)))


def contract_of(reference: Any, profile: Profile | None = None, **more: Any) -> Contract:
    """A contract around a reference of x (rows d) and y (rows d), for readings that need one."""
    settings: dict[str, Any] = {
        "operands": (tensor("x", "rows d"), output("out", "rows d", "fp32")),
        "row_dims": ("rows",),
        "shapes": ({"rows": 4, "d": 8},),
        "not_applicable": {"exact": "a test"},
    }
    return Contract(
        name="test_kernel",
        family="test",
        reference=reference,
        profiles=(profile or Profile("plain", {"out": "fp32"}),),
        **{**settings, **more},
    )


def sample_reading(choice: Choice, seed: int = 0) -> SampleReading:
    contract = contract_of(lambda r, x: x)
    return SampleReading(
        contract, contract.profiles[0], choice=choice, rng=np.random.default_rng(seed)
    )


def trees(items: tuple[int, ...]) -> Iterator[Any]:
    """Every unordered binary tree over the items, as nested pairs: (2 n - 3)!! of them."""
    if len(items) == 1:
        yield items[0]
        return
    first, rest = items[0], items[1:]
    for mask in range((1 << len(rest)) - 1):
        left = (first, *(x for i, x in enumerate(rest) if mask >> i & 1))
        right = tuple(x for i, x in enumerate(rest) if not mask >> i & 1)
        for a in trees(left):
            for b in trees(right):
                yield (a, b)


def narrow(values: Array) -> Interval:
    return point(values, narrow=True, raw=True)


__all__ = [
    "CHOICES",
    "FREE",
    "KINDS",
    "MAY",
    "ONLY",
    "PLAIN_CHOICES",
    "STRICT",
    "bf16",
    "contract_of",
    "fp32",
    "narrow",
    "operands",
    "outside",
    "sample_reading",
    "trees",
]
