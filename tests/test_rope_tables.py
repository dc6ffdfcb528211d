"""Rotary tables: literal cases and the faults they refuse, every axis rule, and agreement with transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray

from contract import formats
from contract.case import find, make_case, shape_from
from contract.errors import CaseError
from contract.kernels import rope_tables as kernels
from contract.kernels.clients import transformers_rotary
from contract.ranges import case_range
from contract.references.rope_tables import axis_of_each

F8 = NDArray[np.float64]


def refused(
    name: str, profile: str, inputs: Mapping[str, Any], angles: ArrayLike, **parameters: str
) -> int:
    """How many entries of the tables of these angles the contract refuses (computed in float64, rounded once)."""
    a = np.asarray(angles, np.float64)
    return refused_tables(name, profile, inputs, np.cos(a), np.sin(a), **parameters)


def refused_tables(
    name: str, profile: str, inputs: Mapping[str, Any], cos: F8, sin: F8, **parameters: str
) -> int:
    kernel = find(name, profile, parameters)
    arrays = {key: np.asarray(value, np.float64) for key, value in inputs.items()}
    shapes = {key: value.shape for key, value in arrays.items()}
    sizes = shape_from(kernel, {**shapes, "cos": cos.shape, "sin": sin.shape})
    allowed = case_range(kernel, make_case(kernel, sizes, arrays))
    count = 0
    for table, values in (("cos", cos), ("sin", sin)):
        fmt = allowed[table].fmt
        bits = formats.encode(formats.round_to(values, fmt), fmt)
        count += int(allowed[table].refused(bits).sum())
    return count


def f32(x: ArrayLike) -> F8:
    return np.asarray(x, np.float32).astype(np.float64)


def frequencies(half: int, theta: float) -> F8:
    return f32(theta ** (-np.arange(half) / half))


def angle_of(positions: ArrayLike, inv_freq: F8) -> F8:
    """One fp32 product."""
    return f32(np.asarray(positions, np.float64)[..., None] * inv_freq)


# ---- plain tables


POSITIONS = [255, 256, 257, 258, 259, 1001, 4097]


@pytest.mark.parametrize("profile", ["once", "float32"])
def test_neighbouring_positions_keep_their_angles(profile: str) -> None:
    inputs: dict[str, Any] = {"positions": POSITIONS, "inv_freq": frequencies(4, 10_000.0)}
    right = angle_of(POSITIONS, inputs["inv_freq"])
    assert refused("rope_tables", profile, inputs, right) == 0
    in_bf16 = formats.round_to(np.asarray(POSITIONS, np.float64), "bf16")
    assert in_bf16.tolist() == [255, 256, 256, 258, 260, 1000, 4096]
    moved = refused("rope_tables", profile, inputs, angle_of(in_bf16, inputs["inv_freq"]))
    # four positions move; at the lowest frequency some of the entries are equal in bf16
    assert 24 <= moved <= 32
    assert refused("rope_tables", profile, inputs, angle_of(POSITIONS, frequencies(4, 1e6))) >= 36


def test_the_values_at_position_257() -> None:
    inputs: dict[str, Any] = {"positions": [257], "inv_freq": frequencies(4, 10_000.0)}
    cos = np.array([[0.819305529, 0.843377065, -0.841040461, 0.96715687]])
    sin = np.array([[-0.573357175, 0.537322181, 0.54097222, 0.254180229]])
    assert refused_tables("rope_tables", "once", inputs, cos, sin) == 0
    assert refused_tables("rope_tables", "once", inputs, sin, cos) == 8


def test_large_angles_are_reduced_in_full() -> None:
    """1, 1000.5, 65537, 131071, 1048575 and 33554468 radians, each a position times its frequency."""
    pairs = [(1, 1.0), (2001, 0.5), (65_537, 1.0), (131_071, 1.0), (209_715, 5.0), (4, 8_388_617.0)]
    angles = [1.0, 1000.5, 65_537.0, 131_071.0, 1_048_575.0, 33_554_468.0]
    sin = [0.841470985, 0.995273957, -0.233478438, -0.575241684, -0.615621173, 0.338626641]
    cos = [0.540302306, 0.0971069014, -0.972361979, -0.817983499, 0.78804224, -0.940920825]
    assert np.allclose(np.sin(angles), sin, rtol=0, atol=1e-9)
    assert np.allclose(np.cos(angles), cos, rtol=0, atol=1e-9)
    turn = np.float32(2 * math.pi)
    spoiled = []
    for (position, frequency), angle in zip(pairs, angles, strict=True):
        inputs: dict[str, Any] = {"positions": [position], "inv_freq": [frequency]}
        assert refused("rope_tables", "float32", inputs, [[angle]]) == 0
        single = np.float32(angle)
        short = single - np.round(single / turn) * turn
        spoiled.append(refused("rope_tables", "float32", inputs, [[float(short)]]))
    assert spoiled[0] == 0
    assert all(spoiled[1:])


def test_float64_reduces_the_largest_angle_as_200_bits_do() -> None:
    """The range's own cos and sin come from float64 functions: also where the angle is far beyond any position."""
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.prec = 400
    for angle in (33_554_468.0, 2.0**40 + 4096, f32(1e22).item(), f32(3e38).item()):
        assert abs(np.cos(angle) - float(mp.cos(mp.mpf(angle)))) < 2**-50
        assert abs(np.sin(angle) - float(mp.sin(mp.mpf(angle)))) < 2**-50


