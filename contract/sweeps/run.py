"""Sweeps of selected implementations: plans, ledgers, results, and what is said of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contract import receipts, sources
from contract.case import find
from contract.checks import Check
from contract.config import RunOptions
from contract.environment import environment
from contract.errors import UsageError
from contract.ranges import option_sets
from contract.sweeps import ledger as ledgers
from contract.sweeps import local
from contract.sweeps.ledger import Ledger, Line, Verdict
from contract.sweeps.shard import Plan, Sweeper, Unfinished
from contract.sweeps.space import MODES, Shard, Space, unfit

PASS, FAIL, NOT_RUN, UNFINISHED, PARTIAL = "pass", "fail", "not_run", "unfinished", "partial"


@dataclass(frozen=True)
class Target:
    """One implementation to be swept.

    Attributes:
        id: `softcap/float32/torch`; mode: see contract.sweeps.space; unfit: why it cannot be swept, or ''.
    """

    id: str
    check: Check
    mode: str
    unfit: str = ""


@dataclass(frozen=True)
class Swept:
    """What became of one.

    Attributes:
        outcome: PASS, FAIL, NOT_RUN, UNFINISHED (a crash, a hang, no output), or PARTIAL: its share is done and good, other
            shards are not.
        verdict: of the ledger, over all its shards; None where there is none.
        judged: outputs that were judged now; seconds: that it took.
        detail: what is to be told beside it, one line.
        ledger: its file.
    """

    target: Target
    outcome: str
    verdict: Verdict | None = None
    judged: int = 0
    seconds: float = 0.0
    detail: str = ""
    ledger: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """Without the times, for --json."""
        found = self.verdict
        return {
            "id": self.target.id,
            "mode": self.target.mode,
            "outcome": self.outcome,
            "detail": self.detail,
            "inputs": found.inputs if found else 0,
            "outputs": found.outputs if found else 0,
            "refused": found.refused if found else 0,
            "first": found.first["refusal"] if found and found.first else None,
        }


def targets(checks: Sequence[Check], mode: str) -> list[Target]:
    """Each implementation among these checks, once."""
    assert mode in MODES
    found: dict[str, Target] = {}
    reasons: dict[str, str] = {}
    for check in checks:
        name = check.id.rpartition("/")[0]
        if check.kind != "gate" or name in found:
            continue
        spec = check.spec
        kernel = find(spec["name"], spec["profile"], spec["parameters"])
        if kernel.id not in reasons:
            reasons[kernel.id] = unfit(kernel, mode)
        found[name] = Target(name, check, mode, reasons[kernel.id])
    return list(found.values())


def head_of(check: Check, mode: str) -> dict[str, Any]:
    """What the ledger of a sweep depends on."""
    spec = check.spec
    kernel = find(spec["name"], spec["profile"], spec["parameters"])
    shards = Space(kernel, mode).shards()
    return {
        "kernel": kernel.contract.name,
        "parameters": dict(kernel.parameters),
        "profile": kernel.profile.name,
        "implementation": check.name,
        "engine": check.engine,
        "mode": mode,
        "options": [dict(chosen) for chosen in option_sets(kernel)],
        "shards": len(shards),
        "inputs": sum(shard.inputs for shard in shards),
        "framework": sources.framework_hash(),
        **receipts.named(check),
        "environment": environment(),
    }


def default_ledger(target: Target, root: Path, share: tuple[int, int] | None) -> Path:
    """Where a ledger lies that is not named: in the store."""
    name = re.sub(r"[^A-Za-z0-9_.,=+-]", ".", target.id)
    part = f".{share[0]}of{share[1]}" if share else ""
    return root / "sweeps" / f"{name}.{target.mode}{part}.jsonl"


@dataclass(frozen=True)
class How:
    """How sweeps are made.

    Attributes:
        jobs: processes; dask: address of a scheduler, or ''.
        share: (k, n): every n-th shard from the k-th on, 1 <= k <= n; None is all.
        ledger: the file of a single sweep; in the store where None.
        fresh: begin the ledger anew.
    """

    jobs: int = 1
    dask: str = ""
    share: tuple[int, int] | None = None
    ledger: Path | None = None
    fresh: bool = False


def sweep(
    target: Target,
    options: RunOptions,
    how: How,
    progress: Callable[[int], None] = lambda n: None,
    begin: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> Swept:
    """Judge the shards of one implementation that its ledger lacks.

    Args:
        progress: called with numbers of judged outputs.
        begin: called once with the target's id and the numbers of inputs that are done, and that there are.

    Raises:
        StoreError: a ledger that cannot be read or written, or is another sweep's.
        UsageError: no cluster at the address.
    """
    if target.unfit:
        return Swept(target, NOT_RUN, detail=target.unfit)
    kernel = find(*(target.check.spec[k] for k in ("name", "profile", "parameters")))
    mine = shards = Space(kernel, target.mode).shards()
    if how.share:
        mine = shards[how.share[0] - 1 :: how.share[1]]
    if not mine:
        # an empty share is no pass
        share = "/".join(map(str, how.share or ()))
        return Swept(
            target, NOT_RUN, detail=f"of its {len(shards)} shards none is in --shard {share}"
        )
    path = how.ledger or default_ledger(target, options.store_root, how.share)
    head = ledgers.headed(head_of(target.check, target.mode))
    ledger = ledgers.opened(path, head, fresh=how.fresh)
    left = [shard for shard in mine if shard.number not in ledger.lines]
    begin(
        target.id,
        sum(s.inputs for s in mine) - sum(s.inputs for s in left),
        sum(s.inputs for s in mine),
    )
    start = time.monotonic()
    failure: Unfinished | None = None
    judged = 0
    if left:
        plan = Plan(target.check.as_json(), target.mode, plan_options(options), str(head["key"]))
        results = (
            _on_cluster(plan, head, left, how.dask, progress)
            if how.dask
            else local.judged(plan, left, how.jobs, progress)
        )
        with closing(results):
            for result in results:
                if isinstance(result, Unfinished):
                    failure = result
                    break
                ledger.append(result)
                judged += int(result["outputs"])
    seconds = time.monotonic() - start
    if not failure:
        ledger.settle()
    done = replace(
        Swept(target, PASS, judged=judged, seconds=seconds, ledger=path),
        verdict=ledgers.verdict(ledger.head, ledger.lines.values(), len(ledger.missing)),
    )
    return _told(done, failure, ledger)


def _on_cluster(
    plan: Plan,
    head: Mapping[str, Any],
    shards: Sequence[Shard],
    address: str,
    progress: Callable[[int], None],
) -> Generator[local.Result]:
    from contract.sweeps import cluster

    return cluster.judged(plan, head, shards, address, progress)


def plan_options(options: RunOptions) -> dict[str, Any]:
    """The options of a run that a shard's judge reads."""
    return {
        "timeout": options.timeout,
        "memory": options.memory,
        "suites": dict(options.suites),
    }


