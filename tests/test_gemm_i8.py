"""int8 products: literal rows, sums that fp32 and int16 accumulators lose, scales and what exact rows cover."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from contract import formats
from contract.case import Kernel, find, kernels_of, make_case
from contract.engines.host import arguments_of
from contract.engines.placement import place, to_bits
from contract.errors import CaseError, DeclarationError
from contract.inputs import exact_cases
from contract.kernels.gemm_i8 import gemm_i8, gemm_i8_torch
from contract.ranges import case_range

KERNELS = {kernel.id: kernel for kernel in kernels_of(gemm_i8)}


def judged(
    profile: str,
    x: ArrayLike,
    weight: ArrayLike,
    out: ArrayLike,
    x_scale: float = 1.0,
    w_scale: Any = 1.0,
) -> int:
    """How many outputs are not allowed; one scale, or one per channel."""
    a, w = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    channel = np.ndim(w_scale) == 1
    kernel = find("gemm_i8", profile, {"granularity": "channel" if channel else "tensor"})
    operands = {"x": a, "weight": w, "x_scale": np.asarray(x_scale)}
    operands["w_scales" if channel else "w_scale"] = np.asarray(w_scale, np.float64)
    shape = {"rows": a.shape[0], "k": a.shape[1], "n": w.shape[0]}
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64), fmt), fmt)
    case = make_case(kernel, shape, operands)
    return int(case_range(kernel, case)["out"].refused(bits).sum())


def test_sums_in_pairs_of_sixteen_bits_are_refused() -> None:
    """-128 * -128 twice is 32768: saturated it is 32767, wrapped -32768."""
    x, w = [[-128.0, -128.0, 1.0]], [[-128.0, -128.0, 3.0]]
    assert judged("float32", x, w, [[32771.0]]) == 0
    assert judged("float32", x, w, [[32770.0]]) == 1
    assert judged("float32", x, w, [[-32765.0]]) == 1


def test_the_sum_is_exact_where_an_fp32_accumulator_is_not() -> None:
    # 1041 * 127^2 = 16,790,289 is odd and beyond 2^24 = 16,777,216; taken off again, 1 is left, not 0 or 2
    x = np.full((1, 2083), 127.0)
    w = np.full((1, 2083), 127.0)
    w[0, 1041:2082] = -127.0
    x[0, -1], w[0, -1] = 1.0, 1.0
    assert judged("float32", x, w, [[1.0]]) == 0
    for wrong in (0.0, 2.0):
        assert judged("float32", x, w, [[wrong]]) == 1


def test_a_sum_beyond_24_bits_is_one_of_its_fp32_neighbours() -> None:
    # 16,790,289 lies halfway between two of them
    x = np.full((1, 1041), 127.0)
    assert judged("float32", x, x, [[16790288.0]]) == 0
    assert judged("float32", x, x, [[16790292.0]]) == 1
    assert judged("float32", x, x, [[16790286.0]]) == 1


def test_the_joint_scale_is_rounded_in_fp32_outputs() -> None:
    # (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, a tie that goes to 1 + 2^-11; times 3 it is a tie no more
    s = 1.0 + 2.0**-12
    assert judged("float32", [[3.0]], [[1.0]], [[3.0 * (1.0 + 2.0**-11)]], s, s) == 0
    assert judged("float32", [[3.0]], [[1.0]], [[3.0 * s * s]], s, s) == 1


def test_each_channel_has_its_own_scale() -> None:
    x, w, scales = [[1.0, 2.0]], [[3.0, 4.0], [3.0, 4.0], [3.0, 4.0]], [1.0, 2.0, 4.0]
    assert judged("once", x, w, [[11.0, 22.0, 44.0]], 1.0, scales) == 0
    assert judged("once", x, w, [[22.0, 44.0, 11.0]], 1.0, scales) == 3
    assert judged("once", x, w, [[11.0, 11.0, 11.0]], 1.0, scales) == 2


def test_the_zero_point_is_zero() -> None:
    """Codes taken for bytes of zero point 128 add 128 times the weight's sum."""
    x, w = [[1.0, -128.0]], [[5.0, 2.0]]
    assert judged("once", x, w, [[-251.0]]) == 0
    assert judged("once", x, w, [[-251.0 + 128 * 7]]) == 1
    assert judged("once", x, w, [[5.0 - 127 * 2]]) == 1


def test_halves_go_to_the_even_neighbour() -> None:
    # 257 and 259 lie halfway between bf16 values
    x, w = [[127.0, 3.0, 1.0]], [[2.0, 1.0, 0.0], [2.0, 1.0, 2.0]]
    assert judged("once", x, w, [[256.0, 260.0]]) == 0
    assert judged("once", x, w, [[258.0, 260.0]]) == 1


def test_a_sum_that_could_overflow_is_refused() -> None:
    kernel = find("gemm_i8", "once")
    with pytest.raises(CaseError, match="k is below 2\\^17"):
        make_case(kernel, {"rows": 1, "k": 1 << 17, "n": 1}, {})


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_exact_rows_are_all_exact_and_pass_2_to_the_24(kernel: Kernel) -> None:
    found, candidates = exact_cases(kernel, 0)
    assert sum(case.rows(kernel) for case, _ in found) > 0.9 * candidates
    wide = max((case for case, _ in found), key=lambda case: case.shape["k"])
    x, w = (wide.value(kernel, o) for o in kernel.inputs()[:2])
    running = np.cumsum(x[1] * w[0])
    assert running.max() > 2.0**24
    assert (running[running > 2.0**24] % 2 == 1).sum() > 100
    assert abs(running[-1]) < 2.0**12


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("k", [1, 3, 64, 1000])
def test_the_torch_kernel_is_allowed(kernel: Kernel, k: int) -> None:
    rng = np.random.default_rng(k)
    values = {
        "x": rng.integers(-128, 128, (19, k)),
        "weight": rng.integers(-128, 128, (7, k)),
        "x_scale": np.asarray(rng.uniform(0.01, 0.1)),
        "w_scale": np.asarray(rng.uniform(0.01, 0.1)),
        "w_scales": rng.uniform(0.01, 0.1, 7),
    }
    case = make_case(kernel, {"rows": 19, "k": k, "n": 7}, values)
    placed = {
        o.name: place(o.name, case.operands[o.name], kernel.format(o), "strided", "nan").tensor
        for o in kernel.inputs()
    }
    call: Any = gemm_i8_torch
    out = call(**placed, **arguments_of(call, kernel))
    bits = to_bits(out, kernel.format(kernel.outputs()[0]))
    assert not case_range(kernel, case)["out"].refused(bits).any()


def test_the_operands_are_codes() -> None:
    with pytest.raises((DeclarationError, RuntimeError)):
        gemm_i8_torch(
            torch.zeros((2, 4)),
            torch.zeros((3, 4), dtype=torch.int8),
            torch.ones(()),
            torch.ones(()),
            profile="once",
        )
