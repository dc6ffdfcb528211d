"""A stranger's kernel: the wheel alone, another folder, no checkout in sight."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sampling import SAMPLED

ROOT = Path(__file__).parent.parent
NOT_SOURCE = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "shared")
#: The sampled form judges one shape gate; the full one all that the file registers.
pytestmark = pytest.mark.slow

Python = Callable[..., "subprocess.CompletedProcess[str]"]

PLAIN_TEST = """
import contract, torch
def test_mine():
    x, w = torch.randn(8, 64).bfloat16(), torch.ones(64).bfloat16()
    contract.assert_allowed("rms_norm", rms(x, w), x=x, weight=w, eps=1e-6, profile="once")

def rms(x, w):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (y * w.float()).bfloat16()
"""
MINE = """
import contract, torch

@contract.implementation("rms_norm", profile="once", gain="w")
def mine(x, weight, eps):
    y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return (y * weight.float()).bfloat16()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel in it, to which nothing may be written."""
    pytest.importorskip("build")
    folder = tmp_path_factory.mktemp("wheel")
    site = folder / "site-packages"

    def do(*words: str) -> None:
        command = [sys.executable, "-m", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)

    # from a copy: a build leaves folders behind, and finds those of the last one
    shutil.copytree(ROOT, folder / "copy", symlinks=True, ignore=NOT_SOURCE)
    do("build", "--wheel", "--no-isolation", "--outdir", str(folder), str(folder / "copy"))
    (wheel,) = folder.glob("*.whl")
    do("pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel))
    return site


@pytest.fixture
def python(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Python:
    """python in another folder, with the wheel first on the path and a cache of its own."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ, "PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1",
        }  # fmt: skip
        return subprocess.run([sys.executable, *words], capture_output=True, text=True,
                              env=environment, check=False)  # fmt: skip

    return run


def listing(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_a_plain_test_of_three_lines_is_judged(python: Python, site: Path) -> None:
    # the precondition of all that follows
    home = python("-c", "import contract; print(contract.__file__)").stdout
    assert home.startswith(str(site))
    Path("test_mine.py").write_text(PLAIN_TEST)
    before = listing(site)
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    Path("test_mine.py").write_text(PLAIN_TEST.replace("(y * w", "(y.bfloat16() * 1.01 * w"))
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 1
    assert "NotAllowed: rms_norm/once: " in done.stdout
    assert listing(site) == before


def test_a_decorated_function_is_judged_by_contract_run(
    python: Python, site: Path, tmp_path: Path
) -> None:
    assert len(MINE.strip().splitlines()) <= 10
    Path("mine.py").write_text(MINE)
    before = listing(site)
    words = ["-m", "contract", "run", "mine.py", "--effort", "quick"]
    words += ["--gate", "stress"] if SAMPLED else []
    done = python(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kernel: 1 pass, 0 fail" in done.stdout
    # without a pyproject.toml the store is the user's cache
    assert list((tmp_path / "cache" / "kernel-contract" / "checks").glob("*/*.json"))
    Path("mine.py").write_text(MINE.replace("(y * weight", "(y.bfloat16() * weight"))
    done = python(*words)
    assert done.returncode == 1
    assert "dropped point" in done.stdout or "outputs are not allowed" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    # the failing row too: nothing is written into site-packages, nor beside the stranger's file
    assert listing(site) == before
    assert sorted(os.listdir()) == ["mine.py"]
    assert list((tmp_path / "cache" / "kernel-contract" / "rows").glob("*.json"))