def _told(done: Swept, failure: Unfinished | None, ledger: Ledger) -> Swept:
    """The outcome: a refusal, then what has no verdict, then what is left."""
    found = done.verdict
    assert found is not None
    if found.refused:
        return replace(done, outcome=FAIL, detail=refusal_words(ledger.head, found))
    if failure is not None and failure.outcome == "not_run":
        return replace(done, outcome=NOT_RUN, detail=failure.detail)
    if failure is not None:
        return replace(done, outcome=UNFINISHED, detail=str(failure))
    if found.missing:
        return replace(done, outcome=PARTIAL, detail=f"{found.missing} shards are not done")
    return done


def refusal_words(head: Mapping[str, Any], found: Verdict) -> str:
    """The first refusal of a ledger, in words."""
    which = ""
    if len(head["options"]) > 1:
        which = f"no listed alternative explains all outputs (nearest: {head['options'][found.option]}); "
    refusal = found.first["refusal"] if found.first else None
    # a shard that another alternative explains keeps no refusal
    return which + (refusal["said"] if refusal else "each shard alone is explained by one")


def one_range(
    target: Target, options: RunOptions, first: int, last: int
) -> Iterator[tuple[str, Line]]:
    """Judge inputs first .. last of every setting, without a ledger: (the setting, its line)."""
    spec = target.check.spec
    kernel = find(spec["name"], spec["profile"], spec["parameters"])
    space = Space(kernel, target.mode)
    plan = Plan(target.check.as_json(), target.mode, plan_options(options), "")
    sweeper = Sweeper(plan)
    try:
        for number, setting in enumerate(space.settings):
            size = space.size(setting)
            if not first <= last < size:
                raise UsageError(
                    f"--bits 0x{first:x}:0x{last:x}: {target.id} has inputs 0x0 to 0x{size - 1:x}, the smaller one first"
                )
            yield setting.words(), sweeper.judge(Shard(0, number, first, last))
    finally:
        sweeper.close()


__all__ = ["How", "Swept", "Target", "head_of", "one_range", "sweep", "targets"]
