"""Modules that transformers' models copy from one another: one of each is a client, the others give its bits."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="transformers is an extra: [transformers]")


def of(model: str, name: str) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name)


def rows(seed: int, *shape: int) -> torch.Tensor:
    drawn = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return torch.from_numpy(drawn).bfloat16()


NORMS = {
    ("gemma", "GemmaRMSNorm"): [
        ("gemma2", "Gemma2RMSNorm"),
        ("gemma3", "Gemma3RMSNorm"),
        ("qwen3_5", "Qwen3_5RMSNorm"),
    ],
    ("qwen3", "Qwen3RMSNorm"): [
        ("llama", "LlamaRMSNorm"),
        ("qwen2", "Qwen2RMSNorm"),
        ("qwen3_vl", "Qwen3VLTextRMSNorm"),
        ("mistral", "MistralRMSNorm"),
    ],
}


@pytest.mark.parametrize(("client", "copies"), NORMS.items(), ids=lambda x: str(x[0]))
def test_norms(client: tuple[str, str], copies: list[tuple[str, str]]) -> None:
    x, weight = rows(0, 64, 640), rows(1, 640)
    outs = []
    for model, name in (client, *copies):
        norm = of(model, name)(640, eps=1e-6).bfloat16()
        norm.weight = torch.nn.Parameter(weight, requires_grad=False)
        outs.append(norm(x))
    for out in outs[1:]:
        assert torch.equal(out, outs[0])
    # the two kinds differ
    ((other, name),) = [kind for kind in NORMS if kind != client]
    norm = of(other, name)(640, eps=1e-6).bfloat16()
    norm.weight = torch.nn.Parameter(weight, requires_grad=False)
    assert not torch.equal(norm(x), outs[0])


@pytest.mark.parametrize(("name", "approximate"), [("gelu_pytorch_tanh", "tanh"), ("gelu", "none")])
def test_gelu_is_torch_s(name: str, approximate: str) -> None:
    from transformers.activations import ACT2FN

    x = rows(2, 64, 640)
    assert torch.equal(ACT2FN[name](x), torch.nn.functional.gelu(x, approximate=approximate))


def test_silu_is_torch_s() -> None:
    from transformers.activations import ACT2FN

    x = rows(3, 64, 640)
    assert torch.equal(ACT2FN["silu"](x), torch.nn.functional.silu(x))


@pytest.mark.parametrize("model", ["gemma2", "gemma3", "qwen3", "qwen3_vl", "mistral"])
def test_rotations(model: str) -> None:
    q, k = rows(4, 1, 5, 9, 64), rows(5, 1, 2, 9, 64)
    cos, sin = (rows(seed, 1, 9, 64) for seed in (6, 7))
    theirs = of(model, "apply_rotary_pos_emb")(q, k, cos, sin)
    for out, own in zip(theirs, of("llama", "apply_rotary_pos_emb")(q, k, cos, sin), strict=True):
        assert torch.equal(out, own)


@pytest.mark.parametrize("model", ["gemma2", "gemma3", "qwen3", "siglip", "mistral"])
def test_eager_attention(model: str) -> None:
    from types import SimpleNamespace

    q, k, v = rows(8, 1, 4, 7, 16), rows(9, 1, 4, 7, 16), rows(10, 1, 4, 7, 16)
    mask = torch.zeros(1, 1, 7, 7, dtype=torch.bfloat16).masked_fill(
        torch.ones(7, 7, dtype=torch.bool).triu(1), -torch.inf
    )
    module = SimpleNamespace(num_key_value_groups=1, training=False, head_dim=16)
    out, own = (
        of(name, "eager_attention_forward")(module, q, k, v, mask, scaling=0.25)[0]
        for name in (model, "llama")
    )
    assert torch.equal(out, own)
