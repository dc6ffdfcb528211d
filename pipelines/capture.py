"""Captured rows: what a pipeline gave to its kernels, written where `contract run` finds it (`contract.captured`).

    with Capture("smollm2") as capture:
        ...                                 # load the model and run it
    print("\n".join(capture.write()))

Of every kernel rows with the largest outliers are kept and as many drawn at random, of each form (sizes of all dims but the
rows) alike. A row's outlier is its largest magnitude over its root mean square. Where the rows of a call belong together,
the call is kept whole.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from contract import captured
from contract.calls import watching
from contract.case import Case, Kernel, scalars_of, shape_from, take_rows
from contract.engines.placement import to_bits
from contract.errors import CaseError, StoreError
from contract.inputs import generator
from contract.interval import Array
from contract.store import find_root

#: Rows that one call gives at most: those of a prompt are like each other.
ROWS_OF_A_CALL = 8
#: Forms of a kernel that are told apart; a cache that grows makes new ones for ever, which count as one.
MOST_FORMS = 8
_Form = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Kept:
    """A case with its largest outlier and its lot in the draw of the others."""

    case: Case
    outlier: float
    lot: float


@dataclass
class _Calls:
    """What is kept of a kernel, and how many of its calls were seen, and were not taken; `why`, of the first of those."""

    kernel: Kernel
    seen: int = 0
    left_out: int = 0
    why: str = ""
    forms: dict[_Form, list[_Kept]] = field(default_factory=dict)


class Capture:
    """Looks on at every verified kernel of a model that is loaded and run inside it.

    Args:
        source: the pipeline's name, told with the rows.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._calls: dict[str, _Calls] = {}
        self._rng = generator("capture", source)
        self._stack, self._lock, self._depth = ExitStack(), threading.Lock(), 0
        if not (source.isprintable() and 0 < len(source) <= captured.MOST_SOURCE):
            raise CaseError(
                f"source {source[: captured.MOST_SOURCE]!r}; give a name of at most {captured.MOST_SOURCE} letters"
            )

    def __enter__(self) -> Self:
        # entered again, it looks on until the outermost block ends
        self._depth += 1
        if self._depth == 1:
            self._stack.enter_context(watching(self._see))
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._stack.close()

    def _see(self, kernel: Kernel, given: Mapping[str, Any]) -> Callable[[], None] | None:
        """Look at a call before it writes to its operands; what is returned keeps it, once it has ended well."""
        with self._lock:
            calls = self._calls.setdefault(kernel.id, _Calls(kernel))
            calls.seen += 1
            lot = self._rng.random()
        try:
            one, form = self._looked_at(kernel, given, lot)
        except Exception as error:  # noqa: BLE001 - a model must not fail because somebody looks on
            with self._lock:
                calls.left_out += 1
                calls.why = calls.why or str(error).split("\n")[0][:200]
            return None
        return partial(self._keep, calls, form, one)

    def _looked_at(
        self, kernel: Kernel, given: Mapping[str, Any], lot: float
    ) -> tuple[_Kept, _Form]:
        bits = {o.name: to_bits(given[o.name], kernel.format(o)) for o in kernel.inputs()}
        shape = shape_from(kernel, {name: x.shape for name, x in bits.items()})
        scalars = {s.name: given[s.name] for s in kernel.contract.scalars if s.name in given}
        case = Case(shape, bits, scalars_of(kernel, scalars))
        # as it is read: a row that the contract says nothing of would make a right kernel red
        captured.check(kernel, case)
        found: Array | None = None
        if kernel.contract.row_dims and not kernel.shares and case.rows(kernel) > ROWS_OF_A_CALL:
            found = outliers(kernel, case)
            largest = np.argsort(-found, kind="stable")[:ROWS_OF_A_CALL]
            case = take_rows(kernel, case, np.sort(largest))
        if not _fits(kernel, case, captured.MOST_ROWS, captured.MOST_BYTES):
            raise CaseError(
                f"{case.rows(kernel)} rows of {captured.bytes_of(case)} bytes are more than a file holds"
            )
        # not before it is known to be small enough
        found = outliers(kernel, case) if found is None else found
        # copied, because the kernel and the model go on writing to their own memory
        own = {name: case.operands[name].copy() for name in _written(kernel)}
        case = Case(case.shape, {**case.operands, **own}, case.scalars)
        return _Kept(case, float(found.max()), lot), _form(kernel, shape)

    def _keep(self, calls: _Calls, form: _Form, new: _Kept) -> None:
        with self._lock:
            if form not in calls.forms and len(calls.forms) >= MOST_FORMS:
                form = ()
            kept = _chosen(
                [*calls.forms.get(form, ()), new],
                calls.kernel,
                captured.MOST_ROWS,
                captured.MOST_BYTES,
            )
            # copied, because the model goes on writing to its own memory
            calls.forms[form] = [_copied(one) if one is new else one for one in kept]

    def write(self, root: Path | None = None) -> list[str]:
        """Write a file for each kernel into the store; a line for each says what was kept.

        Args:
            root: the store; that of the working folder's project where absent.

        Raises:
            StoreError: a file that cannot be written, or no `safetensors`.
        """
        root = find_root() if root is None else root
        lines: list[str] = []
        failed: StoreError | None = None
        for name, calls in sorted(self._calls.items()):
            kernel = calls.kernel
            cases = [one.case for one in _of_all_forms(calls)]
            line = f"{name}: {sum(c.rows(kernel) for c in cases)} rows of {calls.seen} calls"
            if calls.left_out:
                line += f", {calls.left_out} not taken ({calls.why})"
            if cases:
                try:
                    path = captured.write(root, kernel, cases, self.source)
                except StoreError as error:
                    # the others are written all the same
                    failed = failed or error
                    continue
                line += f" captured in {path}"
            lines.append(line)
        if failed is not None:
            raise failed
        return lines


