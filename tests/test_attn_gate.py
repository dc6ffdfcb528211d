"""The output gate on literal rows."""

from __future__ import annotations

import numpy as np
from one_output import refused

import contract.kernels.attn_gate
from contract.case import find

assert contract.kernels.attn_gate.attn_gate.name == "attn_gate"


def test_the_gate_is_the_second_half_of_the_fused_row() -> None:
    kernel = find("attn_gate")
    inputs = {"o": np.full((1, 1, 1), 3.0), "fused": np.array([[[40.0, 0.0]]])}
    assert refused(kernel, inputs, 1.5) == 0
    assert refused(kernel, inputs, 3.0) == 1
