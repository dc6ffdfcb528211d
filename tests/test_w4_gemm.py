"""Products of rows with dequantised four-bit weights: literal values, formats, agreement with torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import Kernel, find, make_case, shape_from
from contract.inputs import generator
from contract.kernels import packing
from contract.kernels.w4_gemm import w4_gemm_torch
from contract.kernels.w4_gemv import exact_rows, sized
from contract.ranges import OutputRange, case_range

BF16 = ("w4_gemm", "bf16", {"block": "32"})
FP16 = ("w4_gemm", "fp16", {"block": "128"})


def allowed(kernel: Kernel, values: Mapping[str, Any]) -> OutputRange:
    sizes = shape_from(kernel, {name: np.shape(x) for name, x in values.items()})
    found = case_range(kernel, make_case(kernel, sizes, values))["out"]
    assert isinstance(found, OutputRange)
    return found


def refused(out: OutputRange, y: Any) -> int:
    bits = formats.encode(formats.round_to(np.asarray(y, np.float64), out.fmt), out.fmt)
    return int(out.refused(bits).sum())


def test_the_weight_is_rounded_to_the_format_of_the_rows() -> None:
    # (15 - 4) * 1.0009765625 = 11.0107421875: fp16 has 11.0078125; times 1024, less 1024 * 11 of the second input
    codes = np.full((1, 128), 4)
    codes[0, :2] = 15
    x = np.zeros((1, 128))
    x[0, :2] = 1024.0, -1023.0
    values = {
        "x": x,
        "words": packing.pack(codes, 4).astype(np.float64),
        "scales": np.full((1, 1), 1.0009765625),
        "zeros": np.full((1, 1), 4.0),
    }
    out = allowed(find(*FP16), values)
    assert not refused(out, [[11.0078125]])
    assert refused(out, [[11.015625]])
    assert refused(out, [[15.0]])


@pytest.mark.parametrize(("name", "profile", "parameters"), [BF16, FP16])
@pytest.mark.parametrize("k", [384, 640])
def test_torchs_linear_of_the_dequantised_weight_agrees(
    name: str, profile: str, parameters: Mapping[str, str], k: int
) -> None:
    kernel = find(name, profile, parameters)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[profile]
    values = exact_rows(generator("gemm", k), sized(rows=5, n=9, k=k), {}, parameters)
    values = {o.name: np.asarray(values[o.name], np.float64) for o in kernel.inputs()}
    x, scales = (torch.from_numpy(values[n]).to(kind) for n in ("x", "scales"))
    codes = packing.unpack(values["words"].astype(np.int32), 4, k).astype(np.float64)
    zero = values.get("zeros", np.full(scales.shape, 8.0))
    q = (codes.reshape(9, scales.shape[1], -1) - zero[..., None]).reshape(9, k)
    weight = torch.from_numpy(q).to(kind) * scales.repeat_interleave(k // scales.shape[1], 1)
    out = allowed(kernel, values)
    assert out.one_value().all()
    assert not refused(out, torch.nn.functional.linear(x, weight).double().numpy())
    words = torch.from_numpy(values["words"]).int()
    zeros = torch.from_numpy(zero).byte() if profile == "fp16" else None
    y = w4_gemm_torch(x, words, scales, zeros, block=parameters["block"])
    assert not refused(out, y.double().numpy())


def test_a_wrong_number_of_scales_is_refused() -> None:
    words, x = torch.zeros(2, 16, dtype=torch.int32), torch.ones(1, 128).half()
    with pytest.raises(
        ValueError, match="2 scales a row for 128 inputs in blocks of 128; there are 1"
    ):
        w4_gemm_torch(x, words, torch.ones(2, 2).half(), torch.zeros(2, 1).byte(), block="128")
