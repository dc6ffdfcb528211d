"""Attention over shared keys: contract and torch implementations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.attention import attention as reference

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch, F = lazy("torch"), lazy("torch.nn.functional")

ANY = "any order of the sum: a proof, Higham section 4.2"
EXP = "CUDA expf and exp2f, glibc and SLEEF expf: at most 2 ulp"
FAST_EXP = (
    "fexp_u20 of ATen's x86 vectors (Malossi et al., Fast exponential computation on SIMD architectures, 2015; pytorch"
    " #151441): a cubic, 2^-13.1 from -87.3 to 0 over every fifth fp32 number; without AVX2, and of the last keys, expf."
    " NEON's quadratic, 2^-11.6, is not meant"
)
FREEDOMS = {
    "scores": ANY,
    "average": ANY,
    "softmax": ANY,
    "softmax_av": f"sums in any order, as many rescalings as blocks: derived in contract.attention; {EXP}",
    "fast_softmax_av": f"as softmax_av, rescalings and the logarithm too; weights: {FAST_EXP}",
    "exp": EXP,
    "tanh": "CUDA tanhf and SLEEF tanhf: at most 2 ulp",
}
#: Keys that the online softmax takes at a time, and those that torch's takes.
BLOCK, TORCH_BLOCK = 256, 512


def starts(rng: Any, shape: tuple[int, ...]) -> Any:
    """First keys: mostly 0, some after a little padding."""
    return rng.choice((0, 0, 0, 0, 0, 1, 2, 3), shape)


def windows(rng: Any, shape: tuple[int, ...]) -> Any:
    """Windows of a few keys, so that both of their edges are met."""
    return rng.integers(2, 7, shape)


def images(rng: Any, shape: tuple[int, ...]) -> Any:
    """Text and images by turns, of 2 to 5 keys each."""
    run = np.repeat(np.arange(shape[0]), rng.integers(2, 6, shape[0]))[: shape[0]]
    return np.where(run % 2 == 1, run, 0)


def caps(rng: Any, shape: tuple[int, ...]) -> Any:
    """Soft caps small enough to bend ordinary scores."""
    return rng.choice((1.5, 3.0, 5.0), shape)


def seen_keys(values: Mapping[str, Any], keys: int, mask: str) -> tuple[Any, Any]:
    """First and last key that every query sees, whatever its start: they are one stretch."""
    queries = len(values["start"])
    own = np.asarray(values.get("position", np.full(queries, keys - 1)))
    first, last = np.zeros(queries, np.int64), own.copy()
    if mask == "prefix":
        last = np.maximum(own, values["prefix"] - 1)
    if mask in ("sliding", "image_block"):
        first = np.maximum(0, own - int(values["window"]) + 1)
    if mask == "image_block":
        image = values["block"]
        for i, p in enumerate(own):
            while image[p] and last[i] + 1 < keys and image[last[i] + 1] == image[p]:
                last[i] += 1
    return first, last


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates. Rows with q = 0 have equal weights, and a power of two of live keys: their number tells one mask from
    another. Rows with one element in q have scores of one product, which every rounding must meet, and two to four live
    keys; beyond 256 keys these lie in two blocks of the online softmax, beyond 512 in two of torch's.

    v holds powers of two where weights must be seen rounded, and full significands in the widest set.
    """
    queries, heads, kv, keys, d = (shape[n] for n in ("queries", "heads", "kv", "keys", "d"))
    few, blocks, key = keys <= 16, keys > BLOCK, np.arange(keys)
    edge = TORCH_BLOCK if keys > TORCH_BLOCK else BLOCK
    values: dict[str, Any] = {
        "start": np.zeros(queries, np.int64),
        "position": rng.integers(0, keys, queries),
        "prefix": rng.integers(0, keys, queries),
        "window": np.asarray(4 if few else 8),
        # images that are wider than the window
        "block": np.where(key % (keys - 1) > 0, 1, 0) if few else key // 19 % 3,
        "cap": np.asarray(3.0),
    }
    spread = rng.random(queries) < (0.75 if few else 0.8 if blocks else 0.0)
    if blocks:
        values["position"] = np.where(spread, rng.integers(edge, keys, queries), values["position"])
        values["prefix"] = np.where(spread, 0, values["prefix"])
    mask = parameters["mask"]
    first, last = seen_keys(values, keys, mask)
    length = last - first + 1
    # the most keys that are a power of two, or half of them
    count = 2 ** np.maximum(np.floor(np.log2(length)) - (rng.random(queries) < 0.3), 0).astype(int)
    # with the start far from the edge of a window this edge shows
    open_edge = (count == length) | (rng.random(queries) < 0.3)
    start = np.where(open_edge, 0, last - count + 1)
    near = edge - rng.integers(1, 3, queries) if blocks else np.maximum(start, last - 3)
    start = np.where(spread, near, start)
    if mask not in ("full", "prefix"):
        # some rows without a live key
        empty = rng.random(queries) < 0.06
        start = np.where(empty, np.minimum(values["position"] + 1, keys - 1), start)
    values["start"] = np.clip(start, 0, keys - 1)
    q = np.zeros((queries, heads, d))
    place = rng.integers(0, d, (queries, heads, 1))
    single = np.where(spread[:, None, None], full_significands(rng, place.shape) / 32.0, 0.0)
    np.put_along_axis(q, place, single, -1)
    k = full_significands(rng, (keys, kv, d)) / 64.0
    v = full_significands(rng, (keys, kv, d))
    if few or blocks:
        exponents = rng.integers(-7, 2, (keys, kv, d))
        # where little is added to what the first block gave, its rounding shows
        exponents[edge:] -= 6
        v = np.copysign(np.exp2(exponents), v)
    return {**values, "q": q, "k": k, "v": v}


