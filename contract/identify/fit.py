"""Hypotheses against what a black box gave: the share of its output bits that each explains, and how much each allows.

A hypothesis explains an output whose bits lie in its range. The best explains most; of those that explain as much, the
one that allows least: the smallest mean of log2 of the number of values that it allows. Ranges are no wider than the
contract's own freedoms make them, and narrow accumulators are executed, so that no hypothesis explains by width alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from contract import inputs
from contract.case import Case, Kernel, scalars_of, take_rows
from contract.identify.every_step import rounding_every_step
from contract.identify.hypotheses import Hypothesis, Signature, second_round
from contract.interval import Array
from contract.judge import Outputs
from contract.ranges import OutputRange, Prepare, case_range, output_shape, refusals
from contract.stages import observing

#: Share of the output bits that an explanation explains, at least.
ENOUGH = 0.999
#: Below this share nothing is near: one point dropped or rounded elsewhere moves 27 % of the outputs of an RMS norm, and
#: up to 42 % of those of a product.
NEAR = 0.5
#: Rows of each case in the first look; elements of an operand of a case, and length of a dim, at most: a sum that is
#: executed term by term costs a step of all rows for each.
FEW_ROWS, MOST_ELEMENTS, LONGEST = 4, 1 << 14, 640
#: Stress blocks of each half.
BLOCKS = 6
#: A hypothesis stays in the running while it refuses no more of what was looked at than the best and this share; so many
#: stay in any case, and no more than that.
MARGIN, FEWEST, MOST = 0.02, 8, 64
#: Of the other roundings and accumulators; executed sums are slow, and most are refuted by the first rows.
FEWEST_VARIED = 2
#: How many of the first look's best are tried with other roundings and accumulators.
VARIED = 12


@dataclass(frozen=True)
class Probe:
    """A case and what the black box gave for it."""

    case: Case
    outputs: Outputs


@dataclass(frozen=True)
class Verdict:
    """A hypothesis on one probe.

    Attributes:
        refused: which outputs it does not allow, all outputs of the case in one row.
        widths: log2 of the number of values that it allows for each.
        digest: equal where the ranges are.
    """

    refused: Array
    widths: Array
    digest: bytes


@dataclass
class Fit:
    """A hypothesis on several probes."""

    hypothesis: Hypothesis
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def compared(self) -> int:
        return sum(v.refused.size for v in self.verdicts)

    @property
    def refused(self) -> int:
        return sum(int(v.refused.sum()) for v in self.verdicts)

    @property
    def share(self) -> float:
        """Share of the output bits that it explains."""
        return 1.0 - self.refused / max(1, self.compared)

    @property
    def width(self) -> float:
        """Mean log2 of the number of values that it allows."""
        return sum(float(v.widths.sum()) for v in self.verdicts) / max(1, self.compared)

    @property
    def ranges(self) -> bytes:
        return b"".join(v.digest for v in self.verdicts)

    @property
    def order(self) -> tuple[float, float, int]:
        """Sorts the best first; of equal ones that which differs least from a declared profile."""
        return -self.share, self.width, len(self.hypothesis.changes)


def chosen_cases(signature: Signature, seed: int) -> list[Case]:
    """Inputs chosen for power: the contract's exact rows, its stress rows, and ordinary data; the most telling first."""
    found: list[Case] = []
    for kernel in _by_parameters(signature):
        found += [_fitting(kernel, case) for case in inputs.exact_candidates(kernel, seed)]
    kernel = signature.first
    found += [
        _fitting(kernel, case) for case in inputs.stress_cases(kernel, "default", seed)[:BLOCKS]
    ]
    shapes = inputs.shape_list(kernel, "default")
    small = [s for s in shapes if _elements(kernel, s) <= MOST_ELEMENTS] or shapes[:1]
    found += [
        _fitting(kernel, inputs.typical_case(kernel, s, seed, i)) for i, s in enumerate(small[-4:])
    ]
    short = [case for case in found if max(case.shape.values()) <= LONGEST]
    found = short or found
    # the same rows may be proposed under several parameters
    distinct = {_digest_of(case): case for case in reversed(found)}
    return list(reversed(distinct.values()))


def _by_parameters(signature: Signature) -> list[Kernel]:
    return list({tuple(k.parameters.items()): k for k in signature.kernels}.values())


def _elements(kernel: Kernel, shape: Mapping[str, int]) -> int:
    return max(int(np.prod([shape[d] for d in o.dims])) for o in kernel.inputs())


