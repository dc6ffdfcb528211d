"""Arguments of a Triton kernel as the bytes of its parameters, as Triton's own launcher lays them out.

Its source (backends/nvidia/driver.c of 3.9) is what every rule here is from.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from contract.engines.capture import LaunchError, pointer

_INTEGERS = {"i1": 1, "u1": 1, **{f"{s}{8 * n}": n for s in "iu" for n in (1, 2, 4, 8)}}


def scratch_for(metadata: Any, what: str, grid: tuple[int, int, int]) -> Any:
    """Memory for all blocks where the kernel asks for some, else None."""
    size = getattr(metadata, f"{what}_size", 0)
    if not size:
        return None
    import torch

    # torch's allocator aligns to 64 bytes; more is not asked for
    return torch.zeros(size * grid[0] * grid[1] * grid[2] * metadata.num_ctas, dtype=torch.uint8)


def flatten(
    kernel: str,
    name: str,
    kind: Any,
    value: Any,
    values: list[tuple[str, bytes]],
    tensors: dict[str, Any],
) -> None:
    """The parameters of one argument, as Triton's launcher lays them out (backends/nvidia/driver.c of 3.9)."""
    if isinstance(kind, tuple):
        for i, (inner, part) in enumerate(zip(kind, value, strict=True)):
            flatten(kernel, f"{name}.{i}", inner, part, values, tensors)
    elif kind == "constexpr":
        return
    elif kind.startswith("tensordesc"):
        from triton.backends.driver import decompose_descriptor

        parts = decompose_descriptor(value)
        n = len(value.shape)
        kinds = ["*", *["i64"] * (2 * n), "i1", "i1", *["i32"] * n, *["i64"] * n]
        for i, (inner, part) in enumerate(zip(kinds, parts, strict=True)):
            flatten(kernel, f"{name}.{i}" if i else name, inner, part, values, tensors)
    elif kind.startswith("*"):
        values.append((name, pointer(_address(kernel, name, value, tensors))))
    else:
        values.append((name, _scalar(kernel, name, kind, value)))


def _address(kernel: str, name: str, value: Any, tensors: dict[str, Any]) -> int:
    if value is None or isinstance(value, int):
        return int(value or 0)
    if not hasattr(value, "data_ptr"):
        raise LaunchError(f"{kernel}: argument {name} is a {type(value).__name__}, not a tensor")
    # triton.reinterpret wraps a tensor
    tensors[name] = (
        getattr(value, "base", value) if not hasattr(value, "untyped_storage") else value
    )
    return int(value.data_ptr())


def _scalar(kernel: str, name: str, kind: str, value: Any) -> bytes:
    if size := _INTEGERS.get(kind):
        return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    if kind == "fp64":
        return struct.pack("<d", value)
    if kind == "fp16":
        return struct.pack("<e", value)
    if kind in ("fp32", "f32", "bf16"):
        with np.errstate(over="ignore"):
            data = np.float32(value).tobytes()
        # the launcher cuts a bf16 scalar off, it does not round
        return data if kind != "bf16" else data[2:]
    raise LaunchError(f"{kernel}: argument {name} has type {kind}, which is not captured")
