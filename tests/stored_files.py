"""Small files of weights for tests, written byte by byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

#: Q4_1, d = 0.5, m = -1.25: low halves 0 2 4 .. 14 twice, high halves 1 3 5 .. 15 twice
Q4_1_BLOCK = struct.pack("<ee", 0.5, -1.25) + bytes(
    [0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2
)
#: Q8_0, d = -0.25: 0, 1, .., 15, -16, .., -1
Q8_0_BLOCK = struct.pack("<e", -0.25) + bytes([*range(16), *range(240, 256)])


class GGUF:
    """A GGUF under construction; `sizes` are the places of all counts, lengths, kinds and offsets."""

    def __init__(self, tensors: int, fields: int, version: int = 3) -> None:
        self.data = bytearray(b"GGUF")
        self.sizes: list[tuple[int, str]] = []
        self.number("I", version)
        self.number("Q", tensors)
        self.number("Q", fields)

    def number(self, letter: str, value: int) -> None:
        self.sizes.append((len(self.data), letter))
        self.data += struct.pack(f"<{letter}", value)

    def text(self, text: str | bytes) -> None:
        raw = text.encode() if isinstance(text, str) else text
        self.number("Q", len(raw))
        self.data += raw

    def field(self, key: str, kind: int, raw: bytes) -> None:
        self.text(key)
        self.number("I", kind)
        self.data += raw

    def string(self, key: str, value: str | bytes) -> None:
        self.field(key, 8, b"")
        self.text(value)

    def strings(self, key: str, values: list[str]) -> None:
        self.field(key, 9, b"")
        self.number("I", 8)
        self.number("Q", len(values))
        for value in values:
            self.text(value)

    def ints(self, key: str, values: list[int]) -> None:
        self.field(key, 9, b"")
        self.number("I", 5)
        self.number("Q", len(values))
        self.data += struct.pack(f"<{len(values)}i", *values)

    def tensor(self, name: str, sizes: tuple[int, ...], kind: int, offset: int) -> None:
        self.text(name)
        self.number("I", len(sizes))
        for size in sizes:
            self.number("Q", size)
        self.number("I", kind)
        self.number("Q", offset)

    def body(self, *parts: bytes) -> bytes:
        """The whole file: the parts, each at a multiple of 32."""
        data = bytes(self.data)
        for part in parts:
            data += bytes(-len(data) % 32) + part
        return data


def small_gguf() -> GGUF:
    """Header of four tensors, one of each kind, and some fields; `small_gguf_file` adds their bytes."""
    file = GGUF(tensors=4, fields=5)
    file.string("general.architecture", "llama")
    file.field("llama.block_count", 4, struct.pack("<I", 30))
    file.field("llama.rope.freq_base", 6, struct.pack("<f", 1e5))
    file.strings("tokenizer.ggml.tokens", ["a", "Ġb", "<|end|>"])
    file.ints("tokenizer.ggml.token_type", [1, 1, 3])
    file.tensor("norm", (3,), 0, 0)
    file.tensor("half", (2, 3), 1, 32)
    file.tensor("q", (64, 2), 3, 64)
    file.tensor("embd", (32, 2), 8, 160)
    return file


def small_gguf_file() -> bytes:
    return small_gguf().body(
        struct.pack("<3f", 1.0, -2.0, 0.5),
        struct.pack("<6e", *range(6)),
        Q4_1_BLOCK * 4,
        Q8_0_BLOCK * 2,
    )


def safetensors_bytes(header: Any, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def small_header() -> dict[str, Any]:
    """Two tensors of 8 and 6 bytes."""
    return {
        "layer.weight": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
        "layer.bias": {"dtype": "BF16", "shape": [3], "data_offsets": [8, 14]},
    }


SMALL_DATA = struct.pack("<2f", 1.5, -2.0) + bytes.fromhex("803f 00c0 0000")


def small_safetensors(path: Path) -> Path:
    path.write_bytes(safetensors_bytes(small_header(), SMALL_DATA))
    return path
