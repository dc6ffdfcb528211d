"""Judging one target (an implementation or a control) on the cases of a kernel.

A `Bench` holds a kernel's input sets with their ranges, each computed once and shared by all targets judged on it.
A `Subject` is the target with the worker that runs it. Gates (contract.gates) are functions of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from contract import autocontrols, captured, inputs
from contract.bits import Digests, case_digest
from contract.case import Case, Kernel
from contract.declare import Launch
from contract.engines import ENGINES, HOST
from contract.interval import Array
from contract.ranges import OutputRange, case_range, option_sets
from contract.sketch import Sketch
from contract.stages import joint_refused, not_shown, observing, structure
from contract.worker import Reply, Worker

PLAIN = Launch("plain")
#: Approximate instructions at the ends of their documented bounds, where an engine models them.
ENDS = (Launch("approximate-low", skew=-1), Launch("approximate-high", skew=1))
#: Blocks of a grid that synchronise, one after the other and in reverse, where an engine chooses.
TURNS = (Launch("blocks-in-turn", blocks="in_turn"), Launch("blocks-reversed", blocks="reversed"))
#: A call that is recorded into a graph and replayed, where an engine can.
GRAPH = Launch("cuda-graph", graph=True)
# Elements of a case that is called some twenty times.
SMALL = 1 << 17
# A fault that no one of these shapes and 512 drawn rows shows is not one that a control may be planted for.
CONTROL_SHAPES = 6
CONTROL_BLOCKS = 8
# A legal variant that is refused is refused early: the widths of stress and exact rows are the ones that matter.
GREEN_CASES = {"shapes": 2, "stress": 1, "exact": 1}
#: How many of the first shapes, and exact sets, are run with every launch; nightly runs all.
EVERY_LAUNCH = {"shapes": {"quick": 1, "default": 2}, "exact": {"quick": 0, "default": 2}}
Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class Failure:
    """A case that was refused, as it was seen."""

    gate: str
    case: Case
    launch: Launch
    outputs: Outputs
    options: Mapping[str, Any]
    message: str = ""


@dataclass
class Tally:
    """What a gate saw; `empty` where it failed because it had nothing to compare, `captured` rows among what it compared."""

    compared: int = 0
    refused: int = 0
    one_value: int = 0
    widest: float = 0.0
    notes: list[str] = field(default_factory=list)
    failure: Failure | None = None
    outcome: str = ""
    detail: str = ""
    measured: dict[str, int] = field(default_factory=dict)
    # what a record of compiled kernels would hold
    recorded: list[dict[str, Any]] = field(default_factory=list)
    power: dict[str, float] = field(default_factory=dict)
    empty: bool = False
    captured: int = 0
    digests: Digests = field(default_factory=Digests)
    sketch: Sketch | None = None

    def stop(self, outcome: str, detail: str) -> Tally:
        self.outcome, self.detail = outcome, detail
        return self


class Bench:
    """Input sets and ranges of one kernel at one effort and seed."""

    def __init__(
        self,
        kernel: Kernel,
        effort: str,
        seed: int,
        stored: list[Case] | None = None,
        store_root: Path | None = None,
    ):
        self.kernel, self.effort, self.seed = kernel, effort, seed
        self.stored, self.store_root = stored or [], store_root
        self.options = option_sets(kernel)
        self._sets: dict[str, list[Case]] = {}
        self._ranges: dict[tuple[str, int, int, str], dict[str, OutputRange]] = {}
        self._digests: dict[tuple[str, int], str] = {}
        self.exact_candidates = 0
        # whether the check that is judged wants its outputs drawn
        self.sketches = False

    @cached_property
    def structure(self) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
        """The points that each stage shows, and the names of shared values."""
        return structure(self.kernel)

    def cases(self, name: str) -> list[Case]:
        """The cases of 'shapes', 'captured', 'stress' or 'exact'."""
        if name not in self._sets:
            if name == "shapes":
                shapes = inputs.shape_list(self.kernel, self.effort)
                self._sets[name] = [
                    inputs.typical_case(self.kernel, s, self.seed, i) for i, s in enumerate(shapes)
                ]
            elif name == "captured":
                root = self.store_root
                self._sets[name] = [] if root is None else captured.read(root, self.kernel)
            elif name == "limits":
                self._sets[name] = [
                    inputs.typical_case(
                        self.kernel, self.kernel.sized(self.kernel.contract.shapes[0]), 0
                    )
                ]
            elif name == "stress":
                self._sets[name] = [
                    *self.stored,
                    *inputs.stress_cases(self.kernel, self.effort, self.seed),
                ]
            else:
                found, self.exact_candidates = inputs.exact_cases(self.kernel, self.seed)
                self._sets[name] = [case for case, _ in found]
                for index, (_, ranges) in enumerate(found):
                    for option, one in enumerate(ranges):
                        self._ranges[self._key(name, index, option, None)] = one
        return self._sets[name]

    def digest(self, name: str, index: int) -> str:
        """The digest of one case's inputs."""
        key = name, index
        if key not in self._digests:
            self._digests[key] = case_digest(self.kernel, self.cases(name)[index])
        return self._digests[key]

    def small_cases(self) -> list[Case]:
        """Up to three cases of declared shapes that are cheap to call often, those with several rows first; the
        smallest where none is cheap."""
        cases = self.cases("shapes")
        sizes = [max((x.size for x in case.operands.values()), default=0) for case in cases]
        small = [case for case, size in zip(cases, sizes, strict=True) if size <= SMALL]
        if not small:
            return [cases[sizes.index(min(sizes))]]
        # stable: several rows show what one row cannot, and among equals the order of the shapes stays
        return sorted(small, key=lambda case: case.rows(self.kernel) < 2)[:3]

    @staticmethod
    def _key(
        name: str, index: int, option: int, depths: Mapping[str, int] | None
    ) -> tuple[str, int, int, str]:
        return name, index, option, repr(sorted((depths or {}).items()))

    def range(
        self,
        name: str,
        index: int,
        option: int = 0,
        depths: Mapping[str, int] | None = None,
        outputs: Outputs | None = None,
    ) -> dict[str, OutputRange]:
        """The range of one case under one combination of options; kept for the next target.

        `outputs`: whose observed stages the range continues from; then it is theirs alone, and not kept.
        """
        # a stage from which nothing continues leaves the ranges as they are
        prepare = observing(self.kernel, outputs) if outputs and self.structure[0] else None
        if prepare is not None:
            case = self.cases(name)[index]
            return case_range(self.kernel, case, self.options[option], depths, prepare=prepare)
        key = self._key(name, index, option, depths)
        if key not in self._ranges:
            self._ranges[key] = case_range(
                self.kernel, self.cases(name)[index], self.options[option], depths
            )
        return self._ranges[key]


