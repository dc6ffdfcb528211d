"""GGUF files: metadata, tensors and their blocks of 32 values.

The header is read here and not by `gguf.GGUFReader`: every length in it must be checked against the file before anything
is believed (the reader loops over counts of 2^60), which reads all of it; and the reader makes an array of each string, 5.7 s
of processor time for the 98,000 strings of SmolLM2's vocabulary, against 0.3 s. Names and sizes of the kinds of
blocks are the library's; tests/test_gguf_file.py compares every field and tensor with its reader.

    magic "GGUF", version, number of tensors, number of fields,
    each field: key, type, value;  each tensor: name, sizes (columns first), kind, offset;  padding;  the tensors

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from contract.errors import CheckpointError
from contract.pipelines.extras import extra
from contract.pipelines.stored import Entry, foreign, mapped

BLOCK = 32
#: Bytes of a block of 32 values.
BLOCK_BYTES = {"Q4_1": 20, "Q8_0": 34}
_PLAIN = {"F32": torch.float32, "F16": torch.float16}

_VERSIONS = (2, 3)
#: Field type -> struct's letter; text and lists are read apart.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # fmt: skip
_TEXT, _LIST = 8, 9
#: Tensors, fields and values of lists, up to 200 bytes each once read; SmolLM2 has 147,510, a vocabulary of 2^18 a million.
_MAX_VALUES = 1 << 22
#: Bytes of all texts together.
_MAX_TEXT = 64 << 20
_MAX_DIMS = 4
_AGAIN = "download it again"


class Q4_1(NamedTuple):
    """Parts of Q4_1 blocks; value = d * code + m of its block.

    Attributes:
        codes: (rows, columns) uint8 in 0..15.
        d, m: (rows, columns / 32) float16.
    """

    codes: torch.Tensor
    d: torch.Tensor
    m: torch.Tensor


class Q8_0(NamedTuple):
    """Parts of Q8_0 blocks; value = d * code of its block.

    Attributes:
        codes: (rows, columns) int8.
        d: (rows, columns / 32) float16.
    """

    codes: torch.Tensor
    d: torch.Tensor


def split_q4_1(blocks: torch.Tensor) -> Q4_1:
    """Codes, scales and minima of rows of Q4_1 blocks, (rows, bytes) uint8.

    A block has 20 bytes: fp16 d, fp16 m, 16 bytes of which byte j holds value j below and value j + 16 above.

    Raises:
        CheckpointError: no whole blocks.
    """
    b = _in_blocks(blocks, "Q4_1")
    codes = torch.cat([b[..., 4:] & 15, b[..., 4:] >> 4], -1)
    return Q4_1(codes.flatten(1), _halves(b[..., :2]), _halves(b[..., 2:4]))


def split_q8_0(blocks: torch.Tensor) -> Q8_0:
    """Codes and scales of rows of Q8_0 blocks, (rows, bytes) uint8.

    A block has 34 bytes: fp16 d, 32 signed bytes.

    Raises:
        CheckpointError: no whole blocks.
    """
    b = _in_blocks(blocks, "Q8_0")
    return Q8_0(b[..., 2:].contiguous().view(torch.int8).flatten(1), _halves(b[..., :2]))


def unpermuted_rows(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of q or k as the model's own checkpoint has them: (heads * d, ...) of values or of whole packed rows.

    A llama GGUF holds them for rotary embedding of neighbours: its rows 2 i and 2 i + 1 of a head are the model's rows
    i and i + d / 2.

    Raises:
        CheckpointError: rows that are no `heads` heads of an even size.
    """
    if heads < 1 or rows.shape[0] % (2 * heads):
        raise CheckpointError(
            f"{rows.shape[0]} rows are no {heads} heads of an even size; give the number of heads of this tensor"
        )
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])  # (heads, d / 2, 2, ...)
    return pairs.transpose(1, 2).reshape(rows.shape)


