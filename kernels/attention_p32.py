"""Attention whose weights keep 16 bits as two bf16 halves: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, formats, implementation, output, register, tensor
from contract.kernels.attention import (
    BLOCK,
    FREEDOMS,
    LOG,
    by_head,
    live_keys,
    sizes,
    starts,
    widths,
)
from contract.kernels.attention import exact_rows as rows_of_attention
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.attention_p32 import attention_p32 as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: those of causal attention. Two keys have scores of one small product each.

    Their weights are then nearly equal, and cancel where they meet v of opposite signs: what is left of the sum shows
    its 16th bit, which the orders of longer sums hide.
    """
    values = dict(rows_of_attention(rng, shape, scalars, {"mask": "causal"}))
    if shape["keys"] == 2:
        k, shared = values["k"], np.arange(shape["heads"]) // (shape["heads"] // shape["kv"])
        apart = (k[1] - k[0])[shared] * scalars["scale"]
        place = np.abs(values["q"]).argmax(-1)
        single = telling(rng, np.take_along_axis(apart, place.T, -1).T)
        single = np.where(values["q"].any(-1), single, 0.0)
        np.put_along_axis(values["q"], place[..., None], single[..., None], -1)
        v = np.copysign(np.exp2(rng.integers(-6, 2, shape["d"])), values["v"])
        v[1, :, ::2] = -v[0, :, ::2]
        both = rng.random(shape["queries"]) < 0.7
        values |= {"v": v, "position": np.maximum(values["position"], both)}
    return {**values, "first": values["start"], "last": values["position"]}


def telling(rng: Any, apart: Any) -> Any:
    """Elements of q, each the first of 512 whose result tells the halves from another rounding of the lower weight.

    The other one is none, a truncated low half, or a truncated high one, head by head. `apart` is what the two keys'
    scores differ by where it is 1. Numerators 2^-19 further give the same result: their range, 20 u wide, then holds
    one value.
    """
    q = full_significands(rng, (512, *apart.shape)) * np.exp2(-rng.integers(13, 18, (512, 1, 1)))
    e = np.exp(-np.abs(q * apart))
    high, cut = formats.round_to(e, "bf16"), formats.round_to(e, "bf16", "toward_zero")
    right = high + formats.round_to(e - high, "bf16")
    others = (e, high + formats.round_to(e - high, "bf16", "toward_zero"),
              cut + formats.round_to(e - cut, "bf16"))  # fmt: skip
    other = np.choose(np.arange(apart.shape[-1]) % 3, others)
    low, near, far = (
        formats.round_to((1 - p + step) / (1 + e), "bf16")
        for p, step in ((right, -(2.0**-19)), (right, 2.0**-19), (other, 0.0))
    )
    first = ((low == near) & (near != far)).argmax(0)
    return np.take_along_axis(q, first[None], 0)[0]


attention_p32 = register(
    Contract(
        name="attention_p32",
        family="attention",
        summary="attention over a stretch of keys a query, weights to 16 bits as two bf16 halves",
        reference=reference,
        operands=(
            tensor("q", "queries heads d", finite=True),
            tensor("k", "keys kv d", finite=True),
            tensor("v", "keys kv d", finite=True),
            tensor("first", "queries", "int32", below="keys", typical=starts),
            tensor("last", "queries", "int32", below="keys"),
            output("out", "queries heads d"),
            output("lse", "queries heads", "fp32", stage=True),
        ),
        scalars=(Scalar("scale", (1.0, 0.125)),),
        profiles=(
            Profile(
                "halves",
                {"high": "bf16", "low": "bf16", "out": "bf16", "lse": "fp32"},
                users="Gemma 4's window and global attention on CUDA, where Metal keeps weights in fp32",
                vacuous=LOG,
            ),
        ),
        row_dims=("queries",),
        # Gemma 4's sliding layers: heads of 256, two to a key head, a window of 1024 keys and the block before it; its
        # global layers: heads of 512, eight to a key head
        shapes=(sizes(2, 2, 1, 1040, 256), sizes(2, 8, 1, 40, 512)),
        awkward=(sizes(1, 4, 2, 7, 8), sizes(3, 3, 1, 257, 72), sizes(5, 4, 2, 33, 16)),
        stress=(
            {**widths(2, 1, 8, 16), "queries": 32},
            {**widths(4, 2, 5, 16), "queries": 32},
            {**widths(2, 2, 24, 16), "queries": 16},
            {**widths(1, 1, 260, 8), "queries": 8},
        ),
        exact=exact_rows,
        exact_shapes=(
            {**widths(4, 2, 2, 4), "queries": 256},
            widths(4, 2, 8, 16),
            {**widths(2, 1, 258, 16), "queries": 24},
            {**widths(4, 2, 64, 32), "queries": 24},
        ),
        freedoms={name: FREEDOMS[name] for name in ("scores", "softmax_av")},
        rules={"heads is a multiple of kv": lambda s: s["heads"] % s["kv"] == 0},
    )
)


@implementation("attention_p32", name="torch")
def attention_p32_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    *,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chunks of 256 keys, each against its own maximum, merged in order."""
    return in_chunks(q, k, v, live_keys(k.shape[0], first, last, None, None, None), scale)


#: Maximum (rows, 1), sum of exponentials (rows, 1), and weighted values (rows, d) of some keys.
Part = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]


def in_chunks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    live: torch.Tensor,
    scale: float,
    size: int = BLOCK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp over these live keys, in chunks of `size`."""
    heads = q.shape[1]
    keys, values, rows = by_head(k, heads), by_head(v, heads).float(), q.transpose(0, 1).float()
    state: Part | None = None
    for at in range(0, k.shape[0], size):
        here = slice(at, at + size)
        scores = (rows @ keys[:, here].transpose(1, 2).float()).mul_(scale)
        part = chunk(scores.masked_fill_(~live[:, here], -torch.inf), values[:, here])
        state = part if state is None else merged(state, part)
    assert state is not None
    return ended(state, q.dtype)


def chunk(scores: torch.Tensor, values: torch.Tensor) -> Part:
    """One chunk, its weights in two halves of bf16."""
    top = scores.amax(-1, keepdim=True)
    e = torch.exp(scores - finite(top))
    high = e.bfloat16().float()
    low = (e - high).bfloat16().float()
    return top, e.sum(-1, keepdim=True), high @ values + low @ values


def finite(top: torch.Tensor) -> torch.Tensor:
    """A maximum to subtract: without a live key it is -inf, and -inf - -inf no weight."""
    return top.masked_fill(top == -torch.inf, 0.0)


def merged(a: Part, b: Part) -> Part:
    """Two parts over the larger maximum; one without a live key leaves the other as it is."""
    top = torch.maximum(a[0], b[0])
    left, right = (torch.exp(x[0] - finite(top)) for x in (a, b))
    return top, a[1] * left + b[1] * right, a[2] * left + b[2] * right


def ended(state: Part, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(queries, heads, d) and the natural log-sum-exp (queries, heads)."""
    top, total, out = state
    none = total == 0
    out = (out / total.masked_fill(none, 1.0)).masked_fill(none, 0.0).to(dtype)
    lse = (top + total.log()).squeeze(-1)
    return out.transpose(0, 1).contiguous(), lse.transpose(0, 1).contiguous()
