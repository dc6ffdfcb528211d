"""One step of the delta rule: literal steps, a run whose state needs fp32, and what is judged from the kernel's own state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import contract.kernels.delta_step
from contract import formats
from contract.case import Case, find, make_case, shape_from
from contract.kernels.delta_step import delta_step_torch
from contract.ranges import case_range
from contract.stages import observing

F8 = NDArray[np.float64]
FP32 = formats.get("fp32")


def case_of(**values: Any) -> Case:
    kernel = find("delta_step", "float32")
    arrays = {name: np.asarray(value, np.float64) for name, value in values.items()}
    return make_case(kernel, shape_from(kernel, {n: x.shape for n, x in arrays.items()}), arrays)


def refused(case: Case, profile: str = "float32", **outputs: Any) -> dict[str, int]:
    """How many elements of the new state and of what is read are not allowed, judged as a kernel is."""
    kernel = find("delta_step", profile)
    bits = {
        o.name: formats.encode(
            formats.round_to(np.asarray(outputs[o.name], np.float64), kernel.format(o)),
            kernel.format(o),
        )
        for o in kernel.outputs()
    }
    allowed = case_range(kernel, case, prepare=observing(kernel, bits))
    return {name: int(allowed[name].refused(bits[name]).sum()) for name in bits}


# one head: keys 4 wide, values 2 wide; q / sqrt(4)
STEP: dict[str, Any] = {
    "q": [[2.0, 0.0, 4.0, -2.0]],
    "k": [[0.5, -0.5, 0.5, 0.5]],
    "v": [[[10.0, -3.0]]],
    "beta": [[0.5]],
    "g": [[0.0]],
    "state": [[[[4.0, 1.0], [2.0, 0.0], [-6.0, 8.0], [0.0, 2.0]]]],
}
# S^T k = (-2, 5.5); d = (6, -4.25)
NEW = [[[[7.0, -1.125], [-1.0, 2.125], [-3.0, 5.875], [3.0, -0.125]]]]
READ = [[[-2.0, 10.75]]]


def test_a_step_by_hand() -> None:
    assert refused(case_of(**STEP), new_state=NEW, out=READ) == {"out": 0, "new_state": 0}
    # read before the update, not scaled, and scaled twice
    for wrong in ([[[-8.0, 15.0]]], [[[-4.0, 21.5]]], [[[-1.0, 5.375]]]):
        assert refused(case_of(**STEP), new_state=NEW, out=wrong)["out"] == 2


def test_the_rate_scales_the_whole_correction() -> None:
    kept = np.asarray(STEP["state"])
    k = np.asarray(STEP["k"])[0, :, None]
    for d in ([[12.0, -8.5]], [[7.0, -7.0]], [[5.0, -1.5]]):
        # beta dropped, on v alone, and without the memory
        wrong = kept + k @ np.asarray(d)
        assert refused(case_of(**STEP), new_state=wrong, out=READ)["new_state"] > 0


def test_the_decay_comes_before_the_memory() -> None:
    g = float(np.float32(np.log(0.5)))
    half = np.exp(g)
    case = case_of(**{**STEP, "g": [[g]]})
    state, k, v = (
        np.asarray(STEP["state"])[0, 0],
        np.asarray(STEP["k"])[0],
        np.asarray([10.0, -3.0]),
    )
    q = np.asarray(STEP["q"])[0] / 2.0

    def step(kept: F8, memory: F8, after: float = 1.0) -> dict[str, int]:
        new = (kept + np.outer(k, 0.5 * (v - memory))) * after
        return refused(case, new_state=new[None, None], out=(q @ new)[None, None])

    assert step(state * half, (state * half).T @ k) == {"out": 0, "new_state": 0}
    for wrong in (
        step(state, state.T @ k),
        step(state * half, state.T @ k),
        step(state, state.T @ k, after=half),
    ):
        assert wrong["new_state"] > 0
        # what is read follows from the state that was given
        assert wrong["out"] == 0


def test_a_state_in_bf16_loses_small_steps() -> None:
    # 1,024 equal steps of rate 2^-10 move a state of 1 to 3 - 2 (1 - 2^-10)^1024 = 2.2646; in bf16 it stays
    kernel = find("delta_step", "float32")
    state = torch.tensor([[[[1.0], [0.0]]]])
    rounded = state.clone()
    q = k = torch.tensor([[1.0, 0.0]])
    v, beta, g = torch.full((1, 1, 1), 3.0), torch.full((1, 1), 2.0**-10), torch.zeros(1, 1)
    wrong = right = 0
    for _ in range(1024):
        case = case_of(q=q, k=k, v=v, beta=beta, g=g, state=rounded)
        _, new_state = delta_step_torch(q, k, v, beta, g, rounded)
        stored = new_state.bfloat16().float()
        allowed = case_range(kernel, case)["new_state"]
        wrong += int(allowed.refused(stored.numpy().view(np.uint32)).sum())
        right += int(allowed.refused(new_state.numpy().view(np.uint32)).sum())
        rounded = stored
        state = delta_step_torch(q, k, v, beta, g, state)[1]
        if wrong > 4:
            break
    assert right == 0
    assert wrong > 4
    assert rounded[0, 0, 0, 0] == 1.0


def test_1024_steps_in_fp32() -> None:
    state = torch.tensor([[[[1.0], [0.0]]]])
    q = k = torch.tensor([[1.0, 0.0]])
    v, beta, g = torch.full((1, 1, 1), 3.0), torch.full((1, 1), 2.0**-10), torch.zeros(1, 1)
    for _ in range(1024):
        _, state = delta_step_torch(q, k, v, beta, g, state)
    assert state.flatten().tolist() == pytest.approx([2.26460052, 0.0], rel=1e-4)


def test_a_state_is_no_stage_that_may_be_left_out() -> None:
    operand = next(
        o for o in contract.kernels.delta_step.delta_step.operands if o.name == "new_state"
    )
    assert operand.observed
    assert not operand.stage


def test_transformers_recurrent_rule_gives_the_same_step() -> None:
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.nn.functional.normalize(torch.randn(2, 32, generator=generator), dim=-1) for _ in "qk"
    )
    v, state = (
        torch.randn(2, 2, 16, generator=generator),
        torch.randn(2, 2, 32, 16, generator=generator),
    )
    beta, g = torch.rand(2, 2, generator=generator), -torch.rand(2, 2, generator=generator)
    theirs, their_state = module.torch_recurrent_gated_delta_rule(
        q[None, None], k[None, None], v.reshape(1, 1, 4, 16), g.reshape(1, 1, 4), beta.reshape(1, 1, 4),
        initial_state=state.reshape(1, 4, 32, 16), output_final_state=True,
    )  # fmt: skip
    out, new_state = delta_step_torch(q, k, v, beta, g, state)
    case = case_of(q=q, k=k, v=v, beta=beta, g=g, state=state)
    for one, other in (
        (out, new_state),
        (theirs.reshape(2, 2, 16), their_state.reshape(2, 2, 32, 16)),
    ):
        assert refused(case, new_state=other.numpy(), out=one.numpy()) == {"out": 0, "new_state": 0}
