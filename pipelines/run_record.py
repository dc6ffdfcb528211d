"""What a run was and how far it came: a file of JSON lines that a kill at any moment leaves readable.

    {"kind": "header", "schema": 1, "model": ..., "checkpoint": ..., "kernels": [...], ...}
    {"kind": "stage", "name": "prefill", "seconds": 0.61, ...}
    {"kind": "step", "index": 0, "token": 260, "text": " the", "seconds": 0.08, "margin": 1.9}
    {"kind": "end", "state": "finished"}

A line is appended for every step. That is as safe as a new file in place of the old one, which a run of n tokens would pay
with n^2 / 2 lines: an append never touches what is there, so a process killed while it writes leaves at most the beginning
of one line at the end of the file. Such a line lacks its newline, and the reader drops it, whole or not. The header is
written as a new file moved to its place: there is none, or all of it. Without an `end` the state is "running": the process
still is, or was killed.

A step is with the kernel when `step` returns, so the end of the process loses none. Against a loss of power header and end
are forced to the disk, steps are not: that takes as long as a token.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np

from contract.environment import environment
from contract.errors import CaseError, StoreError
from contract.store import atomic_write_text

SCHEMA = 1
#: A header with some hundred kernels has 100 KiB; a longer line is none of ours, and is not read into memory.
LONGEST_LINE = 1 << 24
LIBRARIES = ("kernel-contract", "torch", "numpy", "gguf", "safetensors", "tokenizers", "transformers")  # fmt: skip


@dataclass(frozen=True)
class Header:
    """What a run is of, known before its first step."""

    model: str
    #: Digest of the checkpoint's bytes, with the name of the function: "sha256:...".
    checkpoint: str
    #: "bf16", "q4_1", ...
    precision: str
    #: Of the draws; None for greedy decoding.
    seed: int | None
    #: Library -> version; None where it is not installed.
    versions: Mapping[str, str | None]
    #: contract.environment.environment(): processor, threads, variables.
    environment: Mapping[str, Any]
    #: One for each kernel: {"kernel": "rms_norm/two_step/torch", "sources": digest of the verified sources}.
    kernels: Sequence[Mapping[str, Any]]

    @classmethod
    def of(
        cls,
        model: str,
        checkpoint: str,
        precision: str,
        kernels: Sequence[Callable[..., Any]],
        seed: int | None = None,
    ) -> Header:
        """The header of a run here and now, with kernels that `contract.verified` gave."""
        found = [verification(kernel) for kernel in kernels]
        return cls(model, checkpoint, precision, seed, versions(), environment(), found)


@dataclass(frozen=True)
class Step:
    """One finished token."""

    #: From 0, the first token after the prompt.
    index: int
    token: int
    text: str
    #: From the step before to this one.
    seconds: float
    #: The largest logit less the second one.
    margin: float


@dataclass(frozen=True)
class Stage:
    """A part of a run that is no token: loading, a gate, a tower."""

    name: str
    seconds: float
    #: Further measures, as JSON values.
    measures: Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """A record that was read."""

    header: Header
    stages: tuple[Stage, ...]
    steps: tuple[Step, ...]
    #: "running" (or killed), "finished" or "failed: ...".
    state: str
    #: Whether a line without its end, written when the process was killed, was dropped.
    cut: bool

    @property
    def text(self) -> str:
        """What was generated."""
        return "".join(step.text for step in self.steps)


def verification(kernel: Callable[..., Any]) -> dict[str, str]:
    """Name of a verified kernel and digest of the sources that its verification is of.

    Raises:
        CaseError: a callable that contract.verified() did not give; one bound by functools.partial is looked through.
    """
    from contract.calls import Call
    from contract.verify import source_hash

    while isinstance(kernel, functools.partial):
        kernel = kernel.func
    if not isinstance(kernel, Call):
        raise CaseError(f"{kernel!r} is no verified kernel; record what contract.verified() gives")
    return {
        "kernel": f"{kernel.kernel.id}/{kernel.item.name}",
        "sources": source_hash(kernel.kernel, kernel.item),
    }


def versions() -> dict[str, str | None]:
    """Versions of this package and of the libraries that pipelines use, without importing them."""
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


class RunRecord:
    """A record that is being written; in a `with` block its end says how the block ended.

    Raises:
        StoreError: the file cannot be written.
        CaseError: a value that JSON does not have, a step out of turn, or anything after the end.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self.path = Path(path)
        self.steps = 0
        atomic_write_text(
            self.path, _line({"kind": "header", "schema": SCHEMA, **dataclasses.asdict(header)})
        )
        try:
            self._file: int | None = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        if self._file is None:
            return
        if error is None:
            self.finish()
        elif isinstance(error, KeyboardInterrupt):
            self.fail("interrupted")
        else:
            self.fail(f"{type(error).__name__}: {error}")

    def step(self, step: Step) -> None:
        """Append a finished token; its index has to be the next one."""
        if step.index != self.steps:
            raise CaseError(f"{self.path}: step {step.index} in the place of step {self.steps}")
        self._append({"kind": "step", **vars(step)})
        self.steps += 1

    def stage(self, name: str, seconds: float, **measures: Any) -> None:
        """Append a finished stage with its measures."""
        self._append({"kind": "stage", **vars(Stage(name, seconds, measures))})

    def finish(self) -> None:
        """Append the end of a run that did all it had to."""
        self._end("finished")

    def fail(self, why: str) -> None:
        """Append the end of a run that did not."""
        self._end(f"failed: {why}")

    def _end(self, state: str) -> None:
        self._append({"kind": "end", "state": state})
        if self._file is not None:
            os.fsync(self._file)
            os.close(self._file)
            self._file = None

    def _append(self, fields: Mapping[str, Any]) -> None:
        if self._file is None:
            raise CaseError(f"{self.path}: the record has its end already; begin another one")
        rest = memoryview(_line(fields).encode())
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            raise _unwritable(self.path, error) from error


