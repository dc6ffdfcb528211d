"""The range reading against mpmath (per output) and against the same formula in plain float64 NumPy, 128 x 2048."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from run import best

from contract import case, inputs, suites
from contract.config import Config
from contract.ranges import apply_reading, option_sets
from contract.readings.audit import AuditReading
from contract.readings.range import RangeReading

ROWS, COLUMNS = 128, 2048
#: kernel, profile, largest ratio to plain NumPy
LIMITS = (("softcap", "each_op", 6.0), ("geglu", "each_op", 6.0), ("rms_norm", "two_step", 8.0))


def _plain(name: str, values: dict[str, Any]) -> Callable[[], Any]:
    """The same formula, without roundings, in one piece."""
    if name == "softcap":
        x = values["x"]
        return lambda: np.tanh(x / 30.0) * 30.0
    if name == "rms_norm":
        x, w = values["x"], values["weight"]
        return lambda: x * (1.0 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + 1e-6)) * w
    gate, up = values["gate"], values["up"]
    k, c = 0.044715, np.sqrt(2 / np.pi)
    return lambda: 0.5 * gate * (1.0 + np.tanh(c * (gate + k * (gate * gate * gate)))) * up


def measure() -> list[tuple[str, float, float]]:
    """(name, ratio, limit): at least 1000 x mpmath, at most 6 (rms_norm: 8) x plain NumPy."""
    suites.load(Config(None, Path.cwd(), pythonpath=()))
    found = []
    for name, profile, limit in LIMITS:
        kernel = case.find(name, profile)
        dims = {d for o in kernel.contract.operands for d in o.dims}
        shape = {d: ROWS if d in kernel.contract.row_dims else COLUMNS for d in dims}
        whole = inputs.typical_case(kernel, shape, 0)
        values = {o.name: whole.value(kernel, o) for o in kernel.inputs()}
        ours, plain, audit = best(
            partial(_read, kernel, whole, RangeReading),
            _plain(name, values),
            partial(_read, kernel, case.take_rows(kernel, whole, slice(0, 1)), AuditReading),
            passes=25,
        )
        found.append((f"{name} range reading, times plain float64 NumPy", ours / plain, -limit))
        found.append(
            (
                f"{name} range reading, times mpmath {mpmath.__version__} per output",
                audit * ROWS / ours,
                1000.0,
            )
        )
    return found


def _read(kernel: case.Kernel, whole: case.Case, reading: Any) -> None:
    """One reading of the reference on a case."""
    make = partial(reading, kernel.contract, kernel.profile)
    apply_reading(make, kernel, whole, option_sets(kernel)[0], lambda *_: None)
