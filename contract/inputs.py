"""The input sets of the gates: typical data at declared shapes, drawn stress rows, proven exact rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from contract import formats
from contract.case import Case, Kernel, make_case, scalars_of, take_rows
from contract.declare import Operand
from contract.errors import DeclarationError
from contract.interval import Array
from contract.ranges import CaseRange, OutputRange, case_range, option_sets, rows_of
from contract.rows import Row, expand

STRESS_ROWS = 64
#: Stress blocks of 64 rows by effort (nightly: of each of its 16 seeds).
STRESS_BLOCKS = {"quick": 1, "default": 16, "nightly": 16}
NIGHTLY_SEEDS = 16
#: Elements of the awkward shape that quick runs.
QUICK_SIZE = 1 << 13


def generator(*parts: Any) -> np.random.Generator:
    """A generator that depends on the given words alone."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest[:16], "little")))


def typical_values(
    operand: Operand,
    fmt: formats.Format,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    limit: int | None = None,
) -> Array:
    """Ordinary data of one operand: its own sampler, N(0, 1), or uniform codes (below `limit`, both ends among them)."""
    if operand.typical is not None:
        values = np.asarray(operand.typical(rng, shape), np.float64)
        if values.shape != shape:
            raise DeclarationError(
                f"operand {operand.name}: typical(rng, {shape}) returned shape {values.shape}"
            )
        return values
    if limit is not None:
        drawn = rng.integers(operand.least, limit, shape).astype(np.float64)
        drawn.reshape(-1)[:2] = (limit - 1, operand.least)[: drawn.size]
        return drawn
    if fmt.kind == "int":
        top = min(fmt.max, 2.0**20)
        return np.floor(rng.uniform(max(-top - 1, _lowest(fmt)), top + 1, shape))
    return np.asarray(rng.standard_normal(shape, dtype=np.float32), np.float64)


def _lowest(fmt: formats.Format) -> float:
    return float(getattr(fmt, "lowest", -fmt.max))


def typical_case(kernel: Kernel, shape: Mapping[str, int], seed: int, turn: int = 0) -> Case:
    """One case of typical data; the operands are read-only, because the kernels of a contract share them."""
    label = "typical " + " ".join(f"{d}={n}" for d, n in shape.items())
    bits = {o.name: _typical_bits(kernel, o, shape, seed) for o in kernel.inputs()}
    return Case(dict(shape), bits, scalars_of(kernel, None, turn), label)


def _typical_bits(kernel: Kernel, operand: Operand, shape: Mapping[str, int], seed: int) -> Array:
    fmt = kernel.format(operand)
    key = (kernel.contract.name, seed, operand.name, fmt.name, *sorted(shape.items()))

    def make() -> dict[str, Array]:
        dims = tuple(shape[d] for d in operand.dims)
        rng = generator("typical", seed, kernel.contract.name, operand.name, sorted(shape.items()))
        values = typical_values(operand, fmt, rng, dims, operand.limit(shape))
        return {operand.name: formats.encode(formats.round_to(values, fmt), fmt)}

    return _once(key, operand, make)[operand.name]


# The kernels of a contract are judged one after the other on the same data.
KEPT_BYTES = 128 << 20
_kept: dict[tuple[Any, ...], tuple[object, Mapping[str, Array]]] = {}


def _once(
    key: tuple[Any, ...], owner: object, make: Callable[[], Mapping[str, Array]]
) -> Mapping[str, Array]:
    """What is made for a key, kept while there is room; `owner`, by whose declaration it is made, is the same object then."""
    held = _kept.get(key)
    if held is not None and held[0] is owner:
        return held[1]
    made = make()
    for bits in made.values():
        bits.setflags(write=False)
    size = _size_of(made)
    if sum(_size_of(other) for _, other in _kept.values()) + size > KEPT_BYTES:
        _kept.clear()
    if size <= KEPT_BYTES:
        _kept[key] = (owner, made)
    return made


def _size_of(arrays: Mapping[str, Array]) -> int:
    return sum(x.nbytes for x in arrays.values())


