"""Runs of the delta rule: they are their steps, padding leaves no trace, and each step is judged from the one before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import Case, find, make_case, shape_from
from contract.kernels.delta_chunk64 import delta_chunk64_torch
from contract.kernels.delta_run import delta_run_torch
from contract.kernels.delta_step import delta_step_torch
from contract.ranges import case_range
from contract.stages import observing

KERNEL = find("delta_run", "float32")


def case_of(given: Mapping[str, torch.Tensor]) -> Case:
    values = {name: x.double().numpy() for name, x in given.items()}
    return make_case(KERNEL, shape_from(KERNEL, {n: x.shape for n, x in values.items()}), values)


def refused(given: Mapping[str, torch.Tensor], out: Any, states: Any) -> dict[str, int]:
    """How many of what is read and of the states are not allowed, each step from the state before it as it was given."""
    bits = {
        o.name: formats.encode(
            formats.round_to(np.asarray(x, np.float64), KERNEL.format(o)), KERNEL.format(o)
        )
        for o, x in zip(KERNEL.outputs(), (out, states), strict=True)
    }
    allowed = case_range(KERNEL, case_of(given), prepare=observing(KERNEL, bits))
    return {name: int(allowed[name].refused(bits[name]).sum()) for name in bits}


# six steps without decay, keys that are not orthogonal, one group
K = [[1, 0, 0], [0.5, 0.5, 0.5], [0, 1, 0], [0.25, -0.5, 0.75], [1, 0, 0], [0, 0, 1]]
V = [[1, 2], [3, -4], [5, 6], [-7, 8], [9, 10], [11, -12]]
BETA = [1, 0.5, 1, 0.75, 1, 0.25]
OUT = [[0, 0], [1.625, 0.75], [-1.625, -3.75], [7.015625, 1.59375], [6.8085938, 8.4765625], [9, 10]]
STATE = [[9, 10], [7.015625, 1.59375], [0.9511719, 1.0195312]]


def six(length: int = 6) -> dict[str, torch.Tensor]:
    """The six steps; queries are the keys from the last to the first, times the root they are divided by."""
    return {
        "q": torch.tensor(K[::-1])[None] * 3**0.5,
        "k": torch.tensor(K)[None],
        "v": torch.tensor(V, dtype=torch.float32)[None, None],
        "beta": torch.tensor(BETA)[None, None],
        "g": torch.zeros(1, 1, 6),
        "state": torch.zeros(1, 1, 3, 2),
        "lengths": torch.tensor([length], dtype=torch.int32),
    }


def drawn() -> dict[str, torch.Tensor]:
    """Three sequences of up to 7 steps, two value heads a key head, keys 16 wide, values 4."""
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.nn.functional.normalize(torch.randn(3, 7, 16, generator=generator), dim=-1)
        for _ in "qk"
    )
    return {
        "q": q,
        "k": k,
        "v": torch.randn(3, 2, 7, 4, generator=generator),
        "beta": torch.rand(3, 2, 7, generator=generator),
        "g": -0.3 * torch.rand(3, 2, 7, generator=generator),
        "state": torch.randn(3, 2, 16, 4, generator=generator),
        "lengths": torch.tensor([7, 0, 4], dtype=torch.int32),
    }


def test_six_steps_by_hand() -> None:
    out, states = delta_run_torch(**six())
    assert out[0, 0].numpy() == pytest.approx(np.array(OUT), abs=1e-5)
    assert states[0, 0, -1].numpy() == pytest.approx(np.array(STATE), abs=1e-6)
    assert refused(six(), out, states) == {"out": 0, "states": 0}
    # without the correction, beta v k^T is added up: wrong where a key meets what the steps before it have stored
    added = np.cumsum(np.einsum("s,sk,sv->skv", np.array(BETA), np.array(K), np.array(V)), 0)
    assert refused(six(), out, added[None, None])["states"] == 18


def test_steps_give_the_run() -> None:
    given = drawn()
    out, states = delta_run_torch(**given)
    assert refused(given, out, states) == {"out": 0, "states": 0}
    state = given["state"]
    for t in range(4):
        q, k = (given[n][:, t] for n in ("q", "k"))
        v, beta, g = (given[n][:, :, t] for n in ("v", "beta", "g"))
        read, state = delta_step_torch(q, k, v, beta, g, state)
        for i in (0, 2):
            assert torch.equal(state[i], states[i, :, t])
            assert torch.equal(read[i], out[i, :, t])


def test_a_run_of_a_whole_sequence_is_its_chunk() -> None:
    given = drawn()
    given["lengths"] = torch.full((3,), 7, dtype=torch.int32)
    out, states = delta_run_torch(**given)
    found = delta_chunk64_torch(*(given[n] for n in ("q", "k", "v", "beta", "g", "state")))
    assert (found["new_state"] - states[:, :, -1]).abs().max() < 1e-5
    assert (found["out"].float() - out).abs().max() < 1e-4


def test_padding_is_inert_whatever_it_holds() -> None:
    given = drawn()
    out, states = delta_run_torch(**given)
    # no step of its own: the state that came in, bit for bit, and zeros
    assert torch.equal(states[1], given["state"][1][:, None].expand(2, 7, 16, 4))
    assert not out[1].any()
    assert torch.equal(states[2, :, 4:], states[2, :, 3:4].expand(2, 3, 16, 4))
    for value in (float("nan"), float("inf"), 3.0):
        spoilt = {name: x.clone() for name, x in given.items()}
        for name in ("q", "k"):
            spoilt[name][1] = spoilt[name][2, 4:] = value
        for name in ("v", "beta", "g"):
            spoilt[name][1] = spoilt[name][2, :, 4:] = value
        again = delta_run_torch(**spoilt)
        assert torch.equal(again[0], out)
        assert torch.equal(again[1], states)
        assert refused(spoilt, out, states) == {"out": 0, "states": 0}
        # masked by a product with 0, a NaN or an infinity reaches the state at the first padded step
        wrong = states.clone()
        wrong[1] += 0.0 * value
        wrong[2, :, 4:] += 0.0 * value
        assert refused(spoilt, out, wrong)["states"] == (0 if value == 3.0 else 256)


def test_a_step_is_judged_from_the_state_before_it() -> None:
    given = drawn()
    out, states = delta_run_torch(**given)
    # the third state of the first sequence is wrong; what follows was computed from the right one
    wrong = states.clone()
    wrong[0, :, 2] = wrong[0, :, 2].bfloat16().float()
    counts = refused(given, out, wrong)
    own = int((wrong[0, :, 2] != states[0, :, 2]).sum())
    assert 0.9 * own <= counts["states"] - int((wrong[0, :, 3] != 0).sum()) <= own + 128
    # a run that goes on from it is wrong in that step alone
    rest = {name: x.clone() for name, x in given.items()}
    for name in ("q", "k"):
        rest[name] = rest[name][:1, 3:]
    for name in ("v", "beta", "g"):
        rest[name] = rest[name][:1, :, 3:]
    rest["state"], rest["lengths"] = wrong[:1, :, 2], torch.tensor([4], dtype=torch.int32)
    out[:1, :, 3:], wrong[:1, :, 3:] = delta_run_torch(**rest)
    counts = refused(given, out, wrong)
    assert 0.9 * own <= counts["states"] <= own


def test_a_bf16_state_is_wrong_at_every_step() -> None:
    given = drawn()
    state, states = given["state"], []
    for t in range(7):
        one = {n: given[n][:, t : t + 1] for n in ("q", "k")}
        one |= {n: given[n][:, :, t : t + 1] for n in ("v", "beta", "g")}
        live = (given["lengths"] > t).int()
        state = delta_run_torch(**one, state=state, lengths=live)[1][:, :, 0].bfloat16().float()
        states.append(state)
    kept = torch.stack(states, 2)
    bits = {"states": kept, "out": torch.zeros(3, 2, 7, 4)}
    assert refused(given, bits["out"], bits["states"])["states"] > 900


def test_transformers_recurrent_rule_gives_the_same_run() -> None:
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    given = drawn()
    out, states = delta_run_torch(**given)
    one = slice(0, 1)
    flat = {n: given[n][one].reshape(1, 2, 7, -1).transpose(1, 2) for n in ("v", "beta", "g")}
    q, k = (given[n][one, :, None].expand(1, 7, 2, 16) for n in ("q", "k"))
    theirs, state = module.torch_recurrent_gated_delta_rule(
        q, k, flat["v"], flat["g"][..., 0], flat["beta"][..., 0],
        initial_state=given["state"][one], output_final_state=True,
    )  # fmt: skip
    assert (state - states[one, :, -1]).abs().max() < 1e-5
    assert (theirs.transpose(1, 2) - out[one]).abs().max() < 1e-5
