"""Suites load once, in order, under stable names; a fault is one line that names the place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from contract import registry, suites
from contract.config import Config
from contract.errors import DeclarationError, SuiteError

CONTRACT = """
from contract.declare import Contract, Profile, output, tensor
from contract import registry

def reference(r, x):
    return r.round("out", x + x)

registry.register(Contract(
    name="NAME", family="mine", reference=reference,
    operands=(tensor("x", "rows d"), output("out", "rows d")),
    profiles=(Profile("once", {"out": "bf16"}),), row_dims=("rows",), shapes=({"rows": 1, "d": 4},),
    not_applicable={"exact": "a test"}))
"""
IMPLEMENTATION = """
from contract import registry

@registry.implementation("NAME")
def plain(x):
    return x + x

@registry.red("NAME", profile="once", gate="shapes")
def copy(x):
    return x
"""

BAD_NAME = """from contract import registry

@registry.red("k", profile="p", gate="exact", name="a b")
def f(): pass
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty registry, no entry points, and no module of this test left behind."""
    for name in ("_contracts", "_implementations", "_controls"):
        monkeypatch.setattr(registry, name, {})
    monkeypatch.setattr(suites, "entry_points", lambda group: [])
    monkeypatch.setattr(suites, "_registered", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield
    for name, module in list(sys.modules.items()):
        if str(vars(module).get("__file__") or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(path: Path, text: str, name: str = "double") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("NAME", name))
    return path


def config(root: Path, *names: str, pythonpath: tuple[str, ...] = (".",)) -> Config:
    return Config(root / "pyproject.toml", root, names, pythonpath)


def test_a_folder_loads_its_files_sorted_under_stable_names(tmp_path: Path) -> None:
    write(tmp_path / "contracts" / "b.py", CONTRACT)
    write(tmp_path / "contracts" / "a.py", IMPLEMENTATION)
    write(tmp_path / "contracts" / "test_a.py", "raise AssertionError('a test is no suite')")
    loaded = suites.load(config(tmp_path, "contracts/"))
    assert loaded.files == [str(tmp_path / "contracts" / name) for name in ("a.py", "b.py")]
    assert list(registry.contracts()) == ["double"]
    (item,) = registry.implementations()
    assert item.module == suites.module_name(tmp_path / "contracts" / "a.py")
    assert item.module.startswith("contract_suite_a_")


def test_loading_twice_registers_once(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", CONTRACT + IMPLEMENTATION)
    suites.load(config(tmp_path, "mine.py"))
    loaded = suites.load(config(tmp_path, "mine.py"), ["mine.py"])
    assert loaded.files == [str(path)]
    assert loaded.chosen["mine.py"] == suites.Registered(
        frozenset({"double"}),
        frozenset({suites.Target("double", "once", "plain")}),
        frozenset({suites.Target("double", "once", "red.copy")}),
    )


def test_a_file_of_the_command_line_is_told_apart_from_the_others(tmp_path: Path) -> None:
    write(tmp_path / "contracts" / "a.py", CONTRACT)
    write(tmp_path / "mine.py", IMPLEMENTATION)
    loaded = suites.load(config(tmp_path, "contracts"), ["mine.py", "double"])
    assert list(loaded.chosen) == ["mine.py"]
    assert loaded.chosen["mine.py"] == suites.Registered(
        implementations=frozenset({suites.Target("double", "once", "plain")}),
        controls=frozenset({suites.Target("double", "once", "red.copy")}),
    )


def test_a_kernel_wins_over_a_folder_of_its_name(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", CONTRACT)
    (tmp_path / "double" / "once").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    suites.load(config(tmp_path, "mine.py"))
    assert not suites.is_file("double")
    assert not suites.is_file("double/once")
    assert suites.is_file("other")
    assert suites.is_file("absent.py")


def test_a_package_loads_its_submodules_and_the_packages_it_names(tmp_path: Path) -> None:
    write(tmp_path / "kern" / "__init__.py", "SUITE_PACKAGES = ('planted',)")
    write(tmp_path / "kern" / "b.py", CONTRACT, "two")
    write(tmp_path / "kern" / "a.py", CONTRACT, "one")
    write(tmp_path / "kern" / "sub" / "__init__.py", "")
    write(tmp_path / "kern" / "sub" / "c.py", CONTRACT, "three")
    write(tmp_path / "kern" / "__main__.py", "raise SystemExit")
    write(tmp_path / "planted" / "__init__.py", "")
    write(tmp_path / "planted" / "one.py", IMPLEMENTATION, "one")
    loaded = suites.load(config(tmp_path / "x", "kern", pythonpath=("..",)))
    assert loaded.modules == [
        "kern", "kern.a", "kern.b", "kern.sub", "kern.sub.c", "planted", "planted.one",
    ]  # fmt: skip
    assert list(registry.contracts()) == ["one", "three", "two"]
    assert loaded.sys_path == [str(tmp_path)]


def test_entry_points_come_first_sorted_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        write(tmp_path / f"module_{name}.py", CONTRACT, name)
    points = [
        EntryPoint("z", "module_one", suites.GROUP),
        EntryPoint("a", "module_two", suites.GROUP),
        # The same distribution seen twice (an egg-info in the working folder and one installed).
        EntryPoint("z", "module_one", suites.GROUP),
    ]
    monkeypatch.setattr(suites, "entry_points", lambda group: points)
    assert suites.load(config(tmp_path)).modules == ["module_two", "module_one"]


def test_a_file_that_a_sibling_has_imported_is_not_imported_again(tmp_path: Path) -> None:
    write(tmp_path / "contracts" / "a_controls.py", "import double\n" + IMPLEMENTATION)
    path = write(tmp_path / "contracts" / "double.py", CONTRACT)
    loaded = suites.load(config(tmp_path, "contracts", pythonpath=("contracts",)), [str(path)])
    assert loaded.modules == ["double"]
    assert loaded.chosen[str(path)].contracts == {"double"}


def test_a_file_that_a_sibling_imports_later_is_not_run_again(tmp_path: Path) -> None:
    write(tmp_path / "contracts" / "double.py", CONTRACT)
    path = write(tmp_path / "contracts" / "later.py", "from double import name\n" + IMPLEMENTATION)
    path.write_text(path.read_text().replace("import name", "import reference"))
    loaded = suites.load(config(tmp_path, "contracts", pythonpath=("contracts",)))
    assert [Path(file).name for file in loaded.files] == ["double.py", "later.py"]
    first = sys.modules[suites.module_name(tmp_path / "contracts" / "double.py")]
    assert sys.modules["double"] is first
    assert first.__spec__ is not None
    assert first.__spec__.name == first.__name__


def test_another_process_loads_the_same_from_json(tmp_path: Path) -> None:
    write(tmp_path / "lib" / "module_one.py", CONTRACT, "one")
    write(tmp_path / "mine.py", IMPLEMENTATION, "one")
    loaded = suites.load(config(tmp_path, "module_one", pythonpath=("lib",)), ["mine.py"])
    program = (
        "import json, sys; from contract import registry, suites;"
        " suites.reload(json.loads(sys.argv[1]));"
        " print([c for c in registry.contracts()], [i.module for i in registry.implementations()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(loaded.payload())],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    assert done.stdout.split() == ["['one']", f"['{suites.module_name(tmp_path / 'mine.py')}']"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\nimport absent_x\n", "bad.py:2: ModuleNotFoundError: No module named 'absent_x'"),
        ("def f(:\n", "bad.py:1: SyntaxError: invalid syntax"),
        ("\n\nraise ValueError('two\\nlines')\n", "bad.py:3: ValueError: two lines"),
        ("import sys\nsys.exit(0)\n", "bad.py:2: SystemExit: 0"),
        ("import os\nos._exit(0)\n", "bad.py:2: SystemExit: os._exit(0)"),
        # Not the line of the framework that refuses, but the one that declares.
        (BAD_NAME, "bad.py:3: DeclarationError: control name 'a b': use letters"),
        ("import json\njson.loads('{')\n", "bad.py:2: JSONDecodeError: "),
    ],
)  # fmt: skip
def test_a_suite_that_cannot_be_imported_is_one_line(
    tmp_path: Path, text: str, expected: str
) -> None:
    write(tmp_path / "bad.py", text)
    with pytest.raises(SuiteError) as caught:
        suites.load(config(tmp_path, "bad.py"))
    assert str(caught.value).startswith(f"suite {expected}")
    assert "\n" not in str(caught.value)
    assert suites.module_name(tmp_path / "bad.py") not in sys.modules


def test_a_child_that_a_suite_forks_ends_as_it_means_to(tmp_path: Path) -> None:
    forks = "import os\npid = os.fork()\nif not pid:\n    os._exit(7)\nASKED = os.waitpid(pid, 0)[1] >> 8\n"
    write(tmp_path / "forks.py", CONTRACT + forks)
    leave = os._exit
    suites.load(config(tmp_path, "forks.py"))
    assert sys.modules[suites.module_name(tmp_path / "forks.py")].ASKED == 7
    assert os._exit is leave


def test_a_broken_module_names_its_file(tmp_path: Path) -> None:
    write(tmp_path / "kern" / "__init__.py", "")
    write(tmp_path / "kern" / "a.py", "\n1 / 0\n")
    with pytest.raises(
        SuiteError, match=r"suite kern/a\.py:2: ZeroDivisionError: division by zero"
    ):
        suites.load(Config(None, tmp_path / "x", ("kern",), ("..",)))


def test_a_client_without_its_package_is_noted_but_any_other_fault_fails(tmp_path: Path) -> None:
    write(tmp_path / "lib" / "kern" / "__init__.py", "")
    write(tmp_path / "lib" / "kern" / "a.py", CONTRACT)
    write(tmp_path / "lib" / "kern" / "clients" / "__init__.py", "")
    client = write(tmp_path / "lib" / "kern" / "clients" / "x.py", "import absent_package_x.y")
    loaded = suites.load(config(tmp_path, "kern", pythonpath=("lib",)))
    assert loaded.missing == {"kern.clients.x": "absent_package_x"}
    assert "kern.clients.x" not in loaded.modules
    client.write_text("import kern.absent")
    with pytest.raises(
        SuiteError, match=r"x\.py:1: ModuleNotFoundError: No module named 'kern.absent'"
    ):
        suites.load(config(tmp_path, "kern", pythonpath=("lib",)))


@pytest.mark.parametrize(
    ("suite", "message"),
    [
        ("absent/", r"\[tool.contract\] suites: 'absent/' does not exist; give a folder"),
        ("absent.py", r"suite .*absent\.py: no such file"),
        ("absent_x.y", r"suite absent_x\.y: ModuleNotFoundError: No module named 'absent_x'"),
        ("empty", r"suite .*empty: the folder holds no \.py file"),
    ],
)
def test_a_suite_that_is_not_there_is_refused(tmp_path: Path, suite: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SuiteError, match=message):
        suites.load(config(tmp_path, suite))


def test_nothing_registered_is_nothing_to_judge(tmp_path: Path) -> None:
    with pytest.raises(suites.NothingToJudge, match=r"nothing to judge: .*contract init"):
        suites.load(config(tmp_path))


def test_an_implementation_of_no_contract_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "mine.py", IMPLEMENTATION)
    with pytest.raises(DeclarationError, match=r"no contract 'double'"):
        suites.load(config(tmp_path, "mine.py"))


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("implementation('absent')", "no contract 'absent'; there are name"),
        ("implementation('name/twice')", "no contract 'name/twice', which is an id: give 'name' and"),
        ("implementation('name', profile='twice')", "contract name: no profile 'twice'; profiles are"),
        ("implementation('name', form='tanh')", "implementation f: name has no parameters; take form= out"),
        ("implementation('name', order={'sum': 2})", "implementation f: order of 'sum'; freedoms of"),
        ("red('name', profile='once', gate='all')", "control name/f: gate 'all'; gates are"),
        ("green('name', profile='twice')", "contract name: no profile 'twice'; profiles are"),
    ],
)  # fmt: skip
def test_a_declaration_of_what_is_not_there_names_its_file_and_line(
    tmp_path: Path, declared: str, said: str
) -> None:
    write(tmp_path / "first.py", CONTRACT, "name")
    (tmp_path / "mine.py").write_text(
        f"import contract\n\n\n@contract.{declared}\ndef f(x):\n    return x\n"
    )
    with pytest.raises(DeclarationError) as caught:
        suites.load(config(tmp_path, "first.py"), ["mine.py"])
    assert str(caught.value).startswith(f"mine.py:4: {said}")


def test_suite_packages_that_are_no_tuple_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "lib" / "kern" / "__init__.py", "SUITE_PACKAGES = ('planted')")
    with pytest.raises(
        SuiteError, match=r"suite kern: SUITE_PACKAGES = 'planted'; make it a tuple"
    ):
        suites.load(config(tmp_path, "kern", pythonpath=("lib",)))
