"""Decode attention on literal rows: unused slots, the empty cache, the log-sum-exp."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_output import refused

from contract import formats
from contract.case import find, make_case, shape_from
from contract.kernels.decode_attention import decode_attention, decode_attention_torch
from contract.ranges import case_range

assert decode_attention.name == "decode_attention"
NAN, INF = np.nan, np.inf


def test_unused_slots_never_reach_the_output() -> None:
    kernel = find("decode_attention")
    scores, v = np.array([0.5, 1.0, 2.0]), np.array([1.0, 3.0, 5.0])
    inputs = {
        "q": np.full((1, 1, 1), 8.0),
        "k": np.array([*scores, NAN, INF]).reshape(1, 5, 1, 1),
        "v": np.array([*v, NAN, -INF]).reshape(1, 5, 1, 1),
        "length": np.array([3]),
    }
    weights = np.exp(scores)
    # against the maximum they are rounded before they meet v
    rounded = formats.round_to(np.exp(scores - 2.0), "bf16")
    right, scale = rounded @ v / np.exp(scores - 2.0).sum(), {"scale": 0.125}
    assert refused(kernel, inputs, right, scale) == 0
    assert refused(kernel, inputs, np.log(weights.sum()), scale, name="lse") == 0
    for wrong in (NAN, 4.5, 5.0, 0.0):
        assert refused(kernel, inputs, wrong, scale) == 1
    for wrong in (np.log2(weights.sum()), NAN, INF):
        assert refused(kernel, inputs, wrong, scale, name="lse") == 1


def test_an_empty_cache_gives_zeros_and_minus_infinity() -> None:
    kernel = find("decode_attention")
    inputs = {
        "q": np.ones((1, 1, 1)),
        "k": np.full((1, 2, 1, 1), NAN),
        "v": np.full((1, 2, 1, 1), NAN),
        "length": np.array([0]),
    }
    assert refused(kernel, inputs, 0.0) == 0
    assert refused(kernel, inputs, NAN) == 1
    assert refused(kernel, inputs, -INF, name="lse") == 0
    assert refused(kernel, inputs, 0.0, name="lse") == 1


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("profile", ["running", "float32"])
def test_a_score_of_minus_infinity_has_weight_zero_times_its_value(
    profile: str, value: float
) -> None:
    inputs = {
        "q": np.full((1, 1, 1), -1.0),
        "k": np.array([0.0, INF, 0.0]).reshape(1, 3, 1, 1),
        "v": np.array([2.0, value, 2.0]).reshape(1, 3, 1, 1),
        "length": np.array([3]),
    }
    kernel = find("decode_attention", profile)
    # a kernel may multiply, or leave out a key of weight 0
    for right in (2.0, NAN):
        assert refused(kernel, inputs, right) == 0
    for wrong in (1.0, 4.0, INF):
        assert refused(kernel, inputs, wrong) == 1


def test_the_declared_vacuous_rounding_is_none() -> None:
    """The log-sum-exp's own width is more than an ulp."""
    kernel = find("decode_attention")
    rng = np.random.default_rng(1)
    inputs = {"q": rng.standard_normal((8, 1, 4)), "k": rng.standard_normal((8, 6, 1, 4)),
              "v": rng.standard_normal((8, 6, 1, 4)), "length": np.full(8, 6)}  # fmt: skip
    case = make_case(kernel, shape_from(kernel, {k: x.shape for k, x in inputs.items()}), inputs)
    lse = case_range(kernel, case)["lse"]
    assert (lse.hi - lse.lo >= 2).all()


def test_fp32_weights_are_not_rounded() -> None:
    kernel = find("decode_attention", "float32")
    scores, v = np.array([0.5, 1.0, 2.0]), np.array([1.0, 3.0, 5.0])
    inputs = {
        "q": np.full((1, 1, 1), 8.0),
        "k": np.array([*scores, NAN, INF]).reshape(1, 5, 1, 1),
        "v": np.array([*v, NAN, -INF]).reshape(1, 5, 1, 1),
        "length": np.array([3]),
    }
    weights, scale = np.exp(scores - 2.0), {"scale": 0.125}
    right, rounded = weights @ v, formats.round_to(weights, "bf16") @ v
    assert refused(kernel, inputs, right / weights.sum(), scale) == 0
    for wrong in (rounded / weights.sum(), NAN, 4.5):
        assert refused(kernel, inputs, wrong, scale) == 1


def test_what_an_fp32_output_hides_is_more_than_an_ulp() -> None:
    """Why a truncated store is declared vacuous: but for exact averages, ranges hold several values."""
    kernel = find("decode_attention", "float32")
    rng = np.random.default_rng(2)
    inputs = {"q": rng.standard_normal((8, 1, 4)), "k": rng.standard_normal((8, 6, 1, 4)),
              "v": rng.standard_normal((8, 6, 1, 4)), "length": np.full(8, 6)}  # fmt: skip
    case = make_case(kernel, shape_from(kernel, {k: x.shape for k, x in inputs.items()}), inputs)
    out = case_range(kernel, case)["out"]
    assert (out.hi - out.lo >= 2).all()


@pytest.mark.parametrize("slots", [1, 200, 256, 257, 700])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_caches_of_one_length_and_of_several_agree(slots: int, dtype: torch.dtype) -> None:
    torch.manual_seed(slots)
    q, k, v = (
        torch.randn(*size).to(dtype) for size in ((2, 6, 16), (2, 710, 2, 16), (2, 710, 2, 16))
    )
    k[:, slots:], v[:, slots:] = torch.nan, torch.inf
    both = torch.tensor([slots, slots])
    out, lse = decode_attention_torch(q, k, v, both, scale=0.25)
    mixed, _ = decode_attention_torch(q, k, v, torch.tensor([slots, slots // 2]), scale=0.25)
    near = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(mixed[0], out[0], rtol=near, atol=near / 10)
    keys, values = (x[:, :slots].double().repeat_interleave(3, 2) for x in (k, v))
    scores = torch.einsum("rhd,rshd->rhs", q.double(), keys) * 0.25
    wide = torch.einsum("rhs,rshd->rhd", scores.softmax(-1), values)
    torch.testing.assert_close(
        out.double(), wide, rtol=2e-2, atol=1e-3 if dtype != torch.float32 else 1e-6
    )
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
