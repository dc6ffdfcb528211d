"""mma.sync of PTX against a plain matrix product and the layouts of the ISA's figures, written out."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from ptx_check import run, samples
from ptx_model import decode, encode, real

from contract.engines.ptx import matrix, table
from contract.engines.ptx.faults import PtxFault

OPCODES = samples(matrix.ROWS)
WARPS = 3
Place = Callable[[int, int, int], tuple[int, int]]

# (group, thread in group, element) to (row, column), PTX ISA 9.7.14.5, one figure each.
A: dict[tuple[str, str], Place] = {
    ("m16n8k8", "half"): lambda g, t, i: (g + (8 if i >= 2 else 0), t * 2 + (i & 1)),
    ("m16n8k16", "half"): lambda g, t, i: (
        g if i < 2 or 4 <= i < 6 else g + 8,
        t * 2 + (i & 1) + (8 if i >= 4 else 0),
    ),
    ("m16n8k4", "tf32"): lambda g, t, i: (g + (8 if i == 1 else 0), t),
    ("m16n8k8", "tf32"): lambda g, t, i: (g + (8 if i in (1, 3) else 0), t + (4 if i >= 2 else 0)),
    ("m8n8k16", "byte"): lambda g, t, i: (g, t * 4 + i),
    ("m16n8k16", "byte"): lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
    ("m16n8k32", "byte"): lambda g, t, i: (
        g if i < 4 or 8 <= i < 12 else g + 8,
        t * 4 + (i & 3) + (16 if i >= 8 else 0),
    ),
    ("m8n8k4", "f64"): lambda g, t, i: (g, t),
}
B: dict[tuple[str, str], Place] = {
    ("m16n8k8", "half"): lambda g, t, i: (t * 2 + i, g),
    ("m16n8k16", "half"): lambda g, t, i: (t * 2 + (i & 1) + (8 if i >= 2 else 0), g),
    ("m16n8k4", "tf32"): lambda g, t, i: (t, g),
    ("m16n8k8", "tf32"): lambda g, t, i: (t if i == 0 else t + 4, g),
    ("m8n8k16", "byte"): lambda g, t, i: (t * 4 + i, g),
    ("m16n8k16", "byte"): lambda g, t, i: (t * 4 + i, g),
    ("m16n8k32", "byte"): lambda g, t, i: (t * 4 + (i & 3) + (16 if i >= 4 else 0), g),
    ("m8n8k4", "f64"): lambda g, t, i: (t, g),
}
FAMILY = {"f16": "half", "bf16": "half", "tf32": "tf32", "s8": "byte", "u8": "byte", "f64": "f64"}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "f64": 64, "f32": 32, "s32": 32}


def place_c(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8, t * 2 + (i & 1))


def parse(opcode: str) -> tuple[str, str, str, str]:
    """Shape and the types of A, B and C."""
    parts = opcode.split(".")
    return parts[3], parts[-3], parts[-2], parts[-1]


def value(kind: str, code: int) -> Fraction:
    if kind in ("s8", "s32"):
        width = BITS[kind]
        return Fraction(code - (1 << width) if code >> (width - 1) else code)
    if kind == "u8":
        return Fraction(code)
    return real(decode("f32", code & 0xFFFFE000) if kind == "tf32" else decode(kind, code))


def spread(codes: np.ndarray, place: Place, kind: str) -> list[np.ndarray]:
    """A matrix (warps, rows, columns) of codes as the registers of 32 lanes."""
    per_lane = codes.shape[1] * codes.shape[2] // 32
    bits = max(32, BITS[kind])
    per = bits // BITS[kind]
    registers = [np.zeros((codes.shape[0], 32), f"u{bits // 8}") for _ in range(per_lane // per)]
    for lane in range(32):
        for i in range(per_lane):
            row, column = place(lane // 4, lane % 4, i)
            part = codes[:, row, column].astype(registers[0].dtype)
            registers[i // per][:, lane] |= part << registers[0].dtype.type(BITS[kind] * (i % per))
    return registers


def gather(registers: tuple[np.ndarray, ...], rows: int, kind: str) -> np.ndarray:
    """The reverse, for D."""
    per = max(1, 32 // BITS[kind])
    codes = np.zeros((registers[0].shape[0], rows, 8), np.uint64)
    for lane in range(32):
        for i in range(len(registers) * per):
            row, column = place_c(lane // 4, lane % 4, i)
            shifted = registers[i // per][:, lane].astype(np.uint64) >> np.uint64(
                BITS[kind] * (i % per)
            )
            codes[:, row, column] = shifted & np.uint64(2 ** BITS[kind] - 1)
    return codes


def small(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Codes of small whole numbers, whose sums are exact; of the byte types, any."""
    if kind in ("s8", "u8"):
        return rng.integers(0, 256, shape).astype(np.uint64)
    if kind == "s32":
        return rng.integers(0, 1 << 32, shape, np.uint64)
    source = "f32" if kind == "tf32" else kind
    numbers = rng.integers(-9, 10, shape)
    codes = [encode(source, Fraction(x)) for x in numbers.reshape(-1).tolist()]
    return np.array(codes, np.uint64).reshape(shape)


