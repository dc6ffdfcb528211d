"""Next tokens: the fallback where a row holds NaN or infinities, and nowhere else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from literal import kernel_and_case, refused

from contract.errors import CaseError
from contract.kernels.pick_ids import pick_ids_torch

INF, NAN = math.inf, math.nan
LOGITS = [
    [0.0, 3.0, 3.0, -INF],
    [0.0, NAN, 5.0, 1.0],
    [INF, 2.0, 5.0, 1.0],
    [-INF, -INF, -INF, -INF],
    [-INF, -INF, -1.0, -INF],
]
ROWS: dict[str, Any] = {"logits": LOGITS, "fallback": 3}
TOKEN, FLAGS = [1, 3, 3, 3, 2], [0, 1, 1, 1, 0]


def judged(token: list[int], flags: list[int]) -> tuple[int, int]:
    counts = refused("pick_ids", ROWS, {"token": token, "flags": flags}, profile="float32_logits")
    return counts["token"], counts["flags"]


def test_bad_rows_give_the_fallback() -> None:
    assert judged(TOKEN, FLAGS) == (0, 0)
    token, flags = pick_ids_torch(torch.tensor(LOGITS), torch.tensor(3, dtype=torch.int32))
    assert (token.tolist(), flags.tolist()) == (TOKEN, FLAGS)
    assert token.dtype == torch.int32


@pytest.mark.parametrize(
    ("token", "flags", "counts"),
    [([1, 1, 0, 0, 2], FLAGS, (3, 0)), ([1, 0, 0, 0, 2], FLAGS, (3, 0)),
     ([1, 3, 0, 0, 2], [0, 1, 0, 0, 0], (2, 2)), ([3, 3, 3, 3, 3], FLAGS, (2, 0)),
     ([2, 3, 3, 3, 2], FLAGS, (1, 0)), ([3, 3, 3, 3, 3], [1, 1, 1, 1, 1], (2, 2)),
     (TOKEN, [0, 0, 0, 0, 0], (0, 3))],
    ids=["no fallback", "fallback is zero", "for NaN only", "for the batch", "last of equals",
         "beside a masked token", "never flagged"],
)  # fmt: skip
def test_another_token_is_refused(
    token: list[int], flags: list[int], counts: tuple[int, int]
) -> None:
    assert judged(token, flags) == counts


def test_a_fallback_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(CaseError, match=r"fallback holds 4; values are 0 to 3 \(n - 1\)"):
        kernel_and_case("pick_ids", {**ROWS, "fallback": 4})
