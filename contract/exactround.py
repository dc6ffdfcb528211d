"""Exact rounding in integers: fractions and mpmath numbers to a value of any format.

The plain, slow statement of the rule that `contract.formats.round_to` computes on arrays; it
shares no arithmetic with it. The audit reading rounds its 200-bit values here, because
`float(mpf)` rounds twice where the result is subnormal (mpmath 1.3.0 and 1.4.1).

Interface: round_mpf, round_fraction, round_scaled.
"""

import math
from fractions import Fraction
from typing import Any

from contract.format_table import Format, Mode, Overflow, policies


def round_fraction(
    x: int | Fraction,
    fmt: str | Format,
    mode: Mode = "nearest_even",
    overflow: Overflow | None = None,
) -> float:
    """An integer or fraction rounded once; arguments and specials as in `formats.round_to`."""
    x = Fraction(x)
    return _round_ratio(x < 0, abs(x.numerator), x.denominator, 0, fmt, mode, overflow)


def round_mpf(
    x: Any,
    fmt: str | Format,
    mode: Mode = "nearest_even",
    overflow: Overflow | None = None,
    infinity: Overflow | None = None,
) -> float:
    """An mpmath number rounded once; arguments and specials as in `formats.round_to`.

    The working precision of mpmath plays no part.
    """
    sign, man, exponent, _ = x._mpf_
    if man or not exponent:
        return round_scaled(sign, int(man), int(exponent), fmt, mode, overflow)
    f, _, infinity = policies(fmt, mode, overflow, infinity)
    # A zero mantissa with an exponent codes a NaN or an infinity.
    if not (x < 0 or x > 0) or (f.kind == "scale" and x < 0):
        return math.nan
    return _beyond(infinity, f, x < 0)


def round_scaled(
    sign: int,
    man: int,
    exponent: int,
    fmt: str | Format,
    mode: Mode = "nearest_even",
    overflow: Overflow | None = None,
) -> float:
    """(-1)**sign * man * 2**exponent, with man >= 0, rounded once."""
    if man < 0:
        raise ValueError(f"man must not be negative, got {man}")
    return _round_ratio(bool(sign), man, 1, exponent, fmt, mode, overflow)


def _round_ratio(
    negative: bool,
    numerator: int,
    denominator: int,
    exponent: int,
    fmt: str | Format,
    mode: Mode,
    overflow: Overflow | None,
) -> float:
    """Rounds numerator / denominator * 2**exponent, not negative, and gives it its sign."""
    f, overflow, _ = policies(fmt, mode, overflow, None)
    if f.kind == "scale" and negative and numerator:
        return math.nan
    if f.kind == "scale" and not numerator:
        return f.lowest
    if not numerator:
        return -0.0 if negative and f.has_negative_zero else 0.0
    e = _floor_log2(numerator, denominator) + exponent
    # Far outside the range only "inexact" matters; shifting by such an exponent needs no end of
    # memory. 2**1200 is above and 2**-1200 below half the smallest value of every format.
    e_clamped = min(max(e, -1200), 1200)
    k = 0 if f.kind == "int" else max(e_clamped, f.emin) - f.mantissa_bits
    shift = exponent + (e_clamped - e) - k
    whole, rest = divmod(numerator << max(shift, 0), denominator << max(-shift, 0))
    twice = 2 * rest - (denominator << max(-shift, 0))
    whole += _increment(whole, rest != 0, twice, negative, mode)
    # in integers: a fraction takes ten times as long
    top, unit = (-f.lowest if negative and f.kind != "scale" else f.max).as_integer_ratio()
    if (whole * unit) << max(k, 0) > top << max(-k, 0):
        finite = mode in ("toward_zero", "to_odd") or mode == ("up" if negative else "down")
        return _beyond("saturate" if finite else overflow, f, negative)
    if f.kind == "scale" and whole == 0:
        return f.lowest
    value = math.ldexp(whole, k)
    return -value if negative and (whole or f.has_negative_zero) else value


def _floor_log2(numerator: int, denominator: int) -> int:
    e = numerator.bit_length() - denominator.bit_length()
    below = numerator << max(-e, 0) < denominator << max(e, 0)
    return e - below


def _increment(whole: int, inexact: bool, twice: int, negative: bool, mode: Mode) -> bool:
    """Whether the magnitude moves from whole to whole + 1; twice is 2 * rest - 1, as a sign."""
    match mode:
        case "nearest_even":
            return twice > 0 or (twice == 0 and whole % 2 == 1)
        case "half_away":
            return twice >= 0
        case "to_odd":
            return inexact and whole % 2 == 0
        case "toward_zero":
            return False
        case "up":
            return inexact and not negative
        case "down":
            return inexact and negative


def _beyond(policy: Overflow, f: Format, negative: bool) -> float:
    if policy == "nan":
        return math.nan
    if policy == "inf":
        return -math.inf if negative else math.inf
    return f.lowest if negative else f.max
