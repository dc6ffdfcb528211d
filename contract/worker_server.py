"""The fork server of this process, from its judge's side; `contract.worker_child` is the server.

A fork of a process that has torch loaded takes 10 ms, a new one two seconds. multiprocessing's own
server imports the caller's `__main__` again and shares a resource tracker with it; this one knows
neither, so it serves a script, `python -c`, pytest and another worker alike.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contract.errors import ContractError
from contract.worker_child import MESSAGE_BYTES, PRELOAD, THREAD_VARIABLES

# Imports of torch and of a suite take seconds on a busy machine; a short timeout for the calls must
# not turn them into a red.
START_SECONDS = 120.0
_CLOSE_SECONDS = 2.0
# Read when a library is loaded, so a server started under other values cannot serve.
_LIBRARY_VARIABLES = re.compile(
    r"(ATEN|CUDA|DNNL|GOMP|KMP|LD|MKL|OMP|ONEDNN|OPENBLAS|PYTHON|TORCH)"
)


class _Server:
    """A fork server process and the socket on which it is asked for workers."""

    def __init__(self, key: tuple[Any, ...], environment: Mapping[str, str] | None = None) -> None:
        self.key = key
        self.control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[2]);"
            "from contract.worker_child import serve; serve(int(sys.argv[1]))"
        )
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs.fileno()), json.dumps(search_path())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                # An interrupt from the terminal is the judge's to handle.
                start_new_session=True,
                # Threads started before a fork are lost in it, so the libraries start none.
                env={
                    **(environment or os.environ),
                    **dict.fromkeys(THREAD_VARIABLES, "1"),
                    # A second thread that spins after a call takes the processor from the next.
                    "OMP_WAIT_POLICY": "PASSIVE",
                },
            )
        self.ready = False

    def start(self, descriptors: Sequence[int], modules: Sequence[str]) -> None:
        """Have a worker forked on these descriptors, from a process that has imported the modules."""
        if not self.ready:
            self.control.settimeout(START_SECONDS)
            if self.control.recv(1) != b"r":
                raise OSError("it ended before it was ready")
            self.ready = True
        _order(self.control, descriptors, modules)

    def said(self) -> str:
        """The last line that the server printed: why it did not start."""
        self.log.seek(0)
        lines = self.log.read()[-4096:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def close(self, *, kill: bool = False) -> None:
        """End the server; the workers go on until the judge closes their own sockets."""
        if kill:
            self.process.kill()
        self.control.close()
        self.log.close()
        try:
            self.process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            # Still importing.
            self.process.kill()
            self.process.wait()

    def forget(self) -> None:
        """Close this copy of the socket, in a fork of the judge, whose child the server is not."""
        self.control.close()
        self.log.close()
        self.process.returncode = 0


class _Adopted:
    """A server of the parent's, which several judges share."""

    def __init__(self, key: tuple[Any, ...], descriptor: int) -> None:
        self.key, self.control = key, socket.socket(fileno=descriptor)

    def start(self, descriptors: Sequence[int], modules: Sequence[str]) -> None:
        _order(self.control, descriptors, modules)

    def said(self) -> str:
        return "the shared one ended"

    def close(self, *, kill: bool = False) -> None:
        self.control.close()

    forget = close


def _order(control: socket.socket, descriptors: Sequence[int], modules: Sequence[str]) -> None:
    message = json.dumps(list(modules)).encode()
    # A list too long for a message is imported by the worker itself.
    socket.send_fds(control, [message if len(message) <= MESSAGE_BYTES else b"[]"], descriptors)


_server: _Server | _Adopted | None = None
_lock = threading.Lock()


def search_path() -> list[str]:
    """sys.path without entries that depend on the current folder."""
    return [str(Path(entry).absolute()) for entry in sys.path]


def preload(function: str, payload: Mapping[str, Any]) -> None:
    """Have the workers that this process starts forked from a server that has called `module:function` with the payload."""
    global _server
    close()
    with _lock:
        environment = {**os.environ, PRELOAD: json.dumps([function, payload])}
        _server = _Server(_key(), environment)


def warm_up() -> None:
    """Start the server without waiting, so that its imports overlap with the caller's own."""
    with _lock:
        _current()


def start(descriptors: Sequence[int], modules: Sequence[str] = ()) -> None:
    """Have a worker forked on these descriptors: attendant's socket, calls' socket, output pipe.

    `modules`: what the worker has imported when it starts, where they can be imported and start no threads.

    Raises:
        ContractError: the server cannot be started; the message says what it printed.
    """
    with _lock:
        # A server may have been killed since the last call; a second failure is a real one.
        for attempt in (1, 2):
            server = _current()
            try:
                server.start(descriptors, modules)
            except OSError as error:
                said = server.said()
                close(kill=True)
                if attempt == 2:
                    raise ContractError(
                        f"the fork server of the workers does not start: {said}; try"
                        f" `{sys.executable} -c 'import contract.worker_child, torch'`"
                    ) from error
            else:
                return


def close(*, kill: bool = False) -> None:
    """End the server, if there is one; the next worker starts another."""
    global _server
    if _server is not None:
        _server.close(kill=kill)
        _server = None


class Shared:
    """A server for several judges: children that get its descriptor by `pass_fds` and in `SHARED`, and adopt it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._server = _Server(_key(), {**environment, PRELOAD: ""})
        self.descriptor = self._server.control.fileno()

    def fits(self) -> bool:
        """Whether the variables that libraries read when they are loaded are those it was started under."""
        return self._server.key == _key()

    def preload(self, function: str, payload: Mapping[str, Any]) -> None:
        """Have `module:function` called with the payload before the first fork; asked for once, it waits for that."""
        message = json.dumps([function, payload]).encode()
        with contextlib.suppress(OSError):
            # what is too long for a message is for the workers to do
            self._server.control.send(message if len(message) <= MESSAGE_BYTES else b"null")

    def prepare(self, modules: Sequence[str]) -> None:
        """Have these modules imported in the background, for workers that start with them."""
        with contextlib.suppress(OSError):
            _order(self._server.control, (), modules)

    def close(self) -> None:
        """End it; a judge that still needs one starts its own."""
        self._server.close(kill=True)


#: Environment variable: the descriptor of a server that this process shall use.
SHARED = "CONTRACT_WORKER_SERVER"


def adopt() -> None:
    """Use the server that the parent handed down, if it did."""
    global _server
    descriptor = os.environ.pop(SHARED, "")
    if descriptor:
        with _lock:
            _server = _Adopted(_key(), int(descriptor))


def _key() -> tuple[Any, ...]:
    variables = sorted((k, v) for k, v in os.environ.items() if _LIBRARY_VARIABLES.match(k))
    return sys.executable, tuple(variables)


def _current() -> _Server | _Adopted:
    global _server
    key = _key()
    if _server is not None and _server.key != key:
        close()
    if _server is None:
        _server = _Server(key)
    return _server


def _after_fork() -> None:
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        _server.forget()
        _server = None


atexit.register(close)
os.register_at_fork(after_in_child=_after_fork)
