"""int8 codes with a scale known beforehand: what kernels that end in them share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from contract import Scalar
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

#: A power of two, whose quotients meet every tie, and one of 24 bits.
SCALES = (0.03125, float(np.float32(0.0173)))
SCALE = Scalar("scale", SCALES)


def static_codes(y: torch.Tensor, scale: float) -> torch.Tensor:
    """clamp(round(y / s), -127, 127) of fp32 values, ties to even; a NaN is 0."""
    return (y / scale).clamp(-127.0, 127.0).nan_to_num(0.0).round().to(torch.int8)


def check_scale(scale: float) -> float:
    """A scale that divides.

    Raises:
        ValueError: not a positive finite number.
    """
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"scale {scale!r}; an int8 scale is a positive finite number")
    return scale
