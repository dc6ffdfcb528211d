"""A chunk of the delta rule: it is its steps, its padding is inert, and each stage is judged from the ones before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contract import formats
from contract.case import Case, find, make_case, shape_from
from contract.errors import CaseError
from contract.inputs import typical_case
from contract.kernels.delta_chunk64 import STAGES, chunk, delta_chunk64_torch, padded
from contract.kernels.delta_step import delta_step_torch
from contract.ranges import case_range, plain_run
from contract.readings.base import Change
from contract.readings.sample import SampleReading
from contract.stages import observing

F8 = NDArray[np.float64]
KERNEL = find("delta_chunk64", "once")


def refused(case: Case, outputs: Mapping[str, Any]) -> dict[str, int]:
    """How many elements of what is shown are not allowed."""
    bits = {
        o.name: formats.encode(
            formats.round_to(np.asarray(outputs[o.name], np.float64), KERNEL.format(o)),
            KERNEL.format(o),
        )
        for o in KERNEL.outputs()
        if o.name in outputs
    }
    allowed = case_range(KERNEL, case, prepare=observing(KERNEL, bits))
    return {name: int(allowed[name].refused(bits[name]).sum()) for name in bits}


def numbers(outputs: Mapping[str, torch.Tensor]) -> dict[str, F8]:
    return {name: x.double().numpy() for name, x in outputs.items()}


def case_of(operands: Mapping[str, torch.Tensor]) -> Case:
    values = {name: x.double().numpy() for name, x in operands.items()}
    return make_case(KERNEL, shape_from(KERNEL, {n: x.shape for n, x in values.items()}), values)


def drawn(steps: int, *, correlated: bool = False) -> dict[str, torch.Tensor]:
    """One key head with two value heads, keys 16 wide, values 8."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.nn.functional.normalize
    q, k = (torch.randn(1, steps, 16, generator=generator) for _ in "qk")
    return {
        "q": normal(q, dim=-1),
        "k": normal(k + (2.0 if correlated else 0.0), dim=-1),
        "v": torch.randn(1, 2, steps, 8, generator=generator).bfloat16(),
        "beta": torch.rand(1, 2, steps, generator=generator).bfloat16(),
        "g": -0.1 * torch.rand(1, 2, steps, generator=generator),
        "state": torch.randn(1, 2, 16, 8, generator=generator),
    }


# six steps without decay, keys that are not orthogonal
K = [[1, 0, 0], [0.5, 0.5, 0.5], [0, 1, 0], [0.25, -0.5, 0.75], [1, 0, 0], [0, 0, 1]]
V = [[1, 2], [3, -4], [5, 6], [-7, 8], [9, 10], [11, -12]]
BETA = [1, 0.5, 1, 0.75, 1, 0.25]
OUT = [[0, 0], [1.625, 0.75], [-1.625, -3.75], [7.015625, 1.59375], [6.8085938, 8.4765625], [9, 10]]
STATE = [[9, 10], [7.015625, 1.59375], [0.9511719, 1.0195312]]


def six(first: int, last: int, state: torch.Tensor) -> dict[str, torch.Tensor]:
    """Some of the six steps; queries are the keys from the last to the first, times the root they are divided by."""
    return {
        "q": torch.tensor(K[::-1])[None, first:last] * 3**0.5,
        "k": torch.tensor(K)[None, first:last],
        "v": torch.tensor(V, dtype=torch.float32)[None, None, first:last].bfloat16(),
        "beta": torch.tensor(BETA)[None, None, first:last].bfloat16(),
        "g": torch.zeros(1, 1, last - first),
        "state": state,
    }


def test_a_chunk_of_any_width_is_its_steps() -> None:
    zeros = torch.zeros(1, 1, 3, 2)
    whole = delta_chunk64_torch(**six(0, 6, zeros))
    first = delta_chunk64_torch(**six(0, 3, zeros))
    second = delta_chunk64_torch(**six(3, 6, first["new_state"]))
    assert whole["out"][0, 0].float().numpy() == pytest.approx(np.array(OUT), rel=2.0**-8)
    for state in (whole["new_state"], second["new_state"]):
        assert state[0, 0].numpy() == pytest.approx(np.array(STATE), abs=1e-6)
    assert set(refused(case_of(six(0, 6, zeros)), numbers(whole)).values()) == {0}
    # without the correction beta v k^T is added up
    added = np.einsum("s,sk,sv->kv", np.array(BETA), np.array(K), np.array(V))
    assert (
        refused(case_of(six(0, 6, zeros)), {**numbers(whole), "new_state": added[None, None]})[
            "new_state"
        ]
        == 6
    )


