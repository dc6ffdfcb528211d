"""Inverses of unit triangular matrices: substitution passes its residual, narrower arithmetic does not."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from soundness import CHOICES, bf16, fp32

from contract import formats
from contract.case import Kernel, make_case
from contract.declare import Contract, Profile, output, tensor
from contract.endpoints import Array
from contract.errors import DeclarationError
from contract.orders import FP32, accumulator
from contract.product_samples import Draw
from contract.ranges import case_range, plain_run
from contract.readings.base import Quantity, Reading
from contract.readings.sample import SampleReading
from contract.solve import residual_excess, residual_refused, solve_sample
from contract.stages import observing


def unit_lower(
    rng: np.random.Generator, batch: int, size: int, *, correlated: bool = False
) -> Array:
    """I + tril(beta k k^T, -1), the matrix of the delta rule's chunks."""
    k = rng.standard_normal((batch, size, 16)) + (2.0 if correlated else 0.0)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    beta = rng.uniform(0.2, 1.0, (batch, size, 1))
    return fp32(np.tril(beta * (k @ np.swapaxes(k, -1, -2)), -1) + np.eye(size))


@pytest.mark.parametrize("correlated", [False, True])
def test_every_sampled_substitution_meets_the_residual(correlated: bool) -> None:
    rng, seen, largest = np.random.default_rng(1), 0, 0.0
    for size in (2, 3, 5, 8, 16, 32):
        m = unit_lower(rng, 2048 // size, size, correlated=correlated)
        if size < 16:
            # wide windows and subnormals too
            m = np.tril(fp32(m * np.exp2(rng.integers(-70, 20, m.shape))), -1) + np.eye(size)
        for choice in CHOICES:
            x = solve_sample(m, Draw(FP32, choice, rng))
            excess = residual_excess(m, x)
            assert excess.max() <= 1, (size, choice)
            seen, largest = seen + x.size, max(largest, float(excess.max()))
    assert seen >= 100_000
    assert largest > 0.1


def test_inverses_in_bf16_and_tf32_operands_are_refused() -> None:
    rng = np.random.default_rng(2)
    m = unit_lower(rng, 16, 64, correlated=True)
    below = np.tril(np.ones((64, 64), bool), -1)
    legal = solve_sample(m, Draw(FP32, CHOICES[0], rng))
    assert not residual_refused(m, legal).any()
    wrong = {
        "bf16 sums": solve_sample(m, Draw(accumulator("bf16"), CHOICES[1], rng)),
        "bf16 matrix": solve_sample(np.tril(bf16(m)), Draw(FP32, CHOICES[1], rng)),
        "11 bits": solve_sample(m, Draw(accumulator("w11"), CHOICES[1], rng)),
        "bf16 result": bf16(legal),
    }
    for name, x in wrong.items():
        assert residual_refused(m, x)[:, below].mean() > 0.8, name
    assert not residual_refused(m, wrong["bf16 result"], stored="bf16").any()


def test_what_is_no_inverse_is_refused() -> None:
    m = unit_lower(np.random.default_rng(3), 2, 8)
    assert residual_refused(m, np.zeros_like(m))[0].diagonal().all()
    assert residual_refused(m, np.full_like(m, np.nan)).all()
    with pytest.raises(DeclarationError, match="unit lower"):
        residual_excess(np.ones((2, 2)), np.eye(2))


def system(r: Reading, lower: Quantity, rhs: Quantity) -> dict[str, Quantity]:
    return {"x": r.solve("x", lower, rhs, point="x")}


def solver() -> Kernel:
    contract = Contract(
        name="system",
        family="test",
        reference=system,
        operands=(
            tensor("lower", "rows c d", "fp32"),
            tensor("rhs", "rows c n", "fp32"),
            output("x", "rows c n", "fp32", observed=True),
        ),
        profiles=(Profile("plain", {"x": "fp32"}),),
        row_dims=("rows",),
        shapes=({"rows": 2, "c": 4, "d": 4, "n": 3},),
        freedoms={"solve": "Higham, theorem 8.5"},
        not_applicable={"exact": "a test"},
    )
    return Kernel(contract, {}, contract.profiles[0])


@pytest.mark.parametrize("correlated", [False, True])
def test_a_system_is_judged_row_by_row_from_its_own_solution(correlated: bool) -> None:
    rng, kernel, seen = np.random.default_rng(4), solver(), 0
    fmt = formats.get("fp32")
    for size in (1, 2, 3, 8, 32):
        rows = 1024 // size
        m = unit_lower(rng, rows, size, correlated=correlated)
        rhs = fp32(rng.standard_normal((rows, size, 5)))
        shape = {"rows": rows, "c": size, "d": size, "n": 5}
        case = make_case(kernel, shape, {"lower": m - np.eye(size), "rhs": rhs})
        forward = case_range(kernel, case)["x"]
        for choice in CHOICES:
            reading = SampleReading(kernel.contract, kernel.profile, choice=choice, rng=rng)
            out = plain_run(kernel, case, partial(lambda one: one, reading), {})
            allowed = case_range(kernel, case, prepare=observing(kernel, out))["x"]
            assert not allowed.refused(out["x"]).any(), (size, choice)
            assert not forward.refused(out["x"]).any(), (size, choice)
            seen += out["x"].size
        if size == 32:
            # a solution in bf16, and one of a matrix in bf16
            x = formats.decode(out["x"], fmt)
            wrong = np.linalg.solve(np.tril(bf16(m)), rhs)
            for value in (bf16(x), fp32(wrong)):
                bits = {"x": formats.encode(value, fmt)}
                allowed = case_range(kernel, case, prepare=observing(kernel, bits))["x"]
                assert allowed.refused(bits["x"])[:, 1:].mean() > 0.7
    assert seen > 100_000
