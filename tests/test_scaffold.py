"""`contract init` writes a suite that loads and is right, and a red control that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from contract import registry, scaffold, suites
from contract.cli import main
from contract.config import read_config


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


def test_init_writes_contracts_and_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init"]) == 0
    out = capsys.readouterr().out
    for part in (
        "wrote contracts/scaled_add.py\n",
        "wrote contracts/scaled_add_controls.py\n",
        "wrote contracts/records/\n",
        'suites = ["contracts/"]',
        "contract run scaled_add\n",
    ):
        assert part in out
    # A folder named contract would hide this package.
    assert [path.name for path in tmp_path.iterdir()] == ["contracts"]


def test_init_goes_where_it_is_told(tmp_path: Path) -> None:
    assert main(["init", "new/place"]) == 0
    assert (tmp_path / "new" / "place" / "contracts" / "scaled_add.py").is_file()


@pytest.mark.parametrize("name", ["scaled_add.py", "scaled_add_controls.py"])
def test_init_refuses_to_overwrite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / name).write_text("mine")
    assert main(["init"]) == 4
    assert f"contract: contracts/{name} exists; nothing was written" in capsys.readouterr().err
    assert [path.read_text() for path in (tmp_path / "contracts").iterdir()] == ["mine"]


def test_init_where_it_cannot_write_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "contracts").write_text("a file")
    assert main(["init"]) == 4
    err = capsys.readouterr().err
    assert "contracts" in err
    assert "cannot be written" in err
    assert err.count("\n") == 1


def test_the_suite_loads_with_the_lines_that_init_prints(tmp_path: Path) -> None:
    scaffold.init(tmp_path)
    (tmp_path / "pyproject.toml").write_text(scaffold.CONFIG)
    suites.load(read_config())
    contract = registry.get("scaled_add")
    assert [profile.name for profile in contract.profiles] == ["once"]
    assert [item.name for item in registry.implementations("scaled_add")] == ["torch"]
    assert [(c.colour, c.name) for c in registry.controls("scaled_add")] == [
        ("green", "fused"),
        ("red", "rounds_the_product"),
    ]


def test_its_kernel_is_right_and_its_red_control_wrong_on_the_exact_rows(tmp_path: Path) -> None:
    scaffold.init(tmp_path)
    (tmp_path / "pyproject.toml").write_text(scaffold.CONFIG)
    suites.load(read_config())
    contract = registry.get("scaled_add")
    assert contract.exact is not None
    scale = contract.scalars[0].default
    rows = contract.exact(np.random.default_rng(0), {"rows": 8, "d": 64}, {"scale": scale}, {})
    x, y = (torch.tensor(rows[name]).bfloat16() for name in ("x", "y"))
    assert torch.equal(x.double(), torch.tensor(rows["x"]))
    # Exact in float64, and of so few bits that float32 holds it: the cast rounds once.
    true = rows["x"] * scale + rows["y"]
    assert (true == true.astype(np.float32)).all()
    expected = torch.tensor(true.astype(np.float32)).bfloat16()
    (implementation,) = registry.implementations("scaled_add")
    green, red = registry.controls("scaled_add")
    assert torch.equal(implementation.call(x, y, scale), expected)
    assert torch.equal(green.call(x, y, scale), expected)
    assert not torch.equal(red.call(x, y, scale), expected)
