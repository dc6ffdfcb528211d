"""Affine-quantised weights as bf16 numbers: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.affine_packing import (
    BITS,
    affine_biases,
    affine_scales,
    affine_values,
    any_words,
    columns_of,
    group_rule,
    grouped,
    unpack,
    words_of,
)
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.dequant_affine import dequant_affine as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Scales and biases of 8 bits, at most 8 binades apart: q s + b has at most 24."""
    groups = (shape["rows"], shape["groups"])
    return {
        "words": any_words(rng, (shape["rows"], shape["words"])),
        "scales": full_significands(rng, groups) * np.exp2(rng.integers(-12, -8, groups)),
        "biases": full_significands(rng, groups) * np.exp2(rng.integers(-8, -4, groups)),
    }


def weight(group: int, **shape: int) -> dict[str, int]:
    return grouped("d", group, **shape)


dequant_affine = register(
    Contract(
        name="dequant_affine",
        family="linear",
        summary="bf16 weights of 2- to 8-bit affine codes",
        reference=reference,
        operands=(
            tensor("words", "rows words", "int32", typical=any_words),
            tensor("scales", "rows groups", typical=affine_scales),
            tensor("biases", "rows groups", typical=affine_biases),
            output("out", "rows d"),
        ),
        parameters={"bits": BITS},
        profiles=(
            Profile("once", {"product": None, "out": "bf16"}, users="MLX on Metal"),
            Profile(
                "each_op",
                {"product": "bf16", "out": "bf16"},
                users="MLX on the CPU",
                # a width that crosses words and one that does not: the others differ in their codes only
                when={"bits": ("4", "3")},
            ),
        ),
        row_dims=("rows",),
        # a part of a weight's rows: they are independent
        shapes=(weight(64, rows=16, d=5376), weight(32, rows=4, d=3840)),
        awkward=(weight(32, rows=1, d=32), weight(128, rows=3, d=384)),
        stress=(weight(32, d=96), weight(64, d=192), weight(128, d=256), weight(32, d=32)),
        exact=exact_rows,
        exact_shapes=(weight(32, d=96), weight(64, d=192), weight(128, d=384, rows=16)),
        rules=group_rule("d"),
        sizes={"words": words_of("d"), "d": columns_of()},
    )
)


@implementation("dequant_affine", name="torch", profile=("once", "each_op"))
def dequant_affine_torch(
    words: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, *, bits: str, profile: str
) -> torch.Tensor:
    """Unpacked row by row of words, fp32 inside."""
    codes = unpack(words, int(bits))
    return affine_values(codes, scales, biases, each_op=profile == "each_op").to(scales.dtype)
