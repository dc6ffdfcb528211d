"""Saturating fp8 quantiser: literal codes and counts, every fp16 value, and gfloat's saturating encoder."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from contract import formats
from contract.case import Kernel, find, make_case
from contract.kernels.quant_f143_sat import quant_f143_sat_torch
from contract.ranges import case_range

INF, NAN = np.inf, np.nan


def judged(
    x: ArrayLike, codes: ArrayLike, clipped: int, k: int = 0, source: str = "fp32"
) -> dict[str, int]:
    """How many codes (given as values) and counts of one row are not allowed."""
    kernel = find("quant_f143_sat", "saturate", {"source": source})
    row = np.atleast_2d(np.asarray(x, np.float64))
    case = make_case(kernel, {"rows": 1, "d": row.shape[1]}, {"x": row}, {"k": k})
    allowed = case_range(kernel, case)
    fmt = formats.get("e4m3fnuz")
    # a value beyond 240 is no code: it is taken for its NaN
    bits = formats.encode(formats.round_to(np.atleast_2d(codes), fmt, "nearest_even", "nan"), fmt)
    count = np.array([clipped], np.int32).view(np.uint32)
    return {
        "codes": int(allowed["codes"].refused(bits).sum()),
        "clipped": int(allowed["clipped"].refused(count).sum()),
    }


RIGHT = {"codes": 0, "clipped": 0}
X = [240.0, 247.9, 248.0, 1e4, -1e4, INF, -INF, NAN, -0.0]
CODES = [240.0, 240.0, 240.0, 240.0, -240.0, 240.0, -240.0, NAN, 0.0]


def test_what_is_beyond_the_range_saturates_and_is_counted() -> None:
    assert judged(X, CODES, 5) == RIGHT
    # nan at overflow; infinities alone NaN; a clamp that eats the NaN
    overflow = [240.0, 240.0, NAN, NAN, NAN, NAN, NAN, NAN, 0.0]
    assert judged(X, overflow, 5)["codes"] == 5
    assert judged(X, [240.0] * 4 + [-240.0, NAN, NAN, NAN, 0.0], 5)["codes"] == 2
    assert judged(X, [240.0] * 4 + [-240.0, 240.0, -240.0, 240.0, 0.0], 5)["codes"] == 1


@pytest.mark.parametrize("wrong", [0, 3, 4, 6, 7])
def test_another_count_is_refused(wrong: int) -> None:
    """Without the infinities 3, without the tie 4, with the NaN or with 247.9 6, with both 7."""
    assert judged(X, CODES, wrong)["clipped"] == 1


def test_ties_go_to_the_even_code_and_subnormals_are_kept() -> None:
    # halves between 4-bit significands; 2^-11 is halfway from 0 to the smallest code
    x = [17.0, 19.0, 136.0, 152.0, 2.0**-11, 3 * 2.0**-11, 5 * 2.0**-10, -(2.0**-12)]
    right = [16.0, 20.0, 128.0, 160.0, 0.0, 2.0**-9, 5 * 2.0**-10, 0.0]
    away = [18.0, 20.0, 144.0, 160.0, 2.0**-10, 2.0**-9, 5 * 2.0**-10, 0.0]
    flushed = [16.0, 20.0, 128.0, 160.0, 0.0, 0.0, 0.0, 0.0]
    assert judged(x, right, 0) == RIGHT
    assert judged(x, away, 0)["codes"] == 3
    assert judged(x, flushed, 0)["codes"] == 2


def test_one_rounding_only() -> None:
    """Just beside a tie, which fp16 on the way makes of it."""
    x = [1.0625 + 2.0**-20, 1.0625 - 2.0**-20, 1.0625]
    assert judged(x, [1.125, 1.0, 1.0], 0) == RIGHT
    assert judged(x, [1.0, 1.0, 1.0], 0)["codes"] == 1


def test_a_code_stands_for_code_times_2_to_the_k() -> None:
    # k = -4 spans +-15, as 240 / 16
    x = [15.0, 15.5, 1.0]
    assert judged(x, [240.0, 240.0, 16.0], 1, -4) == RIGHT
    assert judged(x, [120.0, 120.0, 8.0], 0, -4) == {"codes": 3, "clipped": 1}
    assert judged(x, [15.0 / 16, 15.5 / 16, 1 / 16], 0, -4)["codes"] == 3


def outputs(kernel: Kernel, x: torch.Tensor, k: float) -> dict[str, Any]:
    codes, clipped = quant_f143_sat_torch(x, k=k)
    return {
        "codes": codes.view(torch.uint8).numpy(),
        "clipped": clipped.numpy().view(np.uint32),
    }


@pytest.mark.parametrize("source", ["fp16", "bf16"])
@pytest.mark.parametrize("k", [0.0, -12.0, 7.0])
def test_the_torch_kernel_is_allowed_on_every_16_bit_value(source: str, k: float) -> None:
    kernel = find("quant_f143_sat", "saturate", {"source": source})
    fmt = formats.get(source)
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(64, -1)
    case = make_case(kernel, {"rows": 64, "d": 1 << 10}, {"x": bits}, {"k": k})
    dtype = torch.float16 if source == "fp16" else torch.bfloat16
    got = outputs(kernel, torch.from_numpy(bits.view(np.int16)).view(dtype), k)
    allowed = case_range(kernel, case)
    for name, out in allowed.items():
        assert not out.refused(got[name]).any(), name
    assert allowed["codes"].one_value().all()
    # why the rounding point `count` is vacuous: the sum is one whole number before it
    assert allowed["clipped"].one_value().all()
    assert got["clipped"].sum() == (np.abs(formats.decode(bits, fmt)) * 2.0**-k >= 248).sum()


@pytest.mark.skipif(importlib.util.find_spec("gfloat") is None, reason="gfloat is not there")
def test_gfloat_saturates_to_the_same_codes() -> None:
    import gfloat

    info = gfloat.FormatInfo(
        name="f143", k=8, precision=4, bias=8, domain=gfloat.Domain.Finite, has_nz=False,
        num_high_nans=0, is_signed=True, is_twos_complement=False, has_subnormals=True,
    )  # fmt: skip
    bits = np.arange(0, 1 << 16, 5, dtype=np.uint16)
    x = formats.decode(bits, formats.get("fp16"))
    x = x[np.isfinite(x)]
    theirs = gfloat.round_ndarray(info, x, sat=True)
    codes, _ = quant_f143_sat_torch(torch.from_numpy(x).float()[None], k=0.0)
    np.testing.assert_array_equal(codes.float().numpy()[0].astype(np.float64), theirs)
