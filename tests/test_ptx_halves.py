"""f16 and bf16 of PTX, one and two in a register, against fractions: each result is rounded once."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_check import check, run, samples

from contract.engines.ptx import halves


@pytest.mark.parametrize("opcode", samples(halves.ROWS))
def test_against_fractions(opcode: str) -> None:
    check(opcode)


@pytest.mark.parametrize(
    "opcode", ["fma.rn.f16", "fma.rn.bf16", "fma.rn.bf16x2", "fma.rn.relu.bf16"]
)
def test_fma_on_many_lanes(opcode: str) -> None:
    check(opcode, 2000)


def test_a_tie_of_bf16_is_decided_by_a_term_that_float64_cannot_hold() -> None:
    """1.00390625 is halfway between 1 and 1.0078125; 2^-100 more or less decides it."""
    product = (np.uint16(0x3F80), np.uint16(0x3F80))
    tie = np.array([0x3B80, 0x3B80], np.uint16)
    (down,) = run("fma.rn.bf16", *(np.full(2, x, np.uint16) for x in product), tie)
    assert down.tolist() == [0x3F80, 0x3F80]
    a, b = np.full(2, 0x3F81, np.uint16), np.full(2, 0x3F81, np.uint16)
    # 1.0078125^2 = 1.01568603515625 lies above the tie at 1.01171875; minus 2^-8 it is a little above 1.01171875
    (near,) = run("fma.rn.bf16", a, b, np.array([0xBB80, 0x0D80], np.uint16))
    assert near.tolist() == [0x3F82, 0x3F82]
