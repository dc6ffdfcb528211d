"""Files of the safetensors format: 8 bytes length, a JSON header of that length, the bytes of the tensors.

The header is checked here, for errors that name the tensor; the tensors are read by the `safetensors` library, mapped.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from contract.errors import CheckpointError
from contract.pipelines.extras import extra
from contract.pipelines.stored import DTYPES, MAX_JSON_BYTES, Entry, file_size, foreign, read_json

#: No model has more; a shape of a million ones is an attack.
MAX_DIMS = 8
_AGAIN = "download it again"


def read_safetensors(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors of a file by name, and its metadata.

    Raises:
        CheckpointError: a file that is not exactly what its header says.
    """
    header, data_bytes = _header(path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must hold text only; write it again")
    spans = {name: _span(f"{path}: {name[:80]}", item) for name, item in header.items()}
    _check_cover(path, spans, data_bytes)
    safe_open = extra("safetensors").safe_open
    with foreign(path, _AGAIN):
        file = safe_open(path, framework="pt")
    return {
        name: Entry(tuple(item["shape"]), item["dtype"], partial(_load, path, file, name))
        for name, item in header.items()
    }, metadata


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header, and the number of bytes that follow it."""
    size = file_size(path)
    with foreign(path, "name a file that can be read"), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(
                f"{path}: a header of {length} bytes in a file of {size}; cut short or no safetensors file: {_AGAIN}"
            )
        if length > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path}: a header of {length} bytes; at most {MAX_JSON_BYTES} are read"
            )
        header = read_json(file.read(length), f"{path}: header")
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is no JSON object; {_AGAIN}")
    return header, size - 8 - length


def _span(where: str, item: Any) -> tuple[int, int]:
    """The bytes of one tensor; (first, one past the last)."""
    if not isinstance(item, dict) or item.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{where}: no object of dtype, shape and data_offsets; write it again"
        )
    dtype, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(f"{where}: dtype {str(dtype)[:20]!r}; known are {', '.join(DTYPES)}")
    if not _naturals(shape) or len(shape) > MAX_DIMS:
        raise CheckpointError(
            f"{where}: shape {str(shape)[:80]}; give at most {MAX_DIMS} sizes >= 0"
        )
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: data_offsets {str(offsets)[:80]}; give 0 <= begin <= end")
    needed = math.prod(shape) * DTYPES[dtype].itemsize
    if offsets[1] - offsets[0] != needed:
        raise CheckpointError(
            f"{where}: {offsets[1] - offsets[0]} bytes; {dtype} {shape} has {needed}; write it again"
        )
    return offsets[0], offsets[1]


def _naturals(value: Any) -> bool:
    # 2^63 and more overflow in every library that reads them
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _check_cover(path: Path, spans: Mapping[str, tuple[int, int]], data_bytes: int) -> None:
    """Refuse tensors that overlap, leave a hole, or end elsewhere than the file."""
    at, before = 0, "the header"
    for name, (begin, end) in sorted(spans.items(), key=lambda pair: pair[1]):
        if begin != at:
            fault = "overlaps" if begin < at else "leaves a hole after"
            raise CheckpointError(f"{path}: {name[:80]} {fault} {before[:80]}; write it again")
        at, before = end, name
    if at != data_bytes:
        raise CheckpointError(
            f"{path}: the tensors have {at} bytes, the file has room for {data_bytes}; cut short or appended to: {_AGAIN}"
        )


def _load(path: Path, file: Any, name: str) -> Any:
    with foreign(f"{path}: {name}", _AGAIN):
        return file.get_tensor(name)
