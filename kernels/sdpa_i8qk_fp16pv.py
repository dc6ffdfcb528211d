"""Attention with int8 queries and keys, and softmax and values in fp16: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.attention import FREEDOMS, by_head, live_keys, sizes, widths
from contract.kernels.data import full_significands
from contract.kernels.gemm_i8 import step_sizes
from contract.lazy import lazy
from contract.references.sdpa_i8qk_fp16pv import sdpa_i8qk_fp16pv as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: scores of 0 over a power of two of live keys, or (few keys) up to four live keys whose scores are one
    or two products each, which every rounding must meet; some of their v are 0, so that small weights show.

    In half of the latter the sums of codes pass 2^15 and 2^16, and in wide heads 2^18, before they come back to those
    products: the first columns of q are the same twice, those of k each other's opposites.
    """
    queries, heads, kv, keys, d = (shape[n] for n in ("queries", "heads", "kv", "keys", "d"))
    few = keys <= 16
    spread = rng.random(queries) < (0.8 if few else 0.2)
    count = 2 ** rng.integers(0, int(np.log2(keys)) + 1, queries)
    count = np.where(spread, rng.integers(2, 5, queries), count)
    # the last live key is the query's own, or the prefix's
    causal = rng.random(queries) < 0.5
    before = rng.integers(0, count)
    own, tail = d // 3, d - 2 * (d // 3)
    q, k = np.zeros((queries, heads, d)), rng.integers(-127, 128, (keys, kv, d))
    q[..., :own] = q[..., own : 2 * own] = rng.integers(121, 129, (queries, heads, own)) - 1
    q[rng.random((queries, heads)) < 0.5] = 0.0
    k[..., :own] = rng.integers(121, 128, (keys, kv, own))
    k[..., own : 2 * own] = -k[..., :own]
    place = d - 1 - rng.integers(0, tail, (queries, heads, 2))
    np.put_along_axis(q, place, rng.integers(-128, 128, place.shape), -1)
    q[~spread] = 0.0
    v = full_significands(rng, (keys, kv, d), 11) / 64.0
    if few:
        v = np.copysign(np.exp2(rng.integers(-7, 2, v.shape)), v) * (rng.random(v.shape) < 0.75)
    return {
        "q": q,
        "k": k,
        "v": v,
        "q_scale": np.asarray(2.0**-4),
        # products of codes are multiples of 2^-11 below 8
        "k_scale": np.asarray(2.0**-7 / scalars["scale"]),
        "position": np.where(causal, count - 1, before),
        "prefix": np.where(causal, rng.integers(0, count + 1), count),
    }


POINTS = ("scores", "shifted", "exp", "total", "p", "out")

sdpa_i8qk_fp16pv = register(
    Contract(
        name="sdpa_i8qk_fp16pv",
        family="attention",
        summary="attention of int8 codes with an exact int32 sum, softmax and values in fp16, prefix-LM mask",
        reference=reference,
        operands=(
            tensor("q", "queries heads d", "int8"),
            tensor("k", "keys kv d", "int8"),
            tensor("v", "keys kv d", "fp16", finite=True),
            tensor("q_scale", "", "fp32", positive=True, typical=step_sizes),
            tensor("k_scale", "", "fp32", positive=True, typical=step_sizes),
            tensor("position", "queries", "int32", below="keys"),
            tensor("prefix", "queries", "int32", below="keys+1"),
            output("out", "queries heads d", "fp16"),
        ),
        scalars=(Scalar("scale", (0.0625, 0.125)),),
        profiles=(
            Profile(
                "fp32_softmax",
                {**dict.fromkeys(POINTS, "fp16"), "shifted": None, "exp": None, "total": None},
                users="PaliGemma INT8; torch.softmax of fp16 scores, whose steps are fp32",
                keeps_subnormals=True,
            ),
            Profile(
                "each_op",
                dict.fromkeys(POINTS, "fp16"),
                users="processors whose elementwise arithmetic is fp16",
                keeps_subnormals=True,
            ),
        ),
        row_dims=("queries",),
        # PaliGemma's 1028 keys of 256, eight query heads to one key head, at some of its rows, and more of short prompts
        shapes=(sizes(4, 8, 1, 1028, 256), sizes(16, 8, 1, 68, 256)),
        awkward=(sizes(1, 4, 2, 7, 8), sizes(3, 3, 1, 257, 72), sizes(5, 4, 2, 33, 16)),
        stress=(widths(2, 1, 8, 16), widths(4, 2, 5, 16), widths(2, 2, 24, 16)),
        exact=exact_rows,
        exact_shapes=(
            widths(4, 2, 8, 24),
            {**widths(4, 2, 64, 48), "queries": 24},
            {**widths(2, 1, 1028, 8), "queries": 12},
        ),
        freedoms={name: FREEDOMS[name] for name in ("exp", "softmax", "average")},
        rules={
            "heads is a multiple of kv": lambda s: s["heads"] % s["kv"] == 0,
            "d is below 2^17, so that no int32 sum overflows": lambda s: s["d"] < 2**17,
        },
    )
)


@implementation("sdpa_i8qk_fp16pv", name="torch", profile=("fp32_softmax", "each_op"))
def sdpa_i8qk_fp16pv_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    position: torch.Tensor,
    prefix: torch.Tensor,
    *,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """torch._int_mm of all query heads of a key head at once, softmax in fp32 or step by step in fp16."""
    live = live_keys(k.shape[0], None, position, prefix, None, None)
    scores = scores_of(q, k, q_scale * k_scale * scale).masked_fill(~live, -torch.inf)
    weights = fp16_steps(scores) if profile == "each_op" else softmax(scores)
    return average(weights, v)


def scores_of(q: torch.Tensor, k: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """(heads, queries, keys) fp16: exact sums of codes times the value of one."""
    queries, _, d = q.shape
    groups = q.reshape(queries, k.shape[1], -1, d).transpose(0, 1).reshape(k.shape[1], -1, d)
    total = torch.stack([torch._int_mm(a, b.T) for a, b in zip(groups, k.unbind(1), strict=True)])
    # (kv, queries, heads / kv, keys)
    total = total.reshape(k.shape[1], queries, -1, k.shape[0]).transpose(1, 2).flatten(0, 1)
    return (total * step).half()


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Weights of fp16 scores, computed in fp32 and rounded once."""
    return torch.softmax(scores, dim=-1, dtype=torch.float32).half()


def fp16_steps(scores: torch.Tensor) -> torch.Tensor:
    """Weights of fp16 scores, every step rounded; sums are fp32 until they end."""
    e = (scores - scores.amax(-1, keepdim=True)).float().exp().half()
    return e / e.float().sum(-1, keepdim=True).half()


def average(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(queries, heads, d) fp16: weights (heads, queries, keys) times v, summed in fp32."""
    out = weights.float() @ by_head(v, weights.shape[0]).float()
    return out.half().transpose(0, 1).contiguous()
