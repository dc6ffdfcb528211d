"""Image rows in place of image ids: literal rows, and the checks of their counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from literal import refused

from contract.kernels.splice_rows import flags_of, splice_rows_torch

NAN = math.nan
# ids: image, text, image, image; two image rows
ROWS: dict[str, Any] = {
    "h": [[[1.0, -0.0], [2.0, NAN], [3.0, 3.0], [4.0, 2.0**-133]]],
    "image": [[[10.0, 0.0], [20.0, -20.0]]],
    "is_image": [[1, 0, 1, 1]],
}
RIGHT = [[[10.0, 0.0], [2.0, NAN], [20.0, -20.0], [4.0, 2.0**-133]]]


def test_the_k_th_image_row_takes_the_k_th_place() -> None:
    assert refused("splice_rows", ROWS, RIGHT) == {"out": 0}
    h, image = (torch.tensor(ROWS[k]).bfloat16() for k in ("h", "image"))
    out = splice_rows_torch(h, image, torch.tensor(ROWS["is_image"], dtype=torch.uint8))
    np.testing.assert_array_equal(out.double().numpy(), RIGHT)


@pytest.mark.parametrize(
    "row",
    [
        {0: [10.0 * math.sqrt(2.0), 0.0]},
        {0: [20.0, -20.0]},
        {0: [1.0, -0.0]},
        {2: [3.0, 3.0]},
        {3: [20.0, -20.0]},
        {3: [4.0, 0.0]},
        {0: [10.0, -0.0]},
    ],
    ids=["scaled", "next", "stale", "last missing", "repeated", "flushed", "zero's sign"],
)
def test_another_row_is_refused(row: dict[int, list[float]]) -> None:
    faulty = np.array(RIGHT)
    for place, values in row.items():
        faulty[0, place] = values
    assert refused("splice_rows", ROWS, faulty)["out"] >= 1


def test_flags_of_ids_name_a_sequence_that_does_not_fit() -> None:
    ids = torch.tensor([[7, 5, 7], [7, 7, 7]])
    assert flags_of(ids[:1], 7, 2).tolist() == [[1, 0, 1]]
    with pytest.raises(ValueError, match="sequence 1 has 3 ids 7 and 2 image rows"):
        flags_of(ids, 7, 2)
