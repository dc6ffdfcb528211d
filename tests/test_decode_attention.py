"""Decode attention on literal rows: unused slots, the empty cache, the log-sum-exp."""

from __future__ import annotations

import numpy as np
from one_output import refused

import contract.kernels.decode_attention
from contract import formats
from contract.case import find, make_case, shape_from
from contract.ranges import case_range

assert contract.kernels.decode_attention.decode_attention.name == "decode_attention"
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


def test_the_declared_vacuous_rounding_is_none() -> None:
    """The log-sum-exp's own width is more than an ulp."""
    kernel = find("decode_attention")
    rng = np.random.default_rng(1)
    inputs = {"q": rng.standard_normal((8, 1, 4)), "k": rng.standard_normal((8, 6, 1, 4)),
              "v": rng.standard_normal((8, 6, 1, 4)), "length": np.full(8, 6)}  # fmt: skip
    case = make_case(kernel, shape_from(kernel, {k: x.shape for k, x in inputs.items()}), inputs)
    lse = case_range(kernel, case)["lse"]
    assert (lse.hi - lse.lo >= 2).all()