def outliers(kernel: Kernel, case: Case) -> Array:
    """Largest magnitude over root mean square of each row, of the operand where it is largest: (rows,).

    An infinity or a NaN counts as the largest of all; 0 where no operand of the rows is of floats.
    """
    rows = case.rows(kernel)
    found = np.zeros(rows)
    for operand in kernel.inputs():
        axis = kernel.row_axis(operand)
        if kernel.format(operand).kind != "float" or (kernel.contract.row_dims and axis is None):
            continue
        size = np.abs(case.value(kernel, operand))
        size = (
            np.moveaxis(size, axis, 0).reshape(rows, -1)
            if axis is not None
            else size.reshape(1, -1)
        )
        with np.errstate(all="ignore"):
            peak = size.max(axis=1)
            ratio = peak / np.sqrt(np.mean(np.square(size / peak[:, None]), axis=1)) / peak
        ratio = np.where(np.isfinite(peak), np.nan_to_num(ratio), np.inf)
        found = np.maximum(found, ratio)
    case.forget()
    return found


def _written(kernel: Kernel) -> set[str]:
    """Inputs that a call may write to."""
    given = {o.name for o in kernel.inputs()}
    inout = {o.name for o in kernel.inputs() if o.role == "inout"}
    return inout | {o.in_place_of for o in kernel.outputs() if o.in_place_of in given}


def _form(kernel: Kernel, shape: Mapping[str, int]) -> _Form:
    return tuple(sorted((d, n) for d, n in shape.items() if d not in kernel.contract.row_dims[:1]))


def _fits(kernel: Kernel, case: Case, rows: int, size: int) -> bool:
    return case.rows(kernel) <= rows and captured.bytes_of(case) <= size


def _copied(one: _Kept) -> _Kept:
    operands = {name: x.copy() for name, x in one.case.operands.items()}
    return replace(one, case=Case(one.case.shape, operands, one.case.scalars))


def _chosen(found: Sequence[_Kept], kernel: Kernel, rows: int, size: int) -> list[_Kept]:
    """The largest outliers and the smallest lots in turn, while they fit into so many rows and bytes."""
    largest = sorted(found, key=lambda one: -one.outlier)
    drawn = sorted(found, key=lambda one: one.lot)
    kept: dict[int, _Kept] = {}
    for one in itertools.chain.from_iterable(zip(largest, drawn, strict=True)):
        if id(one) in kept or not _fits(kernel, one.case, rows, size):
            continue
        kept[id(one)] = one
        rows, size = rows - one.case.rows(kernel), size - captured.bytes_of(one.case)
    return list(kept.values())


def _of_all_forms(calls: _Calls) -> list[_Kept]:
    """What is written of a kernel: the same share for every form, what small ones leave for the larger ones."""
    rows, size, kept = captured.MOST_ROWS, captured.MOST_BYTES, []
    forms = sorted(
        calls.forms.values(), key=lambda form: min(captured.bytes_of(one.case) for one in form)
    )
    for index, form in enumerate(forms):
        left = len(forms) - index
        own = _chosen(form, calls.kernel, rows // left, size // left)
        kept += own
        rows -= sum(one.case.rows(calls.kernel) for one in own)
        size -= sum(captured.bytes_of(one.case) for one in own)
    return kept
