"""An implementation of `scaled` that kills the server from which its process was forked."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import contract

KILLED = Path(__file__).with_name("killed")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _is_server(pid: int) -> bool:
    """Of the server's command line are all its forks: worker, attendant, server."""
    return b"worker_child import serve" in Path(f"/proc/{pid}/cmdline").read_bytes()


@contract.implementation("scaled", name="kills_the_server")
def kills_the_server(x: Any, y: Any, scale: float, sign: str) -> Any:
    """Once; wrong ever after, so that the next check needs a new worker."""
    server = os.getppid()
    while _is_server(_parent(server)):
        server = _parent(server)
    try:
        with KILLED.open("x") as file:
            file.write(f"{server} {_parent(server)}")
        os.kill(server, signal.SIGKILL)
    except FileExistsError:
        pass
    return x - x
