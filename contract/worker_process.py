"""One worker process as its judge holds it: frames against a clock, its output, its end."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contract import worker_server
from contract.shared_arrays import Array, Malformed, joined, pack_frame, read_frame

_KILL_SECONDS = 20.0
_OUTPUT_BYTES = 32 << 10
_RESIDENT_SECONDS = 0.2
_INT = struct.Struct("<i")


class Gone(Exception):
    """The worker's socket closed, or its attendant reported its end."""


class NotStarted(Exception):
    """The server ended, or could not fork, before the worker began."""


class Late(Exception):
    """The clock of the call ran out."""


class TooBig(Exception):
    """The resident size went over its limit."""


class Child:
    """One worker process: its socket, the pipe of its output, and its attendant's socket."""

    def __init__(self, resident_limit: int, modules: Sequence[str] = ()) -> None:
        self.calls, calls = socket.socketpair()
        self.guard, guard = socket.socketpair()
        self.output, output = os.pipe()
        self.calls.setblocking(False)
        os.set_blocking(self.output, False)
        self.resident_limit = resident_limit
        self.printed = bytearray()
        self.reported = bytearray()
        self.lost = False
        self.deadline = 0.0
        self.number = 0
        self.ready = False
        self.oom_kills = oom_kills()
        try:
            worker_server.start([guard.fileno(), calls.fileno(), output], modules)
            # Their copies here would hide the end of the other side.
            calls.close()
            guard.close()
            self._await_pid()
        except BaseException:
            self.release()
            raise
        finally:
            calls.close()
            guard.close()
            os.close(output)

    def fill(self, view: memoryview) -> None:
        """Receive until the view is full."""
        while view:
            try:
                count = self.calls.recv_into(view)
            except BlockingIOError:
                self._wait(writing=False)
                continue
            except OSError as error:
                raise Gone from error
            if not count:
                raise Gone
            view = view[count:]

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Send one frame."""
        for piece in joined(pack_frame(header, arrays)):
            view = memoryview(piece)
            while view:
                try:
                    view = view[self.calls.send(view) :]
                except BlockingIOError:
                    self._wait(writing=True)
                except OSError as error:
                    raise Gone from error

    def receive(
        self, kind: str, limit: int, seconds: float
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """The next frame of that kind; each report of progress gives it `seconds` more."""
        while True:
            header, arrays = read_frame(self.fill, limit)
            if header.get("kind") == kind:
                return header, arrays
            if header.get("kind") != "progress":
                raise Malformed(f"a frame of kind {str(header.get('kind'))[:40]!r}")
            self.deadline = time.monotonic() + seconds

    def _wait(self, *, writing: bool) -> None:
        """Until the socket can go on; reads what the worker prints meanwhile, lest it blocks."""
        while True:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise Late
            if self.resident_limit:
                left = min(left, _RESIDENT_SECONDS)
            reading: list[Any] = [self.output, self.guard, *([] if writing else [self.calls])]
            ready = select.select(reading, [self.calls] if writing else [], [], left)
            if self.output in ready[0]:
                self.drain(1 << 16)
            if self.calls in ready[0] or self.calls in ready[1]:
                return
            # After the socket: a last reply may still lie in it.
            if self.guard in ready[0] and self._read_guard():
                raise Gone
            if self.resident_limit and self._resident() > self.resident_limit:
                raise TooBig

    def _read_guard(self) -> bool:
        """Whether the attendant has reported the end, or is gone itself."""
        with contextlib.suppress(OSError):
            data = self.guard.recv(64)
            self.reported += data
            self.lost = not data
            return self.lost or len(self.reported) >= 2 * _INT.size
        self.lost = True
        return True

    @property
    def pid(self) -> int | None:
        return _INT.unpack_from(self.reported)[0] if len(self.reported) >= _INT.size else None

    def _resident(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            statm = Path(f"/proc/{self.pid}/statm").read_text().split()
            return int(statm[1]) * resource.getpagesize()
        return 0

    def drain(self, limit: int) -> None:
        """Keep the end of what was printed."""
        with contextlib.suppress(BlockingIOError):
            while limit > 0 and (data := os.read(self.output, min(limit, 1 << 16))):
                limit -= len(data)
                self.printed += data
                del self.printed[:-_OUTPUT_BYTES]

    def end(self, grace: float = 0.0) -> int | None:
        """Kill the process and all that it started, after `grace` seconds for it to end by itself.

        Returns:
            Its wait status; None where it was killed here, or nobody could tell.
        """
        own = self._await_report(grace)
        if not own:
            with contextlib.suppress(OSError):
                self.guard.shutdown(socket.SHUT_WR)
            self._await_report(_KILL_SECONDS)
        if self.lost and len(self.reported) < 2 * _INT.size and self.pid:
            # The attendant was killed; the kernel has killed the worker, not yet its group.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self.drain(1 << 20)
        self.release()
        full = len(self.reported) >= 2 * _INT.size
        return _INT.unpack_from(self.reported, _INT.size)[0] if own and full else None

    def _await_pid(self) -> None:
        until = time.monotonic() + worker_server.START_SECONDS
        while self.pid is None:
            left = max(0.0, until - time.monotonic())
            if not select.select([self.guard], [], [], left)[0] or self._read_guard():
                raise NotStarted

    def _await_report(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self.lost and len(self.reported) < 2 * _INT.size:
            if not select.select([self.guard], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
            self._read_guard()
        return True

    def release(self) -> None:
        """Close this side; the attendant then kills what still runs."""
        self.calls.close()
        self.guard.close()
        if self.output >= 0:
            os.close(self.output)
            self.output = -1


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since the machine started."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/vmstat").read_text().split("\noom_kill ")[1].split()[0])
    return 0