def size_of(shape: Mapping[str, int]) -> int:
    return int(np.prod([int(n) for n in shape.values()], dtype=np.int64))


def shape_list(kernel: Kernel, effort: str) -> list[dict[str, int]]:
    """Declared shapes, smallest first; quick keeps the smallest, and the largest awkward one that is cheap."""
    contract = kernel.contract
    ordered = sorted(
        (dict(s) for s in contract.shapes), key=lambda s: (size_of(s), sorted(s.items()))
    )
    awkward = sorted(
        (dict(s) for s in contract.awkward), key=lambda s: (size_of(s), sorted(s.items()))
    )
    if effort == "quick":
        cheap = [shape for shape in awkward if size_of(shape) <= QUICK_SIZE]
        return [kernel.sized(s) for s in ((cheap[-1:] or awkward[:1]) + ordered)[:2]]
    return [kernel.sized(s) for s in awkward + ordered]


def stress_cases(kernel: Kernel, effort: str, seed: int) -> list[Case]:
    """Blocks of 64 drawn rows; operands that rows share get a row description of their own."""
    from contract.strategies import draw_blocks

    contract = kernel.contract
    if not contract.stress:
        return []
    shared = [o for o in kernel.inputs() if kernel.row_axis(o) is None]
    per_row = [o for o in kernel.inputs() if kernel.row_axis(o) is not None]
    count = STRESS_ROWS * max(1, len(per_row)) + len(shared)
    found = []
    seeds = range(seed, seed + NIGHTLY_SEEDS) if effort == "nightly" else (seed,)
    for one in seeds:
        blocks = draw_blocks(one, STRESS_BLOCKS[effort], rows=count)
        for turn, block in enumerate(blocks):
            shape = {
                **{d: STRESS_ROWS for d in contract.row_dims[:1]},
                **dict(contract.stress[turn % len(contract.stress)]),
            }
            shape.update({d: 2 for d in contract.row_dims[1:] if d not in shape})
            shape = kernel.sized(shape)
            key = (
                contract.name, one, turn, len(blocks), tuple(sorted(shape.items())),
                # the contract's own objects: two of one name may differ in their dims
                tuple((id(o), kernel.format(o).name) for o in kernel.inputs()),
            )  # fmt: skip
            make = partial(_stress_bits, kernel, shape, per_row, shared, block)
            # quick draws one block: let it have another value than the first shape
            scalars = scalars_of(kernel, None, turn + (effort == "quick"))
            label = f"stress seed={one} block={turn}"
            found.append(Case(dict(shape), dict(_once(key, contract, make)), scalars, label))
    return found


def _stress_bits(
    kernel: Kernel,
    shape: Mapping[str, int],
    per_row: Sequence[Operand],
    shared: Sequence[Operand],
    block: Sequence[Row],
) -> Mapping[str, Array]:
    return make_case(kernel, shape, _expand(kernel, shape, per_row, shared, block)).operands


