"""int8 quantisation: literal rows, every planted control on the rows that show it, and the torch kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import contract.controls.quantize_int8
from contract import registry
from contract.case import Case, Kernel, find, kernels_of, make_case
from contract.declare import Control, served
from contract.engines.host import arguments_of
from contract.engines.placement import place, to_bits
from contract.inputs import exact_cases, shape_list, stress_cases, typical_case
from contract.kernels.quantize_int8 import quantize_int8, quantize_int8_torch
from contract.ranges import case_range

assert contract.controls.quantize_int8.__name__
KERNELS = {kernel.id: kernel for kernel in kernels_of(quantize_int8)}
PLANTED = [
    (control, kernel)
    for control in registry.controls("quantize_int8")
    for kernel in KERNELS.values()
    if control.engine == "host"
    if kernel.profile.name == control.profile and served(control.parameters, kernel.parameters)
]


def named(planted: tuple[Control, Kernel]) -> str:
    return f"{planted[1].id}/{planted[0].colour}.{planted[0].name}"


def refused(kernel: Kernel, case: Case, outputs: Any) -> dict[str, int]:
    """Output -> how many of its values are not allowed."""
    allowed = case_range(kernel, case)
    return {name: int(allowed[name].refused(bits).sum()) for name, bits in outputs.items()}


def outputs_of(kernel: Kernel, case: Case, call: Any) -> dict[str, Any]:
    x = place("x", case.operands["x"], kernel.format(kernel.inputs()[0]), "contiguous", "nan")
    result = call(x=x.tensor, **arguments_of(call, kernel))
    return {
        o.name: to_bits(t, kernel.format(o)) for o, t in zip(kernel.outputs(), result, strict=True)
    }


def judged(granularity: str, x: Any, codes: Any, scale: Any) -> dict[str, int]:
    """A literal answer under profile divide."""
    kernel = find("quantize_int8", "divide", {"granularity": granularity})
    rows = np.atleast_2d(np.asarray(x, np.float32))
    shape = {"rows": rows.shape[0], "d": rows.shape[1]}
    answer = {
        "codes": np.atleast_2d(codes).astype(np.int8).view(np.uint8),
        kernel.outputs()[1].name: np.asarray(scale, np.float32).view(np.uint32),
    }
    return refused(kernel, make_case(kernel, shape, {"x": rows}), answer)


#: max = 254: the scale is 2, and odd values are halves of codes
ODD = [254.0, -5.0, -3.0, -1.0, 1.0, 3.0, 5.0, 7.0, -7.0, 0.0]
EVEN_CODES = [127, -2, -2, 0, 0, 2, 2, 4, -4, 0]


def test_halves_go_to_the_even_code() -> None:
    assert judged("tensor", ODD, EVEN_CODES, 2.0) == {"codes": 0, "scale": 0}
    away = [127, -3, -2, -1, 1, 2, 3, 4, -4, 0]
    floor_half = [127, -2, -1, 0, 1, 2, 3, 4, -3, 0]
    assert judged("tensor", ODD, away, 2.0)["codes"] == 4
    assert judged("tensor", ODD, floor_half, 2.0)["codes"] == 4


def test_minus_128_is_no_code() -> None:
    x = [-254.0, 254.0, 2.0]
    assert judged("tensor", x, [-127, 127, 1], 2.0) == {"codes": 0, "scale": 0}
    assert judged("tensor", x, [-128, 127, 1], 2.0)["codes"] == 1
    assert judged("tensor", x, [-127, 127, 1], 254 / 128)["scale"] == 1


def test_zeros_have_the_scale_one() -> None:
    x = [[0.0, -0.0], [127.0, -63.5]]
    right = [[0, 0], [127, -64]]
    assert judged("channel", x, right, [1.0, 1.0]) == {"codes": 0, "row_scale": 0}
    assert judged("channel", x, right, [0.0, 1.0])["row_scale"] == 1
    assert judged("channel", x, right, [np.nan, 1.0])["row_scale"] == 1
    assert judged("channel", x, [[127, 127], [127, -64]], [1.0, 1.0])["codes"] == 2


def test_a_channel_has_its_own_scale() -> None:
    x = [[127.0, 1.0], [12700.0, 100.0]]
    assert judged("channel", x, [[127, 1], [127, 1]], [1.0, 100.0]) == {"codes": 0, "row_scale": 0}
    assert judged("tensor", x, [[1, 0], [127, 1]], 100.0) == {"codes": 0, "scale": 0}
    assert judged("channel", x, [[1, 0], [127, 1]], [100.0, 100.0])["codes"] == 2


@pytest.mark.parametrize("planted", PLANTED, ids=named)
def test_the_rows_of_their_gates_tell_the_controls(planted: tuple[Control, Kernel]) -> None:
    control, kernel = planted
    sets = {
        "exact": lambda: [case for case, _ in exact_cases(kernel, 0)[0]],
        # all of them: whether the largest value is negative is the draw's choice
        "shapes": lambda: [typical_case(kernel, s, 0) for s in shape_list(kernel, "quick")],
        "stress": lambda: stress_cases(kernel, "quick", 0),
    }
    seen = 0
    for gate in control.gates or sets:
        for case in sets[gate]():
            seen += sum(refused(kernel, case, outputs_of(kernel, case, control.call)).values())
    assert (seen > 0) == (control.colour == "red")


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_torch_kernel_is_allowed_at_random_scales(kernel: Kernel) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((33, 129)) * np.exp2(rng.integers(-60, 60, (33, 1)))
    case = make_case(kernel, {"rows": 33, "d": 129}, {"x": x})
    bits = outputs_of(kernel, case, quantize_int8_torch)
    assert sum(refused(kernel, case, bits).values()) == 0
    bits["codes"] = bits["codes"] + np.uint8(1)
    assert refused(kernel, case, bits)["codes"] > 0.999 * bits["codes"].size


def test_nothing_is_declared_an_honest_null() -> None:
    assert not quantize_int8.honest_nulls
