"""The pytest plugin, in small projects of its own."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
SUITE = Path(__file__).parent / "suite" / "scaled.py"
WORDS = ("--contract-effort", "quick", "-p", "no:randomly")


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """A project with the suite `scaled` and one plain test."""
    (pytester.path / "contracts").mkdir()
    shutil.copy(SUITE, pytester.path / "contracts" / "scaled.py")
    (pytester.path / "pyproject.toml").write_text('[tool.contract]\nsuites = ["contracts"]\n')
    pytester.makepyfile(test_plain="def test_plain(): pass\n")
    # the suites of the installed packages are not this project's
    pytester.makeconftest("from contract import suites\nsuites.entry_points = lambda group: []\n")
    return pytester.path


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-rA", *words)


def ids(result: pytest.RunResult) -> dict[str, str]:
    """id -> outcome, of the lines that -rA prints."""
    lines = (re.match(r"(PASSED|FAILED|SKIPPED) (\S+?)(?: - .*)?$", x) for x in result.outlines)
    return {m[2].split("::")[-1]: m[1] for m in lines if m}


def test_unasked_it_does_nothing_and_imports_nothing(
    pytester: pytest.Pytester, folder: Path
) -> None:
    pytester.makepyfile(
        test_plain="import sys\ndef test_plain():\n"
        "    assert not {'torch', 'numpy', 'contract.registry'} & set(sys.modules)\n"
    )
    (folder / "conftest.py").unlink()
    result = run(pytester)
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*contract:*")


def test_contract_collects_the_checks_of_contract_run(
    pytester: pytest.Pytester, folder: Path
) -> None:
    driver = ("from contract import suites; suites.entry_points = lambda group: [];"
              "import sys; from contract.cli import main; sys.exit(main(sys.argv[1:]))")  # fmt: skip
    wanted = pytester.run(sys.executable, "-c", driver, "run", "--co").outlines[:-1]
    result = pytester.runpytest_subprocess("--contract", "--collect-only", "-q")
    assert [line for line in result.outlines if line.startswith("scaled")] == wanted
    assert len(wanted) == 44

    result = run(pytester, "--contract", *WORDS, "-k", "torch or rounds_once or test_plain")
    # 12 gates of which 2 have no record, one control, the plain test
    result.assert_outcomes(passed=12, skipped=2, deselected=31)
    result.stdout.fnmatch_lines(
        ["contract: 13 checks: 2 not run, 10 pass, 1 red as planted; * outputs compared"]
    )
    assert result.ret == 0


def test_a_red_kernel_fails_with_its_message_and_lf_finds_it(
    pytester: pytest.Pytester, folder: Path
) -> None:
    path = folder / "contracts" / "scaled.py"
    path.write_text(path.read_text().replace("return product + y if", "return product - y if"))
    name = "scaled/two_step/torch/shapes"
    words = ("--contract", *WORDS, "-k", "two_step/torch/shapes or test_plain")
    result = run(pytester, *words)
    result.assert_outcomes(passed=2, failed=1, deselected=42)
    result.stdout.fnmatch_lines(
        [
            f"*_ {name} _*",
            f"{name}: fail",
            "*outputs are not allowed (typical rows=3 d=5, launch plain)",
            "*: out[[]0, 0]: got 0x*, allowed 0x* only, *",
            f"reproduce: contract run {name} --effort quick",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*contract/runner.py*")
    result = run(pytester, *words, "--lf")
    result.assert_outcomes(failed=1, deselected=44)


MINE = """
import contract
@contract.implementation("scaled", sign="plus")
def mine(x, y, scale):
    return x * {factor}scale + y
def test_of_its_own():
    assert mine
"""


@pytest.mark.parametrize(
    ("factor", "outcomes"), [("", {"passed": 7}), ("2 * ", {"passed": 3, "failed": 4})]
)
def test_a_file_given_by_name_is_judged_alone(
    pytester: pytest.Pytester, folder: Path, factor: str, outcomes: dict[str, int]
) -> None:
    pytester.makepyfile(test_mine=MINE.format(factor=factor))
    result = run(pytester, "--contract", "test_mine.py", *WORDS)
    judged = {id for id in ids(result) if id.startswith("scaled")}
    assert all("/mine/" in id or id.endswith("/reference") for id in judged)
    assert len(judged) == 6
    result.assert_outcomes(**outcomes, skipped=1)
    if factor:
        result.stdout.fnmatch_lines(
            ["reproduce: contract run *test_mine.py scaled/*/mine/shapes *"]
        )


ONE = """
import contract
@contract.implementation("scaled", sign="plus")
def one(x, y, scale):
    return x * scale + y
"""
TWO = """
import contract
from one import one
@contract.implementation("scaled", sign="plus")
def two(x, y, scale):
    return one(x, y, scale)
