"""Products with eight-bit weights: literal values, planes, ranges of both forms, errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import Case, Kernel, find, make_case, shape_from
from contract.errors import CaseError
from contract.held import TwoStep
from contract.inputs import generator
from contract.judge import Bench
from contract.kernels.w8_gemv import Int8Weight, W8GemvPlanes, exact_rows, w8_gemv_torch
from contract.ranges import OutputRange, case_range

BOTH = ("kept", "planes")
w8_gemv_planes = TwoStep(W8GemvPlanes)


def case_of(kernel: Kernel, values: Mapping[str, Any]) -> Case:
    given = {name: np.asarray(x, np.float64) for name, x in values.items()}
    sizes = shape_from(kernel, {name: np.shape(x) for name, x in given.items()})
    return make_case(kernel, sizes, given)


def allowed(profile: str, values: Mapping[str, Any]) -> OutputRange:
    kernel = find("w8_gemv", profile)
    found = case_range(kernel, case_of(kernel, values))["out"]
    assert isinstance(found, OutputRange)
    return found


def refused(out: OutputRange, y: Any) -> int:
    bits = formats.encode(formats.round_to(np.asarray(y, np.float64), out.fmt), out.fmt)
    return int(out.refused(bits).sum())


def tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    types = {"codes": torch.int8}
    return {
        name: torch.from_numpy(np.asarray(x, np.float64)).to(types.get(name, torch.bfloat16))
        for name, x in values.items()
    }


def one_code_an_output() -> dict[str, Any]:
    """x one at one place, and there all 256 codes."""
    codes = np.zeros((256, 64))
    codes[:, 37] = np.arange(-128, 128)
    x = np.zeros((1, 64))
    x[0, 37] = 1.0
    return {"x": x, "codes": codes, "scales": np.tile([0.5, 1.0], (256, 1))}


@pytest.mark.parametrize("profile", BOTH)
def test_every_code_times_the_scale_of_its_block(profile: str) -> None:
    values = one_code_an_output()
    q = np.arange(-128.0, 128.0)
    out = allowed(profile, values)
    assert not refused(out, q[None])
    # the other block's scale, no sign, -128 clamped, and lo without its offset
    assert refused(out, q[None] / 2) == 255
    assert refused(out, (q % 256)[None]) == 128
    assert refused(out, np.maximum(q, -127)[None]) == 1
    assert refused(out, (q - 8)[None]) == 256
    kernel = w8_gemv_torch if profile == "kept" else w8_gemv_planes
    assert kernel(**tensors(values))[0].tolist() == q.tolist()


def test_the_sum_of_planes_may_lie_further_off() -> None:
    # -1 = 16 * -1 + 15: terms of 31 times the magnitude
    rng = np.random.default_rng(1)
    values = {
        "x": rng.standard_normal((4, 64)),
        "codes": np.where(np.arange(64) % 2, -1.0, 1.0) * np.ones((8, 1)),
        "scales": rng.uniform(0.5, 1.0, (8, 2)),
    }
    values["x"] = formats.round_to(values["x"], formats.get("bf16"))
    values["scales"] = formats.round_to(values["scales"], formats.get("bf16"))
    whole, planes = (allowed(profile, values) for profile in BOTH)
    assert (planes.lo <= whole.lo).all()
    assert (whole.hi <= planes.hi).all()
    assert ((planes.lo < whole.lo) | (whole.hi < planes.hi)).any()


@pytest.mark.parametrize("k", [96, 384])
@pytest.mark.parametrize("profile", BOTH)
def test_exact_rows_are_proven_and_met(profile: str, k: int) -> None:
    rng = generator("test", k)
    shape = {"rows": 4, "n": 33, "k": k, "blocks": k // 32}
    values = exact_rows(rng, shape, {}, {})
    out = allowed(profile, values)
    assert out.one_value().mean() > 0.99
    kernel = w8_gemv_torch if profile == "kept" else w8_gemv_planes
    assert not refused(out, kernel(**tensors(values)).double().numpy())
    bench = Bench(find("w8_gemv", profile), "quick", 0)
    assert sum(c.shape["rows"] for c in bench.cases("exact")) == bench.exact_candidates


def test_infinities_tell_planes_apart() -> None:
    values = one_code_an_output()
    values["x"][0, 37] = np.inf
    q = np.arange(-128, 128)
    infinite = np.where(q == 0, np.nan, np.copysign(np.inf, q))
    # hi or lo is zero, or they have other signs
    planes = np.where((q >> 4 > 0) & (q & 15 > 0), np.inf, np.nan)
    # at the other places 0 times a zero is zero
    assert not refused(allowed("kept", values), infinite[None])
    assert not refused(allowed("planes", values), planes[None])
    assert refused(allowed("planes", values), infinite[None])
    given = tensors(values)
    np.testing.assert_array_equal(w8_gemv_torch(**given)[0].double().numpy(), infinite)
    np.testing.assert_array_equal(w8_gemv_planes(**given)[0].double().numpy(), planes)


def test_the_weight_takes_the_bytes_of_its_codes() -> None:
    codes = torch.zeros(64, 96, dtype=torch.int8)
    weight = Int8Weight.prepare(codes, torch.ones(64, 3).bfloat16())
    assert weight.planes.table.numel() * weight.planes.table.element_size() == codes.numel()


def test_a_huge_scale_is_no_infinity() -> None:
    values = one_code_an_output()
    values["codes"], values["x"] = np.clip(values["codes"], -1, 1), values["x"] / 2
    values["scales"][3] = 2.0**123
    y = w8_gemv_planes(**tensors(values))
    assert y[0, 3].item() == -(2.0**122)
    given = tensors(values)
    with pytest.raises(ValueError, match="128 times it"):
        Int8Weight.prepare(given["codes"], given["scales"])


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(CaseError, match="blocks = k / 32"):
        shape_from(
            find("w8_gemv"), {"x": (1, 64), "codes": (4, 64), "scales": (4, 1), "out": (1, 4)}
        )
    x, codes = torch.ones(1, 64).bfloat16(), torch.zeros(2, 64, dtype=torch.int8)
    for kernel in (w8_gemv_torch, w8_gemv_planes):
        with pytest.raises(ValueError, match=r"scale nan at \[0, 0\]"):
            kernel(x=x, codes=codes, scales=torch.full((2, 2), torch.nan).bfloat16())
        with pytest.raises(ValueError, match="1 scales a row for 64 inputs in blocks of 32"):
            kernel(x=x, codes=codes, scales=torch.ones(2, 1).bfloat16())