class Subject:
    """One target and how to call it; an automatic control has no worker."""

    def __init__(
        self,
        kernel: Kernel,
        target: Mapping[str, Any],
        worker: Worker | None,
        *,
        depths: Mapping[str, int] | None = None,
        launches: tuple[Launch, ...] = (),
        seed: int = 0,
        repeatable: bool = True,
        invariant: tuple[str, ...] = (),
        in_place: bool = False,
        engine: str = HOST,
        nominal: str = "",
    ):
        self.kernel, self.target, self.worker = kernel, target, worker
        self.engine, self.nominal = engine, nominal
        self.depths, self.launches, self.seed = dict(depths or {}), launches, seed
        self.repeatable, self.invariant, self.in_place = repeatable, invariant, in_place
        self.automatic = target["kind"] == "auto"
        self.control = target["kind"] != "implementation"
        # whether it left the worker another than it found it
        self.touched = False
        # what the engine said of how it was compiled, whether it executed approximate instructions, and whether blocks of
        # a grid answered to each other
        self.compiled: dict[str, None] = {}
        self.approximate = self.communicates = False
        self.configurations = 1
        # of an autotuned kernel: place -> that configuration in words
        self.configured: dict[int, str] = {}
        # what it said of launches that are good
        self.notes: dict[str, None] = {}

    def evidence(self) -> tuple[str, ...]:
        """With what its code was compiled, for what, and at which results of approximate instructions and in which turns of
        its blocks it was judged."""
        how = ""
        if self.approximate:
            how = f"; approximate instructions at their nominal results ({self.nominal})"
            how = (
                how
                if self.nominal
                else "; approximate instructions at both ends of their bounds, too"
            )
        if self.communicates:
            how += "; blocks together, one after the other, and reversed"
        return tuple(text + how for text in self.compiled)

    def close(self) -> None:
        """End its worker, if it has one; the next call starts another."""
        if self.worker is not None:
            self.worker.close()

    def chosen(self, bench: Bench, name: str) -> list[tuple[int, Case]]:
        """The cases of a gate with their places; controls see the smallest shapes and the first stress blocks, which
        come first in any case: what they must show does not need a real model's width."""
        if name == "captured" and self.control:
            return []
        cases = list(enumerate(bench.cases(name)))
        if not self.control:
            return cases
        limits = {"shapes": CONTROL_SHAPES, "stress": CONTROL_BLOCKS}
        if self.target["name"].startswith("green."):
            limits = dict.fromkeys(GREEN_CASES, 1) if bench.effort == "quick" else GREEN_CASES
        limit = limits.get(name, len(cases))
        # rows that failed once are replayed beside the drawn ones, not in their place
        return cases[: limit + len(bench.stored) if name == "stress" else limit]

    def launches_at(self, bench: Bench, name: str, index: int) -> Iterator[Launch]:
        """The launches of a case: all on the first shapes and exact sets, the plain one on the others; after them the
        other configurations of an autotuned kernel, and the ends of the bounds where a call executed approximate
        instructions; those other turns of the blocks where they answer to each other."""
        every = EVERY_LAUNCH[name].get(bench.effort, index + 1) if name in EVERY_LAUNCH else 0
        yield from self.launches if index < every else (PLAIN,)
        for place in range(1, self.configurations):
            yield Launch(f"configuration-{place}", configuration=place)
        if self.approximate and not self.nominal:
            yield from ENDS
        if self.communicates:
            yield from TURNS

    def told(self, launch: Launch) -> str:
        """The launch in words: its name, and of an autotuned kernel the configuration."""
        words = self.configured.get(launch.configuration)
        return f"{launch.name} ({words})" if words else launch.name

    def payload(self, case: Case, launch: Launch, poison: str) -> dict[str, Any]:
        return {
            "kernel": self.kernel.contract.name,
            "profile": self.kernel.profile.name,
            "parameters": dict(self.kernel.parameters),
            "target": dict(self.target),
            "shape": dict(case.shape),
            "scalars": dict(case.scalars),
            "seed": self.seed,
            "poison": poison,
            "launch": {
                "name": launch.name,
                "layout": launch.layout,
                "batch": launch.batch,
                "threads": launch.threads,
                "arguments": dict(launch.arguments),
                "skew": launch.skew,
                "configuration": launch.configuration,
                "graph": launch.graph,
                "blocks": launch.blocks,
            },
        }

    def asked(self, payload: Mapping[str, Any], case: Case) -> Reply:
        """The worker's reply to a call."""
        assert self.worker is not None
        return self.worker.call(f"{ENGINES[self.engine]}:run", payload, dict(case.operands))

    def call(
        self, case: Case, launch: Launch = PLAIN, poison: str = "finite", *, twice: bool = False
    ) -> tuple[str, str, dict[str, Any], Outputs]:
        """(outcome, detail, report, outputs): outcome '' where outputs can be compared.

        `twice`: a call on zeros follows, which must leave the first result as it is.
        """
        if self.automatic:
            # the reference's own arithmetic, which this process trusts, and which leaves nothing behind
            return "", "", {}, autocontrols.run(self.kernel, self.target["name"], case, self.seed)
        reply = self.asked({**self.payload(case, launch, poison), "twice": twice}, case)
        if reply.outcome != "ok":
            outcome = "crash" if reply.outcome == "exception" else reply.outcome
            return outcome, reply.detail, {}, {}
        self.touched = self.touched or bool(reply.payload.get("touched"))
        self.approximate = self.approximate or bool(reply.payload.get("approximate"))
        self.communicates = self.communicates or bool(reply.payload.get("communicates"))
        self.configurations = max(self.configurations, int(reply.payload.get("configurations", 1)))
        if reply.payload.get("configured"):
            self.configured[launch.configuration] = str(reply.payload["configured"])
        self.compiled.update(dict.fromkeys(reply.payload.get("compiled", ())))
        self.notes.update(dict.fromkeys(reply.payload.get("notes", ())))
        if reply.payload.get("not_run"):
            return "not_run", str(reply.payload["not_run"]), dict(reply.payload), {}
        if reply.payload.get("bad"):
            # a control that is no kernel shows no fault: it must not pass for red
            outcome = "crash" if self.control and reply.payload.get("unfit") else "fail"
            return outcome, str(reply.payload["bad"]), dict(reply.payload), {}
        for key, wrote in (("changed", "wrote to its input"), ("around", "wrote outside operand")):
            if reply.payload.get(key):
                return "fail", f"{wrote} {', '.join(reply.payload[key])}", dict(reply.payload), {}
        expected = {o.name: tuple(case.shape[d] for d in o.dims) for o in self.kernel.outputs()}
        for operand in self.kernel.outputs():
            got = reply.arrays.get(operand.name)
            if got is None and operand.stage:
                continue
            if (
                got is None
                or got.shape != expected[operand.name]
                or got.dtype != self.kernel.format(operand).storage
            ):
                return "crash", f"the worker's answer lacks output {operand.name}", {}, {}
        return "", "", dict(reply.payload), reply.arrays


