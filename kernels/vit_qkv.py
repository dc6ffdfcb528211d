"""Queries, keys and values of a vision tower, normed and turned by position: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import full_significands, near_one
from contract.kernels.rms_norm import RSQRT
from contract.lazy import lazy
from contract.references.vit_qkv import vit_qkv as reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")


def typical_table(rng: Any, shape: tuple[int, ...]) -> Any:
    """Cosines, or sines, of any angle."""
    return np.cos(rng.uniform(0.0, 2.0 * np.pi, shape))


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: integers of 8 bits times a power of two per patch, so that the squares sum exactly in every order;
    gains and tables with full significands, whose products with a rounded norm have 16 bits."""
    size = (shape["rows"], shape["heads"], shape["d"])
    powers = np.exp2(rng.integers(-8, 8, (3, shape["rows"], 1, 1)))
    q, k, v = (full_significands(rng, size) * power for power in powers)
    # one magnitude in a quarter of the patches: the inverse is a power of two but for eps
    q[::4] = np.copysign(powers[0][::4], q[::4])
    table = (shape["rows"], shape["d"])
    return {
        "q": q,
        "k": k,
        "v": v,
        "cos": full_significands(rng, table) / 256.0,
        "sin": full_significands(rng, table) / 256.0,
        "q_weight": full_significands(rng, (shape["d"],)) / 128.0,
        "k_weight": full_significands(rng, (shape["d"],)) / 128.0,
    }


vit_qkv = register(
    Contract(
        name="vit_qkv",
        family="vision",
        summary="q, k and v of a vision tower: norms, and a rotation by column and row",
        reference=reference,
        operands=(
            tensor("q", "rows heads d"),
            tensor("k", "rows heads d"),
            tensor("v", "rows heads d"),
            tensor("cos", "rows d", typical=typical_table),
            tensor("sin", "rows d", typical=typical_table),
            tensor("q_weight", "d", typical=near_one),
            tensor("k_weight", "d", typical=near_one),
            output("q_out", "rows heads d", in_place_of="q"),
            output("k_out", "rows heads d", in_place_of="k"),
            output("v_out", "rows heads d", in_place_of="v"),
        ),
        scalars=(Scalar("eps", (1e-6, 1e-5)),),
        profiles=(
            Profile(
                "each_step",
                {"normed": "bf16", "direct": "bf16", "crossed": "bf16", "out": "bf16"},
                users="Gemma 4 in transformers",
            ),
            Profile(
                "two_step",
                {"normed": "bf16", "direct": None, "crossed": None, "out": "bf16"},
                users="MLX: the rotation has one rounding",
            ),
        ),
        row_dims=("rows",),
        # Gemma 4's tower: 16 heads of 72; 64 patches stand for up to 2520
        shapes=(
            {"rows": 1, "heads": 16, "d": 72},
            {"rows": 16, "heads": 16, "d": 72},
            {"rows": 64, "heads": 16, "d": 72},
        ),
        awkward=({"rows": 3, "heads": 1, "d": 4}, {"rows": 5, "heads": 3, "d": 20}),
        stress=({"heads": 1, "d": 72}, {"heads": 2, "d": 8}, {"heads": 3, "d": 4}),
        exact=exact_rows,
        exact_shapes=({"heads": 2, "d": 16}, {"heads": 1, "d": 72}, {"heads": 4, "d": 4}),
        freedoms={"mean": "any order of the sum: a proof, Higham section 4.2", "rsqrt": RSQRT},
        rules={"d is a multiple of 4": lambda s: s["d"] % 4 == 0},
    )
)


def normed(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """x / sqrt(mean(x^2) + eps) w of each head, in fp32."""
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight.float()


def crossed(n: Tensor) -> Tensor:
    """In each half of a head the second quarter of the head, negated, and the first."""
    a, b, c, d = n.chunk(4, dim=-1)
    return torch.cat([-b, a, -d, c], -1)


def turned(n: Tensor, cos: Tensor, sin: Tensor, profile: str) -> Tensor:
    """A rounded norm turned by its tables."""
    if profile == "each_step":
        return n * cos[:, None] + crossed(n) * sin[:, None]
    wide = n.float()
    return (wide * cos[:, None].float() + crossed(wide) * sin[:, None].float()).to(n.dtype)


@implementation("vit_qkv", name="torch", profile=("each_step", "two_step"))
def vit_qkv_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    *,
    eps: float,
    profile: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Norms in fp32, then the rotation in bf16 operators or in fp32."""
    heads = [normed(x, eps, w).to(x.dtype) for x, w in ((q, q_weight), (k, k_weight))]
    q_out, k_out = (turned(n, cos, sin, profile) for n in heads)
    return q_out, k_out, normed(v, eps).to(v.dtype)
