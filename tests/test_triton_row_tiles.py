"""Tiles of row kernels in Triton: chosen by the width alone, and refused by name where a row does not fit."""

from __future__ import annotations

import pytest

from contract.kernels.triton.row_tiles import DEPTH, WIDEST, power_of_two, row_tile


def test_tiles_of_the_models() -> None:
    assert row_tile(64) == {"BLOCK": 64, "ROWS": 16, "num_warps": 4}
    assert row_tile(1152) == {"BLOCK": 2048, "ROWS": 1, "num_warps": 8}
    assert row_tile(5376) == {"BLOCK": 8192, "ROWS": 1, "num_warps": 16}


@pytest.mark.parametrize("d", [1, 2, 3, 5, 64, 257, 517, 1025, 2048, 2049, 8192, WIDEST])
def test_depth_holds_at_every_width(d: int) -> None:
    tile = row_tile(d)
    threads = 32 * tile["num_warps"]
    each = -(-tile["BLOCK"] * tile["ROWS"] // threads)
    assert tile["BLOCK"] >= d
    assert (each - 1) + 5 + (tile["num_warps"] - 1).bit_length() <= DEPTH


def test_a_row_that_is_too_wide_is_named() -> None:
    with pytest.raises(ValueError, match="rows of 16385 columns; one program holds at most 16384"):
        row_tile(WIDEST + 1)


def test_powers_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5, 1024, 1025)] == [1, 2, 4, 4, 8, 1024, 2048]
