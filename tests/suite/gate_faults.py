"""Small contracts and one implementation for each kind of fault, judged by tests/test_gates.py."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import contract
from contract import Quantity, Reading
from contract.declare import Launch


def affine(r: Reading, x: Quantity, w: Quantity, scale: float) -> Quantity:
    """out = x * scale + w, the product rounded to bf16, the sum rounded once."""
    return r.round("out", r.round("product", x * scale) + w)


def integers(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    return {
        "x": rng.integers(-255, 256, (shape["rows"], shape["d"])),
        "w": rng.integers(-255, 256, shape["d"]),
    }


AFFINE: dict[str, Any] = {
    "family": "sums",
    "operands": (
        contract.tensor("x", "rows d"),
        contract.tensor("w", "d"),
        contract.output("out", "rows d"),
    ),
    "scalars": (contract.Scalar("scale", (1.25,)),),
    "row_dims": ("rows",),
    "shapes": ({"rows": 4, "d": 16},),
    "awkward": ({"rows": 3, "d": 5},),
    "stress": ({"d": 8},),
    "exact": integers,
    "exact_shapes": ({"d": 8},),
}
TWO_STEP = contract.Profile("two_step", {"product": "bf16", "out": "bf16"})

contract.register(
    contract.Contract(name="affine", reference=affine, profiles=(TWO_STEP,), **AFFINE)
)


def right(x: Any, w: Any, scale: float) -> Any:
    return x * scale + w


def nudged(out: Any) -> Any:
    """The same with its first element one ulp away from zero."""
    out = out.clone()
    bits = out.view(torch.int16)
    bits.view(-1)[0] += 1
    return out


contract.implementation("affine", name="right")(right)


@contract.implementation("affine")
def wrong_tail(x: Any, w: Any, scale: float) -> Any:
    """The columns behind the last whole block of four are left zero."""
    out = right(x, w, scale)
    out[:, x.shape[1] // 4 * 4 :] = 0
    return out


@contract.implementation("affine")
def drops_product(x: Any, w: Any, scale: float) -> Any:
    return (x.float() * scale + w.float()).bfloat16()


@contract.implementation("affine")
def truncates(x: Any, w: Any, scale: float) -> Any:
    exact = (x * scale).float() + w.float()
    return (exact.view(torch.int32) & -65536).view(torch.float32).bfloat16()


@contract.implementation("affine")
def wrong_above_100(x: Any, w: Any, scale: float) -> Any:
    """Typical data never comes there; a row of integers does."""
    out = right(x, w, scale)
    return torch.where(x.abs() > 100, nudged(out) + 1, out)


calls = 0


@contract.implementation("affine")
def not_repeatable(x: Any, w: Any, scale: float) -> Any:
    global calls
    calls += 1
    return nudged(right(x, w, scale)) if calls % 2 else right(x, w, scale)


contract.implementation("affine", name="declared_not_repeatable", repeatable=False)(not_repeatable)


@contract.implementation("affine")
def reads_other_rows(x: Any, w: Any, scale: float) -> Any:
    # the largest magnitude of the whole tensor, as a scale shared by accident would
    return right(x, w, scale) + (x.float().nan_to_num().abs().max() > 3.5).to(x.dtype)


@contract.implementation("affine")
def multiplies_other_rows_by_zero(x: Any, w: Any, scale: float) -> Any:
    return right(x, w, scale) + 0 * x.roll(1, 0)


def by_batch(x: Any, w: Any, scale: float) -> Any:
    return nudged(right(x, w, scale)) if x.shape[0] == 1 else right(x, w, scale)


def by_layout(x: Any, w: Any, scale: float) -> Any:
    return right(x, w, scale) if x.is_contiguous() else nudged(right(x, w, scale))


def by_block(x: Any, w: Any, scale: float, block: int = 8) -> Any:
    return right(x, w, scale) if block == 8 else nudged(right(x, w, scale))


contract.implementation("affine", name="batch_listed", invariant=("batch",))(by_batch)
contract.implementation("affine", name="batch_unlisted")(by_batch)
contract.implementation("affine", name="layout_listed", invariant=("layout",))(by_layout)
contract.implementation(
    "affine",
    name="block_listed",
    invariant=("launch",),
    launches=(Launch("block-16", arguments={"block": 16}),),
)(by_block)


@contract.implementation("affine")
def writes_its_input(x: Any, w: Any, scale: float) -> Any:
    out = right(x, w, scale)
    x[0, 0] += 1
    return out


def item(x: Any, offset: int) -> Any:
    """The 16-bit word `offset` items from the start of x."""
    return ctypes.c_uint16.from_address(x.data_ptr() + 2 * offset)


@contract.implementation("affine")
def writes_before(x: Any, w: Any, scale: float) -> Any:
    item(x, -1).value = 0x1234
    return right(x, w, scale)


@contract.implementation("affine")
def writes_into_the_gap(x: Any, w: Any, scale: float) -> Any:
    if x.stride(0) > x.shape[1]:
        item(x, x.shape[1]).value = 0x1234
    return right(x, w, scale)


def value(word: Any) -> float:
    return float(np.array([word.value << 16], np.uint32).view(np.float32)[0])


@contract.implementation("affine")
def reads_behind(x: Any, w: Any, scale: float) -> Any:
    """Times zero: what a block that is masked too late does."""
    return right(x, w, scale) + 0.0 * value(item(w, w.shape[0]))


@contract.implementation("affine")
def reads_the_gap(x: Any, w: Any, scale: float) -> Any:
    beyond = value(item(x, x.shape[1])) if x.stride(0) > x.shape[1] else 0.0
    return right(x, w, scale) + 0.0 * beyond


@contract.implementation("affine")
def returns_its_input(x: Any, w: Any, scale: float) -> Any:
    return x.copy_(right(x, w, scale))


def alternatives(r: Reading, x: Quantity, w: Quantity, form: str) -> Quantity:
    """out = x + w or x - w: both legal, and one must hold for all outputs."""
    return r.round("out", x + w if form == "plus" else x - w)


contract.register(
    contract.Contract(
        name="either",
        reference=alternatives,
        options={"form": ("plus", "minus")},
        profiles=(contract.Profile("once", {"out": "bf16"}, {}, {"form": ("plus", "minus")}),),
        **{
            **{k: v for k, v in AFFINE.items() if k not in ("exact", "exact_shapes", "scalars")},
            "not_applicable": {"exact": "a test"},
        },
    )
)


@contract.implementation("either")
def plus(x: Any, w: Any) -> Any:
    return x + w


@contract.implementation("either")
def minus(x: Any, w: Any) -> Any:
    return x - w


@contract.implementation("either")
def mixture(x: Any, w: Any) -> Any:
    out = x + w
    out[1::2] = (x - w)[1::2]
    return out


@contract.implementation("either")
def one_launch_each(x: Any, w: Any) -> Any:
    return x + w if x.is_contiguous() else x - w


def total(r: Reading, x: Quantity) -> Quantity:
    """The sum of each row in fp32, in any order."""
    return r.round("out", r.sum(x, -1))


contract.register(
    contract.Contract(
        name="total",
        family="sums",
        reference=total,
        operands=(
            contract.tensor("x", "rows d", "fp32"),
            contract.output("out", "rows one", "fp32"),
        ),
        profiles=(contract.Profile("float32", {"out": "fp32"}),),
        row_dims=("rows",),
        shapes=({"rows": 64, "d": 256, "one": 1},),
        stress=({"d": 64, "one": 1},),
        not_applicable={"exact": "a test"},
        freedoms={"sum": "a test"},
    )
)


def sequential(x: Any) -> Any:
    result = torch.zeros(x.shape[0], dtype=torch.float32)
    for i in range(x.shape[1]):
        result = result + x[:, i]
    return result[:, None]


def pairwise(x: Any) -> Any:
    while x.shape[1] > 1:
        x = x[:, : x.shape[1] // 2] + x[:, x.shape[1] // 2 :]
    return x.clone()


contract.implementation("total", name="sequential")(sequential)
contract.implementation("total", name="sequential_as_depth_8", order={"sum": 8})(sequential)
contract.implementation("total", name="pairwise_as_depth_8", order={"sum": 8})(pairwise)


def too_narrow(r: Reading, x: Quantity, w: Quantity, scale: float) -> Quantity:
    """Claims an exact tanh where its own executions are 2 ulp off."""
    narrow = type(r).__name__ == "RangeReading" and r.contract.name == "too_narrow"
    ulps = 0 if narrow else 2
    return r.round("out", r.tanh(x, ulps=ulps) * scale + w)


def beside_the_formula(r: Reading, x: Quantity, w: Quantity, scale: float) -> Quantity:
    """The range is of another formula than the 200-bit values."""
    factor = scale if type(r).__name__ != "AuditReading" else scale + 0.5
    return r.round("out", x * factor + w)


def blind(r: Reading, x: Quantity, w: Quantity, scale: float) -> Quantity:
    """bf16 times 1.25 has 11 bits: to round it to fp32 shows nowhere."""
    return r.round("out", r.round("product", x * scale) + w)


def unsound(name: str, reference: Any, *profiles: contract.Profile, **more: Any) -> None:
    contract.register(
        contract.Contract(name=name, reference=reference, profiles=profiles, **{**AFFINE, **more})
    )


ONCE = contract.Profile("once", {"out": "fp32"}, {"x": "fp32", "w": "fp32", "out": "fp32"})
unsound("too_narrow", too_narrow, ONCE, freedoms={"tanh": "a test"})
unsound("beside_the_formula", beside_the_formula, contract.Profile("once", {"out": "bf16"}))
unsound("blind", blind, contract.Profile("p", {"product": "fp32", "out": "bf16"}))
unsound(
    "not_vacuous",
    affine,
    contract.Profile("p", {"product": "bf16", "out": "bf16"}, vacuous={"product": "untrue"}),
)
unsound(
    "nothing_to_compare",
    too_narrow,
    ONCE,
    freedoms={"tanh": "a test"},
    stress=(),
    # no value of tanh is known to the last bit
    exact=lambda *_: {"x": np.ones((64, 8)), "w": np.ones(8)},
)


@contract.implementation("nothing_to_compare")
def whatever(x: Any, w: Any, scale: float) -> Any:
    return right(x, w, scale)