def sizes(queries: int, heads: int, kv: int, keys: int, d: int) -> dict[str, int]:
    return {"queries": queries, "heads": heads, "kv": kv, "keys": keys, "d": d}


def widths(heads: int, kv: int, keys: int, d: int) -> dict[str, int]:
    return {"heads": heads, "kv": kv, "keys": keys, "d": d}


NOT_CAPPED = {"quotient": None, "tanh": None, "capped": None}
OTHER_MASKS = ("causal", "full", "prefix", "sliding", "image_block")
NORMALISED = {"weights": "normalised", "gauge": "final", "sums": "unrounded", "empty": "mean"}
LOG = {"truncate-lse": "exp, log and the maximum's error leave more than an ulp of the log-sum-exp"}
EXPONENTIALS = {
    "scores": None,
    "scaled": None,
    **NOT_CAPPED,
    "p": "bf16",
    "out": "bf16",
    "lse": "fp32",
}
SEES_A_KEY = {
    **LOG,
    "empty,mask=full": "a query of the full mask sees the last key at least",
}


def _fused(gauge: str) -> dict[str, str]:
    """Options of kernels that take the keys block by block."""
    return {"weights": "exponentials", "gauge": gauge, "sums": "unrounded", "empty": "zeros"}


NOT_ROUNDED = "no weight is rounded"
NO_ULP = "exp and the sums leave more than an ulp of whatever is no exact average"
NO_EXPONENTIALS = {
    **LOG,
    "gauge": "weights that are divided first are not rounded against a maximum",
    "sums": "weights that are divided first are summed before they are rounded",
}

