"""What the contracts of matrix products share: the product of their torch kernels, exact rows, typical weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from contract.kernels.data import full_significands
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

#: Columns of one fp32 product; the chunks are added in order, so that rounding grows with their number and not with k.
CHUNK = 256

#: Any order of an fp32 sum, and products that are fused into it.
DOT = "any order of n - 1 additions and n products, each rounded or fused: Higham, Accuracy and Stability of Numerical"
DOT += " Algorithms, sections 3.1 and 4.2; matrix units and BLAS state no order"

#: Significand bits of the two factors of a product below 2^17: full ones of bf16, of fp16, and beyond tf32.
BITS = ((8, 8), (11, 5), (5, 11), (13, 3), (3, 13))

# Columns whose sum is the result; the others cancel.
TAIL = 32
# The running sum in order reaches 2^21.7 or more, the sum of all magnitudes stays below 2^24.
PAIRS = 96


def scaled_weight(rng: Any, shape: tuple[int, ...]) -> Any:
    """Weights (n, k) as trained ones are: products with N(0, 1) rows are around 1."""
    return rng.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[-1])


def tail_of(k: int) -> int:
    """How many of k columns make the result of `cancelling_operands`; their terms have one sign."""
    return min(TAIL, (k + 1) // 2)


def pairs_of(k: int) -> int:
    """How many of k columns of `cancelling_operands` have an opposite, which stands as many columns further on."""
    return min(PAIRS, (k - tail_of(k)) // 2)


def cancelling_operands(
    rng: Any, rows: int, columns: int, k: int, kinds: tuple[tuple[int, int], ...] = BITS
) -> tuple[Any, Any]:
    """x (rows, k) and W (columns, k) of integers whose products sum exactly in every order, to numbers below 2^14.

    The first terms are positive, the next ones nearly their opposites: an accumulator of fewer than 24 bits loses the
    result, and so does a matrix unit that takes fewer bits than the format has. A format that has fewer rounds the
    operands; the sums stay exact. The last up to 32 columns add to the result, so that each of them is seen to be read.

    Args:
        kinds: significand bits of the two factors, by turns over the first columns.
    """
    tail, pairs = tail_of(k), pairs_of(k)
    x, w = np.zeros((rows, k)), np.zeros((columns, k))
    for first, (bits_x, bits_w) in enumerate(kinds):
        width = len(range(first, pairs, len(kinds)))
        at = slice(first, pairs, len(kinds))
        x[:, at] = np.abs(full_significands(rng, (rows, width), bits_x))
        w[:, at] = np.abs(full_significands(rng, (columns, width), bits_w))
    mirror = slice(pairs, 2 * pairs)
    x[:, mirror], w[:, mirror] = x[:, :pairs], -w[:, :pairs]
    # the longer factor's last bits do not cancel: an operand that is cut shows in the result
    for column in range(pairs):
        bits_x, bits_w = kinds[column % len(kinds)]
        if bits_x != bits_w:
            side = x if bits_x > bits_w else w
            side[:, pairs + column] += 2 * rng.integers(-1, 2, len(side))
    x[:, k - tail :] = rng.integers(1, 8, (rows, tail))
    # results around 500, of which bf16 meets ties, and around 5000, of which fp16 does
    few, many = rng.integers(1, 8, (columns, tail)), rng.integers(16, 64, (columns, tail))
    w[:, k - tail :] = np.where(np.arange(columns)[:, None] % 2, many, few)
    sign = np.where(rng.random((rows, 1)) < 0.5, -1.0, 1.0)
    return x * sign, w * np.where(rng.random((columns, 1)) < 0.5, -1.0, 1.0)


def product(x: torch.Tensor, weight: torch.Tensor, start: torch.Tensor | None) -> torch.Tensor:
    """start + x W^T in fp32: chunks of k in order. Only a chunk of either operand is held as fp32."""
    pieces = zip(x.split(CHUNK, -1), weight.split(CHUNK, -1), strict=True)
    total = start
    for a, b in pieces:
        part = a.float() @ b.float().T
        total = part if total is None else total + part
    assert total is not None
    return total


def overflowing_rows(x: Any) -> None:
    """Every eighth row (in place) of `cancelling_operands` keeps its tail alone, times 2^124: fp32 sums overflow."""
    x[7::8, : x.shape[-1] - tail_of(x.shape[-1])] = 0.0
    x[7::8] *= 2.0**124
