"""`contract sweep`: what is printed, and the exit code.

0 all outputs of all shards are allowed; 1 one is refused, an implementation crashed or hung, or shards are missing from a
ledger that should be whole; 2 interrupted; 5 nothing was swept. A share (`--shard`) is whole when its own shards are.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract.checks import Check
from contract.config import RunOptions
from contract.errors import UsageError
from contract.options import check_target
from contract.progress import outputs_progress
from contract.store import atomic_write_json
from contract.sweeps import ledger as ledgers
from contract.sweeps.run import (
    FAIL,
    NOT_RUN,
    PARTIAL,
    PASS,
    UNFINISHED,
    How,
    Swept,
    Target,
    one_range,
    refusal_words,
    targets,
)  # fmt: skip
from contract.sweeps.run import (
    sweep as sweep_one,
)
from contract.sweeps.shard import Unfinished

_OK, _BAD, _NOTHING = 0, 1, 5
_MODES = {"codes": "", "fp32": " --fp32", "pairs": " --pairs"}


def sweep(arguments: Namespace, checks: Sequence[Check], options: RunOptions) -> int:
    """Sweep the implementations of these checks; returns the exit code."""
    _refuse_beside_bits(arguments)
    found = targets(checks, arguments.mode)
    if arguments.ledger and len([t for t in found if not t.unfit]) != 1:
        names = ", ".join(t.id for t in found if not t.unfit) or "none"
        raise UsageError(
            f"--ledger {arguments.ledger}: one ledger is of one implementation, selected are {names}; name one by its id"
        )
    if arguments.bits:
        return _ranges(arguments, found, options)
    how = How(options.jobs, arguments.dask, arguments.shard, arguments.ledger, arguments.fresh)
    results: list[Swept] = []
    with outputs_progress(arguments.color, arguments.quiet > 0) as progress:
        for target in found:
            result = sweep_one(target, options, how, progress.add, progress.begin)
            if how.share and result.outcome == PARTIAL:
                # the others are others' to do
                result = replace(result, outcome=PASS)
            results.append(result)
            print("\n".join(_lines(result, options)), flush=True)
    if arguments.json:
        said = {"schema": 1, "sweeps": [result.as_json() for result in results]}
        atomic_write_json(arguments.json, said)
    return _closing(results)


def _refuse_beside_bits(arguments: Namespace) -> None:
    """`--bits` keeps no ledger and writes nothing: an option that it would not obey is refused."""
    others = ("shard", "ledger", "fresh", "dask", "json")
    given = [f"--{name}" for name in others if getattr(arguments, name)]
    if arguments.bits and given:
        raise UsageError(f"--bits judges here and keeps nothing; leave {', '.join(given)} out")


def _closing(results: Sequence[Swept]) -> int:
    counts = Counter(result.outcome for result in results)
    judged = sum(result.verdict.outputs for result in results if result.verdict)
    bad = counts[FAIL] + counts[UNFINISHED] + counts[PARTIAL]
    print(
        f"SUMMARY {counts[PASS] + bad} swept, {judged:,} outputs: {counts[PASS]} pass, {counts[FAIL]} fail,"
        f" {counts[UNFINISHED] + counts[PARTIAL]} not finished; {counts[NOT_RUN]} not run"
    )
    if bad:
        return _BAD
    if not counts[PASS]:
        print(
            "contract: nothing was swept: every implementation is named above with its reason",
            file=sys.stderr,
        )
        return _NOTHING
    return _OK


def _lines(result: Swept, options: RunOptions) -> Iterator[str]:
    target, found = result.target, result.verdict
    if result.outcome == NOT_RUN or found is None:
        yield f"{target.id}  not run: {result.detail}"
        return
    rate = f" in {result.seconds:.1f} s" if result.judged else ""
    old = found.outputs - result.judged
    kept = f", {old:,} of them from the ledger" if old else ""
    yield f"{target.id}  {result.outcome}: {found.outputs:,} outputs, {found.refused:,} refused{rate}{kept}"
    if result.detail:
        yield f"  {result.detail}"
    if found.first is not None and (refusal := found.first["refusal"]):
        yield f"  again with: {_replay(target, refusal, found.first, options)}"
    if result.outcome in (UNFINISHED, PARTIAL):
        yield "  the same command goes on with the shards that are not done"
    yield f"  ledger: {_short(result.ledger)}"


def _replay(
    target: Target, refusal: Mapping[str, Any], line: ledgers.Line, options: RunOptions
) -> str:
    words = ["contract sweep", *options.files, target.id]
    values = list(refusal["inputs"].values())
    bits = f"{values[0]}:{values[0]}" if len(values) == 1 else f"{line['first']}:{line['last']}"
    return f"{' '.join(words)}{_MODES[target.mode]} --bits {bits}"


def _short(path: Path | None) -> str:
    try:
        return str(path and path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _ranges(arguments: Namespace, found: Sequence[Target], options: RunOptions) -> int:
    """`--bits`: a few inputs of every setting, each setting with what it says."""
    refused, outputs, unfinished = 0, 0, 0
    for target in found:
        if target.unfit:
            print(f"{target.id}  not run: {target.unfit}")
            continue
        try:
            for words, line in one_range(target, options, *arguments.bits):
                # one alternative must allow them all, here of one setting
                bad = min(line["refused"])
                refused, outputs = refused + bad, outputs + line["outputs"]
                print(
                    f"{target.id}  {words}: {line['outputs']:,} outputs, {bad:,} refused",
                    flush=True,
                )
                if line["refusal"] and bad:
                    print(f"  {line['refusal']['said']}")
        except Unfinished as why:
            unfinished += 1
            print(f"{target.id}  {why}")
    if refused or unfinished:
        return _BAD
    return _OK if outputs else _NOTHING


def merge(arguments: Namespace) -> int:
    """`--merge`: ledgers of shares put together; returns the exit code."""
    if arguments.output is None:
        raise UsageError("--merge needs -o FILE, the ledger that it writes")
    if arguments.names:
        raise UsageError(f"--merge takes ledgers alone; what is {arguments.names[0]!r} for?")
    check_target("-o", arguments.output)
    whole = ledgers.merge(arguments.merge, arguments.output)
    found = ledgers.verdict(whole.head, whole.lines.values(), len(whole.missing))
    name = "/".join(str(whole.head[key]) for key in ("kernel", "profile", "implementation"))
    print(
        f"{name}: {len(whole.lines)} of {whole.head['shards']} shards, {found.outputs:,} outputs, {found.refused:,} refused"
    )
    if found.refused:
        print(f"  {refusal_words(whole.head, found)}")
    if whole.missing:
        shown = ", ".join(map(str, whole.missing[:8])) + (" ..." if len(whole.missing) > 8 else "")
        print(
            f"  not done: shards {shown}; contract sweep ... --ledger {arguments.output} does them"
        )
    return _BAD if found.refused or whole.missing else _OK


__all__ = ["merge", "sweep"]
