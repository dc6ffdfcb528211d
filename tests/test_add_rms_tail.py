"""Tail of a residual block: the case of a fused add, and what each rounding of the stream decides."""

from __future__ import annotations

import numpy as np
import torch

from contract import formats
from contract.case import Kernel, make_case
from contract.kernels.add_rms_tail import add_rms_tail, add_rms_tail_torch
from contract.ranges import case_range

X = [[0.011474609375, 0.0062255859375, 0.00299072265625, -0.00872802734375]]
RESIDUAL = [[2.828125, 1.9921875, 2.015625, 2.875]]
TOTAL = [[2.84375, 2.0, 2.015625, 2.859375]]
UNROUNDED = [[1.1484375, 0.80859375, 0.81640625, 1.1640625]]


def refused(profile: str, total: object, out: object, **more: object) -> dict[str, int]:
    """How many of these outputs the contract refuses; X and RESIDUAL, unit gain, eps 1e-6."""
    parameters = {"branch_norm": "no", "scale": "yes" if "scalar" in more else "no"}
    kernel = Kernel(add_rms_tail, parameters, add_rms_tail.profile(profile))
    values = {"x": X, "residual": RESIDUAL, "weight": np.ones(4), **more}
    arrays = {name: np.asarray(value, np.float64) for name, value in values.items()}
    case = make_case(kernel, {"rows": 1, "d": 4}, arrays, {"eps": 1e-6})
    given = {"total": total, "out": out}
    return {
        name: int(
            allowed.refused(
                formats.encode(formats.round_to(np.asarray(given[name]), "bf16"), "bf16")
            ).sum()
        )
        for name, allowed in case_range(kernel, case).items()
    }


def norm(rows: object) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    x = np.asarray(rows, np.float64)
    root: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.sqrt(
        np.square(x).mean(-1, keepdims=True) + 1e-6
    )
    return x / root


def test_the_fused_norm_reads_the_unrounded_sum() -> None:
    assert refused("fused", TOTAL, UNROUNDED) == {"total": 0, "out": 0}
    rounded = formats.round_to(norm(TOTAL), "bf16")
    assert refused("fused", TOTAL, rounded)["out"] > 0


def test_the_unfused_norm_reads_the_stored_sum() -> None:
    assert refused("each", TOTAL, norm(TOTAL)) == {"total": 0, "out": 0}
    assert refused("each", TOTAL, UNROUNDED)["out"] > 0


def test_the_stream_is_scaled_before_the_norm() -> None:
    half = np.asarray(TOTAL) / 2
    assert refused("each", half, norm(half), scalar=0.5) == {"total": 0, "out": 0}
    # scaled after the norm instead
    assert refused("each", TOTAL, norm(TOTAL) / 2, scalar=0.5) == {"total": 4, "out": 4}


def test_the_normed_row_is_rounded_before_the_gain() -> None:
    # 1.4140625 meets the rounded row; with one rounding some results are others
    gain = np.full(4, 1.4140625)
    rounded = formats.round_to(norm(TOTAL), "bf16")
    assert refused("two_step", TOTAL, rounded * gain, weight=gain) == {"total": 0, "out": 0}
    assert refused("two_step", TOTAL, norm(TOTAL) * gain, weight=gain)["out"] > 0
    assert refused("each", TOTAL, norm(TOTAL) * gain, weight=gain)["out"] == 0
    assert refused("two_step", TOTAL, norm(TOTAL))["out"] == 0
    assert refused("two_step", TOTAL, UNROUNDED)["out"] > 0
    x, residual = (torch.tensor(a).bfloat16() for a in (X, RESIDUAL))
    total, out = add_rms_tail_torch(
        x, residual, torch.tensor(gain).bfloat16(), eps=1e-6, profile="two_step"
    )
    assert total.tolist() == TOTAL
    expected = formats.round_to(rounded * gain, "bf16")
    np.testing.assert_array_equal(out.double().numpy(), expected)
