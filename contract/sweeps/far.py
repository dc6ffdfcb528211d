"""The far side of a sweep: calls whose inputs are made in the worker."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from contract import case as cases
from contract.endpoints import Array
from contract.engines import ENGINES
from contract.sweeps import space
from contract.worker_child import progress

#: Inputs of one call: its buffers then stay in the cache, and in the memory that the C library keeps.
CALL = 1 << 17


def run(
    payload: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """An engine's `run` on the operands that `payload["inputs"]` describes (contract.sweeps.space.payload), in calls of
    CALL inputs; the report of the first call that is not good, else of the last."""
    kernel = cases.find(payload["kernel"], payload["profile"], payload["parameters"])
    engine = importlib.import_module(ENGINES[payload["engine"]])
    inputs = payload["inputs"]
    parts: list[dict[str, Array]] = []
    touched, report = False, {}
    for first, last in space.pieces(int(inputs["first"]), int(inputs["last"]), CALL):
        operands, shape = space.operands(kernel, {**inputs, "first": first, "last": last})
        if not operands:
            continue
        report, outputs = engine.run({**payload, "shape": shape}, operands)
        touched = touched or bool(report.get("touched"))
        if any(report.get(key) for key in ("bad", "not_run", "changed", "around")):
            return {**report, "touched": touched}, {}
        parts.append(outputs)
        progress()
    axes = {o.name: o.dims.index(space.Space(kernel, "").dim) for o in kernel.outputs()}
    joined = {
        name: parts[0][name] if len(parts) == 1 else np.concatenate([p[name] for p in parts], axis)
        for name, axis in axes.items()
        if all(name in part for part in parts)
    }
    return {**report, "touched": touched}, joined


__all__ = ["run"]
