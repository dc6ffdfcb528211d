"""The last token's row: literal rows, and other pools."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import refused

from contract.kernels.text_pool import text_pool_torch

X = [[[1.0, 9.0], [2.0, 5.0], [3.0, -0.0]], [[4.0, 4.0], [8.0, 2.0], [6.0, 2.0**-133]]]
RIGHT = [[3.0, -0.0], [6.0, 2.0**-133]]


def test_the_last_row() -> None:
    assert refused("text_pool", {"x": X}, RIGHT) == {"out": 0}
    out = text_pool_torch(torch.tensor(X).bfloat16())
    np.testing.assert_array_equal(out.double().numpy(), RIGHT)


@pytest.mark.parametrize(
    ("faulty", "count"),
    [([[1.0, 9.0], [4.0, 4.0]], 4), ([[2.0, 5.0], [8.0, 2.0]], 4), ([[2.0, 14 / 3], [6.0, 2.0]], 3),
     ([[3.0, 0.0], [6.0, 0.0]], 2), ([[6.0, 2.0**-133], [3.0, -0.0]], 4)],
    ids=["first", "last but one", "mean", "flushed", "previous text"],
)  # fmt: skip
def test_another_pool_is_refused(faulty: list[list[float]], count: int) -> None:
    assert refused("text_pool", {"x": X}, faulty) == {"out": count}
