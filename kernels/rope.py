"""Rotary embedding: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.rope import rope as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

FP32_TABLES = {"cos": "fp32", "sin": "fp32"}
#: What the sizes of a rotation satisfy.
RULES = {
    "2 half <= d (the rotary dims lie in the head)": lambda s: 2 * s["half"] <= s["d"],
    "half is even (by_axis halves it)": lambda s: s["half"] % 2 == 0,
}


def cosines(rng: Any, shape: tuple[int, ...]) -> Any:
    """Table entries of evenly distributed angles; sin draws its own, which no rotation needs to be cos's."""
    return np.cos(rng.uniform(-np.pi, np.pi, shape))


def exact_tables(rng: Any, tokens: int, half: int) -> tuple[Any, Any]:
    """Tables of four kinds of token: angle 0, entries 0, +-1/2 and +-1, one product alone, full significands."""
    simple = (0.0, 0.5, 1.0, -0.5, -1.0)
    cos, sin = rng.choice(simple, (tokens, half)), rng.choice(simple, (tokens, half))
    cos[::4], sin[::4] = 1.0, 0.0
    full = full_significands(rng, (2, tokens, half), 24) * 2.0**-24
    alone = rng.random((tokens, half)) < 0.5
    cos[2::4] = np.where(alone, full[0], 0.0)[2::4]
    sin[2::4] = np.where(alone, 0.0, full[1])[2::4]
    cos[3::4], sin[3::4] = full[:, 3::4]
    return cos, sin


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: integers times 0, +-1/2, +-1 in every combination, and products that are rounded once.

    fp32 outputs of two inexact products are not one value, whichever of them is fused; bf16 ones nearly always are.
    """
    tokens, heads, d = shape["tokens"], shape["heads"], shape["d"]
    x = full_significands(rng, (tokens, heads, d)) * np.exp2(
        rng.integers(-8, 8, (tokens, heads, 1))
    )
    # a product alone is inexact in fp32 where both factors are full
    x[2::4] = full_significands(rng, x[2::4].shape, 24) * 2.0**-20
    cos, sin = exact_tables(rng, tokens, shape["half"])
    return {"x": x, "cos": cos, "sin": sin}


rope = register(
    Contract(
        name="rope",
        family="rotary",
        summary="rotary embedding of the first dims of each head, by given tables",
        reference=reference,
        operands=(
            tensor("x", "tokens heads d"),
            tensor("cos", "tokens half", typical=cosines),
            tensor("sin", "tokens half", typical=cosines),
            output("out", "tokens heads d"),
        ),
        parameters={"pairing": ("halves", "interleaved", "by_axis")},
        profiles=(
            Profile(
                "each_op",
                {"cos_product": "bf16", "sin_product": "bf16", "out": "bf16"},
                users="Llama, Qwen3, Gemma 4, GPT-J in transformers; MLX on the CPU",
            ),
            Profile(
                "once",
                {"cos_product": None, "sin_product": None, "out": "bf16"},
                FP32_TABLES,
                when={"pairing": ("halves", "interleaved")},
                users="MLX on Metal, vision towers of Qwen3-VL and Qwen3.5 in transformers",
            ),
            Profile(
                "float32",
                {"cos_product": None, "sin_product": None, "out": "fp32"},
                {**FP32_TABLES, "x": "fp32", "out": "fp32"},
                when={"pairing": ("halves",)},
                users="rotations inside fp32 chains",
            ),
        ),
        row_dims=("tokens",),
        # heads of 128 (Qwen3), 64 of 256 dims (Qwen3.5), 512 (Gemma 4), 72 (its tower); a token, and short prompts
        shapes=(
            {"tokens": 1, "heads": 16, "d": 128, "half": 64},
            {"tokens": 1, "heads": 16, "d": 256, "half": 32},
            {"tokens": 16, "heads": 2, "d": 512, "half": 256},
            {"tokens": 49, "heads": 16, "d": 72, "half": 36},
            {"tokens": 64, "heads": 16, "d": 128, "half": 64},
        ),
        awkward=(
            {"tokens": 3, "heads": 1, "d": 4, "half": 2},
            {"tokens": 2, "heads": 3, "d": 13, "half": 4},
            {"tokens": 17, "heads": 5, "d": 66, "half": 32},
        ),
        stress=(
            {"heads": 2, "d": 16, "half": 8},
            {"heads": 1, "d": 4, "half": 2},
            {"heads": 3, "d": 13, "half": 4},
            {"heads": 1, "d": 64, "half": 32},
        ),
        exact=exact_rows,
        exact_shapes=(
            {"heads": 2, "d": 16, "half": 8},
            {"heads": 1, "d": 13, "half": 4},
            {"heads": 2, "d": 256, "half": 32, "tokens": 16},
        ),
        rules=RULES,
    )
)


@implementation("rope", name="torch", profile=("each_op", "once", "float32"))
def rope_torch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, pairing: str
) -> torch.Tensor:
    """Computes in the tables' format: bf16 tables round each product, fp32 ones only the result."""
    half = cos.shape[-1]
    sides, table, axis = {
        "halves": ((2, half), (1, half), -2),
        "interleaved": ((half, 2), (half, 1), -1),
        "by_axis": ((2, 2, half // 2), (2, 1, half // 2), -2),
    }[pairing]
    whole = 2 * half == x.shape[-1]
    split = (x if whole else x[..., : 2 * half]).reshape(*x.shape[:-1], *sides).to(cos.dtype)
    turned, other = split * cos.reshape(-1, 1, *table), split * sin.reshape(-1, 1, *table)
    first, second = turned.unbind(axis)
    a, b = other.unbind(axis)
    first.sub_(b)
    second.add_(a)
    out = turned.reshape(*x.shape[:-1], 2 * half).to(x.dtype)
    return out if whole else torch.cat((out, x[..., 2 * half :]), -1)


def turn(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, pairing: str, out: torch.Tensor
) -> None:
    """Write the rotated dims into out, whose other dims stay."""
    a, b = pairs(x, cos.shape[-1], pairing)
    first, second = pairs(out, cos.shape[-1], pairing)
    c = cos.reshape(len(cos), 1, *a.shape[2:])
    s = sin.reshape(len(sin), 1, *a.shape[2:])
    first.copy_(a * c - b * s)
    second.copy_(b * c + a * s)


def pairs(x: torch.Tensor, half: int, pairing: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The two sides of the pairs, as views; with a dim for the axis under by_axis."""
    if pairing == "interleaved":
        return x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    if pairing == "by_axis":
        sides = x[..., : 2 * half].unflatten(-1, (2, 2, half // 2))
        return sides[..., 0, :], sides[..., 1, :]
    return x[..., :half], x[..., half : 2 * half]