def test_steps_give_the_chunk_and_padding_is_inert() -> None:
    given = drawn(17)
    state, outs = given["state"], []
    for t in range(17):
        out, state = delta_step_torch(
            given["q"][:, t], given["k"][:, t], given["v"][:, :, t].float(),
            given["beta"][:, :, t].float(), given["g"][:, :, t], state,
        )  # fmt: skip
        outs.append(out)
    found = delta_chunk64_torch(**given)
    assert (found["new_state"] - state).abs().max() < 1e-5
    assert (found["out"].float() - torch.stack(outs, 2)).abs().max() < 2.0**-8
    # what a padded step would do if it were one
    rows = padded(*(given[n].float() for n in ("q", "k", "v", "beta", "g")))
    for index, value in ((3, 0.5), (4, -0.5)):
        wrong = [x.clone() for x in rows]
        wrong[index][..., 17:] = value
        if index == 3:
            wrong[1][..., 17:, :] = 0.25
        spoilt = chunk(wrong, given["state"], 17, torch.bfloat16)
        counts = refused(case_of(given), numbers(spoilt))
        assert counts.pop("new_state") > 0
        assert set(counts.values()) == {0}


def test_a_wrong_stage_is_refused_at_the_stage_and_its_own_consequences_are_not() -> None:
    given = drawn(32)
    found = delta_chunk64_torch(**given)
    assert set(refused(case_of(given), numbers(found)).values()) == {0}
    new_values = found["new_values"].bfloat16().float()
    correction = new_values - found["decayed_keys"] @ given["state"]
    counts = refused(
        case_of(given), numbers({**found, "new_values": new_values, "correction": correction})
    )
    assert counts["new_values"] > 100
    assert counts["correction"] == counts["decayed_keys"] == counts["cumulative"] == 0
    # they belong to the right correction
    assert counts["new_state"] > 0


def test_a_bf16_inverse_is_seen_behind_correlated_keys() -> None:
    given = drawn(64, correlated=True)
    found = delta_chunk64_torch(**given)
    case = case_of(given)
    assert set(refused(case, numbers(found)).values()) == {0}
    k, beta = given["k"][:, None], given["beta"].float()[..., None]
    total = given["g"].cumsum(-1)[..., None]
    decay = (total - total.mT).tril().exp().tril()
    system = (((k * beta) @ k.mT) * decay).tril(-1) + torch.eye(64)
    inverse = torch.linalg.inv(system).bfloat16().float()
    new_values = inverse @ (given["v"].float() * beta)
    counts = refused(case, numbers({**found, "new_values": new_values}))
    assert counts["new_values"] > 900


def test_stages_may_be_kept_and_the_end_is_still_judged() -> None:
    given = drawn(8)
    found = delta_chunk64_torch(**given)
    end = numbers({name: found[name] for name in ("out", "new_state")})
    assert refused(case_of(given), end) == {"out": 0, "new_state": 0}
    unread = delta_chunk64_torch(**{**given, "state": torch.zeros_like(given["state"])})
    end = numbers({name: unread[name] for name in ("out", "new_state")})
    assert refused(case_of(given), end)["out"] > 50


@pytest.mark.parametrize("point", STAGES)
def test_no_stage_tells_a_truncated_store(point: str) -> None:
    # the reason that the profile gives for calling these points vacuous
    case = typical_case(KERNEL, {"heads": 2, "group": 2, "steps": 17, "dk": 8, "dv": 5}, 3)

    def truncated() -> SampleReading:
        change = Change(modes={point: "toward_zero"})
        return SampleReading(KERNEL.contract, KERNEL.profile, change=change)

    out = plain_run(KERNEL, case, truncated, {})
    allowed = case_range(KERNEL, case, prepare=observing(KERNEL, out))
    assert not any(allowed[name].refused(bits).any() for name, bits in out.items())


def test_a_chunk_has_at_most_64_steps() -> None:
    with pytest.raises(CaseError, match="at most 64 steps"):
        case_of(drawn(65))


def test_transformers_chunked_rule_is_allowed() -> None:
    module = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
    given = drawn(40)
    flat = {n: given[n].float().reshape(1, 2, 40, -1).transpose(1, 2) for n in ("v", "beta", "g")}
    out, state = module.torch_chunk_gated_delta_rule(
        *(given[n].transpose(0, 1)[None] for n in ("q", "k")), flat["v"], flat["g"][..., 0],
        flat["beta"][..., 0], initial_state=given["state"].reshape(1, 2, 16, 8), output_final_state=True,
    )  # fmt: skip
    end = {"out": out.transpose(1, 2).reshape(1, 2, 40, 8), "new_state": state.reshape(1, 2, 16, 8)}
    assert refused(case_of(given), numbers(end)) == {"out": 0, "new_state": 0}
