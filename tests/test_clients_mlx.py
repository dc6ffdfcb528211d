"""MLX's operators: bits pass between the libraries unchanged, and all bf16 values through its activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import contract.kernels.geglu
import contract.kernels.softcap
import contract.kernels.swiglu
from contract import formats
from contract.case import find, make_case, shape_from
from contract.kernels.clients import mlx_activations, mlx_arrays, mlx_norms
from contract.ranges import case_range

mx = pytest.importorskip("mlx.core", reason="mlx is an extra: [formats]")

assert contract.kernels.softcap.softcap.name == "softcap"

WORDS = np.arange(1 << 16, dtype=np.uint16).reshape(128, 512)
EVERY = torch.from_numpy(WORDS.view(np.int16)).view(torch.bfloat16)


def refused(
    name: str, out: torch.Tensor, inputs: Mapping[str, Any], scalars: Mapping[str, float]
) -> int:
    kernel = find(name, "each_op")
    arrays = {key: formats.decode(words, "bf16") for key, words in inputs.items()}
    sizes = shape_from(kernel, {key: x.shape for key, x in arrays.items()})
    allowed = case_range(kernel, make_case(kernel, sizes, arrays, scalars))["out"]
    words = out.contiguous().view(torch.int16).numpy().view(np.uint16)
    return int(allowed.refused(words).sum())


def test_bits_pass_unchanged() -> None:
    given = [
        EVERY,
        torch.from_numpy(WORDS.view(np.float16)),
        torch.arange(-8, 8, dtype=torch.int32).reshape(4, 4).T * (1 << 27),
        torch.tensor([[0.0, -0.0], [torch.inf, 1e-45]]),
        torch.tensor([True, False]),
    ]
    for x in given:
        back = mlx_arrays.to_torch(mlx_arrays.to_mlx(x))
        assert back.dtype == x.dtype
        assert back.shape == x.shape
        assert torch.equal(back.contiguous().view(torch.uint8), x.contiguous().view(torch.uint8))


def test_every_gate_is_activated_as_the_contract_says() -> None:
    ones = np.full_like(WORDS, 0x3F80)
    inputs = {"gate": WORDS, "up": ones}
    up = torch.ones_like(EVERY)
    for name, call in (("swiglu", mlx_activations.swiglu), ("geglu", mlx_activations.geglu)):
        assert refused(name, call(EVERY, up), inputs, {}) == 0
        assert refused(name, call(EVERY.flip(0), up), inputs, {}) > 60_000


@pytest.mark.parametrize("cap", [30.0, 50.0])
def test_every_logit_is_capped_as_the_contract_says(cap: float) -> None:
    out = mlx_norms.softcap(EVERY, cap=cap)
    assert refused("softcap", out, {"x": WORDS}, {"cap": cap}) == 0
    assert refused("softcap", out, {"x": WORDS}, {"cap": cap + 1.0}) > 10_000


def test_its_exp_is_too_wide_for_a_softmax() -> None:
    """Why there is no client of mlx.softmax."""
    x = np.linspace(-45.0, -35.0, 4096, dtype=np.float32)
    theirs = np.array(mx.exp(mx.array(x), stream=mx.cpu)).astype(np.float64)
    right = np.exp(x.astype(np.float64))
    assert np.abs(theirs / right - 1.0).max() > 8 * 2.0**-23


def test_its_product_of_packed_weights_adds_up_in_bf16() -> None:
    """Why mlx.quantized_matmul is a red control: 256 and 31 ones, all with the weight 1."""
    x = mx.array([[256.0, *[1.0] * 31]]).astype(mx.bfloat16)
    one, none = (mx.array([[value]]).astype(mx.bfloat16) for value in (1.0, 0.0))
    words = mx.array([[0x11111111] * 4], dtype=mx.uint32)
    total = mx.quantized_matmul(x, words, one, none, group_size=32, bits=4, stream=mx.cpu)
    assert float(total.item()) == 256.0
