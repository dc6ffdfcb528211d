"""Stress rows: compact descriptions, and their expansion to values of a format.

A Row is a few numbers that stand for a row of any length. It can be drawn, printed, parsed and
shrunk cheaply; `expand` turns it into values. The values of a row depend on its description, the
length and the format alone, never on the rows beside it.

Interface: Row, PATTERNS, SPECIALS, expand, decode_block, BYTES_PER_ROW.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from contract import formats
from contract.errors import DeclarationError, UsageError
from contract.format_table import Format, Overflow
from contract.row_patterns import FAULTS, PATTERNS, maker
from contract.row_words import Draw, Floats, Space

__all__ = ["BYTES_PER_ROW", "PATTERNS", "SPECIALS", "Row", "decode_block", "expand"]

#: Values that may be put at single positions; where a format lacks one, its nearest extreme.
SPECIALS: tuple[str, ...] = (
    "0", "-0", "one", "nan", "inf", "-inf", "max", "-max", "min_normal", "min_subnormal",
)  # fmt: skip
MAX_SPECIALS = 8

#: Bytes that `decode_block` reads for one row.
BYTES_PER_ROW = 6

# Exponents of all float64 values.
_LOWEST_EXPONENT, _HIGHEST_EXPONENT = -1074, 1023
# Elements per pass: a few work arrays of 16 Ki float64 fit the second-level cache.
_CHUNK = 1 << 14


@dataclass(frozen=True)
class Row:
    """A description of one row.

    Attributes:
        pattern: one of PATTERNS.
        lo, hi: exponents of two between which the pattern places magnitudes, clipped to the format.
        seed: 0 to 2**32 - 1.
        specials: (position in 1/65536 of the row, one of SPECIALS), at most 8; the last one wins.
    """

    pattern: str = PATTERNS[0]
    lo: int = 0
    hi: int = 0
    seed: int = 0
    specials: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        if self.pattern not in FAULTS:
            raise DeclarationError(
                f"row pattern {self.pattern!r}; use one of {', '.join(PATTERNS)}"
            )
        if not _LOWEST_EXPONENT <= self.lo <= self.hi <= _HIGHEST_EXPONENT:
            raise DeclarationError(
                f"row exponents e{self.lo}..{self.hi}; use"
                f" {_LOWEST_EXPONENT} <= lo <= hi <= {_HIGHEST_EXPONENT}"
            )
        if not 0 <= self.seed < 1 << 32:
            raise DeclarationError(f"row seed {self.seed}; use 0 to 2**32 - 1")
        if len(self.specials) > MAX_SPECIALS:
            raise DeclarationError(f"{len(self.specials)} specials; use at most {MAX_SPECIALS}")
        for position, special in self.specials:
            if special not in SPECIALS:
                raise DeclarationError(f"special {special!r}; use one of {', '.join(SPECIALS)}")
            if not 0 <= position < 1 << 16:
                raise DeclarationError(f"position {position}/65536; use 0 to 65535")

    def describe(self) -> str:
        """Text such as `outlier,e-3..4,seed=17,nan@0.25`, which `parse` reads back."""
        # Five decimals are 1e-5 apart, positions 1.5e-5: each is recovered by rounding.
        places = (f"{name}@{position / 65536:.5f}".rstrip("0") for position, name in self.specials)
        head = f"{self.pattern},e{self.lo}..{self.hi},seed={self.seed}"
        return ",".join((head, *(place + "0" * place.endswith(".") for place in places)))

    @staticmethod
    def parse(text: str) -> Row:
        """The row that `describe` wrote, or a DeclarationError naming what is wrong."""
        match = _TEXT.match(text)
        if match is None:
            raise DeclarationError(
                f"row {text!r}; write it as pattern,eLO..HI,seed=N[,special@position ...],"
                " such as outlier,e-3..4,seed=17,nan@0.25"
            )
        pattern, lo, hi, seed, rest = match.groups()
        specials = []
        for item in rest.split(",")[1:]:
            name, position = item.split("@")
            specials.append((round(float(position) * 65536), name))
        return Row(pattern, int(lo), int(hi), int(seed), tuple(specials))


_TEXT = re.compile(
    r"([a-z_]+),e(-?\d{1,4})\.\.(-?\d{1,4}),seed=(\d{1,10})((?:,[a-z0-9_-]+@\d\.\d{1,17})*)\Z",
    re.ASCII,
)


# ---- bytes to descriptions


def decode_block(data: bytes, rows: int, allow_specials: bool = True) -> tuple[Row, ...]:
    """The rows that BYTES_PER_ROW * rows bytes describe; zero bytes give the simplest row.

    Any bytes are valid, and smaller bytes mean simpler rows, so that shrinking bytes shrinks rows.
    """
    if len(data) != rows * BYTES_PER_ROW:
        raise UsageError(f"{len(data)} bytes for {rows} rows; use {rows * BYTES_PER_ROW}")
    patterns = PATTERNS if allow_specials else PATTERNS[:-1]
    return tuple(
        _decode(data[at : at + BYTES_PER_ROW], patterns, allow_specials)
        for at in range(0, len(data), BYTES_PER_ROW)
    )


def _decode(b: bytes, patterns: tuple[str, ...], allow_specials: bool) -> Row:
    # Three in five windows start within 2**-10..2**9, where activations and weights lie.
    lo = _zigzag(b[1] >> 3) if b[1] < 160 else _zigzag((b[1] - 160) * 3)
    width = b[2] >> 4 if b[2] < 160 else b[2] - 160
    # A NaN empties its whole row of information in most kernels: three rows in five have no special.
    count, kind = divmod(max(b[5] - 139, 0), 13) if allow_specials else (0, 0)
    seed = b[3] | b[4] << 8
    # Further places follow at golden-ratio steps and the kinds in turn: hypothesis takes 3 us for a
    # byte, which is the time of 100 expanded elements.
    specials = tuple(
        ((seed + j) * 40503 & 0xFFFF, SPECIALS[(kind + 3 * j) % len(SPECIALS)])
        for j in range(count)
    )
    return Row(patterns[b[0] % len(patterns)], lo, lo + width, seed, specials)


def _zigzag(k: int) -> int:
    """0, -1, 1, -2, 2, ... for 0, 1, 2, 3, 4, ..."""
    return -(k + 1 >> 1) if k & 1 else k >> 1


# ---- descriptions to values


def expand(rows: Sequence[Row], n: int, fmt: str | Format) -> Floats:
    """(len(rows), n) float64: the values of each row, all of them values of the format.

    Magnitudes beyond the format saturate. An integer format draws uniform codes where a pattern
    has no meaning of its own; a format without a sign takes magnitudes.
    """
    f = formats.get(fmt)
    result = np.empty((len(rows), n))
    if result.size == 0:
        return result
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.pattern, []).append(index)
    step = max(1, _CHUNK // n)
    space = Space(rows, n, f, min(step, len(rows)))
    infinity: Overflow = "inf" if f.has_inf else "saturate"
    with np.errstate(all="ignore"):
        for pattern, members in groups.items():
            make = maker(pattern, f)
            for start in range(0, len(members), step):
                chosen = members[start : start + step]
                values = make(Draw(space, chosen))
                if f.lowest >= 0:
                    values = np.abs(values)
                # Here, not at the end: work arrays of this size are reused, larger ones are not.
                result[chosen] = formats.round_to(values, f, overflow="saturate", infinity=infinity)
    for index, row in enumerate(rows):
        for position, special in row.specials:
            result[index, position * n >> 16] = _special(special, f)
    return result


@cache
def _special(name: str, f: Format) -> float:
    zero = f.lowest if f.kind == "scale" else 0.0
    return {
        "0": zero,
        "-0": -0.0 if f.has_negative_zero else zero,
        "one": 1.0,
        "nan": np.nan if f.has_nan else f.max,
        "inf": np.inf if f.has_inf else f.max,
        "-inf": -np.inf if f.has_inf else f.lowest,
        "max": f.max,
        "-max": f.lowest,
        "min_normal": f.tiny,
        "min_subnormal": f.smallest,
    }[name]