def compare(
    bench: Bench,
    subject: Subject,
    name: str,
    index: int,
    launch: Launch,
    outputs: Outputs,
    tally: Tally,
    alive: set[int],
) -> bool:
    """Judge one launch; alternatives that fail are struck from `alive`. Returns whether one is left."""
    if subject.repeatable and not subject.control:
        tally.digests.add(bench.kernel, bench.digest(name, index), launch.name, outputs)
    best: tuple[int, int] | None = None
    stay: set[int] = set()
    read: dict[int, dict[str, OutputRange]] = {}
    for option in sorted(alive):
        ranges = _shown(bench.range(name, index, option, subject.depths, outputs), outputs)
        read[option] = ranges
        refused = sum(int(out.refused(outputs[key]).sum()) for key, out in ranges.items())
        refused = refused or _jointly(bench, subject, name, index, option, outputs)
        if not refused:
            stay.add(option)
        if best is None or refused < best[0]:
            best = (refused, option)
    assert best is not None
    ranges = read[best[1]]
    hidden = not_shown(bench.structure[0], outputs)
    if hidden and (note := f"not shown: {', '.join(hidden)}") not in tally.notes:
        tally.notes.append(note)
    if bench.sketches and (launch.name == PLAIN.name or not stay):
        tally.sketch = tally.sketch or Sketch()
        tally.sketch.add(
            bench.kernel,
            bench.cases(name)[index],
            ranges,
            outputs,
            bench.options[best[1]],
            failed=not stay,
        )
    for out in ranges.values():
        tally.compared += out.size
        tally.one_value += out.singles
        tally.widest = max(tally.widest, out.widest)
    if stay:
        alive.intersection_update(stay)
        return True
    tally.refused += best[0]
    case = bench.cases(name)[index]
    tally.failure = Failure(name, case, launch, dict(outputs), bench.options[best[1]])
    total = sum(out.size for out in ranges.values())
    where = f"{case.label}, launch {subject.told(launch)}"
    if len(bench.options) > 1:
        where += f", no listed alternative explains all outputs (nearest: {bench.options[best[1]]})"
    tally.stop("fail", f"{best[0]:,} of {total:,} outputs are not allowed ({where})")
    return False


