"""Registers, stack, static shared memory and machine code of each kernel of a cubin, read from the ELF file itself.

Which attribute of `.nv.info` holds what is not documented; the numbers below are those at which cuobjdump and ptxas -v
of CUDA 12.9 to 13.4 agree with them for every kernel that was tried (sm_80 to sm_121).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from contract.compiled.faults import Unreadable

_FRAME, _REGISTERS = 0x11, 0x2F
# ELF64: the header's table of sections, a section, a symbol.
_HEADER, _SECTION, _SYMBOL = (
    struct.Struct("<QIHHHHHH"),
    struct.Struct("<IIQQQQII"),
    struct.Struct("<IBBHQQ"),
)
_AT_TABLE = 0x28
_SECTION_SIZE = 64
_EMPTY_IN_FILE = 8


@dataclass(frozen=True)
class Function:
    """One entry of a cubin.

    Attributes:
        registers: of each thread.
        stack: bytes of its frame.
        shared: bytes of its shared section: on sm_90 and later what CUDA takes of a block is in it.
        code: SHA-256 of its machine code.
        code_bytes: how much of it there is.
    """

    registers: int
    stack: int
    shared: int
    code: str
    code_bytes: int


class _Section(NamedTuple):
    name: str
    kind: int
    size: int
    link: int
    data: bytes


def read(cubin: bytes) -> dict[str, Function]:
    """Every entry of a cubin by its name.

    Raises:
        Unreadable: not a cubin, cut off, or an entry without its number of registers.
    """
    with _named("cubin"):
        sections = _sections(cubin)
        counts = dict(_attributes(sections, _symbols(sections)))
    shared = {s.name: s.size for s in sections if s.name.startswith(".nv.shared.")}
    found = {}
    for section in sections:
        if not section.name.startswith(".text."):
            continue
        name = section.name.removeprefix(".text.")
        if (name, _REGISTERS) not in counts:
            raise Unreadable(f"cubin: {name} has code and no number of registers")
        found[name] = Function(
            registers=counts[name, _REGISTERS],
            stack=counts.get((name, _FRAME), 0),
            shared=shared.get(f".nv.shared.{name}", 0),
            code=hashlib.sha256(section.data).hexdigest(),
            code_bytes=section.size,
        )
    if not found:
        raise Unreadable("cubin: it holds no code")
    return found


def code(binary: bytes) -> tuple[str, int]:
    """SHA-256 and size of the section `.text` of an AMD code object, which holds one kernel."""
    with _named("hsaco"):
        text = next(s for s in _sections(binary) if s.name == ".text")
    return hashlib.sha256(text.data).hexdigest(), text.size


@contextmanager
def _named(what: str) -> Iterator[None]:
    """What a damaged file raises, as one error."""
    try:
        yield
    except (struct.error, IndexError, ValueError, StopIteration) as error:
        said = str(error) or type(error).__name__
        raise Unreadable(f"{what}: it is cut off or damaged ({said})") from None


def _sections(cubin: bytes) -> list[_Section]:
    if cubin[:4] != b"\x7fELF":
        raise ValueError("it does not start as an ELF file does")
    table, _, _, _, _, each, count, names = _HEADER.unpack_from(cubin, _AT_TABLE)
    if each != _SECTION_SIZE:
        raise ValueError(f"a section header of {each} bytes")
    raw = [_SECTION.unpack_from(cubin, table + i * each) for i in range(count)]
    texts = _taken(cubin, raw[names])
    return [
        _Section(_text(texts, entry[0]), entry[1], entry[5], entry[6], _taken(cubin, entry))
        for entry in raw
    ]


def _taken(cubin: bytes, entry: tuple[int, ...]) -> bytes:
    kind, offset, size = entry[1], entry[4], entry[5]
    if kind == _EMPTY_IN_FILE:
        return b""
    if offset + size > len(cubin):
        raise ValueError("a section ends behind the file")
    return cubin[offset : offset + size]


def _text(texts: bytes, at: int) -> str:
    return texts[at : texts.index(b"\0", at)].decode()


def _symbols(sections: list[_Section]) -> list[str]:
    table = next(s for s in sections if s.name == ".symtab")
    texts = sections[table.link].data
    return [_text(texts, entry[0]) for entry in _SYMBOL.iter_unpack(table.data)]


def _attributes(
    sections: list[_Section], symbols: list[str]
) -> Iterator[tuple[tuple[str, int], int]]:
    """((function, attribute), number) of the file-wide `.nv.info`."""
    for section in sections:
        if section.name != ".nv.info":
            continue
        at = 0
        while at < len(section.data):
            form, attribute, size = struct.unpack_from("<BBH", section.data, at)
            at += 4
            # form 4: `size` bytes follow, here a symbol's index and a number; the others hold their value in `size`
            if form != 4:
                continue
            if attribute in (_FRAME, _REGISTERS):
                index, number = struct.unpack_from("<II", section.data, at)
                yield (symbols[index], attribute), number
            at += size
