"""Rotary embedding: literal cases, the faults they refuse, and agreement with transformers bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray

from contract import formats
from contract.case import find, make_case, shape_from
from contract.errors import CaseError
from contract.inputs import typical_case
from contract.kernels.clients import transformers_rotary
from contract.kernels.rope import rope_torch
from contract.ranges import case_range

F8 = NDArray[np.float64]


def refused(
    profile: str, x: ArrayLike, angles: ArrayLike, out: ArrayLike, pairing: str = "halves"
) -> int:
    """How many of these outputs the contract refuses; one head a token, tables of fp32 or bf16 angles."""
    kernel = find("rope", profile, {"pairing": pairing})
    a = np.asarray(angles, np.float64)
    values = {"x": np.asarray(x, np.float64)[:, None], "cos": np.cos(a), "sin": np.sin(a)}
    case = make_case(kernel, shape_from(kernel, {n: v.shape for n, v in values.items()}), values)
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64)[:, None], fmt), fmt)
    return int(case_range(kernel, case)["out"].refused(bits).sum())


def angles_of(positions: ArrayLike, half: int, theta: float = 100.0) -> F8:
    return np.asarray(positions, np.float64)[:, None] * theta ** (-np.arange(half) / half)


def halves(x: F8, angles: F8) -> F8:
    half = angles.shape[-1]
    a, b, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
    c, s = np.cos(angles), np.sin(angles)
    return np.concatenate([a * c - b * s, b * c + a * s, rest], -1)


def neighbours(x: F8, angles: F8) -> F8:
    out = np.empty(x.shape)
    c, s = np.cos(angles), np.sin(angles)
    out[:, 0::2], out[:, 1::2] = x[:, 0::2] * c - x[:, 1::2] * s, x[:, 1::2] * c + x[:, 0::2] * s
    return out


EIGHT = np.tile(np.arange(1.0, 9.0), (3, 1))


def test_element_i_turns_with_i_plus_half() -> None:
    angles = angles_of([0, 1, 7], 4)
    right: list[list[float]] = [
        [1, 2, 3, 4, 5, 6, 7, 8],
        [-3.66705262, 0.0349290031, 2.28617858, 3.74506012, 3.54298251, 6.32445887, 7.26452941, 8.12247036],
        [-2.53103074, -6.00140466, -2.21499725, 2.14595078, 4.42649787, -1.99578107, 7.28654837, 8.68302339],
    ]  # fmt: skip
    assert np.allclose(halves(EIGHT, angles), right, atol=1e-8)
    assert refused("once", EIGHT, angles, right) == 0
    packed = neighbours(EIGHT, angles)
    evens_then_odds = np.concatenate([packed[:, 0::2], packed[:, 1::2]], -1)
    # position 0 leaves x as it is, and cannot tell neighbours from halves; a few others are equal in bf16
    assert refused("once", EIGHT, angles, packed) == 16
    assert refused("once", EIGHT, angles, evens_then_odds) > 16
    assert refused("once", EIGHT, angles, packed, "interleaved") == 0
    assert refused("once", EIGHT, angles, right, "interleaved") == 16


def test_the_first_dims_turn_and_the_rest_pass() -> None:
    x = np.array([np.arange(1.0, 9.0), np.arange(8.0, 0.0, -1.0)])
    angles = angles_of([3, 5], 2)
    right: list[list[float]] = [
        [-1.41335252, 0.728592152, -2.82885748, 4.41238637, 5, 6, 7, 8],
        [8.02284313, 3.74595024, -5.96942108, 7.74389158, 4, 3, 2, 1],
    ]
    assert refused("once", x, angles, right) == 0
    whole_head = halves(x, angles_of([3, 5], 4))
    still = np.concatenate([angles, np.zeros((2, 2))], -1)
    halves_of_the_head = halves(x, still)
    assert refused("once", x, angles, whole_head) >= 14
    assert refused("once", x, angles, halves_of_the_head) >= 8


def test_the_rest_passes_bit_for_bit() -> None:
    """A subnormal is not flushed, a NaN and an infinity stay where they are, zeros keep their sign."""
    rest = [2.0**-130, -(2.0**-127), np.nan, np.inf, -0.0, 0.0]
    x = [[1.0, 2.0, 3.0, 4.0, *rest]]
    out = [[1.0, 2.0, 3.0, 4.0, *rest]]
    assert refused("each_op", x, [[0.0, 0.0]], out) == 0
    assert refused("each_op", x, [[0.0, 0.0]], [[1.0, 2.0, 3.0, 4.0] + [0.0] * 6]) == 5


def test_an_infinity_spoils_its_partner() -> None:
    x = [[np.inf, 1.0, 2.0, 3.0]]
    assert refused("once", x, [[0.0, 0.0]], [[np.inf, 1.0, np.nan, 3.0]]) == 0
    assert refused("once", x, [[0.0, 0.0]], [[np.inf, 1.0, 2.0, 3.0]]) == 1


def test_each_product_rounds() -> None:
    # cos 0.8 and sin 0.6 are 0.80078125 and 0.6015625 in bf16; 3 * 0.80078125 = 2.40234375 -> 2.40625 and
    # 5 * 0.6015625 = 3.0078125 -> 3.0, so that the difference is -0.59375; in fp32 it is -0.60546875
    angle = [[np.arccos(0.8), 0.0]]
    each, fused = [[-0.59375, 1.0, 5.8125, 1.0]], [[-0.60546875, 1.0, 5.8125, 1.0]]
    x = [[3.0, 1.0, 5.0, 1.0]]
    assert refused("each_op", x, angle, each) == 0
    assert refused("each_op", x, angle, fused) == 1
    # fp32 tables: 2.4 - 3.0
    assert refused("once", x, angle, [[-0.6, 1.0, 5.8, 1.0]]) == 0
    assert refused("once", x, angle, each) == 1


def test_axes_turn_apart() -> None:
    x = np.arange(1.0, 9.0)[None]
    angles = np.array([[0.5, 0.25, 1.5, 2.0]])
    apart = np.concatenate([halves(x[:, :4], angles[:, :2]), halves(x[:, 4:], angles[:, 2:])], -1)
    kernel = find("rope", "each_op", {"pairing": "by_axis"})
    tables = {"cos": np.cos(angles), "sin": np.sin(angles)}
    case = make_case(
        kernel, {"tokens": 1, "heads": 1, "d": 8, "half": 4}, {"x": x[:, None], **tables}
    )
    allowed = case_range(kernel, case)["out"]
    assert allowed.one_value().all()
    value = formats.decode(formats.from_ordered(allowed.lo, allowed.fmt), allowed.fmt)
    assert np.allclose(value[:, 0], apart, rtol=0, atol=0.07)
    assert refused("each_op", x, angles, value[:, 0], "by_axis") == 0
    assert refused("each_op", x, angles, apart[:, [4, 5, 6, 7, 0, 1, 2, 3]], "by_axis") == 8


@pytest.mark.parametrize("pairing", ["halves", "interleaved"])
def test_bf16_outputs_are_one_value(pairing: str) -> None:
    for profile, share in (("each_op", 1.0), ("once", 0.9995)):
        kernel = find("rope", profile, {"pairing": pairing})
        case = typical_case(kernel, {"tokens": 16, "heads": 4, "d": 128, "half": 64}, 0)
        assert case_range(kernel, case)["out"].one_value().mean() >= share


def test_sizes_are_checked() -> None:
    kernel = find("rope", "once")
    with pytest.raises(CaseError, match="the rotary dims lie in the head"):
        shape_from(kernel, {"x": (1, 1, 6), "cos": (1, 4), "sin": (1, 4), "out": (1, 1, 6)})
    with pytest.raises(CaseError, match="half is even"):
        shape_from(kernel, {"x": (1, 1, 6), "cos": (1, 3), "sin": (1, 3), "out": (1, 1, 6)})


# ---- transformers


@pytest.mark.parametrize(
    ("client", "profile", "pairing"),
    [
        ("llama", "each_op", "halves"),
        ("qwen3_5", "each_op", "halves"),
        ("qwen3_5_vision", "once", "halves"),
        ("gemma4_vision", "each_op", "by_axis"),
        ("gptj", "each_op", "interleaved"),
    ],
)
def test_the_torch_kernel_is_transformers_bit_for_bit(
    client: str, profile: str, pairing: str
) -> None:
    pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 4, 72, generator=generator).bfloat16()
    angles = 100 * torch.randn(32, 32, generator=generator)
    dtype = torch.bfloat16 if profile == "each_op" else torch.float32
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    theirs = getattr(transformers_rotary, client)(x, cos, sin)
    ours = rope_torch(x, cos, sin, pairing=pairing)
    assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
    other = torch.float32 if profile == "each_op" else torch.bfloat16
    moved = rope_torch(x, cos.to(other), sin.to(other), pairing=pairing)
    assert int((moved.view(torch.int16) != theirs.view(torch.int16)).sum()) > 1000
