"""Fresh runs of one seed write the same JSON but for times, with one worker and with two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import SAMPLED

KERNELS = ("residual_add", "attn_gate", "logit_scale")
# what compiled code adds takes minutes, and says nothing more of bytes
HOST = "not ptx and not gpu"


def fresh(folder: Path, jobs: int) -> str:
    """The report without its times."""
    command = [
        sys.executable,
        "-m",
        "contract",
        "run",
        *KERNELS,
        "--effort",
        "quick",
        "--fresh",
        "-k",
        HOST,
    ]
    command += ["--jobs", str(jobs), "--json", "report.json"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (folder / "report.json").read_text()
    return re.sub(r'"seconds": [\d.e-]+', '"seconds": 0', text)


def test_two_fresh_runs_are_the_same_bytes(tmp_path: Path) -> None:
    one = fresh(tmp_path, 1)
    assert one.count('"bits": {') >= 20
    assert fresh(tmp_path, 2) == one


@pytest.mark.slow
def test_twenty_fresh_runs_are_the_same_bytes(tmp_path: Path) -> None:
    first = fresh(tmp_path, 1)
    # the sampled form: one in each of one and two workers
    for turn in range(1, 3 if SAMPLED else 20):
        assert fresh(tmp_path, 1 + turn % 2) == first
