"""Small files that outlive a run: finished checks and failing rows.

    ROOT/checks/ab/abcdef....json   {"schema": 1, "key": "abcdef...", "record": {...}}
    rows/NAME.json                  {"schema": 1, "rows": [...]}

A check's key is the digest of all that it depends on, so an entry is never out of date,
only unused. Every file is written beside its place and moved there: a reader sees the old one or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from contract.config import read_config
from contract.errors import StoreError
from contract.shared_arrays import DTYPES, Array

SCHEMA = 1
MAX_ROWS = 32
_KEY = re.compile(r"[0-9a-f]{8,64}\Z")
# What json.dumps makes of a string.
_quoted = json.encoder.encode_basestring_ascii


def digest(value: object) -> str:
    """SHA-256 of a value of None, bool, int, float, str, sequences and mappings with str keys.

    Mappings count without their order, a tuple as a list; floats by their bits (-0.0 is not 0.0,
    and 1.0 is not 1).

    Raises:
        TypeError: any other type, with the place at which it stands.
    """
    return hashlib.sha256(_canonical(value, "value").encode()).hexdigest()


def _canonical(value: object, place: str) -> str:
    if type(value) is str:
        # most of a key is hashes and names
        return _quoted(value)
    if type(value) is int:
        return repr(value)
    if value is None or isinstance(value, bool | int | str):
        return json.dumps(value)
    if isinstance(value, float):
        # Never the text of a JSON integer, so no float can stand for one.
        return float(value).hex()
    if isinstance(value, Mapping):
        if strange := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"{place}: key {strange[0]!r} is not a string")
        items = (
            f"{_quoted(k)}:"
            + (_quoted(x) if type(x := value[k]) is str else _canonical(x, f"{place}[{k!r}]"))
            for k in sorted(value)
        )
        return "{" + ",".join(items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_canonical(v, f"{place}[{i}]") for i, v in enumerate(value)) + "]"
    raise TypeError(f"{place}: no digest of a {type(value).__name__}")


def find_root(start: Path | None = None) -> Path:
    """The store's folder for `start` (the working folder): `.contract` beside its pyproject.toml.

    The user's cache folder where there is none. Nothing is created.
    """
    return read_config(start).store_root


def atomic_write_text(path: str | os.PathLike[str], text: str, *, durable: bool = True) -> None:
    """`atomic_write_bytes` of the text in UTF-8."""
    atomic_write_bytes(path, text.encode(), durable=durable)


def atomic_write_json(path: str | os.PathLike[str], said: Any) -> None:
    """`atomic_write_bytes` of what a command says, for other programs to read."""
    atomic_write_text(path, json.dumps(said, indent=1) + "\n")


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes, *, durable: bool = True) -> None:
    """Write a file so that no reader, and no crash, ever meets half of it.

    `durable`: also no loss of power; without it (a hundred times faster) that may leave an empty file.

    Raises:
        StoreError: the file cannot be written; the message says how to repair it.
    """
    # In strings and without a text layer: a run writes thousands.
    folder, name = os.path.split(os.fspath(path))
    # In the same folder: a move between file systems is a copy.
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.{next(_turn)}")
    try:
        descriptor = _created(temporary, folder)
        with open(descriptor, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]
            if durable:
                os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise StoreError(
            f"{path} cannot be written ({error.strerror}); make {folder or os.curdir} writable or run in a"
            " folder that is"
        ) from error


def _created(path: str, folder: str) -> int:
    """The descriptor of a new file, in a folder that may have to be made."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(folder or ".", exist_ok=True)
        return os.open(path, flags, 0o666)


# Two threads of one process may write the same file.
_turn = itertools.count()


def keep_out_of_git(root: Path) -> None:
    """Let git ignore the whole folder, this file too: it is a cache, whoever owns the repository."""
    if not (root / ".gitignore").exists():
        atomic_write_text(root / ".gitignore", "*\n")


