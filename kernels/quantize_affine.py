"""Affine quantisation of groups of weights: contract, torch implementation, and whole weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, formats, implementation, output, register, tensor
from contract.kernels.affine_packing import BITS, GROUPS, pack
from contract.lazy import lazy
from contract.references.quantize_affine import quantize_affine as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

POINTS = {"edge_code": "int32", "code": "uint8"}


def trained(rng: Any, shape: tuple[int, ...]) -> Any:
    """Weights of a linear layer."""
    return 0.05 * rng.standard_normal(shape, dtype=np.float32)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Scales that are powers of two: the ends lie n codes apart and 0 is one of them, so that codes and halves of codes
    (all ties) are exact. Both signs of the larger end.

    Groups of 64 are those of other scales: see `other_scales`."""
    size, n = (shape["rows"], shape["group"]), (1 << int(parameters["bits"])) - 1
    if size[1] == 64:
        return {"x": rng.permuted(other_scales(rng, size, n), axis=-1)}
    low, high = -float((n + 1) // 2), float(n // 2)
    x = rng.integers(2 * low, 2 * high + 1, size) / 2.0
    x[:, 0], x[:, -1] = low, high
    x = x * np.exp2(rng.integers(-10, 3, (size[0], 1))) * rng.choice((-1.0, 1.0), (size[0], 1))
    return {"x": rng.permuted(x, axis=-1)}


def other_scales(rng: Any, size: tuple[int, int], n: int) -> Any:
    """Groups from -1 to 0, of scale 1 / n, whose values have other codes with that scale in bf16 (or fp16, where there
    are such); groups of zeros, of one value, and of values below 1e-7."""
    bits = np.arange(0xBB80, 0xBF80, dtype=np.uint16)
    values = formats.decode(bits, formats.get("bf16"))
    codes = (values + 1.0) * n
    apart = np.abs(codes - np.floor(codes) - 0.5) > 2.0**-12
    stored = (values + 1.0) / float(formats.round_to(np.array(1.0 / n), "bf16"))
    telling = values[apart & (np.rint(codes) != np.minimum(np.rint(stored), n))]
    x = rng.choice(telling if telling.size else values[apart], size)
    x[:, 0], x[:, -1] = -1.0, 0.0
    x = x * np.exp2(rng.integers(-6, 3, (size[0], 1))) * rng.choice((-1.0, 1.0), (size[0], 1))
    x[5::16], x[6::16] = 0.0, 0.75
    x[7::16] = rng.choice((-(2.0**-28), 2.0**-26), (len(x[7::16]), size[1]))
    return x


quantize_affine = register(
    Contract(
        name="quantize_affine",
        family="quantize",
        summary="affine codes of 2 to 8 bits with scale and bias of a group (MLX)",
        reference=reference,
        operands=(
            tensor("x", "rows group", typical=trained, finite=True),
            output("codes", "rows group", "uint8"),
            output("scale", "rows"),
            output("bias", "rows"),
        ),
        parameters={"bits": BITS},
        options={"codes_from": ("unrounded", "stored")},
        profiles=(
            Profile(
                "after_codes",
                {**POINTS, "scale": "bf16", "bias": "bf16"},
                options={"codes_from": "unrounded"},
                users="MLX",
                vacuous={"bias": "a bias is 0 or one of the values"},
            ),
            Profile(
                "after_codes_fp16",
                {**POINTS, "scale": "fp16", "bias": "fp16"},
                {"x": "fp16", "scale": "fp16", "bias": "fp16"},
                options={"codes_from": "unrounded"},
                users="MLX, fp16 weights",
                vacuous={"bias": "a bias is 0 or one of the values"},
                when={"bits": ("4",)},
            ),
        ),
        row_dims=("rows",),
        shapes=({"rows": 84, "group": 64}, {"rows": 512, "group": 32}),
        awkward=({"rows": 1, "group": 32}, {"rows": 17, "group": 128}),
        stress=({"group": 32}, {"group": 64}, {"group": 128}),
        exact=exact_rows,
        exact_shapes=({"group": 32}, {"group": 64}, {"group": 128}),
        rules={"groups are of 32, 64 or 128 values": lambda s: s["group"] in GROUPS},
    )
)


@implementation("quantize_affine", name="torch", profile=("after_codes", "after_codes_fp16"))
def quantize_affine_torch(
    x: torch.Tensor, *, bits: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """fp32 inside; scale and bias are rounded when the codes are there."""
    wide = x.float()
    scale, bias = fp32_scale(wide, int(bits))
    codes = ((wide - bias) / scale).round().clamp(0, (1 << int(bits)) - 1)
    return codes.to(torch.uint8), scale.squeeze(-1).to(x.dtype), bias.squeeze(-1).to(x.dtype)


def fp32_scale(wide: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Unrounded scale and bias (..., 1) of groups (..., g) in fp32."""
    lo, hi = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    step = ((hi - lo) / ((1 << bits) - 1)).clamp(min=1e-7)
    low = lo.abs() > hi.abs()
    edge, step = torch.where(low, lo, hi), torch.where(low, step, -step)
    whole = (edge / step).round()
    some = whole != 0
    return torch.where(some, edge / whole, step), torch.where(some, edge, 0.0)


def quantize_weight(
    weight: torch.Tensor, bits: int, group: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words (n, k bits / 32), scales and biases (n, k / group) of a weight (n, k).

    Raises:
        ValueError: a group size or width that the format does not have, or a weight that is not finite.
    """
    n, k = weight.shape
    if group not in GROUPS or k % group:
        raise ValueError(f"{k} columns in groups of {group}; groups are of 32, 64 or 128")
    wrong = ~weight.isfinite()
    if bool(wrong.any()):
        row, column = (int(i) for i in wrong.nonzero()[0])
        raise ValueError(f"weight at [{row}, {column}] is {float(weight[row, column])}")
    codes, scale, bias = quantize_affine_torch(weight.reshape(-1, group), bits=str(bits))
    return pack(codes.reshape(n, k), bits), scale.reshape(n, -1), bias.reshape(n, -1)
