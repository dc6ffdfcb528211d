"""`contract mutate`: sources of implementations on the host, or with `--ptx` compiled kernels."""

from __future__ import annotations

import argparse
import sys

from contract import select, suites
from contract.checks import collect_checks
from contract.config import Config, RunOptions
from contract.errors import UsageError
from contract.mutation import ptx, source, verdicts
from contract.store import atomic_write_json

# exit code of a run in which nothing ran
_NOTHING = 5


def check(arguments: argparse.Namespace) -> None:
    """Refuse options that PTX does not know.

    Raises:
        UsageError: naming the option.
    """
    if not arguments.ptx:
        return
    for word in ("fresh", "update_records"):
        if getattr(arguments, word):
            raise UsageError(f"--{word.replace('_', '-')} is for changes of a source, not of PTX")
    if arguments.count is None:
        raise UsageError("--count all is for changes of a source; give a number for PTX")


def mutate(arguments: argparse.Namespace, config: Config) -> int:
    """Print what becomes of each change; returns the exit code: 0 none survived, 1 some did, 5 there was nothing to change."""
    for name in arguments.names:
        select.refuse_absent(name)
    loaded = suites.load(config, arguments.names)
    selection = select.Selection(tuple(arguments.names), impls=tuple(arguments.impl))
    checks = select.select(collect_checks(automatic=False), selection, loaded.chosen)
    chosen = ptx if arguments.ptx else source
    targets = chosen.targets(checks)
    if chosen is source and not arguments.impl:
        # what takes other people's packages is other people's code: by its name alone
        targets = [check for check in targets if not check.requires]
    if not targets:
        kind = "of the engine ptx" if arguments.ptx else "of the host"
        print(
            f"contract: nothing to change: the selection has no implementation {kind}",
            file=sys.stderr,
        )
        return _NOTHING
    options = RunOptions(
        seed=config.seed if arguments.seed is None else arguments.seed,
        timeout=config.timeout,
        suites=loaded.payload(),
        store_root=config.store_root,
        fresh=arguments.fresh,
        update_records=arguments.update_records,
    )
    found = []
    for judged in chosen.judge(targets, options, arguments.count):
        found.append(judged)
        print("\n".join(verdicts.lines(judged)), flush=True)
    if len(found) > 1:
        print(verdicts.summary([result for judged in found for result in judged.results]))
    if arguments.json:
        atomic_write_json(arguments.json, verdicts.as_json(found, options.seed, chosen.GATES))
    return verdicts.exit_code(found)
