"""What runs on the far side of `contract.worker`: fork server, attendant, worker.

    judge (contract.worker)
      '- fork server     one per judge; imports torch once, runs no kernel
           |- template   one per set of libraries (transformers takes seconds): a fork that has imported them
           '- attendant  one per worker; waits for it, kills what it leaves behind, reports its end
                '- worker  runs the functions

The attendant stands between server and worker so that `os.kill(os.getppid(), 9)` in a kernel ends
that kernel alone, and so that processes which a kernel starts (also those that detach themselves)
fall to it, and not to init. Each of them ends when the one above it does: server, template and attendant
at the end of file of their socket, the worker by the kernel's parent-death signal, which reaches
a C loop that never lets go of the interpreter lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from contract import device_files
from contract.shared_arrays import Array, joined, open_shared, pack_frame, plain, read_frame

_INT = struct.Struct("<i")
_M_PERTURB, _FREED = -6, 0x5A
#: Each byte of memory that the C library hands out, and that nobody has written (mallopt(3), M_PERTURB).
UNWRITTEN = _FREED ^ 0xFF
_MADV_COLLAPSE, _HUGE_BYTES = 25, 2 << 20
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)  # fmt: skip
#: Environment variable: ["module:function", payload], called once in the server, so that each worker starts with it;
#: empty where it comes as the server's first message.
PRELOAD = "CONTRACT_PRELOAD"
#: Longest message to the server: the names of the modules that a worker starts with.
MESSAGE_BYTES = 16 << 10
_IMPORT_SECONDS = 30
# More often would cost a loop of short blocks more than the blocks themselves.
_PROGRESS_SECONDS = 0.05


def _prctl(option: int, value: int) -> None:
    # Not on every system; without it orphans live on, which only a hostile kernel leaves.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# Fork server


def serve(descriptor: int) -> NoReturn:
    """Fork one attendant for each byte, with three descriptors, that comes; end with the judge."""
    control = socket.socket(fileno=descriptor)
    for name in ("numpy", "torch"):
        # A broken installation must not end the server: the kernel that needs it will say so.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if PRELOAD in os.environ:
        preload = os.environ[PRELOAD].encode() or control.recv(MESSAGE_BYTES)
        if not preload:
            os._exit(0)
        # Its failure is the setup's to tell, in the worker.
        with contextlib.suppress(Exception):
            function, payload = json.loads(preload)
            _resolve(function)(payload)
    # Ended attendants need no wait; they report by themselves.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(b"r")
    _fork_on_request(control)


def _fork_on_request(
    control: socket.socket, leave: Callable[[], NoReturn] | None = None
) -> NoReturn:
    """For each message, a JSON list of modules with three descriptors: a worker that has them imported.

    Without descriptors: their template, so that it is there when a worker is asked for.
    """
    # What is imported stays shared between the workers only while no collection touches it.
    gc.collect()
    gc.freeze()
    _use_huge_pages()
    templates: dict[tuple[str, ...], socket.socket] = {}
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 3)
        if not data:
            (leave or functools.partial(os._exit, 0))()
        modules = tuple(json.loads(data))
        with contextlib.suppress(OSError):
            # one that begins with the same modules goes on from there
            first = max(
                (n for n in range(1, len(modules) + 1) if modules[:n] in templates), default=0
            )
            if modules and not first:
                first = len(modules)
                templates[modules] = _template(modules, (control, *templates.values()), descriptors)
            passed_on = modules and _pass_on(
                templates[modules[:first]], modules[first:], descriptors
            )
            if descriptors and not passed_on and os.fork() == 0:
                for other in (control, *templates.values()):
                    other.close()
                _attend(*descriptors)
        for one in descriptors:
            os.close(one)


def _use_huge_pages() -> None:
    """Gather this process's private memory in huge pages, of which a fork copies one entry instead of 512.

    A written one is split first, so that a worker still copies 4 KiB at a time.
    """
    # Linux 6.1 and later; elsewhere forks take their 10 ms.
    with contextlib.suppress(OSError, AttributeError, ValueError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, rights, _, _, inode, *name = line.split(maxsplit=5)
            if rights != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
                continue
            first, last = (int(end, 16) for end in span.split("-"))
            first, last = -(-first // _HUGE_BYTES) * _HUGE_BYTES, last // _HUGE_BYTES * _HUGE_BYTES
            if first < last:
                advise(first, last - first, _MADV_COLLAPSE)


def _template(
    modules: Sequence[str], others: Sequence[socket.socket], descriptors: Sequence[int]
) -> socket.socket:
    """The socket of a fork that imports the modules and then forks on request; it keeps nothing else open."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            raise
        if pid == 0:
            for other in (ours, *others):
                other.close()
            for one in descriptors:
                os.close(one)
            _become_template(theirs, modules)
    return ours


