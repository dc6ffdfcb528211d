"""What `contract identify` prints and writes as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contract import diagnose
from contract.identify import fit as fits
from contract.identify.fit import ENOUGH, Apart, Fit, Probe
from contract.identify.found import Found
from contract.identify.paste import code
from contract.ranges import refusals

#: Hypotheses of one kind that are named before they are only counted.
NAMED = 6


def percent(share: float) -> str:
    """A share in per cent, never rounded up to all of them."""
    shown = f"{100 * share:.3f}"
    return f"{shown if share == 1 or shown != '100.000' else '99.999'} %"


def lines(found: Found, target: str, engine: str) -> list[str]:
    """The outcome for one signature."""
    head = found.signature.words()
    if found.fault:
        return [f"{head}: no explanation: {found.fault}"]
    if found.not_taken:
        why = "it raised " if found.raised else ""
        return [f"{head}: not taken: {why}{found.not_taken}"]
    said = [f"{head}:", *(f"  {line}" for line in _body(found))]
    pasted = code(found, target, engine)
    if pasted:
        said += ["  to paste:", "", *(f"    {line}".rstrip() for line in pasted.splitlines())]
    return said


def _body(found: Found) -> list[str]:
    said = [found.binding.words()] if found.binding is not None else []
    if found.best is None or found.confirmed is None:
        return [*said, "no explanation: no hypothesis has ranges for these outputs"]
    best, other = found.best, found.confirmed
    words = best.hypothesis.words()
    counts = f"{found.tried:,} hypotheses, {found.compared:,} outputs"
    shares = (
        f"{percent(other.share)} of the bits explained on inputs not used for the fit"
        f" ({percent(best.share)} on those that were; {counts})"
    )
    if found.far:
        return [
            *said,
            "no explanation: far from every hypothesis of this contract, probably another formula or another kernel",
            f"the least far explains {percent(other.share)} of the bits ({counts}): {words}",
            *(f"  {line}" for line in refused(found)),
            *found.notes,
        ]
    if found.explained:
        said += [f"best explanation: {words}", f"  {shares}", f"  {_width(best)}"]
    else:
        said += [
            f"no explanation: nothing explains {percent(ENOUGH)} of the bits",
            f"the nearest: {words}",
            f"  {shares}",
        ]
    said += [f"  {line}" for line in refused(found)]
    if found.alike:
        said.append(f"no input tells it apart from: {_named([h.words() for h in found.alike])}")
    if found.also:
        said.append(
            f"explain no less, with other ranges: {_named([f.hypothesis.words() for f in found.also])}"
        )
    if found.runner_up is not None and found.runner_up_confirmed is not None:
        runner, confirmed = found.runner_up, found.runner_up_confirmed
        said.append(
            f"runner-up: {runner.hypothesis.words()}: {percent(confirmed.share)} ({percent(runner.share)})"
        )
    if found.apart is not None:
        said += _apart(found, found.apart)
    exact = [name for name, share in found.readings.items() if share == 1.0]
    if exact and len(exact) < len(found.readings):
        said.append(f"of narrower readings of the contract its outputs fit: {_named(exact)}")
    if found.explained and best.hypothesis.every:
        said.append(
            "no code to paste: a profile rounds at the points of the reference, not at every step"
        )
    return [*said, *found.notes]


def _named(names: Sequence[str]) -> str:
    more = f"; and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more


def _width(fit: Fit) -> str:
    return f"it allows {2.0**fit.width:.3g} values for an output, in the geometric mean"


def refused(found: Found) -> list[str]:
    """How many outputs the best hypothesis does not allow, the first of them and what it was computed from; none: []."""
    if not found.refused:
        return []
    assert found.best is not None
    assert found.confirmed is not None
    verdicts = (*found.best.verdicts, *found.confirmed.verdicts)
    probe = next(p for p, v in zip(found.probes, verdicts, strict=True) if v.refused.any())
    ranges = fits.ranges_of(found.best.hypothesis, probe)
    assert ranges is not None
    shown = diagnose.element_lines(
        found.best.hypothesis.kernel,
        probe.case,
        probe.outputs,
        ranges,
        refusals(ranges, probe.outputs),
    )
    counts = f"{found.refused:,} of {found.compared:,} outputs"
    return [f"{counts} are refused, the first: {shown[0]}", *shown[1:]]


def _apart(found: Found, apart: Apart) -> list[str]:
    assert found.best is not None
    other = found.runner_up or found.also[0]
    bits, best = _element(found.best, apart.probe, apart)
    _, theirs = _element(other, apart.probe, apart)
    place = ", ".join(map(str, apart.index))
    told = "told apart first by" if apart.refused else "they differ first at"
    operands = "; ".join(
        diagnose.operand_line(other.hypothesis.kernel, apart.probe.case, o.name)
        for o in other.hypothesis.kernel.inputs()
    )
    name = "the runner-up" if found.runner_up is not None else "the other"
    first = (
        f"{told} {apart.probe.case.label}, {apart.output}[{place}]: got {bits}, the best allows {best},"
        f" {name} {theirs}"
    )
    return [first, f"  operands: {operands}"]


def _element(fit: Fit, probe: Probe, apart: Apart) -> tuple[str, str]:
    ranges = fits.ranges_of(fit.hypothesis, probe)
    assert ranges is not None
    out = ranges[apart.output]
    lo, hi, nan = out.ends(apart.index)
    got = probe.outputs[apart.output][apart.index]
    return diagnose.shown(got, out.fmt), diagnose.allowed(lo, hi, nan, out)


def as_json(
    results: Sequence[Found], target: str, kernel: str, engine: str, seed: int
) -> dict[str, Any]:
    """The whole outcome as JSON values."""
    return {
        "target": target,
        "kernel": kernel,
        "engine": engine,
        "seed": seed,
        "enough": ENOUGH,
        "explained": exit_code(results) == 0,
        "signatures": [_signature(found, target, engine) for found in results],
    }


def _signature(found: Found, target: str, engine: str) -> dict[str, Any]:
    said: dict[str, Any] = {
        "operands": found.signature.words(),
        "not_taken": found.not_taken,
        "raised": found.raised,
        "fault": found.fault,
        "explained": found.explained,
        "refused": found.refused,
    }
    if found.best is None or found.confirmed is None or found.binding is None:
        return said
    return {
        **said,
        "binding": found.binding.as_json(),
        "fixed": list(found.binding.fixed),
        "best": _hypothesis(found.best),
        "share_confirmed": found.confirmed.share,
        "alike": [h.words() for h in found.alike],
        "wider": [_hypothesis(f) for f in found.also],
        "far": found.far,
        "runner_up": None if found.runner_up is None else _hypothesis(found.runner_up),
        "runner_up_share_confirmed": (
            None if found.runner_up_confirmed is None else found.runner_up_confirmed.share
        ),
        "apart": None if found.apart is None else _apart(found, found.apart),
        "tried": found.tried,
        "compared": found.compared,
        "readings": found.readings,
        "notes": found.notes,
        "code": code(found, target, engine),
    }


def _hypothesis(fit: Fit) -> dict[str, Any]:
    h = fit.hypothesis
    return {
        "words": h.words(),
        "profile": h.base.name,
        "declared": h.declared,
        "changes": list(h.changes),
        "parameters": dict(h.kernel.parameters),
        "every_step": h.every,
        "points": dict(h.kernel.profile.points),
        "modes": dict(h.kernel.profile.modes),
        "orders": {name: str(order) for name, order in h.kernel.profile.orders.items()},
        "options": {key: str(value) for key, value in h.options.items()},
        "scalars": dict(h.scalars),
        "share": fit.share,
        "log2_width": fit.width,
    }


def exit_code(results: Sequence[Found]) -> int:
    """0 where at least one signature is taken, and all outputs of those that are taken are explained; 1 else."""
    taken = [found for found in results if found.taken]
    return 0 if taken and all(found.clean for found in taken) else 1


def summary(results: Sequence[Found], target: str, kernel: str) -> str:
    """The last line: what the black box is, and which of its outputs say otherwise."""
    taken = [found for found in results if found.taken]
    explained = [found for found in taken if found.explained]
    raised = [found for found in results if found.raised]
    if not taken and raised:
        sets = "all" if len(raised) == len(results) else f"{len(raised)} of"
        rest = "" if len(raised) == len(results) else ", and takes none of the others"
        return (
            f"no answer: {target} raised an exception with {sets} {len(results)} sets of operands{rest};"
            f" the first: {raised[0].not_taken}"
        )
    if not taken:
        return f"{target} is no {kernel}: it takes none of {len(results)} sets of operands"
    if len(explained) < len(taken):
        return f"no explanation for {len(taken) - len(explained)} of {len(taken)} sets of operands that it takes"
    said = dict.fromkeys(_named_with_refused(found) for found in explained)
    return f"{target} is {kernel}: {'; '.join(said)}"


def _named_with_refused(found: Found) -> str:
    assert found.best is not None
    name = found.best.hypothesis.words()
    return name if found.clean else f"{name}, but {refused(found)[0]}"
