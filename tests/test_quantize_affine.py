"""Affine quantisation: literal groups, an exact implementation beside it, MLX where it is there, and what is refused."""

from __future__ import annotations

import itertools
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import contract
from contract.autocontrols import nominal
from contract.case import find
from contract.errors import NotAllowed
from contract.inputs import typical_case
from contract.kernels.affine_packing import WIDTHS, unpack
from contract.kernels.quantize_affine import quantize_affine_torch, quantize_weight
from contract.ranges import case_range
from contract.readings.base import Change


def judge(x: Any, codes: Any, scale: Any, bias: Any, bits: int = 4, **more: Any) -> None:
    contract.assert_allowed(
        "quantize_affine",
        (
            torch.tensor([codes]).to(torch.uint8),
            torch.tensor([scale]).bfloat16(),
            torch.tensor([bias]).bfloat16(),
        ),
        x=torch.tensor([x]).bfloat16(),
        bits=str(bits),
        **more,
    )


#: Scale 1, bias -8: codes 0 .. 15 are -8 .. 7; odd halves are ties.
TIES = [-8.0, 7.0, -7.5, -6.5, -5.5, 0.0, 0.5, 1.5] * 4
TIE_CODES = [0, 15, 0, 2, 2, 8, 8, 10] * 4


def test_halves_go_to_the_even_code() -> None:
    judge(TIES, TIE_CODES, 1.0, -8.0)
    for wrong in (
        [0, 15, 1, 2, 3, 8, 9, 10] * 4,
        [0, 15, 0, 1, 2, 8, 8, 9] * 4,
        TIE_CODES[::-1],
    ):
        with pytest.raises(NotAllowed):
            judge(TIES, wrong, 1.0, -8.0)


def test_the_larger_end_is_the_bias_and_the_scale_points_away_from_it() -> None:
    x = [-v for v in TIES]
    judge(x, TIE_CODES, -1.0, 8.0)
    for scale, bias in ((1.0, -8.0), (1.0, 8.0), (-1.0, -7.0)):
        with pytest.raises(NotAllowed):
            judge(x, TIE_CODES, scale, bias)


def test_groups_without_a_range() -> None:
    # |lo| is not larger than |hi|: the scale is -1e-7, in bf16
    least = float(torch.tensor(-1e-7).bfloat16())
    judge([0.0] * 32, [0] * 32, least, 0.0)
    # 0.75 / 1e-7 whole codes away from 0
    judge([0.75] * 32, [0] * 32, least, 0.75)
    for codes, scale in (([0] * 32, 0.0), ([0] * 32, -least), ([15] * 32, least)):
        with pytest.raises(NotAllowed):
            judge([0.0] * 32, codes, scale, 0.0)


def test_codes_come_from_the_scale_before_it_is_rounded() -> None:
    # 2 bits from -1 to 0: scale 1/3, in bf16 0.333984375; (x + 1) 3 = 2.502, (x + 1) / 0.333984375 = 2.497
    x = [-1.0, 0.0] + [-0.166015625] * 30
    judge(x, [0, 3] + [3] * 30, 0.333984375, -1.0, bits=2)
    with pytest.raises(NotAllowed):
        judge(x, [0, 3] + [2] * 30, 0.333984375, -1.0, bits=2)


def beside_a_tie(q: Fraction) -> bool:
    """Where fp32 may go the other way."""
    return abs(q % 1 - Fraction(1, 2)) < Fraction(1, 10**4)


def exactly(group: list[float], n: int) -> tuple[Fraction, list[Fraction], Fraction, Fraction]:
    """The edge's code before it is rounded, then quotients, scale and bias of one group in rational numbers."""
    values = [Fraction(v) for v in group]
    lo, hi = min(values), max(values)
    step = max((hi - lo) / n, Fraction(float(np.float32(1e-7))))
    edge, step = (lo, step) if abs(lo) > abs(hi) else (hi, -step)
    whole = round(edge / step)
    scale, bias = (edge / whole, edge) if whole else (step, Fraction(0))
    return edge / step, [(v - bias) / scale for v in values], scale, bias


