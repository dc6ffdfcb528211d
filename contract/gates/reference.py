"""Gate `reference`: the contract alone.

Sampled legal executions must all lie in the range; the 200-bit audit must lie in it; every rounding point, option and
enumerated parameter must have power: dropped or changed, some output leaves its range.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import mpmath
import numpy as np

from contract import autocontrols, formats
from contract.case import Case, Kernel, take_columns, take_rows
from contract.exactround import round_mpf
from contract.inputs import size_of
from contract.interval import Array
from contract.judge import Bench, Outputs, Tally
from contract.ranges import (
    OutputRange,
    apply_reading,
    case_range,
    plain_run,
    rows_of,
    to_codes,
)
from contract.readings.audit import AuditReading
from contract.readings.base import Change
from contract.readings.sample import Choice, SampleReading
from contract.stages import observing

SAMPLES = {"quick": 10_000, "default": 100_000, "nightly": 10_000_000}
# The audit works at about 20,000 outputs a second; a row costs its whole width.
AUDIT_OUTPUTS = {"quick": 50, "default": 500, "nightly": 20_000}
# Elements of all operands of an audited piece: each becomes a 200-bit number, whatever the outputs are.
AUDIT_ELEMENTS = {"quick": 1 << 12, "default": 1 << 13}
# Rows and columns of a piece whose rows share a weight: a weight that is read is used this many times.
AUDIT_SIDE = {"quick": 8, "default": 8}
ROWS_OF_A_CASE = {"quick": 16, "default": 24}
OUTPUTS_OF_A_CASE = 1 << 17
# Outputs of one execution, at least, where a case has them.
OUTPUTS_OF_A_RUN = 1 << 10
# Every stress shape once; nightly takes them all.
POWER_BLOCKS = 8
# An execution with one freedom driven hard finds what an average one does not.
CHOICES = (
    Choice(wide=0.5, ftz=0.5, order="random", ulps="random", fused="random", alternative="random"),
    Choice(ulps="plus", order="sequential"),
    Choice(ulps="minus", order="reversed", alternative="second", fused="yes"),
    Choice(wide=1.0, order="wide"),
    Choice(ftz=1.0, order="sorted", ulps="random", alternative="random"),
    Choice(order="shuffled", ulps="random", wide=0.1, fused="random"),
)


def run(bench: Bench) -> Tally:
    """Soundness, audit and power of one kernel's reference."""
    tally = Tally()
    cases = _cases(bench)
    for step in (_sample, _audit, _power):
        step(bench, cases, tally)
        if tally.outcome:
            return tally
    tally.outcome = "pass"
    return tally


