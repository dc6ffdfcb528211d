"""In which order jobs are handed out, and that each is handed out once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import contract
from contract import registry, suites
from contract.checks import Check, collect_checks
from contract.config import read_config
from contract.jobs import Jobs

Register = Callable[..., None]


@pytest.fixture
def register(project: Path) -> Register:
    """Register a contract with two kernels like `scaled`, and an implementation of the first."""
    suites.load(read_config())
    scaled = registry.get("scaled")
    registry.clear()

    def add(name: str, rows: int, requires: tuple[str, ...] = ()) -> None:
        registry.register(replace(scaled, name=name, shapes=({"rows": rows, "d": 32},)))
        contract.implementation(name, name="torch", sign="plus", requires=requires)(
            lambda **_: None
        )

    return add


def kernels(job: list[Check]) -> str:
    """The kernel of a job, which has no other."""
    (kernel,) = {check.kernel for check in job}
    return kernel


def order(jobs: Jobs) -> list[str]:
    """The kernels in the order in which a single judge gets them."""
    found, last = [], ""
    while job := jobs.take(last):
        found.append(kernels(job))
        last = job[0].spec["name"]
    return found


def test_where_nothing_is_to_be_done_nothing_is_handed_out() -> None:
    jobs = Jobs([])
    assert (len(jobs), jobs.take(), jobs.take("scaled")) == (0, [], [])


def test_every_check_is_handed_out_once_to_several_threads(register: Register) -> None:
    for number in range(40):
        register(f"kernel_{number}", 1 + number % 7)
    checks = collect_checks()
    jobs = Jobs(checks)
    assert len(jobs) == 80

    def judge(_: int) -> list[str]:
        found, last = [], ""
        while job := jobs.take(last):
            kernels(job)
            found += [check.id for check in job]
            last = job[0].spec["name"]
        return found

    with ThreadPoolExecutor(4) as pool:
        found = [name for each in pool.map(judge, range(4)) for name in each]
    assert Counter(found) == Counter(check.id for check in checks)
    assert (len(jobs), jobs.take()) == (0, [])


def test_a_judge_keeps_to_its_contract_and_begins_with_the_dearest(register: Register) -> None:
    register("small", 1)
    register("large", 64)
    register("middle", 8)
    # of one contract the kernel with more checks comes first
    assert order(Jobs(collect_checks())) == [
        "large", "large,sign=minus", "middle", "middle,sign=minus", "small", "small,sign=minus",
    ]  # fmt: skip


def test_contracts_that_need_libraries_come_last(register: Register) -> None:
    register("needs_a_library", 64, ("library",))
    register("small", 1)
    assert order(Jobs(collect_checks())) == [
        "small", "small,sign=minus", "needs_a_library", "needs_a_library,sign=minus",
    ]  # fmt: skip


def test_contracts_that_need_several_libraries_come_last_of_all(register: Register) -> None:
    register("needs_two", 64, ("library", "another"))
    register("needs_one", 1, ("library",))
    register("small", 1)
    assert [name for name in order(Jobs(collect_checks())) if "," not in name] == [
        "small", "needs_one", "needs_two",
    ]  # fmt: skip


def test_a_contract_that_no_judge_is_at_comes_before_one_that_is_shared(
    register: Register,
) -> None:
    register("large", 64)
    register("small", 1)
    jobs = Jobs(collect_checks())
    assert [kernels(jobs.take()) for _ in range(2)] == ["large", "small"]
    assert [kernels(jobs.take(last)) for last in ("small", "small")] == [
        "small,sign=minus",
        "large,sign=minus",
    ]
    assert jobs.take("large") == []
