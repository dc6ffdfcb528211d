"""The options of the command line, as argparse parsers. Errors are one line, and exceptions.

An option or command stands here when the work behind it exists; any other is a usage error.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from contract.config import DEFAULT_MEMORY_BYTES, DEVICES, EFFORTS
from contract.errors import UsageError
from contract.select import GATES


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one line, and an exception."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see `{self.prog} --help`)")


class _Version(argparse.Action):
    """--version, looked up only when asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and stop")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"contract {version('kernel-contract')}")
        parser.exit(0)


def parse(
    argv: Sequence[str] | None, commands: Mapping[str, Callable[[argparse.Namespace], int]]
) -> argparse.Namespace:
    """The arguments; `command` is the function of the command that was named.

    Raises:
        UsageError: an option, command or value that does not exist.
    """
    parser = make_parser()
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command == "pipeline":
        # argparse leaves out what comes before the first name
        arguments.rest, rest = [*rest, *arguments.rest], []
    # argparse takes names only in one place; `contract run softcap -x rms_norm` names two.
    if rest and (
        arguments.command not in ("run", "mutate", "sweep")
        or any(word.startswith("-") for word in rest)
    ):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.names += rest
    arguments.command = commands[arguments.command]
    return arguments


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="contract",
        allow_abbrev=False,
        description="Judge compute kernels against their contracts.",
        epilog="Exit codes: 0 good, 1 red, 2 interrupted, 3 internal, 4 usage, 5 nothing ran.",
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(
        commands.add_parser("run", help="judge kernels and print the verdict", allow_abbrev=False)
    )
    listing = commands.add_parser("list", help="list the registered kernels", allow_abbrev=False)
    how = listing.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as JSON")
    how.add_argument("--markdown", action="store_true", help="as a Markdown page, by family")
    listing.set_defaults(command="list")
    show = commands.add_parser("show", help="show one contract", allow_abbrev=False)
    show.add_argument("name", metavar="NAME", help="a kernel of `contract list`")
    show.set_defaults(command="show")
    init = commands.add_parser(
        "init", help="write a first contract into contracts/", allow_abbrev=False
    )
    init.add_argument(
        "folder",
        metavar="DIR",
        nargs="?",
        default=".",
        help="where contracts/ goes (default: here)",
    )
    init.set_defaults(command="init")
    lint = commands.add_parser(
        "lint",
        help="find what tests and contracts could not see: tolerances, shapes, symmetric inputs, controls",
        allow_abbrev=False,
    )
    lint.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="files and folders; the project's tests and suites where absent",
    )
    lint.add_argument("--json", metavar="FILE", type=Path, help="write the findings as JSON")
    lint.set_defaults(command="lint")
    _add_mutate(
        commands.add_parser(
            "mutate",
            help="change one place of an implementation, and see that the gates refuse it",
            allow_abbrev=False,
        )
    )
    compare = commands.add_parser(
        "compare", help="say what became of each check between two JSON reports", allow_abbrev=False
    )
    compare.add_argument("old", metavar="OLD.json", type=Path, help="a report of `run --json`")
    compare.add_argument("new", metavar="NEW.json", type=Path, help="a later one")
    compare.set_defaults(command="compare")
    _add_identify(
        commands.add_parser(
            "identify",
            help="find out which rounding points, options and parameters a black box implements",
            allow_abbrev=False,
        )
    )
    _add_explain(
        commands.add_parser(
            "explain",
            help="replay a failing check, and say which fault reproduces its outputs",
            allow_abbrev=False,
        )
    )
    _add_sweep(
        commands.add_parser(
            "sweep",
            help="judge implementations on every value of an operand: 65,536 of 16 bits, or 2^32",
            allow_abbrev=False,
        )
    )
    doctor = commands.add_parser(
        "doctor",
        help="print which engines, compilers and libraries this machine has, and why not the others",
        allow_abbrev=False,
    )
    doctor.set_defaults(command="doctor")
    pipeline = commands.add_parser(
        "pipeline",
        help="run a model that is built of verified kernels",
        allow_abbrev=False,
        add_help=False,
    )
    pipeline.add_argument("rest", nargs=argparse.REMAINDER, metavar="NAME ...")
    pipeline.set_defaults(command="pipeline")
    return parser


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument(
        "names",
        metavar="NAME | ID | FILE",
        nargs="*",
        help="a kernel, the id of a check or its first parts, a .py file or a folder of them;"
        " all where absent",
    )
    _add_selection(run.add_argument_group("selection").add_argument)
    _add_judging(run.add_argument_group("judging").add_argument)
    _add_output(run.add_argument_group("output").add_argument)
    run.set_defaults(command="run")


