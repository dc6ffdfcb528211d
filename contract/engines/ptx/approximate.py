"""The approximate instructions: what the ISA bounds and does not fix. PTX ISA 9.1, sections 9.7.3 and 9.7.4.

With skew 0 a result is the correctly rounded one. With skew -1 or 1 it is the lowest or highest value within the documented
error, so that a kernel whose result moves between them leans on more than the ISA promises. Results that the ISA's tables
name (of zeros, infinities and NaN) stay; so do overflow to infinity and underflow to zero. An end beyond zero is a zero of
the exact result's sign; of sin, cos and lg2, which cross zero with an absolute error, it is what that error makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract import formats
from contract.engines.ptx.formats import FORMATS, Format
from contract.engines.ptx.halves import both_widths
from contract.engines.ptx.opcode import Array, Call, Row, Semantics, quiet

TWO_PI, HUNDRED_PI = 2 * np.pi, 100 * np.pi


@dataclass(frozen=True)
class Bound:
    """A documented error.

    Attributes:
        kind: ulp (of the exact result), steps (representable values from the correctly rounded one),
            relative (to the exact result) or absolute.
        size: how large, in that unit.
        source: section of the PTX ISA.
    """

    kind: str
    size: float
    source: str


def _section(place: str) -> str:
    return f"PTX ISA 9.1, {place}"


# Of fp32 unless the name says otherwise.
BOUNDS = {
    "div.approx": Bound(
        "ulp", 2, _section("9.7.3.8 div: |b| in [2^-126, 2^126]; none given below")
    ),
    "div.full": Bound("ulp", 2, _section("9.7.3.8 div")),
    "rcp": Bound("ulp", 1, _section("9.7.3.13 rcp")),
    "sqrt": Bound("relative", 2.0**-23, _section("9.7.3.15 sqrt")),
    "rsqrt": Bound("relative", 2.0**-22.9, _section("9.7.3.16 rsqrt")),
    "sin": Bound("absolute", 2.0**-20.5, _section("9.7.3.18 sin: |a| <= 2 pi")),
    "sin, far": Bound("absolute", 2.0**-14.7, _section("9.7.3.18 sin: |a| <= 100 pi")),
    "cos": Bound("absolute", 2.0**-20.5, _section("9.7.3.19 cos: |a| <= 2 pi")),
    "cos, far": Bound("absolute", 2.0**-14.7, _section("9.7.3.19 cos: |a| <= 100 pi")),
    "lg2": Bound("relative", 2.0**-22, _section("9.7.3.20 lg2: outside of (0.5, 2)")),
    "lg2, near 1": Bound("absolute", 2.0**-22, _section("9.7.3.20 lg2: in (0.5, 2)")),
    "ex2": Bound("steps", 2, _section("9.7.3.21 ex2")),
    "tanh": Bound("relative", 2.0**-11, _section("9.7.3.22 tanh")),
    "tanh.f16": Bound("absolute", 2.0**-10.987, _section("9.7.4.9 tanh")),
    "tanh.bf16": Bound("absolute", 2.0**-8, _section("9.7.4.9 tanh")),
    "ex2.f16": Bound("relative", 2.0**-9.9, _section("9.7.4.10 ex2")),
    "ex2.bf16": Bound("relative", 2.0**-7, _section("9.7.4.10 ex2")),
}

EXACT: dict[str, Call] = {
    "div.approx": np.divide,
    "div.full": np.divide,
    "rcp": lambda x: 1.0 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "lg2": np.log2,
    "ex2": np.exp2,
    "tanh": np.tanh,
}


def _error(bound: Bound, exact: Array, fmt: Format) -> Array:
    """The largest documented error of each result."""
    if bound.kind == "absolute":
        return np.full(exact.shape, bound.size)
    if bound.kind == "relative":
        return bound.size * np.abs(exact)
    return bound.size * formats.ulp(exact, fmt.fmt)


def moved(
    nearest: Array, exact: Array, error: Array, fmt: Format, skew: int, *, keeps_sign: bool
) -> Array:
    """The end of exact +- error in the format; nearest where no other value lies within, or none that is finite."""
    inward = "rp" if skew < 0 else "rm"
    end = fmt.narrow(exact + skew * error, inward)
    if keeps_sign:
        crosses = (exact + skew * error) * np.sign(exact) <= 0
        end = np.where(crosses, nearest & type(fmt.nan)(~fmt.magnitude & (2**fmt.width - 1)), end)
    value, limit = fmt.value(nearest), fmt.value(end)
    outside = limit > value if skew < 0 else limit < value
    free = np.isfinite(limit) & np.isfinite(value) & ~outside
    return np.where(free, end, nearest)


def _stepped(nearest: Array, size: float, skew: int, fmt: Format) -> Array:
    """So many representable values lower or higher; positive results only, which stay positive and finite."""
    top = fmt.flush(nearest).dtype.type(_LARGEST[fmt.name])
    code = nearest.astype(np.int64) + skew * int(size)
    inside = (nearest > 0) & (nearest <= top)
    return np.where(inside, np.clip(code, 1, int(top)).astype(nearest.dtype), nearest)


_LARGEST = {"f32": 0x7F7FFFFF, "f16": 0x7BFF, "bf16": 0x7F7F}


def skewed(name: str, nearest: Array, exact: Array, fmt: Format, skew: int, sources: Any) -> Array:
    """The result at one end of what is documented for it."""
    bound = BOUNDS.get(f"{name}.{fmt.name}") or BOUNDS[name]
    x = sources[0]
    if bound.kind == "steps":
        found = _stepped(nearest, bound.size, skew, fmt)
    elif name in ("sin", "cos"):
        found = _skewed_circular(name, nearest, exact, fmt, skew, x)
    else:
        error = _error(bound, exact, fmt)
        if name == "lg2":
            error = np.where((x > 0.5) & (x < 2), BOUNDS["lg2, near 1"].size, error)
        found = moved(nearest, exact, error, fmt, skew, keeps_sign=name != "lg2")
        if bound.kind != "absolute" and name != "lg2":
            found = np.where(fmt.value(nearest) == 0, nearest, found)
    return np.where(_documented(name, sources), nearest, found)


def _skewed_circular(
    name: str, nearest: Array, exact: Array, fmt: Format, skew: int, x: Array
) -> Array:
    """sin and cos: a larger error further out, and anything from -1 to 1 beyond 100 pi."""
    error = np.where(np.abs(x) > TWO_PI, BOUNDS[f"{name}, far"].size, BOUNDS[name].size)
    found = moved(nearest, exact, error, fmt, skew, keeps_sign=False)
    end = fmt.narrow(np.full(1, float(skew)), "rn")
    return np.where(np.abs(x) > HUNDRED_PI, end, found)


def _documented(name: str, sources: Any) -> Array:
    """Where the ISA's table of special inputs names the result: zeros, infinities, NaN; for lg2 all below zero."""
    special: Array = np.zeros(1, bool)
    for x in sources:
        special = special | (x == 0) | ~np.isfinite(x)
    return special | (sources[0] < 0) if name in ("lg2", "sqrt", "rsqrt") else special


