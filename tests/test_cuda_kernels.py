"""CUDA C++ implementations: what their wrappers and sources share, and operands that they refuse."""

from __future__ import annotations

import re
from types import ModuleType

import numpy as np
import pytest
import torch

from contract.kernels import cuda
from contract.kernels.cuda import add_rms_tail, vit_pool, w4_gemv


def constant(source: str, name: str) -> int:
    """The number that a .cu file gives a name."""
    found = re.findall(rf"\b{name} = (\d+)[,;]", (cuda.FOLDER / source).read_text())
    assert len(found) == 1, (source, name, found)
    return int(found[0])


@pytest.mark.parametrize(
    ("module", "name", "source", "there"),
    [
        (add_rms_tail, "HELD", "add_rms_tail.cu", "HELD"),
        (add_rms_tail, "THREADS", "add_rms_tail.cu", "MOST_THREADS"),
        (vit_pool, "THREADS", "vit_pool.cu", "MOST_THREADS"),
        (w4_gemv, "OUTPUTS", "w4_gemv.cu", "OUTPUTS"),
        (cuda, "WARP", "common.cuh", "WARP"),
    ],
)
def test_wrapper_and_source_have_the_same_sizes(
    module: ModuleType, name: str, source: str, there: str
) -> None:
    assert getattr(module, name) == constant(source, there)


@pytest.mark.parametrize(
    ("threads", "block"), [(1, 32), (32, 32), (33, 64), (250, 256), (900, 256)]
)
def test_blocks_are_whole_warps(threads: int, block: int) -> None:
    assert cuda.whole_warps(threads, 256) == block


def test_rows_lie_any_distance_apart() -> None:
    assert cuda.row_stride(torch.zeros(3, 20)[:, :7]) == np.int64(20)
    # one column: its stride means nothing
    assert cuda.row_stride(torch.zeros(3, 20)[:, ::20]) == np.int64(20)


@pytest.mark.parametrize("x", [torch.zeros(4, 6).t(), torch.zeros(4, 6)[:, ::2], torch.zeros(4)])
def test_a_row_with_gaps_between_its_elements_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="the kernel takes rows of adjacent elements"):
        cuda.row_stride(x)


def test_a_row_wider_than_a_block_is_refused() -> None:
    x = torch.zeros(1, 16_385, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="rows of 16385 columns; a block holds 16384"):
        add_rms_tail.add_rms_tail_cuda(x, x, x[0], eps=1e-6, profile="fused")


def test_scales_that_are_not_finite_are_refused_where_the_weight_is_packed() -> None:
    words, scales = torch.zeros(2, 4, dtype=torch.int32), torch.tensor([[1.0], [float("nan")]])
    with pytest.raises(ValueError, match=r"scale nan at \[1, 0\]"):
        w4_gemv.W4GemvCuda(words, scales, block="32", profile="kept")
