"""Lookups in affine tables: literal rows, each width's stream, and the faults that the contract refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import contract
from contract.case import find, make_case
from contract.errors import CaseError, NotAllowed
from contract.inputs import exact_cases
from contract.kernels.affine_packing import WIDTHS, pack
from contract.kernels.embed_affine import embed_affine_torch

ROOT = 3840.0**0.5
#: bf16 of ROOT = 61.967
FACTOR = 62.0


def table(bits: int, codes: Any, scales: Any, biases: Any) -> dict[str, Any]:
    return {
        "words": pack(torch.as_tensor(codes), bits),
        "scales": torch.tensor(scales).bfloat16(),
        "biases": torch.tensor(biases).bfloat16(),
    }


def allowed(
    out: Any, given: dict[str, Any], ids: list[int], scale: float = 1.0, **more: Any
) -> None:
    tensors = {"ids": torch.tensor(ids).int(), "scale": torch.tensor(scale), **given}
    contract.assert_allowed("embed_affine", torch.as_tensor(out).bfloat16(), **tensors, **more)


@pytest.mark.parametrize("bits", WIDTHS)
def test_a_code_is_times_its_groups_scale_plus_its_bias(bits: int) -> None:
    codes = (11 * torch.arange(128) + 1).reshape(2, 64) % (1 << bits)
    given = table(bits, codes, [[1.0, 2.0], [4.0, 0.5]], [[0.0, -1.0], [2.0, 0.0]])
    # row 1: 4 q + 2 in the first group, q / 2 in the second
    right = torch.cat([4.0 * codes[1, :32] + 2.0, codes[1, 32:] / 2.0])[None]
    allowed(right, given, [1], bits=str(bits))
    exchanged = torch.cat([codes[1, :32] / 2.0 + 2.0, 4.0 * codes[1, 32:]])[None]
    for wrong in (right.flip(-1), exchanged, right - 2.0, codes[:1].float()):
        with pytest.raises(NotAllowed):
            allowed(wrong, given, [1], bits=str(bits))


def test_q_s_plus_b_is_rounded_before_the_factor_and_so_is_the_factor() -> None:
    # 7 * 0.0103759765625 + 0.0703125 = 0.1429443359375 -> 0.142578125; 62 times that is 8.83984375 -> 8.8125
    given = table(4, [[7] * 32], [[0.0103759765625]], [[0.0703125]])
    assert float(embed_affine_torch(
        torch.tensor([0]), **given, scale=torch.tensor(ROOT), bits="4", profile="two_step"
    )[0, 0]) == 8.8125  # fmt: skip
    allowed(torch.full((1, 32), 8.8125), given, [0], ROOT)
    # once at the end 62 * 0.14294 = 8.8625 -> 8.875; the factor unrounded: 61.967 * 0.142578 = 8.8351 -> 8.8125
    with pytest.raises(NotAllowed):
        allowed(torch.full((1, 32), 8.875), given, [0], ROOT)


def test_the_product_is_rounded_on_its_own_under_each_op() -> None:
    # 7 s = 0.0726318359375 -> 0.07275390625; b = -0.0703125 leaves 0.0023193359375 or 0.00244140625
    given = table(4, [[7] * 32], [[0.0103759765625]], [[-0.0703125]])
    fused, each = (torch.full((32,), x) for x in (0.0023193359375, 0.00244140625))
    allowed(fused[None], given, [0], profile="two_step")
    allowed(each[None], given, [0], profile="each_op")
    for out, profile in ((each, "two_step"), (fused, "each_op")):
        with pytest.raises(NotAllowed):
            allowed(out[None], given, [0], profile=profile)


def test_the_exact_rows_see_every_row_group_and_the_factors_rounding() -> None:
    for bits in ("2", "3", "4", "5", "6", "8"):
        kernel = find("embed_affine", "two_step", {"bits": bits})
        cases, candidates = exact_cases(kernel, 0)
        assert sum(case.rows(kernel) for case, _ in cases) == candidates
        for case, _ in cases:
            ids = case.value(kernel, kernel.inputs()[0])
            assert set(ids) == set(range(case.shape["vocab"]))


def test_what_is_no_table_is_refused() -> None:
    given = table(4, [[1] * 64], [[1.0, 1.0]], [[0.0, 0.0]])
    out = torch.ones(1, 64)
    allowed(out, given, [0])
    with pytest.raises(CaseError, match="ids holds 1; values are 0 to 0"):
        allowed(out, given, [1])
    # the same words are 32 codes of 8 bits, in two groups of 16
    with pytest.raises(CaseError, match="groups are of 32, 64 or 128 columns"):
        allowed(out, given, [0], bits="8")
    shape = {"rows": 1, "vocab": 1, "words": 8, "groups": 2, "d": 32}
    with pytest.raises(CaseError, match=r"words = 8, sizes .* need 4 \(bits=4\)"):
        make_case(find("embed_affine", "two_step"), shape, {})


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_torch_kernel_looks_rows_up_in_the_dequantised_table(bits: int) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (9, 128))
    scales, biases = (rng.standard_normal((9, 2)).astype(np.float32) for _ in range(2))
    given = table(bits, codes, scales, biases)
    s, b = (given[n].double().repeat_interleave(64, -1) for n in ("scales", "biases"))
    whole = (torch.from_numpy(codes) * s + b).float().bfloat16() * torch.tensor(FACTOR).bfloat16()
    ids = torch.from_numpy(rng.integers(0, 9, 20))
    out = embed_affine_torch(
        ids, **given, scale=torch.tensor(ROOT), bits=str(bits), profile="two_step"
    )
    assert out.equal(whole[ids])
