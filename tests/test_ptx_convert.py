"""cvt of PTX against fractions: integers, floats, tf32 and the 8-bit formats."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_check import check, run, samples

from contract.engines.ptx import convert, table

SAMPLES = samples(convert.ROWS)
EVERY = [opcode for row in convert.ROWS for opcode, _ in row.spellings()]


@pytest.mark.parametrize("opcode", SAMPLES)
def test_against_fractions(opcode: str) -> None:
    check(opcode)


@pytest.mark.parametrize("start", range(20))
def test_every_spelling_on_a_few_lanes(start: int) -> None:
    for opcode in EVERY[start::20]:
        check(opcode, 24)


@pytest.mark.parametrize(
    "opcode", ["cvt.rn.f16.f32", "cvt.rn.bf16.f32", "cvt.rn.bf16x2.f32", "cvt.rna.tf32.f32"]
)
def test_the_conversions_that_kernels_are_made_of_on_many_lanes(opcode: str) -> None:
    check(opcode, 2000)


@pytest.mark.parametrize("kind", ["e4m3x2", "e5m2x2"])
def test_every_code_of_the_8_bit_formats_survives_the_way_through_f16(kind: str) -> None:
    codes = np.arange(256, dtype=np.uint16)
    (wide,) = run(f"cvt.rn.f16x2.{kind}", codes)
    (back,) = run(f"cvt.rn.satfinite.{kind}.f16x2", wide)
    values = np.abs((codes & 0x7F).astype(int))
    finite = values < (0x7F if kind == "e4m3x2" else 0x7C)
    assert np.array_equal(back[finite], codes[finite])


def test_a_signed_result_asks_for_the_sign_in_a_wider_register() -> None:
    assert table.find("cvt.s8.s32").signed
    assert table.find("cvt.s8.s32").results == ("b8",)
    assert not table.find("cvt.u8.s32").signed