attention = register(
    Contract(
        name="attention",
        family="attention",
        summary="softmax attention with grouped key heads and five masks",
        reference=reference,
        operands=(
            tensor("q", "queries heads d", finite=True),
            tensor("k", "keys kv d", finite=True),
            tensor("v", "keys kv d", finite=True),
            tensor("start", "queries", "int32", below="keys", typical=starts),
            tensor(
                "position",
                "queries",
                "int32",
                below="keys",
                when={"mask": tuple(OTHER_MASKS[:1] + OTHER_MASKS[2:])},
            ),
            tensor("prefix", "queries", "int32", below="keys", when={"mask": ("prefix",)}),
            tensor(
                "window",
                "",
                "int32",
                below=1 << 20,
                typical=windows,
                when={"mask": ("sliding", "image_block")},
            ),
            tensor(
                "block",
                "keys",
                "int32",
                below=1 << 20,
                typical=images,
                when={"mask": ("image_block",)},
            ),
            tensor("cap", "", "fp32", positive=True, typical=caps, when={"capped": ("yes",)}),
            output("out", "queries heads d"),
            output("lse", "queries heads", "fp32", stage=True),
        ),
        scalars=(Scalar("scale", (0.125, 72**-0.5)),),
        parameters={"mask": OTHER_MASKS, "capped": ("no", "yes")},
        options={
            "weights": ("normalised", "exponentials"),
            "gauge": ("final", "running256", "running512"),
            "sums": ("unrounded", "rounded"),
            "empty": ("zeros", "nan", "mean"),
        },
        profiles=(
            Profile(
                "eager",
                {
                    "scores": "bf16",
                    "scaled": "bf16",
                    **NOT_CAPPED,
                    "p": "bf16",
                    "out": "bf16",
                    "lse": "fp32",
                },
                options=NORMALISED,
                when={"mask": ("causal", "image_block"), "capped": ("no",)},
                users="transformers with attn_implementation='eager'",
                vacuous=NO_EXPONENTIALS,
            ),
            Profile(
                "eager_capped",
                {
                    **dict.fromkeys(
                        ("scores", "scaled", "quotient", "tanh", "capped", "p", "out"), "bf16"
                    ),
                    "lse": "fp32",
                },
                options=NORMALISED,
                when={"mask": ("sliding",), "capped": ("yes",)},
                users="Gemma 2 in transformers with attn_implementation='eager'",
                vacuous=NO_EXPONENTIALS,
            ),
            Profile(
                "flash",
                EXPONENTIALS,
                options=_fused("running256"),
                when={"mask": ("full", "prefix"), "capped": ("no",)},
                users="FlashAttention and other fused kernels with bf16 weights",
                vacuous=SEES_A_KEY,
            ),
            Profile(
                "sdpa",
                EXPONENTIALS,
                options=_fused("running512"),
                when={"mask": ("full", "prefix"), "capped": ("no",)},
                users="torch's F.scaled_dot_product_attention on the CPU",
                vacuous=SEES_A_KEY,
            ),
            Profile(
                "float32",
                {
                    "scores": None,
                    "scaled": None,
                    **NOT_CAPPED,
                    "p": None,
                    "out": "fp32",
                    "lse": "fp32",
                },
                dict.fromkeys(("q", "k", "v", "out"), "fp32"),
                # weights that are divided first are inside: a division and a product more a term, which the bound has
                options={**NORMALISED, "weights": "exponentials"},
                when={"mask": ("causal",), "capped": ("no",)},
                users="transformers in fp32",
                vacuous={
                    **LOG,
                    "truncate-out": NO_ULP,
                    "gauge": NOT_ROUNDED,
                    "sums": NOT_ROUNDED,
                    "weights": "no weight is rounded, before the division or after it",
                },
            ),
        ),
        row_dims=("queries",),
        # two rows of PaliGemma's prefix of 1028 keys of 256, with one of its eight query heads, and of SigLIP's heads of 72
        shapes=(sizes(2, 1, 1, 1028, 256), sizes(8, 2, 2, 196, 72), sizes(8, 2, 1, 32, 64)),
        awkward=(sizes(1, 4, 2, 7, 8), sizes(3, 3, 1, 257, 72), sizes(5, 4, 2, 33, 16)),
        # few keys, where every rounding shows, and few rows of two blocks
        stress=(
            {**widths(2, 1, 8, 16), "queries": 32},
            {**widths(4, 2, 5, 16), "queries": 32},
            {**widths(2, 2, 24, 16), "queries": 16},
            {**widths(1, 1, 260, 8), "queries": 8},
        ),
        exact=exact_rows,
        exact_shapes=(
            widths(4, 2, 8, 16),
            # few outputs a row, all of which a fast exponential leaves one value
            widths(4, 2, 8, 2),
            {**widths(1, 1, 258, 4), "queries": 48},
            {**widths(1, 1, 514, 4), "queries": 48},
            {**widths(4, 2, 64, 32), "queries": 24},
        ),
        freedoms=FREEDOMS,
        rules={"heads is a multiple of kv": lambda s: s["heads"] % s["kv"] == 0},
    )
)


