"""Attention contracts on literal rows: the right values are allowed, those of known kinds of fault are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_output import refused

from contract import formats
from contract.case import find, make_case, shape_from
from contract.kernels.attention import attention, attention_sdpa
from contract.ranges import case_range

assert attention.name == "attention"
NAN, INF = np.nan, np.inf


def column(values: Any) -> Any:
    """(keys, 1, 1) of one value a key."""
    return np.asarray(values, np.float64).reshape(-1, 1, 1)


def equal(keys: int, own: list[int], **more: Any) -> dict[str, Any]:
    """Queries at `own` whose scores are all 0, over keys with v = 2^key."""
    return {
        "q": np.zeros((len(own), 1, 1)),
        "k": np.ones((keys, 1, 1)),
        "v": column(2.0 ** np.arange(keys)),
        "start": np.zeros(len(own)),
        "position": np.array(own),
        **more,
    }


def test_the_last_query_sees_every_key_where_fewer_queries_than_keys_come_in() -> None:
    kernel, inputs = find("attention", "eager"), equal(5, [3, 4])
    # weights are rounded before they meet v
    last = 31 * float(formats.round_to(np.array(1 / 5), "bf16"))
    assert refused(kernel, inputs, column([3.75, last])) == 0
    assert refused(kernel, inputs, column([1.0, 1.5])) == 2
    assert refused(kernel, inputs, column([last, last])) == 1


def test_a_window_of_three_is_the_own_key_and_two_before_it() -> None:
    inputs = equal(6, list(range(6)), window=3, cap=1.5)
    kernel = find("attention", "eager_capped", {"mask": "sliding", "capped": "yes"})
    thirds = float(formats.round_to(np.array(1 / 3), "bf16"))
    right = [1, 1.5, *(thirds * (7 * 2.0**k) for k in range(4))]
    assert refused(kernel, inputs, column(right)) == 0
    one_less = [1, 1.5, 3, 6, 12, 24]
    assert refused(kernel, inputs, column(one_less)) == 4
    quarter = [1, 1.5, 7 * thirds, 3.75, 7.5, 15]
    assert refused(kernel, inputs, column(quarter)) == 3


def test_an_image_sees_all_of_itself_that_is_in_the_window() -> None:
    kernel = find("attention", "eager", {"mask": "image_block"})
    inputs = equal(6, [2], window=2, block=np.array([0, 1, 1, 1, 0, 0]))
    # keys 1 .. 3: itself, the one before, and the image's next one
    third = float(formats.round_to(np.array(1 / 3), "bf16"))
    assert refused(kernel, inputs, 14 * third) == 0
    assert refused(kernel, inputs, 3.0) == 1


def test_a_prefix_is_seen_by_all_of_it() -> None:
    kernel = find("attention", "flash", {"mask": "prefix"})
    inputs = equal(4, [0, 3], prefix=np.array([2, 2]))
    assert refused(kernel, inputs, column([1.5, 3.75])) == 0
    assert refused(kernel, inputs, column([1.0, 3.75])) == 1


def test_neighbouring_query_heads_share_a_key_head() -> None:
    inputs = {
        "q": np.zeros((1, 4, 2)),
        "k": np.ones((2, 2, 2)),
        "v": np.stack([np.full((2, 2), 1.0), np.full((2, 2), 10.0)], 1),
        "start": np.zeros(1),
    }
    kernel = find("attention", "flash", {"mask": "full"})
    right = np.array([[[1, 1], [1, 1], [10, 10], [10, 10]]])
    assert refused(kernel, inputs, right) == 0
    assert refused(kernel, inputs, right[:, [0, 2, 1, 3]]) == 4
    assert refused(kernel, inputs, np.ones((1, 4, 2))) == 4


def test_a_dead_key_weighs_nothing_however_low_the_live_scores_are() -> None:
    kernel = find("attention", "eager")
    inputs = {
        "q": np.ones((1, 1, 1)),
        "k": column([-29952.0, 0.0]),
        "v": column([2.0, 50.0]),
        "start": np.zeros(1),
        "position": np.zeros(1),
    }
    assert refused(kernel, inputs, 2.0) == 0
    # a fill of -1e4, and no mask
    assert refused(kernel, inputs, 50.0) == 1
    assert refused(kernel, inputs, 0.0) == 1


@pytest.mark.parametrize(("empty", "value"), [("zeros", 0.0), ("nan", NAN), ("mean", 26.0)])
def test_a_row_without_a_key_is_the_stated_convention(empty: str, value: float) -> None:
    inputs = equal(2, [0], start=np.ones(1))
    inputs["v"] = column([2.0, 50.0])
    for kernel in (find("attention", "eager"), find("attention", "flash", {"mask": "prefix"})):
        given = inputs if kernel.profile.name == "eager" else {**inputs, "prefix": np.zeros(1)}
        for other in (0.0, NAN, 26.0, 50.0):
            same = value == other or (np.isnan(value) and np.isnan(other))
            assert refused(kernel, given, other, empty=empty) == (not same), (kernel.id, other)
    lse = refused(
        find("attention", "flash", {"mask": "prefix"}),
        {**inputs, "prefix": np.zeros(1)},
        INF,
        name="lse",
    )
    assert lse == 1


def test_the_cap_comes_before_the_mask() -> None:
    kernel = find("attention", "eager_capped", {"mask": "sliding", "capped": "yes"})
    inputs = {
        "q": np.ones((1, 1, 1)),
        "k": column([0.0, 24.0, 40.0]),
        "v": column([1.0, 100.0, 10000.0]),
        "start": np.zeros(1),
        "position": np.zeros(1),
        "window": 3,
        "cap": 1.0,
    }
    assert refused(kernel, inputs, 1.0) == 0
    for weights in (np.exp([0.0, -1.0, -1.0]), np.exp(np.tanh([0.0, 3.0, 5.0]))):
        assert refused(kernel, inputs, weights / weights.sum() @ [1.0, 100.0, 10000.0]) == 1


FP32 = {"mask": "causal", "capped": "no"}


def test_fp32_attention_rounds_nothing_between() -> None:
    kernel = find("attention", "float32", FP32)
    scores, v = np.array([0.5, 1.0, 2.0]), np.array([1.0, 3.0, 5.0])
    inputs = {
        "q": np.full((1, 1, 1), 8.0),
        "k": np.array([*scores, 9.0]).reshape(4, 1, 1),
        "v": np.array([*v, 100.0]).reshape(4, 1, 1),
        "start": np.array([0]),
        "position": np.array([2]),
    }
    weights, scale = np.exp(scores) / np.exp(scores).sum(), {"scale": 0.125}
    assert refused(kernel, inputs, weights @ v, scale) == 0
    for fmt in ("bf16", "fp16"):
        assert refused(kernel, inputs, formats.round_to(weights, fmt) @ v, scale) == 1
    assert refused(kernel, inputs, weights[:2] @ v[:2] / weights[:2].sum(), scale) == 1
    assert refused(kernel, {**inputs, "start": np.array([3])}, v.sum() / 4 + 25, scale) == 0


def test_what_an_fp32_output_hides_is_more_than_an_ulp() -> None:
    """Why a truncated store and where the division stands are declared vacuous."""
    kernel, rng = find("attention", "float32", FP32), np.random.default_rng(1)
    inputs = {
        "q": rng.standard_normal((8, 1, 4)),
        "k": rng.standard_normal((6, 1, 4)),
        "v": rng.standard_normal((6, 1, 4)),
        "start": np.zeros(8),
        "position": np.full(8, 5),
    }
    case = make_case(kernel, shape_from(kernel, {k: x.shape for k, x in inputs.items()}), inputs)
    out = case_range(kernel, case)["out"]
    assert (out.hi - out.lo >= 2).all()


def test_torchs_fp32_attention_lies_in_the_range() -> None:
    """scaled_dot_product_attention on the CPU, on ordinary rows."""
    torch.manual_seed(1)
    q, k, v = torch.randn(5, 4, 16), torch.randn(5, 2, 16), torch.randn(5, 2, 16)
    query, key, value = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )[0].transpose(0, 1)
    inputs = {
        "q": q.numpy(),
        "k": k.numpy(),
        "v": v.numpy(),
        "start": np.zeros(5),
        "position": np.arange(5),
    }
    kernel = find("attention", "float32", FP32)
    assert refused(kernel, inputs, out.double().numpy(), {"scale": 0.25}) == 0
    wrong = out.bfloat16().double().numpy()
    assert refused(kernel, inputs, wrong, {"scale": 0.25}) > 200


def fused(profile: str, mask: str = "full") -> Any:
    return find("attention", profile, {"mask": mask})


def torchs(inputs: dict[str, Any], scale: float) -> Any:
    """What the implementation of the profile sdpa gives for these numbers."""
    given = {
        name: torch.tensor(x).int() if name in ("start", "position", "prefix") else torch.tensor(x).bfloat16()
        for name, x in inputs.items()
    }  # fmt: skip
    return attention_sdpa(**given, scale=scale).double().numpy()


def test_a_fast_exponential_is_not_one_at_zero() -> None:
    """Eight equal weights: the mean 0.25098 is a tie, which a sum below 8 lifts over."""
    inputs = {
        "q": np.zeros((1, 1, 1)),
        "k": np.ones((8, 1, 1)),
        "v": column([2.0, 1 / 128, 0, 0, 0, 0, 0, 0]),
        "start": np.zeros(1),
    }
    for value, right in ((0.25, (0, 0)), (0.251953125, (0, 1)), (0.25390625, (1, 1))):
        assert (refused(fused("sdpa"), inputs, value), refused(fused("flash"), inputs, value)) == right  # fmt: skip
    assert refused(fused("sdpa"), inputs, torchs(inputs, 0.125)) == 0


@pytest.mark.parametrize("keys", [257, 513])
def test_the_last_key_of_a_block_has_a_maximum_of_its_own(keys: int) -> None:
    """Scores -3.4375 and 0: in a block of its own the first has weight 1, which is rescaled and not rounded again."""
    v = np.zeros(keys)
    v[-2] = 1.0
    k = np.zeros(keys)
    k[-2] = -27.5
    inputs = {"q": np.ones((1, 1, 1)), "k": column(k), "v": column(v), "start": np.array([keys - 2])}  # fmt: skip
    weight = np.exp(-3.4375)
    rounded = float(formats.round_to(np.array(weight), "bf16"))
    values = {True: weight / (1 + weight), False: rounded / (1 + weight)}
    apart, together = (float(formats.round_to(np.array(values[x]), "bf16")) for x in (True, False))
    assert apart != together
    for profile, block in (("flash", 256), ("sdpa", 512)):
        for value, split in ((apart, True), (together, False)):
            wrong = refused(fused(profile), inputs, value, {"scale": 0.125})
            assert wrong == (split != (keys > block)), (profile, value)
    assert refused(fused("sdpa"), inputs, torchs(inputs, 0.125), {"scale": 0.125}) == 0


def test_what_torch_makes_of_a_score_that_overflows() -> None:
    """NaN where it is masked, as -inf is added to it; NaN or zeros where it is live."""
    big, keys = 2.0**120, 16
    k = np.zeros(keys)
    k[0] = big
    inputs = {
        "q": np.full((1, 1, 1), big),
        "k": column(k),
        "v": column(np.arange(1.0, keys + 1)),
        "start": np.array([15]),
    }
    for value, right in ((16.0, (0, 0)), (NAN, (0, 1)), (0.0, (1, 1)), (1.0, (1, 1))):
        found = refused(fused("sdpa"), inputs, value), refused(fused("flash"), inputs, value)
        assert found == right, value
    kernel = fused("sdpa")
    for start in (15, 0):
        inputs["start"] = np.array([start])
        out = torchs(inputs, 0.125)
        assert refused(kernel, inputs, out) == 0
        assert np.isnan(out).all() or (start == 0 and (out == 0).all())
    # a NaN among the live scores is not left out
    pair = {"q": np.full((1, 1, 2), big), "k": np.zeros((8, 1, 2)), "v": np.ones((8, 1, 2)), "start": np.zeros(1)}  # fmt: skip
    pair["k"][3, 0] = big, -big
    assert np.isnan(torchs(pair, 0.125)).all()


@pytest.mark.parametrize(("queries", "keys", "heads", "kv"), [(800, 520, 1, 1), (200, 1030, 2, 2), (8, 1100, 4, 2)])  # fmt: skip
def test_torchs_kernel_lies_in_the_range_whatever_splits_it_takes(
    queries: int, keys: int, heads: int, kv: int
) -> None:
    """From 192 and 768 queries on it takes more of them at a time, which moves no block of keys."""
    rng = np.random.default_rng(queries)
    shapes = {"q": (queries, heads, 4), "k": (keys, kv, 4), "v": (keys, kv, 4)}
    inputs: dict[str, Any] = {
        name: formats.round_to(rng.standard_normal(shape) * 3, "bf16")
        for name, shape in shapes.items()
    }
    inputs["start"] = rng.integers(0, keys // 2, queries)
    inputs["position"] = rng.integers(0, keys, queries)
    inputs["prefix"] = rng.integers(0, keys, queries)
    scale = {"scale": 0.125}
    assert refused(fused("sdpa", "prefix"), inputs, torchs(inputs, 0.125), scale) == 0
    del inputs["position"], inputs["prefix"]
    assert refused(fused("sdpa"), inputs, torchs(inputs, 0.125), scale) == 0


def test_torchs_exponential_is_as_exact_as_the_freedom_says() -> None:
    """Sixteen keys, one of score 0: the logarithm of the sum shows the exponentials that were summed."""
    x = torch.linspace(-8, 0, 4001).bfloat16()
    k = torch.ones(16)
    k[0] = 0.0
    q, k, v = (
        x.view(1, 1, -1, 1),
        k.bfloat16().view(1, 1, 16, 1),
        torch.zeros(1, 1, 16, 1).bfloat16(),
    )
    _, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)
    error = np.expm1(lse[0].double().numpy().ravel() - np.log1p(15 * np.exp(x.double().numpy())))
    assert np.abs(error).max() < 2.0**-13
