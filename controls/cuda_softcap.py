"""Planted soft caps in CUDA C++."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.cuda_faults import planted
from contract.kernels.cuda import softcap

if TYPE_CHECKING:
    import torch

PLANTED = planted("softcap")
BF16 = ("each_op", "once")


def faulty(x: torch.Tensor, cap: float, profile: str, fault: str) -> torch.Tensor:
    """softcap.cu with the macro of one fault."""
    return softcap.launched(PLANTED(f"softcap_{profile}", fault), x, cap)


@red(
    "softcap", profile=BF16, gate="shapes", name="cuda.cut_store", engine="ptx", requires=("nvcc",)
)
def cut_store(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """The store drops the bits below."""
    return faulty(x, cap, profile, "CUT_STORE")


@red(
    "softcap",
    profile=softcap.PROFILES,
    gate="shapes",
    name="cuda.tail_not_masked",
    engine="ptx",
    requires=("nvcc",),
)
def tail_not_masked(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """Whole vectors are written: over the next row's first columns, and past the last row."""
    return faulty(x, cap, profile, "TAIL_NOT_MASKED")


@red(
    "softcap",
    profile=softcap.PROFILES,
    gate="shapes",
    name="cuda.alignment",
    engine="ptx",
    requires=("nvcc",),
)
def alignment_assumed(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """16 bytes are loaded at addresses that are no multiple of 16."""
    return faulty(x, cap, profile, "ALIGNMENT_ASSUMED")


@green(
    "softcap", profile=softcap.PROFILES, name="cuda.small_blocks", engine="ptx", requires=("nvcc",)
)
def small_blocks(x: torch.Tensor, *, cap: float, profile: str) -> torch.Tensor:
    """Blocks of one warp."""
    return softcap.launched(softcap.ENTRIES[profile], x, cap, most=32)
