"""Planted pools of image patches in CUDA C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.cuda_faults import planted
from contract.kernels.cuda import vit_pool

if TYPE_CHECKING:
    from torch import Tensor

PLANTED = planted("vit_pool")
PROFILES = vit_pool.PROFILES


@red(
    "vit_pool",
    profile=PROFILES,
    gate="shapes",
    name="cuda.cut_store",
    engine="ptx",
    requires=("nvcc",),
)
def cut_store(
    x: Tensor,
    positions: Tensor,
    cells: Tensor,
    bias: Tensor,
    scale: Tensor,
    *,
    root: float,
    profile: str,
) -> Tensor:
    """The store drops the bits below."""
    entry = PLANTED(f"vit_pool_{profile}", "CUT_STORE")
    return vit_pool.launched(entry, x, positions, cells, bias, scale, root)


@red(
    "vit_pool",
    profile="mean",
    gate="shapes",
    name="cuda.no_barrier",
    engine="ptx",
    requires=("nvcc",),
)
def no_barrier(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """The list of patches is read before every warp has written its own."""
    entry = PLANTED("vit_pool_mean", "NO_BARRIER")
    return vit_pool.launched(entry, x, positions, cells, bias, scale, root)


@red(
    "vit_pool",
    profile="mean",
    gate="shapes",
    name="cuda.half_the_votes",
    engine="ptx",
    requires=("nvcc",),
)
def half_the_votes(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """A warp is taken for 16 threads: patches of the upper lanes are not counted."""
    entry = PLANTED("vit_pool_mean", "HALF_THE_VOTES")
    return vit_pool.launched(entry, x, positions, cells, bias, scale, root)


@red(
    "vit_pool",
    profile="mean",
    gate="shapes",
    name="cuda.tail_not_masked",
    engine="ptx",
    requires=("nvcc",),
)
def tail_not_masked(
    x: Tensor, positions: Tensor, cells: Tensor, bias: Tensor, scale: Tensor, *, root: float
) -> Tensor:
    """Whole vectors are written: over the next cell's first columns, and past the last cell."""
    entry = PLANTED("vit_pool_mean", "TAIL_NOT_MASKED")
    return vit_pool.launched(entry, x, positions, cells, bias, scale, root)


@green("vit_pool", profile=PROFILES, name="cuda.small_blocks", engine="ptx", requires=("nvcc",))
def small_blocks(
    x: Tensor,
    positions: Tensor,
    cells: Tensor,
    bias: Tensor,
    scale: Tensor,
    *,
    root: float,
    profile: str,
) -> Tensor:
    """Blocks of one warp, which looks at 32 patches at a time."""
    entry = vit_pool.ENTRIES[profile]
    return vit_pool.launched(entry, x, positions, cells, bias, scale, root, most=32)