class Store:
    """Finished checks under one folder, created when first written to.

    Attributes:
        root: the folder.
        unreadable: paths of entries that were met and could not be used; each counts as absent.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unreadable: list[str] = []
        self._ignored = False

    def _path(self, key: str) -> str:
        if not _KEY.match(key):
            raise ValueError(f"key {key!r} is not a digest")
        # no Path, which costs as much as reading a file: a run asks for thousands
        return f"{self.root}/checks/{key[:2]}/{key}.json"

    def get(self, key: str) -> dict[str, Any] | None:
        """The record of that key; None where there is none, or none that can be read."""
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                entry = json.loads(file.read())
            if entry["schema"] != SCHEMA or entry["key"] != key:
                raise ValueError("not an entry of this schema and key")
            record: dict[str, Any] = dict(entry["record"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            if path not in self.unreadable:
                self.unreadable.append(path)
            return None
        return record

    def remove(self, key: str) -> None:
        """Forget the record of that key, if there is one."""
        Path(self._path(key)).unlink(missing_ok=True)

    def distrust(self, key: str) -> None:
        """Name an entry whose record its reader could not use."""
        self.unreadable.append(self._path(key))

    def put(self, key: str, record: Mapping[str, Any]) -> None:
        """Store a record, in the place of an earlier one of that key.

        Raises:
            StoreError: the folder cannot be written to.
            TypeError: a record that is not JSON.
        """
        path = self._path(key)
        text = json.dumps({"schema": SCHEMA, "key": key, "record": dict(record)}, sort_keys=True)
        if not self._ignored:
            keep_out_of_git(self.root)
        self._ignored = True
        # an entry that cannot be read counts as absent: its check is judged again
        atomic_write_text(path, text + "\n", durable=False)

    def keys(self) -> list[str]:
        """The keys of all entries, sorted, the unreadable ones included."""
        return sorted(path.stem for path in (self.root / "checks").glob("??/*.json")
                      if _KEY.match(path.stem))  # fmt: skip

    def query(self, predicate: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any]]:
        """The records for which the predicate holds, in the order of their keys."""
        for key in self.keys():
            record = self.get(key)
            if record is not None and predicate(record):
                yield record


@dataclass(frozen=True, eq=False)
class StoredRow:
    """A case that failed once: shrunk, replayed before all others.

    Attributes:
        id: the check that it failed, `rms_norm/once/torch/stress`.
        shape: dim -> size.
        operands: name -> storage bits.
        scalars: name -> value.
        note: what it showed, for messages.
    """

    id: str
    shape: Mapping[str, int]
    operands: Mapping[str, Array]
    scalars: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def write_rows(path: Path, rows: Sequence[StoredRow]) -> None:
    """Write failing rows, at most MAX_ROWS.

    Raises:
        StoreError: too many rows, or a file that cannot be written.
    """
    if len(rows) > MAX_ROWS:
        raise StoreError(f"{path}: {len(rows)} rows; keep at most {MAX_ROWS}")
    texts = [json.dumps(_row_to_json(row), sort_keys=True) for row in rows]
    # One row a line, so that a review shows which came and went.
    body = "[\n  " + ",\n  ".join(texts) + "\n ]" if texts else "[]"
    atomic_write_text(path, f'{{"schema": {SCHEMA},\n "rows": {body}}}\n')


def _row_to_json(row: StoredRow) -> dict[str, Any]:
    operands = {
        name: {"dtype": x.dtype.name, "shape": list(x.shape), "bits": x.reshape(-1).tolist()}
        for name, x in row.operands.items()
    }
    scalars = {name: float(value).hex() for name, value in row.scalars.items()}
    return {"id": row.id, "shape": dict(row.shape), "operands": operands, "scalars": scalars,
            "note": row.note}  # fmt: skip


def read_rows(path: Path) -> list[StoredRow]:
    """The failing rows of a file, none where it does not exist.

    Raises:
        StoreError: a field that is unknown, missing or of the wrong type; file and field are named.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not a file of rows: {error}; restore or delete it") from error
    reader = _Reader(path)
    top = reader.fields(raw, "file", {"schema": int, "rows": list})
    if top["schema"] != SCHEMA:
        reader.refuse("schema", f"{top['schema']}, this version reads {SCHEMA}")
    if len(top["rows"]) > MAX_ROWS:
        reader.refuse("rows", f"{len(top['rows'])} of them, at most {MAX_ROWS} are kept")
    return [reader.row(item, f"rows[{i}]") for i, item in enumerate(top["rows"])]


class _Reader:
    """A strict reader: a field that nobody reads is one that its author believes in."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def refuse(self, place: str, why: str) -> None:
        raise StoreError(f"{self.path}: {place}: {why}; correct or delete the entry")

    def fields(self, raw: Any, place: str, types: Mapping[str, type]) -> dict[str, Any]:
        if not isinstance(raw, dict):
            self.refuse(place, f"{type(raw).__name__} in the place of an object")
        for name in sorted(raw.keys() ^ types.keys()):
            self.refuse(f"{place}.{name}", "missing" if name in types else "unknown field")
        for name, kind in types.items():
            if type(raw[name]) is not kind:
                found = type(raw[name]).__name__
                self.refuse(f"{place}.{name}", f"{found} in the place of {kind.__name__}")
        return dict(raw)

    def row(self, raw: Any, place: str) -> StoredRow:
        types = {"id": str, "shape": dict, "operands": dict, "scalars": dict, "note": str}
        row = self.fields(raw, place, types)
        for dim, size in row["shape"].items():
            if type(size) is not int or size < 0:
                self.refuse(f"{place}.shape.{dim}", f"{size!r} is no size")
        operands = {k: self.operand(v, f"{place}.operands.{k}") for k, v in row["operands"].items()}
        scalars = {k: self.number(v, f"{place}.scalars.{k}") for k, v in row["scalars"].items()}
        return StoredRow(row["id"], row["shape"], operands, scalars, row["note"])

    def operand(self, raw: Any, place: str) -> Array:
        item = self.fields(raw, place, {"dtype": str, "shape": list, "bits": list})
        if item["dtype"] not in DTYPES or np.dtype(item["dtype"]).kind not in "iu":
            self.refuse(f"{place}.dtype", f"{item['dtype']!r} is no integer dtype")
        if not all(type(n) is int and n >= 0 for n in item["shape"]):
            self.refuse(f"{place}.shape", f"{item['shape']!r} is no shape")
        limits = np.iinfo(item["dtype"])
        for i, bits in enumerate(item["bits"]):
            if type(bits) is not int or not limits.min <= bits <= limits.max:
                self.refuse(f"{place}.bits[{i}]", f"{bits!r} is no {item['dtype']}")
        if len(item["bits"]) != int(np.prod(item["shape"], dtype=object)):
            self.refuse(f"{place}.bits", f"{len(item['bits'])} values for shape {item['shape']}")
        array: Array = np.array(item["bits"], item["dtype"]).reshape(item["shape"])
        return array

    def number(self, raw: Any, place: str) -> float:
        if not isinstance(raw, str):
            self.refuse(place, f"{type(raw).__name__} in the place of a float in hex")
        try:
            return float.fromhex(raw)
        except (ValueError, OverflowError):
            self.refuse(place, f"{raw!r} is no float in hex")
            raise