def _pass_on(template: socket.socket, modules: Sequence[str], descriptors: list[int]) -> bool:
    """Whether the template is there to take the order, with the modules that it has not imported."""
    try:
        if descriptors or modules:
            socket.send_fds(template, [json.dumps(modules).encode()], descriptors)
    except OSError:
        # It ended: what it should import breaks, or starts threads. The worker imports for itself.
        return False
    return True


def _become_template(control: socket.socket, modules: Sequence[str]) -> NoReturn:
    try:
        # Its own group, without the attendants, which have sessions: what an import starts ends with it.
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # An import that never ends is the worker's to show, against a clock.
        signal.alarm(_IMPORT_SECONDS)
        for name in modules:
            importlib.import_module(name)
        signal.alarm(0)
        # From here on the end of its socket says so, which leaves time to end what the imports started.
        _prctl(_PR_SET_PDEATHSIG, 0)
        # A fork has none of the threads that an import started, and may wait for one for ever.
        tasks = Path("/proc/self/task")
        if not tasks.is_dir() or len(list(tasks.iterdir())) == 1:
            _fork_on_request(control, leave=_end_group)
    finally:
        _end_group()


def _end_group() -> NoReturn:
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


# Attendant


def _attend(guard_fd: int, calls_fd: int, output_fd: int) -> NoReturn:
    """Fork the worker, say its process id, wait for its end or the judge's, say its status."""
    try:
        # Its own session: a signal to the server's group is not one to every worker.
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        guard = socket.socket(fileno=guard_fd)
        guard.settimeout(None)
        attendant = os.getpid()
        pid = os.fork()
        if pid == 0:
            guard.close()
            _work(calls_fd, output_fd, attendant)
        os.close(calls_fd)
        os.close(output_fd)
        guard.sendall(_INT.pack(pid))
        status = _await(pid, guard)
        _kill_descendants()
        guard.sendall(_INT.pack(status))
    finally:
        os._exit(0)


def _await(pid: int, guard: socket.socket) -> int:
    """The wait status of the worker, which is killed when the judge's end of `guard` closes."""
    ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    while True:
        watched: list[Any] = [guard] if ended is None else [guard, ended]
        ready = select.select(watched, [], [], 0.05 if ended is None else None)[0]
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if guard in ready:
            # The group may not exist yet, or be one that the worker left.
            os.kill(pid, signal.SIGKILL)
            status = os.waitpid(pid, 0)[1]
            break
    # Its group in one step; what detached itself is then found one by one.
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    return status


def _kill_descendants() -> None:
    """Kill and reap every process that the worker left; they are this process's children now."""
    # Killing one hands its own children to us, so until there are none; a bound, as a fork bomb
    # may outrun us and the judge waits.
    for _ in range(200):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError):
                parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
                if parent == os.getpid():
                    os.kill(int(stat.parent.name), signal.SIGKILL)
        time.sleep(0.01)


# Worker


