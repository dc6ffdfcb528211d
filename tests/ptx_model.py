"""PTX instructions of one lane in Python integers and fractions: slow, and sharing nothing with contract.engines.ptx.

`expected(opcode, sources)` is the tuple of results; MODELS has an entry for each mnemonic.
Section numbers of docstrings are those of the PTX ISA 9.1.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np


@dataclass(frozen=True)
class Layout:
    """Bits of the significand with the hidden one, least normal exponent, and bits of the code."""

    p: int
    emin: int
    width: int
    inf: int
    nan: int

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)


LAYOUTS = {
    "f64": Layout(53, -1022, 64, 0x7FF << 52, 0xFFF8 << 48),
    "f32": Layout(24, -126, 32, 0xFF << 23, 0x7FFFFFFF),
    "f16": Layout(11, -14, 16, 0x1F << 10, 0x7FFF),
    "bf16": Layout(8, -126, 16, 0xFF << 7, 0x7FFF),
    # tf32 is an fp32 word of which 13 bits are not used
    "tf32": Layout(11, -126, 19, 0xFF << 10, 0x3FFFF),
    "e4m3": Layout(4, -6, 8, 0x7F, 0x7F),
    "e5m2": Layout(3, -14, 8, 0x7C, 0x7F),
}
Value = Fraction | str


def decode(kind: str, code: int) -> Value:
    """A fraction, or nan, inf, -inf, -0."""
    f = LAYOUTS[kind]
    negative, magnitude = bool(code & f.sign), code & (f.sign - 1)
    if magnitude > f.inf or (kind == "e4m3" and magnitude == f.inf):
        return "nan"
    if magnitude == f.inf:
        return "-inf" if negative else "inf"
    if magnitude == 0:
        return "-0" if negative else Fraction(0)
    e, m = divmod(magnitude, 1 << (f.p - 1))
    if e:
        m, e = m + (1 << (f.p - 1)), e - 1
    value = Fraction(m) * Fraction(2) ** (e + f.emin - f.p + 1)
    return -value if negative else value


def real(v: Value) -> Fraction:
    """The value of a finite one."""
    if isinstance(v, str):
        assert v == "-0", v
        return Fraction(0)
    return v


def finite(v: Value) -> bool:
    return v not in ("nan", "inf", "-inf")


def negative(v: Value) -> bool:
    return v in ("-inf", "-0") if isinstance(v, str) else v < 0


def logb(x: Fraction) -> int:
    """floor(log2 x) of x > 0."""
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def encode(kind: str, v: Value, mode: str = "rn", satfinite: bool = False) -> int:
    """A value rounded once."""
    f = LAYOUTS[kind]
    if v == "nan":
        return f.nan
    sign = f.sign if negative(v) else 0
    if v in ("inf", "-inf"):
        return sign | (f.inf - 1 if satfinite else f.inf)
    x = abs(real(v))
    if x == 0:
        return sign
    e = max(logb(x), f.emin)
    scaled = x / Fraction(2) ** (e - f.p + 1)
    n, rest = divmod(scaled.numerator, scaled.denominator)
    left = Fraction(rest, scaled.denominator)
    up = {
        "rn": left > Fraction(1, 2) or (left == Fraction(1, 2) and n % 2 == 1),
        "rna": left >= Fraction(1, 2),
        "rz": False,
        "rm": bool(sign) and left > 0,
        "rp": not sign and left > 0,
    }[mode]
    code = ((e - f.emin) << (f.p - 1)) + n + up
    if code >= f.inf:
        inward = mode == "rz" or (mode == "rm" and not sign) or (mode == "rp" and bool(sign))
        code = f.inf - 1 if satfinite or inward else f.inf
    return sign | code


def flush(kind: str, code: int) -> int:
    f = LAYOUTS[kind]
    return code & f.sign if code & (f.sign - 1) < 1 << (f.p - 1) else code


def signed(x: int, width: int) -> int:
    x &= (1 << width) - 1
    return x - (1 << width) if x >> (width - 1) else x


def width_of(kind: str) -> int:
    found = re.fullmatch(r"[a-z]+(\d+)(x2)?", kind)
    assert found is not None, kind
    return int(found[1]) * (2 if found[2] else 1)


def as_int(kind: str, x: int) -> int:
    return signed(x, width_of(kind)) if kind[0] == "s" else x & ((1 << width_of(kind)) - 1)


# --- floats -----------------------------------------------------------------------------------------


def add(a: Value, b: Value, mode: str) -> Value:
    if "nan" in (a, b) or (not finite(a) and not finite(b) and a != b):
        return "nan"
    if not finite(a):
        return a
    if not finite(b):
        return b
    total = real(a) + real(b)
    if total != 0:
        return total
    if negative(a) and negative(b):
        return "-0"
    unlike = negative(a) != negative(b)
    return "-0" if mode == "rm" and unlike else Fraction(0)


def minus(a: Value) -> Value:
    if isinstance(a, str):
        opposite: dict[str, Value] = {"nan": "nan", "inf": "-inf", "-inf": "inf", "-0": Fraction(0)}
        return opposite[a]
    return "-0" if a == 0 else -a


def mul(a: Value, b: Value) -> Value:
    if "nan" in (a, b):
        return "nan"
    sign = negative(a) != negative(b)
    zero = [finite(x) and real(x) == 0 for x in (a, b)]
    if not finite(a) or not finite(b):
        return "nan" if any(zero) else "-inf" if sign else "inf"
    if any(zero):
        return "-0" if sign else Fraction(0)
    return real(a) * real(b)


def div(a: Value, b: Value) -> Value:
    if "nan" in (a, b) or (not finite(a) and not finite(b)):
        return "nan"
    sign = negative(a) != negative(b)
    if not finite(b):
        return "-0" if sign else Fraction(0)
    if finite(a) and real(a) == 0:
        return "nan" if real(b) == 0 else "-0" if sign else Fraction(0)
    if not finite(a) or real(b) == 0:
        return "-inf" if sign else "inf"
    return real(a) / real(b)


def sqrt(a: Value, bits: int = 200) -> Value:
    """Enough bits of the root for any rounding: exact where it is exact, else off by less than 2^-200 of it, inward."""
    if a in ("nan", "inf", "-0"):
        return a
    if negative(a):
        return "nan"
    x = real(a)
    if x == 0:
        return x
    shift = 2 * (bits + 1100)
    whole = (x.numerator << shift) // x.denominator
    root = math.isqrt(whole)
    low = Fraction(root, 1 << (shift // 2))
    return low if low * low == x else low + Fraction(1, 1 << (shift // 2 + 1))


def rounded(kind: str, v: Value, mode: str, parts: set[str]) -> int:
    code = encode(kind, v, mode)
    return finish(kind, code, parts)


def finish(kind: str, code: int, parts: set[str]) -> int:
    """.ftz, .sat and .relu of a result."""
    if "ftz" in parts:
        code = flush(kind, code)
    v = decode(kind, code)
    if "sat" in parts:
        clamped = Fraction(0) if v == "nan" or negative(v) else v
        if clamped == "inf" or (finite(clamped) and real(clamped) > 1):
            clamped = Fraction(1)
        code = encode(kind, clamped)
    if "relu" in parts and v != "nan" and negative(v):
        code = 0
    return code


def float_arithmetic(name: str, kind: str, parts: set[str], sources: tuple[int, ...]) -> int:
    """9.7.3 and 9.7.4."""
    mode = next((m for m in ("rz", "rm", "rp") if m in parts), "rn")
    read = [flush(kind, x) if "ftz" in parts else x for x in sources]
    v = [decode(kind, x) for x in read]
    found: Value
    if name == "add":
        found = add(v[0], v[1], mode)
    elif name == "sub":
        found = add(v[0], minus(v[1]), mode)
    elif name == "mul":
        found = mul(v[0], v[1])
    elif name == "fma":
        found = add(mul(v[0], v[1]), v[2], mode)
    elif name == "div":
        found = div(v[0], v[1])
    elif name == "rcp":
        found = div(Fraction(1), v[0])
    else:
        found = sqrt(v[0])
    return rounded(kind, found, mode, parts)


def order(v: Value) -> tuple[Any, int]:
    if v == "inf":
        return Fraction(2) ** 2000, 0
    if v == "-inf":
        return -(Fraction(2) ** 2000), 0
    return real(v), 0 if v == "-0" else 1


def float_extremum(name: str, kind: str, parts: set[str], sources: tuple[int, ...]) -> int:
    """9.7.3.11 and 9.7.3.12."""
    f = LAYOUTS[kind]
    a, b = (flush(kind, x) if "ftz" in parts else x for x in sources)
    sign = (a ^ b) & f.sign
    if "abs" in parts:
        a, b = a & ~f.sign, b & ~f.sign
    x, y = decode(kind, a), decode(kind, b)
    if ("NaN" in parts and "nan" in (x, y)) or (x == "nan" and y == "nan"):
        return f.nan
    if x == "nan" or y == "nan":
        found = b if x == "nan" else a
    elif name == "max":
        found = a if order(x) > order(y) else b
    else:
        found = a if order(x) < order(y) else b
    return found | sign if "xorsign" in parts else found


def float_sign(name: str, kind: str, parts: set[str], sources: tuple[int, ...]) -> int:
    sign = LAYOUTS[kind].sign
    a = flush(kind, sources[0]) if "ftz" in parts else sources[0]
    return a ^ sign if name == "neg" else a & ~sign


# --- integers ---------------------------------------------------------------------------------------


def clamp(x: int, kind: str) -> int:
    w = width_of(kind)
    low, high = (-(1 << (w - 1)), (1 << (w - 1)) - 1) if kind[0] == "s" else (0, (1 << w) - 1)
    return min(max(x, low), high)


def quotient(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def integer_arithmetic(name: str, kind: str, parts: set[str], sources: tuple[int, ...]) -> Any:
    """9.7.1 and 9.7.2."""
    w = width_of(kind)
    mask = (1 << w) - 1
    operands = [as_int(kind, x) for x in sources]
    if name in ("add", "sub", "addc", "subc"):
        a, b = operands[:2]
        carry = int(sources[2]) if name[-1] == "c" else 0
        if name[:3] == "add":
            exact, out = a + b + carry, (a & mask) + (b & mask) + carry > mask
        else:
            exact, out = a - b - carry, (a & mask) - (b & mask) - carry < 0
        if "sat" in parts:
            exact = clamp(exact, kind)
        return (exact & mask, out) if "cc" in parts else exact & mask
    if name in ("mul", "mad", "madc"):
        product = operands[0] * operands[1]
        if "wide" in parts:
            mask = (1 << 2 * w) - 1
        elif "hi" in parts:
            product >>= w
        if name == "mul":
            return product & mask
        c = int(sources[2])
        carry = int(sources[3]) if name == "madc" else 0
        if "sat" in parts:
            return clamp(product + signed(c, w), kind) & mask
        out = (product & mask) + c + carry > mask
        total = (product + c + carry) & mask
        return (total, out) if "cc" in parts else total
    if name in ("mul24", "mad24"):
        low = [signed(x, 24) if kind == "s32" else x & 0xFFFFFF for x in sources[:2]]
        product = low[0] * low[1] >> (16 if "hi" in parts else 0)
        if "sat" in parts:
            return clamp(signed(product, 32) + signed(sources[2], 32), kind) & mask
        return (product + (sources[2] if name == "mad24" else 0)) & mask
    a, b = (*operands, 0)[:2]
    found = {
        "div": lambda: quotient(a, b),
        "rem": lambda: a if b == 0 else a - quotient(a, b) * b,
        "neg": lambda: -a,
        "abs": lambda: abs(a),
        "min": lambda: min(a, b),
        "max": lambda: max(a, b),
        "sad": lambda: sources[2] + abs(a - b),
    }[name]()
    if "relu" in parts:
        found = max(found, 0)
    return found & mask


def dot(name: str, parts: list[str], sources: tuple[int, ...]) -> int:
    kinds = [p for p in parts if p in ("u32", "s32")]
    size = 8 if name == "dp4a" else 16

    def part(x: int, kind: str, w: int, i: int) -> int:
        x = x >> (w * i) & ((1 << w) - 1)
        return signed(x, w) if kind == "s32" else x

    start = 2 if "hi" in parts else 0
    total = sources[2]
    for i in range(32 // size):
        total += part(sources[0], kinds[0], size, i) * part(sources[1], kinds[1], 8, i + start)
    return total & 0xFFFFFFFF


# --- bits -------------------------------------------------------------------------------------------


def bitwise(name: str, parts: list[str], s: tuple[Any, ...]) -> Any:
    """9.7.1 (bit fields), 9.7.8, 9.7.9."""
    kind = parts[-1] if parts[-1] not in PRMT else "b32"
    if kind == "pred":
        p, q = (*(bool(x) for x in s), False)[:2]
        return {"and": p and q, "or": p or q, "xor": p != q, "not": not p, "mov": p}[name]
    w = width_of(kind)
    mask = (1 << w) - 1
    if name in ("and", "or", "xor"):
        return {"and": s[0] & s[1], "or": s[0] | s[1], "xor": s[0] ^ s[1]}[name]
    if name == "not":
        return ~s[0] & mask
    if name == "cnot":
        return int(s[0] == 0)
    if name == "mov":
        return s[0]
    if name == "shl":
        return (s[0] << min(s[1], 64)) & mask
    if name == "shr":
        return (as_int(kind, s[0]) >> min(s[1], 64)) & mask
    if name == "shf":
        n = s[2] & 31 if "wrap" in parts else min(s[2], 32)
        pair = s[1] << 32 | s[0]
        return (pair << n >> 32) & mask if "l" in parts else (pair >> n) & mask
    if name == "lop3":
        found = 0
        for i in range(32):
            place = (s[0] >> i & 1) << 2 | (s[1] >> i & 1) << 1 | (s[2] >> i & 1)
            found |= (s[3] >> place & 1) << i
        if len(s) == 5:
            p = found != 0
            return found, (p or bool(s[4])) if "or" in parts else (p and bool(s[4]))
        return found
    if name == "bfe":
        pos, n = s[1] & 0xFF, s[2] & 0xFF
        sbit = 0 if kind[0] == "u" or n == 0 else s[0] >> min(pos + n - 1, w - 1) & 1
        found = 0
        for i in range(w):
            inside = i < n and pos + i < w
            found |= (s[0] >> (pos + i) & 1 if inside else sbit) << i
        return found
    if name == "bfi":
        pos, n, found = s[2] & 0xFF, s[3] & 0xFF, s[1]
        for i in range(n):
            if pos + i < w:
                found = found & ~(1 << (pos + i)) | (s[0] >> i & 1) << (pos + i)
        return found
    if name in ("bfind", "clz"):
        x = ~s[0] & mask if kind[0] == "s" and s[0] >> (w - 1) else s[0]
        top = x.bit_length() - 1
        if name == "clz":
            return w - 1 - top
        return 0xFFFFFFFF if top < 0 else w - 1 - top if "shiftamt" in parts else top
    if name == "popc":
        return s[0].bit_count()
    if name == "brev":
        return int(f"{s[0]:0{w}b}"[::-1], 2)
    if name == "fns":
        return nth_set(s[0], s[1], signed(s[2], 32))
    if name == "prmt":
        return permute(parts, s)
    if name == "bmsk":
        a, b = (s[0] & 31, s[1] & 31) if "wrap" in parts else s
        return 0 if a > 31 else (((1 << min(b, 32)) - 1) << a) & mask
    assert name == "szext"
    n = s[1] & 31 if "wrap" in parts else min(s[1], 32)
    if n == 0:
        return 0
    return (signed(s[0], n) if kind == "s32" else s[0] & ((1 << n) - 1)) & mask


def nth_set(mask: int, base: int, offset: int) -> int:
    """9.7.1, fns: as the ISA's own loop."""
    if offset == 0:
        return base if base < 32 and mask >> base & 1 else 0xFFFFFFFF
    pos, count, inc = base, abs(offset) - 1, 1 if offset > 0 else -1
    while 0 <= pos < 32:
        if mask >> pos & 1:
            if count == 0:
                return pos
            count -= 1
        pos += inc
    return 0xFFFFFFFF


