"""FixedPoint32: literal codes and flags, every planted control on the rows that show it, assert_fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import contract.controls.fixed_point32
from contract import fixedpoint, registry
from contract.case import Case, Kernel, find, kernels_of, make_case
from contract.declare import Control, served
from contract.engines.host import arguments_of
from contract.engines.placement import place, to_bits
from contract.inputs import exact_cases, shape_list, typical_case
from contract.kernels.fixed_point32 import assert_fits, fixed_point32
from contract.ranges import case_range

assert contract.controls.fixed_point32.__name__
KERNELS = {kernel.id: kernel for kernel in kernels_of(fixed_point32)}
PLANTED = [
    (control, kernel)
    for control in registry.controls("fixed_point32")
    for kernel in KERNELS.values()
    if kernel.profile.name == control.profile and served(control.parameters, kernel.parameters)
]


def named(planted: tuple[Control, Kernel]) -> str:
    return f"{planted[1].id}/{planted[0].colour}.{planted[0].name}"


def checked(x: Any, codes: Any, fits: Any, frac: str = "16") -> tuple[int, int]:
    """How many of these codes and flags are not allowed."""
    kernel = find("fixed_point32", "fx32", {"frac": frac, "overflow": "assert_fits"})
    rows = np.atleast_2d(np.asarray(x, np.float32))
    allowed = case_range(
        kernel, make_case(kernel, {"rows": len(rows), "d": rows.shape[1]}, {"x": rows})
    )
    words = np.atleast_2d(np.asarray(codes, np.int64)).astype(np.int32).view(np.uint32)
    flags = np.asarray(fits, np.uint8)
    return int(allowed["codes"].refused(words).sum()), int(allowed["fits"].refused(flags).sum())


UNIT = 2.0**-16


def test_codes_are_nearest_even() -> None:
    x = [0.5 * UNIT, 1.5 * UNIT, 2.5 * UNIT, -0.5 * UNIT, -1.5 * UNIT, 0.625 * UNIT, -0.0, 1.0]
    right = [0, 2, 2, 0, -2, 1, 0, 65536]
    assert checked(x, right, [1]) == (0, 0)
    assert checked(x, [1, 2, 3, -1, -2, 1, 0, 65536], [1]) == (3, 0)
    assert checked(x, [0, 1, 2, 0, -1, 0, 0, 65536], [1]) == (3, 0)
    assert checked(x, [0, 2, 2, 0, -2, 0, 0, 65536], [1]) == (1, 0)


def test_both_ends_saturate_and_are_flagged() -> None:
    x = [[32768.0, 0.0], [-32768.0, 0.0], [32767.998, 0.0], [-32768.004, 0.0], [3e38, 1.0]]
    top = 2**31 - 1
    # fp32 holds 32767.998046875 = (2^31 - 128) 2^-16
    right = [[top, 0], [-(2**31), 0], [2**31 - 128, 0], [-(2**31), 0], [top, 65536]]
    assert checked(x, right, [0, 1, 1, 0, 0]) == (0, 0)
    assert checked(x, right, [1, 1, 1, 1, 1]) == (0, 3)
    assert checked(x, right, [0, 0, 0, 0, 0]) == (0, 2)
    wrapped = [[-(2**31), 0], [-(2**31), 0], [2**31 - 128, 0], [-(2**31), 0], [top, 65536]]
    assert checked(x, wrapped, [0, 1, 1, 0, 0]) == (1, 0)
    assert checked(np.array(x[:4]) * 256, right[:4], [0, 1, 1, 0], "8") == (0, 0)
    assert checked(np.array(x[:4]), right[:4], [1, 1, 1, 1], "8") == (4, 0)


@pytest.mark.parametrize("planted", PLANTED, ids=named)
def test_the_rows_of_their_gates_tell_the_controls(planted: tuple[Control, Kernel]) -> None:
    control, kernel = planted
    cases: list[Case] = []
    if control.gates != ("shapes",):
        cases += [case for case, _ in exact_cases(kernel, 0)[0]]
    if control.gates != ("exact",):
        cases.append(typical_case(kernel, shape_list(kernel, "quick")[0], 0))
    seen = 0
    for case in cases:
        x = place("x", case.operands["x"], kernel.format(kernel.inputs()[0]), "contiguous", "nan")
        result = control.call(x=x.tensor, **arguments_of(control.call, kernel))
        result = result if isinstance(result, tuple) else (result,)
        allowed = case_range(kernel, case)
        for operand, value in zip(kernel.outputs(), result, strict=True):
            bits = to_bits(value, kernel.format(operand))
            seen += int(allowed[operand.name].refused(bits).sum())
    assert (seen > 0) == (control.colour == "red")


def test_assert_fits_returns_codes_or_names_the_row() -> None:
    x = torch.tensor([[1.0, -32768.0], [0.5, 2.0]])
    assert assert_fits(x, 16).tolist() == [[65536, -(2**31)], [32768, 131072]]
    x[1, 0] = 32768.0
    with pytest.raises(OverflowError, match=r"^row 1 holds 32768.0, beyond \+-32768.0 with 16"):
        assert_fits(x, 16)


@pytest.mark.parametrize("frac", [8, 16, 24])
def test_the_host_conversion_gives_the_same_codes(frac: int) -> None:
    rng = np.random.default_rng(frac)
    x = (rng.standard_normal((4, 999)) * np.exp2(rng.integers(-30, 20, (4, 999)))).astype("f4")
    kernel = find("fixed_point32", "fx32", {"frac": str(frac)})
    case = make_case(kernel, {"rows": 4, "d": 999}, {"x": x})
    codes = fixedpoint.quantize(x.astype(np.float64), frac)
    allowed = case_range(kernel, case)["codes"]
    assert allowed.one_value().all()
    np.testing.assert_array_equal(allowed.lo, codes)


def test_nothing_is_declared_an_honest_null() -> None:
    assert not fixed_point32.honest_nulls
