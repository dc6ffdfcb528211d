"""Stored models: names, shapes and kinds of their tensors, each read when it is asked for.

    checkpoint = open_checkpoint("folder").renamed(INNER_VISION_MODEL)
    checkpoint.require({"vision_tower.post_layernorm.weight": (1152,), ...})
    gain = checkpoint.tensor("vision_tower.post_layernorm.weight")

Files: safetensors, alone or in shards with an index; torch.save's (.pth, .pt, .bin); GGUF.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from contract.errors import CheckpointError
from contract.pipelines.gguf_file import read_gguf
from contract.pipelines.safetensors_file import read_safetensors
from contract.pipelines.stored import MAX_JSON_BYTES, Entry, file_size, foreign, read_json
from contract.pipelines.torch_file import read_torch

#: Rules for `Checkpoint.renamed`. Checkpoints of the hub name the layers of a SigLIP tower
#: `vision_tower.vision_model.encoder...`; newer ones leave `vision_model.` out.
INNER_VISION_MODEL = ((r"(^|\.)vision_model\.", r"\1"),)

__all__ = ["INNER_VISION_MODEL", "Checkpoint", "CheckpointError", "open_checkpoint"]

_READERS: Mapping[str, Callable[[Path], tuple[dict[str, Entry], Any]]] = {
    ".safetensors": read_safetensors,
    ".gguf": read_gguf,
    ".pth": read_torch,
    ".pt": read_torch,
    ".bin": read_torch,
}
#: What a folder of the hub holds, in the order in which transformers looks.
_USUAL = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
_SHOWN = 5
#: Segments of a name between dots up to which a prefix is looked for; the hub's have at most ten.
_MAX_SEGMENTS = 16


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of one stored model.

    Attributes:
        path: the file or index.
        metadata: what the file says beside its tensors: all fields of a GGUF, text by key of safetensors.
    """

    path: Path
    metadata: Mapping[str, Any]
    _entries: Mapping[str, Entry]

    def names(self) -> tuple[str, ...]:
        """The names of all tensors, sorted."""
        return tuple(sorted(self._entries))

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes in row-major order; those of the values where they are packed in blocks."""
        return self._entry(name).shape

    def kind(self, name: str) -> str:
        """'F32', 'F16', 'BF16', 'I8', ..., or a kind of GGUF blocks: 'Q4_1', 'Q8_0', ..."""
        return self._entry(name).kind

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, mapped where the format allows it: to be read, not written.

        Blocks come as they are, (rows, bytes) uint8: `gguf_file.split_q4_1` takes them apart.

        Raises:
            CheckpointError: no such tensor, or one that cannot be read.
        """
        return self._entry(name).load()

    def _entry(self, name: str) -> Entry:
        if name not in self._entries:
            near = difflib.get_close_matches(name, self._entries, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {_few(self.names())}"
            raise CheckpointError(f"{self.path} has no tensor {name!r}; {hint}")
        return self._entries[name]

    def renamed(self, rules: Iterable[tuple[str, str]]) -> Checkpoint:
        """The same tensors under other names: `re.sub(pattern, new, name)` of each rule in turn.

        A rule that fits no name changes nothing, so that files of both namings end at the same names.

        Raises:
            CheckpointError: two tensors fall on one name.
        """
        entries: dict[str, Entry] = {}
        rules = tuple(rules)
        for old, entry in self._entries.items():
            name = old
            for pattern, new in rules:
                name = re.sub(pattern, new, name)
            if name in entries:
                raise CheckpointError(
                    f"{self.path}: two tensors are renamed {name!r}, one of them {old!r}; correct the rules"
                )
            entries[name] = entry
        return replace(self, _entries=entries)

    def require(self, expected: Mapping[str, Sequence[int]]) -> None:
        """Refuse a file that holds other tensors than these.

        Raises:
            CheckpointError: names the first few missing, extra and misshaped ones, and the part of the names by which
                both differ, if that is all.
        """
        missing = [name for name in expected if name not in self._entries]
        extra = [name for name in self._entries if name not in expected]
        shapes = [
            f"{name} {self.shape(name)}, not {tuple(shape)}"
            for name, shape in expected.items()
            if name in self._entries and self.shape(name) != tuple(shape)
        ]
        parts = [
            f"{len(found)} {what} ({_few(found)})"
            for what, found in (
                ("missing", missing),
                ("extra", extra),
                ("of another shape", shapes),
            )
            if found
        ]
        if parts:
            hint = _prefix_hint(missing, extra) or "open the checkpoint of this very model"
            raise CheckpointError(f"{self.path}: tensors {'; '.join(parts)}; {hint}")


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at `path`: a file, an index of shards (*.index.json), or a folder with one of them.

    Nothing in it is executed, and only headers are read yet.

    Raises:
        CheckpointError: anything that is not there, or not as its format demands.
        UsageError: the library of the format is not installed.
    """
    path = Path(path)
    with foreign(path, "name a checkpoint that can be read"):
        if path.is_dir():
            path = _in_folder(path)
    if path.name.endswith(".index.json"):
        return _open_shards(path)
    entries, metadata = _read(path)
    return Checkpoint(path, metadata, entries)


def _read(path: Path) -> tuple[dict[str, Entry], Any]:
    file_size(path)
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise CheckpointError(f"{path}: no known kind of file; known are {', '.join(_READERS)}")
    return reader(path)


def _in_folder(folder: Path) -> Path:
    for name in _USUAL:
        if (folder / name).exists():
            return folder / name
    found = sorted(file for file in folder.iterdir() if file.suffix in _READERS)
    if len(found) != 1:
        listed = _few([file.name for file in found]) or "none"
        raise CheckpointError(f"{folder}: one checkpoint is needed, it has {listed}; name the file")
    return found[0]


def _open_shards(path: Path) -> Checkpoint:
    """The tensors of all shards; the index and the shards must tell the same."""
    file_size(path)
    with foreign(path, "name a file that can be read"), path.open("rb") as file:
        # one byte more than may be read, so that a larger file is refused unread
        index = read_json(file.read(MAX_JSON_BYTES + 1), path)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if (
        not isinstance(places, dict)
        or not places
        or not all(isinstance(v, str) for v in places.values())
    ):
        raise CheckpointError(f"{path}: no weight_map of names to files; download it again")
    entries: dict[str, Entry] = {}
    for shard in sorted(set(places.values())):
        if shard in ("", "..") or shard != Path(shard).name or "\\" in shard or "\0" in shard:
            # a link may lead out of the folder, as in the hub's cache; a name may not
            raise CheckpointError(f"{path}: shard {shard[:80]!r} is no file of its folder")
        with foreign(path, "correct its weight_map"):
            absent = not (path.parent / shard).exists()
        if absent:
            raise CheckpointError(
                f"{path}: shard {shard[:80]} is missing; download it beside the index"
            )
        held, _ = _read(path.parent / shard)
        named = {name for name, place in places.items() if place == shard}
        if odd := sorted(named ^ held.keys()):
            where = "the index alone" if odd[0] in named else "the file alone"
            raise CheckpointError(
                f"{path}: {shard}: {odd[0][:80]} is in {where}; download both again"
            )
        entries |= held
    metadata = index.get("metadata", {})
    return Checkpoint(path, metadata if isinstance(metadata, dict) else {}, entries)


def _few(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:120] for name in names[:_SHOWN]) + more


def _prefix_hint(missing: Sequence[str], extra: Sequence[str]) -> str:
    """Which part of the names the file has too much or too little, if that explains most of what is missing."""
    seen: Counter[tuple[str, str]] = Counter()
    for what, longer, shorter in (
        ("carry", extra, frozenset(missing)),
        ("lack", missing, frozenset(extra)),
    ):
        for name in longer:
            for part, rest in _without(name):
                if rest in shorter:
                    seen[what, part] += 1
    if not seen:
        return ""
    (what, part), count = seen.most_common(1)[0]
    return f"{count} of its names {what} {part!r}: see Checkpoint.renamed"


def _without(name: str) -> Iterable[tuple[str, str]]:
    """Each run of segments with its dot, and what the name is without it."""
    parts = name.split(".")
    if len(parts) > _MAX_SEGMENTS:
        return
    for i in range(len(parts)):
        for j in range(i + 1, len(parts)):
            yield ".".join(parts[i:j]) + ".", ".".join(parts[:i] + parts[j:])
