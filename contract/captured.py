"""Captured rows: operands that a model really gave to a kernel, judged by the gate `shapes` beside its typical data.

    ROOT/captured/NAME.safetensors      NAME: the kernel's id with a dot for the slash, `rms_norm.two_step`

A file holds the storage bits of operand OPERAND of its i-th case as the tensor `i.OPERAND`, and in its metadata, as JSON,
`kernel` (the id), `source` (the pipeline) and `cases` (shape and scalars, those in hex). It lies in the store, which git
ignores: activations may say more of a user's data than a repository should hold.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contract import sources
from contract.availability import missing_reason
from contract.case import Case, Kernel, check_finite, check_values, scalars_of, shape_from
from contract.errors import CaseError, StoreError
from contract.store import atomic_write_bytes, keep_out_of_git

#: Rows of all cases of a kernel, and bytes of all their operands, at most.
MOST_ROWS, MOST_BYTES = 256, 32 << 20
#: Letters of a source's name, at most.
MOST_SOURCE = 80
# Room for the names and places of the tensors.
_HEADER_BYTES = 1 << 20


def path_of(root: Path, kernel_id: str) -> Path:
    """Where the captured rows of a kernel lie."""
    return root / "captured" / f"{kernel_id.replace('/', '.')}.safetensors"


def fingerprint(root: Path, kernel_id: str) -> str:
    """SHA-256 of a kernel's captured rows; '' where there are none, and another text where they cannot be read."""
    path = path_of(root, kernel_id)
    if not os.path.lexists(path):
        return ""
    try:
        _refuse_odd(path)
        return sources.file_hash(path)
    except (StoreError, OSError) as error:
        return str(error)


def _refuse_odd(path: Path) -> None:
    """Refuse what is no file of rows by its kind or its size."""
    again = "capture the rows again, or delete it"
    if not path.is_file():
        raise StoreError(f"{path}: it is there, and no file; {again}")
    if (size := path.stat().st_size) > MOST_BYTES + _HEADER_BYTES:
        raise StoreError(
            f"{path}: {size} bytes; captured rows of a kernel have {MOST_BYTES + _HEADER_BYTES} at most; {again}"
        )


def strays(root: Path, known: Container[str]) -> list[str]:
    """Names of what lies among the captured rows and is of no kernel in `known`, ids."""
    folder = root / "captured"
    if not os.path.lexists(folder):
        return []
    if not folder.is_dir():
        return [str(folder)]
    names = sorted(os.listdir(folder))
    # a write that was cut off leaves a file that begins with a dot
    return [n for n in names if not n.startswith(".") and _id_of(n) not in known]


def _id_of(name: str) -> str:
    """The id of the kernel whose captured rows have that file name."""
    stem, _, suffix = name.rpartition(".")
    return stem.replace(".", "/") if suffix == "safetensors" else ""


def write(root: Path, kernel: Kernel, cases: Sequence[Case], source: str) -> Path:
    """Write a kernel's captured cases in the place of earlier ones.

    Raises:
        StoreError: more than MOST_ROWS rows or MOST_BYTES, no `safetensors`, or a folder that cannot be written to.
    """
    path = path_of(root, kernel.id)
    rows = sum(case.rows(kernel) for case in cases)
    size = sum(map(bytes_of, cases))
    if rows > MOST_ROWS or size > MOST_BYTES:
        raise StoreError(
            f"{path}: {rows} rows of {size} bytes; keep at most {MOST_ROWS} rows of {MOST_BYTES} bytes"
        )
    numpy_files = _library(path)
    facts = [
        {"shape": dict(c.shape), "scalars": {k: float(v).hex() for k, v in c.scalars.items()}}
        for c in cases
    ]
    tensors = {
        # not ascontiguousarray, which makes a row of a scalar
        f"{i}.{name}": np.array(bits, order="C")
        for i, case in enumerate(cases)
        for name, bits in case.operands.items()
    }
    metadata = {"kernel": kernel.id, "source": source, "cases": json.dumps(facts)}
    keep_out_of_git(root)
    atomic_write_bytes(path, numpy_files.save(tensors, metadata))
    return path


