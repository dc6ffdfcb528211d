"""Four-bit weights: products that read packed codes against unpacking them first, 2048 outputs, 6144 inputs.

The weight is repacked before, as at load time.
"""

from __future__ import annotations

import torch
from run import best

from contract.kernels.packing import nibbles_of
from contract.kernels.w4_gemv import Int4Weight
from contract.kernels.w4_gemv_planes import PlaneWeight

N, K, BLOCK = 2048, 6144, 128
#: The packed products take 2 ms: as many passes as find a quiet moment.
PASSES = 8
QUICK_PASSES = 10
FASTER_IN_BF16 = 50.0
FASTER_IN_PLANES = 20.0
#: Gigabytes of packed codes in a second.
PLANES_RATE = 2.0


def measure() -> list[tuple[str, float, float]]:
    """(name, ratio, least ratio): how often the packed product runs in the time of unpacking and multiplying."""
    made = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (N, K // 8), generator=made).int()
    zeros = torch.randint(0, 16, (N, K // BLOCK), generator=made).byte()
    scales = torch.rand(N, K // BLOCK, generator=made) * 0.006
    x = torch.randn(1, K, generator=made).bfloat16()
    a = torch.randint(-32768, 32640, (1, K), generator=made).short()
    half = scales.bfloat16()
    packed, plane = (
        Int4Weight.prepare(words, half, zeros),
        PlaneWeight.prepare(words, scales, zeros),
    )

    def unpack_first() -> torch.Tensor:
        return dequantised(words, half, zeros) @ x[0].float()

    slow, quick, exact = best(
        unpack_first,
        lambda: packed(x),
        lambda: plane(a),
        passes=PASSES,
        each=(1, QUICK_PASSES, QUICK_PASSES),
    )
    return [
        ("W4 product in bf16, against unpack and multiply", slow / quick, FASTER_IN_BF16),
        ("W4 product in planes, against unpack and multiply", slow / exact, FASTER_IN_PLANES),
        ("W4 product in planes, GB/s of packed codes", N * K / 2e9 / exact, PLANES_RATE),
    ]


def dequantised(words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """The whole weight in fp32."""
    codes = nibbles_of(words).reshape(*scales.shape, -1).float()
    return ((codes - zeros[..., None].float()) * scales.float()[..., None]).flatten(1)
