"""The ledger of a sweep: a line for each shard that is done, and on the first line what all of them depend on.

    {"schema": 1, "kernel": ..., "sources": {module: sha256}, "environment": {...}, "key": digest of all this}
    {"key": ..., "shard": 0, "first": "0x0", "last": "0xffffff", "refused": [0], "sha256": {...}, "hash": digest of all this}

A line is written when its shard is done, with one call: what a kill cuts off is the last line, and its shard is done
again. A ledger that has all its shards is sorted by them, so that its bytes do not depend on when it was interrupted, by
how many processes it was made, or on how it was put together. It holds no time and no path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.errors import StoreError
from contract.store import atomic_write_text, digest

SCHEMA = 1
#: What the first line must have beside the key.
_HEAD = ("schema", "kernel", "parameters", "profile", "implementation", "engine", "mode", "options", "shards",
         "inputs", "framework", "sources", "distributions", "environment")  # fmt: skip
_LINE = ("key", "shard", "setting", "first", "last", "inputs", "outputs", "refused", "refusal", "sha256", "hash")  # fmt: skip

Head = Mapping[str, Any]
Line = Mapping[str, Any]


def headed(head: Head) -> dict[str, Any]:
    """The first line, with its key."""
    assert set(head) == set(_HEAD) - {"schema"}, sorted(set(head) ^ set(_HEAD))
    full = {"schema": SCHEMA, **head}
    return {**full, "key": digest(full)}


def hashed(line: Line) -> dict[str, Any]:
    """The line of a shard, with its hash."""
    assert set(line) == set(_LINE) - {"hash"}, sorted(set(line) ^ set(_LINE))
    return {**line, "hash": digest(dict(line))}


def _text(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True) + "\n"


@dataclass
class Ledger:
    """A ledger as it was read.

    Attributes:
        path: its file.
        head: its first line.
        lines: shard -> its line.
        cut: whether the file ended in the middle of a line.
    """

    path: Path
    head: Head
    lines: dict[int, Line] = field(default_factory=dict)
    cut: bool = False

    def text(self) -> str:
        """The ledger with its lines in the order of the shards."""
        return "".join(map(_text, (self.head, *(self.lines[n] for n in sorted(self.lines)))))

    def settle(self) -> None:
        """Sort the file; an interrupted one has its lines as they came. Lines of another sweep on it are kept.

        Raises:
            StoreError: the other sweep is of something else, or has another result of a shard.
        """
        other = read(self.path)
        if other is not None:
            if said := difference(other.head, self.head):
                raise StoreError(
                    f"{self.path} has become the ledger of another sweep: {said}; --ledger FILE keeps both"
                )
            self.join(other)
        text = self.text()
        if not self.path.is_file() or self.path.read_text(encoding="utf-8") != text:
            atomic_write_text(self.path, text)

    def join(self, part: Ledger) -> None:
        """Add the shards of another ledger of the same sweep.

        Raises:
            StoreError: a shard has another result there.
        """
        for shard, line in part.lines.items():
            if self.lines.setdefault(shard, line) != line:
                raise StoreError(
                    f"{part.path}: shard {shard} has another result than there was before; sweep it again"
                    f" (delete its line in one of them)"
                )

    def append(self, line: Line) -> None:
        """Add the line of a finished shard to ledger and file.

        Raises:
            StoreError: the file cannot be written.
        """
        self.lines[int(line["shard"])] = line
        try:
            with open(self.path, "ab", buffering=0) as file:
                file.write(_text(line).encode())
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be written ({error.strerror}); make room or name another with --ledger"
            ) from error

    @property
    def missing(self) -> list[int]:
        """The shards that are not done."""
        return [n for n in range(int(self.head["shards"])) if n not in self.lines]


def read(path: Path) -> Ledger | None:
    """The ledger in a file; None where there is none, or nothing but a piece of a first line.

    Raises:
        StoreError: a line that is none of a ledger, but for a last one that was cut off.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    *whole, rest = data.split(b"\n")
    if not whole:
        return None
    head = _parsed(path, 1, whole[0])
    _check_head(path, head)
    found = Ledger(path, head, cut=bool(rest))
    for number, raw in enumerate(whole[1:], start=2):
        line = _parsed(path, number, raw)
        _check_line(path, number, line, head)
        shard = line["shard"]
        if found.lines.get(shard, line) != line:
            raise StoreError(
                f"{path}, line {number}: shard {shard} stands there twice with other results; the implementation gives"
                " other bits from run to run, or the file was edited: delete it and sweep again"
            )
        found.lines[shard] = line
    return found


def _parsed(path: Path, number: int, raw: bytes) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise StoreError(
            f"{path}, line {number} is no line of a ledger; delete the line (its shard is then done again) or the file"
        )
    return line


