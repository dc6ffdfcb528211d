"""The command line: `contract run`, `list`, `show`, `init`, `lint`, `mutate`, `sweep`, `compare`, `identify`, `explain`,
`doctor` and `pipeline`.

Exit codes are pytest's: 0 all good; 1 something red, missed, required but not run, or a limit
problem; 2 interrupted; 3 internal error; 4 usage; 5 nothing ran. `contract --help` imports neither
numpy, torch nor rich.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from contract.config import Config, RunOptions, read_config
from contract.errors import ContractError, UsageError
from contract.exits import exit_refused
from contract.options import check_target, parse

if TYPE_CHECKING:
    from contract.results import Report
    from contract.select import Selection
    from contract.suites import Loaded
    from contract.worker_server import Shared

OK, BAD, INTERRUPTED, INTERNAL, USAGE, NOTHING = range(6)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit code."""
    try:
        commands = {"run": _run, "list": _list, "show": _show, "init": _init, "lint": _lint, "mutate": _mutate, "sweep": _sweep, "compare": _compare, "identify": _identify, "explain": _explain, "doctor": _doctor, "pipeline": _pipeline}  # fmt: skip
        arguments = parse(argv, commands)
        code: int = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except ContractError as error:
        return _complain(error)
    except KeyboardInterrupt:
        print("contract: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last resort: one line and exit code 3
        text = " ".join(f"{type(error).__name__}: {error}".split())
        hint = "" if _debug() else " (CONTRACT_DEBUG=1 shows where)"
        print(f"contract: internal error: {text}{hint}", file=sys.stderr)
        _trace()
        return INTERNAL


def script() -> NoReturn:
    """The console script: `main`, and an end that what was judged has no say in.

    A handler that an imported file leaves to `atexit`, or a thread of it, could end the process with 0, which would read
    as green.
    """
    with exit_refused() as leave:
        try:
            code = main()
        except SystemExit as error:
            # argparse ends so
            code = error.code if isinstance(error.code, int) else INTERNAL
            if code == INTERNAL:
                print(f"contract: something called exit: {error.code}", file=sys.stderr)
        if code != OK:
            # servers and workers end with the sockets of this process
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            leave(code)
    sys.exit(OK)


def _complain(error: ContractError) -> int:
    print(f"contract: {' '.join(str(error).split())}", file=sys.stderr)
    _trace()
    # By name: contract.suites imports numpy, and this line also serves a wrong option.
    return NOTHING if type(error).__name__ == "NothingToJudge" else USAGE


def _debug() -> bool:
    return os.environ.get("CONTRACT_DEBUG", "") not in ("", "0")


def _trace() -> None:
    if _debug():
        import traceback

        traceback.print_exc()


def _run(arguments: argparse.Namespace) -> int:
    for option in ("json", "junit_xml", "html"):
        check_target(f"--{option.replace('_', '-')}", getattr(arguments, option))
    config = read_config()

    from contract import select

    selection = select.Selection(
        tuple(arguments.names),
        arguments.keyword,
        tuple(arguments.impl),
        tuple(arguments.engine),
        tuple(arguments.gate),
    )
    # A -k that does not parse is told before anything is loaded.
    select.parse_keyword(selection.keyword)
    for name in selection.names:
        select.refuse_absent(name)

    from contract import runner

    if arguments.collect_only:
        return _judge(arguments, config, selection, None)
    with contextlib.closing(runner.start_server()) as server:
        return _judge(arguments, config, selection, server)


def _judge(
    arguments: argparse.Namespace, config: Config, selection: Selection, server: Shared | None
) -> int:
    from contract import captured, runner, select, suites

    loaded = suites.load(config, arguments.names)
    asked = (*arguments.impl, *arguments.engine, *arguments.names)
    checks = runner.collect(config, asked)
    chosen = select.select(checks, selection, loaded.chosen)
    if arguments.collect_only:
        print("\n".join([*(check.id for check in chosen), f"{len(chosen)} checks"]))
        return OK if chosen else NOTHING
    if not chosen:
        print(
            f"contract: nothing ran: none of {len(checks)} checks is left by the selection",
            file=sys.stderr,
        )
        return NOTHING

    from contract.progress import progress

    options = run_options(arguments, config, loaded)
    if options.last_failed:
        runner.refuse_failures_elsewhere(options, checks, chosen)
    with progress(len(chosen), arguments.color, arguments.quiet > 0) as on_result:
        report = runner.run(chosen, options, on_result, server)
    for name in select.unregistered(config.require, checks):
        if not any(repr(name) in problem for problem in report.problems):
            report.problems.append(
                f"required {name!r} did not run: no implementation or engine of that name"
            )
    if len(chosen) < len(checks):
        report.notes.append(
            f"{len(chosen)} of {len(checks)} checks were selected; a kernel is judged by those"
        )
    kernels = {f"{check.kernel}/{check.profile}" for check in checks}
    report.notes.extend(
        f"captured rows of no kernel that is here: {name}, in {options.store_root / 'captured'}"
        for name in captured.strays(options.store_root, kernels)
    )
    judged = {check.module for check in chosen}
    report.notes.extend(
        f"{suites.short_file(other)} is imported by {file}: what it declares is judged, too"
        for file, others in loaded.brought.items()
        for other in others
        if other in judged
    )
    report.notes.extend(
        f"{module} is not loaded: no module {package!r}"
        for module, package in loaded.missing.items()
    )
    return _publish(report, arguments)


def run_options(arguments: argparse.Namespace, config: Config, loaded: Loaded) -> RunOptions:
    """The options of a run: the command line's, else the project's."""
    return RunOptions(
        effort=arguments.effort or config.effort,
        seed=config.seed if arguments.seed is None else arguments.seed,
        fresh=arguments.fresh,
        exitfirst=arguments.exitfirst,
        last_failed=arguments.last_failed,
        device=arguments.device,
        timeout=arguments.timeout or config.timeout,
        memory=arguments.memory,
        jobs=arguments.jobs or RunOptions().jobs,
        update_records=arguments.update_records,
        # an implementation in a file that is named is asked for by name
        required=tuple(
            dict.fromkeys(
                (
                    *config.require,
                    *arguments.impl,
                    *arguments.engine,
                    *_in_files(loaded),
                    *_on_gpu(arguments.names),
                )
            )
        ),
        store_root=config.store_root,
        suites=loaded.payload(),
        files=tuple(loaded.chosen),
        sketches=arguments.html is not None,
    )


def _in_files(loaded: Loaded) -> list[str]:
    """Names of the implementations that files of the command line register."""
    return sorted({t.name for r in loaded.chosen.values() for t in r.implementations})


def _on_gpu(names: Sequence[str]) -> list[str]:
    """The implementations that ids on the command line want on the GPU: `triton+gpu`."""
    from contract.checks import names_gpu

    return [part for name in names for part in name.split("/") if "+" in part and names_gpu(part)]


def _publish(report: Report, arguments: argparse.Namespace) -> int:
    from contract import github, junit
    from contract import report as reporting
    from contract.render import make_console, plain_lines, show

    if arguments.json:
        reporting.write_json(report, arguments.json)
    if arguments.junit_xml:
        junit.write_junit(report, arguments.junit_xml)
    if arguments.html:
        from contract import declared, html_report

        html_report.write_html(report, declared.facts(report.checks), arguments.html)
    verbosity = arguments.verbose - arguments.quiet
    if arguments.format == "github":
        table = plain_lines(report) if verbosity >= 0 else iter(())
        print("\n".join(github.lines(report, table, verbosity)))
        if trouble := github.write_summary(report):
            print(f"contract: {trouble}", file=sys.stderr)
    else:
        show(report, make_console(arguments.color), verbosity)
    return reporting.exit_code(report)


def _list(arguments: argparse.Namespace) -> int:
    from contract import listing, suites

    suites.load(read_config())
    if arguments.markdown:
        print("\n".join(listing.markdown_lines()))
    else:
        print(listing.list_json() if arguments.json else "\n".join(listing.list_lines()))
    return OK


def _show(arguments: argparse.Namespace) -> int:
    from contract import listing, suites

    suites.load(read_config())
    print("\n".join(listing.show_lines(arguments.name)))
    return OK


def _init(arguments: argparse.Namespace) -> int:
    from contract.scaffold import init

    print("\n".join(init(Path(arguments.folder))))
    return OK


def _lint(arguments: argparse.Namespace) -> int:
    check_target("--json", arguments.json)
    config = read_config()

    from contract.lint import command

    return command.run(arguments, config)


def _mutate(arguments: argparse.Namespace) -> int:
    check_target("--json", arguments.json)

    from contract.mutation import command

    command.check(arguments)
    return command.mutate(arguments, read_config())


def _compare(arguments: argparse.Namespace) -> int:
    from contract import comparison
    from contract.report_file import read_report

    old, new = read_report(arguments.old), read_report(arguments.new)
    found = comparison.compare(old, new)
    print("\n".join(comparison.lines(found)))
    return comparison.exit_code(found)


def _identify(arguments: argparse.Namespace) -> int:
    check_target("--json", arguments.json)
    config = read_config()

    from contract.identify.command import identify

    return identify(arguments, config)


def _explain(arguments: argparse.Namespace) -> int:
    config = read_config()

    from contract.explain import command

    return command(arguments, config)


def _sweep(arguments: argparse.Namespace) -> int:
    from contract.sweeps import command

    check_target("--json", arguments.json)
    if arguments.merge:
        return command.merge(arguments)
    config = read_config()

    from contract import select, suites
    from contract.checks import collect_checks

    for name in arguments.names:
        select.refuse_absent(name)
    loaded = suites.load(config, arguments.names)
    selection = select.Selection(
        tuple(arguments.names), impls=tuple(arguments.impl), engines=tuple(arguments.engine)
    )
    checks = collect_checks(
        automatic=False, asked=(*arguments.impl, *arguments.engine, *arguments.names)
    )
    options = RunOptions(
        timeout=arguments.timeout or config.timeout,
        memory=arguments.memory,
        jobs=arguments.jobs or RunOptions().jobs,
        store_root=config.store_root,
        suites=loaded.payload(),
        files=tuple(loaded.chosen),
    )
    return command.sweep(arguments, select.select(checks, selection, loaded.chosen), options)


def _doctor(arguments: argparse.Namespace) -> int:
    from contract import doctor

    for line in doctor.lines():
        print(line, flush=True)
    return OK


def _pipeline(arguments: argparse.Namespace) -> int:
    """Hand the rest to the function that a distribution registers under `contract.pipelines`."""
    from importlib.metadata import entry_points

    known = {one.name: one for one in entry_points(group="contract.pipelines")}
    name, *rest = arguments.rest or ["--help"]
    capture = name == "--capture"
    if capture:
        name, *rest = rest or ["--help"]
    if name in ("-h", "--help"):
        print("usage: contract pipeline [--capture] NAME ...\n")
        print(
            "--capture keeps rows that the model gives to its kernels; contract run judges them too.\n"
        )
        print("Names, each with a --help of its own:\n")
        print("\n".join(f"  {one}" for one in sorted(known)))
        return OK
    if name not in known:
        raise UsageError(
            f"no pipeline {name!r}; there are {', '.join(sorted(known)) or 'none: install the package anew'}"
        )
    run: Callable[[list[str]], int] = known[name].load()
    return _capturing(name, run, rest) if capture else run(rest)


def _capturing(name: str, run: Callable[[list[str]], int], rest: list[str]) -> int:
    """Run a pipeline, and write what it gave to its kernels, also where it was stopped."""
    from contract.pipelines.capture import Capture

    capture = Capture(name)
    try:
        with capture:
            return run(rest)
    finally:
        print("\n".join(capture.write()), file=sys.stderr)