PRMT = {
    "f4e": ["0123", "1234", "2345", "3456"],
    "b4e": ["0765", "1076", "2107", "3210"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["0123", "1123", "2223", "3333"],
    "ecr": ["0000", "0111", "0122", "0123"],
    "rc16": ["0101", "2323", "0101", "2323"],
}


def permute(parts: list[str], s: tuple[int, ...]) -> int:
    data = [(s[1] << 32 | s[0]) >> (8 * i) & 0xFF for i in range(8)]
    if parts[-1] in PRMT:
        chosen = [data[int(c)] for c in PRMT[parts[-1]][s[2] & 3]]
    else:
        chosen = []
        for i in range(4):
            nibble = s[2] >> (4 * i) & 15
            byte = data[nibble & 7]
            chosen.append((0xFF if byte & 0x80 else 0) if nibble & 8 else byte)
    return sum(byte << (8 * i) for i, byte in enumerate(chosen))


# --- comparisons ------------------------------------------------------------------------------------


def holds(comparison: str, kind: str, ftz: bool, a: int, b: int) -> bool:
    """9.7.6: one comparison."""
    x: Any
    y: Any
    if kind in LAYOUTS:
        u, v = (decode(kind, flush(kind, c) if ftz else c) for c in (a, b))
        unordered = "nan" in (u, v)
        if comparison in ("num", "nan"):
            return unordered == (comparison == "nan")
        if unordered:
            return len(comparison) == 3
        x, y = order(u)[0], order(v)[0]
        comparison = comparison[:2]
    else:
        x, y = as_int(kind, a), as_int(kind, b)
    comparison = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}.get(comparison, comparison)
    return bool(
        {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[
            comparison
        ]
    )


def combined(parts: list[str], p: bool, c: tuple[Any, ...]) -> bool:
    for name in ("and", "or", "xor"):
        if name in parts:
            q = bool(c[0])
            return {"and": p and q, "or": p or q, "xor": p != q}[name]
    return p


def halves(x: int) -> tuple[int, int]:
    return x & 0xFFFF, x >> 16


def compare(name: str, parts: list[str], s: tuple[Any, ...]) -> Any:
    kind, ftz = parts[-1], "ftz" in parts
    if name == "selp":
        return s[0] if s[2] else s[1]
    if name == "slct":
        if kind == "s32":
            return s[0] if signed(s[2], 32) >= 0 else s[1]
        c = decode("f32", flush("f32", s[2]) if ftz else s[2])
        return s[0] if c != "nan" and order(c)[0] >= 0 else s[1]
    if name == "testp":
        return test_property(parts[0], kind, s[0])
    one = kind.removesuffix("x2")
    pairs = list(zip(halves(s[0]), halves(s[1]), strict=True)) if kind.endswith("x2") else [s[:2]]
    tests = [holds(parts[0], one, ftz, *pair) for pair in pairs]
    if name == "setp":
        second = tests[1] if len(tests) == 2 else not tests[0]
        return combined(parts, tests[0], s[2:]), combined(parts, second, s[2:])
    into = parts[-2]
    if len(tests) == 2:
        into = "u16" if into in ("u32", "s32") else into.removesuffix("x2")
    full = encode(into, Fraction(1)) if into in LAYOUTS else (1 << width_of(into)) - 1
    found = [full if combined(parts, p, s[2:]) else 0 for p in tests]
    return found[0] if len(found) == 1 else found[0] | found[1] << 16


def test_property(name: str, kind: str, code: int) -> bool:
    v = decode(kind, code)
    subnormal = finite(v) and real(v) != 0 and flush(kind, code) != code
    return {
        "finite": finite(v),
        "infinite": v in ("inf", "-inf"),
        "number": v != "nan",
        "notanumber": v == "nan",
        "normal": finite(v) and real(v) != 0 and not subnormal,
        "subnormal": subnormal,
    }[name]


# --- conversions ------------------------------------------------------------------------------------


def convert(parts: list[str], s: tuple[int, ...]) -> int:
    """9.7.9, cvt."""
    to, of = parts[-2:]
    mode = next((p for p in parts if p in ("rn", "rz", "rm", "rp", "rna")), "rn")
    sat = "satfinite" in parts
    if to in ("f16x2", "bf16x2") and of == "f32":
        high, low = (narrowed(to.removesuffix("x2"), decode("f32", x), mode, parts) for x in s)
        return high << 16 | low
    if of in ("e4m3x2", "e5m2x2"):
        one = of.removesuffix("x2")
        low, high = (narrowed("f16", decode(one, x), "rn", parts) for x in (s[0] & 255, s[0] >> 8))
        return high << 16 | low
    if to in ("e4m3x2", "e5m2x2"):
        one = to.removesuffix("x2")
        high_low = [decode("f32", x) for x in s]
        if of == "f16x2":
            high_low = [decode("f16", x) for x in reversed(halves(s[0]))]
        high, low = (narrowed(one, x, "rn", parts) for x in high_low)
        return high << 8 | low
    if to == "tf32":
        found = encode("tf32", decode("f32", s[0]), mode, sat)
        if found == LAYOUTS["tf32"].nan:
            return 0x7FFFFFFF
        return finish("tf32", found, set(parts) - {"ftz"}) << 13
    if of in LAYOUTS:
        code = flush(of, s[0]) if "ftz" in parts and of == "f32" else s[0]
        return from_float(to, of, decode(of, code), mode, parts)
    exact = as_int(of, s[0])
    if to in LAYOUTS:
        return finish(to, encode(to, Fraction(exact), mode), set(parts))
    return (clamp(exact, to) if "sat" in parts else exact) & ((1 << width_of(to)) - 1)


def narrowed(kind: str, v: Value, mode: str, parts: list[str]) -> int:
    return finish(kind, encode(kind, v, mode, "satfinite" in parts), set(parts) - {"ftz", "sat"})


def whole(v: Fraction, mode: str) -> int:
    down = v.numerator // v.denominator
    if mode == "rni":
        return round(v)
    if mode == "rzi":
        return down if v >= 0 or v == down else down + 1
    return down if mode == "rmi" or v == down else down + 1


def from_float(to: str, of: str, v: Value, mode: str, parts: list[str]) -> int:
    toward = next((p for p in parts if p in ("rni", "rzi", "rmi", "rpi")), "")
    if to not in LAYOUTS:
        w = width_of(to)
        if v == "nan":
            return 1 << (w - 1) if of == "f64" or w == 64 else 0
        huge = 1 << 2000
        n = {"inf": huge, "-inf": -huge}[str(v)] if not finite(v) else whole(real(v), toward)
        return clamp(n, to) & ((1 << w) - 1)
    if toward and finite(v):
        n = whole(real(v), toward)
        v = Fraction(n) if n else "-0" if negative(v) else Fraction(0)
    code = encode(to, v, mode, "satfinite" in parts)
    kept = set(parts) if to == "f32" else set(parts) - {"ftz"}
    return finish(to, code, kept)


# --- approximate ------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "lg2": lambda x: mpmath.log(x, 2),
    "ex2": lambda x: mpmath.power(2, x),
    "tanh": mpmath.tanh,
}


