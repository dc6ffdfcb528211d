"""Integers, bits and comparisons of PTX, lane by lane against tests/ptx_model.py, and the table's own rules."""

from __future__ import annotations

import numpy as np
import ptx_model
import pytest
from ptx_check import check, run, samples

from contract.engines.ptx import bitwise, compare, integers, matrix, table
from contract.engines.ptx.faults import Unsupported


@pytest.mark.parametrize("opcode", samples(integers.ROWS))
def test_integer_arithmetic(opcode: str) -> None:
    check(opcode)


@pytest.mark.parametrize("opcode", samples(bitwise.ROWS))
def test_bits(opcode: str) -> None:
    check(opcode)


@pytest.mark.parametrize("opcode", samples(compare.ROWS))
def test_comparisons(opcode: str) -> None:
    check(opcode)


@pytest.mark.parametrize("opcode", ["addc.cc.u32", "subc.cc.u32", "addc.cc.u64", "subc.cc.s64"])
def test_a_carry_that_the_carry_alone_makes(opcode: str) -> None:
    width = 8 * np.dtype(f"u{4 if '32' in opcode else 8}").itemsize
    ends = [0, 1, 2 ** (width - 1), 2**width - 2, 2**width - 1]
    rows = [(a, b, carry) for a in ends for b in ends for carry in (False, True)]
    a, b, carry = zip(*rows, strict=True)
    unsigned = f"u{width // 8}"
    total, out = run(opcode, np.array(a, unsigned), np.array(b, unsigned), np.array(carry))
    want = [ptx_model.expected(opcode, row) for row in rows]
    assert list(zip(total.tolist(), out.tolist(), strict=True)) == want


def test_every_row_has_a_model() -> None:
    elsewhere = {"mma"}  # tests/test_ptx_matrix.py states its own
    named = {row.mnemonic for row in table.ROWS} - elsewhere
    assert named == set(ptx_model.MODELS)
    assert {row.mnemonic for row in matrix.ROWS} == elsewhere


def test_a_spelling_belongs_to_one_row_and_each_can_be_built() -> None:
    seen: dict[str, str] = {}
    for row in table.ROWS:
        for opcode, _ in row.spellings():
            assert opcode not in seen, (opcode, row.pattern, seen[opcode])
            seen[opcode] = row.pattern
            assert table.find(opcode).results
    assert set(table.opcodes()) <= set(seen)


@pytest.mark.parametrize(
    "opcode",
    ["add", "add.f128", "add.sat.u32", "fma.f32", "add.rn.f32.oob", "frobnicate.b32", "cvt.s32.f32",
     "mul.s32", "fma.rn.oob.f16", "ex2.f32", ""],
)  # fmt: skip
def test_an_unknown_spelling_is_unsupported_by_name(opcode: str) -> None:
    with pytest.raises(Unsupported, match=f"^{opcode}:"):
        table.find(opcode)


def test_find_gives_the_same_semantics_again() -> None:
    assert table.find("add.s32") is table.find("add.s32")


def test_a_uniform_table_of_lop3_is_as_one_in_every_lane() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(0, 1 << 32, 64, np.uint32) for _ in range(3))
    for lut in (0x00, 0x96, 0xE8, 0x3C, 0xFF):
        (once,) = run("lop3.b32", a, b, c, np.full(1, lut, np.uint32))
        want = [
            ptx_model.expected("lop3.b32", (*map(int, x), lut))[0]
            for x in zip(a, b, c, strict=True)
        ]
        assert once.tolist() == want


@pytest.mark.parametrize(("width", "count"), [(32, 2), (64, 2), (64, 4), (32, 4)])
def test_packing_puts_the_first_part_lowest_and_unpacking_takes_it_out(
    width: int, count: int
) -> None:
    whole = np.array([0x0123456789ABCDEF & (2**width - 1)], f"u{width // 8}")
    parts = table.unpack(width, count).call(whole)
    part = width // count
    assert [int(p[0]) for p in parts] == [
        int(whole[0]) >> part * i & (2**part - 1) for i in range(count)
    ]
    assert table.pack(width, count).call(*parts) == whole


def test_one_element_stands_for_all_lanes() -> None:
    many, one = np.arange(8, dtype=np.uint32), np.full(1, 3, np.uint32)
    for opcode in table.opcodes():
        semantics = table.find(opcode)
        if semantics.sources == ("b32", "b32"):
            left = semantics.call(many, one)
            right = semantics.call(many, np.full(8, 3, np.uint32))
            for x, y in zip(
                *(r if isinstance(r, tuple) else (r,) for r in (left, right)), strict=True
            ):
                assert np.array_equal(np.broadcast_to(x, 8), y), opcode