def test_three_quarters_of_the_pairs_stand_still() -> None:
    inputs: dict[str, Any] = {"positions": [0, 7, 262_143], "inv_freq": frequencies(16, 1e6)}
    every = angle_of(inputs["positions"], inputs["inv_freq"])
    quarter = np.where(np.arange(16) < 4, every, 0.0)
    half = np.where(np.arange(16) < 8, every, 0.0)
    for profile in ("once", "float32"):
        given = ("rope_tables", profile, inputs)
        assert refused(*given, quarter, scheme="proportional") == 0
        assert refused(*given, every, scheme="proportional") > 20
        assert refused(*given, half, scheme="proportional") > 8
        assert refused(*given, quarter) > 20
        assert refused_tables(*given, np.where(quarter, np.cos(quarter), 0), np.sin(quarter),
                              scheme="proportional") >= 36  # fmt: skip


@pytest.mark.parametrize("name", ["rope_tables", "mrope_tables", "vit_rope_tables"])
def test_fp32_tables_hide_how_their_last_bit_is_rounded(name: str) -> None:
    """What the profile declares vacuous: a truncated cos or sin lies within its 3.5 ulps."""
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {"inv_freq": frequencies(8, 1e4)}
    positions = rng.integers(0, 10_000, 64)
    if name == "rope_tables":
        inputs["positions"], angles = positions, angle_of(positions, inputs["inv_freq"])
    elif name == "mrope_tables":
        inputs |= {"positions": np.tile(positions, (3, 1)), "sections": [3, 3, 2]}
        angles = angle_of(positions, inputs["inv_freq"])
    else:
        inputs["positions"] = np.stack([positions, positions], -1)
        angles = np.tile(angle_of(positions, inputs["inv_freq"]), (1, 2))
    cut = [formats.round_to(f(angles), "fp32", "toward_zero") for f in (np.cos, np.sin)]
    assert refused_tables(name, "float32", inputs, *cut) == 0
    cut = [formats.round_to(f(angles), "bf16", "toward_zero") for f in (np.cos, np.sin)]
    assert refused_tables(name, "once", inputs, *cut) > 200


def test_positions_end_at_262143() -> None:
    with pytest.raises(CaseError, match="values are 0 to 262143"):
        refused("rope_tables", "once", {"positions": [262_144], "inv_freq": [1.0]}, [[0.0]])


# ---- three axes


def test_the_axes_alternate() -> None:
    inputs: dict[str, Any] = {
        "positions": [[5], [2], [9]],
        "inv_freq": frequencies(4, 100.0),
        "sections": [2, 1, 1],
    }
    alternating = [[5, 0.632455532, 0.9, 0.158113883]]
    contiguous = [[5, 5 * 100**-0.25, 2 * 0.1, 9 * 100**-0.75]]
    first_row = [[5, 5 * 100**-0.25, 0.5, 5 * 100**-0.75]]
    given = ("mrope_tables", "once", inputs)
    assert refused(*given, alternating) == 0
    assert refused(*given, contiguous) == 6
    assert refused(*given, first_row) == 4
    assert refused(*given, contiguous, layout="contiguous") == 0
    assert refused(*given, alternating, layout="contiguous") == 6