def json_value(value: Any) -> Any:
    """A value as JSON has it: tuples as lists, floats that are not finite as text."""
    if isinstance(value, dict):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(v) for v in value]
    # NumPy's numbers, which JSON does not know
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} cannot be written ({error.strerror}); make room or give a path that can be"
    )


def _line(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(json_value(dict(fields)), allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise CaseError(
            f"the record of {fields.get('kind')} {fields.get('name', '')}: {error}; give JSON values"
        ) from None


def read_record(path: str | os.PathLike[str]) -> Record:
    """The record of a file, also of a run that is running or was killed.

    Raises:
        StoreError: no such file, no record, another schema, or a line (named by its number) that is damaged, out of turn
            or after the end.
    """
    reader = _Reader(Path(path))
    lines = reader.lines()
    header = reader.header(next(lines, None))
    steps: list[Step] = []
    stages: list[Stage] = []
    state = "running"
    for line in lines:
        if state != "running":
            reader.refuse("follows the end")
        kind = line.pop("kind", None)
        if kind == "step":
            steps.append(reader.fields(Step, line))
            if steps[-1].index != len(steps) - 1:
                reader.refuse(f"is step {steps[-1].index} in the place of step {len(steps) - 1}")
        elif kind == "stage":
            stages.append(reader.fields(Stage, line))
        elif kind == "end":
            state = reader.state(line)
        else:
            reader.refuse(f"is of kind {kind!r}, not step, stage or end")
    return Record(header, tuple(stages), tuple(steps), state, reader.cut)


class _Reader:
    """Strict: a field that nobody reads is one that its author believes in."""

    # what a field of the dataclasses may be in JSON; a float that is not finite is text
    TYPES: Mapping[str, tuple[type, ...]] = {
        "int": (int,), "str": (str,), "float": (float, int, str), "int | None": (int, type(None)),
    }  # fmt: skip

    def __init__(self, path: Path) -> None:
        self.path, self.number, self.cut = path, 0, False

    def refuse(self, why: str) -> NoReturn:
        raise StoreError(
            f"{self.path}: line {self.number} {why}; delete the file, or its lines from there on"
        )

    def lines(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self.path, "rb") as file:
                while text := file.readline(LONGEST_LINE):
                    self.number += 1
                    if not text.endswith(b"\n"):
                        if len(text) == LONGEST_LINE:
                            self.refuse(f"is longer than {LONGEST_LINE} bytes")
                        self.cut = True
                        return
                    yield self.parsed(text)
        except OSError as error:
            raise StoreError(
                f"{self.path} cannot be read ({error.strerror}); give the path of a run's record"
            ) from error

    def parsed(self, text: bytes) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            self.refuse(f"is no JSON ({error})")
        if not isinstance(found, dict):
            self.refuse(f"is a {type(found).__name__}, not an object")
        return found

    def header(self, line: dict[str, Any] | None) -> Header:
        if line is None:
            raise StoreError(f"{self.path} is empty; give the path of a run's record")
        if line.pop("kind", None) != "header":
            self.refuse("is no header; this is no record of a run")
        if (schema := line.pop("schema", None)) != SCHEMA:
            self.refuse(f"is of schema {schema!r}, this version reads {SCHEMA}")
        found: Header = self.fields(Header, line)
        return found

    def state(self, line: dict[str, Any]) -> str:
        state = line.get("state")
        if len(line) != 1 or not isinstance(state, str):
            self.refuse("is no end; it has to have a state alone")
        if state != "finished" and not state.startswith("failed: "):
            self.refuse(f"has the state {state!r}, not finished or failed: ...")
        return state

    def fields(self, kind: type[Any], line: dict[str, Any]) -> Any:
        wanted = {field.name: field.type for field in dataclasses.fields(kind)}
        if strange := sorted(line.keys() ^ wanted.keys()):
            which = "lacks" if strange[0] in wanted else "has an unknown field"
            self.refuse(f"{which} {strange[0]}")
        values = {name: self.value(name, str(wanted[name]), line[name]) for name in wanted}
        return kind(**values)

    def value(self, name: str, type_name: str, value: Any) -> Any:
        form: tuple[Any, ...] = self.TYPES.get(
            type_name, (list,) if type_name.startswith("Sequence") else (dict,)
        )
        if isinstance(value, bool) or not isinstance(value, form):
            self.refuse(f"has {name} = {value!r}, no {type_name}")
        if type_name != "float":
            return value
        number: Any = value
        try:
            return float(number)
        except (ValueError, OverflowError):
            self.refuse(f"has {name} = {value!r}, no number")