# One line per option: a table to be read, and argparse's signatures are no news.
# fmt: off
def _add_selection(add: Callable[..., Any]) -> None:
    add("-k", dest="keyword", metavar="EXPR", default="",
        help='words of ids with and, or, not: "torch and not red"')
    add("--impl", metavar="NAME", action="append", default=[],
        help="only this implementation, which must run, and what is planted for its engine and libraries (not host)")
    add("--engine", metavar="NAME", action="append", default=[],
        help="only this engine, which must run")
    add("--gate", metavar="NAME", choices=GATES, action="append", default=[],
        help=f"only this gate: {', '.join(GATES)}")
    add("--lf", dest="last_failed", action="store_true", help="only what was not good last time")
    add("--co", dest="collect_only", action="store_true", help="print the ids and judge nothing")


def _add_judging(add: Callable[..., Any]) -> None:
    add("-x", dest="exitfirst", action="store_true",
        help="stop at the first check that is not good")
    add("--effort", choices=EFFORTS, help="how much is judged")
    add("--seed", type=_natural, metavar="N", help="seed of all rows (0)")
    add("--fresh", action="store_true", help="judge again what the store has")
    add("--device", choices=DEVICES, default="cpu", help="where implementations run (cpu)")
    add("--timeout", type=_seconds, metavar="S",
        help="seconds without a finished call before a worker is killed (60)")
    add("--memory", type=_bytes, metavar="BYTES", default=DEFAULT_MEMORY_BYTES,
        help="of one worker; K, M, G (8G)")
    add("-j", "--jobs", type=_positive, metavar="N", help="worker processes (2)")
    add("--update-records", action="store_true", help="write resources and budgets as measured")


def _add_output(add: Callable[..., Any]) -> None:
    add("--json", metavar="FILE", type=Path, help="write the report as JSON")
    add("--junit-xml", metavar="FILE", type=Path, help="write the report as JUnit XML")
    add("--html", metavar="FILE", type=Path, help="write the report as one HTML file, with plots")
    add("--format", choices=("text", "github"), default="text",
        help="of what is printed; github: annotations, and a summary of the step")
    add("--color", choices=("auto", "always", "never"), default="auto",
        help="auto obeys NO_COLOR and FORCE_COLOR")
    add("-v", "--verbose", action="count", default=0, help="also power, every id that was not run")
    add("-q", "--quiet", action="count", default=0, help="only what is not good, and the summary")


def _add_mutate(mutate: argparse.ArgumentParser) -> None:
    mutate.add_argument("names", metavar="NAME | ID | FILE", nargs="*",
        help="a kernel, the first parts of an id, a .py file or a folder; all where absent")
    add = mutate.add_argument
    add("--ptx", action="store_true",
        help="change the PTX of implementations that have some, not the source of the others")
    add("--impl", metavar="NAME", action="append", default=[], help="only this implementation")
    add("--count", type=_count, metavar="N", default=20,
        help="mutants of each implementation; all: every one, of a source (20)")
    add("--seed", type=_natural, metavar="N", help="seed of all rows and of the choice (0)")
    add("--fresh", action="store_true", help="judge again what the store has")
    add("--update-records", action="store_true", help="keep the score of each kernel in its record")
    add("--json", metavar="FILE", type=Path, help="write every mutant as JSON")
    mutate.set_defaults(command="mutate")


def _add_explain(explain: argparse.ArgumentParser) -> None:
    add = explain.add_argument
    add("names", metavar="ID", nargs="+",
        help="the check, as `contract run` prints it, with the files before it")
    add("--effort", choices=EFFORTS, help="as it was judged")
    add("--seed", type=_natural, metavar="N", help="as it was judged (0)")
    explain.set_defaults(command="explain")


