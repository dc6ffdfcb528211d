"""What the readers of stored tensors share: an entry, named faults, mapped bytes, strict JSON."""

from __future__ import annotations

import json
import mmap
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from contract.errors import CheckpointError, ContractError

#: Name of a kind of plain numbers, as safetensors writes it -> dtype.
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64,
}  # fmt: skip

#: Headers and indexes of models with 10^5 tensors have a few MiB; Python objects are up to 20 times as large.
MAX_JSON_BYTES = 16 << 20


@dataclass(frozen=True)
class Entry:
    """One stored tensor, not read yet.

    Attributes:
        shape: sizes in row-major order; those of the values where they are packed in blocks.
        kind: a name of DTYPES, or a kind of GGUF blocks.
        load: reads it, mapped where the format allows it.
    """

    shape: tuple[int, ...]
    kind: str
    load: Callable[[], torch.Tensor]


@contextmanager
def foreign(
    where: object, repair: str, kind: type[ContractError] = CheckpointError
) -> Iterator[None]:
    """Turn whatever another library raises into one error of ours.

    Raises:
        kind: names the place, the first line of what was raised, and the repair.
    """
    try:
        yield
    except ContractError:
        raise
    except BaseException as error:
        # A panic of a library in Rust is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        said = getattr(error, "strerror", None) or str(error)
        said = (said.strip().splitlines() or [type(error).__name__])[0][:200]
        raise kind(f"{where}: {said}; {repair}") from error


def file_size(path: Path) -> int:
    """Bytes of a file that can be read.

    Raises:
        CheckpointError: not there, no regular file, or empty.
    """
    with foreign(path, "name a file that can be read"):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        # opening a pipe would wait for its writer
        raise CheckpointError(f"{path}: no regular file; name a file of weights")
    if not status.st_size:
        raise CheckpointError(f"{path}: the file is empty; download it again")
    return status.st_size


def mapped(path: Path) -> mmap.mmap:
    """The bytes of a file, read from disk as they are used.

    They are the process's own copy once written to, so that torch takes them as a writable buffer; the file never
    changes. A file that is cut short while it is mapped ends the process, as with any mapping.

    Raises:
        CheckpointError: a file that cannot be mapped.
    """
    file_size(path)
    with foreign(path, "name a file that can be read"), path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def read_json(data: bytes, where: object) -> Any:
    """Strict JSON: no key twice in one object, no NaN, at most MAX_JSON_BYTES.

    Raises:
        CheckpointError: anything else, nesting that is too deep included.
    """
    if len(data) > MAX_JSON_BYTES:
        raise CheckpointError(f"{where}: {len(data)} bytes of JSON; {MAX_JSON_BYTES} are read")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise CheckpointError(
                f"{where}: key {twice[:80]!r} twice in one object; write it again"
            )
        return result

    def no_number(text: str) -> Any:
        raise ValueError(f"{text} is no JSON")

    try:
        return json.loads(data.decode(), object_pairs_hook=unique, parse_constant=no_number)
    except RecursionError as error:
        raise CheckpointError(f"{where}: JSON nested too deep; write it again") from error
    except ValueError as error:
        raise CheckpointError(
            f"{where}: no JSON ({str(error)[:200]}); download it again"
        ) from error