def judge_set(
    bench: Bench, subject: Subject, name: str, tally: Tally, alive: set[int]
) -> Iterator[Case]:
    """Judge every launch of every chosen case of a set, and yield each case when it is done; ends early where one is
    refused or does not run, which `tally` then tells."""
    for index, case in subject.chosen(bench, name):
        for launch in subject.launches_at(bench, name, index):
            outcome, detail, _, outputs = subject.call(case, launch)
            if outcome:
                tally.stop(outcome, f"{detail} ({case.label}, launch {subject.told(launch)})")
                return
            if not compare(bench, subject, name, index, launch, outputs, tally, alive):
                return
        yield case


def _shown(ranges: dict[str, OutputRange], outputs: Outputs) -> dict[str, OutputRange]:
    """Without the stages that the implementation keeps to itself."""
    return {name: out for name, out in ranges.items() if name in outputs}


def _jointly(
    bench: Bench, subject: Subject, name: str, index: int, option: int, outputs: Outputs
) -> int:
    """Rows whose outputs no one value of a shared quantity explains."""
    case = bench.cases(name)[index]
    return sum(
        int(
            joint_refused(
                bench.kernel, case, outputs, shared, bench.options[option], subject.depths
            ).sum()
        )
        for shared in bench.structure[1]
    )


def same_bits(kernel: Kernel, a: Outputs, b: Outputs) -> int:
    """How many outputs differ in their bits (NaN is compared as a class)."""
    from contract import formats

    differ = 0
    for operand in kernel.outputs():
        if operand.stage and not (operand.name in a and operand.name in b):
            # kept to itself, by both calls or by neither
            differ += int(operand.name in a or operand.name in b)
            continue
        x, y, fmt = a[operand.name], b[operand.name], kernel.format(operand)
        unequal = x != y
        if fmt.has_nan and unequal.any():
            unequal &= ~(formats.is_nan(x, fmt) & formats.is_nan(y, fmt))
        differ += int(np.count_nonzero(unequal))
    return differ
