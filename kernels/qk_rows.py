"""Norm and rotation of queries and keys: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import full_significands, near_one
from contract.kernels.rms_norm import RSQRT
from contract.kernels.rope import FP32_TABLES, RULES, cosines, exact_tables, turn
from contract.lazy import lazy
from contract.references.qk_rows import qk_rows as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

WITH_V = {"v_norm": ("yes",)}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: heads of one magnitude or of 8-bit integers, whose squares sum exactly in every order.

    Wide heads keep 256 of their values. The inverse is known within 2 ulps, so that what is left to one value is decided
    by the range; tokens at angle 0, with one product alone, and with both are among them.
    """
    tokens, d = shape["tokens"], shape["d"]
    values: dict[str, Any] = {}
    for name, heads in (("q", "heads"), ("k", "kv_heads"), ("v", "kv_heads")):
        x = full_significands(rng, (tokens, shape[heads], d))
        power = np.exp2(rng.integers(-6, 6, (tokens, shape[heads], 1)))
        x = np.where(rng.random((tokens, 1, 1)) < 0.5, np.copysign(1.0, x), x) * power
        if d > 256:
            kept = rng.permuted(np.tile(np.arange(d) < 256, (tokens, 1, 1)), axis=-1)
            x = np.where(kept, x, np.copysign(0.0, x))
        values[name] = x
    values["cos"], values["sin"] = exact_tables(rng, tokens, shape["half"])
    unit = 1024.0 if parameters["gain"] == "1+w" else 128.0
    values["q_weight"] = full_significands(rng, (d,)) / unit
    values["k_weight"] = full_significands(rng, (d,)) / unit
    return values


qk_rows = register(
    Contract(
        name="qk_rows",
        family="rotary",
        summary="RMS norm of every query and key head, then its rotation; unit norm of values",
        reference=reference,
        operands=(
            tensor("q", "tokens heads d"),
            tensor("k", "tokens kv_heads d"),
            tensor("v", "tokens kv_heads d", when=WITH_V),
            tensor("q_weight", "d", typical=near_one),
            tensor("k_weight", "d", typical=near_one),
            tensor("cos", "tokens half", typical=cosines),
            tensor("sin", "tokens half", typical=cosines),
            output("q_out", "tokens heads d"),
            output("k_out", "tokens kv_heads d"),
            output("v_out", "tokens kv_heads d", when=WITH_V),
        ),
        scalars=(Scalar("eps", (1e-6, 1e-5)),),
        parameters={"v_norm": ("no", "yes"), "gain": ("w", "1+w")},
        profiles=(
            Profile(
                "each_op",
                {
                    "normed": None,
                    "gained": "bf16",
                    "cos_product": "bf16",
                    "sin_product": "bf16",
                    "out": "bf16",
                },
                users="Gemma 4 (with v_norm) and Qwen3.5 (1 + w) in transformers",
            ),
            Profile(
                "two_step",
                {
                    "normed": "bf16",
                    "gained": "bf16",
                    "cos_product": "bf16",
                    "sin_product": "bf16",
                    "out": "bf16",
                },
                when={"v_norm": ("no",), "gain": ("w",)},
                users="Qwen3, Qwen3-VL in transformers",
            ),
            Profile(
                "norm",
                {
                    "normed": None,
                    "gained": "bf16",
                    "cos_product": None,
                    "sin_product": None,
                    "out": "bf16",
                },
                FP32_TABLES,
                when={"v_norm": ("no",), "gain": ("w",)},
                users="a norm that is stored, then a rotation with fp32 tables (MLX on Metal)",
            ),
            Profile(
                "once",
                {
                    "normed": None,
                    "gained": None,
                    "cos_product": None,
                    "sin_product": None,
                    "out": "bf16",
                },
                FP32_TABLES,
                when={"v_norm": ("yes",), "gain": ("w",)},
                users="fused kernels: one pass in fp32, only what is stored is rounded",
            ),
        ),
        row_dims=("tokens",),
        # heads of 128 (Qwen3), 64 of 256 dims (Qwen3.5), 512 (Gemma 4's global layers, one key head)
        shapes=(
            {"tokens": 1, "heads": 16, "kv_heads": 8, "d": 128, "half": 64},
            {"tokens": 4, "heads": 16, "kv_heads": 4, "d": 256, "half": 32},
            {"tokens": 8, "heads": 8, "kv_heads": 1, "d": 512, "half": 256},
        ),
        awkward=(
            {"tokens": 3, "heads": 1, "kv_heads": 1, "d": 4, "half": 2},
            {"tokens": 2, "heads": 3, "kv_heads": 2, "d": 13, "half": 4},
            {"tokens": 17, "heads": 2, "kv_heads": 1, "d": 64, "half": 32},
        ),
        stress=(
            {"heads": 2, "kv_heads": 1, "d": 8, "half": 4},
            {"heads": 1, "kv_heads": 1, "d": 13, "half": 4},
            {"heads": 1, "kv_heads": 1, "d": 64, "half": 32},
        ),
        exact=exact_rows,
        exact_shapes=(
            {"heads": 1, "kv_heads": 1, "d": 8, "half": 2},
            {"heads": 2, "kv_heads": 1, "d": 16, "half": 8},
            {"heads": 1, "kv_heads": 1, "d": 512, "half": 32, "tokens": 16},
        ),
        freedoms={"mean": "any order of the sum: a proof, Higham section 4.2", "rsqrt": RSQRT},
        rules=RULES,
    )
)


@implementation("qk_rows", name="torch", profile=("each_op", "two_step", "norm", "once"))
def qk_rows_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    v: torch.Tensor | None = None,
    *,
    eps: float,
    gain: str,
    profile: str,
) -> tuple[torch.Tensor, ...]:
    """fp32 inside the norms; the rotation computes in the tables' format."""
    results = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        factor = 1.0 + weight.float() if gain == "1+w" else weight.float()
        row = unit(x, eps)
        if profile == "two_step":
            row = row.to(x.dtype).float()
        row = row * factor
        if profile != "once":
            row = row.to(x.dtype)
        out = row.to(x.dtype, copy=True)
        turn(row.to(cos.dtype), cos, sin, "halves", out)
        results.append(out)
    if v is not None:
        results.append(unit(v, eps).to(v.dtype))
    return tuple(results)


def unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) of each head, in fp32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
