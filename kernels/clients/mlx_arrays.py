"""Between torch's tensors and MLX's arrays, bit for bit; everything is computed on the CPU, also where there is a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract.lazy import lazy

if TYPE_CHECKING:
    import mlx.core as mx
    import torch
else:
    mx, torch = lazy("mlx.core"), lazy("torch")

NEEDS = ("mlx.core",)


def to_mlx(x: torch.Tensor) -> mx.array:
    """The same bits; int32 words are uint32 ones, as MLX packs them."""
    if x.dtype == torch.bfloat16:
        return mx.array(x.contiguous().view(torch.int16).numpy()).view(mx.bfloat16)
    if x.dtype == torch.int32:
        return mx.array(x.contiguous().numpy()).view(mx.uint32)
    return mx.array(x.contiguous().numpy())


def to_torch(x: mx.array) -> torch.Tensor:
    """The same bits, computed now."""
    import numpy as np

    if x.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(x.view(mx.int16))).view(torch.bfloat16)
    if x.dtype == mx.uint32:
        x = x.view(mx.int32)
    return torch.from_numpy(np.array(x))


def on_cpu(call: Any, *given: torch.Tensor, **how: Any) -> Any:
    """What an operator of MLX returns for these tensors, as tensors."""
    with mx.stream(mx.cpu):
        result = call(*map(to_mlx, given), **how)
        if isinstance(result, list | tuple):
            return tuple(map(to_torch, result))
        return to_torch(result)
