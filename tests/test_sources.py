"""The hashes on which a receipt rests: what is followed, and what a change reaches."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contract import sources
from contract.sources import closure, distribution_hash, framework_hash, module_files

ROOT = Path(__file__).parent.parent
Tree = Callable[[dict[str, str]], Path]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Write files below a folder that is on sys.path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_files_are_found_without_importing(tree: Tree) -> None:
    root = tree({"one/__init__.py": "1 / 0", "one/two.py": "1 / 0", "bare/three.py": "1 / 0"})
    path = str(root / "one" / "two.py")
    found = module_files(["one", "one.two", "bare", "bare.three", "one.no", "sys", path])
    assert found == {
        "one": root / "one" / "__init__.py",
        "one.two": root / "one" / "two.py",
        "bare.three": root / "bare" / "three.py",
        path: root / "one" / "two.py",
    }
    assert not {"one", "one.two", "bare", "bare.three"} & sys.modules.keys()


@pytest.mark.parametrize(
    ("text", "reached"),
    [
        ("import suite.b", ["suite.b"]),
        ("import suite.b as other", ["suite.b"]),
        ("import os, suite.b", ["suite.b"]),
        ("from suite import b", ["suite.b"]),
        ("from suite import b as other", ["suite.b"]),
        ("from suite.b import anything", ["suite.b"]),
        ("from suite.b import *", ["suite.b"]),
        ("from . import b", ["suite.b"]),
        ("from .b import anything", ["suite.b"]),
        ("from .deep import c", ["suite.deep", "suite.deep.c"]),
        ("from .deep.c import anything", ["suite.deep", "suite.deep.c"]),
        ("def f():\n  import suite.b", ["suite.b"]),
        ("class C:\n  async def f(self):\n    from . import b", ["suite.b"]),
        ("try:\n  pass\nexcept E:\n  import suite.b", ["suite.b"]),
        ("try:\n  pass\nfinally:\n  import suite.b", ["suite.b"]),
        ("if x:\n  pass\nelif y:\n  import suite.b", ["suite.b"]),
        ("for x in y:\n  pass\nelse:\n  import suite.b", ["suite.b"]),
        ("match x:\n  case 1:\n    import suite.b", ["suite.b"]),
        ("with x:\n  import suite.b", ["suite.b"]),
        ("x = importlib.import_module('suite.b')", ["suite.b"]),
        ("x = import_module('.b', __package__)", ["suite.b"]),
        ("x = [lazy('suite.b')]", ["suite.b"]),
        ("x = __import__('suite.b')", ["suite.b"]),
        ("import other.d", []),
        ("import os.path, numpy", []),
        ("from suite import an_attribute", []),
        ("x = import_module(name)", []),
        ("# import suite.b\n'import suite.b'", []),
    ],
)
def test_what_an_import_reaches(tree: Tree, text: str, reached: list[str]) -> None:
    tree({
        "suite/__init__.py": "", "suite/a.py": text, "suite/b.py": "b = 1",
        "suite/deep/__init__.py": "", "suite/deep/c.py": "c = 1", "other/d.py": "",
    })  # fmt: skip
    found = closure(["suite.a"], ["suite"])
    assert sorted(found) == sorted(["suite", "suite.a", *reached])
    assert found["suite.a"] == sha(text)
    if "suite.b" in reached:
        assert found["suite.b"] == sha("b = 1")


def test_imports_are_followed_through_packages_cycles_and_inits(tree: Tree) -> None:
    tree({
        "suite/__init__.py": "from . import hidden", "suite/hidden.py": "import other.x",
        "suite/a.py": "from .deep.c import f", "suite/deep/__init__.py": "from ..e import g",
        "suite/deep/c.py": "from ... import nothing\nfrom .. import a", "suite/e.py": "",
        "other/x.py": "import suite.f", "suite/f.py": "", "suite/unused.py": "",
    })  # fmt: skip
    reached = ["suite", "suite.a", "suite.deep", "suite.deep.c", "suite.e", "suite.hidden"]
    assert sorted(closure(["suite.a"], ["suite"])) == reached
    # A package that is not asked for ends the search; one that is, does not.
    both = closure(["suite.a"], ["suite", "other"])
    assert sorted(both) == ["other.x", *reached[:5], "suite.f", "suite.hidden"]
    # A prefix is a name, not its first letters.
    assert sorted(closure(["suite.a"], ["sui"])) == ["suite.a"]
    assert "suite.e" not in closure(["suite.a"], ["suite.deep"])


def test_a_change_is_seen_and_only_where_it_reaches(tree: Tree) -> None:
    root = tree({"suite/__init__.py": "", "suite/a.py": "import suite.b", "suite/b.py": "b = 1"})
    before = closure(["suite.a"], ["suite"])
    assert closure(["suite.a"], ["suite"]) == before
    (root / "suite" / "b.py").write_text("b = 22")
    after = closure(["suite.a"], ["suite"])
    assert {name for name in after if after[name] != before[name]} == {"suite.b"}
    # A new import is followed, too.
    tree({"suite/b.py": "import suite.c", "suite/c.py": ""})
    assert "suite.c" in closure(["suite.a"], ["suite"])


def test_what_is_absent_is_said(tree: Tree) -> None:
    tree(
        {
            "suite/__init__.py": "",
            "suite/a.py": "import suite.gone\nimport elsewhere",
            "suite/b.py": "import suite.deep.gone",
            "suite/deep/__init__.py": "",
            "ns/x.py": "",
        }
    )
    # The package of what is absent runs before that is noticed.
    assert "suite.deep" in closure(["suite.b"], ["suite"])
    found = closure(["suite.a", "suite.never", "ns.x"], ["suite", "ns"])
    assert found["suite.gone"] == found["suite.never"] == "absent"
    # A package without __init__ has no source of its own.
    assert sorted(found) == ["ns.x", "suite", "suite.a", "suite.gone", "suite.never"]
    tree({"suite/gone.py": ""})
    assert closure(["suite.a"], ["suite"])["suite.gone"] == sha("")


def test_a_file_by_its_path_brings_its_neighbours(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree({
        "contracts/mine.py": "import helper\nimport suite.b\nimport far", "contracts/helper.py": "",
        "suite/__init__.py": "", "suite/b.py": "", "far.py": "",
    })  # fmt: skip
    monkeypatch.syspath_prepend(str(root / "contracts"))
    path = str(root / "contracts" / "mine.py")
    assert sorted(closure([path], ["suite"])) == sorted([path, "helper", "suite", "suite.b"])


def test_device_code_beside_a_module_counts(tree: Tree) -> None:
    tree({"suite/__init__.py": "", "suite/a.py": "", "suite/a.cu": "__global__", "suite/b.cu": ""})
    found = closure(["suite.a"], ["suite"])
    assert sorted(found) == ["suite", "suite.a", "suite.a:a.cu"]
    assert found["suite.a:a.cu"] == sha("__global__")


def test_what_device_code_includes_counts_wherever_it_lies(tree: Tree) -> None:
    tree({"suite/__init__.py": "", "suite/a.py": "", "suite/a.cu": '#include "b.cuh"\n # include "../c.cuh"',
          "suite/b.cuh": '#include "a.cu"\n#include <d.cuh>', "c.cuh": "one", "d.cuh": ""})  # fmt: skip
    found = closure(["suite.a"], ["suite"])
    assert sorted(found) == [
        "suite",
        "suite.a",
        "suite.a:../c.cuh",
        "suite.a:a.cu",
        "suite.a:b.cuh",
    ]
    assert found["suite.a:../c.cuh"] == sha("one")


def test_a_linked_package_is_one_file(tree: Tree) -> None:
    root = tree({"kernels/__init__.py": "", "kernels/a.py": "from suite.linked import b",
                 "kernels/b.py": "", "suite/__init__.py": ""})  # fmt: skip
    (root / "suite" / "linked").symlink_to(root / "kernels")
    found = closure(["suite.linked.a"], ["suite.linked"])
    assert sorted(found) == ["suite.linked", "suite.linked.a", "suite.linked.b"]
    assert module_files(["suite.linked.a"])["suite.linked.a"] == root / "kernels" / "a.py"


def test_a_file_with_a_syntax_error_still_counts(tree: Tree) -> None:
    tree({"suite/__init__.py": "", "suite/a.py": "import ("})
    assert closure(["suite.a"], ["suite"])["suite.a"] == sha("import (")


def test_the_hash_of_a_distribution() -> None:
    assert distribution_hash("no-such-distribution") == "absent"
    numpy = distribution_hash("numpy")
    assert len(numpy) == 64
    assert distribution_hash("pytest") != numpy


def test_an_editable_distribution_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: mine\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert distribution_hash("mine") == sha("Name: mine\nVersion: 1.0\n")
    (info / "RECORD").write_text("mine.py,sha256=x,1\n")
    assert distribution_hash("mine") == sha("mine.py,sha256=x,1\n")
    (info / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    assert distribution_hash("mine").startswith("editable:")


def test_installed_suites_beside_the_framework_are_no_part_of_it(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree({"contract/sources.py": "", "contract/kernels/a.py": "", "contract/gates/b.py": ""})
    monkeypatch.setattr(sources, "__file__", str(root / "contract" / "sources.py"))
    before = framework_hash.__wrapped__()
    tree({"contract/kernels/a.py": "changed"})
    assert framework_hash.__wrapped__() == before
    tree({"contract/gates/b.py": "changed"})
    assert framework_hash.__wrapped__() != before


def test_the_framework_is_hashed_without_its_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def sha256(path: Path) -> str:
        seen.append(path)
        return ""

    monkeypatch.setattr(sources, "file_hash", sha256)
    framework_hash.__wrapped__()
    names = {str(path.relative_to(ROOT)) for path in seen}
    assert {"contract/worker.py", "contract/readings/range.py"} <= names
    assert all(name.startswith("contract/") for name in names)
    assert len(framework_hash()) == 64


def test_the_whole_project_is_read_fast() -> None:
    """A second reading, of stamps and hashes alone, costs a tenth of the first (0.2 s on two cores)."""
    modules = [f"contract.{path.stem}" for path in (ROOT / "contract").glob("*.py")]
    first = closure(modules, ["contract"])
    start = time.process_time()
    assert closure(modules, ["contract"]) == first
    assert time.process_time() - start < 0.3
    assert os.fspath(ROOT / "contract") not in first