def _huge_divisor(a: Array, b: Array, quotient: Array) -> Array:
    """div.approx by a divisor above 2^126: zero with the sign of the quotient, NaN for an infinite dividend."""
    huge = (np.abs(b) > 2.0**126) & np.isfinite(b)
    lost = np.where(np.isinf(a), np.nan, np.copysign(0.0, quotient))
    return np.where(huge & ~np.isnan(quotient), lost, quotient)


def approximation(name: str, fmt: Format, ftz: bool) -> Call:
    """The instruction on raw bits, with its skew."""

    def call(*raws: Array, skew: int = 0) -> Array:
        read = tuple(fmt.flush(x) if ftz else x for x in raws)
        values = tuple(fmt.value(x).astype(np.float64) for x in read)
        exact = EXACT[name](*values)
        if name == "div.approx":
            exact = _huge_divisor(values[0], values[1], exact)
        found = fmt.narrow(exact, "rn")
        if skew:
            found = skewed(name, found, exact, fmt, skew, values)
        return fmt.flush(found) if ftz else found

    return quiet(call)


def single(name: str, sources: int) -> Callable[..., Semantics]:
    """The builder of an fp32 instruction."""

    def build(ftz: bool = False) -> Semantics:
        call = approximation(name, FORMATS["f32"], ftz)
        return Semantics(call, ("b32",) * sources, ("b32",), approximate=True)

    return build


def half(name: str, ftz: bool) -> Callable[..., Semantics]:
    """The builder of an instruction of halves."""

    def build(type: str) -> Semantics:
        call = approximation(name, FORMATS[type.removesuffix("x2")], ftz)

        def with_skew(*raws: Array, skew: int = 0) -> Array:
            plain = both_widths(lambda *x: call(*x, skew=skew), type, 1)
            found: Array = plain.call(*raws)
            return found

        kind = both_widths(call, type, 1)
        return Semantics(with_skew, kind.sources, kind.results, approximate=True)

    return build


ROWS = (
    Row("div approx ftz? f32", single("div.approx", 2)),
    Row("div full ftz? f32", single("div.full", 2)),
    Row("rcp approx ftz? f32", single("rcp", 1)),
    Row("sqrt approx ftz? f32", single("sqrt", 1)),
    Row("rsqrt approx ftz? f32", single("rsqrt", 1)),
    Row("sin approx ftz? f32", single("sin", 1)),
    Row("cos approx ftz? f32", single("cos", 1)),
    Row("lg2 approx ftz? f32", single("lg2", 1)),
    Row("ex2 approx ftz? f32", single("ex2", 1)),
    Row("tanh approx f32", single("tanh", 1)),
    Row("tanh approx type=f16|f16x2|bf16|bf16x2", half("tanh", False)),
    Row("ex2 approx type=f16|f16x2", half("ex2", False)),
    Row("ex2 approx ftz type=bf16|bf16x2", half("ex2", True)),
)
