"""Operands in memory: layouts, guard zones and poison around them, and what a call did to all of it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract import formats
from contract.interval import Array
from contract.lazy import lazy

torch = lazy("torch")

# Bytes before and after every operand; more than one row of any vectorised load.
GUARD = 4096
# Bytes between rows in the strided layout: no multiple of 16, so that vector loads must notice.
GAP_ITEMS = 5

TORCH_TYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "e5m2": "float8_e5m2",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
    "int8": "int8",
    "int4": "int8",
    "uint4": "uint8",
    "uint8": "uint8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "e2m1": "uint8",
    "e8m0": "uint8",
}
SIGNED = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def torch_type(fmt: formats.Format) -> Any:
    """The torch dtype that stores a format."""
    return getattr(torch, TORCH_TYPES[fmt.name])


@dataclass
class Placed:
    """An operand in its own buffer."""

    name: str
    tensor: Any
    buffer: Array
    before: Array
    body: Array
    address: int

    def touched(self) -> tuple[bool, bool]:
        """Whether the operand itself, and whether memory around it, was changed."""
        if np.array_equal(self.buffer, self.before):
            return False, False
        inside = not np.array_equal(self.body, self._body_before())
        buffer = self.buffer.copy()
        self._like(buffer)[...] = self._body_before()
        return inside, not np.array_equal(buffer, self.before)

    def _like(self, buffer: Array) -> Array:
        start = self.body.__array_interface__["data"][0] - self.address
        return np.ndarray(self.body.shape, self.body.dtype, buffer, start, self.body.strides)

    def _body_before(self) -> Array:
        return self._like(self.before)


@functools.cache
def poison_bits(fmt: formats.Format, kind: str) -> int:
    """The bits that fill the surroundings: 'nan' (or the largest code) or 'finite' (a large finite value)."""
    if kind == "nan" and fmt.has_nan:
        return int(formats.encode(np.array([np.nan]), fmt)[0])
    if fmt.kind == "float":
        return int(formats.encode(formats.round_to(np.array([fmt.max / 4]), fmt), fmt)[0])
    return 0x5A if kind == "finite" else 0x33


def place(name: str, bits: Array, fmt: formats.Format, layout: str, poison: str) -> Placed:
    """Copy an operand into a poisoned buffer with the layout's strides; returns it with a torch view."""
    item = fmt.storage
    size = np.dtype(item).itemsize
    columns = bits.shape[-1] if bits.ndim else 1
    gap = GAP_ITEMS if layout == "strided" and bits.ndim >= 2 else 0
    lead = math.prod(bits.shape[:-1])
    offset = 1 if layout == "offset" else 0
    guard = GUARD // size
    buffer = np.full(
        2 * guard + offset + lead * (columns + gap) + 16, poison_bits(fmt, poison), item
    )
    # numpy aligns to 16 bytes at least; the 'plain' base is moved to 64
    address = int(buffer.__array_interface__["data"][0])
    start = guard + (-address // size) % (64 // size) + offset
    strides = [size] if bits.ndim else []
    for extent in reversed(bits.shape[1:]):
        strides.insert(0, strides[0] * extent + (gap * size if len(strides) == 1 else 0))
    body = np.ndarray(bits.shape, item, buffer, start * size, tuple(strides))
    body[...] = bits
    tensor = from_bits(body, fmt)
    whole = buffer.view(np.uint8)
    return Placed(name, tensor, whole, whole.copy(), body, address)


def from_bits(bits: Array, fmt: formats.Format) -> Any:
    """The tensor whose memory these storage bits are."""
    return torch.from_numpy(bits.view(SIGNED[bits.dtype.itemsize])).view(torch_type(fmt))


def to_bits(tensor: Any, fmt: formats.Format) -> Array:
    """Storage bits of a result tensor (any device, any layout)."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    size = np.dtype(fmt.storage).itemsize
    signed = getattr(torch, f"int{8 * size}")
    return np.asarray(flat.view(signed).numpy()).view(fmt.storage).reshape(tuple(tensor.shape))
