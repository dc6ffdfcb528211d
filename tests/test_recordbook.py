"""Records of resources: which entries are leftovers, where only part of a folder is loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from contract import runner, suites
from contract.case import Kernel
from contract.config import read_config
from contract.declare import Contract, Profile, output, tensor
from contract.recordbook import (
    RESOURCES,
    architecture,
    drop_unused,
    folder_of,
    read,
    unused,
    update,
    wholly_loaded,
)

OTHER = """
import contract

@contract.implementation("scaled", name="other", sign="plus")
def other(x, y, scale):
    return x * scale + y
"""
ID = "scaled/two_step"


def entry(implementation: str, **more: Any) -> dict[str, Any]:
    return {"kernel": ID, "implementation": implementation, "launch": "plain",
            "architecture": architecture(), "torch": "1.0", "shape": {"d": 32, "rows": 4},
            "resources": dict.fromkeys(RESOURCES, 1), **more}  # fmt: skip


def write(path: Path, *entries: dict[str, Any], waivers: Any = ()) -> None:
    path.parent.mkdir(exist_ok=True)
    data = {"schema": 1, "kernel": path.stem, "entries": entries, "waivers": list(waivers)}
    path.write_text(json.dumps(data))


def names(path: Path) -> list[str]:
    return [e["implementation"] for e in read(path)["entries"]]


# Leftovers


def test_what_nothing_uses_is_dropped_and_the_rest_stays(tmp_path: Path) -> None:
    path, untouched = tmp_path / "scaled.json", tmp_path / "affine.json"
    waiver = {"kernel": ID, "implementation": "torch", "launch": "plain", "limit": 2,
              "architecture": architecture(), "resource": "threads", "reason": "a test"}  # fmt: skip
    # another machine's entry of a kernel that is there is none
    write(
        path, entry("gone"), entry("torch"), entry("torch", architecture="sparc"), waivers=[waiver]
    )
    write(untouched, entry("torch"))
    text = untouched.read_text()
    known = {(ID, "torch", "plain")}
    (problem,) = unused(tmp_path, known)
    assert problem.startswith(f"unused record {ID}/gone/plain/{architecture()} in scaled.json; ")
    drop_unused(tmp_path, known)
    assert unused(tmp_path, known) == []
    assert [e["architecture"] for e in read(path)["entries"]] == [architecture(), "sparc"]
    assert read(path)["waivers"] == [waiver]
    assert untouched.read_text() == text


def test_an_update_replaces_its_own_entry_alone(tmp_path: Path) -> None:
    contract = Contract(
        name="scaled", family="sums", reference=lambda r, x: r.round("out", x + x),
        operands=(tensor("x", "rows d"), output("out", "rows d")),
        profiles=(Profile("two_step", {"out": "bf16"}),), row_dims=("rows",),
        shapes=({"rows": 4, "d": 32},), not_applicable={"exact": "a test"},
    )  # fmt: skip
    kernel = Kernel(contract, {}, contract.profiles[0])
    path = tmp_path / "records" / "scaled.json"
    write(path, entry("torch"), entry("torch", architecture="sparc"), entry("other"))
    update(path, kernel, "torch", "plain", dict.fromkeys(RESOURCES, 7))
    found = {(e["implementation"], e["architecture"]): e["resources"]["threads"]
             for e in read(path)["entries"]}  # fmt: skip
    assert found == {
        ("other", architecture()): 1, ("torch", architecture()): 7, ("torch", "sparc"): 1,
    }  # fmt: skip


# Partly loaded folders


def loaded_from(path: Path, monkeypatch: pytest.MonkeyPatch, **attributes: Any) -> str:
    """A module that was imported from a file."""
    module = ModuleType(f"suite_of_a_test_{path.stem}")
    path.write_text("")
    vars(module).update(__file__=str(path), **attributes)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_a_folder_is_wholly_loaded_with_its_last_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "records"
    records.mkdir()
    one = loaded_from(tmp_path / "one.py", monkeypatch)
    assert folder_of(one) == records
    assert wholly_loaded(records)
    (tmp_path / "two.py").write_text("")
    assert not wholly_loaded(records)
    loaded_from(tmp_path / "two.py", monkeypatch)
    assert wholly_loaded(records)


def test_a_module_that_raises_when_asked_for_an_attribute_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    monkeypatch.setitem(sys.modules, "lazy_module_of_a_test", Lazy("lazy_module_of_a_test"))
    (tmp_path / "one.py").write_text("")
    assert not wholly_loaded(tmp_path / "records")


@pytest.mark.parametrize("suite", ["contracts/scaled.py", "contracts"])
def test_records_of_a_file_that_is_not_loaded_are_neither_unused_nor_dropped(
    project: Path, suite: str
) -> None:
    record = project / "contracts" / "records" / "scaled.json"
    (project / "contracts" / "other.py").write_text(OTHER)
    write(record, entry("torch"), entry("other"), entry("gone"))
    (project / "pyproject.toml").write_text(f'[tool.contract]\nsuites = ["{suite}"]\n')
    suites.load(read_config())
    checks = runner.collect(read_config())
    problems = runner._record_problems(checks)
    assert runner._update_records([], checks) == []
    if suite == "contracts":
        # wholly loaded: what no file registers is a leftover
        assert [text.split("/plain/")[0] for text in problems] == [f"unused record {ID}/gone"]
        assert names(record) == ["torch", "other"]
    else:
        assert problems == []
        assert names(record) == ["torch", "other", "gone"]
