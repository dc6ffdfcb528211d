"""Random words for the patterns of stress rows, and the values made of them.

Element i of stream s of a row is the i-th splitmix64 word of a key made from the row's seed and s:
a row does not depend on the rows beside it. All arithmetic before rounding is exact or a single
float64 operation, so that every machine makes the same rows.

Source: Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014 (splitmix64).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from contract.format_table import Format

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]


class Described(Protocol):
    """What a pattern needs to know of a row."""

    @property
    def lo(self) -> int: ...
    @property
    def hi(self) -> int: ...
    @property
    def seed(self) -> int: ...


class Space:
    """What the Draws of one expansion share: facts of all rows, and work arrays that each uses anew.

    A fresh array costs its page faults, up to 5 ns an element, ten times the arithmetic on it;
    a NumPy call on the facts of three rows costs as much as one on 2000 elements.
    """

    def __init__(self, rows: Sequence[Described], n: int, f: Format, most: int) -> None:
        self.n, self.f, self.size = n, f, n * most
        self.index = np.arange(n)
        self.counters = (self.index.astype(np.uint64) + 1) * _GOLDEN
        self.emax = int(np.frexp(f.max)[1]) - 1
        self.emin = 0 if f.kind == "int" else max(f.emin - f.mantissa_bits, -1022)
        seeds, lo, hi = np.array([(row.seed, row.lo, row.hi) for row in rows]).T[:, :, None]
        lo, hi = lo.clip(self.emin, self.emax), hi.clip(self.emin, self.emax)
        # 4096 elements of fp64 must not overflow before they are rounded.
        scale = np.ldexp(1.0, np.minimum(lo, 1000)).view(np.int64)
        key = _mix(seeds.astype(np.uint64) + _GOLDEN)
        streams = _mix(key + np.arange(_STREAMS, dtype=np.uint64) * _STREAM).view(np.int64)
        # One array, because a Draw takes its rows out of it in one call.
        self.facts = np.hstack((seeds, lo, hi, scale, lo + 1023, hi - lo + 1, streams))
        self.arrays: list[Floats] = []
        self.used = 0

    def floats(self, rows: int) -> Floats:
        """An uninitialised (rows, n) array."""
        if self.used == len(self.arrays):
            self.arrays.append(np.empty(self.size))
        self.used += 1
        return self.arrays[self.used - 1][: rows * self.n].reshape(rows, self.n)


class Draw:
    """Random words and windows of rows with one pattern; every array is (rows, n) or (rows, few)."""

    def __init__(self, space: Space, rows: Sequence[int]) -> None:
        self.space, self.count, self.n, self.f = space, len(rows), space.n, space.f
        space.used = 0
        facts = space.facts[rows]
        self.seeds, self.lo, self.hi = facts[:, 0:1], facts[:, 1:2], facts[:, 2:3]
        self.scale = facts.view(np.float64)[:, 3:4]
        words = facts.view(np.uint64)
        self.low, self.width, self.words = words[:, 4:5], words[:, 5:6], words[:, 6:]

    def floats(self) -> Floats:
        """An uninitialised work array."""
        return self.space.floats(self.count)

    def row_word(self, stream: int) -> Words:
        """64 random bits for each row."""
        return self.words[:, stream : stream + 1]

    def word(self, stream: int) -> Words:
        """64 random bits for each element."""
        z = np.add(self.row_word(stream), self.space.counters, out=self.floats().view(np.uint64))
        return _mix(z, self.floats().view(np.uint64))

    def word_at(self, stream: int, index: Ints) -> Words:
        """The words of these elements, (few,) or (rows, few)."""
        return _mix(self.row_word(stream) + (index.astype(np.uint64) + 1) * _GOLDEN)

    def fraction(self, stream: int) -> Floats:
        """Uniform values in [0, 1)."""
        w = self.word(stream)
        w >>= 11
        return np.multiply(w, 2.0**-53, out=self.floats())

    def pick(self, stream: int, choices: Sequence[int]) -> Ints:
        """One of the choices for each row."""
        return np.take(np.array(choices), (self.row_word(stream) >> 32) % len(choices))

    def step(self, stream: int) -> Ints:
        """-1, 0 or 1 for each element."""
        # The upper 32 bits times 3 have the choice above bit 32.
        w = self.word(stream)
        w >>= 32
        w *= 3
        w >>= 32
        steps = w.view(np.int64)
        steps -= 1
        return steps

    def window(self, w: Words, base: Ints | None = None, width: int = 1) -> Floats:
        """Values with random sign and significand and an exponent of lo..hi.

        With a base for each row: of base - width + 1 to base, as far as the format has them.
        """
        low, span = self.low, self.width
        if base is not None:
            high = base.clip(self.space.emin, self.space.emax)
            lowest = (base - (width - 1)).clip(self.space.emin, self.space.emax)
            low, span = (lowest + 1023).view(np.uint64), (high - lowest + 1).view(np.uint64)
        whole = w.shape == (self.count, self.n)
        bits, part = (
            self.floats().view(np.uint64) if whole else np.empty_like(w) for _ in range(2)
        )
        # Of each word 11 bits choose the exponent, one is the sign and 52 are the significand.
        np.bitwise_and(w, 0x7FF, out=bits)
        bits *= span
        bits >>= 11
        bits += low
        bits <<= 52
        bits |= np.right_shift(w, 12, out=part)
        np.bitwise_and(w, 0x800, out=part)
        part <<= 52
        bits |= part
        return bits.view(np.float64)

    def normal(self, stream: int) -> Floats:
        """N(0, 1): a cell of equal probability, and a uniform place within it."""
        edges, widths = _normal_cells()
        w, x, of_cell = self.word(stream), self.floats(), self.floats()
        cell = np.right_shift(w, 52, out=self.floats().view(np.uint64)).view(np.int64)
        w <<= 12
        w >>= 12
        np.multiply(w, 2.0**-52, out=x)
        # Any mode but the default writes into `out` without a copy.
        x *= np.take(widths, cell, out=of_cell, mode="wrap")
        x += np.take(edges, cell, out=of_cell, mode="wrap")
        return x


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STREAM = np.uint64(0xD1342543DE82EF95)
_STREAMS = 5


def _mix(z: Words, t: Words | None = None) -> Words:
    """The output function of splitmix64, in place; t is work space."""
    t = np.empty_like(z) if t is None else t
    z ^= np.right_shift(z, 30, out=t)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, 27, out=t)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, 31, out=t)
    return z


@cache
def _normal_cells() -> tuple[Floats, Floats]:
    """Lower edges and widths of 4096 cells of equal probability, the tails cut at +-4.25."""
    inner = [NormalDist().inv_cdf(i / 4096) for i in range(1, 4096)]
    # Multiples of 2**-20, so that another math library gives the same rows.
    edges = np.rint(np.array([-4.25, *inner, 4.25]) * 2.0**20) * 2.0**-20
    return edges[:-1], np.diff(edges)