def _fitting(kernel: Kernel, case: Case) -> Case:
    """The first rows of a case, as many as keep it small."""
    rows = case.rows(kernel)
    if kernel.shares or not kernel.contract.row_dims or rows < 2:
        return case
    per_row = max(1, max(x.size for x in case.operands.values()) // rows)
    return take_rows(kernel, case, slice(0, max(1, min(rows, MOST_ELEMENTS // per_row))))


def _digest_of(case: Case) -> bytes:
    parts = [repr((sorted(case.shape.items()), sorted(case.scalars.items()))).encode()]
    return hashlib.sha256(
        b"".join([*parts, *(np.ascontiguousarray(x).tobytes() for x in case.operands.values())])
    ).digest()


def few_rows(kernel: Kernel, probe: Probe) -> Probe:
    """The first rows of a probe."""
    if kernel.shares or not kernel.contract.row_dims or probe.case.rows(kernel) <= FEW_ROWS:
        return probe
    rows = slice(0, FEW_ROWS)
    kept = {}
    for operand in (o for o in kernel.outputs() if o.name in probe.outputs):
        axis = kernel.row_axis(operand)
        bits = probe.outputs[operand.name]
        kept[operand.name] = bits if axis is None else bits[(slice(None),) * axis + (rows,)]
    return Probe(take_rows(kernel, probe.case, rows), kept)


def judged(
    hypothesis: Hypothesis, probe: Probe, reading: Callable[[Any], None] | None = None
) -> Verdict | None:
    """The verdict; None where the hypothesis has no range in the outputs' formats.

    `reading`: sets up every reading before the reference runs.
    """
    ranges = ranges_of(hypothesis, probe, reading)
    if ranges is None:
        return None
    masks = refusals(ranges, probe.outputs)
    refused = np.concatenate([masks[name].reshape(-1) for name in masks])
    digest = hashlib.sha256()
    widths = np.concatenate([_log_width(ranges[name]).reshape(-1) for name in masks])
    for name in masks:
        out = ranges[name]
        for part in out._by_row():
            digest.update(np.ascontiguousarray(getattr(out, part)).tobytes())
    return Verdict(refused, widths.astype(np.float32), digest.digest())


def ranges_of(
    hypothesis: Hypothesis, probe: Probe, reading: Callable[[Any], None] | None = None
) -> dict[str, OutputRange] | None:
    """What the hypothesis allows for each output."""
    case = replace(probe.case, scalars={**probe.case.scalars, **hypothesis.scalars})
    try:
        return case_range(
            hypothesis.kernel,
            case,
            hypothesis.options,
            prepare=_prepared(hypothesis, observing(hypothesis.kernel, probe.outputs), reading),
        )
    except Exception:  # noqa: BLE001 - a reference may say anything of what its contract does not declare
        return None


def _prepared(
    hypothesis: Hypothesis, stages: Prepare | None, reading: Callable[[Any], None] | None
) -> Prepare | None:
    setups = [reading] if reading is not None else []
    setups += [rounding_every_step(hypothesis.every)] if hypothesis.every else []
    if not setups:
        return stages

    def prepare(made: Any, where: Mapping[str, slice]) -> None:
        if stages is not None:
            stages(made, where)
        for setup in setups:
            setup(made)

    return prepare


def _log_width(out: Any) -> Array:
    """log2 of the number of allowed values of each element."""
    if not isinstance(out, OutputRange):
        # a set of values: one, or several
        return np.where(out.one_value(), 0.0, 1.0)
    width = np.log2(out.hi.astype(np.float64) - out.lo.astype(np.float64) + 1.0)
    if out.nan is None:
        return np.asarray(width)
    return np.where(out.nan == 2, 0.0, width + (out.nan == 1))


def survivors(
    hypotheses: Iterable[Hypothesis], probes: Sequence[Probe], fewest: int = FEWEST
) -> list[Fit]:
    """Those that stay in the running after a first look at a few rows of each probe, best first."""
    fits = [Fit(h) for h in hypotheses]
    for probe in probes:
        left = []
        for fit in fits:
            verdict = judged(fit.hypothesis, few_rows(fit.hypothesis.kernel, probe))
            if verdict is not None:
                fit.verdicts.append(verdict)
                left.append(fit)
        fits = sorted(left, key=lambda fit: fit.order)
        if not fits:
            return []
        fits = _near(fits, fewest)
    return fits


def ranked(
    signature: Signature, hypotheses: Sequence[Hypothesis], probes: Sequence[Probe]
) -> tuple[list[Fit], int]:
    """Hypotheses that stay in the running, judged on all rows, the best first; and how many were tried."""
    first = survivors(hypotheses, probes)
    known = {h.key for h in hypotheses}
    more: dict[tuple[Any, ...], Hypothesis] = {}
    for fit in first[:VARIED]:
        for varied in second_round(fit.hypothesis):
            if varied.key not in known:
                more.setdefault(varied.key, varied)
    second = survivors(list(more.values()), probes, FEWEST_VARIED)
    fits = _near(sorted([*first, *second], key=lambda fit: fit.order), FEWEST)
    whole = [fit for fit in (on(fit.hypothesis, probes) for fit in fits) if fit is not None]
    return _declared_first(sorted(whole, key=lambda fit: fit.order)), len(hypotheses) + len(more)


def _declared_first(fits: list[Fit]) -> list[Fit]:
    """A declared profile goes before what explains the same outputs, and allows another number of values for next to none
    of them: a point that is vacuous but for subnormals is no discovery."""
    for place, fit in enumerate(fits):
        if fit.hypothesis.declared and (place == 0 or _same(fits[0], fit)):
            return [fit, *fits[:place], *fits[place + 1 :]]
    return fits


def _same(best: Fit, fit: Fit) -> bool:
    differ = 0
    for mine, theirs in zip(best.verdicts, fit.verdicts, strict=True):
        if not np.array_equal(mine.refused, theirs.refused):
            return False
        differ += int((mine.widths != theirs.widths).sum())
    return differ <= (1.0 - ENOUGH) * fit.compared


def _near(fits: Sequence[Fit], fewest: int) -> list[Fit]:
    """Of those that are sorted the best and what comes near."""
    least = fits[0].share - MARGIN
    return [fit for place, fit in enumerate(fits) if place < fewest or fit.share >= least][:MOST]


def on(
    hypothesis: Hypothesis, probes: Sequence[Probe], reading: Callable[[Any], None] | None = None
) -> Fit | None:
    """The hypothesis on all rows of the probes."""
    verdicts = [judged(hypothesis, probe, reading) for probe in probes]
    found = [verdict for verdict in verdicts if verdict is not None]
    return Fit(hypothesis, found) if len(found) == len(probes) else None


@dataclass(frozen=True)
class Apart:
    """The first element that a hypothesis allows and another does not, or allows more narrowly."""

    probe: Probe
    output: str
    index: tuple[int, ...]
    refused: bool


def apart(best: Fit, other: Fit, probes: Sequence[Probe]) -> Apart | None:
    """Where two hypotheses differ: an output that only the first allows, else one whose ranges differ."""
    wider: Apart | None = None
    for probe, mine, theirs in zip(probes, best.verdicts, other.verdicts, strict=True):
        if mine.digest == theirs.digest:
            continue
        ranges = [ranges_of(fit.hypothesis, probe) for fit in (best, other)]
        if ranges[0] is None or ranges[1] is None:
            continue
        allowed, refused = (refusals(r, probe.outputs) for r in ranges if r is not None)
        for name in allowed:
            place = np.argwhere(~allowed[name] & refused[name])
            if place.size:
                return Apart(probe, name, tuple(map(int, place[0])), True)
            if wider is None:
                a, b = ranges[0][name], ranges[1][name]
                parts = [getattr(a, x) != getattr(b, x) for x in ("lo", "hi") if hasattr(a, x)]
                place = np.argwhere(np.logical_or.reduce(parts)) if parts else place
                if place.size:
                    wider = Apart(probe, name, tuple(map(int, place[0])), False)
    return wider


def fixed_scalars(
    kernel: Kernel, names: Sequence[str], given: Mapping[str, float], numbers: Mapping[str, float]
) -> list[dict[str, float]]:
    """Values that a black box may use for scalars that it does not take: one that is given, or the contract's, its own
    numbers, and powers of ten."""
    found: list[dict[str, float]] = [{}]
    for name in names:
        declared = next(s for s in kernel.contract.scalars if s.name == name).values
        tens = (10.0**-k for k in range(13))
        values = [given[name]] if name in given else [*declared, *numbers.values(), 0.0, *tens]
        found = [{**one, name: value} for one in found for value in dict.fromkeys(values)]
    return found


def with_scalars(kernel: Kernel, case: Case, given: Mapping[str, float]) -> Case:
    """The case with the scalars that the user states."""
    return replace(case, scalars=scalars_of(kernel, {**case.scalars, **given}))


__all__ = ["ENOUGH", "Fit", "Probe", "apart", "chosen_cases", "on", "output_shape", "ranked"]
