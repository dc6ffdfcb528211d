"""Two stretches of rows: literal rows, and sizes that do not add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from literal import kernel_and_case, refused

from contract.errors import CaseError
from contract.kernels.concat_rows import concat_rows_torch

FIRST = [[[1.0, -0.0], [2.0, math.nan]], [[3.0, math.inf], [4.0, 0.0]]]
SECOND = [[[5.0, 2.0**-133]], [[6.0, 7.0]]]
RIGHT = [[*FIRST[0], *SECOND[0]], [*FIRST[1], *SECOND[1]]]
ROWS = {"first": FIRST, "second": SECOND}


def test_the_second_follows_the_first() -> None:
    assert refused("concat_rows", ROWS, RIGHT, sizes={"rows": 3}) == {"out": 0}
    out = concat_rows_torch(torch.tensor(FIRST).bfloat16(), torch.tensor(SECOND).bfloat16())
    np.testing.assert_array_equal(out.double().numpy(), RIGHT)


@pytest.mark.parametrize(
    "faulty",
    [
        [[*SECOND[0], *FIRST[0]], [*SECOND[1], *FIRST[1]]],
        [[*FIRST[0], *SECOND[0]], [*FIRST[1], *SECOND[0]]],
        [[FIRST[0][0], *SECOND[0], [0.0, 0.0]], [FIRST[1][0], *SECOND[1], [0.0, 0.0]]],
        [[*FIRST[0], [5.0, 0.0]], [*FIRST[1], *SECOND[1]]],
        [[*FIRST[0], FIRST[1][0]], [FIRST[1][1], *SECOND[0], *SECOND[1]]],
    ],
    ids=["exchanged", "stale", "one row early", "flushed", "no batch stride"],
)
def test_another_order_is_refused(faulty: list[list[list[float]]]) -> None:
    assert refused("concat_rows", ROWS, faulty, sizes={"rows": 3})["out"] >= 1


def test_rows_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(CaseError, match="rows = head \\+ tail"):
        kernel_and_case("concat_rows", ROWS, sizes={"rows": 4})
