"""Attention of int8 codes on literal rows: exact sums, fp16 roundings, diffuse weights, masks and heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from literal import refused

from contract import formats
from contract.case import find
from contract.inputs import exact_cases
from contract.kernels.sdpa_i8qk_fp16pv import sdpa_i8qk_fp16pv, sdpa_i8qk_fp16pv_torch

NAME = "sdpa_i8qk_fp16pv"
BOTH = ("fp32_softmax", "each_op")


def fp16(x: Any) -> Any:
    return formats.round_to(np.asarray(x, np.float64), "fp16")


def rows(q: Any, k: Any, v: Any, **more: Any) -> dict[str, Any]:
    """Queries (queries, d), keys (keys, d) and values (keys,) of one head; all keys are seen unless said otherwise."""
    queries, keys = len(q), len(k)
    return {
        "q": np.asarray(q).reshape(queries, 1, -1),
        "k": np.asarray(k).reshape(keys, 1, -1),
        "v": np.repeat(np.asarray(v, np.float64).reshape(keys, 1, 1), np.shape(q)[-1], -1),
        "q_scale": 2.0**-6,
        "k_scale": 1.0,
        "position": np.full(queries, keys - 1),
        "prefix": np.full(queries, keys),
        **more,
    }


@pytest.mark.parametrize("profile", BOTH)
def test_sums_of_codes_pass_sixteen_bits_and_come_back(profile: str) -> None:
    """3 * 127^2 = 48387 is more than int16 holds; less 47375, the score is 1012 / 64 / 16, and the other key's is 0."""
    inputs = rows([[127, 127, 127, 127, 127]], [[127, 127, 127, -127, -127], [0] * 5], [1.0, 0.0])
    inputs["k"][0, 0] = [127, 127, 127, -127, -119]
    inputs["k"][0, 0, 2] = -127
    score = fp16(127.0 * (127 + 127 - 127 - 127 - 119) / 64 / 16)
    e = fp16(np.exp(score)) if profile == "each_op" else np.exp(score)
    total = fp16(1 + e) if profile == "each_op" else 1 + e
    right = fp16(e / total)
    assert refused(NAME, inputs, right, profile=profile) == {"out": 0}
    # saturated at 32767 after the third product
    low = np.exp((32767.0 - 127 * (3 * 127 + 119)) / 64 / 16)
    assert refused(NAME, inputs, low / (1 + low), profile=profile) == {"out": 5}


def test_scores_are_rounded_to_fp16() -> None:
    """127 * 127 / 1024 = 15.7509765625 lies between 15.75 and 15.7578125; -14 and -15 stand beside it."""
    inputs = rows([[127, 1]], [[127, 0], [126, 0]], [1.0, 0.0])
    scores = np.array([127.0 * 127.0, 127.0 * 126.0]) / 1024.0
    exact, rounded = (1 / (1 + np.exp(x[1] - x[0])) for x in (scores, fp16(scores)))
    assert fp16(exact) != fp16(rounded)
    assert refused(NAME, inputs, rounded) == {"out": 0}
    assert refused(NAME, inputs, exact) == {"out": 2}


@pytest.mark.parametrize("profile", BOTH)
def test_a_thousand_equal_weights_are_kept(profile: str) -> None:
    """Each is 2^-10, which codes of 1 / 127 do not hold."""
    inputs = rows([[0, 0]], np.ones((1024, 2)), np.resize([1.0, 4.0], 1024))
    assert refused(NAME, inputs, 2.5, profile=profile) == {"out": 0}
    assert refused(NAME, inputs, 0.0, profile=profile) == {"out": 2}


def test_subnormal_weights_are_kept() -> None:
    """exp(-12) = 6.1e-6 lies below 2^-14: in fp16 it is 103 times 2^-24."""
    inputs = rows([[96]], [[0], [-128]], [0.0, 16384.0])
    e = np.exp(-12.0)
    assert fp16(e / (1 + e)) == 103 * 2.0**-24
    assert refused(NAME, inputs, fp16(e / (1 + e)) * 16384) == {"out": 0}
    assert refused(NAME, inputs, e / (1 + e) * 16384) == {"out": 1}
    assert refused(NAME, inputs, 0.0) == {"out": 1}


def test_each_op_rounds_the_sum_of_exponentials() -> None:
    """1 + 1 + exp(-7.5) = 2.00055: in fp16 that is 2."""
    inputs = rows([[60]], [[0], [0], [-128]], [1.0, 0.0, 0.0])
    assert refused(NAME, inputs, 0.5, profile="each_op") == {"out": 0}
    assert refused(NAME, inputs, 0.499755859375, profile="each_op") == {"out": 1}
    assert refused(NAME, inputs, 0.499755859375) == {"out": 0}
    assert refused(NAME, inputs, 0.5) == {"out": 1}


