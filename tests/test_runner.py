"""Whole runs: exit codes, the store, rows, bad files, faults of processes, and a run that is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampling import SAMPLED

from contract.rowbook import RowBook
from contract.store import MAX_ROWS

Run = Callable[..., tuple[int, str, str]]
TORCH = "scaled/two_step/torch"
SUITE = Path(__file__).parent / "suite"
FAULTS = Path(__file__).parent / "faults"


def report(path: str = "r.json") -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Path(path).read_text())
    return data


def outcomes(path: str = "r.json") -> dict[str, str]:
    return {check["id"]: check["outcome"] for check in report(path)["checks"]}


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# The store


def test_an_unchanged_rerun_takes_all_from_the_store_and_a_change_judges_again(
    project: Path, contract_run: Run
) -> None:
    code, out, err = contract_run(TORCH, "--json", "first.json")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "5 passed, 0 failed, 1 skipped"
    code, out, _ = contract_run(TORCH, "--json", "again.json")
    assert code == 0
    assert out.splitlines()[-2].endswith("(5 checks from receipts)")
    assert comparable("first.json") == comparable("again.json")

    # the note names what was met, and the check is judged again
    entries = (project / ".contract" / "checks").glob("*/*.json")
    # what did not run is not taken anyway
    entry = min(path for path in entries if '"not_run"' not in path.read_text())
    entry.write_text("{")
    code, out, _ = contract_run(TORCH)
    assert code == 0
    assert f"note: unreadable store entry counts as absent: {entry}\n" in out
    assert "(4 checks from receipts)" in out
    # what is no result of this check counts as absent too
    data = json.loads(entry.read_text())
    data["record"]["id"] = "another/check"
    entry.write_text(json.dumps(data))
    assert f"counts as absent: {entry}\n" in contract_run(TORCH)[1]

    assert "from receipts" not in contract_run(f"{TORCH}/shapes", "--fresh")[1]
    assert "from receipts" not in contract_run(f"{TORCH}/shapes", "--seed", "7")[1]
    edit(project / "contracts" / "scaled.py", '"""Two bf16 operations."""', '"""The same."""')
    assert "from receipts" not in contract_run(f"{TORCH}/shapes")[1]


def comparable(path: str) -> str:
    """The report without times and without what came from the store."""
    text = Path(path).read_text()
    text = re.sub(r'"seconds": [\d.e-]+', '"seconds": 0', text)
    text = re.sub(r'"from_receipts": \d+', '"from_receipts": 0', text)
    return re.sub(r'"from_receipt": (true|false)', '"from_receipt": false', text)


def test_the_same_inputs_and_seed_give_the_same_report(project: Path, contract_run: Run) -> None:
    wrong = "return product + y if"
    edit(project / "contracts" / "scaled.py", wrong, "return x.float() + product + y if")
    for path in ("a.json", "b.json"):
        assert contract_run("scaled", "-k", "torch and stress", "--fresh", "--json", path)[0] == 1
        # else the second run replays what the first one found
        shutil.rmtree(project / ".contract" / "rows", ignore_errors=True)
    assert comparable("a.json") == comparable("b.json")


# Exit codes and selection


def test_a_red_kernel_ends_1_its_row_is_kept_and_replayed_first(
    project: Path, contract_run: Run
) -> None:
    path = project / "contracts" / "scaled.py"
    edit(path, "product = x * scale\n", "product = x.float() * scale\n")
    edit(
        path,
        'return product + y if sign == "plus" else',
        "return (product + y).bfloat16() if sign == 'plus' else",
    )
    code, out, err = contract_run(f"{TORCH}/stress", f"{TORCH}/invariance")
    assert (code, err) == (1, "")
    assert f"FAIL {TORCH}/stress\n" in out
    assert "dropped point `product`" in out
    assert f"    reproduce: contract run {TORCH}/stress --effort quick\n" in out
    rows = project / ".contract" / "rows" / "scaled.json"
    (kept,) = json.loads(rows.read_text())["rows"]
    assert kept["id"] == f"{TORCH}/stress"

    # the command that it prints shows the kept row, before any drawn one
    code, out, _ = contract_run(f"{TORCH}/stress")
    assert code == 1
    assert (
        f"(a row that failed before ({TORCH}/stress, kept in .contract/rows/scaled.json), launch plain)"
        in out
    )
    # --lf runs what failed and nothing else; a green one is not asked for again
    code, out, _ = contract_run(TORCH, "--lf", "--json", "r.json")
    assert (code, list(outcomes())) == (1, [f"{TORCH}/stress"])
    assert "note: 1 of 6 checks failed last time" in out
    # -x ends at the first
    code, out, _ = contract_run(TORCH, "-x", "--json", "r.json")
    assert code == 1
    assert list(outcomes().values()).count("fail") == 1
    assert len(outcomes()) < 6

    shutil.copy(SUITE / "scaled.py", path)
    code, out, _ = contract_run(f"{TORCH}/stress", "--lf")
    assert code == 0
    code, out, _ = contract_run(f"{TORCH}/stress", "--lf")
    assert (code, "from receipts" in out) == (0, True)
    assert "note: nothing failed last time: all checks are run" in out


def test_at_most_32_rows_are_kept_the_newest_first(tmp_path: Path) -> None:
    book = RowBook(tmp_path)
    for i in range(MAX_ROWS + 8):
        operands = {"x": {"dtype": "uint16", "shape": [1], "bits": [i]}}
        row = {"id": "k/p/i/stress", "shape": {"d": 1}, "operands": operands, "scalars": {},
               "note": ""}  # fmt: skip
        book.add("no_module", row)
        book.add("no_module", row)
    kept = json.loads((tmp_path / "rows" / "k.json").read_text())["rows"]
    assert [row["operands"]["x"]["bits"][0] for row in kept] == list(
        np.arange(MAX_ROWS + 8)[::-1][:MAX_ROWS]
    )


@pytest.mark.parametrize(
    ("require", "extra", "said"),
    [
        ("nosuch", "", "PROBLEM: required 'nosuch' did not run: no implementation or engine"),
        (
            "gone",
            "@contract.implementation('scaled', name='gone', requires=('absent_package_x',))\n",
            "required 'gone': none of its 12 checks ran (absent_package_x is not installed)",
        ),
    ],
)
def test_a_required_backend_that_does_not_run_ends_1_and_is_named(
    project: Path, contract_run: Run, require: str, extra: str, said: str
) -> None:
    if extra:
        with (project / "contracts" / "scaled.py").open("a") as file:
            file.write(f"\n\n{extra}def gone(**_): raise AssertionError\n")
    # without the requirement it is not run, and no failure
    words = ("-k", "gone or (torch and limits)")
    assert contract_run(*words)[0] == 5
    table = f'suites = ["contracts"]\nrequire = ["{require}"]\n'
    (project / "pyproject.toml").write_text(f"[tool.contract]\n{table}")
    code, out, _ = contract_run(*words)
    assert code == 1
    assert said in out
    assert "0 failed, " in out.splitlines()[-1]


# Bad files: one clear line


def test_corrupt_rows_end_4_in_one_line(project: Path, contract_run: Run) -> None:
    rows = project / ".contract" / "rows" / "scaled.json"
    rows.parent.mkdir(parents=True)
    for text, said in (
        ("{", "is not a file of rows"),
        ('{"schema": 1, "rows": [{"id": 3}]}', "rows[0].note: missing"),
    ):
        rows.write_text(text)
        code, out, err = contract_run(f"{TORCH}/stress")
        assert (code, out, err.count("\n")) == (4, "", 1)
        assert err.startswith(f"contract: {rows}")
        assert said in err or "missing" in err


def test_a_row_that_no_longer_fits_is_left_out(project: Path, contract_run: Run) -> None:
    def row(bits: int, dtype: str, **shape: int) -> dict[str, Any]:
        operand = {"dtype": dtype, "shape": [1, 1], "bits": [bits]}
        return {"id": f"{TORCH}/stress", "shape": shape, "note": "", "scalars": {},
                "operands": {"x": operand, "y": operand}}  # fmt: skip

    rows = project / ".contract" / "rows" / "scaled.json"
    rows.parent.mkdir(parents=True)
    old = [
        row(70_000, "uint32", rows=1, d=1),
        row(0, "uint16", rows=1),
        row(0, "uint16", rows=1, d=1),
    ]
    rows.write_text(json.dumps({"schema": 1, "rows": old}))
    code, _, _ = contract_run(f"{TORCH}/stress", "--json", "r.json")
    (check,) = report()["checks"]
    assert (code, check["outputs_compared"]) == (0, 64 * 8 + 1)


def test_records_are_written_compared_and_refused_where_broken(
    project: Path, contract_run: Run
) -> None:
    limits = f"{TORCH}/limits"
    record = project / "contracts" / "records" / "scaled.json"
    code, out, _ = contract_run(limits)
    assert f"no folder {record.parent}; --update-records makes it" in out
    # writing is a success
    code, out, _ = contract_run("-k", "torch and limits", "--update-records")
    assert code == 0, out
    assert f"note: made {record.parent}\n" in out
    assert f"note: recorded {limits}" in out
    assert contract_run(limits)[0] == 0
    record.unlink()
    code, out, _ = contract_run(limits)
    assert code == 1
    assert f"no record for {TORCH}/plain" in out
    assert "note: made" not in contract_run(limits, "--update-records")[1]
    assert contract_run(limits)[0] == 0
    edit(record, '"threads": 0', '"threads": 1')
    code, out, _ = contract_run(limits)
    assert (code, "improved, run --update-records: threads 1 -> 0" in out) == (1, True)
    record.write_text("{")
    code, out, err = contract_run(limits)
    assert (code, err, "Traceback" in out) == (1, "", False)
    assert f"record {record}: " in out
    assert "delete it and run with --update-records" in out


def test_arguments_that_do_not_fit_are_told_once(project: Path, contract_run: Run) -> None:
    edit(
        project / "contracts" / "scaled.py",
        "scaled_torch(x: Any, y: Any,",
        "scaled_torch(inp: Any,",
    )
    code, out, _ = contract_run("-k", "minus and torch")
    said = "does not take the contract's arguments (missing a required argument: 'inp'): it is "
    assert code == 1
    assert f"FAIL scaled,sign=minus/two_step/torch/shapes\n    {said}" in out
    assert f"not run: see shapes: {said}" in out
    assert "0 passed, 1 failed, 5 skipped" in out
    # alone, a gate says it itself
    code, out, _ = contract_run("scaled,sign=minus/two_step/torch/limits")
    assert (code, f"torch/limits\n    {said}" in out) == (1, True)


def test_a_records_folder_that_cannot_be_made_ends_4_in_one_line(
    project: Path, contract_run: Run
) -> None:
    (project / "contracts" / "records").write_text("a file")
    code, out, err = contract_run(f"{TORCH}/limits", "--update-records")
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith(f"contract: {project / 'contracts' / 'records'}: cannot be made: ")


def test_a_store_that_cannot_be_written_ends_4_in_one_line(
    project: Path, contract_run: Run
) -> None:
    (project / ".contract").write_text("a file")
    code, out, err = contract_run(f"{TORCH}/shapes")
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith(f"contract: {project / '.contract'}")


def test_a_suite_that_only_the_judge_cannot_load_ends_the_run_in_one_line(
    project: Path, contract_run: Run
) -> None:
    text = f"import os\nif os.getpid() != {os.getpid()}:\n    raise OSError('no device')\n"
    path = project / "contracts" / "scaled.py"
    path.write_text(path.read_text().replace("import contract\n", f"import contract\n{text}", 1))
    code, out, err = contract_run(TORCH)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert err.startswith("contract: the judge process cannot load the suites: suite ")
    assert "OSError: no device" in err


# Faults of processes

REDS = {
    "segfault": ("crash", "(SIGSEGV) at faults.py:"),
    "abort": ("crash", "SIGABRT"),
    "terminates_itself": ("crash", "SIGTERM"),
    "system_exit": ("crash", "SystemExit"),
    "os_exit_0": ("crash", "exit"),
    "c_loop_with_the_gil": ("timeout", "no call finished for 3 s"),
    "python_loop": ("timeout", "no call finished for 3 s"),
    "out_of_memory": ("out_of_memory", ""),
    "raises": ("crash", "ValueError: no such tile (faults.py:"),
    "raises_unprintable": ("crash", "Unprintable"),
    "recursion": ("crash", "RecursionError"),
    "missing_module": ("crash", "No module named 'absent_package_x'"),
    "keyboard_interrupt": ("crash", "KeyboardInterrupt"),
    "wrong_shape": ("fail", "output out has shape (15,), the contract needs (3, 5)"),
    "wrong_dtype": (
        "fail",
        "output out has dtype torch.float32, the contract needs torch.bfloat16",
    ),
    "returns_none": ("fail", "output out is NoneType, not a tensor"),
    "returns_a_list": ("fail", "returned 2 outputs, the contract has 1"),
    "all_nan": ("fail", "got 0x7fc0 (nan)"),
    "returns_its_input": ("fail", "output out shares memory with input x"),
    "returns_a_view": ("fail", "output out shares memory with input x"),
    "writes_its_input": ("fail", "wrote to its input x"),
    "prints_garbage": ("fail", "outputs are not allowed"),
    "closes_every_file": ("crash", ""),
    "kills_its_parent": ("crash", ""),
    "forks": ("fail", "outputs are not allowed"),
    "patches_torch": ("fail", "outputs are not allowed"),
    "patches_the_judge": ("fail", "outputs are not allowed"),
}


def test_every_fault_of_a_process_is_a_named_red_and_the_run_completes(
    project: Path, contract_run: Run
) -> None:
    shutil.copy(SUITE / "faults.py", project / "faults.py")
    keywords = "(shapes and not writes_its_input) or (writes_its_input and bounds)"
    code, out, err = contract_run(
        "faults.py", "-k", keywords, "--timeout", "3", "--memory", "1G", "-j", "1",
        "--json", "r.json",
    )  # fmt: skip
    found = {check["implementation"]: check for check in report()["checks"]}
    assert found.pop("z_right_after_all_of_them")["outcome"] == "pass"
    assert set(found) == set(REDS)
    for name, (outcome, said) in REDS.items():
        assert (name, found[name]["outcome"]) == (name, outcome), found[name]
        assert said.lower() in found[name]["detail"].lower(), found[name]
        assert f"{outcome.upper().replace('_', ' ')} {found[name]['id']}\n" in out
    assert (code, err, "Traceback" in out) == (1, "", False)
    assert out.splitlines()[-1] == f"1 passed, {len(REDS)} failed, 0 skipped"


def test_a_kernel_that_kills_the_fork_server_of_all_judges_ends_no_check(
    project: Path, contract_run: Run
) -> None:
    shutil.copy(FAULTS / "kills_the_server.py", project / "contracts")
    code, out, err = contract_run(
        "-k", "(kills_the_server or torch) and (shapes or exact)", "--json", "r.json"
    )
    server, above = map(int, (project / "contracts" / "killed").read_text().split())
    # it was the run's own server, and no judge's
    assert above == os.getpid()
    assert not Path(f"/proc/{server}").exists()
    assert (code, err, "Traceback" in out) == (1, "", False)
    found = {check["id"]: check for check in report()["checks"]}
    assert len(found) == 8
    for name, check in found.items():
        if "kills_the_server" in name:
            assert (check["outcome"], "outputs are not allowed" in check["detail"]) == (
                "fail",
                True,
            )
        else:
            assert check["outcome"] == "pass", check


# A run that is killed

DRIVER = """
import sys
from contract import suites
suites.entry_points = lambda group: []
from contract.cli import main
sys.exit(main(["run", "--effort", "quick", *sys.argv[1:]]))
"""


def start(mark: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *words],
        env={**os.environ, "CONTRACT_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def living(mark: str) -> list[int]:
    """Processes that were started under this mark and still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"CONTRACT_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


