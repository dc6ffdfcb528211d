"""Sets of allowed results: picks (argmax and the like), and one of a few values with nothing between them.

Behind uncertain values the index i may be picked iff some assignment of them makes it the first largest one:
hi_i > lo_j for every j < i and hi_i >= lo_j for every j > i. Equal values are equal bits, but for the zeros, which
compare equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from contract import formats
from contract.endpoints import MAY, MOST, ONLY, Array, Interval


class Choices(Interval):
    """An interval with gaps: a value lies in one of the parts codes .. tops (..., n) with `allowed` (..., n).

    Its ends are those of the hull. A step that does not know choices takes the hull, which is wider.
    """

    __slots__ = ("allowed", "codes", "tops")

    def __init__(
        self, codes: Array, allowed: Array, nan: Array | None = None, *, tops: Array | None = None
    ):
        self.codes, self.tops = codes, codes if tops is None else tops
        self.allowed = allowed
        lo = np.min(np.broadcast_to(codes, allowed.shape), -1, where=allowed, initial=np.inf)
        hi = np.max(np.broadcast_to(self.tops, allowed.shape), -1, where=allowed, initial=-np.inf)
        super().__init__(lo, lo if np.array_equal(lo, hi) else hi, nan)


def without_nan(values: Array, nan: str) -> Array:
    """Values in the order of picks: a NaN above +inf ('first'), or below -inf ('ignore')."""
    if nan == "first":
        return np.where(np.isnan(values), np.inf, np.minimum(values, MOST))
    return np.where(np.isnan(values), -np.inf, np.maximum(values, -MOST))


def pick_max(x: Interval, axis: int, nan: str) -> Choices:
    """Indices that may be the first largest along the axis, which goes.

    Args:
        nan: 'first', a NaN is larger than every number; 'ignore', it is smaller.
    """
    lo, hi = np.moveaxis(x.lo, axis, -1), np.moveaxis(x.hi, axis, -1)
    if x.nan is not None:
        state = np.moveaxis(x.nan, axis, -1)
        lowest, highest = (ONLY, MAY) if nan == "first" else (MAY, ONLY)
        lo = without_nan(np.where(state >= lowest, np.nan, lo), nan)
        hi = without_nan(np.where(state >= highest, np.nan, hi), nan)
    n = lo.shape[-1]
    first = np.full((*lo.shape[:-1], 1), -np.inf)
    before = np.concatenate([first, np.maximum.accumulate(lo, axis=-1)[..., :-1]], -1)
    after = np.concatenate(
        [np.maximum.accumulate(lo[..., ::-1], axis=-1)[..., ::-1][..., 1:], first], -1
    )
    allowed = (hi > before) & (hi >= after)
    # the first one has none before it, even where it is -inf
    allowed[..., 0] = hi[..., 0] >= after[..., 0]
    return Choices(np.arange(n, dtype=np.float64), allowed)


def one_of(parts: list[Interval]) -> Choices:
    """Any of a few results, each a value or a range, and nothing between them."""
    shape = np.broadcast_shapes(*(p.shape for p in parts))
    states = [np.zeros((), np.uint8) if p.nan is None else p.nan for p in parts]
    state = np.stack([np.broadcast_to(x, shape) for x in states], -1)
    nan = np.where((state == ONLY).all(-1), ONLY, np.where((state > 0).any(-1), MAY, 0))
    # where all are NaN the first one's placeholder stays
    allowed = (state != ONLY) | (
        (state == ONLY).all(-1, keepdims=True) & (np.arange(len(parts)) == 0)
    )
    codes = np.stack([np.broadcast_to(p.lo, shape) for p in parts], -1)
    tops = np.stack([np.broadcast_to(p.hi, shape) for p in parts], -1)
    return Choices(codes, allowed, nan.astype(np.uint8) if nan.any() else None, tops=tops)


class Allowed:
    """What one output of a case may be; its counts are taken once, however many targets are compared with it.

    `widest` is the width of its widest element in ulps, 0 where each has one value.
    """

    widest: float

    def one_value(self) -> Array:
        """Where exactly one result is allowed."""
        raise NotImplementedError

    def rows(self, axis: int | None, rows: Any) -> Self:
        """The part of these rows (a slice, indices or a mask along the axis); all where rows share the output.

        `widest` stays that of the whole.
        """
        if axis is None:
            return self
        where = (slice(None),) * axis + (rows,)
        kept = {name: getattr(self, name)[where] for name in self._by_row()}
        return replace(self, **kept)  # type: ignore[type-var]

    def _by_row(self) -> tuple[str, ...]:
        """The fields with the output's own dims."""
        raise NotImplementedError

    @cached_property
    def singles(self) -> int:
        """How many elements have exactly one allowed result."""
        return int(np.count_nonzero(self.one_value()))


