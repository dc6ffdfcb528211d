"""One output of a case on literal rows, judged by its contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from contract import formats
from contract.case import Kernel, make_case, shape_from
from contract.ranges import case_range, option_sets


def refused(
    kernel: Kernel,
    inputs: Mapping[str, Any],
    out: Any,
    scalars: Mapping[str, float] | None = None,
    name: str = "out",
    **options: str,
) -> int:
    """How many values of an output are not allowed, after rounding to its format."""
    arrays = {key: np.asarray(x) for key, x in inputs.items()}
    case = make_case(
        kernel, shape_from(kernel, {k: x.shape for k, x in arrays.items()}), arrays, scalars
    )
    allowed = case_range(kernel, case, {**option_sets(kernel)[0], **options})[name]
    values = np.broadcast_to(np.asarray(out, np.float64), allowed.lo.shape)
    return int(
        allowed.refused(formats.encode(formats.round_to(values, allowed.fmt), allowed.fmt)).sum()
    )