def _cases(bench: Bench) -> list[tuple[str, Case, list[dict[str, OutputRange]]]]:
    """Inputs on which samples are drawn and power is measured, with the ranges of every alternative.

    Every stress width, every exact set and three shapes, a few rows of each: power is a share over rows of different
    statistics, not over many rows or a real model's widths.
    """
    kernel, found = bench.kernel, []
    for name in ("stress", "exact", "shapes"):
        cases = bench.cases(name)
        chosen = sorted({0, len(cases) // 2, len(cases) - 1})
        if name != "shapes":
            stored = len(bench.stored) if name == "stress" else 0
            chosen = list(range(len(cases) if bench.effort == "nightly" else stored + POWER_BLOCKS))
        for index in chosen:
            if index >= len(cases):
                break
            case = cases[index]
            rows = case.rows(kernel)
            # a row of logits is as long as a hundred rows of a norm
            few = max(1, OUTPUTS_OF_A_CASE * rows // max(1, size_of(case.shape)))
            few = min(few, ROWS_OF_A_CASE.get(bench.effort, rows))
            # sums have few outputs, and a run costs the same for many
            few = min(rows, max(few, OUTPUTS_OF_A_RUN * rows // max(1, _size(kernel, case))))
            ranges = [bench.range(name, index, option) for option in range(len(bench.options))]
            if few < rows and not kernel.shares:
                case = take_rows(kernel, case, slice(0, few))
                ranges = [rows_of(kernel, one, slice(0, few)) for one in ranges]
            found.append((name, case, ranges))
    return found


def _sample(
    bench: Bench, cases: list[tuple[str, Case, list[dict[str, OutputRange]]]], tally: Tally
) -> None:
    """Random legal executions: none may be refused."""
    kernel = bench.kernel
    goal, turn = SAMPLES[bench.effort], 0
    if not cases:
        tally.stop("fail", "no input set: declare stress shapes or exact rows")
        return
    while tally.compared < goal:
        for name, case, ranges in cases:
            choice = CHOICES[turn % len(CHOICES)]
            turn += 1
            rng = np.random.default_rng([bench.seed, turn])
            # drawn: a fixed turn would show each option to the same half of the choices
            option = int(rng.integers(len(bench.options)))
            outputs = plain_run(
                kernel,
                case,
                functools.partial(
                    SampleReading, kernel.contract, kernel.profile, choice=choice, rng=rng
                ),
                bench.options[option],
            )
            # half of them as implementations that show their stages are judged
            seen = ranges[option] if rng.integers(2) else _observed(bench, case, outputs, option)
            for key, out in (seen or ranges[option]).items():
                refused = out.refused(outputs[key])
                tally.compared += out.size
                tally.one_value += out.singles
                tally.widest = max(tally.widest, out.widest)
                if refused.any():
                    tally.stop(
                        "fail", _unsound(kernel, name, case, key, out, outputs, refused, choice)
                    )
                    return
            if tally.compared >= goal and turn >= 2 * len(CHOICES):
                break
        turn += 1


def _observed(
    bench: Bench, case: Case, outputs: Outputs, option: int
) -> dict[str, OutputRange] | None:
    """The range that continues from the stages among these outputs; None where nothing continues from one."""
    prepare = observing(bench.kernel, outputs) if bench.structure[0] else None
    if prepare is None:
        return None
    return case_range(bench.kernel, case, bench.options[option], prepare=prepare)


def _unsound(
    kernel: Kernel,
    name: str,
    case: Case,
    key: str,
    out: OutputRange,
    outputs: Outputs,
    refused: Array,
    choice: Choice,
) -> str:
    index = tuple(int(i) for i in np.argwhere(refused)[0])
    lo, hi, nan = out.ends(index)
    got = outputs[key][index]
    return (
        f"the range refuses {int(refused.sum())} sampled legal outputs on {name} rows ({case.label}, {choice}): "
        f"{key}{list(index)} got {int(got):#x} ({formats.decode(np.asarray([got]), out.fmt)[0]!r}), "
        f"allowed {int(lo):#x} .. {int(hi):#x}, nan {('no', 'may', 'only')[nan]}"
    )


def _audit(
    bench: Bench, cases: list[tuple[str, Case, list[dict[str, OutputRange]]]], tally: Tally
) -> None:
    """The 200-bit values, rounded at named points only, lie in the range."""
    kernel = bench.kernel
    left = AUDIT_OUTPUTS[bench.effort]
    for name, piece in _audited(bench, cases):
        if left <= 0:
            break
        problem = _audit_case(kernel, piece, bench.options[0])
        if problem:
            tally.stop(
                "fail",
                f"the 200-bit audit leaves the range on {name} rows ({piece.label}): {problem}",
            )
            return
        left -= _size(kernel, piece)
        tally.compared += _size(kernel, piece)


def _audited(
    bench: Bench, cases: list[tuple[str, Case, list[dict[str, OutputRange]]]]
) -> list[tuple[str, Case]]:
    """A few rows and columns of each case, those that are not too large; the smallest where all are."""
    kernel, outputs = bench.kernel, AUDIT_OUTPUTS[bench.effort]
    most = AUDIT_ELEMENTS.get(bench.effort)
    side = AUDIT_SIDE.get(bench.effort, 64) if _has_weight(kernel) else 0
    pieces: list[tuple[int, str, Case]] = []
    fitting: list[tuple[str, Case]] = []
    for name, case, _ in cases:
        rows = case.rows(kernel)
        each = max(1, size_of(case.shape) // max(1, rows))
        count = min(rows, max(1, min(outputs, 256) // each, side))
        piece = case if kernel.shares or count == rows else take_rows(kernel, case, slice(0, count))
        if side and not kernel.shares:
            piece = take_columns(kernel, piece, side)
        piece = _fewer_columns(kernel, piece, most)
        elements = sum(x.size for x in piece.operands.values())
        pieces.append((elements, name, piece))
        if _size(kernel, piece) <= 4 * outputs and (most is None or elements <= 2 * most):
            fitting.append((name, piece))
    return fitting or [min(pieces, key=lambda p: p[0])[1:]]


def _fewer_columns(kernel: Kernel, case: Case, most: int | None) -> Case:
    """The case with as many columns as keep its operands to `most` elements; whole where it has no column dim."""
    dim = kernel.contract.column_dim
    size = sum(x.size for x in case.operands.values())
    if most is None or dim is None or kernel.shares or size <= most:
        return case
    return take_columns(kernel, case, max(1, int(case.shape[dim]) * most // size))


def _has_weight(kernel: Kernel) -> bool:
    """Whether rows share an operand that has the columns and what they are summed over."""
    contract = kernel.contract
    return contract.column_dim is not None and any(
        contract.column_dim in o.dims
        and len(o.dims) > 1
        and not set(o.dims) & set(contract.row_dims)
        for o in kernel.inputs()
    )


def _size(kernel: Kernel, case: Case) -> int:
    return sum(
        int(np.prod([case.shape[d] for d in o.dims], dtype=np.int64)) for o in kernel.outputs()
    )


def _audit_case(kernel: Kernel, case: Case, options: Mapping[str, Any]) -> str:
    ranges = case_range(kernel, case, options)
    problems: list[str] = []

    def consume(operand: Any, place: tuple[slice, ...], value: Array) -> None:
        out = ranges[operand.name]
        lo, hi = (x[place] for x in (out.lo, out.hi))
        state = np.zeros(lo.shape, np.uint8) if out.nan is None else out.nan[place]
        exact = np.broadcast_to(value, lo.shape)
        nan = np.array([mpmath.isnan(x) for x in exact.ravel()], bool).reshape(lo.shape)
        problems.extend(
            f"{operand.name}{index.tolist()}: NaN, not allowed"
            for index in np.argwhere(nan & (state == 0))
        )
        numbers = np.array(
            [
                math.nan if bad else round_mpf(x, out.fmt)
                for x, bad in zip(exact.ravel(), nan.ravel(), strict=True)
            ]
        ).reshape(lo.shape)
        known = ~np.isnan(numbers)
        numbers = np.where(known, numbers, 0.0)
        inside = _within(numbers, lo, hi, out.fmt)
        # 200-bit numbers have one zero, so that of an infinity behind a division by it they do not know the sign
        # either; both signs are judged by the samples
        inside |= (numbers == 0) & (lo <= 0) & (hi >= -1)
        if np.isinf(numbers).any():
            inside |= np.isinf(numbers) & _within(-numbers, lo, hi, out.fmt)
        for index in map(tuple, np.argwhere(known & ~(inside & (state != 2))).tolist()):
            problems.append(
                f"{operand.name}{list(index)}: {float(numbers[index])!r} outside {lo[index]}..{hi[index]} (ordered integers)"
            )

    apply_reading(
        lambda: AuditReading(kernel.contract, kernel.profile), kernel, case, options, consume
    )
    return problems[0] if problems else ""


def _within(numbers: Array, lo: Array, hi: Array, fmt: formats.Format) -> Array:
    """Where values of the format lie between two ordered integers."""
    codes = to_codes(numbers, fmt)
    return np.asarray((lo <= codes) & (codes <= hi))


def _power(
    bench: Bench, cases: list[tuple[str, Case, list[dict[str, OutputRange]]]], tally: Tally
) -> None:
    """Share of outputs that leave their range, per point, option and parameter, and per input set."""
    kernel = bench.kernel
    lines, blind, dead = [], [], []
    for name, (about, outputs_of) in faults(kernel).items():
        shares = _shares(bench, cases, outputs_of)
        best = max(shares.values(), default=0.0)
        tally.power[name] = best
        reason = kernel.declared(kernel.profile.vacuous, name, about)
        lines.append(
            f"power of {name}: "
            + ", ".join(f"{gate} {100 * share:.3g} %" for gate, share in shares.items())
            + (f" (declared vacuous: {reason})" if reason else "")
        )
        if reason and best:
            dead.append(
                f"{name} is declared vacuous ({reason}), yet {100 * best:.3g} % of outputs show it; remove the declaration"
            )
        elif not best and not reason:
            blind.append(name)
    blind = _joint(bench, cases, blind, lines, tally)
    tally.notes += lines
    if dead:
        tally.stop("fail", "; ".join(dead))
    elif blind:
        tally.stop(
            "fail",
            f"no input shows {', '.join(blind)}: power 0 on every gate; add rows that show it, or declare it"
            " vacuous in the profile with the reason",
        )


def _joint(
    bench: Bench,
    cases: list[tuple[str, Case, list[dict[str, OutputRange]]]],
    blind: list[str],
    lines: list[str],
    tally: Tally,
) -> list[str]:
    """Points that are blind singly may hide each other: they are dropped together."""
    drops = [name for name in blind if name.startswith("drop-")]
    if len(drops) < 2:
        return blind
    kernel = bench.kernel
    change = Change(drop=frozenset(name.removeprefix("drop-") for name in drops))
    shares = _shares(bench, cases, lambda case: autocontrols.nominal(kernel, case, change=change))
    best = max(shares.values(), default=0.0)
    lines.append(f"power of {' with '.join(drops)} dropped together: {100 * best:.3g} %")
    for name in drops:
        tally.power[name] = best
    return [name for name in blind if name not in drops] if best else blind


def faults(kernel: Kernel) -> dict[str, tuple[str, Callable[[Case], Outputs]]]:
    """Everything that must have power: name -> (point, option or parameter, outputs with that fault)."""
    found: dict[str, tuple[str, Callable[[Case], Outputs]]] = {}
    for name, (point, change) in autocontrols.changes(kernel).items():
        found[name] = (point, _with_change(kernel, change))
    for name, (option, options) in autocontrols.other_options(kernel).items():
        found[name] = (option, _with_options(kernel, options))
    for name, (parameter, values) in autocontrols.other_parameters(kernel).items():
        found[name] = (parameter, _with_parameters(kernel, values))
    return found


def _with_change(kernel: Kernel, change: Change) -> Callable[[Case], Outputs]:
    return lambda case: autocontrols.nominal(kernel, case, change=change)


def _with_options(kernel: Kernel, options: dict[str, Any]) -> Callable[[Case], Outputs]:
    return lambda case: autocontrols.nominal(kernel, case, options=options)


def _with_parameters(kernel: Kernel, values: dict[str, str]) -> Callable[[Case], Outputs]:
    return lambda case: autocontrols.nominal(kernel, case, parameters=values)


def _shares(
    bench: Bench,
    cases: list[tuple[str, Case, list[dict[str, OutputRange]]]],
    outputs_of: Callable[[Case], Outputs],
) -> dict[str, float]:
    out: dict[str, int] = {}
    total: dict[str, int] = {}
    observed: set[str] = set()
    for name, case, ranges in cases:
        if bench.effort == "quick" and any(out.values()):
            # that there is power is all that is asked for
            break
        if name in observed and out[name]:
            # ranges that continue from observed stages are computed anew for every fault: until one shows it
            continue
        outputs = outputs_of(case)
        seen = [_observed(bench, case, outputs, k) for k in range(len(ranges))]
        if any(one is not None for one in seen):
            observed.add(name)
            ranges = [one or other for one, other in zip(seen, ranges, strict=True)]
        # a launch is refused only if every alternative refuses it
        refused = min(
            sum(int(r.refused(outputs[key]).sum()) for key, r in option.items())
            for option in ranges
        )
        out[name] = out.get(name, 0) + refused
        total[name] = total.get(name, 0) + sum(r.size for r in ranges[0].values())
    return {name: out[name] / total[name] for name in total if total[name]}
