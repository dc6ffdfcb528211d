"""The probe's attention: literal weights, torch's module, rows that the exact gate lives on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from contract import formats
from contract.case import find, make_case
from contract.inputs import exact_cases
from contract.kernels.map_pool import map_pool_torch
from contract.ranges import case_range

KERNEL = find("map_pool", "each_step")


def allowed(q: Any, k: Any, v: Any, scale: float = 1.0) -> Any:
    """The range of a case."""
    rows, heads, tokens, d = np.shape(k)
    shape = {"rows": rows, "heads": heads, "tokens": tokens, "d": d}
    case = make_case(KERNEL, shape, {"q": q, "k": k, "v": v}, {"scale": scale})
    return case_range(KERNEL, case)["out"]


def refused(out: Any, values: Any) -> int:
    values = np.broadcast_to(np.asarray(values, np.float64), out.lo.shape)
    return int(out.refused(formats.encode(formats.round_to(values, "bf16"), "bf16")).sum())


def test_what_may_be_a_nan_may_also_be_a_number() -> None:
    """A probe below the normal numbers may be flushed, and 0 times an infinite key is NaN; else the key weighs 0."""
    q = np.array([[-(2.0**-126)]])
    _, k, v = one_head([0.0, np.inf, 0.0], [1.0, 5.0, 0.0])
    out = allowed(q, k, v, 0.25)
    assert refused(out, 0.5) == 0
    assert refused(out, np.nan) == 0
    assert refused(out, 0.0) == 1


def one_head(scores: list[float], values: list[float]) -> tuple[Any, Any, Any]:
    """A probe of one element, 1, that meets keys of these scores."""
    k = np.reshape(scores, (1, 1, -1, 1)).astype(float)
    v = np.reshape(values, (1, 1, -1, 1)).astype(float)
    return np.ones((1, 1)), k, v


def test_equal_scores_give_the_mean() -> None:
    out = allowed(*one_head([3.0] * 4, [1.0, 2.0, 4.0, 9.0]))
    assert (refused(out, 4.0), refused(out, 4.03125)) == (0, 1)


def test_a_far_higher_score_gives_its_value() -> None:
    out = allowed(*one_head([-100.0, 100.0, 0.0], [1.0, 2.0, 4.0]))
    assert (refused(out, 2.0), refused(out, 2.015625)) == (0, 1)


def test_the_weights_are_rounded() -> None:
    # 1 / (1 + e) = 0.26894 -> 0.26953125: 26.953 -> 27, and 26.894 -> 26.875 where it is not rounded
    out = allowed(*one_head([0.0, 1.0], [100.0, 0.0]))
    assert (refused(out, 27.0), refused(out, 26.875)) == (0, 1)


def test_the_scale_is_multiplied_into_the_probe() -> None:
    # 1.0078125 * 0.375 = 0.37793 -> 0.37890625 (a tie); times 8.0625 = 3.0549 -> 3.0625; 1 / (1 + exp) = 183.0 / 4096
    # 1.0078125 * 8.0625 = 8.1255 -> 8.125 first, times 0.375 -> 3.046875; 185.8 / 4096
    _, k, v = one_head([0.0, 8.0625], [256.0, 0.0])
    out = allowed(np.full((1, 1), 1.0078125), k, v, 0.375)
    assert (refused(out, 183 / 16), refused(out, 186 / 16)) == (0, 1)


def rounded(rng: Any, *shape: int) -> Any:
    return formats.round_to(rng.standard_normal(shape), "bf16")


def test_torch_multi_head_attention_is_allowed() -> None:
    """Its projections are taken out by identities: bf16 products with them are exact."""
    rng = np.random.default_rng(14)
    heads, d, tokens = 2, 8, 11
    probe, keys = rounded(rng, 1, 1, heads * d), rounded(rng, 3, tokens, heads * d)
    module = torch.nn.MultiheadAttention(heads * d, heads, batch_first=True).bfloat16()
    eye = torch.eye(heads * d)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([eye, eye, eye]))
        module.in_proj_bias.zero_()
        module.out_proj.weight.copy_(eye)
        module.out_proj.bias.zero_()
        tensors = (torch.from_numpy(x).bfloat16() for x in (probe.repeat(3, 0), keys))
        query, memory = tensors
        theirs = module(query, memory, memory)[0][:, 0].reshape(3, heads, d)
    split = keys.reshape(3, tokens, heads, d).transpose(0, 2, 1, 3)
    out = allowed(probe.reshape(heads, d), split, split, math.sqrt(1.0 / d))
    got = theirs.double().numpy()
    assert refused(out, got) == 0
    assert refused(out, got[::-1]) > 20
    # the scale after the product: another rounding
    assert refused(out, split.mean(2)) > 20


def test_most_exact_candidates_are_proven_and_the_torch_kernel_gives_them() -> None:
    found, candidates = exact_cases(KERNEL, 0)
    assert sum(case.shape["rows"] for case, _ in found) > candidates / 2
    for case, ranges in found:
        given = {
            name: torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)
            for name, bits in case.operands.items()
        }
        given_out = map_pool_torch(given["q"], given["k"], given["v"], scale=case.scalars["scale"])
        out = given_out.view(torch.int16).numpy().view(np.uint16)
        assert not ranges[0]["out"].refused(out).any()
        assert ranges[0]["out"].refused(out + 1).mean() > 0.9
