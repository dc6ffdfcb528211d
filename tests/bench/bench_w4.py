"""Four-bit weights: products that read packed codes against unpacking them first, 2048 outputs, 6144 inputs.

Run as `python tests/bench/bench_w4.py`; the exit code is 1 where one is missed. Both sides run in this process, in
turn, on one thread, whose processor time is taken: neighbours on the machine stretch the clock, above all that of
threads that wait for each other. The weight is repacked before, as at load time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
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

    slow, quick, exact = best(unpack_first, lambda: packed(x), lambda: plane(a))
    torch.set_num_threads(threads)
    return [
        ("W4 product in bf16, against unpack and multiply", slow / quick, FASTER_IN_BF16),
        ("W4 product in planes, against unpack and multiply", slow / exact, FASTER_IN_PLANES),
        ("W4 product in planes, GB/s of packed codes", N * K / 2e9 / exact, PLANES_RATE),
    ]


def dequantised(words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """The whole weight in fp32."""
    codes = nibbles_of(words).reshape(*scales.shape, -1).float()
    return ((codes - zeros[..., None].float()) * scales.float()[..., None]).flatten(1)


def best(*calls: Callable[[], object]) -> list[float]:
    """Least processor time of each call in seconds, the calls taken in turn, the first one less often."""
    times = [float("inf")] * len(calls)
    for _ in range(PASSES):
        for i, call in enumerate(calls):
            for _ in range(QUICK_PASSES if i else 1):
                start = time.thread_time()
                call()
                times[i] = min(times[i], time.thread_time() - start)
    return times


if __name__ == "__main__":
    results = measure()
    for name, value, least in results:
        print(f"{name}: {value:,.1f} (>= {least:.0f})")
    sys.exit(any(value < least for _, value, least in results))
