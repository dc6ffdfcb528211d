"""One new row for each sequence's cache: what the kernels must compute."""

from __future__ import annotations

import numpy as np

from contract.readings.base import Quantity, Reading
from contract.references.attention import known


def kv_append(
    r: Reading,
    cache: Quantity,
    new: Quantity,
    slot: Quantity | None,
    position: Quantity | None,
    store: str,
    ring: str,
) -> Quantity:
    """cache[row, slot] = new[row]; every other slot keeps its bits.

    Args:
        cache: (rows, slots, kv, d) in the format that `store` names, read and overwritten.
        new: (rows, kv, d) bf16, or fp32 with store=fp32.
        slot: (rows,) int32, where each sequence's row goes (ring=no).
        position: (rows,) int32, how many rows came before; the slot is its remainder by the number of slots (ring=yes,
            the cache of a window).
        store: 'bf16', 'fp16' or 'fp32'.

    Rounding points:
        stored: the new row in the cache's format; with bf16 and fp32 it is moved.

    Freedoms: none.

    Specials: subnormals and the sign of zero are kept. What is beyond fp16's largest value is stored as an infinity.
    """
    return r.round("stored", written(r, cache, new, slot, position))


def kv_append_int8(
    r: Reading,
    cache: Quantity,
    new: Quantity,
    slot: Quantity | None,
    position: Quantity | None,
    scale: float,
    ring: str,
    division: str,
) -> Quantity:
    """cache[row, slot] = clamp(round(new[row] / scale), -127, 127); every other slot keeps its codes.

    Args:
        cache: (rows, slots, kv, d) int8, read and overwritten.
        new: (rows, kv, d) bf16, finite.
        slot, position, ring: as kv_append.
        scale: of the whole cache, known from calibration; positive.

    Rounding points:
        stored: to nearest, ties to even; -128 is not used.

    Options:
        division: 'true' (x / s) or 'reciprocal' (x * (1 / s)).

    Freedoms: the quotient in fp32 or wider.
    """
    step = r.wrap(r.lift(scale))
    quotient = new / step if division == "true" else new * (1.0 / step)
    codes = r.maximum(r.minimum(quotient, 127.0), -127.0)
    return r.round("stored", written(r, cache, codes, slot, position))


def written(
    r: Reading, cache: Quantity, new: Quantity, slot: Quantity | None, position: Quantity | None
) -> Quantity:
    """The cache with one slot of every sequence replaced."""
    slots = cache.shape[1]
    if slot is not None:
        place = r.integers(slot)
    else:
        assert position is not None
        place = r.integers(position) % slots
    chosen = (np.arange(slots) == place[:, None])[:, :, None, None]
    return r.where(known(r, chosen), new.reshape(new.shape[0], 1, *new.shape[1:]), cache)
