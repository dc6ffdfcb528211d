"""One shard: the implementation is called on its inputs, piece by piece, and every output is judged."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from contract import formats
from contract.case import Case, Kernel, find
from contract.declare import Launch
from contract.diagnose import element_lines
from contract.endpoints import Array
from contract.judge import ENDS, PLAIN, Subject
from contract.judge_process import Judge, settle
from contract.ranges import case_range, option_sets, refusals
from contract.sweeps.ledger import hashed
from contract.sweeps.runs import Runs
from contract.sweeps.space import Setting, Shard, Space, payload, pieces
from contract.worker import Reply

#: Inputs of one call of the implementation, and no multiple of it lies inside a call.
PIECE = 1 << 20


@dataclass(frozen=True)
class Plan:
    """What a process needs to judge shards of one sweep; JSON.

    Attributes:
        check: the implementation, as `contract.checks.Check.as_json` has it.
        mode: see contract.sweeps.space.
        options: timeout, memory and suites of contract.config.RunOptions.
        key: of the ledger's first line.
    """

    check: Mapping[str, Any]
    mode: str
    options: Mapping[str, Any]
    key: str


class Unfinished(Exception):
    """A shard that has no verdict: the implementation crashed, hung, gave no output, or cannot run here.

    Attributes:
        outcome: as a check's; detail: one line.
    """

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(f"{outcome}: {detail}")
        self.outcome, self.detail = outcome, detail


class _Sweeping(Subject):
    """The implementation, called on inputs that are made beside it."""

    inputs: Mapping[str, Any]

    def payload(self, case: Case, launch: Launch, poison: str) -> dict[str, Any]:
        base = super().payload(case, launch, poison)
        return {**base, "engine": self.engine, "inputs": dict(self.inputs)}

    def asked(self, payload: Mapping[str, Any], case: Case) -> Reply:
        assert self.worker is not None
        return self.worker.call("contract.sweeps.far:run", payload, {})


class Sweeper:
    """Judges shards of one sweep, one after the other; not for use by several threads."""

    def __init__(self, plan: Plan) -> None:
        settle()
        self.plan = plan
        spec = plan.check["spec"]
        self.kernel = find(spec["name"], spec["profile"], spec["parameters"])
        self.space = Space(self.kernel, plan.mode)
        options = {"seed": 0, "effort": "default", **plan.options, "store_root": None}
        self._judge = Judge(options, lambda message: None)
        self._runs: dict[int, Runs] = {}
        self._options = option_sets(self.kernel)

    def close(self) -> None:
        """End the workers."""
        self._judge.close()

    def _subject(self) -> _Sweeping:
        subject, missing = self._judge.subject(self.kernel, self.plan.check, _Sweeping)
        assert isinstance(subject, _Sweeping)
        if missing:
            raise Unfinished("not_run", missing)
        return subject

    def judge(
        self, shard: Shard, progress: Callable[[int], None] = lambda n: None
    ) -> dict[str, Any]:
        """The ledger's line of a shard.

        Args:
            progress: called with the number of outputs of each piece that is judged.

        Raises:
            Unfinished: no verdict; nothing is to be written.
        """
        subject = self._subject()
        setting = self.space.settings[shard.setting]
        tally = _Tally(self.kernel, len(self._options))
        for first, last in pieces(shard.first, shard.last, PIECE):
            codes = self.space.codes(setting, first, last)
            count = len(next(iter(codes.values())))
            if not count:
                # all of them are values that the contract does not take
                continue
            tally.begin(count)
            # an engine says at its first call whether it executes approximate instructions
            for launch in (PLAIN, *ENDS):
                if launch.skew and (subject.nominal or not subject.approximate):
                    continue
                outputs = self._call(subject, setting, first, last, count, launch)
                before = tally.outputs
                self._compare(subject, shard.setting, first, last, codes, outputs, tally)
                progress(tally.outputs - before)
        if tally.outputs == 0:
            raise Unfinished("fail", f"shard {shard.number} compares no output")
        return hashed(
            {
                "key": self.plan.key,
                "shard": shard.number,
                "setting": setting.words(),
                "first": f"0x{shard.first:x}",
                "last": f"0x{shard.last:x}",
                **tally.as_json(),
            }
        )

    def _call(
        self,
        subject: _Sweeping,
        setting: Setting,
        first: int,
        last: int,
        count: int,
        launch: Launch,
    ) -> Mapping[str, Array]:
        subject.inputs = payload(self.plan.mode, setting, first, last)
        case = Case(self.space.shape(count), {}, setting.scalars)
        outcome, detail, _, outputs = subject.call(case, launch)
        if subject.touched or outcome:
            # the next call must not find what this one left
            subject.close()
            subject.touched = False
        if outcome:
            place = f"inputs 0x{first:x} to 0x{last:x} of {setting.words()}"
            raise Unfinished(outcome, f"{detail} ({place})")
        return {name: np.asarray(bits).reshape(-1) for name, bits in outputs.items()}

    def _compare(
        self,
        subject: Subject,
        number: int,
        first: int,
        last: int,
        codes: Mapping[str, Array],
        outputs: Mapping[str, Array],
        tally: _Tally,
    ) -> None:
        tally.note(outputs)
        setting = self.space.settings[number]
        if number not in self._runs:
            self._runs[number] = Runs(self.kernel, setting, subject.depths)
        rest = np.ones(len(next(iter(codes.values()))), bool)
        if rest.size == last - first + 1:
            rest = ~self._runs[number].allowed(first, last, outputs)
        for place in self._groups(codes, rest):
            self._by_range(subject, setting, place, codes, outputs, tally)

    def _groups(self, codes: Mapping[str, Array], rest: Array) -> list[Array]:
        """The places that are left, all NaN of a single operand apart from the others."""
        places = np.flatnonzero(rest)
        if len(codes) > 1 or not places.size:
            return [places] if places.size else []
        ((name, bits),) = codes.items()
        operand = next(o for o in self.kernel.inputs() if o.name == name)
        fmt = self.kernel.format(operand)
        if fmt.kind != "float" or not fmt.has_nan:
            return [places]
        nan = formats.is_nan(bits[places], fmt)
        return [part for part in (places[~nan], places[nan]) if part.size]

    def _by_range(
        self,
        subject: Subject,
        setting: Setting,
        places: Array,
        codes: Mapping[str, Array],
        outputs: Mapping[str, Array],
        tally: _Tally,
    ) -> None:
        """Judge these places by the ranges of all options, as every gate does."""
        here = {name: bits[places] for name, bits in codes.items()}
        case = self.space.case(setting, self._once(here))
        got = {name: bits[places] for name, bits in outputs.items()}
        for option, chosen in enumerate(self._options):
            ranges = case_range(self.kernel, case, chosen, subject.depths)
            for operand in self.kernel.outputs():
                name, count = operand.name, len(places)
                shape = tuple(count if d == self.space.dim else case.shape[d] for d in operand.dims)
                bad = np.flatnonzero(ranges[name].refused(got[name].reshape(shape)))
                if bad.size and tally.refuse(option, int(bad.size), int(places[bad[0]])):
                    one = slice(int(bad[0]), int(bad[0]) + 1)
                    tally.refusals[option] = self._refusal(
                        subject,
                        setting,
                        chosen,
                        {key: bits[one] for key, bits in here.items()},
                        {key: bits[one] for key, bits in got.items()},
                    )

    def _refusal(
        self,
        subject: Subject,
        setting: Setting,
        chosen: Mapping[str, Any],
        codes: Mapping[str, Array],
        got: Mapping[str, Array],
    ) -> dict[str, Any]:
        """One refused output: the bits that went in and came out, and what was allowed, in words."""
        case = self.space.case(setting, codes)
        outputs = {
            o.name: got[o.name].reshape(tuple(case.shape[d] for d in o.dims))
            for o in self.kernel.outputs()
        }
        ranges = case_range(self.kernel, case, chosen, subject.depths)
        lines = element_lines(self.kernel, case, outputs, ranges, refusals(ranges, outputs))
        return {
            "inputs": {name: f"0x{int(bits[0]):x}" for name, bits in codes.items()},
            "outputs": {name: f"0x{int(bits[0]):x}" for name, bits in got.items()},
            "said": " | ".join(lines),
        }

    def _once(self, codes: Mapping[str, Array]) -> Mapping[str, Array]:
        """One of several NaN, of which a reference sees no more than that they are NaN."""
        if len(codes) > 1:
            return codes
        ((name, bits),) = codes.items()
        operand = next(o for o in self.kernel.inputs() if o.name == name)
        fmt = self.kernel.format(operand)
        alike = fmt.kind == "float" and fmt.has_nan and bool(formats.is_nan(bits[:1], fmt)[0])
        return {name: bits[:1]} if alike else codes


@dataclass
class _Tally:
    """What is counted of a shard."""

    kernel: Kernel
    options: int
    inputs: int = 0
    outputs: int = 0
    refused: list[int] = field(default_factory=list)
    refusals: dict[int, dict[str, Any]] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    before: int = 0
    hashes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.refused = [0] * self.options
        self.hashes = {o.name: hashlib.sha256() for o in self.kernel.outputs()}

    def begin(self, count: int) -> None:
        """Count a piece's inputs, whose outputs follow."""
        self.before = self.inputs
        self.inputs += count

    def note(self, outputs: Mapping[str, Array]) -> None:
        """Count the outputs of one launch on a piece."""
        for name, bits in outputs.items():
            self.hashes[name].update(np.ascontiguousarray(bits).data)
            self.outputs += bits.size

    def refuse(self, option: int, count: int, place: int) -> bool:
        """Count the refused outputs of a group of the last piece; whether the first of them is the first so far.

        `place`: its input's in the piece.
        """
        self.refused[option] += count
        place += self.before
        first = place < self.first.get(option, place + 1)
        if first:
            self.first[option] = place
        return first

    def as_json(self) -> dict[str, Any]:
        best = self.refused.index(min(self.refused))
        return {
            "inputs": self.inputs,
            "outputs": self.outputs,
            "refused": list(self.refused),
            "refusal": self.refusals.get(best),
            "sha256": {name: one.hexdigest() for name, one in self.hashes.items()},
        }
