"""A Walsh-Hadamard rotation over tiles of a row, then int8 codes: contract and torch implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import activations, full_significands
from contract.kernels.static_int8 import SCALE, check_scale, static_codes
from contract.lazy import lazy
from contract.references.hadamard_quant import LANES
from contract.references.hadamard_quant import hadamard_quant as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def fits(d: int) -> bool:
    """Whether a row is a power of two of groups, two or more."""
    return d >= 2 * LANES and d % LANES == 0 and (d // LANES) & (d // LANES - 1) == 0


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: halves of the folded scale, where it is a power of two: every second code is a tie.

    A third of the rows are dense integers. A third hold one tie in group 0 and a little beside it: half its last fp32
    place in groups 1 and 3 is lost twice in the stages' order and is not in another order; a quarter of the place in
    group 1 is lost once, and is not where stages keep more. The others are full significands.
    """
    rows, d = shape["rows"], shape["d"]
    groups = d // LANES
    half = scalars["scale"] * math.sqrt(groups) / 2.0
    size = (rows, groups, LANES)
    x = rng.integers(-200 // groups - 8, 200 // groups + 9, size) * half
    big = (2 * rng.integers(2, 120, (rows, LANES)) + 1) * half
    place = np.exp2(np.floor(np.log2(big)) - 23)
    sparse = np.zeros(size)
    sparse[:, 0] = big
    sparse[:, 1] = place / 4.0
    if groups >= 4:
        sparse[1::2, 1] = sparse[1::2, 3] = place[1::2] / 2.0
    x[0::3] = sparse[0::3]
    x[1::3] = full_significands(rng, x[1::3].shape) / 128.0
    return {"x": x.reshape(rows, d)}


hadamard_quant = register(
    Contract(
        name="hadamard_quant",
        family="quantize",
        summary="rotation over groups of 32 lanes, then int8 codes with a given scale",
        reference=reference,
        operands=(
            tensor("x", "rows d", typical=activations, finite=True),
            output("codes", "rows d", "int8"),
        ),
        scalars=(SCALE,),
        profiles=(
            Profile(
                "bf16_rows",
                {"stage": "fp32", "code": "int8"},
                users="PaliGemma INT8: 512 groups before the down projection",
            ),
            Profile(
                "float32",
                {"stage": "fp32", "code": "int8"},
                {"x": "fp32"},
                users="the same of an activation that is not rounded to bf16",
            ),
        ),
        row_dims=("rows",),
        rules={"d is 32 times a power of two, 64 or more": lambda s: fits(s["d"])},
        # PaliGemma's MLP of 16,384; Gemma 3 270M's of 2,048
        shapes=({"rows": 4, "d": 2_048}, {"rows": 3, "d": 16_384}),
        awkward=({"rows": 1, "d": 64}, {"rows": 3, "d": 128}, {"rows": 17, "d": 256}),
        stress=({"d": 64}, {"d": 128}, {"d": 512}),
        exact=exact_rows,
        exact_shapes=({"d": 128}, {"d": 512, "rows": 24}, {"d": 2_048, "rows": 24}),
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("hadamard_quant", name="torch", profile=("bf16_rows", "float32"))
def hadamard_quant_torch(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Stages over groups in fp32; the scale takes the normalisation.

    Raises:
        ValueError: a width that is no power of two of groups, or a scale that is not positive.
    """
    return static_codes(rotated(x.float()), check_scale(scale) * math.sqrt(x.shape[-1] // LANES))


def rotated(x: torch.Tensor) -> torch.Tensor:
    """sum over g' of H[g, g'] x[g', l] along the last axis, not normalised, in x's format.

    Raises:
        ValueError: a width that is no power of two of groups: padding it would lose lengths.
    """
    rows, d = x.shape
    if not fits(d):
        raise ValueError(
            f"width {d}; a tile rotation needs {LANES} times a power of two, 64 or more"
        )
    span = LANES
    while span < d:
        low, high = x.reshape(rows, d // (2 * span), 2, span).unbind(2)
        x = torch.stack((low + high, low - high), 2)
        span *= 2
    return x.reshape(rows, d)
