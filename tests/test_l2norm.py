"""Normalisation to length 1: where eps stands, and what each rounding decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from contract import formats
from contract.case import find, make_case
from contract.inputs import typical_case
from contract.kernels.l2norm import l2norm_torch
from contract.ranges import case_range, plain_run
from contract.readings.base import Change
from contract.readings.sample import SampleReading

ROWS = [[0.0, 0.0], [1e-4, 0.0], [0.0006, 0.0008], [3.0, 4.0]]


def refused(x: ArrayLike, out: ArrayLike, profile: str = "float32", eps: float = 1e-6) -> list[int]:
    """How many outputs of each row are not allowed."""
    kernel = find("l2norm", profile)
    values = np.asarray(x, np.float64)
    shape = {"rows": values.shape[0], "d": values.shape[1]}
    allowed = case_range(kernel, make_case(kernel, shape, {"x": values}, {"eps": eps}))["out"]
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64), allowed.fmt), allowed.fmt)
    counts: list[int] = allowed.refused(bits).sum(axis=1).tolist()
    return counts


def test_eps_stands_under_the_root() -> None:
    # 1e-4 / sqrt(1e-8 + 1e-6), 6e-4 / sqrt(1e-6 + 1e-6)
    right = [
        [0.0, 0.0],
        [0.0995037190, 0.0],
        [0.424264069, 0.565685425],
        [0.59999998800, 0.79999998400],
    ]
    assert refused(ROWS, right) == [0, 0, 0, 0]
    none = [[np.nan, np.nan], [1.0, 0.0], [0.6, 0.8], [0.6, 0.8]]
    cleared = [[0.0, 0.0], *none[1:]]
    outside = [[0.0, 0.0], [0.990099, 0.0], [0.5994006, 0.7992008], [0.59999988, 0.79999984]]
    mean = [[0.0, 0.0], [0.0997509, 0.0], [0.4898979, 0.6531973], [0.84852814, 1.1313708]]
    assert refused(ROWS, none) == [2, 1, 2, 0]
    assert refused(ROWS, cleared) == [0, 1, 2, 0]
    assert refused(ROWS, outside) == [0, 1, 2, 0]
    assert refused(ROWS, mean) == [0, 1, 2, 2]


def test_specials() -> None:
    inf = float("inf")
    assert refused([[-0.0, 0.0]], [[-0.0, 0.0]]) == [0]
    assert refused([[-0.0, 0.0]], [[0.0, -0.0]]) == [2]
    assert refused([[inf, 1.0], [np.nan, 1.0]], [[np.nan, 0.0], [np.nan, np.nan]]) == [0, 0]
    assert refused([[inf, 1.0], [np.nan, 1.0]], [[1.0, 1.0], [1.0, 0.0]]) == [2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_operators_are_allowed_on_fp32_rows_alone(dtype: torch.dtype) -> None:
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(0)).to(dtype)
    # the body of transformers.models.qwen3_5.modeling_qwen3_5.l2norm
    theirs = x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)
    profile = "float32" if dtype == torch.float32 else "once"
    wrong = sum(refused(x.double().numpy(), theirs.double().numpy(), profile))
    assert wrong == 0 if dtype == torch.float32 else wrong > 1000
    ours = l2norm_torch(x, eps=1e-6)
    assert sum(refused(x.double().numpy(), ours.double().numpy(), profile)) == 0


def test_no_fp32_output_tells_a_truncated_store() -> None:
    kernel = find("l2norm", "float32")
    case = typical_case(kernel, {"rows": 64, "d": 128}, 3)

    def truncated() -> SampleReading:
        change = Change(modes={"out": "toward_zero"})
        return SampleReading(kernel.contract, kernel.profile, change=change)

    out = plain_run(kernel, case, truncated, {})["out"]
    assert not case_range(kernel, case)["out"].refused(out).any()
