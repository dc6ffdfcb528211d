"""A sweep of softcap over fp32 inputs: judged outputs a second that two cores give, each with a worker and its judge.

Processor time of both, as the clock of a machine with neighbours says nothing; the worker's is the kernel's count.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from contract import suites
from contract.checks import collect_checks
from contract.config import Config, RunOptions
from contract.sweeps.run import plan_options, targets
from contract.sweeps.shard import Plan, Sweeper
from contract.sweeps.space import FP32

#: Inputs around 2^-20, 1, 10, 300 (of both signs) and 2^70.
SHARDS = (53, 63, 65, 67, 195, 98)
#: Million outputs a second.
LEAST_RATE = 45.0


def measure() -> list[tuple[str, float, float]]:
    """(name, million outputs a second, the least that is wanted)."""
    loaded = suites.load(Config(None, Path.cwd()))
    checks = collect_checks(automatic=False)
    target = next(t for t in targets(checks, FP32) if t.id == "softcap/float32/torch")
    options = plan_options(RunOptions(suites=loaded.payload()))
    sweeper = Sweeper(Plan(target.check.as_json(), FP32, options, ""))
    try:
        shards = sweeper.space.shards()
        sweeper.judge(shards[SHARDS[0]])
        (worker,) = sweeper._judge.workers.values()
        assert worker._child is not None
        pid = worker._child.pid
        assert pid is not None
        start = time.thread_time() + _processor_seconds(pid)
        outputs = sum(sweeper.judge(shards[n])["outputs"] for n in SHARDS)
        seconds = time.thread_time() + _processor_seconds(pid) - start
    finally:
        sweeper.close()
    return [
        ("sweep of softcap in fp32, M outputs/s on two cores", 2e-6 * outputs / seconds, LEAST_RATE)
    ]


def _processor_seconds(pid: int) -> float:
    """What a process has used, in user and system time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
