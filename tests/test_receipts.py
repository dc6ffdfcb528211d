"""What a rerun takes from the store, and what makes it judge again."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract import device_tools, receipts, registry, suites
from contract.checks import Check, collect_checks
from contract.config import RunOptions, read_config
from contract.results import CheckResult
from contract.rowbook import RowBook
from contract.runner import _Run, replay
from contract.store import Store

Run = Callable[..., tuple[int, str, str]]
TORCH = "scaled/two_step/torch"
MINE = "scaled/two_step/mine/shapes"

PLANTED = """

@contract.red("scaled", profile="two_step", gate="shapes", expect="crash", sign="plus")
def dies(**_: Any) -> Any:
    raise OSError


@contract.red("scaled", profile="two_step", gate="shapes", sign="plus")
def wrong_dtype(x: Any, y: Any, scale: float) -> Any:
    return (x * scale + y).float()
"""


def test_a_control_that_is_red_before_anything_is_compared_is_taken(
    project: Path, contract_run: Run
) -> None:
    with (project / "contracts" / "scaled.py").open("a") as file:
        file.write(PLANTED)
    words = ("-k", "dies or wrong_dtype")
    assert "from receipts" not in contract_run(*words)[1]
    records = list(Store(project / ".contract").query(lambda record: True))
    assert [(r["outcome"], r["outputs_compared"]) for r in records] == [("red_as_planted", 0)] * 2
    code, out, _ = contract_run(*words)
    assert (code, "(2 checks from receipts)" in out, "unreadable" in out) == (0, True, False)


# What is stored, under the key of a check, may be no result of it


@pytest.fixture
def checks(project: Path) -> dict[str, Check]:
    suites.load(read_config())
    return {check.id: check for check in collect_checks()}


def options(project: Path, **more: Any) -> RunOptions:
    return RunOptions(effort="quick", store_root=project / ".contract", **more)


def run_of(project: Path, *checks: Check, **more: Any) -> _Run:
    chosen = options(project, **more)
    store, keys = Store(chosen.store_root), receipts.Keys(chosen)
    return _Run(list(checks), chosen, store, keys, lambda _: None, RowBook(chosen.store_root))


def result(check: Check, outcome: str, **more: Any) -> CheckResult:
    return CheckResult(
        check.id, check.kernel, check.profile, outcome, check.implementation,
        gate=check.gate, control=check.control, **{"outputs_compared": 8, **more},
    )  # fmt: skip


GATE, RED = f"{TORCH}/shapes", "scaled/two_step/red.rounds_once"
GREEN, REFERENCE = "scaled/two_step/green.other_order", "scaled/two_step/reference"


@pytest.mark.parametrize(
    ("name", "outcome", "compared"),
    [
        (GATE, "pass", 8),
        (GATE, "not_applicable", 0),
        (REFERENCE, "pass", 8),
        (RED, "red_as_planted", 8),
        (RED, "red_as_planted", 0),
        (GREEN, "green_as_planted", 8),
    ],
)
def test_a_finished_check_is_taken(
    project: Path, checks: dict[str, Check], name: str, outcome: str, compared: int
) -> None:
    run = run_of(project, checks[name])
    # another command line judged it first
    done = result(
        checks[name], outcome, outputs_compared=compared, reproduce="contract run other.py"
    )
    receipts.remember(run.store, run.key_of[name], done)
    assert run._from_store() == []
    again = replay(name, run.options)
    assert run.results == {name: dataclasses.replace(done, from_receipt=True, reproduce=again)}
    assert run.store.unreadable == []


@pytest.mark.parametrize("outcome", ["fail", "crash", "timeout", "not_run"])
def test_what_was_not_good_is_judged_again_without_a_word(
    project: Path, checks: dict[str, Check], outcome: str
) -> None:
    run = run_of(project, checks[GATE])
    receipts.remember(run.store, run.key_of[GATE], result(checks[GATE], outcome))
    assert [check.id for check in run._from_store()] == [GATE]
    assert run.store.unreadable == []


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        (GATE, {"outputs_compared": 0}),
        (REFERENCE, {"outputs_compared": 0}),
        (GREEN, {"outputs_compared": 0}),
        (GATE, {"outputs_compared": -1}),
        (GATE, {"outputs_compared": True}),
        (GATE, {"outputs_compared": "8"}),
        (GATE, {"detail": None}),
        (GATE, {"extra": 1}),
        (GATE, {"outcome": ["pass"]}),
        (GATE, {"outcome": {"a": 1}}),
        (GATE, {"one_value_share": "x"}),
        (GATE, {"widest_ulp": "abc"}),
        (GATE, {"engine": None}),
        (GATE, {"gate": 5}),
        (GATE, {"power": [1]}),
        (GATE, {"power": {"a": "x"}}),
        (GATE, {"notes": "abc"}),
        (GATE, {"measured": 5}),
        (GATE, {"seconds": "x"}),
        (GATE, {"required": 1}),
        (GATE, {"id": f"{TORCH}/stress"}),
        (GATE, {"kernel": "scaled,sign=minus"}),
        (GATE, {"profile": "once"}),
        (GATE, {"implementation": "another"}),
        (GATE, {"control": "red.rounds_once"}),
        (RED, {"control": "red.another"}),
        (GATE, {"gate": "stress"}),
        (GATE, {"outcome": "red_as_planted"}),
        (GATE, {"outcome": "green_as_planted"}),
        (REFERENCE, {"outcome": "red_as_planted"}),
        (RED, {"outcome": "pass"}),
        (RED, {"outcome": "green_as_planted"}),
        (GREEN, {"outcome": "red_as_planted"}),
    ],
)
def test_a_record_that_is_no_result_of_its_check_is_named_and_judged_again(
    project: Path, checks: dict[str, Check], name: str, changed: dict[str, Any]
) -> None:
    run = run_of(project, checks[name])
    outcome = {RED: "red_as_planted", GREEN: "green_as_planted"}.get(name, "pass")
    key = run.key_of[name]
    run.store.put(key, {**vars(result(checks[name], outcome)), **changed})
    assert [check.id for check in run._from_store()] == [name]
    assert run.results == {}
    assert run.store.unreadable == [str(run.store.root / "checks" / key[:2] / f"{key}.json")]


@pytest.mark.parametrize("update", [True, False])
def test_a_resource_that_was_recorded_was_not_compared(
    project: Path, checks: dict[str, Check], update: bool
) -> None:
    limits = checks[f"{TORCH}/limits"]
    run = run_of(project, limits, checks[GATE], update_records=update)
    for check in (limits, checks[GATE]):
        run._finish(dict(vars(result(check, "pass"))), None)
    left = [] if not update else [limits.id]
    assert [check.id for check in run_of(project, limits, checks[GATE])._from_store()] == left


# What a check depends on

FORMULA_END = "contract.register("
MINE_TEXT = """
import contract
import helper