def _expand(
    kernel: Kernel,
    shape: Mapping[str, int],
    per_row: Sequence[Operand],
    shared: Sequence[Operand],
    block: Sequence[Row],
) -> dict[str, Array]:
    values: dict[str, Array] = {}
    rows = shape[kernel.contract.row_dims[0]] if kernel.contract.row_dims else 1
    for i, operand in enumerate(per_row):
        sizes = tuple(shape[d] for d in operand.dims)
        axis = kernel.row_axis(operand) or 0
        if (limit := operand.limit(shape)) is not None:
            # an index outside is no input; which rows are read is drawn as in ordinary data
            drawn = generator("index", block[i * STRESS_ROWS].describe(), operand.name)
            values[operand.name] = typical_values(
                operand, kernel.format(operand), drawn, sizes, limit
            )
            continue
        rest = [n for k, n in enumerate(sizes) if k != axis]
        x = expand(
            block[i * STRESS_ROWS : i * STRESS_ROWS + rows],
            int(np.prod(rest, dtype=np.int64)),
            kernel.format(operand),
        )
        values[operand.name] = np.moveaxis(x.reshape(rows, *rest), 0, axis)
    for i, operand in enumerate(shared):
        dims = tuple(shape[d] for d in operand.dims)
        row = block[len(block) - 1 - i]
        if i % 2 == 0 and row.specials:
            # a NaN in what all rows share would blind its column in the whole block
            row = Row(row.pattern, row.lo, row.hi, row.seed)
        fmt, limit = kernel.format(operand), operand.limit(shape)
        if limit is not None or (operand.typical is not None and row.seed % 2):
            values[operand.name] = typical_values(
                operand, fmt, generator("shared", row.describe(), operand.name), dims, limit
            )
        else:
            values[operand.name] = expand([row], int(np.prod(dims, dtype=np.int64)), fmt).reshape(
                dims
            )
    for operand in kernel.inputs():
        if operand.finite:
            x = values[operand.name]
            inside = np.isfinite(x) & (x > 0) if operand.positive else np.isfinite(x)
            values[operand.name] = np.where(inside, x, 1.0)
    return values


def exact_candidates(kernel: Kernel, seed: int) -> list[Case]:
    """What the contract proposes as exact rows, proven or not, a case for each of its shapes."""
    contract, found = kernel.contract, []
    if contract.exact is None:
        return []
    for turn, given in enumerate(contract.exact_shapes or contract.stress):
        shape = kernel.sized({**{d: STRESS_ROWS for d in contract.row_dims}, **dict(given)})
        scalars = scalars_of(kernel, None, turn)
        rng = generator("exact", seed, kernel.contract.name, turn)
        values = contract.exact(rng, shape, scalars, kernel.parameters)
        found.append(
            make_case(
                kernel,
                shape,
                {n: v for n, v in values.items() if n in {o.name for o in kernel.inputs()}},
                scalars,
                f"exact {' '.join(f'{d}={n}' for d, n in given.items())}",
            )
        )
    return found


def exact_cases(
    kernel: Kernel, seed: int
) -> tuple[list[tuple[Case, list[dict[str, OutputRange]]]], int]:
    """Rows whose range is proven to be one value at every output, with their ranges under every listed alternative, and
    how many candidates were read.

    The contract proposes, the range reading disposes: candidates that it does not prove are left out.
    """
    found: list[tuple[Case, list[dict[str, OutputRange]]]] = []
    candidates = 0
    for case in exact_candidates(kernel, seed):
        candidates += case.rows(kernel)
        ranges = [case_range(kernel, case, options) for options in option_sets(kernel)]
        proven = proven_rows(kernel, case, ranges)
        if proven.all():
            found.append((case, ranges))
        elif proven.any() and not kernel.shares:
            rows = np.flatnonzero(proven)
            found.append(
                (take_rows(kernel, case, rows), [rows_of(kernel, one, rows) for one in ranges])
            )
    return found, candidates


def proven_rows(kernel: Kernel, case: Case, ranges: Sequence[CaseRange]) -> Array:
    """Which rows have one allowed value at every output, the same under every listed alternative.

    Stages, which an implementation may keep to itself, are judged by their ranges on these rows too.
    """
    rows = case.rows(kernel)
    proven = np.ones(rows, bool)
    for operand in kernel.outputs():
        if operand.stage:
            continue
        axis = kernel.row_axis(operand)
        first = ranges[0][operand.name]
        for one in ranges:
            out = one[operand.name]
            single = (out.one_value() | _free_zero(out)) & (first.lo == out.lo)
            if axis is None or kernel.shares:
                proven &= bool(single.all())
            else:
                proven &= np.moveaxis(single, axis, 0).reshape(rows, -1).all(axis=1)
    return proven


def _free_zero(out: OutputRange) -> Array:
    """Where the one value is a zero of either sign, as a sum of zeros is."""
    zero = (out.lo == -1) & (out.hi == 0) & (out.fmt.kind == "float")
    return np.asarray(zero if out.nan is None else zero & (out.nan == 0))