class _Calls:
    """The worker's side of the socket on which calls come and replies go."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        # An import may have set a default.
        self.socket.settimeout(None)
        self.owner = os.getpid()
        self.lock = threading.Lock()
        self.last = 0.0

    def fill(self, view: memoryview) -> None:
        while view:
            count = self.socket.recv_into(view)
            if not count:
                os._exit(0)
            view = view[count:]

    def send(self, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        pieces = pack_frame(header, arrays)
        with self.lock:
            # A fork of the worker that returned from the kernel must not answer a second time.
            if os.getpid() != self.owner:
                os._exit(0)
            for piece in joined(pieces):
                self.socket.sendall(piece)


_calls: _Calls | None = None


def progress() -> None:
    """Restart the clock of the call that is running; does nothing outside a worker."""
    calls = _calls
    if calls is None or os.getpid() != calls.owner:
        return
    if time.monotonic() - calls.last >= _PROGRESS_SECONDS:
        calls.last = time.monotonic()
        calls.send({"kind": "progress"}, {})


def _work(calls_fd: int, output_fd: int, attendant: int) -> NoReturn:
    global _calls
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The attendant may have ended before the signal was asked for.
        if os.getppid() != attendant:
            os._exit(1)
        # At once, so that a failure to start is seen.
        for number in (1, 2):
            os.dup2(output_fd, number)
        _calls = _Calls(calls_fd)
        config = read_frame(_calls.fill, 0)[0]
        restore = _configure(config, output_fd)
        failure = _set_up(config)
        _calls.send({"kind": "ready"}, {})
        while True:
            header, arrays = read_frame(_calls.fill, 1 << 62)
            restore()
            reply, results = failure or answer(header, arrays, config["reply_bytes"])
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            _calls.send({**reply, "kind": "reply", "number": header["number"]}, results)
            arrays, results = {}, {}
    except BaseException:  # noqa: BLE001 - the process ends here
        # Also what a signal handler of the kernel raised between two calls. The judge reports it.
        traceback.print_exc()
    finally:
        os._exit(1)


def _configure(config: Mapping[str, Any], output_fd: int) -> Callable[[], None]:
    """Apply limits, paths and threads; returns what puts the state back before each call."""
    os.environ.clear()
    os.environ.update(config["environ"])
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(config["threads"])))
    sys.path[:] = config["sys_path"]
    importlib.invalidate_caches()
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(config["threads"])
    # Freed memory must not hand a kernel that writes half its output the right values of the last call.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_PERTURB, _FREED)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if config["address_space"]:
        # What the imports have mapped already (0.6 GB with torch for CPU, 10 with CUDA's libraries)
        # is not the kernel's.
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = mapped + config["address_space"]
        # In a worker inside a worker, the outer limit may be lower.
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    streams = [open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
               for fd in (1, 2)]  # fmt: skip
    folder = config["folder"]

    def restore() -> None:
        for number, stream in enumerate(streams, start=1):
            os.dup2(output_fd, number)
            if stream.closed:
                streams[number - 1] = open(  # noqa: SIM115 - lives as long as the process
                    number, "w", buffering=1, errors="backslashreplace", closefd=False
                )
        sys.stdout, sys.stderr = streams
        with contextlib.suppress(OSError):
            os.chdir(folder)

    restore()
    # Names the line of Python at which a crash in C happened; the judge reads it from the output.
    faulthandler.enable(file=2)
    return restore


def _set_up(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]] | None:
    if not config["setup"]:
        return None
    try:
        _resolve(config["setup"])(config["setup_payload"])
    except BaseException as error:  # noqa: BLE001 - whatever the suite or kernel raises
        reply, arrays = _failure(error)
        return {**reply, "outcome": "crash", "detail": f"setup failed: {reply['detail']}"}, arrays
    return None


def _resolve(name: str) -> Callable[..., Any]:
    """The callable named 'module:function'."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def answer(
    call: Mapping[str, Any], arrays: dict[str, Array], limit: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Outcome and results of one call, with the files that code was made from in it; nothing that the function raises gets
    past here."""
    reply, results = _answered(call, arrays, limit)
    return {**reply, "used": device_files.take_used()}, results


def _answered(
    call: Mapping[str, Any], arrays: dict[str, Array], limit: int
) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        if call["shared"] is not None:
            arrays = open_shared(call["shared"])
        result = _resolve(call["function"])(call["payload"], arrays)
        return _checked(call["function"], result, limit)
    except BaseException as error:  # noqa: BLE001 - whatever the suite or kernel raises
        return _failure(error)


def _checked(name: str, result: object, limit: int) -> tuple[dict[str, Any], dict[str, Array]]:
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], dict)
            and isinstance(result[1], dict)):  # fmt: skip
        raise TypeError(f"{name} returned a {type(result).__name__}; return (payload, arrays)")
    payload, given = result
    arrays = {str(key): plain(str(key), value) for key, value in given.items()}
    size = sum(array.nbytes for array in arrays.values())
    if size > limit:
        raise ValueError(f"{name} returned {size} bytes, more than the limit of {limit}")
    # Here, where a payload that is not JSON can still be told to the judge.
    json.dumps(payload)
    return {"outcome": "ok", "payload": payload, "detail": ""}, arrays


def _failure(error: BaseException) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        text = str(error)
    except BaseException as inner:  # noqa: BLE001 - the kernel's own exception class
        text = f"(its text raises {type(inner).__name__})"
    detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
    detail += _where(error)
    out = _is_memory(error, text)
    try:
        trace = "".join(traceback.format_exception(error))[-20_000:]
    except BaseException:  # noqa: BLE001 - the kernel's own exception class
        trace = ""
    outcome = "out_of_memory" if out else "exception"
    return {"outcome": outcome, "payload": {"traceback": trace}, "detail": detail}, {}


def _where(error: BaseException) -> str:
    walked = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_code.co_filename, line) for frame, line in walked]
    lines = [item for item in reversed(lines) if item[0] != __file__]
    return f" ({own_line(lines)})" if lines else ""


def own_line(lines: Sequence[tuple[str, int]]) -> str:
    """'mine.py:12': of (file, line) from the innermost on, the first outside installed packages and what runs it."""
    engines = str(Path(__file__).parent / "engines")
    installed = ("site-packages", "dist-packages", str(Path(os.__file__).parent), "<", engines)
    own = (item for item in lines if not any(mark in item[0] for mark in installed))
    path, line = next(own, lines[0])
    return f"{Path(path).name}:{line}"


def _is_memory(error: BaseException, text: str) -> bool:
    """Whether memory ran out: torch says so by a RuntimeError, in one of four ways."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    said = ("not enough memory", "n't allocate memory", "std::bad_alloc", "Cannot allocate memory")
    return isinstance(error, RuntimeError | OSError) and any(part in text for part in said)
