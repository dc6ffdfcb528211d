"""A state at one step: literal states, and steps that are not there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from literal import kernel_and_case, refused

from contract.errors import CaseError
from contract.kernels.snapshot import snapshot_torch

THIRD = float(np.float32(1 / 3))
STATES = [[[1.0, -0.0], [2.0, THIRD]], [[3.0, 30.0], [4.0, 40.0]]]
ROWS = {"states": STATES, "step": [1, 0]}
RIGHT = [[2.0, THIRD], [3.0, 30.0]]


def test_the_state_after_the_step() -> None:
    assert refused("snapshot", ROWS, RIGHT, profile="float32") == {"out": 0}
    out = snapshot_torch(torch.tensor(STATES), torch.tensor([1, 0], dtype=torch.int32))
    np.testing.assert_array_equal(out.double().numpy(), RIGHT)


@pytest.mark.parametrize(
    ("faulty", "count"),
    [([[1.0, -0.0], [3.0, 30.0]], 2), ([[2.0, THIRD], [4.0, 40.0]], 2),
     ([[4.0, 40.0], [1.0, -0.0]], 4), ([[2.0, 0.333984375], [3.0, 30.0]], 1)],
    ids=["before", "last", "previous sequence", "in bf16"],
)  # fmt: skip
def test_another_state_is_refused(faulty: list[list[float]], count: int) -> None:
    assert refused("snapshot", ROWS, faulty, profile="float32") == {"out": count}


def test_a_copy_keeps_what_a_later_step_overwrites() -> None:
    states = torch.tensor(STATES)
    out = snapshot_torch(states, torch.tensor([1, 0]))
    states.zero_()
    assert out.flatten().tolist() == [2.0, THIRD, 3.0, 30.0]


def test_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(CaseError, match=r"step holds 2; values are 0 to 1 \(steps - 1\)"):
        kernel_and_case("snapshot", {"states": STATES, "step": [1, 2]})
