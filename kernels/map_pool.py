"""Attention of one probe over an image's tokens: contract and torch implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.map_pool import map_pool as reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

ANY = "any order: a proof, Higham sections 3.1 and 4.2"


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates whose scores are sums of two products, exact in every order, so that the roundings of q, score and
    weight all show.

    In every fourth image one key is far above the others, which then weigh 0; in every fourth all keys are 0 and weigh
    the same.
    """
    rows, heads, tokens, d = (shape[dim] for dim in ("rows", "heads", "tokens", "d"))
    q = full_significands(rng, (heads, d)) / 32.0
    k = np.zeros((rows, heads, tokens, d))
    place = np.argsort(rng.random(k.shape), axis=-1)[..., :2]
    np.put_along_axis(k, place, full_significands(rng, place.shape) / 256.0, axis=-1)
    alone = rng.integers(0, tokens, (rows, heads))
    for row in range(0, rows, 2):
        for head in range(heads):
            if row % 4 == 0:
                best = int(np.argmax(np.abs(q[head])))
                k[row, head, alone[row, head]] = 0.0
                k[row, head, alone[row, head], best] = np.copysign(1024.0, q[head, best])
            elif tokens & (tokens - 1) == 0:
                k[row, head] = 0.0
    v = full_significands(rng, (rows, heads, tokens, d)) / 64.0
    return {"q": q, "k": k, "v": v}


map_pool = register(
    Contract(
        name="map_pool",
        family="vision",
        summary="attention of one probe over an image's tokens",
        reference=reference,
        operands=(
            tensor("q", "heads d"),
            tensor("k", "rows heads tokens d"),
            tensor("v", "rows heads tokens d"),
            output("out", "rows heads d"),
        ),
        scalars=(Scalar("scale", (math.sqrt(1.0 / 72.0), 0.25)),),
        profiles=(
            Profile(
                "each_step",
                {"scaled": "bf16", "scores": "bf16", "weights": "bf16", "out": "bf16"},
                users="SigLIP's pooling head in transformers (torch.nn.MultiheadAttention)",
            ),
        ),
        row_dims=("rows",),
        # SigLIP So400m: 729 tokens, 16 heads of 72, which do not depend on each other: one stands for them
        shapes=(
            {"rows": 1, "heads": 4, "tokens": 64, "d": 72},
            {"rows": 3, "heads": 2, "tokens": 81, "d": 72},
            {"rows": 1, "heads": 1, "tokens": 729, "d": 72},
        ),
        awkward=(
            {"rows": 2, "heads": 1, "tokens": 1, "d": 1},
            {"rows": 3, "heads": 2, "tokens": 17, "d": 5},
        ),
        stress=(
            {"heads": 1, "tokens": 4, "d": 8},
            {"heads": 2, "tokens": 3, "d": 5},
            {"heads": 1, "tokens": 16, "d": 4},
        ),
        exact=exact_rows,
        exact_shapes=(
            {"heads": 1, "tokens": 4, "d": 16},
            {"heads": 2, "tokens": 3, "d": 8},
            {"heads": 1, "tokens": 8, "d": 4},
        ),
        freedoms={
            "scores": ANY,
            "values": ANY,
            "total": ANY,
            "exp": "CUDA C++ Programming Guide, single-precision functions: expf at most 2 ulp",
        },
    )
)


def attended(weights: Tensor, v: Tensor) -> Tensor:
    """(rows, heads, tokens) rounded weights times the values."""
    return (weights.float()[:, :, None] @ v.float())[:, :, 0].to(v.dtype)


@implementation("map_pool", name="torch", profile="each_step")
def map_pool_torch(q: Tensor, k: Tensor, v: Tensor, *, scale: float) -> Tensor:
    """fp32 products and softmax, each result in bf16."""
    scaled = (q * scale).float()
    scores = (k.float() @ scaled[:, :, None])[..., 0].to(k.dtype)
    weights = torch.softmax(scores.float(), -1).to(k.dtype)
    return attended(weights, v)
