"""Embedding lookups: literal rows, the factor's rounding, and moves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lookup import judge

from contract.autocontrols import nominal
from contract.case import find, make_case
from contract.errors import CaseError, NotAllowed
from contract.kernels.embed import embed_torch
from contract.ranges import case_range
from contract.readings.base import Change

ROW = [1.0, 0.7109375, -2.65625, 0.005706787109375, 3.453125]
WIDTH = 3584


def test_the_root_of_the_width_is_rounded_first() -> None:
    # bf16(sqrt(3584)) = bf16(59.867) = 59.75
    given = {"table": torch.tensor([ROW]).bfloat16(), "scale": torch.tensor(WIDTH**0.5)}
    right = [[59.75, 42.5, -159.0, 0.341796875, 206.0]]
    judge("embed", right, [0], **given)
    assert embed_torch(torch.tensor([0]), **given).tolist() == right
    unrounded = torch.tensor([ROW]) * WIDTH**0.5
    assert (unrounded.bfloat16() != torch.tensor(right)).any()
    for wrong in (unrounded, torch.tensor(right) * 59.75, torch.tensor([ROW])):
        with pytest.raises(NotAllowed):
            judge("embed", wrong, [0], **given)


def test_an_id_is_a_row_counted_from_0() -> None:
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).bfloat16()
    judge("embed", [[5.0, 6.0], [1.0, 2.0]], [2, 0], table=table, scaled="no")
    for wrong in ([[5.0, 6.0], [3.0, 4.0]], [[3.0, 4.0], [5.0, 6.0]], [[0.0, 0.0], [1.0, 2.0]]):
        with pytest.raises(NotAllowed):
            judge("embed", wrong, [2, 0], table=table, scaled="no")
    for outside in (3, -1):
        with pytest.raises(CaseError, match=r"ids holds .*; values are 0 to 2 \(vocab - 1\)"):
            judge("embed", [[1.0, 2.0]], [outside], table=table, scaled="no")


def test_a_move_keeps_subnormals_and_signs_of_zeros() -> None:
    values = [2.0**-130, -(2.0**-133), 0.0, -0.0, float("inf"), float("nan")]
    table = torch.tensor([values]).bfloat16()
    judge("embed", table, [0], table=table, scaled="no")
    for column, wrong in ((0, 0.0), (1, -0.0), (2, -0.0), (3, 0.0), (4, 3e38), (5, 0.0)):
        out = table.clone()
        out[0, column] = wrong
        with pytest.raises(NotAllowed):
            judge("embed", out, [0], table=table, scaled="no")


def test_a_row_that_is_moved_is_not_rounded() -> None:
    """The vacuous point: every bf16 value is its own bf16 rounding, toward zero, too."""
    kernel = find("embed", "once", {"scaled": "no"})
    table = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    case = make_case(
        kernel,
        {"rows": 256, "vocab": 256, "d": 256},
        {"ids": np.arange(256.0), "table": table},
    )
    out = nominal(kernel, case, change=Change(modes={"out": "toward_zero"}))["out"]
    assert not case_range(kernel, case)["out"].refused(out).any()
    assert case_range(kernel, case)["out"].one_value().mean() == 1.0
