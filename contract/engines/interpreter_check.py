"""Why Triton's interpreter is no engine: what it makes of a conversion to bf16.

Run as `python -m contract.engines.interpreter_check` with TRITON_INTERPRET=1: prints, of 64 fp32 values, how many are
stored as bf16 cut off and how many rounded to nearest even, as compiled code rounds (cvt.rn).
"""

from __future__ import annotations

import os
import subprocess
import sys

SECONDS = 60


def verdict() -> str:
    """One line: what the interpreter of the installed Triton does, asked in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        return f"its self-test did not end in {SECONDS} s"
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or ["it said nothing"]
        return f"its self-test failed: {said[-1]}"
    cut, nearest = map(int, done.stdout.split()[-2:])
    if nearest == 64:
        return "64 of 64 values are rounded to nearest here; it still runs no compiled code"
    return f"it stores fp32 as bf16 cut off ({cut} of 64 values; {nearest} as rounded to nearest)"


def main() -> None:
    """Convert in the interpreter, and count."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def convert(x, out, n: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, n)
        tl.store(out + at, tl.load(x + at).to(tl.bfloat16))

    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    out = torch.empty(64, dtype=torch.bfloat16)
    convert[(1,)](x, out, 64)
    cut = (x.view(torch.int32) >> 16).to(torch.int16)
    bits = out.view(torch.int16)
    print(int((bits == cut).sum()), int((bits == x.bfloat16().view(torch.int16)).sum()))


if __name__ == "__main__":
    main()