@dataclass
class OutputSet(Allowed):
    """Allowed bits of one output as a set; the interface of `contract.ranges.OutputRange`.

    `codes` .. `tops` (..., n) are stretches of ordered integers; those with `allowed` (..., n) may come out.
    """

    fmt: formats.Format
    codes: Array
    tops: Array
    allowed: Array
    nan: Array | None
    widest: float = 0.0

    def _by_row(self) -> tuple[str, ...]:
        own = ("allowed",) if self.codes.ndim == 1 else ("codes", "tops", "allowed")
        return own if self.nan is None else (*own, "nan")

    @property
    def lo(self) -> Array:
        wide = np.broadcast_to(self.codes, self.allowed.shape).astype(np.int64)
        return np.asarray(np.min(wide, -1, where=self.allowed, initial=np.iinfo(np.int64).max))

    @property
    def hi(self) -> Array:
        wide = np.broadcast_to(self.tops, self.allowed.shape).astype(np.int64)
        return np.asarray(np.max(wide, -1, where=self.allowed, initial=np.iinfo(np.int64).min))

    @property
    def size(self) -> int:
        return int(np.prod(self.allowed.shape[:-1], dtype=np.int64))

    def one_value(self) -> Array:
        """Where exactly one result is allowed."""
        single = np.asarray(self.lo == self.hi)
        if self.nan is None:
            return single
        return np.asarray((single & (self.nan == 0)) | (self.nan == ONLY))

    def refused(self, bits: Array) -> Array:
        """Where the observed bits are not in the set."""
        from contract.ranges import codes_of_bits

        got = codes_of_bits(bits, self.fmt).astype(np.int64)[..., None]
        found = ((self.codes <= got) & (got <= self.tops) & self.allowed).any(axis=-1)
        if not self.fmt.has_nan:
            return np.asarray(~found)
        is_nan = formats.is_nan(bits, self.fmt)
        if self.nan is None:
            return np.asarray(~found | is_nan)
        return np.asarray(np.where(is_nan, self.nan == 0, ~found | (self.nan == ONLY)))

    def ends(self, index: tuple[int, ...]) -> tuple[Array, Array, int]:
        """Bits of the smallest and the largest allowed result and the NaN state of one element."""
        state = 0 if self.nan is None else int(self.nan[index])
        lo, hi = np.asarray(self.lo[index], np.int64), np.asarray(self.hi[index], np.int64)
        if self.fmt.kind != "float":
            return lo, hi, state
        return formats.from_ordered(lo, self.fmt), formats.from_ordered(hi, self.fmt), state


def placed(
    found: OutputSet | None,
    value: Choices,
    place: tuple[slice, ...],
    shape: tuple[int, ...],
    fmt: formats.Format,
) -> OutputSet:
    """The output's set with one piece put in its place; the first piece makes it."""
    from contract.ranges import to_codes

    n = value.allowed.shape[-1]
    common = value.codes.ndim == 1
    codes = to_codes(np.asarray(value.codes), fmt)
    tops = codes if value.tops is value.codes else to_codes(np.asarray(value.tops), fmt)
    if found is None:
        room = np.zeros((n,) if common else (*shape, n), codes.dtype)
        # picks share one list of codes
        found = OutputSet(
            fmt,
            room,
            room if common else room.copy(),
            np.zeros((*shape, n), bool),
            None,
        )
    if common:
        found.codes[:] = codes
    else:
        found.codes[place], found.tops[place] = codes, tops
    found.allowed[place] = value.allowed
    if value.nan is not None:
        if found.nan is None:
            found.nan = np.zeros(shape, np.uint8)
        found.nan[place] = value.nan
    return found
