"""What `contract identify` finds out about a black box under one signature, and how: target called, hypotheses ranked,
the best confirmed on inputs that it was not chosen on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from contract.case import Case, Kernel
from contract.declare import Launch
from contract.endpoints import Freedom
from contract.errors import UsageError
from contract.identify import fit as fits
from contract.identify.binding import Binding, candidates
from contract.identify.every_step import every_step
from contract.identify.fit import ENOUGH, NEAR, Fit, Probe
from contract.identify.hypotheses import Hypothesis, Signature, first_round, order_words
from contract.identify.target import BINDING, NAME
from contract.judge import Subject
from contract.orders import Tree
from contract.worker import Worker

#: What happened to the process of a black box, which is nothing that it computes.
FAULTS = ("crash", "timeout", "out_of_memory")
#: Elements of the probes on which narrower readings of the explanation are looked at.
READ_PROBES = 4


@dataclass(frozen=True)
class Asked:
    """What the user wants to know.

    Attributes:
        target: package.module:name, file.py:name or model.onnx.
        arguments: argument of the black box -> expression.
        scalars: scalar of the contract -> the value that the black box uses.
        engine: what runs it.
        seed: of the inputs that the explanation is chosen on; those it is confirmed on have the next one.
    """

    target: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    engine: str = "host"
    seed: int = 0


@dataclass
class Found:
    """The outcome for one signature.

    Attributes:
        not_taken: why the black box is no kernel of these operands, or "".
        raised: whether that is what it raised, every way that it was called.
        fault: how its process ended, or "".
        best: the best hypothesis on the inputs it was chosen on, confirmed: the same on the others.
        alike: hypotheses with the same ranges on all inputs; also: others that refuse nothing that the best
            allows.
        runner_up: the next one that refuses something, runner_up_confirmed: the same on the other inputs.
        tried, compared: hypotheses, and output elements of both halves.
        readings: narrower reading of the explanation -> the share that it explains.
    """

    signature: Signature
    not_taken: str = ""
    raised: bool = False
    fault: str = ""
    binding: Binding | None = None
    best: Fit | None = None
    confirmed: Fit | None = None
    alike: list[Hypothesis] = field(default_factory=list)
    also: list[Fit] = field(default_factory=list)
    runner_up: Fit | None = None
    runner_up_confirmed: Fit | None = None
    apart: fits.Apart | None = None
    tried: int = 0
    compared: int = 0
    readings: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    probes: Sequence[Probe] = ()

    @property
    def taken(self) -> bool:
        return not self.not_taken

    @property
    def share(self) -> float:
        """Share of the output bits that the best hypothesis explains, on the half where it explains fewer."""
        if self.best is None or self.confirmed is None:
            return 0.0
        return min(self.best.share, self.confirmed.share)

    @property
    def explained(self) -> bool:
        """Whether the best hypothesis explains enough of the bits on both halves of the inputs."""
        return self.share >= ENOUGH

    @property
    def far(self) -> bool:
        """Whether no hypothesis comes near."""
        return self.share < NEAR

    @property
    def refused(self) -> int:
        """Outputs of both halves that the best hypothesis does not allow."""
        return sum(fit.refused for fit in (self.best, self.confirmed) if fit is not None)

    @property
    def clean(self) -> bool:
        """Whether it is explained to the last output: a share of them may be one wrong element in each call."""
        return self.explained and not self.refused


def look(
    signature: Signature,
    asked: Asked,
    worker: Worker,
    facts_of: Callable[[Kernel, Case], dict[str, Any]],
) -> Found:
    """Find out what the black box computes of operands of this signature.

    Args:
        worker: has the black box registered (contract.identify.target).
        facts_of: asks the black box what it takes.
    """
    found = Found(signature)
    kernel = signature.first
    halves = [
        [fits.with_scalars(kernel, case, asked.scalars) for case in fits.chosen_cases(signature, s)]
        for s in (asked.seed, asked.seed + 1)
    ]
    facts = facts_of(kernel, _distinct(kernel, halves[0]))
    if facts.get("fault"):
        found.fault = facts["fault"]
        return found
    if facts["refused"]:
        found.not_taken = facts["refused"]
        return found
    if facts["unknown"]:
        raise UsageError(f"--arg {facts['unknown'][0]}: {asked.target} has no such argument")
    subject = _subject(kernel, asked, worker)
    _bind(found, subject, facts, asked, halves[0])
    if found.binding is None:
        return found
    probes = [_probes(found, subject, cases) for cases in halves]
    if found.fault or found.not_taken:
        return found
    scalars = fits.fixed_scalars(kernel, found.binding.fixed, asked.scalars, facts["numbers"])
    listed = first_round(signature, scalars)
    found.notes += listed.notes
    hypotheses = [*listed.hypotheses, *every_step(signature, scalars)]
    _compare(found, hypotheses, probes[0], probes[1])
    return found


def _distinct(kernel: Kernel, cases: Sequence[Case]) -> Case:
    """The case whose dims have the most different sizes: a guess that fits one by chance fails there."""
    return max(cases, key=lambda case: len({case.shape[d] for d in case.shape}))


def _subject(kernel: Kernel, asked: Asked, worker: Worker) -> Subject:
    from contract.engines import UNNAMED

    label = NAME if asked.engine in UNNAMED else f"{NAME}+{asked.engine}"
    target = {"kind": "implementation", "name": label, "profile": kernel.profile.name, "module": ""}
    return Subject(kernel, target, worker, engine=asked.engine)


def _launch(binding: Binding) -> Launch:
    return Launch("plain", arguments={BINDING: binding.as_json()})


def _bind(
    found: Found, subject: Subject, facts: Mapping[str, Any], asked: Asked, cases: Sequence[Case]
) -> None:
    """Find the first way to call it that gives outputs of the right shape and format."""
    case = _distinct(subject.kernel, cases)
    ways, why = candidates(subject.kernel, facts, asked.arguments, case.shape)
    if not ways:
        found.not_taken = why
        return
    said, found.raised = "", True
    for way in ways:
        outcome, detail, _, _ = subject.call(case, _launch(way))
        if not outcome:
            found.binding, found.raised = way, False
            return
        found.raised = found.raised and outcome == "crash"
        if outcome in ("timeout", "out_of_memory") or "signal" in detail:
            found.fault = f"{outcome.replace('_', ' ')}: {detail} ({case.label})"
            return
        said = said or detail
    found.not_taken = said


def _probes(found: Found, subject: Subject, cases: Sequence[Case]) -> list[Probe]:
    """What it gives for each case; the first call that gives nothing is told."""
    assert found.binding is not None
    probes = []
    for case in cases:
        outcome, detail, _, outputs = subject.call(case, _launch(found.binding))
        if outcome:
            found.fault = f"{outcome.replace('_', ' ')}: {detail} ({case.label})"
            return []
        probes.append(Probe(case, outputs))
    return probes


def _compare(
    found: Found,
    hypotheses: Sequence[Hypothesis],
    chosen: Sequence[Probe],
    others: Sequence[Probe],
) -> None:
    ranked, found.tried = fits.ranked(found.signature, hypotheses, chosen)
    if not ranked:
        return
    found.best = ranked[0]
    found.confirmed = fits.on(found.best.hypothesis, others)
    found.probes = (*chosen, *others)
    found.compared = found.best.compared + (found.confirmed.compared if found.confirmed else 0)
    if found.confirmed is None:
        return
    if found.far:
        # which of two that explain next to nothing comes closer says nothing
        return
    both = _joined(found.best, found.confirmed)
    for one in ranked[1:]:
        if one.ranges == found.best.ranges:
            second = fits.on(one.hypothesis, others)
            if second is not None and second.ranges == found.confirmed.ranges:
                found.alike.append(one.hypothesis)
                continue
        if not _refuses(one, found.best):
            found.also.append(one)
        elif found.runner_up is None:
            found.runner_up_confirmed = fits.on(one.hypothesis, others)
            found.runner_up = None if found.runner_up_confirmed is None else one
    against, second = found.runner_up, found.runner_up_confirmed
    if against is None and found.also:
        against = found.also[0]
        second = fits.on(against.hypothesis, others)
    if against is not None and second is not None:
        found.apart = fits.apart(both, _joined(against, second), found.probes)
    if found.explained:
        found.readings = _readings(found.best.hypothesis, chosen[:READ_PROBES])


def _joined(a: Fit, b: Fit) -> Fit:
    return Fit(a.hypothesis, [*a.verdicts, *b.verdicts])


def _refuses(one: Fit, best: Fit) -> bool:
    """Whether it refuses an output that the best allows."""
    return any(
        bool((theirs.refused & ~mine.refused).any())
        for theirs, mine in zip(one.verdicts, best.verdicts, strict=True)
    )


def _readings(best: Hypothesis, probes: Sequence[Probe]) -> dict[str, float]:
    """Which of the contract's freedoms it uses, as far as its outputs show: reading -> share explained.

    Every unnamed step in fp32, subnormals kept or flushed; on top of the kept or flushed one that explains more,
    multiply-adds fused or not, and each sum in one order. Only readings that allow less than the contract are listed.
    """
    whole = fits.on(best, probes)
    if whole is None:
        return {}
    found: dict[str, float] = {}
    names: dict[str, Callable[[Any], None]] = {
        "every step in fp32, subnormals kept": _set(Freedom(wide=False, ftz=False), "either"),
        "every step in fp32, subnormals flushed": _set(Freedom(wide=False, ftz=True), "either"),
    }
    for flush in (False, True):
        for either, words in (("no", "separate"), ("yes", "fused")):
            how = "flushed" if flush else "kept"
            names[f"multiply-adds {words}, subnormals {how}"] = _set(
                Freedom(wide=False, ftz=flush), either
            )
    for name, setup in names.items():
        one = fits.on(best, probes, setup)
        if one is not None and one.ranges != whole.ranges:
            found[name] = one.share
    for name, varied in _ordered(best):
        one = fits.on(varied, probes)
        if one is not None and one.ranges != whole.ranges:
            found[name] = one.share
    return found


def _set(free: Freedom, either: str) -> Callable[[Any], None]:
    def setup(reading: Any) -> None:
        reading.free, reading.either = free, either

    return setup


def _ordered(best: Hypothesis) -> list[tuple[str, Hypothesis]]:
    from contract import autocontrols

    kernel = best.kernel
    used, _, _ = autocontrols.uses(Kernel(kernel.contract, kernel.parameters, best.base))
    found = []
    for name, bound in used.items():
        if not bound.startswith(("sum:", "dot:")) or name in kernel.profile.orders:
            continue
        trees = [Tree("sequential"), Tree("pairwise")]
        trees += [Tree("sequential", fused="yes")] if bound.startswith("dot:") else []
        for tree in trees:
            profile = replace(kernel.profile, orders={**kernel.profile.orders, name: tree})
            varied = replace(best, kernel=Kernel(kernel.contract, kernel.parameters, profile))
            fused = ", fused" if tree.fused == "yes" else ""
            found.append((f"`{name}` {order_words(tree)}{fused}", varied))
    return found
