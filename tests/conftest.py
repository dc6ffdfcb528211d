"""A project of its own for a test, and the command line in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract import receipts, registry, sources, suites, verify
from contract.cli import main

SCALED = Path(__file__).parent / "suite" / "scaled.py"


def _forget(folder: Path) -> None:
    """As a new process would: nothing registered, nothing imported from the folder, nothing hashed."""
    registry.clear()
    suites._registered.clear()
    verify._loaded.clear()
    receipts.forget()
    sources._hashes.clear()
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__dict__", {}).get("__file__") or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a pyproject.toml and one suite, contracts/scaled.py; it is the working folder."""
    for name in ("_contracts", "_implementations", "_controls"):
        monkeypatch.setattr(registry, name, {})
    monkeypatch.setattr(suites, "entry_points", lambda group: [])
    monkeypatch.setattr(suites, "_registered", {})
    monkeypatch.setattr(verify, "_loaded", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("CONTRACT_DEBUG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "scaled.py").write_text(SCALED.read_text())
    (tmp_path / "pyproject.toml").write_text('[tool.contract]\nsuites = ["contracts"]\n')
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    _forget(tmp_path)


@pytest.fixture
def contract_command(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`contract` with these words, as a new process would: (exit code, stdout, stderr)."""

    def command(*words: str) -> tuple[int, str, str]:
        _forget(project)
        capfd.readouterr()
        code = main([*words])
        return code, *capfd.readouterr()

    return command


@pytest.fixture
def contract_run(
    contract_command: Callable[..., tuple[int, str, str]],
) -> Callable[..., tuple[int, str, str]]:
    """`contract run` at quick effort with these words: (exit code, stdout, stderr)."""
    return lambda *words: contract_command("run", "--effort", "quick", *words)
