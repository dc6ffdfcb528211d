"""Changes of the source of Python implementations, judged.

Each implementation is judged once as it is, while its worker notes which lines run. Then each change is put into a fresh
worker, in memory, and the gates call that as they call every implementation, the quickest gate first, until one refuses.
Results are kept in the store: a run that was ended goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from contract import mutantbook, receipts, recordbook, registry, worker_server
from contract.case import kernels_of
from contract.checks import Check
from contract.config import RunOptions
from contract.declare import served
from contract.engines import HOST
from contract.errors import ContractError
from contract.judge_process import Judge, settle
from contract.mutantbook import Argument
from contract.mutation.changed_kernel import GATES, ChangedKernel
from contract.mutation.changes import Candidate, Key, candidates, chosen
from contract.mutation.subjects import targets_of
from contract.mutation.verdicts import (
    EFFORT,
    EQUAL,
    FREEDOM,
    KILLED,
    NOT_RUN,
    SURVIVED,
    Judged,
    Result,
)
from contract.store import Store


def targets(checks: Sequence[Check]) -> list[Check]:
    """One check of each implementation of the host, under each kernel among these."""
    return targets_of(checks, HOST)


def judge(
    checks: Sequence[Check],
    options: RunOptions,
    count: int | None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Iterator[Judged]:
    """Changes of each implementation that `targets` gave: `count` of each (all where None), at quick effort.

    An implementation may serve several kernels (profiles, parameters): a change of it is killed where the gates of one of
    them refuse it, and has passed those of all that run it where it is not.

    `options.fresh`: nothing is taken from the store.
    """
    settle()
    options = replace(options, effort=EFFORT)
    # a change has a worker of its own: with the suites loaded it is there in a few hundredths of a second
    worker_server.preload("contract.judge_process:server_setup", dict(options.suites))
    process = Judge({**vars(options), "store_root": None}, lambda message: None)
    store, keys = Store(options.store_root), receipts.Keys(options)
    arguments: dict[Path | None, Mapping[str, Argument]] = {}
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        groups.setdefault((check.spec["name"], check.name), []).append(check)
    try:
        for (name, implementation), group in groups.items():
            parts = [
                ChangedKernel(process, check, options, store, keys.key(check)) for check in group
            ]
            judged = Judged(parts[0].id if len(parts) == 1 else f"{name}/{implementation}")
            try:
                folder = recordbook.folder_of(group[0].module)
                if folder not in arguments:
                    arguments[folder] = mutantbook.arguments(folder)
                _changes(parts, judged, arguments[folder], options.seed, count, on_result)
                _score(parts, judged, options, count or 0)
            except ContractError as error:
                judged.refused = str(error)
            yield judged
    finally:
        process.close()
        worker_server.close()


def _changes(
    kernels: Sequence[ChangedKernel],
    judged: Judged,
    arguments: Mapping[str, Argument],
    seed: int,
    count: int | None,
    on_result: Callable[[Result], None],
) -> None:
    """The changes of one implementation, kernel by kernel, until one refuses them."""
    places: list[Mapping[Key, Candidate]] = []
    for kernel in kernels:
        if not kernel.known(judged):
            return
        places.append(candidates(kernel.ran))
        kernel.close()
    if not any(places):
        judged.nothing = "none of its suite's own source ran"
        return
    results: dict[str, Result] = {}
    left = {change.digest: change for change in chosen(places, seed, count)}
    order = list(left)
    for kernel, found in zip(kernels, places, strict=True):
        try:
            for digest_, change in list(left.items()):
                if change.key not in found:
                    continue
                result = kernel.result(change, judged)
                if result is None:
                    return
                told = arguments.get(digest_)
                if argument := found[change.key].argument:
                    told = Argument(EQUAL, argument)
                result = _worse(results.get(digest_), _argued(result, told))
                results[digest_] = result
                if result.verdict == KILLED:
                    del left[digest_]
                    on_result(result)
        finally:
            kernel.close()
    for digest_ in left:
        on_result(results[digest_])
    judged.results = [results[digest_] for digest_ in order]


def _argued(result: Result, told: Argument | None) -> Result:
    """The result with what is known of why no gate refused it."""
    if result.verdict == EQUAL:
        if told is not None:
            # in a freedom that this machine did not take
            return replace(result, verdict=told.verdict, detail=told.text)
        said = "no output of any gate moved, and no argument says that none can"
        return replace(result, verdict=SURVIVED, detail=said)
    if result.verdict == SURVIVED and told is not None:
        if told.verdict == FREEDOM:
            return replace(result, verdict=FREEDOM, detail=told.text)
        said = f"{result.moved:,} outputs moved, all allowed; the argument says that none can: {told.text}"
        return replace(result, detail=said)
    return result


def _worse(before: Result | None, now: Result) -> Result:
    """What two kernels make of one change: killed where one refuses it, survived where one cannot say why not."""
    if before is None:
        return now
    order = (KILLED, SURVIVED, NOT_RUN, FREEDOM, EQUAL)
    kept = min(before, now, key=lambda result: (order.index(result.verdict), -result.moved))
    return replace(kept, calls=before.calls + now.calls, moved=before.moved + now.moved)


def _score(
    kernels: Sequence[ChangedKernel], judged: Judged, options: RunOptions, count: int
) -> None:
    """Compare the score with the recorded one, or record it; that of some of an implementation's kernels is none."""
    first = kernels[0]
    path, data = recordbook.book_of(first.kernel, {"module": first.check.module})
    killed, survived = judged.count(KILLED), judged.count(SURVIVED)
    name, implementation = first.check.spec["name"], first.check.name
    whole = [
        item.profile
        for kernel in kernels_of(registry.get(name))
        for item in registry.implementations(name)
        if (item.label, item.profile) == (implementation, kernel.profile.name)
        and served(item.parameters, kernel.parameters)
    ]
    if path is None or not killed + survived or len(whole) != len(kernels):
        return
    score = {
        "implementation": implementation, "count": count, "seed": options.seed, "killed": killed, "survived": survived,
    }  # fmt: skip
    if options.update_records:
        mutantbook.update(path, score)
    elif said := mutantbook.drop(data, score):
        judged.problems.append(said)


__all__ = ["GATES", "judge", "targets"]
