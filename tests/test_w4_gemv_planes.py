"""Plane products: literal planes, sums beyond 24 bits, the clamp, and torch's embedding bags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import Kernel, find, make_case, shape_from
from contract.controls.w4_gemv_planes import planes_of, running_fp32, totals_of
from contract.inputs import generator
from contract.kernels import packing
from contract.kernels.w4_gemv_planes import (
    PlaneWeight,
    exact_rows,
    full_codes,
    sized,
    w4_gemv_planes_torch,
)
from contract.ranges import OutputRange, case_range
from contract.references.w4_gemv_planes import TOP, planes


def allowed(kernel: Kernel, values: Mapping[str, Any]) -> OutputRange:
    sizes = shape_from(kernel, {name: np.shape(x) for name, x in values.items()})
    found = case_range(kernel, make_case(kernel, sizes, values))["out"]
    assert isinstance(found, OutputRange)
    return found


def refused(out: OutputRange, y: Any) -> int:
    bits = formats.encode(formats.round_to(np.asarray(y, np.float64), out.fmt), out.fmt)
    return int(out.refused(bits).sum())


def one_block(a: list[int], q: list[int], zero: int = 0) -> dict[str, Any]:
    """One block of 128 with these first codes; the rest of a is 0."""
    rest = 128 - len(a)
    return {
        "a": np.array([a + [0] * rest], np.float64),
        "words": packing.pack([q + [0] * rest], 4).astype(np.float64),
        "scales": np.ones((1, 1)),
        "zeros": np.array([[zero]], np.float64),
    }


@pytest.mark.parametrize(
    ("code", "signed", "unsigned"),
    [
        (0, (0, 0), (0, 0)),
        (127, (0, 127), (0, 127)),
        (128, (1, -128), (0, 128)),
        (-128, (0, -128), (-1, 128)),
        (-129, (-1, 127), (-1, 127)),
        (-32768, (-128, 0), (-128, 0)),
        (32639, (127, 127), (127, 127)),
        # from here on a signed low plane would need hi = 128
        (32640, (127, 127), (127, 128)),
        (32767, (127, 127), (127, 255)),
    ],
)
def test_planes(code: int, signed: tuple[int, int], unsigned: tuple[int, int]) -> None:
    for low, pair in (("signed", signed), ("unsigned", unsigned)):
        high, lower = planes(np.array([[code]]), low)
        assert (high.item(), lower.item()) == pair


def test_every_code_is_its_planes() -> None:
    a = np.arange(-32768, 32768)[None]
    for low, ends in (("signed", (-128, 127)), ("unsigned", (0, 255))):
        high, lower = planes(a, low)
        assert np.array_equal(256 * high + lower, np.minimum(a, TOP) if low == "signed" else a)
        assert (high.min(), high.max()) == (-128, 127)
        assert (lower.min(), lower.max()) == ends


def test_the_clamp_and_the_wrap() -> None:
    # 32767 * 15: clamped 489585, as it is 491505, wrapped (hi = -128) -491535
    values = one_block([32767], [15])
    signed = allowed(find("w4_gemv_planes", "once"), values)
    unsigned = allowed(find("w4_gemv_planes", "once", {"low": "unsigned"}), values)
    assert not refused(signed, [[489_585]])
    assert not refused(unsigned, [[491_505]])
    for out in (signed, unsigned):
        assert refused(out, [[15 * (256 * -128 - 1)]])
        # planes swapped, zero point one off
        assert refused(out, [[15 * (256 * 127 + 127) + 32_639]])


def test_zero_points_take_both_planes() -> None:
    values = one_block([256 + 1, 3], [15, 0], zero=15)
    out = allowed(find("w4_gemv_planes", "once"), values)
    assert out.one_value().all()
    assert not refused(out, [[-45]])
    assert refused(out, [[15 * 257]])
    assert refused(out, [[-45 + 15 * (1 + 3)]])


def test_running_sums_beyond_24_bits_stay_exact() -> None:
    a = full_codes(np.random.default_rng(3), 2, 128)[:1]
    q = np.full((1, 128), 15)
    half = int((15 * a[0, :64]).sum())
    assert half > 2**24
    assert half % 2 == 0
    words, zeros = torch.from_numpy(packing.pack(q, 4)), torch.zeros(1, 1, dtype=torch.uint8)
    exact = int(15 * a.sum())
    assert 0 < -exact < 256
    given = torch.from_numpy(a).short()
    right = totals_of(*planes_of(given), torch.full((1, 1, 128), 15), zeros)
    assert right.item() == exact
    # an fp32 accumulator of the whole codes has lost bits on the way
    assert running_fp32(given, words, torch.ones(1, 1), zeros).item() != exact
    y = w4_gemv_planes_torch(given, words, torch.ones(1, 1), zeros, low="signed", profile="once")
    assert y.item() == exact


@pytest.mark.parametrize("low", ["signed", "unsigned"])
@pytest.mark.parametrize("n", [1, 64, 67])
def test_embedding_bags_sum_exactly(low: str, n: int) -> None:
    values = exact_rows(generator("bags", n), sized(rows=3, n=n, k=384), {}, {"low": low})
    a, words, zeros = (
        torch.from_numpy(values[name]).to(kind)
        for name, kind in (("a", torch.int16), ("words", torch.int32), ("zeros", torch.uint8))
    )
    scales = torch.from_numpy(values["scales"]).float()
    held = a.clamp(max=TOP) if low == "signed" else a
    y = PlaneWeight.prepare(words, scales, zeros)(held)
    totals = totals_of(
        *planes_of(a, low), packing.nibbles_of(words).long().reshape(n, 3, 128), zeros
    )
    exact = (totals.double() * scales.double()).sum(-1)
    # three products and sums in fp32 of what is exact before
    assert ((y - exact).abs() <= 3 * 2.0**-24 * (totals.double() * scales).abs().sum(-1)).all()
    assert y.shape == (3, n)


def test_the_table_holds_four_bits_a_code() -> None:
    words = torch.zeros(128, 48, dtype=torch.int32)
    weight = PlaneWeight.prepare(words, torch.ones(128, 3), torch.zeros(128, 3, dtype=torch.uint8))
    codes = 4 * words.numel()
    # and an fp16 scale and bias for each 64 codes
    assert weight.table.numel() == codes + codes // 32 * 4


def test_a_nan_scale_is_refused() -> None:
    words, a = torch.zeros(2, 16, dtype=torch.int32), torch.zeros(1, 128, dtype=torch.int16)
    zeros = torch.zeros(2, 1, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"scale nan at \[1, 0\]"):
        w4_gemv_planes_torch(
            a, words, torch.tensor([[1.0], [torch.nan]]), zeros, low="signed", profile="once"
        )