def test_a_prefix_is_seen_by_all_of_it_and_the_suffix_is_causal() -> None:
    inputs = rows(np.zeros((4, 2)), np.ones((4, 2)), [1.0, 2.0, 4.0, 9.0])
    inputs |= {"position": np.arange(4), "prefix": np.full(4, 2)}
    third = fp16(1 / 3)
    right = np.array([1.5, 1.5, 7 * third, 4.0])
    column = np.repeat(right.reshape(4, 1, 1), 2, -1)
    assert refused(NAME, inputs, column) == {"out": 0}
    causal, full = column.copy(), np.full_like(column, 4.0)
    causal[0] = 1.0
    assert refused(NAME, inputs, causal) == {"out": 2}
    assert refused(NAME, inputs, full) == {"out": 6}


def test_eight_query_heads_share_a_key_head() -> None:
    inputs = rows(np.zeros((1, 2)), np.ones((2, 2)), [0.0, 0.0])
    inputs["q"] = np.zeros((1, 4, 2))
    inputs["k"] = np.ones((2, 2, 2))
    inputs["v"] = np.stack([np.full((2, 2), 1.0), np.full((2, 2), 10.0)], 1)
    right = np.array([[[1, 1], [1, 1], [10, 10], [10, 10]]])
    assert refused(NAME, inputs, right) == {"out": 0}
    assert refused(NAME, inputs, right[:, [0, 2, 1, 3]]) == {"out": 4}


def test_a_score_beyond_fp16_makes_its_row_nan() -> None:
    inputs = rows([[127]], [[127], [0]], [1.0, 2.0], q_scale=128.0)
    assert refused(NAME, inputs, np.nan) == {"out": 0}
    assert refused(NAME, inputs, 1.0) == {"out": 1}


def test_exact_rows_pass_the_accumulators_of_other_kernels() -> None:
    """Sums of codes reach beyond int16 and fp16 and end small; weights reach fp16's subnormals and a thousand keys."""
    kernel = find(NAME)
    cases = [case for case, _ in exact_cases(kernel, 0)[0]]
    assert [case.shape["keys"] for case in cases] == [8, 64, 1028]
    passed = 0
    for case in cases:
        values = {o.name: case.value(kernel, o) for o in kernel.inputs()}
        q, k, position, prefix = (values[name] for name in ("q", "k", "position", "prefix"))
        shared = np.arange(q.shape[1]) // (q.shape[1] // k.shape[1])
        running = np.cumsum(q[:, None] * k[None][:, :, shared], axis=-1)
        passed += int((np.abs(running).max(-1) > 65536).sum())
        live = np.maximum(position + 1, prefix)
        assert (np.abs(running[..., -1]) <= 2 * 128**2).all()
    assert passed > 100
    assert live.max() == 1024


def test_torch_agrees_with_plain_arithmetic() -> None:
    """Random codes, all steps in float64 but for the roundings."""
    rng = np.random.default_rng(3)
    q, k = (rng.integers(-128, 128, shape) for shape in ((5, 4, 32), (9, 2, 32)))
    v = fp16(rng.standard_normal((9, 2, 32)))
    position, prefix = rng.integers(0, 9, 5), np.full(5, 3)
    scales = np.float32(0.01), np.float32(0.02)
    out = sdpa_i8qk_fp16pv_torch(
        torch.tensor(q, dtype=torch.int8), torch.tensor(k, dtype=torch.int8), torch.tensor(v).half(),
        torch.tensor(scales[0]), torch.tensor(scales[1]), torch.tensor(position), torch.tensor(prefix),
        scale=0.125, profile="fp32_softmax",
    )  # fmt: skip
    for h in range(4):
        s = fp16(q[:, h] @ k[:, h // 2].T * float(scales[0] * scales[1] * np.float32(0.125)))
        live = np.arange(9) < np.maximum(position + 1, prefix)[:, None]
        e = np.where(live, np.exp(s - np.where(live, s, -np.inf).max(-1, keepdims=True)), 0.0)
        wanted = fp16(fp16(e / e.sum(-1, keepdims=True)) @ v[:, h // 2])
        # sums and quotients in fp32 may round the other way
        np.testing.assert_allclose(out[:, h].double().numpy(), wanted, rtol=2**-10, atol=2**-20)


def test_sizes_that_cannot_be_are_refused() -> None:
    assert (
        sdpa_i8qk_fp16pv.broken_rule({"heads": 3, "kv": 2, "d": 8}) == "heads is a multiple of kv"
    )
    assert "2^17" in sdpa_i8qk_fp16pv.broken_rule({"heads": 2, "kv": 2, "d": 1 << 17})
