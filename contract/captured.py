"""Captured rows: operands that a model really gave to a kernel, judged by the gate `shapes` beside its typical data.

    ROOT/captured/NAME.safetensors      NAME: the kernel's id with a dot for the slash, `rms_norm.two_step`

A file holds the storage bits of operand OPERAND of its i-th case as the tensor `i.OPERAND`, and in its metadata, as JSON,
`kernel` (the id), `source` (the pipeline) and `cases` (shape and scalars, those in hex). It lies in the store, which git
ignores: activations may say more of a user's data than a repository should hold.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contract.availability import missing_reason
from contract.case import Case, Kernel, check_finite, check_values, scalars_of, shape_from
from contract.errors import CaseError, StoreError
from contract.store import atomic_write_bytes, keep_out_of_git

#: Rows of all cases of a kernel, and bytes of all their operands, at most.
MOST_ROWS, MOST_BYTES = 256, 32 << 20


def path_of(root: Path, kernel_id: str) -> Path:
    """Where the captured rows of a kernel lie."""
    return root / "captured" / f"{kernel_id.replace('/', '.')}.safetensors"


def fingerprint(root: Path, kernel_id: str) -> str:
    """SHA-256 of a kernel's captured rows; '' where there are none."""
    path = path_of(root, kernel_id)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


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
        f"{i}.{name}": np.ascontiguousarray(bits)
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
    if not path.is_file():
        return []
    _library(path)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = json.loads(metadata["cases"])
        if metadata["kernel"] != kernel.id:
            raise CaseError(f"it is of {metadata['kernel'][:80]}")
        cases = [_case(kernel, tensors, i, one, metadata["source"]) for i, one in enumerate(facts)]
    except (
        SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, CaseError
    ) as error:  # fmt: skip
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise StoreError(
            f"{path}: {said or type(error).__name__}; capture the rows again, or delete the file"
        ) from error
    if sum(case.rows(kernel) for case in cases) > MOST_ROWS:
        raise StoreError(
            f"{path}: more than {MOST_ROWS} rows; capture them again, or delete the file"
        )
    return cases


def _case(kernel: Kernel, tensors: dict[str, Any], index: int, facts: Any, source: str) -> Case:
    """One case, if the contract takes it: what the model gave to a verified kernel was looked at then, but this is a file."""
    operands = {o.name: tensors[f"{index}.{o.name}"] for o in kernel.inputs()}
    shape = shape_from(kernel, {name: bits.shape for name, bits in operands.items()})
    if {k: int(v) for k, v in facts["shape"].items()} != shape:
        raise CaseError(f"case {index} says shape {facts['shape']}, its operands have {shape}")
    for operand in kernel.inputs():
        bits = operands[operand.name]
        if bits.dtype != kernel.format(operand).storage:
            raise CaseError(
                f"{index}.{operand.name} holds {bits.dtype}, the contract {kernel.format(operand).storage.name}"
            )
        check_values(kernel, operand, shape, bits)
        if operand.finite:
            check_finite(kernel, operand, bits)
    given = {name: float.fromhex(value) for name, value in facts["scalars"].items()}
    if wrong := [name for name, value in given.items() if not math.isfinite(value)]:
        raise CaseError(f"case {index}: scalar {wrong[0]} is {given[wrong[0]]}")
    return Case(shape, operands, scalars_of(kernel, given), f"captured from {source}, case {index}")


def _library(path: Path) -> Any:
    if missing_reason(("safetensors",)):
        raise StoreError(
            f"{path}: captured rows are files of safetensors, which is not installed here; pip install safetensors, or"
            " delete the file"
        )
    import safetensors.numpy

    return safetensors.numpy