def dims(shape: str) -> tuple[int, int, int]:
    m, rest = shape[1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def example(opcode: str, seed: int = 0) -> tuple[Any, ...]:
    """Registers of A, B and C and the matrices of values behind them."""
    shape, a_kind, b_kind, c_kind = parse(opcode)
    m, n, k = dims(shape)
    rng = np.random.default_rng(seed)
    codes = (
        small(rng, a_kind, (WARPS, m, k)),
        small(rng, b_kind, (WARPS, k, n)),
        small(rng, c_kind, (WARPS, m, n)),
    )
    places = (A[shape, FAMILY[a_kind]], B[shape, FAMILY[b_kind]], place_c)
    kinds = (a_kind, b_kind, c_kind)
    registers = [
        r for c, p, kind in zip(codes, places, kinds, strict=True) for r in spread(c, p, kind)
    ]
    return registers, codes, kinds, m


@pytest.mark.parametrize("opcode", OPCODES)
def test_whole_numbers_are_multiplied_exactly(opcode: str) -> None:
    registers, codes, kinds, m = example(opcode)
    found = gather(run(opcode, *registers, active=np.ones((WARPS, 32), bool)), m, kinds[2])
    values = [
        np.vectorize(lambda c, kind=kind: value(kind, int(c)), otypes=[object])(x)
        for x, kind in zip(codes, kinds, strict=True)
    ]
    total = np.matmul(values[0], values[1]) + values[2]
    for got, want in zip(found.reshape(-1), total.reshape(-1), strict=True):
        if kinds[2] == "s32":
            n = int(want)
            n = min(max(n, -(2**31)), 2**31 - 1) if "satfinite" in opcode else n
            assert int(got) == n & 0xFFFFFFFF
        else:
            assert decode(kinds[2], int(got)) in (want, "-0")
            assert real(decode(kinds[2], int(got))) == want


@pytest.mark.parametrize("opcode", [op for op in OPCODES if table.find(op).approximate])
@pytest.mark.parametrize("skew", [-1, 1])
def test_exact_sums_are_the_same_at_every_skew(opcode: str, skew: int) -> None:
    registers, *_ = example(opcode)
    active = np.ones((WARPS, 32), bool)
    nominal = run(opcode, *registers, active=active)
    skewed = run(opcode, *registers, active=active, skew=skew)
    assert all(np.array_equal(x, y) for x, y in zip(nominal, skewed, strict=True))


def bf16_example(a: list[float], b: list[float], c: float, skew: int) -> float:
    """Row 0, column 0 of one m16n8k16 whose other entries are zero."""
    opcode = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    codes = [np.zeros(s, np.uint64) for s in ((1, 16, 16), (1, 16, 8), (1, 16, 8))]
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        codes[0][0, 0, k] = encode("bf16", Fraction(x))
        codes[1][0, k, 0] = encode("bf16", Fraction(y))
    codes[2][0, 0, 0] = encode("f32", Fraction(c))
    places = (A["m16n8k16", "half"], B["m16n8k16", "half"], place_c)
    kinds = ("bf16", "bf16", "f32")
    registers = [
        r for x, p, kind in zip(codes, places, kinds, strict=True) for r in spread(x, p, kind)
    ]
    found = run(opcode, *registers, active=np.ones((1, 32), bool), skew=skew)
    return float(decode("f32", int(gather(found, 16, "f32")[0, 0, 0])))


def test_a_skewed_sum_drops_what_lies_below_the_largest_term() -> None:
    """2^24 and fifteen terms of 1.5: exactly 16777238.5; the terms' halves are below the last bit, 2, of a sum of 2^24."""
    a, b = [1.5] * 15, [1.0] * 15
    assert bf16_example(a, b, 2.0**24, 0) == 16777238.0
    # every 1.5 is truncated to a multiple of 2: nothing of it is left
    assert bf16_example(a, b, 2.0**24, -1) == 2.0**24
    # eight, then seven terms: each step loses the same
    assert bf16_example(a, b, 2.0**24, 1) == 2.0**24
    # a large product in the second half alone: the first half was summed before it came
    late = [1.5] * 8 + [2.0**24] + [0.0] * 6
    assert bf16_example(late, b, 0.0, -1) == 2.0**24
    assert bf16_example(late, b, 0.0, 1) == 2.0**24 + 12


def test_a_skewed_sum_is_truncated_toward_zero() -> None:
    assert bf16_example([1.0, 1.0], [2.0**23, 0.5], 2.0**23, -1) == 2.0**24
    assert bf16_example([-1.0, -1.0], [2.0**23, 1.0], -(2.0**23), -1) == -(2.0**24)
    assert bf16_example([1.0, 1.0], [2.0**24, 3.0], 0.0, 0) == 2.0**24 + 4
    assert bf16_example([1.0, 1.0], [2.0**24, 3.0], 0.0, -1) == 2.0**24 + 2


@pytest.mark.parametrize("skew", [-1, 0, 1])
def test_a_sum_beyond_the_accumulators_range_is_an_infinity(skew: int) -> None:
    large = 2.0**127
    assert bf16_example([large, large], [1.0, 1.0], 0.0, skew) == float("inf")
    assert bf16_example([large, -large], [-2.0, 0.5], 0.0, skew) == -float("inf")
    # what comes back into range before it is rounded to the accumulator's format was never beyond it
    assert bf16_example([large, large], [2.0, -1.0], 0.0, skew) == large
    # below 2^128, and more than the largest number: truncated, not rounded up
    held = float(np.finfo(np.float32).max)
    most = bf16_example([1.0], [2.0**103], held, skew)
    assert most == (held if skew else float("inf"))


def test_tf32_ignores_the_low_13_bits_of_its_operands() -> None:
    opcode = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
    registers, *_ = example(opcode)
    dirty = [r | np.uint32(0x1FFF) if i < 6 else r for i, r in enumerate(registers)]
    active = np.ones((WARPS, 32), bool)
    clean, found = run(opcode, *registers, active=active), run(opcode, *dirty, active=active)
    assert all(np.array_equal(x, y) for x, y in zip(clean, found, strict=True))


def test_infinities_and_nan_come_through() -> None:
    inf = float("inf")
    opcode = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
    codes = np.zeros((WARPS, 32), np.uint32)
    registers = [codes.copy() for _ in range(10)]
    registers[0][:] = np.float32(inf).view(np.uint32)
    registers[4][:] = np.float32(1).view(np.uint32)
    for skew in (-1, 0, 1):
        found = run(opcode, *registers, active=np.ones((WARPS, 32), bool), skew=skew)
        assert (found[0] == 0x7F800000).all()
        assert (found[2] == 0).all()


def test_a_warp_with_some_lanes_inactive_is_a_fault_and_an_idle_warp_is_not() -> None:
    opcode = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
    registers, *_ = example(opcode)
    active = np.ones((WARPS, 32), bool)
    active[1] = False
    run(opcode, *registers, active=active)
    active[0, 5] = False
    with pytest.raises(PtxFault, match="mma"):
        run(opcode, *registers, active=active)