# ---- torch


def live_keys(
    keys: int,
    start: torch.Tensor | None,
    position: torch.Tensor | None,
    prefix: torch.Tensor | None,
    window: torch.Tensor | None,
    block: torch.Tensor | None,
) -> torch.Tensor:
    """True where a query sees a key (queries, keys); which operands are there says which mask it is."""
    key = torch.arange(keys)
    live = torch.ones(keys, dtype=torch.bool) if start is None else key >= start[:, None]
    if position is None:
        return live
    ahead = key - position[:, None]
    seen = ahead <= 0
    if prefix is not None:
        seen |= key < prefix[:, None]
    if block is not None:
        own = block[position.long()][:, None]
        seen |= (own == block) & (own != 0)
    if window is not None:
        seen &= ahead > -int(window)
    return live & seen


def by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(keys, kv, d) -> (heads, keys, d): neighbouring query heads share a key head."""
    return x.transpose(0, 1).repeat_interleave(heads // x.shape[1], dim=0)


@implementation("attention", name="torch", profile=("eager", "eager_capped", "float32"))
def attention_eager(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor | None = None,
    prefix: torch.Tensor | None = None,
    window: torch.Tensor | None = None,
    block: torch.Tensor | None = None,
    cap: torch.Tensor | None = None,
    *,
    scale: float,
) -> torch.Tensor:
    """Scores of q's dtype, softmax in fp32, weights of q's dtype; a row without a live key has equal scores."""
    live = live_keys(k.shape[0], start, position, prefix, window, block)
    heads, dtype = q.shape[1], q.dtype
    scores = (q.transpose(0, 1).float() @ by_head(k, heads).transpose(1, 2).float()).to(dtype)
    scores *= scale
    if cap is not None:
        scores = torch.tanh(scores / float(cap)) * float(cap)
    none = ~live.any(-1, keepdim=True)
    scores.masked_fill_(~live, -torch.inf).masked_fill_(none, 0.0)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(dtype)
    return (weights.float() @ by_head(v, heads).float()).to(dtype).transpose(0, 1).contiguous()


@implementation("attention", name="torch", profile="flash")
def attention_online(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor | None = None,
    prefix: torch.Tensor | None = None,
    *,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks of 256 keys with a running maximum, one head after the other; one block of its scores is held at a time."""
    keys, heads = k.shape[0], q.shape[1]
    blocks = [slice(at, min(at + BLOCK, keys)) for at in range(0, keys, BLOCK)]
    masks = [seen_of(block, keys, start, position, prefix) for block in blocks]
    # memory that every block's scores are written to anew: new pages would cost as much as most steps
    scores = {block.stop - block.start: torch.empty(len(q), block.stop - block.start) for block in blocks}  # fmt: skip
    # a power of two moves into the queries exactly, as it could only add digits where a product has none
    moved = math.frexp(scale)[0] == 0.5 and 2.0**-16 <= scale <= 1.0
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2])
    for head in range(heads):
        if head * k.shape[1] % heads == 0:
            shared = head * k.shape[1] // heads
            wide_k, wide_v = k[:, shared].float(), v[:, shared].float()
        rows = q[:, head].float()
        rows = rows.mul_(scale) if moved else rows
        parts = (
            (
                _scores(
                    rows, wide_k[block], 1.0 if moved else scale, scores[block.stop - block.start]
                ),
                wide_v[block],
                mask,
            )
            for block, mask in zip(blocks, masks, strict=True)
        )
        out[:, head], lse[:, head] = online(parts, v.dtype)
    return out, lse


