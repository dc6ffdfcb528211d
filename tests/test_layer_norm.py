"""Layer norm: literal cases, the faults they refuse, the proof of merged moments, agreement with torch."""

from __future__ import annotations

import numpy as np
import pytest

from contract import formats
from contract.case import Kernel, make_case
from contract.interval import Freedom, point
from contract.kernels.layer_norm import layer_norm, layer_norm_torch
from contract.moments import merged_range
from contract.ranges import case_range, option_sets
from contract.readings.orders import merged_moments


def refused(profile: str, x: object, weight: object, bias: object, out: object) -> int:
    """How many of these outputs the contract refuses under every alternative, eps 1e-5."""
    kernel = Kernel(layer_norm, {}, layer_norm.profile(profile))
    values = {
        k: np.asarray(v, np.float64) for k, v in {"x": x, "weight": weight, "bias": bias}.items()
    }
    shape = {"rows": values["x"].shape[0], "d": values["x"].shape[1]}
    case = make_case(kernel, shape, values, {"eps": 1e-5})
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64), fmt), fmt)
    ranges = [case_range(kernel, case, options)["out"] for options in option_sets(kernel)]
    return min(int(r.refused(bits).sum()) for r in ranges)


def test_a_constant_row_is_the_bias() -> None:
    x, weight, bias = np.full((1, 64), 3001.5), np.full(64, 1.25), np.linspace(-1, 1, 64)
    bias = bias.astype(np.float32).astype(np.float64)
    assert refused("float32", x, weight, bias, bias[None]) == 0
    # a one-pass variance is -2 in fp32, and its root NaN
    assert refused("float32", x, weight, bias, np.full((1, 64), np.nan)) == 64


def test_each_rounding_is_seen() -> None:
    x = [[0.353515625, -0.09228515625, -0.71875, 1.9453125]]
    weight = [1.2578125, 1.15625, 1.2578125, 1.296875]
    bias = [0.0166015625, -0.240234375, 0.765625, -0.26953125]
    once = [[-0.006927490234375, -0.78515625, -0.62890625, 1.8046875]]
    each_op = [[-0.0068359375, -0.78125, -0.6328125, 1.796875]]
    bias_apart = [[-0.0069580078125, -0.7890625, -0.625, 1.8125]]
    for profile, right in (("once", once), ("each_op", each_op)):
        found = [refused(profile, x, weight, bias, out) for out in (once, each_op, bias_apart)]
        assert found == [0 if out is right else 4 for out in (once, each_op, bias_apart)]


@pytest.mark.parametrize("lanes", [1, 2, 8, 64])
@pytest.mark.parametrize("mean", [0.0, 200.0, 3e4])
def test_merged_moments_lie_in_their_range(lanes: int, mean: float) -> None:
    rng = np.random.default_rng([lanes, int(mean)])
    for d in (2, 3, 17, 300):
        x = (mean + rng.standard_normal((64, d)) * np.exp2(rng.integers(-3, 4, (64, 1)))).astype(
            np.float32
        )
        got = merged_moments(x.astype(np.float64), lanes)
        allowed = merged_range(point(x, narrow=True), -1, None, Freedom())
        for value, bounds in zip(got, allowed, strict=True):
            assert bool((bounds.lo[:, 0] <= value).all())
            assert bool((value <= bounds.hi[:, 0]).all())


def test_merged_moments_refuse_a_one_pass_variance() -> None:
    x = np.array([[251.0, 252.0, 251.0, 251.0, 251.0]])
    _, variance = merged_range(point(x, narrow=True), -1, None, Freedom())
    assert variance.lo.item() <= 0.16 <= variance.hi.item()
    # sum(x^2) / 5 - m^2 with fp32 steps
    assert variance.hi.item() < 0.1640625


def test_the_torch_kernel_agrees_with_torch() -> None:
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 257, generator=generator).bfloat16()
    weight, bias = (torch.randn(257, generator=generator).bfloat16() for _ in range(2))
    theirs = torch.nn.functional.layer_norm(x, (257,), weight, bias, 1e-5)

    def differ(profile: str) -> int:
        ours = layer_norm_torch(x, weight, bias, eps=1e-5, profile=profile)
        return int((ours.view(torch.int16) != theirs.view(torch.int16)).sum())

    # measured 2026-11, AVX2: another order of the sums moves 8 of 16,448 bits; two more roundings move thousands
    assert differ("once") < 40
    assert differ("each_op") > 2000


def test_sums_that_overflow_in_merged_moments_are_allowed() -> None:
    kernel = Kernel(layer_norm, {}, layer_norm.profile("once"))
    ones = np.ones(257)
    # the variance is finite, the sum that is divided by n is not: the deviations are then zeros, and the bias is left
    x = np.resize([1.9e18, -1.9e18, 2.4e18], (1, 257))
    # the mean folded into an offset: x s overflows though (x - m) s is zero
    level = np.full((1, 257), 4e35)
    for row, value in ((x, 0.5), (level, -np.inf), (level, np.nan)):
        case = make_case(
            kernel,
            {"rows": 1, "d": 257},
            {"x": row, "weight": ones, "bias": 0.5 * ones},
            {"eps": 1e-6},
        )
        allowed = case_range(kernel, case, {"moments": "merged"})["out"]
        bits = formats.encode(np.full((1, 257), value), allowed.fmt)
        assert not allowed.refused(bits).any()