def bytes_of(case: Case) -> int:
    """Bytes of all operands."""
    return sum(bits.nbytes for bits in case.operands.values())


def read(root: Path, kernel: Kernel) -> list[Case]:
    """The captured cases of a kernel; none where it has no file.

    Raises:
        StoreError: no `safetensors` here, or a file that is damaged, of another kernel, or no longer fits the contract.
    """
    path = path_of(root, kernel.id)
    if not os.path.lexists(path):
        return []
    _refuse_odd(path)
    _library(path)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts, source = json.loads(metadata["cases"]), metadata["source"]
        if metadata["kernel"] != kernel.id:
            raise CaseError(f"it is of {metadata['kernel']}")
        if not (source.isprintable() and len(source) <= MOST_SOURCE):
            raise CaseError(f"source {source[:MOST_SOURCE]!r} is no name")
        cases = [_case(kernel, tensors, i, one, source) for i, one in enumerate(facts)]
        taken = {f"{i}.{o.name}" for i in range(len(cases)) for o in kernel.inputs()}
        if surplus := sorted(tensors.keys() - taken):
            raise CaseError(f"{surplus[0]} is of no case")
        if not cases:
            raise CaseError("it holds no case")
    except (
        SafetensorError, OSError, ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
        CaseError,
    ) as error:  # fmt: skip
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        # a hostile file can make it as long as it likes
        shown = "".join(c if c.isprintable() else "?" for c in (said or type(error).__name__)[:200])
        raise StoreError(f"{path}: {shown}; capture the rows again, or delete the file") from error
    if sum(case.rows(kernel) for case in cases) > MOST_ROWS:
        raise StoreError(
            f"{path}: more than {MOST_ROWS} rows; capture them again, or delete the file"
        )
    return cases


def check(kernel: Kernel, case: Case) -> None:
    """Refuse a case that the contract says nothing of.

    Raises:
        CaseError: no elements, values that an operand must not have, or a scalar that is not finite.
    """
    if empty := [dim for dim, size in case.shape.items() if size < 1]:
        raise CaseError(f"{kernel.id}: {empty[0]} is {case.shape[empty[0]]}; a case has elements")
    for operand in kernel.inputs():
        bits = case.operands[operand.name]
        check_values(kernel, operand, case.shape, bits)
        if operand.finite:
            check_finite(kernel, operand, bits)
    if wrong := [name for name, value in case.scalars.items() if not math.isfinite(value)]:
        raise CaseError(f"{kernel.id}: scalar {wrong[0]} is {case.scalars[wrong[0]]}")


def _case(kernel: Kernel, tensors: dict[str, Any], index: int, facts: Any, source: str) -> Case:
    """One case, if the contract takes it: what the model gave to a verified kernel was looked at then, but this is a file."""
    operands = {o.name: tensors[f"{index}.{o.name}"] for o in kernel.inputs()}
    shape = shape_from(kernel, {name: bits.shape for name, bits in operands.items()})
    if facts["shape"] != shape:
        raise CaseError(f"case {index} says shape {facts['shape']}, its operands have {shape}")
    for operand in kernel.inputs():
        bits = operands[operand.name]
        if bits.dtype != kernel.format(operand).storage:
            raise CaseError(
                f"{index}.{operand.name} holds {bits.dtype}, the contract {kernel.format(operand).storage.name}"
            )
    given = {name: float.fromhex(value) for name, value in facts["scalars"].items()}
    label = f"captured from {source}, case {index}"
    case = Case(shape, operands, scalars_of(kernel, given), label)
    check(kernel, case)
    return case


def _library(path: Path) -> Any:
    if missing_reason(("safetensors",)):
        raise StoreError(
            f"{path}: captured rows are files of safetensors, which is not installed here; pip install safetensors, or"
            " delete the file"
        )
    import safetensors.numpy

    return safetensors.numpy
