"""What a sweep runs over: every bit pattern of one operand, or pairs on a grid, while all else is fixed.

A space is a list of settings (which operand is swept, at which scalars, beside which values of the others), each of the
same number of inputs, in the order of their bit patterns read as unsigned integers: both zeros, subnormals, infinities and
every NaN are among them.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from contract import formats
from contract.case import Case, Kernel, check_finite, check_values
from contract.declare import Operand
from contract.endpoints import Array
from contract.errors import CaseError, ContractError
from contract.ranges import case_range, option_sets
from contract.stages import structure

#: All patterns of operands of 16 bits or fewer; all 2^32 of fp32 ones; pairs of two operands on a grid.
CODES, FP32, PAIRS = "codes", "fp32", "pairs"
MODES = (CODES, FP32, PAIRS)
#: Inputs of one shard: a quarter of a second to a second, which is what a kill costs.
SHARD = 1 << 24
#: Grid points of each operand of a pair: 4.2 million pairs.
GRID = 2048
#: Beside a swept operand the others hold one of so many values (`fixed_codes`).
FIXED = 7
#: Sizes by which places of other operands are bounded: those of a sweep are 1, but for the dim that holds its inputs.
_ONES: Mapping[str, int] = defaultdict(lambda: 1)
#: Inputs on which `unfit` looks whether outputs depend on each other.
_PROBE = 512


@dataclass(frozen=True)
class Setting:
    """One operand (or two) that changes, and what does not.

    Attributes:
        swept: the operands that change: one, or two of a pair.
        scalars: scalar -> value.
        fixed: other operand -> the storage bits of all its elements.
    """

    swept: tuple[str, ...]
    scalars: Mapping[str, float]
    fixed: Mapping[str, int]

    def words(self) -> str:
        """The setting in words, for messages and ledgers."""
        scalars = [f"{name}={value:g}" for name, value in self.scalars.items()]
        fixed = [f"{name}=0x{bits:x}" for name, bits in self.fixed.items()]
        return " ".join([*self.swept, *scalars, *fixed])


@dataclass(frozen=True)
class Shard:
    """Inputs first .. last of a setting, both included: bit patterns, or places in the grid of pairs."""

    number: int
    setting: int
    first: int
    last: int

    @property
    def inputs(self) -> int:
        return self.last - self.first + 1


class Space:
    """All inputs of a sweep of one kernel."""

    def __init__(self, kernel: Kernel, mode: str) -> None:
        self.kernel, self.mode = kernel, mode

    @cached_property
    def dim(self) -> str:
        """The dim along which the inputs of a call lie; all others have size 1."""
        dims = self.kernel.outputs()[0].dims
        column = self.kernel.contract.column_dim
        return column if column in dims else dims[-1]

    def candidates(self) -> list[Operand]:
        """Inputs that have one element for each output."""
        dims = {operand.dims for operand in self.kernel.outputs()}
        return [o for o in self.kernel.inputs() if o.role == "in" and {o.dims} == dims and o.dims]

    @cached_property
    def swept(self) -> list[tuple[Operand, ...]]:
        """The operands, or pairs of them, that take their values in turn."""
        found = [o for o in self.candidates() if self._fits(self.kernel.format(o))]
        if self.mode == PAIRS:
            return list(itertools.combinations(found, 2))
        return [(o,) for o in found]

    def _fits(self, fmt: formats.Format) -> bool:
        if self.mode == FP32:
            return fmt.name == "fp32"
        return self.mode == PAIRS or fmt.bits <= 16

    @cached_property
    def settings(self) -> list[Setting]:
        """Every combination of declared scalars, beside the values of `fixed_codes` in turn, of which no two operands
        hold the same place of the list; of 2^32 inputs the first scalars alone, beside a full significand and 1."""
        scalars = [[(s.name, float(v)) for v in s.values] for s in self.kernel.contract.scalars]
        if self.mode == FP32:
            scalars = [values[:1] for values in scalars]
        found = []
        for given, swept in itertools.product(itertools.product(*scalars), self.swept):
            names = tuple(o.name for o in swept)
            others = [o for o in self.kernel.inputs() if o.name not in names]
            values = [fixed_codes(self.kernel, o) for o in others]
            for turn in self._turns if others else (0,):
                fixed = {
                    o.name: codes[self._place(turn, place) % len(codes)]
                    for place, (o, codes) in enumerate(zip(others, values, strict=True))
                }
                found.append(Setting(names, dict(given), fixed))
        return list({s.words(): s for s in found}.values())

    @property
    def _turns(self) -> Sequence[int]:
        return (1,) if self.mode == FP32 else range(FIXED)

    def _place(self, turn: int, other: int) -> int:
        return (turn + other) % 2 if self.mode == FP32 else turn + 3 * other

    def size(self, setting: Setting) -> int:
        """Inputs of a setting."""
        operands = [o for o in self.kernel.inputs() if o.name in setting.swept]
        if self.mode == PAIRS:
            return len(self._grid(operands[0])) * len(self._grid(operands[1]))
        return 1 << self.kernel.format(operands[0]).bits

    def shards(self) -> list[Shard]:
        """The space in pieces: by settings, and within one by ranges of bit patterns."""
        found: list[Shard] = []
        for number, setting in enumerate(self.settings):
            size = self.size(setting)
            for first in range(0, size, SHARD):
                found.append(Shard(len(found), number, first, min(first + SHARD, size) - 1))
        return found

    def codes(self, setting: Setting, first: int, last: int) -> dict[str, Array]:
        """Storage bits of the swept operands at places first .. last, without those that the contract does not take."""
        return self.codes_at(setting, np.arange(first, last + 1, dtype=np.uint64))

    def codes_at(self, setting: Setting, place: Array) -> dict[str, Array]:
        """The same at any places, of dtype uint64."""
        operands = [o for o in self.kernel.inputs() if o.name in setting.swept]
        if self.mode == PAIRS:
            grids = [self._grid(o) for o in operands]
            turn = np.uint64(len(grids[1]))
            return {
                operands[0].name: grids[0][place // turn],
                operands[1].name: grids[1][place % turn],
            }
        operand = operands[0]
        return {operand.name: _taken(self.kernel, operand, _as_bits(self.kernel, operand, place))}

    def case(self, setting: Setting, codes: Mapping[str, Array]) -> Case:
        """A case of these inputs; operands of size 1 along `dim` stay."""
        count = len(next(iter(codes.values())))
        shape = self.shape(count)
        operands = {}
        for operand in self.kernel.inputs():
            dims = tuple(shape[d] for d in operand.dims)
            if operand.name in codes:
                operands[operand.name] = codes[operand.name].reshape(dims)
            else:
                bits = setting.fixed[operand.name]
                operands[operand.name] = np.full(dims, bits, self.kernel.format(operand).storage)
        return Case(shape, operands, setting.scalars, f"sweep {setting.words()}")

    def shape(self, count: int) -> dict[str, int]:
        """The sizes of a call on `count` inputs.

        Raises:
            CaseError: the contract does not allow them.
        """
        contract = self.kernel.contract
        both = (*self.kernel.inputs(), *self.kernel.outputs())
        dims = {dim for operand in both for dim in operand.dims} - set(contract.sizes)
        shape = self.kernel.sized({dim: count if dim == self.dim else 1 for dim in dims})
        if broken := contract.broken_sizes(shape):
            raise CaseError(f"{self.kernel.id}: {broken}")
        return shape

    @cached_property
    def _grids(self) -> dict[str, Array]:
        return {}

    def _grid(self, operand: Operand) -> Array:
        if operand.name not in self._grids:
            self._grids[operand.name] = _grid(self.kernel, operand)
        return self._grids[operand.name]


def _as_bits(kernel: Kernel, operand: Operand, place: Array) -> Array:
    fmt = kernel.format(operand)
    unsigned = place.astype(np.dtype(f"u{np.dtype(fmt.storage).itemsize}"))
    return unsigned.view(fmt.storage)


def _taken(kernel: Kernel, operand: Operand, bits: Array) -> Array:
    """The bits without those that the operand may not hold."""
    if not (operand.finite or operand.positive or operand.below is not None):
        return bits
    values = formats.decode(bits, kernel.format(operand))
    keep = np.isfinite(values) if operand.finite else np.ones(bits.shape, bool)
    if operand.positive:
        keep &= values > 0
    limit = operand.limit(_ONES)
    if limit is not None:
        keep &= (values >= operand.least) & (values < limit)
    return bits[keep]


def _grid(kernel: Kernel, operand: Operand) -> Array:
    """GRID patterns spread over the format, an odd step apart so that their low bits differ, and `fixed_codes`."""
    fmt = kernel.format(operand)
    size = 1 << fmt.bits
    if size <= GRID:
        spread = np.arange(size, dtype=np.uint64)
    else:
        spread = (np.arange(GRID - FIXED, dtype=np.uint64) * np.uint64(size // GRID + 1)) % size
    bits = _taken(kernel, operand, _as_bits(kernel, operand, spread))
    own = np.array(fixed_codes(kernel, operand), fmt.storage)
    return bits if size <= GRID else np.concatenate([own, bits])


def fixed_codes(kernel: Kernel, operand: Operand) -> list[int]:
    """Storage bits of what an operand holds beside a swept one: 1, a full significand below zero, the smallest subnormal,
    a large value, infinity, NaN, -0; as far as the operand may hold them. Of a format of integers: the least, and 1."""
    fmt = kernel.format(operand)
    if fmt.kind != "float":
        values = np.array([operand.least, operand.least + 1, 1], np.float64)
    else:
        full = -(2.0 - 2.0 ** (1 - fmt.precision))
        values = np.array([1.0, full, 0.0, fmt.max / 2, np.inf, np.nan, -0.0])
    allowed = []
    for value in values:
        try:
            bits = formats.encode(formats.round_to(np.array([value]), fmt), fmt)
        except ValueError:
            # a format without infinities or NaN
            continue
        allowed.append(bits)
    if fmt.kind == "float":
        # beside the zero, whose successor it is in storage
        allowed[2] = allowed[2] + allowed[2].dtype.type(1)
    kept = []
    for bits in allowed:
        try:
            check_values(kernel, operand, _ONES, bits)
            if operand.finite:
                check_finite(kernel, operand, bits)
        except CaseError:
            continue
        kept.append(int(bits[0]))
    if not kept:
        raise CaseError(f"{kernel.id}: no value for operand {operand.name} beside a swept one")
    return list(dict.fromkeys(kept))


def unfit(kernel: Kernel, mode: str) -> str:
    """Why a kernel cannot be swept in a mode; '' where it can.

    Each output must depend on one element of each operand: read from the dims, and then from the ranges of inputs that are
    judged together, and in another order and company.
    """
    if kernel.shares:
        return f"its rows share {kernel.shares}"
    outputs = kernel.outputs()
    if any(o.stage or o.observed or o.role == "inout" for o in (*outputs, *kernel.inputs())):
        return "it has stages or states"
    space = Space(kernel, mode)
    if not space.candidates():
        return "no operand has one element for each output"
    if not space.swept:
        return {
            CODES: "no such operand has 16 bits or fewer",
            FP32: "no such operand is fp32",
            PAIRS: "it has no two such operands",
        }[mode]
    try:
        if structure(kernel)[1]:
            return "its rows share a value"
        return "" if _each_alone(space) else "an output depends on several elements"
    except (ContractError, ValueError, IndexError) as error:
        return f"it cannot be called on single elements ({' '.join(str(error).split())})"


def _each_alone(space: Space) -> bool:
    """Whether probes of moderate size (a NaN or an infinity would hide all else) have the same ranges together as in
    another order, apart from half of them; the other operands hold 1."""
    first = space.settings[0]
    ones = {o.name: fixed_codes(space.kernel, o)[0] for o in space.kernel.inputs()}
    setting = replace(first, fixed={name: ones[name] for name in first.fixed})
    places = np.unique(np.linspace(0, space.size(setting) - 1, 8 * _PROBE).astype(np.uint64))
    codes = space.codes_at(setting, places)
    moderate = np.ones(len(next(iter(codes.values()))), bool)
    for operand in space.kernel.inputs():
        if operand.name in codes:
            size = np.abs(formats.decode(codes[operand.name], space.kernel.format(operand)))
            moderate &= (size > 2.0**-16) & (size < 2.0**16)
    codes = {name: bits[moderate][:_PROBE] for name, bits in codes.items()}
    count = len(next(iter(codes.values())))
    order = np.random.default_rng(0).permutation(count)
    halves = [order[: count // 2], order[count // 2 :]]
    options = option_sets(space.kernel)[0]
    whole = case_range(space.kernel, space.case(setting, codes), options)
    for part in halves:
        own = {name: bits[part] for name, bits in codes.items()}
        ranges = case_range(space.kernel, space.case(setting, own), options)
        for name, out in ranges.items():
            for end in ("lo", "hi", "nan"):
                a, b = getattr(whole[name], end), getattr(out, end)
                a = None if a is None else a.reshape(-1)[part]
                if not _equal(a, b):
                    return False
    return True


def _equal(a: Array | None, b: Array | None) -> bool:
    a, b = (np.zeros(1, np.uint8) if x is None else x.reshape(-1) for x in (a, b))
    return bool((a == b).all())


def pieces(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    """first .. last in runs that no multiple of `size` lies inside, so that a run of fp32 patterns has one exponent."""
    while first <= last:
        end = min((first // size + 1) * size - 1, last)
        yield first, end
        first = end + 1


def payload(mode: str, setting: Setting, first: int, last: int) -> dict[str, Any]:
    """The inputs of a call as JSON, for `operands` in a worker."""
    return {
        "mode": mode,
        "swept": list(setting.swept),
        "scalars": dict(setting.scalars),
        "fixed": dict(setting.fixed),
        "first": first,
        "last": last,
    }


def operands(kernel: Kernel, sent: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, int]]:
    """The operands of a call and its sizes, made where it runs: they need not travel. None of them where the contract takes
    none of these values."""
    space = Space(kernel, sent["mode"])
    setting = Setting(tuple(sent["swept"]), sent["scalars"], sent["fixed"])
    codes = space.codes(setting, int(sent["first"]), int(sent["last"]))
    if not len(next(iter(codes.values()))):
        return {}, {}
    case = space.case(setting, codes)
    return dict(case.operands), dict(case.shape)


__all__ = [
    "CODES", "FP32", "MODES", "PAIRS", "SHARD", "Setting", "Shard", "Space", "operands", "payload",
    "pieces", "unfit",
]  # fmt: skip
