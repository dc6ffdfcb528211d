"""GPTQ of one block of up to 64 input channels: contract, torch implementation, and whole weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, formats, implementation, output, register, tensor
from contract.kernels.data import full_significands, near_zero
from contract.lazy import lazy
from contract.references.gptq_block64 import BLOCK, INT4
from contract.references.gptq_block64 import gptq_block64 as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

F143 = formats.get("e4m3fnuz")
#: Share of the mean diagonal of X^T X that is added to it.
DAMPING = 0.01


def block_factor(rng: Any, shape: tuple[int, ...]) -> Any:
    """U of inputs that are correlated, as neighbouring channels' are."""
    n = shape[0]
    x = rng.standard_normal((4 * n, n)) + rng.standard_normal((4 * n, 1))
    hessian = x.T @ x / len(x)
    hessian += DAMPING * np.trace(hessian) / n * np.eye(n)
    return np.linalg.cholesky(np.linalg.inv(hessian)).T


def row_scales(rng: Any, shape: tuple[int, ...]) -> Any:
    """Steps of weights around 1/4."""
    return rng.uniform(0.02, 0.1, shape)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Scales and entries of U that are powers of two: errors and their products are exact, so that each update is one
    rounding, fused or not. Weights have 24 bits; every fourth row halves of codes, which stay on ties; every eighth
    saturates."""
    rows, n = shape["rows"], shape["columns"]
    powers = np.exp2(rng.integers(-4, 0, (n, n))) * rng.choice((-1.0, 1.0), (n, n))
    factor = np.triu(np.where(rng.random((n, n)) < 0.4, powers, 0.0), 1)
    factor += np.tril(full_significands(rng, (n, n)), -1)
    factor[range(n), range(n)] = np.exp2(rng.integers(-1, 2, n))
    scales = np.exp2(rng.integers(-6, 1, rows))
    weight = full_significands(rng, (rows, n), 24) * 2.0**-22
    weight[::4] = rng.integers(-15, 15, weight[::4].shape) / 2.0
    weight[3::8] *= 2.0**6
    return {"weight": weight * scales[:, None], "factor": factor, "scales": scales}


gptq_block64 = register(
    Contract(
        name="gptq_block64",
        family="quantize",
        summary="codes of up to 64 input channels, each weight moved by the errors of those before it (GPTQ)",
        reference=reference,
        operands=(
            tensor("weight", "rows columns", "fp32", typical=near_zero, finite=True),
            tensor("factor", "columns columns", "fp32", typical=block_factor, finite=True),
            tensor("scales", "rows", "fp32", typical=row_scales, positive=True),
            output("codes", "rows columns", "{to}"),
            output("compensated", "rows columns", "fp32", observed=True),
        ),
        parameters={"to": ("e4m3fnuz", "int4")},
        profiles=(
            Profile(
                "each_update",
                {"compensated": "fp32", "code": "{to}"},
                overflow={"code": "saturate"},
                users="SigLIP F143; GPTQ with one block and no lazy updates",
            ),
        ),
        row_dims=("rows",),
        # of up to 4,304 output channels a tile, as they do not depend on each other; SigLIP's 4,304 inputs end in 16
        shapes=({"rows": 96, "columns": 64}, {"rows": 256, "columns": 16}),
        awkward=(
            {"rows": 1, "columns": 1},
            {"rows": 3, "columns": 33},
            {"rows": 65, "columns": 5},
        ),
        stress=({"columns": 8}, {"columns": 2}, {"columns": 5}),
        exact=exact_rows,
        exact_shapes=(
            {"columns": 16},
            {"columns": 64, "rows": 16},
            {"columns": 3},
        ),
        rules={"a block has at most 64 columns": lambda s: s["columns"] <= BLOCK},
    )
)


@implementation("gptq_block64", name="torch", profile="each_update")
def gptq_block64_torch(
    weight: torch.Tensor, factor: torch.Tensor, scales: torch.Tensor, *, to: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """All rows at once, channel by channel; codes and the weights that they were made from."""
    left, codes = by_channel(weight), []
    for j in range(len(left)):
        values = nearest(left[j] / scales, to)
        codes.append(values)
        error = (left[j] - values * scales) / factor[j, j]
        left[j + 1 :] -= factor[j, j + 1 :, None] * error
    return stored(torch.stack(codes, 1), to), left.T.contiguous()


def by_channel(weight: torch.Tensor) -> torch.Tensor:
    """A copy (columns, rows), in which an input channel is one stretch of memory."""
    return weight.T.clone(memory_format=torch.contiguous_format)


def nearest(quotient: torch.Tensor, to: str) -> torch.Tensor:
    """The values of the codes next to w / s, in fp32; the ends of the range beyond it."""
    if to == "int4":
        # an integer has no -0
        return quotient.clamp(*INT4).nan_to_num(0.0).round() + 0.0
    return quotient.clamp(-F143.max, F143.max).to(torch.float8_e4m3fnuz).float()


def stored(values: torch.Tensor, to: str) -> torch.Tensor:
    """Values of codes in the type that holds them; int4 codes one a byte."""
    return values.to(torch.int8 if to == "int4" else torch.float8_e4m3fnuz)


def inverse_factor(x: torch.Tensor, damping: float = DAMPING) -> torch.Tensor:
    """U (n, n) fp32 of the inputs x (samples, n) of a block: U^T U = (X^T X + lambda I)^-1, computed in fp64.

    lambda is `damping` times the mean of the diagonal.

    Raises:
        ValueError: more than 64 channels, inputs that are not finite or all zero, or a damping that is not positive.
    """
    n = x.shape[-1]
    if n > BLOCK:
        raise ValueError(f"{n} channels; a block has at most {BLOCK}")
    if not damping > 0.0:
        raise ValueError(f"damping {damping!r}; it makes the Hessian regular and is positive")
    wide = x.double()
    hessian = wide.T @ wide
    level = hessian.diagonal().mean()
    if not (level > 0 and level.isfinite()):
        raise ValueError(f"the mean square of the inputs is {float(level)}; a Hessian needs data")
    hessian = hessian + damping * level * torch.eye(n, dtype=torch.float64)
    # the inverse of a lower factor's mirror image is upper, and no inverse is factored again
    lower = torch.linalg.cholesky(hessian.flip(0, 1)).flip(0, 1)
    factor: torch.Tensor = torch.linalg.inv(lower).float()
    return factor


def quantise_weight(
    weight: torch.Tensor, x: torch.Tensor, scales: torch.Tensor, to: str
) -> torch.Tensor:
    """Codes (n, k) of a weight (n, k) whose inputs were x (samples, k): blocks of 64 channels, each on its own."""
    parts = []
    for first in range(0, weight.shape[1], BLOCK):
        block = slice(first, first + BLOCK)
        factor = inverse_factor(x[:, block])
        parts.append(gptq_block64_torch(weight[:, block].float(), factor, scales, to=to)[0])
    return torch.cat(parts, 1)
