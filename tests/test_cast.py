"""Conversions: literal words, every planted control on the exact rows, honest nulls, all upper halves of fp32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import contract.controls.cast
from contract import formats, registry
from contract.autocontrols import NULLS, nominal
from contract.case import Case, Kernel, find, kernels_of
from contract.declare import Control, served
from contract.engines.host import arguments_of
from contract.engines.placement import place, to_bits
from contract.inputs import exact_cases, shape_list, stress_cases, typical_case
from contract.kernels.cast import cast, cast_torch
from contract.ranges import case_range

assert contract.controls.cast.__name__
KERNELS = {kernel.id: kernel for kernel in kernels_of(cast)}
PLANTED = [
    (control, kernel)
    for control in registry.controls("cast")
    for kernel in KERNELS.values()
    if kernel.profile.name == control.profile and served(control.parameters, kernel.parameters)
]
EXACT = {id: [case for case, _ in exact_cases(kernel, 0)[0]] for id, kernel in KERNELS.items()}
NAN, INF = np.nan, np.inf


def named(planted: tuple[Control, Kernel]) -> str:
    return f"{planted[1].id}/{planted[0].colour}.{planted[0].name}"


def converted(kernel: Kernel, case: Case, call: object = cast_torch) -> NDArray[np.unsignedinteger]:
    """The bits that a torch function gives."""
    assert callable(call)
    x = place("x", case.operands["x"], kernel.format(cast.operands[0]), "contiguous", "nan").tensor
    return to_bits(call(x=x, **arguments_of(call, kernel)), kernel.format(cast.operands[1]))


def words(kernel: Kernel, bits: object) -> Case:
    """One row of fp32 or fp64 words."""
    storage = kernel.format(cast.operands[0]).storage
    row = np.asarray(bits, storage)[None]
    return Case({"rows": 1, "d": row.shape[1]}, {"x": row}, {})


# fp32 word, bf16 word: ties, their neighbours, carries into the exponent and to infinity, NaN, zeros, subnormals
BF16 = [
    (0x3F80_8000, 0x3F80), (0x3F81_8000, 0x3F82), (0x3F80_8001, 0x3F81), (0x3F80_7FFF, 0x3F80),
    (0x3FFF_8000, 0x4000), (0x7F7F_7FFF, 0x7F7F), (0x7F7F_8000, 0x7F80), (0x7F80_0000, 0x7F80),
    (0x7F80_0001, 0x7FC0), (0xFF80_0001, 0xFFC0), (0x8000_0000, 0x8000), (0x0000_8000, 0x0000),
    (0x0000_8001, 0x0001), (0x8001_8000, 0x8002), (0x007F_8000, 0x0080), (0x8000_0001, 0x8000),
]  # fmt: skip


def test_bf16_words_have_one_answer() -> None:
    kernel = find("cast", "inf", {"to": "bf16"})
    case = words(kernel, [word for word, _ in BF16])
    right = np.array([[bits for _, bits in BF16]], np.uint16)
    allowed = case_range(kernel, case)["out"]
    assert allowed.one_value().all()
    assert not allowed.refused(right).any()
    # one step up, one down, and the other sign: NaN alone has more than one word
    number = ~formats.is_nan(right, "bf16")
    for wrong in (right + 1, right - 1, right ^ 0x8000):
        assert (allowed.refused(wrong) | ~number).all()
    np.testing.assert_array_equal(allowed.refused(np.full_like(right, 0x7F81)), number)
    truncated = (case.operands["x"] >> 16).astype(np.uint16)
    assert [hex(word) for word in case.operands["x"][allowed.refused(truncated)]] == [
        "0x3f818000", "0x3f808001", "0x3fff8000", "0x7f7f8000", "0x7f800001", "0xff800001",
        "0x8001", "0x80018000", "0x7f8000",
    ]  # fmt: skip


# x, then what e4m3fn, e5m2, fp16 and e4m3fnuz make of it when they saturate, and when they do not
Four = tuple[float, float, float, float]
POLICIES: list[tuple[float, Four, Four]] = [
    (464.0, (448, 448, 464, 240), (448, 448, 464, NAN)),
    (464.00003, (448, 448, 464, 240), (NAN, 448, 464, NAN)),
    (247.99998, (240, 256, 248, 240), (240, 256, 248, 240)),
    (248.0, (256, 256, 248, 240), (256, 256, 248, NAN)),
    (-61439.996, (-448, -57344, -61440, -240), (NAN, -57344, -61440, NAN)),
    (61440.0, (448, 57344, 61440, 240), (NAN, INF, 61440, NAN)),
    (65519.996, (448, 57344, 65504, 240), (NAN, INF, 65504, NAN)),
    (-65520.0, (-448, -57344, -65504, -240), (NAN, -INF, -INF, NAN)),
    (INF, (448, 57344, 65504, 240), (NAN, INF, INF, NAN)),
    (-INF, (-448, -57344, -65504, -240), (NAN, -INF, -INF, NAN)),
    (NAN, (NAN, NAN, NAN, NAN), (NAN, NAN, NAN, NAN)),
    (-0.0, (-0.0, -0.0, -0.0, 0.0), (-0.0, -0.0, -0.0, 0.0)),
]


@pytest.mark.parametrize(
    ("to", "policy"), [("e4m3fn", "nan"), ("e5m2", "inf"), ("fp16", "inf"), ("e4m3fnuz", "nan")]
)
def test_a_policy_holds_at_its_edge_and_at_infinity(to: str, policy: str) -> None:
    column = ("e4m3fn", "e5m2", "fp16", "e4m3fnuz").index(to)
    x = np.array([row[0] for row in POLICIES], np.float32)
    columns = {
        "saturate": [row[1][column] for row in POLICIES],
        policy: [row[2][column] for row in POLICIES],
    }
    answers = {name: formats.encode(np.array([y], "f8"), to) for name, y in columns.items()}
    for profile, right in answers.items():
        kernel = find("cast", profile, {"to": to})
        allowed = case_range(kernel, words(kernel, x.view(np.uint32)))["out"]
        assert not allowed.refused(right).any()
        other = answers["saturate" if profile != "saturate" else policy]
        differ = (other != right)[0]
        np.testing.assert_array_equal(allowed.refused(other)[0], differ)
        assert differ[8]
        assert differ[9]


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_torch_kernel_is_right_at_every_upper_half(kernel: Kernel) -> None:
    """All 2^16 upper halves of an fp32 word, with low halves beside every boundary of the narrower formats."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001):
        bits: NDArray[Any] = upper | np.uint32(low)
        if kernel.parameters["source"] == "fp64":
            with np.errstate(invalid="ignore"):
                bits = bits.view(np.float32).astype(np.float64).view(np.uint64)
            # beside the fp32 value, where a rounding to fp32 would lose the side
            bits = bits + (np.arange(bits.size) % 3).astype(np.uint64) * (bits << np.uint64(1) > 0)
        case = words(kernel, bits)
        assert not case_range(kernel, case)["out"].refused(converted(kernel, case)).any()