def fraction(x: Any) -> Fraction:
    sign, man, exponent, _ = x._mpf_
    size = Fraction(int(man)) * Fraction(2) ** int(exponent)
    return -size if sign else size


def true_value(name: str, parts: list[str], v: tuple[Value, ...]) -> Value:
    """The exact result, within 2^-200 of itself."""
    if name == "div":
        b = v[1]
        if "approx" in parts and finite(b) and abs(real(b)) > Fraction(2) ** 126:
            sign = negative(v[0]) != negative(b)
            return "nan" if v[0] in ("nan", "inf", "-inf") else "-0" if sign else Fraction(0)
        return div(*v)
    if name == "rcp":
        return div(Fraction(1), v[0])
    if name == "sqrt":
        return sqrt(v[0])
    x = v[0]
    if x == "nan":
        return "nan"
    if isinstance(x, str) or x == 0:
        return SPECIAL[name][str(x)]
    if name in ("rsqrt", "lg2") and x < 0:
        return "nan"
    if name == "ex2" and abs(x) > 2000:
        return "inf" if x > 0 else Fraction(1, 1 << 3000)
    with mpmath.workprec(300):
        argument = mpmath.mpf(x.numerator) / x.denominator
        if name == "tanh" and abs(x) > 100:
            return Fraction(1 if x > 0 else -1) * (1 - Fraction(1, 1 << 200))
        result = FUNCTIONS[name](argument)
        return fraction(result)