def read_gguf(path: Path) -> tuple[dict[str, Entry], dict[str, Any]]:
    """The tensors of a file by name and its metadata as plain values.

    F32 and F16 tensors load as such, Q4_1 and Q8_0 as (rows, bytes) uint8, mapped; other kinds are listed, and
    refused when they are loaded.

    Raises:
        CheckpointError: a file that is not exactly what its header says; on loading also a scale or minimum that is
            not finite.
    """
    data = mapped(path)
    kinds = _kinds()
    with foreign(path, _AGAIN):
        header = _Header(path, data)
        metadata, tensors = header.read()
        alignment = _alignment(path, metadata)
        start = header.at + -header.at % alignment
        spans = [_span(path, tensor, kinds, start, len(data), alignment) for tensor in tensors]
    order = sorted(zip(spans, tensors, strict=True), key=lambda pair: pair[0])
    for (before, first), (after, second) in itertools.pairwise(order):
        if after[0] < before[1]:
            raise CheckpointError(f"{path}: {second.name} overlaps {first.name}; {_AGAIN}")
    return {
        tensor.name: Entry(
            tensor.shape,
            kinds[tensor.kind][0],
            partial(_load, path, data, tensor, kinds[tensor.kind][0], span),
        )
        for tensor, span in zip(tensors, spans, strict=True)
    }, metadata


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


