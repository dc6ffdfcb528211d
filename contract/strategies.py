"""Hypothesis strategies for rows, blocks of rows and full sets of operands.

    @given(contract.strategies.operands(rms_norm, profile="two_step"))
    def test_my_kernel(case): ...

Every strategy maps a binary string of fixed size. Hypothesis mixes constants that it finds in
local modules into the integers, floats and strings that it draws, so that the draws would depend
on which modules are loaded; no constant is a binary string of exactly this size. It also draws and
shrinks one string faster than the many small choices of a composite strategy.

Interface: rows, blocks, operands, draw_blocks.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from numpy.typing import NDArray

from contract import formats
from contract.declare import Contract, Operand
from contract.errors import UsageError
from contract.rows import BYTES_PER_ROW, Row, decode_block, expand

#: Rows drawn for one operand; longer operands repeat them with other seeds.
MOST_ROWS = 64
#: Size of each row dim that a stress shape leaves open.
OPEN_ROWS = 4


def rows(*, allow_specials: bool = True) -> st.SearchStrategy[Row]:
    """One row; without specials also without NaN and infinities."""
    return blocks(1, allow_specials=allow_specials).map(lambda block: block[0])


def blocks(rows: int = 64, *, allow_specials: bool = True) -> st.SearchStrategy[tuple[Row, ...]]:
    """A tuple of rows; it shrinks to rows that are all `normal,e0..0,seed=0`."""
    size = rows * BYTES_PER_ROW
    return st.binary(min_size=size, max_size=size).map(
        lambda data: decode_block(data, rows, allow_specials)
    )


def operands(
    contract: Contract,
    profile: str | None = None,
    *,
    shape: Mapping[str, int] | None = None,
    allow_specials: bool = True,
    **parameters: str,
) -> st.SearchStrategy[dict[str, Any]]:
    """Full sets of operands: a float64 array for each input, a number for each scalar.

    Args:
        contract: whose inputs and scalars are drawn.
        profile: whose formats the values have; the first profile by default.
        shape: sizes of dims; by default the first stress shape, or the smallest declared shape.
            A row dim without a size gets 4.
        allow_specials: whether NaN and infinities are drawn.
        parameters: enumerated parameters; the others have their first value.

    The values lie in the format of their operand and are made from rows along its last dim. An
    integer operand with a sampler of typical data (ids, positions, lengths) uses the sampler: any
    other integers would lie outside what the operand means.
    """
    formats_of = contract.profile(profile or contract.profiles[0].name).formats
    chosen = contract.full_parameters(parameters)
    inputs = contract.inputs(chosen)
    sizes = _sizes(contract, shape, chosen)
    shapes = [tuple(sizes[dim] for dim in operand.dims) for operand in inputs]
    counts = [min(math.prod(s[:-1]), MOST_ROWS) for s in shapes]
    total = sum(counts)
    size = total * BYTES_PER_ROW + len(contract.scalars)

    def build(data: bytes) -> dict[str, Any]:
        drawn = decode_block(data[: total * BYTES_PER_ROW], total, allow_specials)
        case: dict[str, Any] = {}
        start = 0
        for operand, dims, count in zip(inputs, shapes, counts, strict=True):
            own = drawn[start : start + count]
            case[operand.name] = _values(
                operand, formats_of.get(operand.name, operand.format), dims, own
            )
            start += count
        for scalar, byte in zip(contract.scalars, data[total * BYTES_PER_ROW :], strict=True):
            case[scalar.name] = scalar.values[byte % len(scalar.values)]
        return case

    return st.binary(min_size=size, max_size=size).map(build)


def _sizes(
    contract: Contract, shape: Mapping[str, int] | None, parameters: Mapping[str, str]
) -> dict[str, int]:
    dims = {dim for operand in contract.operands for dim in operand.dims}
    smallest = min(contract.shapes, key=lambda s: math.prod(s.values()))
    chosen = shape or (contract.stress[0] if contract.stress else smallest)
    sizes = contract.sized(dict.fromkeys(contract.row_dims, OPEN_ROWS) | dict(chosen), parameters)
    if set(sizes) != dims or any(size < 1 for size in sizes.values()):
        raise UsageError(
            f"contract {contract.name}: shape {dict(chosen)}; give a size >= 1 to each of"
            f" {sorted(dims - set(contract.row_dims))}, and to {list(contract.row_dims)} if wanted"
        )
    return sizes


def _values(
    operand: Operand, fmt: str, shape: tuple[int, ...], drawn: tuple[Row, ...]
) -> NDArray[np.float64]:
    f = formats.get(fmt)
    if operand.typical is not None and f.kind == "int":
        typical = operand.typical(np.random.default_rng(drawn[0].seed), shape)
        return formats.round_to(typical, f)
    count = math.prod(shape[:-1])
    repeated = [
        replace(drawn[i % len(drawn)], seed=(drawn[i % len(drawn)].seed + i // len(drawn)) % 2**32)
        for i in range(count)
    ]
    return expand(repeated, shape[-1] if shape else 1, f).reshape(shape)


@functools.lru_cache(maxsize=32)
def draw_blocks(
    seed: int, count: int, rows: int = 64, *, allow_specials: bool = True
) -> tuple[tuple[Row, ...], ...]:
    """`count` blocks drawn by hypothesis: for one seed always the same, whatever is loaded or set.

    Where hypothesis stops early the rest is drawn from SHAKE-256 of the seed.
    """
    size = rows * BYTES_PER_ROW
    drawn: list[bytes] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        # The first example is all zeros: as many copies of the simplest row, which tell nothing.
        max_examples=count + 1,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        backend="hypothesis",
    )
    @hypothesis.given(st.binary(min_size=size, max_size=size))
    def collect(data: bytes) -> None:
        if any(data):
            drawn.append(data)

    collect()
    for index in range(len(drawn), count):
        drawn.append(hashlib.shake_256(f"{seed},{index}".encode()).digest(size))
    return tuple(decode_block(data, rows, allow_specials) for data in drawn[:count])
