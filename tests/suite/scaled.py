"""A small suite to be judged by the tests of runner, controls, plugin and verification.

scaled: out = gain * (x * scale) + y, the product rounded to bf16, the sum rounded once. `torch` is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import contract
from contract import Quantity, Reading


def scaled(r: Reading, x: Quantity, y: Quantity, scale: float, sign: str) -> Quantity:
    """out = x * scale + y, or y - x * scale.

    Rounding points:
        product: bfloat16, x * scale.
        out: bfloat16, the sum.
    """
    product = r.round("product", x * scale)
    return r.round("out", product + y if sign == "plus" else y - product)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Integers of 8 bits: with scale = 1.25 or 0.75 the product needs up to 11."""
    size = (shape["rows"], shape["d"])
    return {"x": rng.integers(-255, 256, size), "y": rng.integers(-255, 256, size)}


contract.register(
    contract.Contract(
        name="scaled",
        family="sums",
        reference=scaled,
        operands=(
            contract.tensor("x", "rows d"),
            contract.tensor("y", "rows d"),
            contract.output("out", "rows d"),
        ),
        scalars=(contract.Scalar("scale", (1.25, 0.75)),),
        parameters={"sign": ("plus", "minus")},
        profiles=(contract.Profile("two_step", {"product": "bf16", "out": "bf16"}),),
        row_dims=("rows",),
        shapes=({"rows": 4, "d": 32},),
        awkward=({"rows": 1, "d": 1}, {"rows": 3, "d": 5}),
        stress=({"d": 8},),
        exact=exact_rows,
        exact_shapes=({"d": 8},),
    )
)


@contract.implementation("scaled", name="torch")
def scaled_torch(x: Any, y: Any, scale: float, sign: str) -> Any:
    """Two bf16 operations."""
    product = x * scale
    return product + y if sign == "plus" else y - product


@contract.red("scaled", profile="two_step", gate="exact", sign="plus")
def rounds_once(x: Any, y: Any, scale: float) -> Any:
    """fp32 inside."""
    return (x.float() * scale + y.float()).bfloat16()


@contract.green("scaled", profile="two_step", sign="plus")
def other_order(x: Any, y: Any, scale: float) -> Any:
    """The sum commutes."""
    return y + scale * x