class _Header:
    """A cursor over the header; every length is held against what is left of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0
        self.values = _MAX_VALUES
        self.text = _MAX_TEXT

    def refuse(self, why: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: at byte {self.at}: {why}; {_AGAIN}")

    def read(self) -> tuple[dict[str, Any], list[_Tensor]]:
        if self.data[:4] != b"GGUF":
            self.refuse(f"begins with {self.data[:4]!r}, no GGUF file")
        self.at = 4
        (version,) = self.numbers("I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            self.refuse("big-endian" if swapped else f"version {version}; 2 and 3 are read")
        tensors, fields = self.numbers("QQ")
        # a tensor has at least 8 + 4 + 8 + 4 + 8 bytes, a field 8 + 4 + 1
        self.count(tensors, 32, "tensors")
        self.count(fields, 13, "fields")
        metadata: dict[str, Any] = {}
        for _ in range(fields):
            key = self.string()
            if key in metadata:
                self.refuse(f"field {key[:80]!r} twice")
            metadata[key] = self.value(*self.numbers("I"))
        found = [self.tensor() for _ in range(tensors)]
        if len({tensor.name for tensor in found}) != len(found):
            self.refuse("two tensors of one name")
        return metadata, found

    def need(self, count: int, size: int, what: str) -> None:
        left = len(self.data) - self.at
        if count * size > left:
            self.refuse(f"{count} {what} in {left} bytes")

    def count(self, count: int, size: int, what: str) -> None:
        """That so many things of at least that size follow, and are not too many to hold."""
        self.need(count, size, what)
        self.values -= count
        if self.values < 0:
            self.refuse(f"more than {_MAX_VALUES} tensors, fields and values of lists")

    def numbers(self, letters: str) -> tuple[Any, ...]:
        size = struct.calcsize(f"<{letters}")
        self.need(1, size, f"numbers of {size} bytes")
        self.at += size
        return struct.unpack_from(f"<{letters}", self.data, self.at - size)

    def string(self) -> str:
        (length,) = self.numbers("Q")
        self.need(length, 1, "bytes of text")
        self.text -= length
        if self.text < 0:
            self.refuse(f"more than {_MAX_TEXT} bytes of text")
        text = self.data[self.at : self.at + length]
        self.at += length
        try:
            return text.decode()
        except UnicodeDecodeError:
            self.refuse(f"no UTF-8: {text[:20]!r}")

    def value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self.numbers(_NUMBERS[kind])[0]
        if kind == _TEXT:
            return self.string()
        if kind != _LIST:
            self.refuse(f"a field of type {kind}")
        kind, count = self.numbers("IQ")
        size = struct.calcsize(f"<{_NUMBERS[kind]}") if kind in _NUMBERS else 8
        if kind not in (*_NUMBERS, _TEXT):
            self.refuse(f"a list of type {kind}")
        self.count(count, size, "values")
        if kind == _TEXT:
            return [self.string() for _ in range(count)]
        return list(self.numbers(f"{count}{_NUMBERS[kind]}"))

    def tensor(self) -> _Tensor:
        name = self.string()
        (dims,) = self.numbers("I")
        if not 1 <= dims <= _MAX_DIMS:
            self.refuse(f"{name[:80]!r} has {dims} dimensions")
        sizes = self.numbers(f"{dims}Q")
        if 0 in sizes:
            self.refuse(f"{name[:80]!r} has sizes {sizes}")
        return _Tensor(name, tuple(reversed(sizes)), *self.numbers("IQ"))


def _kinds() -> dict[int, tuple[str, int, int]]:
    """Number of a kind -> its name, values and bytes of a block."""
    gguf = extra("gguf")
    return {int(k): (k.name, *sizes) for k, sizes in gguf.GGML_QUANT_SIZES.items()}


def _alignment(path: Path, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or value < 1 or value & (value - 1):
        raise CheckpointError(
            f"{path}: general.alignment = {str(value)[:80]}, no power of two; {_AGAIN}"
        )
    return value


def _span(
    path: Path,
    tensor: _Tensor,
    kinds: dict[int, tuple[str, int, int]],
    start: int,
    end: int,
    alignment: int,
) -> tuple[int, int]:
    """The bytes of one tensor; (first, one past the last)."""
    where = f"{path}: {tensor.name[:80]}"
    if tensor.kind not in kinds:
        raise CheckpointError(f"{where}: unknown kind {tensor.kind}; {_AGAIN}, or update gguf")
    name, block, size = kinds[tensor.kind]
    if tensor.shape[-1] % block:
        raise CheckpointError(f"{where}: {tensor.shape[-1]} columns; {name} has blocks of {block}")
    if tensor.offset % alignment:
        raise CheckpointError(
            f"{where}: offset {tensor.offset} is no multiple of {alignment}; {_AGAIN}"
        )
    first = start + tensor.offset
    last = first + math.prod(tensor.shape) // block * size
    if last > end:
        raise CheckpointError(f"{where}: ends at byte {last} of {end}; cut short: {_AGAIN}")
    return first, last


def _load(
    path: Path, data: mmap.mmap, tensor: _Tensor, kind: str, span: tuple[int, int]
) -> torch.Tensor:
    where = f"{path}: {tensor.name[:80]}"
    if kind not in _PLAIN and kind not in BLOCK_BYTES:
        read = ", ".join((*_PLAIN, *BLOCK_BYTES))
        raise CheckpointError(
            f"{where} is {kind}; read are {read}: convert the file to one of these"
        )
    raw = torch.frombuffer(data, dtype=torch.uint8)[span[0] : span[1]]
    if kind in _PLAIN:
        # torch views bytes as numbers where they begin at a multiple of their size
        even = raw if span[0] % _PLAIN[kind].itemsize == 0 else raw.clone()
        return even.view(_PLAIN[kind]).view(tensor.shape)
    rows = raw.view(math.prod(tensor.shape[:-1]), -1)
    parts = _scales(rows, kind)
    for name, part in parts.items():
        if bool((wrong := ~part.isfinite()).any()):
            row, block = (int(i) for i in wrong.nonzero()[0])
            raise CheckpointError(
                f"{where}: {name} of row {row}, block {block} is {float(part[row, block])}; {_AGAIN}"
            )
    return rows


def _scales(blocks: torch.Tensor, kind: str) -> dict[str, torch.Tensor]:
    """What is fp16 in each block, by name: 'd', and 'm' of Q4_1; (rows, columns / 32).

    Raises:
        CheckpointError: no whole blocks.
    """
    b = _in_blocks(blocks, kind)
    names = ("d", "m") if kind == "Q4_1" else ("d",)
    return {name: _halves(b[..., 2 * i : 2 * i + 2]) for i, name in enumerate(names)}


def _in_blocks(blocks: torch.Tensor, kind: str) -> torch.Tensor:
    """(rows, bytes) uint8 as (rows, blocks, bytes of a block)."""
    size = BLOCK_BYTES[kind]
    if blocks.dtype != torch.uint8 or blocks.dim() != 2 or blocks.shape[1] % size:
        raise CheckpointError(
            f"{blocks.dtype} {tuple(blocks.shape)} are no rows of {kind} blocks of {size} bytes; give (rows, bytes) uint8"
        )
    split: torch.Tensor = blocks.unflatten(1, (-1, size))
    return split


def _halves(pairs: torch.Tensor) -> torch.Tensor:
    """Little-endian fp16 numbers (..., ) of bytes (..., 2)."""
    # fresh strides: those of a single row may be odd, and still count as contiguous
    fresh = pairs.clone(memory_format=torch.contiguous_format)
    halves: torch.Tensor = fresh.view(torch.float16).squeeze(-1)
    return halves