# The ISA's tables of special inputs.
SPECIAL: dict[str, dict[str, Value]] = {
    "rsqrt": {"-inf": "nan", "-0": "-inf", "0": "inf", "inf": Fraction(0)},
    "sin": {"-inf": "nan", "-0": "-0", "0": Fraction(0), "inf": "nan"},
    "cos": {"-inf": "nan", "-0": Fraction(1), "0": Fraction(1), "inf": "nan"},
    "lg2": {"-inf": "nan", "-0": "-inf", "0": "-inf", "inf": "inf"},
    "ex2": {"-inf": Fraction(0), "-0": Fraction(1), "0": Fraction(1), "inf": "inf"},
    "tanh": {"-inf": Fraction(-1), "-0": "-0", "0": Fraction(0), "inf": Fraction(1)},
}


def approximate(name: str, parts: list[str], s: tuple[int, ...]) -> int:
    kind = parts[-1]
    read = tuple(decode(kind, flush(kind, x) if "ftz" in parts else x) for x in s)
    return finish(kind, encode(kind, true_value(name, parts, read)), set(parts) & {"ftz"})


# --- one entry for each mnemonic ---------------------------------------------------------------------

FLOAT_NAMES = ("f16", "bf16", "f32", "f64")


def arithmetic(name: str, parts: list[str], s: tuple[Any, ...]) -> Any:
    """An instruction of integers or floats, of one value or of two halves."""
    if "approx" in parts or "full" in parts:
        one = parts[-1].removesuffix("x2")
        if one != parts[-1]:
            low, high = (approximate(name, [*parts[:-1], one], (x,)) for x in halves(s[0]))
            return low | high << 16
        return approximate(name, parts, s)
    kind = parts[-1]
    if kind.endswith("x2"):
        single = [*parts[:-1], kind.removesuffix("x2")]
        low, high = (arithmetic(name, single, tuple(y)) for y in zip(*map(halves, s), strict=True))
        return low | high << 16
    if kind in FLOAT_NAMES:
        if name in ("min", "max"):
            return float_extremum(name, kind, set(parts), s)
        if name in ("neg", "abs"):
            return float_sign(name, kind, set(parts), s)
        return float_arithmetic("fma" if name == "mad" else name, kind, set(parts), s)
    return integer_arithmetic(name, kind, set(parts), s)


