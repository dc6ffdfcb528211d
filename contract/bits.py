"""What a check compared, as two digests: so two reports can tell whether bits moved inside the allowed range.

One digest is of all inputs and launches, the other of all output bits, call after call. Where the first are equal and the
second are not, the implementation computes other bits of the same inputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from contract import formats
from contract.case import Case, Kernel

if TYPE_CHECKING:
    from contract.interval import Array

# Hexadecimal digits of a digest, 64 bits. SHA-256 is the fastest of hashlib where the processor has instructions for it:
# 1.3 GB/s on an x86-64 core, some fifteen times what the fastest ranges are computed at (45 M bf16 outputs a second).
DIGITS = 16


def case_digest(kernel: Kernel, case: Case) -> str:
    """Of the operands' bits, the sizes and the scalars."""
    found = hashlib.sha256()
    found.update(json.dumps([dict(case.shape), dict(case.scalars)], sort_keys=True).encode())
    for operand in kernel.inputs():
        bits = case.operands[operand.name]
        found.update(f"{operand.name}{bits.dtype}{bits.shape}".encode())
        found.update(_bytes(bits))
    return found.hexdigest()[:DIGITS]


class Digests:
    """Of the calls of one check, in the order in which they were judged."""

    def __init__(self) -> None:
        self._inputs = hashlib.sha256()
        self._outputs = hashlib.sha256()
        self.calls = 0

    def add(self, kernel: Kernel, case: str, launch: str, outputs: Mapping[str, Array]) -> None:
        """One call; `case`: its `case_digest`. NaN is compared as a class, so its payload does not count."""
        self.calls += 1
        self._inputs.update(f"{case} {launch}\n".encode())
        for operand in kernel.outputs():
            bits = outputs.get(operand.name)
            if bits is None:
                # a stage that the implementation keeps to itself
                self._outputs.update(b"-")
                continue
            fmt = kernel.format(operand)
            if fmt.has_nan and (nan := formats.is_nan(bits, fmt)).any():
                bits = np.where(nan, bits.dtype.type(_one_nan(fmt)), bits)
            self._outputs.update(_bytes(bits))

    def as_json(self) -> dict[str, str]:
        """Empty where there was no call."""
        if not self.calls:
            return {}
        return {
            "inputs": self._inputs.hexdigest()[:DIGITS],
            "outputs": self._outputs.hexdigest()[:DIGITS],
        }


def _bytes(bits: Array) -> memoryview:
    return np.ascontiguousarray(bits).reshape(-1).view(np.uint8).data


def _one_nan(fmt: formats.Format) -> int:
    return int(formats.encode(np.asarray([np.nan]), fmt)[0])
