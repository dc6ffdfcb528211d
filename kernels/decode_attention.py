"""Attention of one query a sequence over its own cache: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.attention import BLOCK, FREEDOMS, LOG, NO_ULP, NOT_ROUNDED
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.decode_attention import decode_attention as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

#: The lowest finite fp32 number: -inf less -inf is no weight.
LOWEST = -(2.0**128 - 2.0**104)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: q = 0 and a power of two of used slots, or one used slot, or (few slots) scores of one product whose
    weights are rounded. Unused slots hold NaN, infinities and the largest values.

    Beyond 256 slots the used ones that weigh anything lie around the edge of two chunks.
    """
    rows, heads, kv, slots, d = (shape[n] for n in ("rows", "heads", "kv", "slots", "d"))
    few, chunks = slots <= 16, slots > BLOCK
    spread = rng.random(rows) < (0.8 if few or chunks else 0.0)
    length = 2 ** rng.integers(0, int(np.log2(slots)) + 1, rows)
    length = np.where(
        spread, rng.integers(BLOCK + 1, slots + 1, rows) if chunks else length, length
    )
    length = np.where(spread & few, np.minimum(length, 4), length)
    q = np.zeros((rows, heads, d))
    place = rng.integers(0, d, (rows, heads, 1))
    single = np.where(spread[:, None, None], full_significands(rng, place.shape) / 32.0, 0.0)
    np.put_along_axis(q, place, single, -1)
    k = full_significands(rng, (rows, slots, kv, d)) / 64.0
    v = full_significands(rng, (rows, slots, kv, d))
    if few or chunks:
        v = np.copysign(np.exp2(rng.integers(-7, 2, v.shape)), v)
    if chunks:
        # all but the slots beside an edge are far below: their weights are 0 even after a flush
        edge = np.where(rng.random(rows) < 0.6, BLOCK, BLOCK // 4)[:, None]
        query = np.take_along_axis(q, place, -1)[:, :: heads // kv, :]
        slot = np.arange(slots)
        far = ((slot < edge - 2) | (slot >= edge + 2))[:, :, None, None]
        low = -np.sign(query)[:, None] * 2048.0
        k = np.where(far & spread[:, None, None, None], np.broadcast_to(low, k.shape), k)
        q = np.repeat(q[:, :: heads // kv], heads // kv, axis=1)
    unused = np.arange(slots) >= length[:, None]
    poison = rng.choice([np.nan, np.inf, -np.inf, 3.0e38], (rows, slots, kv, d))
    k, v = (np.where(unused[:, :, None, None], poison, x) for x in (k, v))
    return {"q": q, "k": k, "v": v, "length": length}


def sizes(rows: int, heads: int, kv: int, slots: int, d: int) -> dict[str, int]:
    return {"rows": rows, "heads": heads, "kv": kv, "slots": slots, "d": d}


decode_attention = register(
    Contract(
        name="decode_attention",
        family="attention",
        summary="one query a sequence over its cache, in chunks of 256 slots",
        reference=reference,
        operands=(
            tensor("q", "rows heads d"),
            tensor("k", "rows slots kv d"),
            tensor("v", "rows slots kv d"),
            tensor("length", "rows", "int32", below="slots+1"),
            output("out", "rows heads d"),
            output("lse", "rows heads", "fp32", stage=True),
        ),
        scalars=(Scalar("scale", (0.125, 72**-0.5)),),
        options={
            "gauge": ("running256", "final"),
            "sums": ("unrounded", "rounded"),
            "empty": ("zeros", "nan", "mean"),
        },
        profiles=(
            Profile(
                "running",
                {"p": "bf16", "out": "bf16", "lse": "fp32"},
                options={"gauge": "running256", "sums": "unrounded", "empty": "zeros"},
                users="decode kernels with bf16 weights",
                vacuous=LOG,
            ),
            Profile(
                "float32",
                {"p": None, "out": "fp32", "lse": "fp32"},
                dict.fromkeys(("q", "k", "v", "out"), "fp32"),
                options={"gauge": "final", "sums": "unrounded", "empty": "zeros"},
                users="decoding in fp32",
                vacuous={
                    **LOG,
                    "truncate-out": NO_ULP,
                    "gauge": NOT_ROUNDED,
                    "sums": NOT_ROUNDED,
                },
            ),
        ),
        row_dims=("rows",),
        # 16 query heads to a key head and one past four chunks (Gemma 4's global layers have d 512, 16:1); PaliGemma's
        # 1028 slots of 256, 8:1, with two of its query heads
        shapes=(sizes(2, 16, 1, 257, 64), sizes(1, 2, 1, 1028, 256), sizes(1, 8, 1, 40, 512)),
        awkward=(sizes(1, 1, 1, 1, 64), sizes(3, 4, 2, 7, 8), sizes(5, 3, 3, 33, 72)),
        stress=(
            # a third of the lengths lies beyond one block of 256
            {**sizes(16, 2, 1, 400, 8)},
            {**sizes(32, 2, 1, 8, 16)},
            {**sizes(32, 4, 2, 5, 16)},
            {**sizes(16, 2, 2, 24, 16)},
        ),
        exact=exact_rows,
        exact_shapes=(
            sizes(64, 4, 2, 8, 16),
            sizes(24, 2, 1, 260, 16),
            sizes(24, 4, 2, 64, 32),
        ),
        freedoms={name: FREEDOMS[name] for name in ("scores", "softmax_av")},
        rules={"heads is a multiple of kv": lambda s: s["heads"] % s["kv"] == 0},
    )
)


@implementation("decode_attention", name="torch", profile=("running", "float32"))
def decode_attention_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chunks of 256 slots at once, one where no weight is rounded; the query heads of a key head are one matrix."""
    return chunked(q, k, v, length, scale, BLOCK if v.dtype != torch.float32 else k.shape[1])


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    length: torch.Tensor,
    scale: float,
    size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in chunks of `size` slots; slots past the longest sequence are not read at all.

    A weight is rounded to v's dtype against the maximum of its chunk and those before it, and rescaled to the last one.
    """
    rows, heads, d = q.shape
    lengths = length.tolist()
    used = max(1, *lengths)
    query = q.reshape(rows * k.shape[2], -1, d).float()
    keys, values = by_key_head(k, used), by_key_head(v, used)
    scores = torch.bmm(query, keys.float().transpose(1, 2)).mul_(scale)
    if even := min(lengths) == used:
        values = values.float()
    else:
        live = torch.arange(used) < length.repeat_interleave(k.shape[2])[:, None]
        scores.masked_fill_(~live[:, None], -torch.inf)
        # 0 times what an unused slot holds may be NaN
        values = values.float().masked_fill(~live[..., None], 0.0)
    weights, top, total = exponentials(scores, size, v.dtype)
    out = torch.bmm(weights, values).div_(total)
    if not even:
        out.view(rows, -1).masked_fill_((length == 0)[:, None], 0.0)
    lse = total.log().add_(top)
    return out.view(rows, heads, d).to(q.dtype), lse.view(rows, heads)


def by_key_head(x: torch.Tensor, used: int) -> torch.Tensor:
    """The first slots as (rows kv, used, d); of one sequence a view, and in one step."""
    if len(x) > 1:
        return x[:, :used].transpose(1, 2).flatten(0, 1)
    _, slot, head, unit = x.stride()
    return x.as_strided((x.shape[2], used, x.shape[3]), (head, slot, unit))


def exponentials(
    scores: torch.Tensor, size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(..., slots) scores, overwritten -> weights, their maximum and their unrounded sum, the last two (..., 1)."""
    slots = scores.shape[-1]
    if slots <= size:
        # a score of -inf has weight 0 beside nothing else, too
        top = scores.amax(-1, keepdim=True).clamp_(min=LOWEST)
        weights = scores.sub_(top).exp_()
        return weights.to(dtype).float(), top, weights.sum(-1, keepdim=True)
    padded = torch.nn.functional.pad(scores, (0, -slots % size), value=-torch.inf)
    padded = padded.view(*scores.shape[:-1], -1, size)
    tops = padded.amax(-1, keepdim=True).clamp_(min=LOWEST).cummax(-2)[0]
    top = tops[..., -1:, :]
    factor = torch.exp(tops - top)
    weights = padded.sub_(tops).exp_()
    total = (weights.sum(-1, keepdim=True) * factor).sum(-2)
    rescaled = (weights.to(dtype) * factor).flatten(-2)
    return rescaled[..., :slots], top.squeeze(-2), total
