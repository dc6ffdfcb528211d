"""The command starts fast and ends quietly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parent.parent
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)


def test_help_and_usage_errors_import_nothing_slow() -> None:
    slow = "{'numpy', 'torch', 'rich', 'hypothesis', 'mpmath'} & set(sys.modules)"
    for arguments in (["--help"], ["run", "--help"], ["run", "--seed", "x"]):
        run = f"try: main({arguments})\nexcept SystemExit: pass"
        program = f"import sys\nfrom contract.cli import main\n{run}\nprint('slow:', {slow})"
        done = python("-c", program)
        assert done.stdout.splitlines()[-1:] == ["slow: set()"], done.stderr


def test_the_package_runs_as_a_module() -> None:
    done = python("-m", "contract", "--help")
    assert done.returncode == 0
    for word in ("run", "list", "show", "init", "5 nothing ran"):
        assert word in done.stdout
    assert python("-m", "contract", "run", "--explain", "x").returncode == 4


def test_a_reader_that_leaves_early_causes_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "contract", "init", str(tmp_path / "new")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 2


@pytest.mark.parametrize(
    "leaving", ["atexit.register(leave)", "threading.Thread(target=leave, daemon=True).start()"]
)
def test_a_red_run_does_not_end_as_green_by_what_an_import_left_behind(
    leaving: str, tmp_path: Path
) -> None:
    (tmp_path / "leaves.py").write_text(
        "import atexit, os, threading, time, contract\n"
        "def leave():\n    time.sleep(1)\n    os._exit(0)\n"
        f"{leaving}\n"
        "@contract.implementation('softcap', profile='float32')\n"
        "def wrong(x, cap): return x\n"
    )
    command = [sys.executable, "-m", "contract", "run", "leaves.py", "--effort", "quick"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "SUMMARY 1 kernel: 0 pass, 1 fail" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1