@pytest.mark.parametrize("planted", PLANTED, ids=named)
def test_the_exact_rows_tell_the_controls(planted: tuple[Control, Kernel]) -> None:
    control, kernel = planted
    refused = sum(
        int(case_range(kernel, case)["out"].refused(converted(kernel, case, control.call)).sum())
        for case in EXACT[kernel.id]
    )
    assert (refused > 0) == (control.colour == "red")


def test_torch_rounds_fp64_twice_and_is_refused() -> None:
    """1 + 2^-8 + 2^-40 becomes 1 in bf16, and 1 + 2^-11 + 2^-40 in fp16: the next value up is right."""
    for to, x in (("bf16", 1 + 2.0**-8 + 2.0**-40), ("fp16", 1 + 2.0**-11 + 2.0**-40)):
        kernel = find("cast", "inf", {"source": "fp64", "to": to})
        case = words(kernel, np.array([x]).view(np.uint64))
        dtype = torch.bfloat16 if to == "bf16" else torch.float16
        once = torch.tensor([x], dtype=torch.float64).to(dtype)
        assert once.item() == 1.0
        bits = to_bits(once[None], formats.get(to))
        assert case_range(kernel, case)["out"].refused(bits).all()
        assert not case_range(kernel, case)["out"].refused(bits + 1).any()


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_copy_that_is_declared_honest_is_the_conversion(kernel: Kernel) -> None:
    """Where the policy is the format's own; under saturate it differs from it by the values that overflow."""
    assert set(cast.honest_nulls) == {"null-copy"}
    small = typical_case(kernel, shape_list(kernel, "quick")[0], 0)
    for case in (small, *EXACT[kernel.id], *stress_cases(kernel, "quick", 0)):
        copy, right = NULLS["null-copy"](kernel, case, 0)["out"], nominal(kernel, case)["out"]
        fmt = kernel.format(cast.operands[1])
        same = (copy == right) | (formats.is_nan(copy, fmt) & formats.is_nan(right, fmt))
        beyond = np.abs(case.value(kernel, cast.operands[0])) > fmt.max
        assert (same | (beyond & (kernel.profile.name == "saturate"))).all()
