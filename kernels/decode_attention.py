"""Attention of one query a sequence over its own cache: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.attention import BLOCK, FREEDOMS, LOG, online
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.decode_attention import decode_attention as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


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
        ),
        row_dims=("rows",),
        # 16 query heads to a key head and one past four chunks (Gemma 4's global layers have d 512, 16:1); PaliGemma's
        # 1028 slots of 256, 8:1, with two of its query heads
        shapes=(sizes(2, 16, 1, 257, 64), sizes(1, 2, 1, 1028, 256), sizes(1, 8, 1, 40, 512)),
        awkward=(sizes(1, 1, 1, 1, 64), sizes(3, 4, 2, 7, 8), sizes(5, 3, 3, 33, 72)),
        stress=(
            {**sizes(32, 2, 1, 8, 16)},
            {**sizes(32, 4, 2, 5, 16)},
            {**sizes(16, 2, 1, 260, 8)},
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


@implementation("decode_attention", name="torch")
def decode_attention_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: torch.Tensor, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chunks of 256 slots, merged in order; the query heads of a key head are one matrix."""
    out, lse = chunked(q, k, v, length, scale, BLOCK)
    return out, lse


def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    length: torch.Tensor,
    scale: float,
    size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in chunks of `size` slots; unused ones are never multiplied."""
    rows, heads, d = q.shape
    query = q.reshape(rows, k.shape[2], -1, d).float()
    used = torch.arange(k.shape[1]) < length[:, None]
    parts = []
    # slots past the longest sequence are not read at all
    for at in range(0, max(1, int(length.max())), size):
        here = slice(at, at + size)
        live = used[:, here, None, None]
        keys, values = (x[:, here].masked_fill(~live, 0.0).transpose(1, 2) for x in (k, v))
        scores = query @ keys.transpose(2, 3).float() * scale
        parts.append((scores, values, used[:, None, None, here]))
    out, lse = online(parts)
    return out.reshape(rows, heads, d).to(q.dtype), lse.reshape(rows, heads)