#: Kills of the nightly run; of its sampled form.
KILLS = 3 if SAMPLED else 10


@pytest.mark.parametrize("count", [2, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_a_killed_run_leaves_no_process_and_its_rerun_gives_the_whole_report(
    project: Path, count: int
) -> None:
    assert start("whole", "--json", "whole.json").wait() == 0
    shutil.rmtree(project / ".contract")
    # after so many finished checks, of 44, of which 2 do not run
    for turn, moment in enumerate(random.Random(count).sample(range(1, 36), count)):
        mark = f"{os.getpid()}.{moment}"
        process = start(mark)
        until = time.monotonic() + 120
        checks = project / ".contract" / "checks"
        while sum(1 for _ in checks.glob("*/*.json")) < moment and process.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.005)
        assert process.poll() is None, "the run ended before it could be killed"
        if turn % 2:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
        process.wait()
        until = time.monotonic() + 20
        while (left := living(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left
        assert start(mark, "--json", "again.json").wait() == 0
        assert comparable("again.json") == comparable("whole.json")
        # the 2 that do not run are stored, and judged again
        assert report("again.json")["summary"]["from_receipts"] >= moment - 2
        shutil.rmtree(project / ".contract")


def test_lf_does_not_run_everything_where_the_file_of_what_failed_is_not_named(
    project: Path, contract_run: Run
) -> None:
    mine = project / "mine.py"
    mine.write_text(
        "import contract\n\n\n"
        '@contract.implementation("scaled", name="mine", profile="two_step")\n'
        "def mine(x, s):\n    return x * 0\n"
    )
    ids = f"{TORCH.removesuffix('torch')}mine/shapes"
    assert contract_run("mine.py", ids)[0] == 1
    code, _, err = contract_run("--lf")
    assert code == 4
    assert f"--lf: {ids} failed last time (1 in all), and no file that is here declares it" in err
    code, out, _ = contract_run("mine.py", "--lf")
    assert (code, "1 of " in out) == (1, True)