def copysign(name: str, parts: list[str], s: tuple[int, ...]) -> int:
    sign = LAYOUTS[parts[-1]].sign
    return s[0] & sign | s[1] & ~sign


Model = Callable[[str, list[str], tuple[Any, ...]], Any]
MODELS: dict[str, Model] = {
    **dict.fromkeys(
        [
            "add",
            "addc",
            "sub",
            "subc",
            "mul",
            "mad",
            "madc",
            "mul24",
            "mad24",
            "div",
            "rem",
            "neg",
            "abs",
            "min",
            "max",
            "sad",
            "fma",
            "rcp",
            "sqrt",
        ],
        arithmetic,
    ),
    **dict.fromkeys(["rsqrt", "sin", "cos", "lg2", "ex2", "tanh"], arithmetic),
    **dict.fromkeys(
        [
            "and",
            "or",
            "xor",
            "not",
            "cnot",
            "shl",
            "shr",
            "shf",
            "lop3",
            "bfe",
            "bfi",
            "bfind",
            "brev",
            "popc",
            "clz",
            "fns",
            "prmt",
            "bmsk",
            "szext",
            "mov",
        ],
        bitwise,
    ),
    **dict.fromkeys(["setp", "set", "selp", "slct", "testp"], compare),
    **dict.fromkeys(["dp4a", "dp2a"], dot),
    "cvt": lambda name, parts, s: convert(parts, s),
    "copysign": copysign,
}


