"""Tile rotations with codes: the matrix, the order of the stages, ties and ends, and widths that are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from literal import kernel_and_case, refused

from contract.errors import CaseError
from contract.kernels.hadamard_quant import hadamard_quant_torch, rotated

SCALE = 0.03125


def sylvester(order: int) -> Any:
    """H[g, k] = (-1)^(number of bits that g and k share)."""
    bits = [[(g & k).bit_count() % 2 for k in range(order)] for g in range(order)]
    return 1.0 - 2.0 * np.array(bits)


def rotation(groups: int) -> Any:
    """The normalised matrix over a whole row."""
    return np.kron(sylvester(groups), np.eye(32)) / math.sqrt(groups)


def codes(y: Any, scale: float = SCALE) -> Any:
    return np.clip(np.rint(y / scale), -127, 127)


def judged(x: Any, out: Any, scale: float = SCALE, profile: str = "float32") -> int:
    scalars = {"scale": scale}
    return refused("hadamard_quant", {"x": x}, out, profile=profile, scalars=scalars)["codes"]


def dense(groups: int, rows: int = 3) -> Any:
    rng = np.random.default_rng(3)
    return np.float32(rng.standard_normal((rows, 32 * groups))).astype(np.float64)


@pytest.mark.parametrize("groups", [2, 8, 64])
def test_codes_of_the_matrix_product_are_allowed(groups: int) -> None:
    x = dense(groups)
    right = codes(x @ rotation(groups))
    assert judged(x, right) == 0
    out = hadamard_quant_torch(torch.from_numpy(x).float(), scale=SCALE)
    assert np.array_equal(out.numpy(), right)


def test_other_rotations_are_refused() -> None:
    x = dense(64)
    lanes = np.kron(np.eye(64), sylvester(32)) / math.sqrt(32)
    swapped = np.kron(np.eye(32), sylvester(64)) / 8.0
    one_sided = np.kron(np.kron(np.eye(2), sylvester(32)), np.eye(32)) / 8.0
    for other in (lanes, swapped, rotation(64) * 8.0, rotation(64) / 8.0, one_sided, np.eye(2048)):
        assert judged(x, codes(x @ other)) > 0.5 * x.size


def test_stages_begin_with_neighbouring_groups() -> None:
    # 5 2^-3 is a tie of codes (2.5); half its last fp32 place in groups 1 and 3 is lost if groups 0 and 1 meet first
    x = np.zeros((1, 128))
    x[0, 0], x[0, 32], x[0, 96] = 0.625, 2.0**-25, 2.0**-25
    scale = 0.125
    right = np.zeros((1, 128))
    right[0, 0::32] = 2.0
    assert judged(x, right, scale) == 0
    out = hadamard_quant_torch(torch.from_numpy(x).float(), scale=scale)
    assert np.array_equal(out.numpy(), right)
    halves_first = right.copy()
    # (0.625 + 0) + (2^-25 + 2^-25) is one place above the tie, in the sum of all groups
    halves_first[0, 0] = 3.0
    assert judged(x, halves_first, scale) == 1


def test_ties_go_to_even_and_minus_128_is_no_code() -> None:
    # y = (x0 +- x1) / sqrt 4 in four groups, the others 0: 2.5 and 1.5 codes, and far beyond both ends
    x = np.zeros((1, 128))
    x[0, 0], x[0, 32], x[0, 1], x[0, 33] = 4.0, 1.0, -500.0, 0.0
    y = x @ rotation(4)
    right = codes(y, 1.0)
    assert right[0, [0, 32, 1]].tolist() == [2, 2, -127]
    assert judged(x, right, 1.0) == 0
    assert judged(x, np.clip(np.trunc(y + np.copysign(0.5, y)), -127, 127), 1.0) == 2
    assert judged(x, np.clip(np.rint(y), -128, 127), 1.0) == 4
    assert judged(x, np.clip(np.trunc(y), -127, 127), 1.0) == 2


@pytest.mark.parametrize("groups", [2, 16, 512])
def test_the_rotation_is_its_own_inverse_and_keeps_lengths(groups: int) -> None:
    x = torch.from_numpy(dense(groups))
    y = rotated(x) / math.sqrt(groups)
    back = rotated(y) / math.sqrt(groups)
    # log2 G additions of float64 each way
    assert (back - x).abs().max() < 1e-13
    assert ((y.norm(dim=-1) - x.norm(dim=-1)).abs() < 1e-11).all()
    assert not np.allclose(rotated(x) / groups, y)


def test_the_matrix_is_orthogonal_for_every_size_offered() -> None:
    for groups in (2, 4, 8, 16):
        h = rotated(torch.eye(32 * groups, dtype=torch.float64)).numpy()
        assert np.array_equal(h, rotation(groups) * math.sqrt(groups))
        assert np.array_equal(h @ h.T, groups * np.eye(32 * groups))


@pytest.mark.parametrize("d", [32, 96, 48, 12 * 32, 2048 + 32])
def test_other_widths_are_refused(d: int) -> None:
    with pytest.raises(
        ValueError, match=f"width {d}; a tile rotation needs 32 times a power of two"
    ):
        rotated(torch.zeros(1, d))
    with pytest.raises(CaseError, match="32 times a power of two"):
        kernel_and_case("hadamard_quant", {"x": np.zeros((1, d))})


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_does_not_divide_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="an int8 scale is a positive finite number"):
        hadamard_quant_torch(torch.zeros(1, 64), scale=scale)
