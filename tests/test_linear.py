"""Dense layers: literal rows, what exact rows refuse, torch's classification, and the faults of matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from contract import formats
from contract.case import Case, Kernel, find, make_case
from contract.engines.placement import place, to_bits
from contract.inputs import exact_cases
from contract.kernels.clients.torch_linear import functional_linear, matmul_then_bias
from contract.kernels.linear import linear, linear_torch
from contract.kernels.products import CHUNK, cancelling_operands, tail_of
from contract.orders import Chunks
from contract.ranges import case_range


def refused(kernel: Kernel, case: Case, out: ArrayLike) -> int:
    """How many outputs are not allowed; they are rounded to the output's format first."""
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64), fmt), fmt)
    return int(case_range(kernel, case)["out"].refused(bits).sum())


def judged(
    profile: str, x: ArrayLike, weight: ArrayLike, out: ArrayLike, bias: ArrayLike | None = None
) -> int:
    a, w = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    kernel = find("linear", profile, {"bias_term": "no" if bias is None else "yes"})
    shape = {"rows": a.shape[0], "k": a.shape[1], "n": w.shape[0]}
    operands = {"x": a, "weight": w} | ({} if bias is None else {"bias": np.asarray(bias)})
    return refused(kernel, make_case(kernel, shape, operands), out)


def test_the_weight_is_stored_output_by_input() -> None:
    x, w = [[1.0, 10.0]], [[1.0, 2.0], [3.0, 4.0]]
    assert judged("once", x, w, [[21.0, 43.0]]) == 0
    assert judged("once", x, w, [[31.0, 42.0]]) == 2


def test_the_bias_is_rounded_with_the_sum_or_after_it() -> None:
    # 257 is a tie between 256 and 258 in bf16: rounded first it is 256, with the bias 1.5 the sum is 258.5
    x, w, bias = [[1.0, 1.0]], [[128.0, 129.0]], [1.5]
    assert judged("once", x, w, [[258.0]], bias) == 0
    assert judged("bias_after", x, w, [[258.0]], bias) == 0
    # 257 + 2 = 259, a tie that goes to 260; 256 + 2 = 258
    assert judged("once", x, w, [[260.0]], [2.0]) == 0
    assert judged("bias_after", x, w, [[258.0]], [2.0]) == 0
    assert judged("once", x, w, [[258.0]], [2.0]) == 1
    assert judged("bias_after", x, w, [[260.0]], [2.0]) == 1


def test_fp32_products_keep_twelve_bits() -> None:
    # 2049 + 4095 + 2 * 1025 - 3001, and what 11 and 8 bits of each make of it
    x, w = [[2049.0, 4095.0, 1025.0, 3001.0]], [[1.0, 1.0, 2.0, -1.0]]
    zero = [0.0]
    assert judged("float32", x, w, [[5193.0]], zero) == 0
    assert judged("float32", x, w, [[5193.0]]) == 0
    assert judged("float32", x, w, [[5192.0]]) == 1
    for fmt in ("tf32", "bf16"):
        cut = formats.round_to(np.array(x), fmt) @ np.array(w).T
        assert judged("float32", x, w, cut, zero) == 1, fmt


def test_bytes_summed_in_pairs_of_sixteen_bits_are_refused() -> None:
    """255 * 127 + 255 * 127 = 64770 is no int16: saturated and wrapped sums differ."""
    x = [[255.0, 255.0], [1.0, 2.0]]
    w = [[127.0, 127.0], [-128.0, -128.0], [3.0, -4.0]]
    right = np.array(x) @ np.array(w).T
    zero = np.zeros(3)
    assert judged("float32", x, w, right, zero) == 0
    assert judged("float32", x, w, np.clip(right, -32768, 32767), zero) == 2
    assert judged("float32", x, w, (right + 32768) % 65536 - 32768, zero) == 2


def test_infinities_and_nan() -> None:
    x = [[np.inf, 1.0], [np.inf, -np.inf], [np.nan, 0.0], [1.0, 2.0]]
    w = [[1.0, 1.0], [0.0, 1.0]]
    right = [[np.inf, np.nan], [np.nan, np.nan], [np.nan, np.nan], [3.0, 2.0]]
    assert judged("once", x, w, right) == 0
    assert judged("once", x, w, np.nan_to_num(np.array(right), posinf=1.0)) == 6


# -- exact rows


@pytest.mark.parametrize("profile", ["once", "bias_after", "float16", "float32"])
def test_nearly_all_candidates_are_exact(profile: str) -> None:
    found, candidates = exact_cases(find("linear", profile), 0)
    assert sum(case.rows(find("linear", profile)) for case, _ in found) > 0.8 * candidates
    assert {case.shape["k"] for case, _ in found} == {48, 225, 1153}


