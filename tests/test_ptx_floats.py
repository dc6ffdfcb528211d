"""fp32 and fp64 of PTX, lane by lane against fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import ptx_model
import pytest
from ptx_check import check, run, samples
from ptx_model import encode

from contract.engines.ptx import floats

P = Fraction(2)


@pytest.mark.parametrize("opcode", samples(floats.ROWS))
def test_against_fractions(opcode: str) -> None:
    check(opcode)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("modifiers", ["", ".ftz", ".sat"])
def test_fma_in_every_mode(mode: str, modifiers: str) -> None:
    check(f"fma.{mode}{modifiers}.f32", 1000)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_fma_where_the_product_nearly_cancels(kind: str) -> None:
    """c is the rounded product, or one unit beside it: what is left is the product's own error."""
    unsigned, float_type = {"f32": (np.uint32, np.float32), "f64": (np.uint64, np.float64)}[kind]
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(500).astype(float_type) for _ in range(2))
    c = (-(a * b)).view(unsigned) + rng.integers(0, 2, 500).astype(unsigned)
    sources = (a.view(unsigned), b.view(unsigned), c)
    _agrees(f"fma.rn.{kind}", sources)


def test_fma_on_ties_of_fp32_decided_by_the_last_bit_of_the_product() -> None:
    """1 + 2^-24 is a tie; a term of 2^-100, of either sign, decides it, and float64 cannot hold it."""
    one, half_ulp, tiny = 0x3F800000, 0x33800000, 0x0D800000
    rows = [(half_ulp, one, one), (half_ulp | 1, one, one), (one | 1, half_ulp, one)]
    rows += [(0x33800000 | sign << 31, one, one | odd) for sign in (0, 1) for odd in (0, 1)]
    # (1 + 2^-12)^2 - ... : products of 48 bits whose sum with c is a tie of fp32 only after float64 rounded it
    rows += [
        (0x3F800800, 0x3F800800, c | s << 31)
        for c in (tiny, 0x0B000000, 0x4B800000)
        for s in (0, 1)
    ]
    rows += [(0x4B800001, 0x3F000000, tiny | s << 31) for s in (0, 1)]
    rows += [(0x3F800001, 0x3F000001, tiny | s << 31) for s in (0, 1)]
    # 24-bit odd times one half: exactly a tie when added to 2^24
    rows += [(0x3F800001, 0x4B800000, c | s << 31) for c in (0x3F000000, tiny) for s in (0, 1)]
    columns = tuple(np.array(x, np.uint32) for x in zip(*rows, strict=True))
    _agrees("fma.rn.f32", columns)


def test_fma_of_subnormal_results() -> None:
    rng = np.random.default_rng(3)
    a = (rng.integers(1, 60, 600) << 23 | rng.integers(0, 1 << 23, 600)).astype(np.uint32)
    b = (rng.integers(40, 80, 600) << 23 | rng.integers(0, 1 << 23, 600)).astype(np.uint32)
    c = rng.integers(0, 1 << 25, 600).astype(np.uint32) | (rng.integers(0, 2, 600) << 31).astype(
        np.uint32
    )
    _agrees("fma.rn.f32", (a, b, c))
    _agrees("fma.rn.ftz.f32", (a, b, c))


def test_fma_on_a_tie_of_subnormals_decided_by_what_float64_drops() -> None:
    """c is an odd multiple of 2^-149 near 2^-130, the product 2^-150 (1 - 2^-46): below the tie, by what a float64 sum loses."""
    a = encode("f32", (1 + P**-23) * P**-75)
    b = encode("f32", (1 - P**-23) * P**-75)
    c = (1 << 19) + 1
    columns = tuple(
        np.array(x, np.uint32) for x in zip((a, b, c), (a | 1 << 31, b, c), strict=True)
    )
    (found,) = run("fma.rn.f32", *columns)
    assert found[0] == c
    _agrees("fma.rn.f32", columns)


def test_fma_of_fp64_beyond_what_a_sum_of_parts_can_do() -> None:
    rng = np.random.default_rng(4)
    exponents = [rng.integers(0, 2047, 300, np.uint64) for _ in range(2)]
    a, b = (e << np.uint64(52) | rng.integers(0, 1 << 52, 300, np.uint64) for e in exponents)
    total = exponents[0].astype(np.int64) + exponents[1].astype(np.int64) - 1023
    near = np.clip(total + rng.integers(-60, 60, 300), 0, 2046).astype(np.uint64)
    c = near << np.uint64(52) | rng.integers(0, 1 << 52, 300, np.uint64)
    _agrees("fma.rn.f64", (a, b, c))


def test_many_lanes_are_computed_as_few() -> None:
    """Lanes are worked through in chunks; none is lost at their ends."""
    rng = np.random.default_rng(5)
    a, b, c = (rng.integers(0, 1 << 32, 20000, np.uint32) for _ in range(3))
    (together,) = run("fma.rn.f32", a, b, c)
    (apart,) = run("fma.rn.f32", *(x[8190:8200] for x in (a, b, c)))
    assert np.array_equal(together[8190:8200], apart)
    assert np.array_equal(run("fma.rn.f32", a[-7:], b[-7:], c[-7:])[0], together[-7:])


def _agrees(opcode: str, sources: tuple[np.ndarray, ...]) -> None:
    (found,) = run(opcode, *sources)
    for lane, got in enumerate(found.tolist()):
        operands = tuple(int(x[lane]) for x in sources)
        (want,) = ptx_model.expected(opcode, operands)
        assert got == want, (opcode, [hex(x) for x in operands], hex(got), hex(want))
