"""How named arrays travel between processes: through a mapped file, or through a socket.

Both ways carry a JSON description (name, dtype, shape) and the raw bytes. Nothing is pickled: a
description is checked against a list of dtypes and a limit in bytes before any memory is taken, so
that a sender that has lost its mind, or means harm, can at worst send wrong numbers.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: The dtypes that may travel; bf16, fp8 and the like travel as the unsigned integers of their bits.
DTYPES = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
})  # fmt: skip

# A header is a few kilobytes; a limit keeps a garbage length from being believed.
HEADER_BYTES = 64 << 20
_SMALL = 1 << 14
_PREFIX = struct.Struct("<4sI")
_MAGIC = b"KCF1"
# Alignment inside the file: a cache line, and what AVX-512 loads want.
_ALIGN = 64


class Malformed(ValueError):
    """A frame or description that no sender of ours writes."""


class Spec(NamedTuple):
    """One array: its name, dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes, in Python's integers: a hostile shape must not wrap around."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def plain(name: str, value: object) -> Array:
    """The value as a contiguous array in native byte order.

    Raises:
        TypeError: not an array, or of a dtype that does not travel.
    """
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"array {name!r} is a {type(value).__name__}, not a numpy array")
    array = np.asarray(value)
    if array.dtype.name not in DTYPES:
        raise TypeError(f"array {name!r} has dtype {array.dtype}; use one of {sorted(DTYPES)}")
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def describe(arrays: Mapping[str, Array]) -> list[Spec]:
    """The specs of arrays that `plain` has returned."""
    return [Spec(name, array.dtype.name, array.shape) for name, array in arrays.items()]


def read_specs(raw: object, limit: int) -> list[Spec]:
    """Specs out of parsed JSON.

    Raises:
        Malformed: anything but a list of [name, dtype, shape] of at most `limit` bytes in all.
    """
    specs: list[Spec] = []
    total = 0
    if not isinstance(raw, list) or len(raw) > 10_000:
        raise Malformed("the arrays are not described by a short list")
    for item in raw:
        if not isinstance(item, list) or len(item) != 3:
            raise Malformed("an array is not described by name, dtype and shape")
        name, dtype, shape = item
        if not (isinstance(name, str) and isinstance(dtype, str) and isinstance(shape, list)):
            raise Malformed("an array's name, dtype or shape is not one")
        if dtype not in DTYPES:
            raise Malformed(f"array {name[:40]!r} has dtype {dtype[:40]!r}")
        # `type(n) is int`: JSON's true is an int to isinstance.
        if len(shape) > 32 or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
            raise Malformed(f"array {name[:40]!r} has no valid shape")
        specs.append(Spec(name, dtype, tuple(shape)))
        total += specs[-1].nbytes
    if total > limit:
        raise Malformed(f"the arrays hold {total} bytes, more than the limit of {limit}")
    if len({spec.name for spec in specs}) != len(specs):
        raise Malformed("two arrays have one name")
    return specs


def raw_bytes(array: Array) -> memoryview:
    """The bytes of a contiguous array, without a copy."""
    return memoryview(array.reshape(-1).view(np.uint8).data)


def pack_frame(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> list[bytes | memoryview]:
    """The pieces of one frame: magic and header length, JSON header, then the arrays' bytes."""
    text = json.dumps({**header, "arrays": describe(arrays)}).encode()
    if len(text) > HEADER_BYTES:
        raise TypeError(f"the payload takes {len(text)} bytes as JSON, more than {HEADER_BYTES}")
    return [_PREFIX.pack(_MAGIC, len(text)), text, *map(raw_bytes, arrays.values())]


def joined(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The pieces with small neighbours joined: one system call instead of one for each array."""
    waiting = b""
    for piece in pieces:
        if len(piece) <= _SMALL:
            waiting += piece
        else:
            yield waiting
            yield piece
            waiting = b""
    yield waiting


def read_frame(
    fill: Callable[[memoryview], None], limit: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    """One frame, by `fill(view)`, which fills the view or raises.

    Raises:
        Malformed: the bytes are not a frame, or its arrays hold more than `limit` bytes.
    """
    prefix = bytearray(_PREFIX.size)
    fill(memoryview(prefix))
    magic, length = _PREFIX.unpack(prefix)
    if magic != _MAGIC or length > HEADER_BYTES:
        raise Malformed("a frame does not begin like one")
    text = bytearray(length)
    fill(memoryview(text))
    try:
        header = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise Malformed("a frame's header is not JSON") from error
    if not isinstance(header, dict):
        raise Malformed("a frame's header is not an object")
    arrays: dict[str, Array] = {}
    for spec in read_specs(header.pop("arrays", None), limit):
        arrays[spec.name] = np.empty(spec.shape, spec.dtype)
        if spec.nbytes:
            fill(raw_bytes(arrays[spec.name]))
    return header, arrays


class SharedArrays:
    """Arrays written once to a file that any number of workers map, each with its own changes.

    Args:
        arrays: name -> array, of dtypes in DTYPES.
        folder: where the file lies; the system's temporary folder where absent.
    """

    def __init__(self, arrays: Mapping[str, Array], folder: str | Path | None = None) -> None:
        ready = {name: plain(name, array) for name, array in arrays.items()}
        handle, path = tempfile.mkstemp(prefix="contract-", suffix=".arrays", dir=folder)
        self.path = Path(path)
        self.specs = describe(ready)
        try:
            with os.fdopen(handle, "wb") as file:
                for array in ready.values():
                    file.write(raw_bytes(array))
                    file.write(bytes(-file.tell() % _ALIGN))
                # An empty file cannot be mapped.
                file.write(bytes(_ALIGN))
        except BaseException:
            self.close()
            raise

    @property
    def handle(self) -> dict[str, Any]:
        """What `open_shared` needs, as JSON."""
        return {
            "path": str(self.path),
            "arrays": [[*spec[:2], list(spec.shape)] for spec in self.specs],
        }

    def close(self) -> None:
        """Remove the file; what is mapped already stays readable."""
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_shared(handle: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays behind a handle, mapped copy-on-write: writable, seen by nobody else.

    Raises:
        Malformed: the handle describes more bytes than the file holds.
    """
    with open(handle["path"], "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    arrays: dict[str, Array] = {}
    offset = 0
    for spec in read_specs(handle["arrays"], len(mapped)):
        arrays[spec.name] = np.ndarray(spec.shape, spec.dtype, mapped, offset)
        offset += spec.nbytes + -spec.nbytes % _ALIGN
    return arrays
