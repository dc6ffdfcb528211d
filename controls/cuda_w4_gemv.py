"""Planted products with four-bit weights in CUDA C++."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.controls.cuda_faults import planted
from contract.kernels.cuda import w4_gemv

if TYPE_CHECKING:
    from torch import Tensor

PLANTED = planted("w4_gemv")
SYMMETRIC: dict[str, Any] = {"block": "32", "offsets": "no", "engine": "ptx", "requires": ("nvcc",)}


def symmetric(
    fault: str, x: Tensor, words: Tensor, scales: Tensor, profile: str = "kept"
) -> Tensor:
    """Blocks of 32 without offsets, with the macro of one fault."""
    entry = PLANTED(f"{profile}_32_x4", fault)
    return w4_gemv.launched(entry, 4, x, words, scales, None, None)


@red("w4_gemv", profile=("kept", "dequantised"), gate="exact", name="cuda.nibbles", **SYMMETRIC)
def nibbles_swapped(x: Tensor, words: Tensor, scales: Tensor, *, profile: str) -> Tensor:
    """The high nibble of a byte comes first."""
    return symmetric("NIBBLES_SWAPPED", x, words, scales, profile)


@red("w4_gemv", profile="kept", gate="shapes", name="cuda.signed_shift", **SYMMETRIC)
def signed_shift(x: Tensor, words: Tensor, scales: Tensor) -> Tensor:
    """The last code of a word is its arithmetic shift by 28, without a mask."""
    return symmetric("SIGNED_SHIFT", x, words, scales)


@red("w4_gemv", profile="kept", gate="shapes", name="cuda.shuffle_missing", **SYMMETRIC)
def shuffle_missing(x: Tensor, words: Tensor, scales: Tensor) -> Tensor:
    """The lanes' sums are added without the step 16 lanes apart."""
    return symmetric("SHUFFLE_MISSING", x, words, scales)


@red("w4_gemv", profile="kept", gate="exact", name="cuda.bf16_accumulator", **SYMMETRIC)
def bf16_accumulator(x: Tensor, words: Tensor, scales: Tensor) -> Tensor:
    """A lane's running sums are rounded to bf16."""
    return symmetric("BF16_ACCUMULATOR", x, words, scales)


@red("w4_gemv", profile="kept", gate="shapes", name="cuda.alignment", **SYMMETRIC)
def alignment_assumed(x: Tensor, words: Tensor, scales: Tensor) -> Tensor:
    """16 bytes are loaded at addresses that are no multiple of 16."""
    return symmetric("ALIGNMENT_ASSUMED", x, words, scales)


@red(
    "w4_gemv",
    profile="kept",
    gate="shapes",
    name="cuda.zero_point",
    block="128",
    engine="ptx",
    requires=("nvcc",),
)
def zero_point_dropped(x: Tensor, words: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """w = (q - 8) s, whatever the zero point."""
    entry = PLANTED("kept_128_x4", "ZERO_POINT_DROPPED")
    return w4_gemv.launched(entry, 4, x, words, scales, zeros, None)


@green("w4_gemv", profile=("kept", "dequantised"), name="cuda.one_vector", **SYMMETRIC)
def one_vector(x: Tensor, words: Tensor, scales: Tensor, *, profile: str) -> Tensor:
    """Every warp takes one vector, however many there are."""
    entry = w4_gemv.ENTRIES[f"{profile}_32", 1]
    return w4_gemv.launched(entry, 1, x, words, scales, None, None)