@contract.implementation("scaled", name="mine", sign="plus")
def mine(x, y, scale):
    import vendor

    return helper.product(x, scale) + y
"""
HELPER = "def product(x, scale):\n    return x * scale\n"


@pytest.fixture
def parts(project: Path) -> Path:
    """`scaled` in parts: formula, registration, an implementation with a helper and a library that is installed."""
    suite = project / "contracts" / "scaled.py"
    head, _, tail = suite.read_text().partition(FORMULA_END)
    (project / "formula.py").write_text(head)
    suite.write_text(
        "from typing import Any\n\nimport contract\nfrom formula import exact_rows, scaled\n\n"
        + FORMULA_END
        + tail
    )
    (project / "contracts" / "mine.py").write_text(MINE_TEXT)
    (project / "helper.py").write_text(HELPER)
    (project / "other.py").write_text("")
    installed = project / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "vendor.py").write_text("")
    paths = 'suites = ["contracts"]\npythonpath = [".", "lib/site-packages"]\n'
    (project / "pyproject.toml").write_text(f"[tool.contract]\n{paths}")
    new_process()
    return project


def new_process() -> None:
    """Forget what is looked up once in a process."""
    for cached in (receipts._distribution, receipts._holders):
        cached.cache_clear()


@pytest.fixture
def key_of(parts: Path, contract_run: Run) -> Callable[[str], str]:
    """The key of a check, as a new process would find it."""

    def find(name: str) -> str:
        assert contract_run("--co")[0] == 0
        new_process()
        (check,) = (check for check in collect_checks() if check.id == name)
        return receipts.Keys(options(parts)).key(check)

    return find


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("helper.py", "x * scale", "scale * x"),
        ("helper.py", "def", "# a comment\ndef"),
        ("contracts/mine.py", "import helper", "import helper  # a comment"),
        ("formula.py", "out = x * scale + y", "out = y + x * scale"),
        ("contracts/scaled.py", '({"d": 8},)', '({"d": 16},)'),
        ("contracts/scaled.py", "import contract", "import contract  # a comment"),
    ],
)
def test_an_edit_of_what_a_check_depends_on_judges_again(
    parts: Path, key_of: Callable[[str], str], file: str, old: str, new: str
) -> None:
    assert registry.contracts() == {}
    before = key_of(MINE)
    assert registry.get("scaled").reference.__module__ == "formula"
    (parts / "other.py").write_text("# no part of it")
    assert key_of(MINE) == before
    text = (parts / file).read_text()
    assert old in text
    (parts / file).write_text(text.replace(old, new, 1))
    assert key_of(MINE) != before
    (parts / file).write_text(text)
    assert key_of(MINE) == before


@pytest.mark.parametrize("name", ["vendor", "sold_as_something_else"])
def test_another_record_of_an_installed_distribution_judges_again(
    parts: Path, key_of: Callable[[str], str], name: str
) -> None:
    info = parts / "lib" / "site-packages" / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("vendor\n")
    (info / "RECORD").write_text("vendor.py,sha256=one,1\n")
    before, torch = key_of(MINE), key_of(GATE)
    (info / "RECORD").write_text("vendor.py,sha256=two,1\n")
    assert key_of(MINE) != before
    # the implementation beside it does not import it
    assert key_of(GATE) == torch


@pytest.mark.parametrize("file", ["helper.py", "contracts/scaled.py"])
def test_what_a_source_edited_during_the_run_gave_is_not_stored(
    parts: Path, contract_run: Run, file: str
) -> None:
    edited = parts / file
    (parts / "helper.py").write_text(
        f"def product(x, scale):\n    open({str(edited)!r}, 'a').write('# edited\\n')\n"
        "    return x * scale\n"
    )
    code, out, err = contract_run(MINE)
    assert (code, err) == (1, "")
    assert out.count(f"PROBLEM: {edited} was edited during the run: run again\n") == 1
    assert "1 passed" in out
    assert Store(parts / ".contract").keys() == []


def test_another_assembler_judges_compiled_code_again(
    checks: dict[str, Check], project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    host = checks[f"{TORCH}/shapes"]
    compiled = dataclasses.replace(host, engine="ptx")

    def keys() -> tuple[str, str]:
        device_tools.tools.cache_clear()
        made = receipts.Keys(options(project))
        return made.key(host), made.key(compiled)

    before = keys()
    assert keys() == before
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh")
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    swapped = keys()
    assert swapped[0] == before[0]
    assert swapped[1] != before[1]
    tool.write_text("#!/bin/bash")
    assert keys()[1] not in (before[1], swapped[1])
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    assert keys() == before


USES = """
from pathlib import Path
import contract, torch
from contract import device_files

FILE = Path(__file__).parent / "device" / "{contract}.cu"
{declared}

@contract.red("{contract}", profile="float32", gate="shapes", name="nothing_{contract}")
def nothing(**operands):
    device_files.use(FILE)
    return torch.zeros_like(next(iter(operands.values())))
"""


def test_what_another_target_of_a_worker_used_is_not_held_against_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted kernels of several contracts share a worker."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "device").mkdir()
    names = ("residual_add", "softcap", "swiglu")
    for name in names:
        # no import shows what the last one uses
        declared = "device_files.declare((FILE,))" if name != "swiglu" else ""
        text = USES.replace("{contract}", name).replace("{declared}", declared)
        (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / "device" / f"{name}.cu").write_text("")

    def ran() -> str:
        words = ["run", *(f"{name}.py" for name in names), "--effort", "quick", "-j", "1"]
        words += ["-k", "nothing_"]
        done = subprocess.run(
            [sys.executable, "-m", "contract", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert ran().count("is not kept") == 1
    assert "(2 checks from receipts)" in ran()