def expected(opcode: str, sources: tuple[Any, ...]) -> tuple[Any, ...]:
    """The results of one lane."""
    name, *parts = opcode.split(".")
    found = MODELS[name](name, parts, sources)
    return found if isinstance(found, tuple) else (found,)


# --- operands ---------------------------------------------------------------------------------------

SMALL = [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256]


def edges(width: int, kind: str) -> list[int]:
    """Bit patterns around zeros, powers of two, ties, subnormals, the largest value, infinity and NaN."""
    top = 1 << width
    found = [x for x in SMALL if x < top]
    found += [top - 1, top - 2, top // 2, top // 2 - 1, top // 2 + 1, top // 3]
    layouts = [LAYOUTS[kind]] if kind in LAYOUTS else []
    for f in layouts:
        one = encode(kind, Fraction(1))
        codes = [1, (1 << (f.p - 1)) - 1, 1 << (f.p - 1), (1 << (f.p - 1)) + 1, f.inf - 1, f.inf]
        codes += [f.inf + 1, f.nan & (f.sign - 1), one - 1, one, one + 1, one + (1 << (f.p - 2))]
        for value in (2, 0.5, 3, 1.5, 2.5, 100, 2**24, 2**31, 2**32, 2**63, 2**64, 57344, 65504):
            code = encode(kind, Fraction(value), "rz")
            codes += [code, code - 1]
        found += [c | s for c in codes for s in (0, f.sign)]
    return [x % top for x in found]


def few_bits(rng: np.random.Generator, kind: str, count: int) -> list[int]:
    """Floats near 1 with few significant bits, which meet ties, cancellation and exact results."""
    f = LAYOUTS[kind]
    one = encode(kind, Fraction(1)) >> (f.p - 1)
    exponents = one + rng.integers(-min(13, one - 1), 13, count)
    kept = rng.integers(0, f.p, count)
    mantissas = [int(rng.integers(0, 1 << (f.p - 1))) >> int(k) << int(k) for k in kept]
    near = rng.integers(-1, 2, count)
    signs = rng.integers(0, 2, count)
    return [
        (int(s) * f.sign | ((int(e) << (f.p - 1)) + m)) + (int(n) if m else 0)
        for s, e, m, n in zip(signs, exponents, mantissas, near, strict=True)
    ]


def operands(opcode: str, sources: tuple[str, ...], count: int) -> list[list[Any]]:
    """For each source, `count` values: edges in random pairing, random bits, and floats that interact."""
    rng = np.random.default_rng(zlib.crc32(opcode.encode()))
    kind = opcode.rsplit(".", 1)[-1].removesuffix("x2")
    columns: list[list[Any]] = []
    for source in sources:
        if source == "pred":
            columns.append([bool(x) for x in rng.integers(0, 2, count)])
            continue
        width = int(source[1:])
        one = kind if kind in LAYOUTS else ""
        part = LAYOUTS[one].width if one and LAYOUTS[one].width <= width else width
        narrow = one if one and part == LAYOUTS[one].width else ""
        pool = edges(part, narrow)
        values = [0] * count
        for place in range(width // part):
            column = [pool[i] for i in rng.integers(0, len(pool), count // 2)]
            column += few_bits(rng, narrow, count // 4) if narrow else []
            column += random_bits(rng, part, count - len(column))
            values = [x | y << place * part for x, y in zip(values, column, strict=True)]
        columns.append(values)
    return columns


def random_bits(rng: np.random.Generator, width: int, count: int) -> list[int]:
    raw = rng.bytes(8 * count)
    return [int.from_bytes(raw[8 * i : 8 * i + 8], "little") % (1 << width) for i in range(count)]