"""


@pytest.mark.parametrize("place", [".", "deep"])
def test_a_file_that_imports_a_sibling_is_judged(
    pytester: pytest.Pytester, folder: Path, place: str
) -> None:
    home = folder / place
    home.mkdir(exist_ok=True)
    (home / "one.py").write_text(ONE)
    (home / "two.py").write_text(TWO)
    (home / "records").mkdir()
    record = {"kernel": "scaled", "schema": 1, "entries": [], "waivers": []}
    (home / "records" / "scaled.json").write_text(json.dumps(record))
    result = run(pytester, "--contract", f"{place}/two.py", *WORDS, "-k", "shapes or limits")
    outcomes = ids(result)
    assert outcomes.pop("scaled/two_step/two/shapes") == "PASSED"
    # the judge knows the folder beside the file
    assert list(outcomes.values()) == ["FAILED"]
    result.stdout.fnmatch_lines(["no record for scaled/two_step/two/plain/*"])


def test_a_suite_that_pytest_imported_is_judged(pytester: pytest.Pytester, folder: Path) -> None:
    words = ("--contract", "contracts/scaled.py", *WORDS, "-k", "minus/two_step/torch/shapes")
    assert set(ids(run(pytester, *words)).values()) == {"PASSED"}


def test_suites_that_the_judge_cannot_load_are_told_once(
    pytester: pytest.Pytester, folder: Path
) -> None:
    path = folder / "contracts" / "scaled.py"
    text = "import sys\nif 'pytest' not in sys.modules:\n    raise OSError('no device')\n"
    path.write_text(path.read_text().replace("import contract\n", f"import contract\n{text}", 1))
    result = run(pytester, "--contract", *WORDS, "-k", "minus and torch")
    result.assert_outcomes(failed=1, deselected=39)
    result.stdout.fnmatch_lines(
        [
            "the judge process cannot load the suites: suite *OSError: no device",
            "*no check can be judged*",
        ]
    )


def test_what_a_collected_test_registers_is_judged(pytester: pytest.Pytester, folder: Path) -> None:
    pytester.makepyfile(test_mine=MINE.format(factor=""))
    result = run(pytester, "--contract", *WORDS, "-k", "mine and shapes")
    assert ids(result) == {"scaled/two_step/mine/shapes": "PASSED"}


def test_it_works_under_xdist(pytester: pytest.Pytester, folder: Path) -> None:
    pytest.importorskip("xdist")
    result = run(pytester, "--contract", *WORDS, "-n2", "-k", "minus and torch")
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(["contract: 6 checks: 1 not run, 5 pass; * outputs compared"])


def test_the_project_may_ask_in_its_table(pytester: pytest.Pytester, folder: Path) -> None:
    table = '[tool.contract]\nsuites = ["contracts"]\npytest = true\n'
    (folder / "pyproject.toml").write_text(table)
    result = pytester.runpytest_subprocess("--collect-only", "-q", "-k", "torch and exact")
    assert result.outlines[0] == "scaled/two_step/torch/exact"


@pytest.mark.parametrize(
    ("table", "said"),
    [("seeds = 3", "has no key 'seeds'"), ('suites = ["absent.py"]', "absent.py: no such file")],
)
def test_a_wrong_project_is_one_line(
    pytester: pytest.Pytester, folder: Path, table: str, said: str
) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.contract]\n{table}\n")
    result = pytester.runpytest_subprocess("--contract")
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: *{said}*"])
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_corrupt_rows_are_a_failure_in_one_line(pytester: pytest.Pytester, folder: Path) -> None:
    (folder / ".contract" / "rows").mkdir(parents=True)
    (folder / ".contract" / "rows" / "scaled.json").write_text("{")
    result = run(pytester, "--contract", *WORDS, "-k", "minus and torch and shapes")
    result.assert_outcomes(failed=1, deselected=44)
    result.stdout.fnmatch_lines(
        ["scaled,sign=minus/two_step/torch/shapes: *is not a file of rows*"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_required_name_that_nothing_has_fails_the_run(
    pytester: pytest.Pytester, folder: Path
) -> None:
    table = '[tool.contract]\nsuites = ["contracts"]\nrequire = ["nosuch"]\n'
    (folder / "pyproject.toml").write_text(table)
    result = run(pytester, "--contract", *WORDS, "-k", "test_plain")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["contract: required 'nosuch' did not run*"])


CHECKS = """
    import torch

    def operands():
        x = torch.arange(40.0).reshape(10, 4).bfloat16()
        return {"x": x, "y": -x}

    def test_right(contract_check):
        given = operands()
        contract_check("scaled", given["x"] * 1.25 + given["y"], scale=1.25, **given)

    def test_wrong(contract_check):
        given = operands()
        contract_check("scaled", given["x"], scale=1.25, **given)
"""


def test_the_fixture_judges_and_counts_in_a_plain_test(
    pytester: pytest.Pytester, folder: Path
) -> None:
    pytester.makepyfile(test_plain=CHECKS)
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*NotAllowed: scaled/two_step: 39 of 40 outputs are not allowed"])
    result.stdout.fnmatch_lines(["contract_check: 40 outputs compared"])
    result = run(pytester, "--contract-rows", "3", "-k", "right")
    result.stdout.fnmatch_lines(["contract_check: 12 outputs compared"])
