"""Functions that `contract identify` is asked about; none says what it rounds."""

from __future__ import annotations

import os
import time
from typing import Any

import torch


def gelu_tanh_times_up(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def truncating_cast(x: torch.Tensor) -> torch.Tensor:
    cut = (x.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(x.isnan(), torch.full_like(cut, torch.nan), cut)


def narrow_dot(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype)
    for k in range(x.shape[1]):
        total = total + x[:, k : k + 1] * weight[:, k]
    return total


def _four_bits(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    codes = (words[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15
    centred = codes.reshape(len(words), scales.shape[1], -1).float() - 8.0
    return (centred * scales.float()[..., None]).reshape(len(words), -1)


def int4_rounded(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    weight = _four_bits(words, scales).to(x.dtype).float()
    return (x.float() @ weight.T).to(x.dtype)


def int4_kept(x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (x.float() @ _four_bits(words, scales).T).to(x.dtype)


def llama_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    width = 2 * cos.shape[-1]
    both: Any = [torch.cat((table, table), -1)[None] for table in (cos, sin)]
    turned, _ = apply_rotary_pos_emb(x[None, ..., :width], x[None, :, :1, :width], *both, 2)
    return torch.cat((turned[0], x[..., width:]), -1)


def gptj_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    width = 2 * cos.shape[-1]
    turned = apply_rotary_pos_emb(x[None, ..., :width], sin[None], cos[None])
    return torch.cat((turned[0], x[..., width:]), -1)


class Norm(torch.nn.Module):
    """Its eps is its own, and has another name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        wide = rows.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return (wide * scale).to(rows.dtype) * self.weight


def noise(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * 1.03 + 0.01).to(torch.bfloat16)


def dies(x: torch.Tensor) -> torch.Tensor:
    os.abort()


def hangs(x: torch.Tensor) -> torch.Tensor:
    while True:
        time.sleep(1.0)


def hoards(x: torch.Tensor) -> torch.Tensor:
    kept = torch.ones(1 << 33, dtype=torch.float64)
    return kept[: x.numel()].reshape(x.shape).to(torch.bfloat16)


def _two_step(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def one_wrong(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """One element of each call, which is far less than the share that an explanation may leave."""
    out = _two_step(x, weight, eps)
    out[0, 0] = 0.0
    return out


def llama_like(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Takes whatever stands for its weight, a number too."""
    return _two_step(x, weight, eps)


class Weighted:
    """Built with its weight."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _two_step(x, self.weight, self.eps)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Another formula than that of an RMS norm."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, None, eps) + 0.25


def raises(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    raise RuntimeError("no kernel image for this device")


def every_step(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """An eager formula: each of its steps is a tensor of x's format."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def every_step_softmax(x: torch.Tensor) -> torch.Tensor:
    raised = torch.exp(x - x.amax(-1, keepdim=True))
    return raised / raised.sum(-1, keepdim=True)
