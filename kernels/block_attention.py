"""Attention of a drafted block over its context and itself: contract and torch implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.attention import BLOCK, FREEDOMS, online, windows
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.block_attention import block_attention as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: queries are 0, or have one element, so that scores are one small product; v holds powers of two.

    Unused slots hold NaN, infinities and the largest values. Beyond 256 keys queries are 0.
    """
    rows, block, heads, kv, slots, d = (
        shape[n] for n in ("rows", "block", "heads", "kv", "slots", "d")
    )
    q = np.zeros((rows, block, heads, d))
    place = rng.integers(0, d, (rows, block, heads, 1))
    single = full_significands(rng, place.shape) / 256.0
    short = slots + block <= BLOCK
    np.put_along_axis(
        q, place, np.where(rng.random((rows, 1, 1, 1)) < 0.7, single, 0.0) * short, -1
    )
    k, own_k = (full_significands(rng, (rows, n, kv, d)) / 64.0 for n in (slots, block))
    v, own_v = (
        np.copysign(np.exp2(rng.integers(-3, 2, x.shape)), full_significands(rng, x.shape))
        for x in (k, own_k)
    )
    length = rng.integers(0 if short else slots - 3, slots + 1, rows)
    unused = (np.arange(slots) >= length[:, None])[:, :, None, None]
    poison = rng.choice([np.nan, np.inf, -np.inf, 3.0e38], k.shape)
    return {
        "q": q,
        "k": np.where(unused, poison, k),
        "v": np.where(unused, poison, v),
        "own_k": own_k,
        "own_v": own_v,
        "length": length,
        "window": np.asarray((2 if block > 2 else 4) if short else 200),
    }


def sizes(rows: int, block: int, heads: int, kv: int, slots: int, d: int) -> dict[str, int]:
    return {"rows": rows, "block": block, "heads": heads, "kv": kv, "slots": slots, "d": d}


block_attention = register(
    Contract(
        name="block_attention",
        family="attention",
        summary="a drafted block over its context and itself, causal in a window or whole",
        reference=reference,
        operands=(
            tensor("q", "rows block heads d", finite=True),
            tensor("k", "rows slots kv d"),
            tensor("v", "rows slots kv d"),
            tensor("own_k", "rows block kv d", finite=True),
            tensor("own_v", "rows block kv d", finite=True),
            tensor("length", "rows", "int32", below="slots+1"),
            tensor(
                "window",
                "",
                "int32",
                below=1 << 20,
                least=1,
                typical=windows,
                when={"mask": ("sliding",)},
            ),
            output("out", "rows block heads d"),
        ),
        scalars=(Scalar("scale", (0.125, 128**-0.5)),),
        parameters={"mask": ("full", "sliding")},
        options={"weights": ("exponentials", "normalised")},
        profiles=(
            Profile(
                "running",
                {"scores": None, "scaled": None, "p": "bf16", "out": "bf16"},
                options={"weights": "exponentials"},
                users="fused kernels with bf16 weights",
            ),
            Profile(
                "eager",
                dict.fromkeys(("scores", "scaled", "p", "out"), "bf16"),
                options={"weights": "normalised"},
                when={"mask": ("full",)},
                users="DFlash drafters in transformers with attn_implementation='eager'",
            ),
        ),
        row_dims=("rows",),
        # blocks of 16 and heads of 128, eight query heads to a key head, of the 31B drafter's 64 and 8
        shapes=(sizes(1, 16, 8, 1, 128, 128), sizes(2, 4, 2, 1, 300, 32)),
        awkward=(sizes(1, 1, 1, 1, 1, 8), sizes(3, 3, 4, 2, 7, 8), sizes(2, 5, 3, 3, 33, 24)),
        stress=(sizes(32, 2, 2, 1, 4, 8), sizes(24, 3, 2, 2, 5, 8), sizes(16, 4, 2, 1, 20, 8)),
        exact=exact_rows,
        exact_shapes=(
            sizes(64, 3, 2, 1, 5, 4),
            sizes(64, 2, 4, 2, 2, 4),
            sizes(12, 4, 2, 1, 258, 4),
        ),
        freedoms={
            name: FREEDOMS[name] for name in ("scores", "average", "softmax", "softmax_av", "exp")
        },
        rules={"heads is a multiple of kv": lambda s: s["heads"] % s["kv"] == 0},
    )
)


# ---- torch


def live_keys(
    slots: int, block: int, length: torch.Tensor, window: torch.Tensor | None
) -> torch.Tensor:
    """True where a query sees a key of [context | block] (rows, block, slots + block); no window: all that is used."""
    query = length[:, None] + torch.arange(block, dtype=length.dtype)
    slot = torch.arange(slots, dtype=length.dtype).expand(len(length), slots)
    used = torch.cat([slot < length[:, None], torch.ones_like(query, dtype=torch.bool)], 1)
    ahead = torch.cat([slot, query], 1)[:, None] - query[:, :, None]
    if window is None:
        return used[:, None].expand(ahead.shape)
    return used[:, None] & (ahead <= 0) & (ahead > -int(window))


def joined(
    context: torch.Tensor, own: torch.Tensor, length: torch.Tensor, heads: int
) -> torch.Tensor:
    """(rows, heads, slots + block, d), zeros in unused slots."""
    used = torch.arange(context.shape[1]) < length[:, None]
    both = torch.cat([context.masked_fill(~used[:, :, None, None], 0.0), own], 1).transpose(1, 2)
    return both.repeat_interleave(heads // both.shape[1], dim=1)


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, live: torch.Tensor, scale: float, profile: str,
) -> torch.Tensor:  # fmt: skip
    """(rows, block, heads, d) over joined keys and values (rows, heads, keys, d)."""
    rows, live = q.transpose(1, 2).float(), live[:, None]
    if profile == "running":
        parts = (
            ((rows @ keys[:, :, at : at + BLOCK].transpose(2, 3).float()).mul_(scale),
             values[:, :, at : at + BLOCK],
             live[..., at : at + BLOCK])
            for at in range(0, keys.shape[2], BLOCK)
        )  # fmt: skip
        return online(parts)[0].to(q.dtype).transpose(1, 2).contiguous()
    scores = (rows @ keys.transpose(2, 3).float()).to(q.dtype) * scale
    weights = torch.softmax(scores.masked_fill_(~live, -torch.inf), -1, dtype=torch.float32)
    return (weights.to(q.dtype).float() @ values.float()).to(q.dtype).transpose(1, 2).contiguous()


@implementation("block_attention", name="torch", profile=("running", "eager"))
def block_attention_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    own_k: torch.Tensor,
    own_v: torch.Tensor,
    length: torch.Tensor,
    window: torch.Tensor | None = None,
    *,
    scale: float,
    profile: str,
) -> torch.Tensor:
    """All sequences at once: context and block are joined, in chunks of 256 keys or whole."""
    live = live_keys(k.shape[1], q.shape[1], length, window)
    keys, values = (joined(x, y, length, q.shape[2]) for x, y in ((k, own_k), (v, own_v)))
    return attend(q, keys, values, live, scale, profile)
