"""Inverses of unit triangular matrices, judged by their residual.

A forward range of X = M^-1 is useless: with correlated rows it is hundreds of units wide and passes an inverse computed in
bf16. The residual is not: substitution in any order gives each column x of X with (M + D) x = e, |D| <= g(C) |M| (Higham,
Accuracy and Stability of Numerical Algorithms, theorem 8.5), hence

    |M X - I| <= g(C + 2) |M| |X| + C t,

C the size, u and t as in `contract.products`; storing X in a narrower format adds its half unit, u_x |M| |X| (1 + g).
Block algorithms that multiply inverses of blocks meet a weaker bound and are not covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contract import formats
from contract.endpoints import Array
from contract.errors import DeclarationError
from contract.orders import FP32, Accumulator
from contract.products import gamma

if TYPE_CHECKING:
    from contract.product_samples import Draw


def residual_excess(
    m: Array, x: Array, acc: Accumulator = FP32, *, stored: str | None = None, ftz: bool = True
) -> Array:
    """|M X - I| over its bound, elementwise: above 1 no substitution gave this X; NaN counts as infinite.

    Args:
        m: (..., C, C) unit lower triangular, float64 values of the operand.
        x: (..., C, C) observed inverse.
        stored: the format X was rounded to after it was computed, None for the accumulator's.
        ftz: whether results may be flushed to zero.
    """
    size = m.shape[-1]
    if not _unit_lower(m):
        raise DeclarationError("residual of a matrix that is not unit lower triangular")
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        residual = np.abs(m @ x - np.eye(size))
        magnitude = np.abs(m) @ np.abs(x)
        g = float(gamma(size + 2, acc.u)) + (size + 4) * 2.0**-52
        t = acc.tiny(ftz)
        if stored is not None:
            fmt = formats.get(stored)
            g += 2.0**-fmt.precision * (1 + g)
            t = max(t, 2.0**fmt.emin)
        # what is lost below the smallest normal value is multiplied by M as X is
        bound = g * magnitude + t * (size + np.abs(m).sum(axis=-1, keepdims=True))
        excess = residual / bound
    return np.where(np.isnan(excess), np.inf, excess)


def residual_refused(
    m: Array, x: Array, acc: Accumulator = FP32, *, stored: str | None = None, ftz: bool = True
) -> Array:
    """Where the residual of X exceeds what substitution can leave."""
    return np.asarray(residual_excess(m, x, acc, stored=stored, ftz=ftz) > 1)


def solve_sample(m: Array, draw: Draw) -> Array:
    """An inverse by forward substitution, row by row, each row's sum in an order of its own.

    x_i = e_i - sum_{j < i} m_ij x_j.
    """
    size = m.shape[-1]
    x = np.zeros(m.shape)
    x[..., 0, 0] = 1.0
    for i in range(1, size):
        terms = -draw.products(draw.flush(m[..., i, :i, None]), x[..., :i, :])  # (..., j, C)
        unit = np.zeros((*m.shape[:-2], 1, size))
        unit[..., i] = 1.0
        x[..., i, :] = draw.sum(np.swapaxes(np.concatenate([terms, unit], -2), -1, -2), None)
    return draw.flush(x)


def _unit_lower(m: Array) -> bool:
    size = m.shape[-1]
    return bool((np.triu(m, 1) == 0).all() and (m[..., range(size), range(size)] == 1).all())
