"""GELU by a table: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def gelu_table(
    r: Reading,
    codes: Quantity | None,
    code_table: Quantity | None,
    words: Quantity | None,
    word_table: Quantity | None,
    index: str,
) -> Quantity:
    """out = code_table[code + 128], or word_table[word]; an exact lookup.

    A move: no bit changes. What the entries hold (GELU of each value, rounded once) is the table's own affair.

    Args:
        codes: (rows, n) int8, all 256 codes from -128 on (index=int8).
        code_table: (256,) bf16, in the order of the codes from -128 on.
        words: (rows, n) int32, the 16 bits of a bf16 value as a number from 0 to 65,535 (index=bf16).
        word_table: (65536,) bf16, in the order of the words: 0x8000 (-0) follows the positive NaNs.
        index: 'int8' or 'bf16'.

    Specials: an entry may be NaN, an infinity or a zero of either sign; its bits are kept.
    """
    if index == "int8":
        assert codes is not None
        assert code_table is not None
        return r.take(code_table, r.integers(codes) + 128)
    assert words is not None
    assert word_table is not None
    return r.take(word_table, r.integers(words))
