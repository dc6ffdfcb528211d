"""Convolution with a history: literal sums, the ring's places, and agreement with transformers and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray

from contract import formats
from contract.case import find, make_case, shape_from
from contract.errors import CaseError
from contract.kernels.conv4_ring_silu import conv4_ring_silu_torch
from contract.ranges import case_range

F8 = NDArray[np.float64]


def silu(total: ArrayLike) -> F8:
    z = np.asarray(total, np.float64)
    return np.asarray(z / (1.0 + np.exp(-z)))


def refused(
    profile: str, out: ArrayLike, new_past: ArrayLike, slot: int | None = None, **values: Any
) -> dict[str, int]:
    """How many outputs are not allowed; the history is a ring where it has a slot."""
    kernel = find("conv4_ring_silu", profile, {"layout": "shift" if slot is None else "ring"})
    arrays = {name: np.asarray(value, np.float64) for name, value in values.items()}
    if slot is not None:
        arrays["slot"] = np.asarray(float(slot))
    case = make_case(kernel, shape_from(kernel, {n: x.shape for n, x in arrays.items()}), arrays)
    given = {"out": out, "new_past": new_past}
    return {
        name: int(
            allowed.refused(
                formats.encode(
                    formats.round_to(np.asarray(given[name], np.float64), "bf16"), "bf16"
                )
            ).sum()
        )
        for name, allowed in case_range(kernel, case).items()
    }


# 1000 x_t + 100 x_{t-1} + 10 x_{t-2} + x_{t-3} in units of 1/1024, so that a sum shows which tap met which column
TAPS = np.array([[1.0, 10.0, 100.0, 1000.0]]) / 1024.0
PAST, X = [[1.0, 2.0, 3.0]], [[4.0, 5.0]]


def test_each_tap_meets_its_column() -> None:
    # R(1000) / 1024 is 0.9765625 exactly
    sums = np.array([[4321.0, 5432.0]]) / 1024.0
    once = refused("once", silu(sums), [[3.0, 4.0, 5.0]], x=X, weight=TAPS, past=PAST)
    assert once == {"out": 0, "new_past": 0}
    reversed_taps = np.array([[1234.0, 2345.0]]) / 1024.0
    late = np.array([[3210.0, 4321.0]]) / 1024.0
    no_history = np.array([[4000.0, 5400.0]]) / 1024.0
    for wrong in (reversed_taps, late, no_history):
        assert refused("once", silu(wrong), PAST, x=X, weight=TAPS, past=PAST) == {
            "out": 2,
            "new_past": 3,
        }


def test_the_sum_is_rounded_between_the_operators() -> None:
    # 1.0078125 + 2^-8 + 2^-9 lies above the tie at 2^-8 and becomes 1.015625
    x, weight, past = [[1.0]], [[0.0, 2.0**-9, 2.0**-8, 1.0078125]], [[1.0, 1.0, 1.0]]
    # silu of the rounded sum and of the exact one, 1.013671875
    two_step, once = [[0.74609375]], [[0.7421875]]
    given: dict[str, Any] = {"new_past": [[1.0, 1.0, 1.0]], "x": x, "weight": weight, "past": past}
    assert refused("two_step", two_step, **given)["out"] == 0
    assert refused("two_step", once, **given)["out"] == 1
    assert refused("once", once, **given)["out"] == 0
    assert refused("once", two_step, **given)["out"] == 1


@pytest.mark.parametrize("kept", [3, 4])
def test_the_fourth_column_is_kept_and_not_read(kept: int) -> None:
    past = [[9.0, 1.0, 2.0, 3.0][4 - kept :]]
    after = [[*past[0], 4.0, 5.0][2:]]
    sums = np.array([[4321.0, 5432.0]]) / 1024.0
    found = refused("once", silu(sums), after, x=X, weight=TAPS, past=past)
    assert found == {"out": 0, "new_past": 0}


@pytest.mark.parametrize(
    ("slot", "after"), [(0, [4.0, 5.0, 3.0]), (1, [3.0, 4.0, 5.0]), (2, [5.0, 3.0, 4.0])]
)
def test_new_columns_replace_the_oldest_places_of_the_ring(slot: int, after: list[float]) -> None:
    ring = np.roll(PAST, slot, axis=-1)
    sums = np.array([[4321.0, 5432.0]]) / 1024.0
    given = {"x": X, "weight": TAPS, "past": ring}
    assert refused("once", silu(sums), [after], slot, **given) == {"out": 0, "new_past": 0}
    # in order of time, one place further, and not written
    wrong = [[3.0, 4.0, 5.0], np.roll(after, 1).tolist(), ring[0].tolist()]
    for places in wrong[slot == 1 :]:
        assert refused("once", silu(sums), [places], slot, **given)["new_past"] > 0


def test_a_long_call_leaves_its_last_columns_in_the_ring() -> None:
    x = torch.arange(1.0, 9.0).bfloat16()[None]
    past, weight = torch.zeros(1, 3).bfloat16(), torch.ones(1, 4).bfloat16()
    _, ring = conv4_ring_silu_torch(
        x, weight, past, torch.tensor(2, dtype=torch.int32), profile="once"
    )
    # columns 1 .. 8 go to places 2, 0, 1, 2, 0, 1, 2, 0
    assert ring.tolist() == [[8.0, 6.0, 7.0]]


def test_sizes_and_slots_that_are_none_are_refused() -> None:
    given = {"x": X, "weight": TAPS, "past": PAST}
    with pytest.raises(CaseError, match="slot holds 3; values are 0 to 2"):
        refused("once", X, PAST, 3, **given)
    with pytest.raises(CaseError, match="4 taps"):
        refused("once", X, PAST, x=X, weight=TAPS[:, :3], past=PAST)
    with pytest.raises(CaseError, match="3 or 4 columns"):
        refused("once", X, [PAST[0][:2]], x=X, weight=TAPS, past=[PAST[0][:2]])


def test_steps_one_by_one_are_the_whole_call() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(8, 12, generator=generator), torch.randn(8, 4, generator=generator)
    x, weight, past = x.bfloat16(), weight.bfloat16(), torch.zeros(8, 3).bfloat16()
    whole, end = conv4_ring_silu_torch(x, weight, past, profile="two_step")
    ring, outs = past, []
    for t in range(12):
        slot = torch.tensor(t % 3, dtype=torch.int32)
        out, ring = conv4_ring_silu_torch(x[:, t : t + 1], weight, ring, slot, profile="two_step")
        outs.append(out)
    assert torch.equal(torch.cat(outs, -1), whole)
    # 12 steps: the next place is 0 again, so the ring lies in order
    assert torch.equal(ring, end)


def test_transformers_update_is_the_two_step_profile() -> None:
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    generator = torch.Generator().manual_seed(1)
    x, weight, past = (torch.randn(64, n, generator=generator).bfloat16() for n in (9, 4, 4))
    history = past[None].clone()
    out = module.causal_conv1d_update(x[None], history, weight, None, "silu")[0]
    given: dict[str, Any] = {
        "x": x.double().numpy(),
        "weight": weight.double().numpy(),
        "past": past.double().numpy(),
    }
    state = history[0].double().numpy()
    assert refused("two_step", out.double().numpy(), state, **given) == {"out": 0, "new_past": 0}
    assert refused("once", out.double().numpy(), state, **given)["out"] > 30