def _add_identify(identify: argparse.ArgumentParser) -> None:
    add = identify.add_argument
    add("target", metavar="TARGET", help="package.module:name, file.py:name or model.onnx;"
        " a function, a torch module's class, a function that launches GPU kernels")
    add("--as", dest="kernel", metavar="KERNEL", required=True, help="a kernel of `contract list`")
    add("--arg", metavar="NAME=VALUE", action="append", default=[],
        help="an argument of the target: a number, a word, an operand, a dim, or (dim,)")
    add("--scalar", metavar="NAME=VALUE", action="append", default=[],
        help="the value that the target uses for a scalar of the contract; else it is found out")
    add("--given", metavar="NAME=VALUE", action="append", default=[],
        help="only this value of an enumerated parameter, or this format of an operand")
    add("--suite", dest="files", metavar="FILE", action="append", default=[],
        help="a .py file or folder that declares the kernel")
    add("--engine", choices=("host", "ptx", "gpu"), default="host", help="what runs the target (host)")
    add("--seed", type=_natural, metavar="N", help="seed of the inputs (0)")
    add("--timeout", type=_seconds, metavar="S",
        help="seconds without a finished call before its process is killed (60)")
    add("--memory", type=_bytes, metavar="BYTES", default=DEFAULT_MEMORY_BYTES,
        help="of its process; K, M, G (8G)")
    add("--json", metavar="FILE", type=Path, help="write what was found as JSON")
    identify.set_defaults(command="identify")


def _add_sweep(sweep: argparse.ArgumentParser) -> None:
    sweep.add_argument("names", metavar="NAME | ID | FILE", nargs="*",
        help="a kernel, the first parts of an id, a .py file or a folder; all where absent")
    add = sweep.add_argument_group("inputs").add_argument
    add("--fp32", dest="mode", action="store_const", const="fp32", default="codes",
        help="all 2^32 values of fp32 operands, in place of those of 16 bits and fewer")
    add("--pairs", dest="mode", action="store_const", const="pairs",
        help="pairs of two operands on a grid of 2,048 values each")
    add("--impl", metavar="NAME", action="append", default=[], help="only this implementation")
    add("--engine", metavar="NAME", action="append", default=[], help="only this engine")
    add("--bits", metavar="FIRST:LAST", type=_bit_range,
        help="only these inputs, by their bits; no ledger is kept")
    add = sweep.add_argument_group("shards").add_argument
    add("--shard", metavar="K/N", type=_share, help="of the shards every N-th from the K-th on")
    add("--ledger", metavar="FILE", type=Path, help="where finished shards are kept (in .contract/sweeps)")
    add("--fresh", action="store_true", help="begin the ledger anew")
    add("--merge", metavar="LEDGER", type=Path, nargs="+", help="put ledgers of --shard together, and say what they say")
    add("-o", "--output", metavar="FILE", type=Path, help="the ledger that --merge writes")
    add = sweep.add_argument_group("judging").add_argument
    add("-j", "--jobs", type=_positive, metavar="N", help="worker processes (2)")
    add("--dask", metavar="ADDRESS", default="", help="judge on the workers of this Dask cluster, tcp://HOST:PORT")
    add("--timeout", type=_seconds, metavar="S",
        help="seconds without a finished call before a worker is killed (60)")
    add("--memory", type=_bytes, metavar="BYTES", default=DEFAULT_MEMORY_BYTES,
        help="of one worker; K, M, G (8G)")
    add = sweep.add_argument_group("output").add_argument
    add("--json", metavar="FILE", type=Path, help="write the results as JSON")
    add("--color", choices=("auto", "always", "never"), default="auto",
        help="auto obeys NO_COLOR and FORCE_COLOR")
    add("-q", "--quiet", action="count", default=0, help="no progress")
    sweep.set_defaults(command="sweep")
# fmt: on


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 0")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 1")
    return int(text)


def _count(text: str) -> int | None:
    return None if text == "all" else _positive(text)


def _share(text: str) -> tuple[int, int]:
    k, _, n = text.partition("/")
    if not (k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise argparse.ArgumentTypeError(f"{text!r} is not K/N with 1 <= K <= N, such as 3/8")
    return int(k), int(n)


def _bit_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    try:
        found = int(first, 0), int(last or first, 0)
    except ValueError:
        found = (1, 0)
    if not 0 <= found[0] <= found[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIRST:LAST, such as 0x3f80:0x3fff")
    return found


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds > 0")
    return value


def _bytes(text: str) -> int:
    digits, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    units = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
    if not digits.isdecimal() or unit not in units or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes, such as 512M or 8G")
    return int(digits) * units[unit]


def check_target(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written before the run rather than after it."""
    if path is None:
        return
    folder = path.resolve().parent
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder; give a file")
    if not folder.is_dir():
        raise UsageError(f"{option} {path}: no folder {folder}; make it first")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path}: the folder {folder} cannot be written")