def test_running_sums_reach_2_to_the_21_and_stay_below_2_to_the_23() -> None:
    x, w = cancelling_operands(np.random.default_rng(5), 32, 24, 225)
    terms = x[:, None, :] * w[None, :, :]
    running = np.abs(np.cumsum(terms, axis=-1)).max(axis=-1)
    assert running.min() > 2.0**21
    # a matrix unit that truncates has 23 bits
    assert np.abs(terms).sum(axis=-1).max() < 2.0**23
    assert np.abs(terms.sum(axis=-1)).max() < 2.0**14
    assert tail_of(225) == 32
    assert tail_of(1) == 1


@pytest.mark.parametrize("column", [0, 100, 191, 193, 224])
def test_every_column_is_seen(column: int) -> None:
    """Left out of the sum, any one column moves outputs of the exact rows."""
    kernel = find("linear", "once", {"bias_term": "no"})
    case = next(case for case, _ in exact_cases(kernel, 0)[0] if case.shape["k"] == 225)
    x, w = (case.value(kernel, o) for o in kernel.inputs())
    keep = np.arange(225) != column
    assert refused(kernel, case, x @ w.T) == 0
    assert refused(kernel, case, x[:, keep] @ w[:, keep].T) > 100


# -- implementations


def outputs_of(kernel: Kernel, case: Case, call: Any, **more: Any) -> Any:
    placed = {
        o.name: place(o.name, case.operands[o.name], kernel.format(o), "strided", "nan").tensor
        for o in kernel.inputs()
    }
    return to_bits(call(**placed, **more), kernel.format(kernel.outputs()[0]))


def random_case(kernel: Kernel, k: int, n: int, rows: int = 17) -> Case:
    rng = np.random.default_rng(k)
    values = {
        "x": rng.standard_normal((rows, k)) * np.exp2(rng.integers(-9, 9, (rows, 1))),
        "weight": rng.standard_normal((n, k)),
        "bias": rng.standard_normal(n),
    }
    return make_case(kernel, {"rows": rows, "k": k, "n": n}, values)


@pytest.mark.parametrize("profile", [p.name for p in linear.profiles])
@pytest.mark.parametrize("k", [1, 31, 256, 257, 769])
def test_the_torch_kernel_is_allowed_at_widths_around_its_chunk(profile: str, k: int) -> None:
    kernel = find("linear", profile)
    case = random_case(kernel, k, 19)
    bits = outputs_of(kernel, case, linear_torch, profile=profile)
    assert not case_range(kernel, case, depths={"dot": Chunks(CHUNK)})["out"].refused(bits).any()


def test_torch_rounds_once_in_a_linear_and_twice_in_two_operators() -> None:
    once, after = find("linear", "once"), find("linear", "bias_after")
    case = next(case for case, _ in exact_cases(after, 0)[0] if case.shape["k"] == 225)
    for right, wrong, call in (
        (once, after, functional_linear),
        (after, once, matmul_then_bias),
    ):
        bits = outputs_of(right, case, call)
        assert not case_range(right, case)["out"].refused(bits).any()
        assert case_range(wrong, case)["out"].refused(bits).any()


def test_torch_rounds_twice_where_rows_of_three_dims_have_gaps() -> None:
    """The reason for the profile bias_after: the same call, another rounding (x86_64, CPU; measured with torch 2.13)."""
    kernel = find("linear", "bias_after")
    case = next(case for case, _ in exact_cases(kernel, 0)[0] if case.shape["k"] == 225)
    x, weight, bias = (
        torch.from_numpy(case.value(kernel, o).copy()).to(torch.bfloat16) for o in kernel.inputs()
    )
    gaps = torch.zeros((2, x.shape[0], 225), dtype=torch.bfloat16).transpose(0, 1)
    gaps[:, 0], gaps[:, 1] = x, x
    out = torch.nn.functional.linear(gaps, weight, bias)
    # which of the two it is belongs to torch; the contract tells them apart
    seen = [
        not case_range(find("linear", p), case)["out"]
        .refused(to_bits(out[:, 1], kernel.format(kernel.outputs()[0])))
        .any()
        for p in ("once", "bias_after")
    ]
    assert sum(seen) == 1


def test_one_order_of_the_sum_adds_the_bias_last() -> None:
    """Why `added` is vacuous where the product is not rounded: the last addition's rounding is one of the sum's."""
    kernel = find("linear", "float32")
    case = random_case(kernel, 33, 9)
    inside, after = (
        case_range(kernel, case, {"added": added})["out"] for added in ("inside", "after")
    )
    assert (inside.lo <= after.lo).all()
    assert (after.hi <= inside.hi).all()
