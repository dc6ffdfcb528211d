"""Literal answers judged by a contract: shared by the tests of small kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from contract import formats
from contract.autocontrols import nominal
from contract.case import Case, Kernel, find, make_case, shape_from
from contract.inputs import exact_cases, stress_cases, typical_case
from contract.ranges import case_range, option_sets
from contract.readings.base import Change


def kernel_and_case(
    name: str,
    inputs: Mapping[str, Any],
    profile: str | None = None,
    scalars: Mapping[str, float] | None = None,
    sizes: Mapping[str, int] | None = None,
    **parameters: str,
) -> tuple[Kernel, Case]:
    """The kernel and a case of these values; `sizes` are dims that no input has."""
    kernel = find(name, profile, parameters)
    arrays = {key: np.asarray(x) for key, x in inputs.items()}
    found = shape_from(kernel, {key: x.shape for key, x in arrays.items()})
    return kernel, make_case(kernel, {**found, **(sizes or {})}, arrays, scalars)


def refused(name: str, inputs: Mapping[str, Any], answers: Any, **how: Any) -> dict[str, int]:
    """Output -> how many of these values are not allowed, under the option that allows most.

    Values are float64, rounded to the output's format first; one array where there is one output.
    """
    kernel, case = kernel_and_case(name, inputs, **how)
    given = answers if isinstance(answers, Mapping) else {kernel.outputs()[0].name: answers}
    found = []
    for options in option_sets(kernel):
        allowed = case_range(kernel, case, options)
        counts = {}
        for key, values in given.items():
            fmt = allowed[key].fmt
            x = np.broadcast_to(np.asarray(values, np.float64), allowed[key].lo.shape)
            bits = formats.encode(formats.round_to(x, fmt), fmt)
            counts[key] = int(allowed[key].refused(bits).sum())
        found.append(counts)
    return min(found, key=lambda counts: sum(counts.values()))


def shown(kernel: Kernel, change: Change) -> int:
    """How many outputs of the gates' inputs leave their range under a fault that is declared vacuous."""
    cases = [
        *(typical_case(kernel, shape, 0) for shape in kernel.contract.awkward),
        *stress_cases(kernel, "quick", 0),
        *(case for case, _ in exact_cases(kernel, 0)[0]),
    ]
    total = 0
    for case in cases:
        outputs = nominal(kernel, case, change=change)
        allowed = case_range(kernel, case)
        total += sum(int(allowed[key].refused(bits).sum()) for key, bits in outputs.items())
    return total
