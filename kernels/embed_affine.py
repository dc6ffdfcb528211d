"""Embedding rows from an affine-quantised table: contract and torch implementation."""

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
from contract.references.embed_affine import embed_affine as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def roots(rng: Any, shape: tuple[int, ...]) -> Any:
    """Roots of the widths of Gemma 4, which are no bf16 numbers: 61.97 and 73.32."""
    return np.sqrt(rng.choice((3840.0, 5376.0), shape))


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Scales and biases of 8 bits, at most 8 binades apart, so that q s + b has at most 24; every id occurs."""
    table = (shape["vocab"], shape["groups"])
    return {
        "ids": np.resize(rng.permutation(shape["vocab"]), shape["rows"]).astype(np.float64),
        "words": any_words(rng, (shape["vocab"], shape["words"])),
        "scales": full_significands(rng, table) * np.exp2(rng.integers(-12, -8, table)),
        "biases": full_significands(rng, table) * np.exp2(rng.integers(-8, -4, table)),
        "scale": np.asarray(float(rng.integers(1 << 12, 1 << 13)) / 128.0),
    }


def table(group: int, **shape: int) -> dict[str, int]:
    return grouped("d", group, **shape)


embed_affine = register(
    Contract(
        name="embed_affine",
        family="embedding",
        summary="rows of a table of 2- to 8-bit affine codes, times the embedding scale",
        reference=reference,
        operands=(
            tensor("ids", "rows", "int32", below="vocab"),
            tensor("words", "vocab words", "int32", typical=any_words),
            tensor("scales", "vocab groups", typical=affine_scales),
            tensor("biases", "vocab groups", typical=affine_biases),
            tensor("scale", "", "fp32", typical=roots, finite=True),
            output("out", "rows d"),
        ),
        parameters={"bits": BITS},
        profiles=(
            Profile(
                "two_step",
                {"product": None, "row": "bf16", "scale": "bf16", "out": "bf16"},
                users="MLX on Metal (Gemma 4)",
            ),
            Profile(
                "each_op",
                {"product": "bf16", "row": "bf16", "scale": "bf16", "out": "bf16"},
                users="MLX on the CPU",
                # a width that crosses words and one that does not: the others differ in their codes only
                when={"bits": ("4", "3")},
            ),
        ),
        row_dims=("rows",),
        # Gemma 4's width over a part of its 262,144 rows: a table this tall shows every index that one row shows
        shapes=(table(64, rows=16, vocab=64, d=3840), table(32, rows=1, vocab=8, d=2560)),
        awkward=(table(32, rows=3, vocab=1, d=32), table(128, rows=5, vocab=11, d=384)),
        stress=(
            table(32, vocab=13, d=96),
            table(64, vocab=13, d=192),
            table(128, vocab=13, d=256),
            table(32, vocab=13, d=32),
        ),
        exact=exact_rows,
        exact_shapes=(
            table(32, vocab=9, d=96),
            table(64, vocab=9, d=192),
            table(128, vocab=9, d=384, rows=16),
        ),
        rules=group_rule("d"),
        sizes={"words": words_of("d"), "d": columns_of()},
    )
)


@implementation("embed_affine", name="torch", profile=("two_step", "each_op"))
def embed_affine_torch(
    ids: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    biases: torch.Tensor,
    scale: torch.Tensor,
    *,
    bits: str,
    profile: str,
) -> torch.Tensor:
    """Only the chosen rows are unpacked."""
    codes = unpack(words.index_select(0, ids), int(bits))
    s, b = scales.index_select(0, ids), biases.index_select(0, ids)
    row = affine_values(codes, s, b, each_op=profile == "each_op").to(scales.dtype)
    return row * scale.to(scales.dtype)