@implementation("attention", name="torch", profile="sdpa")
def attention_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: torch.Tensor,
    position: torch.Tensor | None = None,
    prefix: torch.Tensor | None = None,
    *,
    scale: float,
) -> torch.Tensor:
    """torch's own fused kernel; each key head is a sequence of its batch, and the query heads that share it lie side by side.

    It always has a mask: without one it leaves keys whose score is NaN out of the softmax.
    """
    queries, heads, d = q.shape
    keys, kv = k.shape[:2]
    live = seen_of(slice(0, keys), keys, start, position, prefix)
    live = torch.ones(1, keys, dtype=torch.bool) if live is None else live
    # rows of one head far apart are read slower than they are copied
    query = q.transpose(0, 1).contiguous().view(kv, heads // kv, queries, d)
    key, value = (x.transpose(0, 1).unsqueeze(1).expand(*query.shape[:2], keys, d) for x in (k, v))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=live, scale=scale)
    return out.permute(2, 0, 1, 3).reshape(q.shape)


def _scores(rows: torch.Tensor, keys: torch.Tensor, scale: float, out: torch.Tensor) -> torch.Tensor:  # fmt: skip
    torch.mm(rows, keys.T, out=out)
    return out if scale == 1.0 else out.mul_(scale)


def seen_of(
    block: slice,
    keys: int,
    start: torch.Tensor,
    position: torch.Tensor | None,
    prefix: torch.Tensor | None,
) -> torch.Tensor | None:
    """True where a query sees a key of the block (queries, block); None where all do. They see one stretch of keys."""
    last = torch.full_like(start, keys - 1) if position is None else position
    if prefix is not None:
        last = torch.maximum(last, prefix - 1)
    if int(start.max()) <= block.start and int(last.min()) >= block.stop - 1:
        return None
    key = torch.arange(block.start, block.stop, dtype=start.dtype)
    return (key >= start[:, None]) & (key <= last[:, None])


def online(parts: Any, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax-weighted sum and log-sum-exp of (scores, values, live) blocks; zeros and -inf where no key is live.

    Weights are rounded to the values' dtype, or the one that is given, before they meet them, and summed unrounded.
    Scores are overwritten. `live` is None where all keys are.
    """
    state: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    narrow = None
    for scores, values, live in parts:
        if live is not None:
            scores.masked_fill_(~live, -torch.inf)
        top = scores.amax(-1, keepdim=True)
        if state is not None:
            top = torch.maximum(state[0], top)
        # without a live key so far the maximum is -inf, and -inf - -inf no weight
        base = top.masked_fill(top == -torch.inf, 0.0)
        weights = scores.sub_(base).exp_()
        total = weights.sum(-1, keepdim=True)
        if narrow is None or narrow.shape != weights.shape:
            narrow = torch.empty_like(weights, dtype=dtype or values.dtype)
        weights.copy_(narrow.copy_(weights))
        values = values.float()
        if state is None:
            out = weights @ values
        else:
            factor = torch.exp(state[0] - base)
            total, out = total + state[1] * factor, state[2].mul_(factor)
            out = out.addmm_(weights, values) if out.dim() == 2 else out.add_(weights @ values)
        state = top, total, out
    assert state is not None
    top, total, out = state
    none = total == 0
    result = out.div_(torch.where(none, 1.0, total)).masked_fill_(none, 0.0)
    return result, (top + total.log()).squeeze(-1)