@pytest.mark.parametrize(
    ("sections", "counts"), [((24, 20, 20), (24, 20, 20)), ((11, 11, 10), (11, 11, 10))]
)
@pytest.mark.parametrize("layout", ["interleaved", "contiguous"])
def test_every_axis_has_its_section(
    sections: tuple[int, ...], counts: tuple[int, ...], layout: str
) -> None:
    half = sum(sections)
    axis = axis_of_each(np.array(sections), half, layout)
    assert tuple(np.bincount(axis)) == counts
    ours = kernels.axis_of_each(torch.tensor(sections, dtype=torch.int32), half, layout)
    assert ours.tolist() == axis.tolist()
    if layout == "interleaved":
        assert axis[:6].tolist() == [0, 1, 2, 0, 1, 2]
        # frequency 60 and the three after it read time in Qwen3-VL
        assert axis[-4:].tolist() == ([0] * 4 if half == 64 else [1, 2, 0, 1])


def test_three_axes_are_asked_for() -> None:
    inputs: dict[str, Any] = {"positions": [[5], [2]], "inv_freq": [1.0], "sections": [1, 1]}
    with pytest.raises(CaseError, match="axes = 3"):
        refused("mrope_tables", "once", inputs, [[5.0]])


# ---- patches


def test_rows_turn_the_first_pairs_and_columns_the_second() -> None:
    """A grid of 2 x 3 patches in raster order; a square grid would hide one of the faults."""
    p = np.arange(6)
    inv_freq = frequencies(2, 100.0)

    def table(first: Any, second: Any) -> F8:
        return np.concatenate([angle_of(first, inv_freq), angle_of(second, inv_freq)], -1)

    inputs: dict[str, Any] = {"positions": np.stack([p // 3, p % 3], -1), "inv_freq": inv_freq}
    right = table(p // 3, p % 3)
    assert np.allclose(right[5], [1, 0.1, 2, 0.2])
    given = ("vit_rope_tables", "float32", inputs)
    assert refused(*given, right) == 0
    assert refused(*given, table(p % 3, p // 3)) > 20
    assert refused(*given, table(p // 2, p % 2)) > 15


# ---- transformers


def test_the_torch_tables_are_transformers_bit_for_bit() -> None:
    pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    f = torch.tensor(frequencies(32, 1e7), dtype=torch.float32)
    p = torch.randint(0, 262_144, (3, 50), generator=generator, dtype=torch.int32)
    sections = torch.tensor([11, 11, 10], dtype=torch.int32)
    patches = p[:2].T % 256
    pairs = [
        (
            transformers_rotary.qwen3_tables(p[0], f),
            kernels.rope_tables_torch(p[0], f, scheme="plain", profile="once"),
        ),
        (
            transformers_rotary.qwen3_5_tables(p, f, sections),
            kernels.mrope_tables_torch(p, f, sections, layout="interleaved", profile="once"),
        ),
        (
            transformers_rotary.qwen3_5_vision_tables(patches, f),
            kernels.vit_rope_tables_torch(patches, f, profile="float32"),
        ),
        (
            transformers_rotary.gemma4_vision_tables(patches, f),
            kernels.vit_rope_tables_torch(patches, f, profile="once"),
        ),
    ]
    for theirs, ours in pairs:
        for a, b in zip(theirs, ours, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


def test_proportional_tables_are_those_of_gemma_4() -> None:
    """transformers' frequencies end in zeros; ours stand in the operand, and are not read there."""
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    from types import SimpleNamespace

    parameters = {
        "rope_type": "proportional",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
    }
    config = SimpleNamespace(
        head_dim=512, rope_parameters=parameters, standardize_rope_params=lambda: None
    )
    theirs, _ = utils.ROPE_INIT_FUNCTIONS["proportional"](config)
    assert int((theirs > 0).sum()) == 64
    assert torch.allclose(theirs[:64], torch.tensor(frequencies(256, 1e6)[:64]).float(), rtol=1e-6)
    p = torch.tensor([0, 7, 262_143], dtype=torch.int32)
    full = torch.where(theirs > 0, theirs, 0.5)
    ours = kernels.rope_tables_torch(p, full, scheme="proportional", profile="once")
    plain = kernels.rope_tables_torch(p, theirs, scheme="plain", profile="once")
    assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))