def _check_head(path: Path, head: Mapping[str, Any]) -> None:
    if head.get("schema") != SCHEMA:
        raise StoreError(
            f"{path}: schema {head.get('schema')!r} in the place of {SCHEMA}; name another file with --ledger, or delete it"
        )
    own = {name: value for name, value in head.items() if name != "key"}
    whole = set(own) == set(_HEAD) and head.get("key") == _digest(own)
    if not (
        whole and _counts(own["shards"], 1) and isinstance(own["options"], list) and own["options"]
    ):
        raise StoreError(f"{path}: its first line was edited; delete it and sweep again")


def _check_line(path: Path, number: int, line: Mapping[str, Any], head: Head) -> None:
    own = {name: value for name, value in line.items() if name != "hash"}
    if set(line) != set(_LINE) or line["hash"] != _digest(own):
        raise StoreError(
            f"{path}, line {number} is not what a sweep wrote; delete the line, and its shard is done again"
        )
    refused = line["refused"]
    counts = [
        line["shard"],
        line["inputs"],
        line["outputs"],
        *(refused if isinstance(refused, list) else [None]),
    ]
    if not all(map(_counts, counts)) or not line["outputs"] or len(refused) != len(head["options"]):
        raise StoreError(
            f"{path}, line {number} has counts that no sweep writes; delete the line, and its shard is done again"
        )
    if line["key"] != head["key"] or line["shard"] >= head["shards"]:
        raise StoreError(
            f"{path}, line {number} belongs to another ledger; delete the line, and its shard is done again"
        )


def _counts(value: object, least: int = 0) -> bool:
    """Whether it is a whole number, and no less than that; a bool is none."""
    return type(value) is int and value >= least


def _digest(value: object) -> str:
    try:
        return digest(value)
    except TypeError:
        return ""


def opened(path: Path, head: Head, *, fresh: bool = False) -> Ledger:
    """The ledger to go on with: that of the file, or a new one.

    Args:
        path: the file; it is made, its folder too.
        head: what a sweep of now depends on, from `headed`.
        fresh: begin anew, whatever the file holds.

    Raises:
        StoreError: a ledger of another kernel, source or environment, each named; or one that cannot be read.
    """
    known = None if fresh else read(path)
    if known is None:
        ledger = Ledger(path, head)
        atomic_write_text(path, ledger.text())
        return ledger
    if said := difference(known.head, head):
        raise StoreError(
            f"{path} is the ledger of another sweep: {said}; --fresh begins anew, --ledger FILE keeps both"
        )
    if known.cut:
        atomic_write_text(path, known.text())
        known.cut = False
    return known


def difference(old: Head, new: Head) -> str:
    """The first thing on which two heads differ, in words; '' where they do not."""
    for name in _HEAD:
        a, b = old[name], new[name]
        if a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            keys = sorted(key for key in {*a, *b} if a.get(key) != b.get(key))
            place = ", ".join(keys[:3]) + (" ..." if len(keys) > 3 else "")
            return f"{name} differ in {place}"
        return f"{name} {a!r}, here {b!r}" if name != "framework" else "the framework's sources"
    return ""


def merge(paths: Sequence[Path], target: Path) -> Ledger:
    """Put ledgers of one sweep together, and write the result.

    Raises:
        StoreError: a file that is none, one of another sweep, or a shard of which two of them say different things.
    """
    parts = []
    for path in paths:
        part = read(path)
        if part is None:
            raise StoreError(
                f"{path}: no ledger is there; `contract sweep NAME --ledger {path}` makes one"
            )
        parts.append(part)
    first = parts[0]
    whole = Ledger(target, first.head)
    for part in parts:
        if said := difference(first.head, part.head):
            raise StoreError(f"{first.path} and {part.path} are of two sweeps: {said}")
        whole.join(part)
    atomic_write_text(target, whole.text())
    return whole


@dataclass(frozen=True)
class Verdict:
    """What a ledger says.

    Attributes:
        outputs, inputs: judged.
        refused: outputs that are not allowed under the best combination of options.
        option: its place in the head's list.
        first: the line of the first shard with a refusal under it; None where there is none.
        missing: shards that are not done.
    """

    inputs: int
    outputs: int
    refused: int
    option: int
    first: Line | None
    missing: int


def verdict(head: Head, lines: Iterable[Line], missing: int) -> Verdict:
    """One combination of the profile's options must allow all outputs of all shards."""
    ordered = sorted(lines, key=lambda line: int(line["shard"]))
    totals = [sum(int(line["refused"][i]) for line in ordered) for i in range(len(head["options"]))]
    best = totals.index(min(totals))
    first = next((line for line in ordered if line["refused"][best]), None)
    return Verdict(
        sum(int(line["inputs"]) for line in ordered),
        sum(int(line["outputs"]) for line in ordered),
        totals[best],
        best,
        first,
        missing,
    )


def make_folder(path: Path) -> None:
    """The folder of a ledger."""
    os.makedirs(path.parent, exist_ok=True)


__all__ = [
    "Head", "Ledger", "Line", "Verdict", "difference", "hashed", "headed", "merge", "opened", "read", "verdict",
]  # fmt: skip
