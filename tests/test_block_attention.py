"""Attention of drafted blocks on literal rows: what lies ahead, the window over context and block, unused slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from literal import refused

import contract.controls.block_attention
from contract.kernels.block_attention import block_attention_torch

assert contract.controls.block_attention.NAME == "block_attention"
NAME = "block_attention"
NAN, INF = np.nan, np.inf


def column(values: Any) -> Any:
    """(1, n, 1, 1) of one value a key or query."""
    return np.asarray(values, np.float64).reshape(1, -1, 1, 1)


def equal(context: list[float], own: list[float], length: int, **more: Any) -> dict[str, Any]:
    """A block of one head whose scores are all 0; values of the context's slots and of the block."""
    return {
        "q": column(np.zeros(len(own))),
        "k": column(np.where(np.arange(len(context)) < length, 1.0, NAN)),
        "v": column(context),
        "own_k": column(np.ones(len(own))),
        "own_v": column(own),
        "length": np.array([length]),
        **more,
    }


def test_a_full_block_sees_all_of_its_context_and_of_itself() -> None:
    inputs = equal([1.0, 2.0], [4.0, 9.0], 2)
    assert refused(NAME, inputs, 4.0) == {"out": 0}
    # causal in the block, itself alone, the context alone
    third = 7 / 3
    for wrong in ([third, 4.0], [6.5, 6.5], [1.5, 1.5]):
        assert refused(NAME, inputs, column(wrong))["out"] > 0


def test_a_sliding_block_is_causal_and_its_window_reaches_into_the_context() -> None:
    """Window 3: the first row sees two of the context, the second one, the third none."""
    inputs = equal([1.0, 2.0, 4.0], [8.0, 16.0, 32.0], 3, window=3)
    right = column([14 / 3, 28 / 3, 56 / 3])
    assert refused(NAME, inputs, right, mask="sliding") == {"out": 0}
    wide, narrow = column([15 / 4, 30 / 4, 60 / 4]), column([6.0, 12.0, 24.0])
    ahead = column([62 / 5, 60 / 4, 56 / 3])
    for wrong, count in ((wide, 3), (narrow, 3), (ahead, 2)):
        assert refused(NAME, inputs, wrong, mask="sliding") == {"out": count}


def test_positions_follow_the_used_slots_not_all_of_them() -> None:
    """One used slot of five: a window of 2 still reaches it."""
    inputs = equal([2.0, NAN, INF, -INF, 3e38], [4.0], 1, window=2)
    assert refused(NAME, inputs, 3.0, mask="sliding") == {"out": 0}
    assert refused(NAME, inputs, 4.0, mask="sliding") == {"out": 1}


@pytest.mark.parametrize("profile", ["running", "eager"])
def test_what_unused_slots_hold_never_matters(profile: str) -> None:
    inputs = equal([2.0, NAN, INF], [4.0, 6.0], 1)
    # thirds, rounded or not, of 2 + 4 + 6
    assert refused(NAME, inputs, 4.0, profile=profile) == {"out": 0}
    assert refused(NAME, inputs, NAN, profile=profile) == {"out": 2}


def test_an_empty_context_leaves_the_block() -> None:
    inputs = equal([NAN, NAN], [4.0, 6.0], 0)
    assert refused(NAME, inputs, 5.0) == {"out": 0}
    assert refused(NAME, inputs, NAN) == {"out": 2}


def test_neighbouring_query_heads_share_a_key_head() -> None:
    own = np.stack([np.full((2, 1), 1.0), np.full((2, 1), 10.0)], 1)[None]
    inputs = {
        "q": np.zeros((1, 2, 4, 1)),
        "k": np.ones((1, 1, 2, 1)),
        "v": np.zeros((1, 1, 2, 1)),
        "own_k": np.ones((1, 2, 2, 1)),
        "own_v": own,
        "length": np.zeros(1),
    }
    right = np.broadcast_to(np.array([1.0, 1.0, 10.0, 10.0]).reshape(1, 1, 4, 1), (1, 2, 4, 1))
    assert refused(NAME, inputs, right) == {"out": 0}
    assert refused(NAME, inputs, right[:, :, [0, 2, 1, 3]]) == {"out": 4}


@pytest.mark.parametrize("window", [None, 5, 300])
def test_torch_agrees_with_plain_softmax(window: int | None) -> None:
    """Two sequences of different lengths, over the edge of a chunk."""
    made = torch.Generator().manual_seed(4)
    q, own_k, own_v = (torch.randn(2, 3, n, 8, generator=made).bfloat16() for n in (2, 1, 1))
    k, v = (torch.randn(2, 290, 1, 8, generator=made).bfloat16() for _ in range(2))
    length = torch.tensor([7, 290]).int()
    limit = None if window is None else torch.tensor(window).int()
    out = block_attention_torch(q, k, v, own_k, own_v, length, limit, scale=0.25, profile="running")
    for row, n in enumerate([7, 290]):
        keys, values = (torch.cat([x[row, :n, 0], y[row, :, 0]]).double() for x, y in ((k, own_k), (v, own_v)))  # fmt: skip
        behind = n + torch.arange(3)[:, None] - torch.arange(n + 3)
        dead = (behind < 0) | (behind >= window) if window else torch.zeros(3, n + 3).bool()
        scores = torch.einsum("bhd,kd->hbk", q[row].double(), keys) * 0.25
        weights = scores.masked_fill(dead, -torch.inf).softmax(-1)
        wanted = torch.einsum("hbk,kd->bhd", weights, values)
        # weights and result are rounded to 8 bits each
        torch.testing.assert_close(out[row].double(), wanted, rtol=2.0**-7, atol=2.0**-7)