@pytest.mark.parametrize("bits", WIDTHS)
def test_torch_is_the_quantiser_in_rational_numbers(bits: int) -> None:
    rng, n = np.random.default_rng(bits), (1 << bits) - 1
    x = torch.from_numpy(rng.standard_normal((40, 64)) * np.exp2(rng.integers(-9, 9, (40, 1))))
    x[7] = x[7].abs()
    x = x.bfloat16()
    codes, scale, bias = quantize_affine_torch(x, bits=str(bits))
    compared = 0
    for row in range(40):
        ratio, quotients, s, b = exactly(x[row].tolist(), n)
        if beside_a_tie(ratio):
            continue
        assert scale[row] == torch.tensor(float(s)).bfloat16()
        assert bias[row] == float(b)
        for code, q in zip(codes[row].tolist(), quotients, strict=True):
            if not beside_a_tie(q):
                assert code == min(max(round(q), 0), n)
                compared += 1
    assert compared > 2000


def test_the_bias_needs_no_rounding() -> None:
    """The vacuous point: an end of a bf16 or fp16 group is a bf16 or fp16 number."""
    for profile in ("after_codes", "after_codes_fp16"):
        kernel = find("quantize_affine", profile)
        case = typical_case(kernel, {"rows": 64, "group": 32}, 0)
        out = nominal(kernel, case, change=Change(modes={"bias": "toward_zero"}))
        assert not case_range(kernel, case)["bias"].refused(out["bias"]).any()


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", WIDTHS)
def test_a_weight_comes_back_within_half_a_scale(bits: int, group: int) -> None:
    weight = torch.from_numpy(np.random.default_rng(bits).standard_normal((3, 256))).bfloat16()
    words, scales, biases = quantize_weight(weight, bits, group)
    assert words.shape == (3, 8 * bits)
    assert scales.shape == biases.shape == (3, 256 // group)
    codes = unpack(words, bits).unflatten(-1, (-1, group)).double()
    back = codes * scales.double()[..., None] + biases.double()[..., None]
    error = (back - weight.double().unflatten(-1, (-1, group))).abs()
    # half a step, one more where the far end has no code, and the scale's rounding over all codes
    assert (error <= scales.double().abs()[..., None] * (1.0 + 2**bits * 2.0**-8)).all()


@pytest.mark.parametrize(
    ("weight", "bits", "group", "said"),
    [
        (torch.ones(2, 64), 4, 48, "64 columns in groups of 48; groups are of 32, 64 or 128"),
        (torch.ones(2, 64), 7, 32, "7-bit codes; widths are 2, 3, 4, 5, 6, 8"),
        (torch.full((2, 64), float("inf")), 4, 32, "weight at [0, 0] is inf"),
    ],
)
def test_what_cannot_be_quantised_is_refused(
    weight: torch.Tensor, bits: int, group: int, said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        quantize_weight(weight, bits, group)


def test_mlx_gives_the_same_words_scales_and_biases() -> None:
    mx = pytest.importorskip("mlx.core", reason="mlx is an extra: [formats]")
    weight = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 256), np.float32))
    for bits, group in itertools.product(WIDTHS, (32, 64, 128)):
        for dtype, theirs in ((torch.bfloat16, mx.bfloat16), (torch.float16, mx.float16)):
            ours = quantize_weight(weight.to(dtype), bits, group)
            given = mx.array(weight.to(dtype).float().numpy()).astype(theirs)
            words, *rest = mx.quantize(given, group_size=group, bits=bits)
            assert np.array_equal(np.array(words).view(np.int32), ours[0].numpy())
            for got, own in zip(rest, ours[1:], strict=True):
                assert np.array_equal(np.array(got.astype(mx.float32)), own.float().numpy())
