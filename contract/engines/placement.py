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
# Bytes: where the first element of an operand lies, but for the layout 'offset'.
ALIGNMENT = 64
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
    """An operand in its own buffer.

    Attributes:
        tensor: what a call is given.
        buffer: all of the memory that was made for it, as bytes; body: the operand in it.
        before: the buffer's contents before the call.
        address: of the memory that the tensor lies in.
    """

    name: str
    tensor: Any
    buffer: Array
    before: bytes
    body: Array
    address: int

    def fetch(self) -> None:
        """Bring `buffer` to what the tensor's memory holds now: it is that memory."""

    def touched(self) -> tuple[bool, bool]:
        """Whether the operand itself, and whether memory around it, was changed."""
        # as bytes: to compare two arrays takes ten times as long as to copy one
        if self.buffer.tobytes() == self.before:
            return False, False
        before = np.frombuffer(self.before, np.uint8)
        inside = not np.array_equal(self.body, self._like(before))
        buffer = self.buffer.copy()
        self._like(buffer)[...] = self._like(before)
        return inside, not np.array_equal(buffer, before)

    def _like(self, buffer: Array) -> Array:
        start = address_of(self.body) - address_of(self.buffer)
        return np.ndarray(self.body.shape, self.body.dtype, buffer, start, self.body.strides)


@dataclass
class OnDevice(Placed):
    """An operand whose buffer lies on a device; `buffer` is the copy that a comparison reads.

    Attributes:
        memory: the device's buffer, as a tensor of bytes.
    """

    memory: Any

    def fetch(self) -> None:
        """Copy the device's buffer back, guard zones and all."""
        self.buffer[...] = self.memory.cpu().numpy()


def on_device(placed: Placed, fmt: formats.Format, device: Any) -> OnDevice:
    """The operand with its guard zones, gaps and poison on a device, at the same place between multiples of 64 bytes."""
    size = placed.buffer.nbytes
    whole = torch.empty(size + ALIGNMENT, dtype=torch.uint8, device=device)
    start = (address_of(placed.buffer) - whole.data_ptr()) % ALIGNMENT
    memory = whole[start : start + size]
    memory.copy_(torch.from_numpy(placed.buffer))
    item = placed.body.dtype.itemsize
    first = start + address_of(placed.body) - address_of(placed.buffer)
    bits = torch.empty(0, dtype=torch_type(fmt), device=device).set_(
        whole.untyped_storage(),
        first // item,
        placed.body.shape,
        tuple(stride // item for stride in placed.body.strides),
    )
    return OnDevice(
        placed.name, bits, placed.buffer, placed.before, placed.body, memory.data_ptr(), memory
    )


def address_of(array: Array) -> int:
    """Where an array's first element lies."""
    return int(array.__array_interface__["data"][0])


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
    address = address_of(buffer)
    start = guard + (-address // size) % (ALIGNMENT // size) + offset
    strides = [size] if bits.ndim else []
    for extent in reversed(bits.shape[1:]):
        strides.insert(0, strides[0] * extent + (gap * size if len(strides) == 1 else 0))
    body = np.ndarray(bits.shape, item, buffer, start * size, tuple(strides))
    body[...] = bits
    tensor = from_bits(body, fmt)
    whole = buffer.view(np.uint8)
    return Placed(name, tensor, whole, whole.tobytes(), body, address)


def from_bits(bits: Array, fmt: formats.Format) -> Any:
    """The tensor whose memory these storage bits are."""
    tensor = torch.from_numpy(bits.view(SIGNED[bits.dtype.itemsize]))
    wanted = torch_type(fmt)
    return tensor if tensor.dtype == wanted else tensor.view(wanted)


def to_bits(tensor: Any, fmt: formats.Format) -> Array:
    """Storage bits of a result tensor (any device, any layout)."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    size = np.dtype(fmt.storage).itemsize
    signed = getattr(torch, f"int{8 * size}")
    return np.asarray(flat.view(signed).numpy()).view(fmt.storage).reshape(tuple(tensor.shape))
