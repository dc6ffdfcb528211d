"""Functions run in a child process that can be killed, whatever they do.

    with Worker(timeout=60.0) as worker:
        reply = worker.call("mine:run", {"eps": 1e-6}, {"x": x})

`mine.run(payload, arrays)` returns `(payload, arrays)`. Whatever happens to it has a name in
`Reply.outcome`; the caller neither hangs nor dies with it. `contract.worker_child` is the far side.

Not held off, as only another user account could: a kernel that looks for this process and kills it,
`os.kill(-1, 9)`, or files it deletes. (`os.kill(os.getppid(), 9)` ends that one worker only.)
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from contract import worker_server
from contract.errors import ContractError
from contract.shared_arrays import Array, Malformed, SharedArrays, plain
from contract.worker_child import own_line
from contract.worker_process import Child, Gone, Late, NotStarted, TooBig, oom_kills
from contract.worker_server import START_SECONDS, warm_up

__all__ = ["Reply", "Worker", "warm_up"]

# From the closed socket of a dying process to its status; more where 8 GiB of pages are given back.
_END_SECONDS = 2.0
# faulthandler's report of the thread that crashed, innermost frame first.
_FAULT = re.compile(r'most recent call first\):\n((?:  File ".+", line \d+ in .*\n)+)')
_FAULT_LINE = re.compile(r'  File "(.+)", line (\d+) in ')


@dataclass(frozen=True)
class Reply:
    """What became of one call.

    Attributes:
        outcome: 'ok', 'exception', 'crash', 'timeout' or 'out_of_memory'.
        payload, arrays: what the function returned; on an exception payload["traceback"].
        detail: one line that says what happened, with the last lines that the function printed.
    """

    outcome: str
    payload: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    detail: str = ""


class Worker:
    """A process that runs functions by name, one call at a time; not for use by several threads.

    Args:
        setup: 'module:function', called in the child as f(setup_payload) right after its start.
            Its failure is the outcome 'crash' of every call, with its reason.
        setup_payload: JSON-able.
        timeout: seconds in which a call must finish or report progress.
        memory: bytes that the child may map beyond what the imports of numpy and torch have.
        threads: CPU threads of torch and OpenMP. NumPy's own products run on one.
        sys_path: put before this process's sys.path in the child.
        resident: watch the resident size instead of limiting the address space: CUDA reserves far
            more than it uses.

    Attributes:
        imports: modules that a new child has imported when it starts, from a process that did so once.
    """

    def __init__(
        self,
        *,
        setup: str | None = None,
        setup_payload: Mapping[str, Any] | None = None,
        timeout: float = 60.0,
        memory: int = 8 << 30,
        threads: int = 1,
        sys_path: Sequence[str] = (),
        resident: bool = False,
    ) -> None:
        self.setup = setup
        self.setup_payload = dict(setup_payload or {})
        self.timeout = timeout
        self.memory = memory
        self.threads = threads
        self.sys_path = [str(Path(entry).absolute()) for entry in sys_path]
        self.resident = resident
        self.imports: tuple[str, ...] = ()
        self._used: set[str] = set()
        self._child: Child | None = None
        _workers.add(self)

    def call(
        self,
        function: str,
        payload: Mapping[str, Any],
        arrays: Mapping[str, Array] | SharedArrays,
        *,
        timeout: float | None = None,
    ) -> Reply:
        """Run 'module:function' on payload and arrays; a worker that died is started anew first.

        The function owns its arrays: what it writes into them is seen by nobody else.

        Raises:
            TypeError: a payload that is not JSON, or an array of a dtype that does not travel.
            ContractError: no worker can be started at all.
        """
        shared = arrays.handle if isinstance(arrays, SharedArrays) else None
        given = {} if isinstance(arrays, SharedArrays) else dict(arrays)
        sent = {name: plain(name, array) for name, array in given.items()}
        json.dumps(payload)
        child = self._child or self._start()
        seconds = self.timeout if timeout is None else timeout
        child.number += 1
        call = {"number": child.number, "function": function, "payload": payload, "shared": shared}
        try:
            return self._exchange(child, call, sent, seconds)
        except Late:
            self._end()
            late = f"no call finished for {seconds:g} s"
            if not child.ready:
                late = f"setup did not finish in {max(seconds, START_SECONDS):g} s"
            reply = Reply("timeout", detail=late)
        except TooBig:
            self._end()
            reply = Reply("out_of_memory", detail=f"more than {self.memory >> 20} MiB resident")
        except Malformed:
            self._end()
            reply = Reply("crash", detail="worker sent a malformed reply")
        except Gone:
            reply = _explain(child, self._end(_END_SECONDS))
        except BaseException:
            # An interrupt: the state of the child is unknown.
            self._end()
            raise
        return _with_output(reply, child)

    def take_used(self) -> set[str]:
        """Files that code was made from in the calls since they were last taken."""
        found, self._used = self._used, set()
        return found

    def _exchange(
        self, child: Child, call: Mapping[str, Any], arrays: Mapping[str, Array], seconds: float
    ) -> Reply:
        if not child.ready:
            start = max(seconds, START_SECONDS)
            child.deadline = time.monotonic() + start
            child.send(self._configuration(), {})
            child.receive("ready", 0, start)
            child.ready = True
        child.deadline = time.monotonic() + seconds
        child.send(call, arrays)
        header, results = child.receive("reply", self.memory, seconds)
        if header.get("number") != child.number:
            raise Malformed("an answer to another call")
        reply = _checked_reply(header, results)
        self._used |= _used(header)
        child.drain(1 << 20)
        if reply.outcome == "crash":
            # The setup failed; the next call tries again.
            self._end()
        if reply.outcome != "ok":
            reply = _with_output(reply, child)
        child.printed.clear()
        return reply

    def _configuration(self) -> dict[str, Any]:
        return {
            "environ": dict(os.environ),
            "sys_path": self.sys_path + worker_server.search_path(),
            "folder": os.getcwd(),
            "threads": self.threads,
            "address_space": 0 if self.resident else self.memory,
            "reply_bytes": self.memory,
            "setup": self.setup,
            "setup_payload": self.setup_payload,
        }

    def _start(self) -> Child:
        limit = self.memory if self.resident else 0
        # The server may be killed between taking the order and the fork; twice is no accident. An import that ends its
        # process is left to the worker.
        for attempt in (1, 2):
            try:
                self._child = Child(limit, self.imports if attempt == 1 else ())
                break
            except NotStarted as error:
                if attempt == 2:
                    raise ContractError(
                        "no worker process can be forked; free memory or process slots (ulimit -u)"
                    ) from error
        assert self._child is not None
        return self._child

    def _end(self, grace: float = 0.0) -> int | None:
        child, self._child = self._child, None
        return child.end(grace) if child else None

    def close(self) -> None:
        """Kill the child, if there is one; the next call starts another."""
        self._end()

    def __del__(self) -> None:
        # Forgotten by its owner; `__init__` may have failed, too.
        if (child := getattr(self, "_child", None)) is not None:
            child.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _checked_reply(header: Mapping[str, Any], arrays: dict[str, Array]) -> Reply:
    outcome, payload, detail = (header.get(key) for key in ("outcome", "payload", "detail"))
    if outcome not in ("ok", "exception", "crash", "out_of_memory"):
        raise Malformed("no outcome")
    if not isinstance(payload, dict) or not isinstance(detail, str):
        raise Malformed("no payload or no detail")
    return Reply(outcome, payload, arrays, _one_line(detail, 500))


def _used(header: Mapping[str, Any]) -> set[str]:
    found = header.get("used", [])
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise Malformed("no files")
    return set(found)


def _explain(child: Child, status: int | None) -> Reply:
    """Why a worker that did not answer is gone."""
    printed = child.printed.decode(errors="replace")
    outcome, detail = "crash", "closed its connection before it answered"
    if status is None:
        if child.lost:
            detail = "killed its supervisor, and was killed with it"
    elif os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            detail = f"killed by signal {number} ({signal.Signals(number).name})"
        if number == signal.SIGKILL and oom_kills() > child.oom_kills:
            outcome = "out_of_memory"
            detail += " by the kernel: the machine ran out of memory"
        elif "std::bad_alloc" in printed:
            outcome = "out_of_memory"
        if fault := _FAULT.search(printed):
            lines = [(file, int(line)) for file, line in _FAULT_LINE.findall(fault[1])]
            detail += f" at {own_line(lines)}"
    else:
        code = os.waitstatus_to_exitcode(status)
        detail = f"exited with code {code}" + (" before it answered" if code == 0 else "")
    return Reply(outcome, detail=detail if child.ready else f"during setup: {detail}")


def _with_output(reply: Reply, child: Child) -> Reply:
    """The reply with the last lines that the worker printed, faulthandler's report left out."""
    text = child.printed.decode(errors="replace").partition("Fatal Python error: ")[0]
    lines = [line for line in map(_one_line, text.splitlines()[-20:]) if line][-3:]
    if not lines:
        return reply
    return replace(reply, detail=f"{reply.detail}; printed: {' | '.join(lines)}")


def _one_line(text: str, limit: int = 200) -> str:
    """The text without line ends and control characters, which could drive a terminal."""
    line = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 3] + "..."


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _after_fork() -> None:
    """In a fork of this process: the workers are its parent's."""
    for worker in list(_workers):
        if worker._child is not None:
            worker._child.release()
            worker._child = None


def _close_all() -> None:
    for worker in list(_workers):
        worker.close()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
