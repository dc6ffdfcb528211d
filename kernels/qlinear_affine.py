"""A linear layer with affine-quantised weights: contract and torch implementation."""

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
    group_size,
    grouped,
    unpack,
    words_of,
)
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.qlinear_affine import qlinear_affine as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

#: Output columns whose weights are unpacked at a time: 5376 x 64 fp32 weights are 1.4 MB.
TILE = 64


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Integer weights below 2^13 in magnitude, |q s| + |b| too, so that their bf16 roundings show; sums to 2^23.

    Every other row of x has a few full significands, the others are dense with values up to 3: all indices show, and
    every sum stays exact in every order.
    """
    rows, k, groups = shape["rows"], shape["k"], (shape["n"], shape["groups"])
    most = min(8, 12 - int(parameters["bits"]))
    dense = rng.integers(-3, 4, (rows, k)).astype(np.float64)
    few = np.argsort(rng.random((rows, k)), axis=-1) < 4
    sparse = np.where(few, full_significands(rng, (rows, k)), 0.0)
    x = np.where(np.arange(rows)[:, None] % 2 == 0, dense, sparse)
    return {
        "x": x * np.exp2(rng.integers(-8, 4, (rows, 1))),
        "words": any_words(rng, (shape["n"], shape["words"])),
        "scales": full_significands(rng, groups, most),
        "biases": full_significands(rng, groups, 8) * np.exp2(rng.integers(0, 4, groups)),
    }


def linear(group: int, **shape: int) -> dict[str, int]:
    return grouped("k", group, **shape)


qlinear_affine = register(
    Contract(
        name="qlinear_affine",
        family="linear",
        summary="a linear layer with weights of 2- to 8-bit affine codes",
        reference=reference,
        operands=(
            tensor("x", "rows k"),
            tensor("words", "n words", "int32", typical=any_words),
            tensor("scales", "n groups", typical=affine_scales),
            tensor("biases", "n groups", typical=affine_biases),
            output("out", "rows n"),
        ),
        parameters={"bits": BITS},
        options={"terms": ("whole", "split", "groups")},
        profiles=(
            Profile(
                "dequantised",
                {"weight": "bf16", "out": "bf16"},
                options={"terms": "whole"},
                users="MLX qmm (prefill), Gemma 4",
            ),
            Profile(
                "fused",
                {"weight": None, "out": "bf16"},
                options={"terms": ("whole", "split", "groups")},
                users="MLX qmv (decode)",
                # a width that crosses words and one that does not: the others differ in their codes only
                when={"bits": ("4", "3")},
            ),
        ),
        row_dims=("rows",),
        column_dim="n",
        # Gemma 4's 3,840, and of up to 21,504 output columns a few, as they do not depend on each other: a width costs
        # every sampled sum its terms and every audited output its weights
        shapes=(linear(64, rows=4, k=1024, n=4), linear(64, rows=2, k=3840, n=1)),
        awkward=(
            linear(32, rows=3, k=32, n=1),
            linear(64, rows=2, k=192, n=7),
            linear(128, rows=5, k=384, n=13),
        ),
        # many columns of few terms: a sampled sum costs its terms, an audited output its column's weights
        stress=(
            linear(32, k=32, n=96),
            linear(64, k=64, n=16),
            linear(32, k=64, n=16),
            linear(128, k=128, n=6),
        ),
        exact=exact_rows,
        exact_shapes=(
            linear(32, k=32, n=128, rows=24),
            linear(64, k=128, n=6, rows=16),
            linear(128, k=256, n=4, rows=8),
        ),
        freedoms={
            "dot": "any order: a proof, Higham, sections 3.1 and 4.2",
            "groups": "any order of the groups' sums: a proof, Higham, section 4.2",
        },
        rules=group_rule("k"),
        sizes={"words": words_of("k"), "k": columns_of()},
    )
)


@implementation("qlinear_affine", name="torch", profile=("dequantised", "fused"))
def qlinear_affine_torch(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    *,
    bits: str,
    profile: str,
) -> torch.Tensor:
    """Weights stay packed: a tile of columns is unpacked, multiplied in fp32 and dropped.

    Raises:
        ValueError: weights of another width than x, or groups that are none of 32, 64 and 128.
    """
    check_width(x, words, scales, int(bits))
    wide = x.float()
    out = torch.empty(x.shape[0], words.shape[0], dtype=x.dtype)
    for start in range(0, words.shape[0], TILE):
        at = slice(start, start + TILE)
        w = affine_values(unpack(words[at], int(bits)), scales[at], biases[at])
        if profile == "dequantised":
            w = w.to(x.dtype).float()
        out[:, at] = wide @ w.T
    return out


def check_width(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor, bits: int) -> None:
    """Refuse weights that do not fit the rows of x."""
    if words.shape[-1] * 32 != x.shape[-1] * bits:
        raise ValueError(
            f"{words.shape[-1]} words a row; {x.shape[-1]} columns of {bits}-bit codes"
            f" are {x.shape[-1] * bits // 32}"
        )
    group_size(x.shape[-1], scales.shape[-1])
