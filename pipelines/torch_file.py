"""Files of torch.save: a zip archive of a pickle and the bytes of each storage.

The pickle is read opcode by opcode before `torch.load(weights_only=True)` may build anything from it: that function
lets through types of which a file of a few bytes makes huge objects (`torch.FloatTensor(2**40)`, `bytearray`).
"""

from __future__ import annotations

import pickletools
import re
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from contract.errors import CheckpointError
from contract.pipelines.stored import DTYPES, Entry, file_size, foreign

_AGAIN = "download it again"
_TENSORS_ONLY = "save its state_dict alone, or convert it to safetensors"
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}

#: What a dictionary of tensors is pickled with.
_GLOBALS = {
    "collections OrderedDict",
    "torch.storage UntypedStorage",
    *(f"torch._utils _rebuild_{what}" for what in ("tensor_v2", "tensor_v3", "parameter")),
    *(str(dtype).replace(".", " ") for dtype in _KINDS),
}
_STORAGE = re.compile(r"torch [A-Z][A-Za-z0-9]*Storage\Z")
#: A pickle of 10^5 tensors has some 20 MiB.
_MAX_PICKLE = 64 << 20
#: torch's own nest two deep.
_MAX_TUPLES = 4


def read_torch(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors of a file by name, mapped, and no metadata: the format has none.

    Raises:
        CheckpointError: no archive of torch.save, or one that holds anything but tensors by name.
    """
    _check_archive(path)
    with foreign(path, _AGAIN):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path}: holds a {type(state).__name__}; {_TENSORS_ONLY}")
    return {_name(path, name): _entry(path, name, x) for name, x in state.items()}, {}


def _name(path: Path, name: Any) -> str:
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: a key is a {type(name).__name__}, no text; {_TENSORS_ONLY}")
    return name


def _entry(path: Path, name: str, x: Any) -> Entry:
    where = f"{path}: {name[:80]}"
    if not isinstance(x, torch.Tensor):
        raise CheckpointError(f"{where} is a {type(x).__name__}, no tensor; {_TENSORS_ONLY}")
    if x.layout != torch.strided or x.device.type != "cpu" or x.dtype not in _KINDS:
        raise CheckpointError(f"{where} is {x.layout}, {x.device}, {x.dtype}; save a plain tensor")
    if x.numel() * x.itemsize > x.untyped_storage().nbytes():
        # strides of 0: a few bytes that count as any number of elements
        raise CheckpointError(f"{where}: {tuple(x.shape)} out of fewer bytes; save x.contiguous()")
    return Entry(tuple(x.shape), _KINDS[x.dtype], partial(_same, x.detach()))


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _check_archive(path: Path) -> None:
    """Refuse what is no archive of stored (never compressed) members, and look through its pickle."""
    size = file_size(path)
    with foreign(
        path, f"no archive of torch.save of torch 1.6 or later: {_AGAIN} or save it again"
    ):
        archive = zipfile.ZipFile(path)
    with archive, foreign(path, _AGAIN):
        members = archive.infolist()
        names = [member.filename for member in members]
        if len(set(names)) != len(names):
            raise CheckpointError(f"{path}: two members of one name; {_AGAIN}")
        if any(member.compress_type or member.flag_bits & 1 for member in members):
            raise CheckpointError(f"{path}: a member is compressed or encrypted; save it again")
        if sum(member.file_size for member in members) > size:
            raise CheckpointError(f"{path}: its members are larger than the file; {_AGAIN}")
        for member in members:
            # reads the member's own header, which must name it too
            archive.open(member).close()
        pickles = [member for member in members if member.filename.endswith("/data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE:
            raise CheckpointError(
                f"{path}: {len(pickles)} members data.pkl, one is needed; {_AGAIN}"
            )
        _check_pickle(path, archive.read(pickles[0]))


def _check_pickle(path: Path, data: bytes) -> None:
    """Refuse a pickle that names anything but tensors, or whose tuples are nested deep or used twice.

    Hashing a tuple follows all its members, without an end where each is used twice by the next, and without a stack
    where they are nested deep.
    """
    depths: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    for opcode, arg, _ in pickletools.genops(data):
        name = opcode.name
        if name == "GLOBAL" and arg not in _GLOBALS and not _STORAGE.match(str(arg)):
            raise CheckpointError(
                f"{path}: its pickle names {str(arg)[:80].replace(' ', '.')}, no tensor; {_TENSORS_ONLY}"
            )
        if name == "MARK":
            marks.append(len(depths))
            continue
        if name in ("BINPUT", "LONG_BINPUT"):
            memo[int(arg or 0)] = depths[-1]
            continue
        if pickletools.markobject in opcode.stack_before:
            first = marks.pop() - opcode.stack_before.index(pickletools.markobject)
        else:
            first = len(depths) - len(opcode.stack_before)
        if first < 0:
            raise CheckpointError(f"{path}: its pickle takes more than it holds; {_AGAIN}")
        depth = max(depths[first:], default=0) + 1 if name.startswith("TUPLE") else 0
        if name in ("BINGET", "LONG_BINGET"):
            depth = memo.get(int(arg or 0), 0)
            if depth:
                raise CheckpointError(f"{path}: its pickle uses a tuple twice; {_TENSORS_ONLY}")
        if depth > _MAX_TUPLES:
            raise CheckpointError(f"{path}: its pickle nests tuples deep; {_TENSORS_ONLY}")
        del depths[first:]
        depths.extend([depth] * len(opcode.stack_after))
