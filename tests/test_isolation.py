"""What one target does to the process in which it runs neither saves nor spoils another."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import suites
from contract.checks import collect_checks
from contract.config import read_config
from contract.judge_process import Judge

LEAKS = Path(__file__).parent / "faults" / "leaks.py"
LEAKING = ["default_dtype", "denormals", "patch"]
Judged = Callable[..., dict[str, tuple[str, int]]]


@pytest.fixture
def judged(project: Path) -> Iterator[Judged]:
    """(outcome, outputs compared) of checks by id, judged in this order by one judge."""
    shutil.copy(LEAKS, project / "contracts" / "leaks.py")
    loaded = suites.load(read_config())
    checks = {check.id: check for check in collect_checks()}
    options = {"effort": "quick", "seed": 0, "timeout": 60.0, "memory": 8 << 30,
               "suites": loaded.payload()}  # fmt: skip
    judges = []

    def run(*names: str) -> dict[str, tuple[str, int]]:
        said: list[Any] = []
        judge = Judge(options, said.append)
        judges.append(judge)
        for name in names:
            judge.judge(
                {"kernel": checks[name].spec, "checks": [checks[name].as_json()], "rows": []}
            )
        return {
            one["result"]["id"]: (one["result"]["outcome"], one["result"]["outputs_compared"])
            for one in said
        }

    yield run
    for judge in judges:
        judge.close()


def pids(project: Path) -> dict[str, list[str]]:
    """Of each target the processes in which it ran."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for line in (project / "contracts" / "pids").read_text().splitlines():
        name, pid = line.split()
        found[name][pid] = None
    return {name: list(each) for name, each in found.items()}


def gate(implementation: str, name: str = "shapes") -> str:
    return f"scaled/two_step/{implementation}/{name}"


@pytest.mark.parametrize("leak", LEAKING)
def test_an_implementation_is_judged_as_if_alone(judged: Judged, leak: str) -> None:
    first, others = gate(f"leaks_{leak}"), (gate("spoiled"), gate("saved"))
    alone = {**judged(first), **judged(others[0]), **judged(others[1])}
    assert [outcome for outcome, _ in alone.values()] == ["pass", "pass", "fail"]
    assert judged(first, *others) == alone
    assert judged(*others, first) == alone


@pytest.mark.parametrize("leak", LEAKING)
def test_planted_controls_share_no_worker_with_implementations(
    project: Path, judged: Judged, leak: str
) -> None:
    control = f"scaled/two_step/green.leaks_{leak}"
    found = judged(control, gate("spoiled"), control)
    assert [outcome for outcome, _ in found.values()] == ["green_as_planted", "pass"]
    ran = pids(project)
    # one that leaves its worker changed ends it
    assert {name: len(each) for name, each in ran.items()} == {
        f"green.leaks_{leak}": 2,
        "spoiled": 1,
    }
    assert not set(ran[f"green.leaks_{leak}"]) & set(ran["spoiled"])


SECOND = """
import os
from pathlib import Path


def noted(name: str) -> None:
    @contract.green(name, profile="two_step", name="noted", sign="plus")
    def control(x: Any, y: Any, scale: float) -> Any:
        with Path(__file__).with_name("pids").open("a") as file:
            file.write(f"{name} {os.getpid()}\\n")
        return y + x.mul(scale) if torch.ones(1) * 3 == 3 else x


noted("scaled")
noted("scaled_too")
"""


@pytest.fixture
def second(project: Path) -> None:
    """A second contract beside `scaled`, and a control of each that says where it ran."""
    text = (project / "contracts" / "scaled.py").read_text().replace('"scaled"', '"scaled_too"')
    text = text.replace("import contract\n", "import torch\n\nimport contract\n", 1)
    (project / "contracts" / "scaled_too.py").write_text(text + SECOND)


def test_planted_controls_of_two_contracts_share_a_worker_that_none_has_changed(
    project: Path, second: None, judged: Judged
) -> None:
    names = "scaled/two_step/green.noted", "scaled_too/two_step/green.noted"
    assert {outcome for outcome, _ in judged(*names).values()} == {"green_as_planted"}
    ran = pids(project)
    assert len(ran["scaled"]) == 1
    assert ran["scaled"] == ran["scaled_too"]
    # one that was left changed serves no other contract either
    found = judged("scaled/two_step/green.leaks_patch", names[1])
    assert {outcome for outcome, _ in found.values()} == {"green_as_planted"}


def test_a_worker_is_kept_until_a_gate_is_red(project: Path, judged: Judged) -> None:
    kept = [gate("spoiled"), gate("spoiled", "exact"), "scaled,sign=minus/two_step/spoiled/shapes"]
    assert [outcome for outcome, _ in judged(*kept).values()] == ["pass"] * 3
    judged(gate("saved"), gate("saved", "exact"))
    assert {name: len(each) for name, each in pids(project).items()} == {"spoiled": 1, "saved": 2}


@pytest.mark.parametrize("leak", LEAKING)
def test_a_red_control_is_not_red_by_what_another_left(judged: Judged, leak: str) -> None:
    found = judged(f"scaled/two_step/red.leaks_{leak}", "scaled/two_step/red.no_fault")
    assert [outcome for outcome, _ in found.values()] == ["red_as_planted", "missed"]


def test_two_functions_of_one_name_share_no_worker(judged: Judged) -> None:
    found = judged(gate("twin"), "scaled,sign=minus/two_step/twin/shapes")
    assert [outcome for outcome, _ in found.values()] == ["pass", "pass"]


@pytest.mark.parametrize("name", ["other_argument", "no_result"])
def test_a_control_that_is_no_kernel_shows_no_fault(judged: Judged, name: str) -> None:
    assert judged(f"scaled/two_step/red.{name}") == {f"scaled/two_step/red.{name}": ("crash", 0)}


@pytest.mark.parametrize("name", ["elsewhere", "spoiled"])
def test_an_engine_that_is_not_there_runs_nothing(judged: Judged, name: str) -> None:
    id = gate(f"{name}+cuda")
    found = judged(id)
    assert found == {id: ("not_run", 0)}, found
