"""Functions that go wrong, each in one way; run in a worker by tests/test_worker.py."""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from contract.shared_arrays import Array
from contract.worker_child import progress

Result = tuple[dict[str, Any], dict[str, Array]]


def echo(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    return payload, arrays


def write_into(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    arrays["x"][...] = 7
    return {}, {"x": arrays["x"]}


def state(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    """What a call finds: its folder, threads, limits and process ids."""
    import torch

    print("to the pipe")
    return {
        "folder": str(Path.cwd()),
        "threads": torch.get_num_threads(),
        "omp": os.environ["OMP_NUM_THREADS"],
        "pid": os.getpid(),
        "parent": os.getppid(),
        "main": sys.modules["__main__"].__dict__.get("__file__"),
        "preloaded": "torch" in sys.modules,
    }, {}


def pid(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    return {"pid": os.getpid()}, {}


def good_setup(payload: dict[str, Any]) -> None:
    os.environ["SETUP_SAID"] = payload["say"]


def said(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    return {"said": os.environ["SETUP_SAID"]}, {}


def bad_setup(payload: dict[str, Any]) -> None:
    raise ImportError("no module mine")


def slow_setup(payload: dict[str, Any]) -> None:
    time.sleep(payload["seconds"])


def setup_fails_once(payload: dict[str, Any]) -> None:
    file = Path(payload["file"])
    if not file.exists():
        file.touch()
        raise OSError("the device was busy")


def dying_setup(payload: dict[str, Any]) -> None:
    os._exit(5)


def hanging_setup(payload: dict[str, Any]) -> None:
    time.sleep(60)


def segfault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def bad_alloc() -> None:
    # What the C++ runtime prints before it aborts.
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def illegal_free() -> None:
    ctypes.CDLL(None).free(ctypes.c_void_p(8))


def exit_0() -> None:
    os._exit(0)


def exit_3() -> None:
    os._exit(3)


def sys_exit() -> None:
    sys.exit(4)


def thread_exits() -> None:
    threading.Thread(target=os._exit, args=(6,)).start()
    time.sleep(60)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminate_self() -> None:
    signal.raise_signal(signal.SIGTERM)


def kill_parent() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def kill_parent_and_leave_a_child() -> None:
    # The child keeps the worker's end of every socket open.
    if os.fork() == 0:
        time.sleep(600)
    kill_parent()


def kill_parent_group() -> None:
    os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
    time.sleep(60)


def c_loop() -> None:
    sum(range(10**12))


def python_loop() -> None:
    while True:
        pass


def sleep() -> None:
    time.sleep(60)


def stop_self() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def deaf_loop() -> None:
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue
    while True:
        pass


def printing_loop() -> None:
    while True:
        os.write(1, b"again and again\n" * 100)


# Each twice the limit of the test's worker, and less than any machine has.
def numpy_memory() -> None:
    np.empty(1 << 28)


def bytes_memory() -> None:
    bytearray(1 << 31)


def torch_memory() -> None:
    import torch

    torch.empty(1 << 31, dtype=torch.uint8)


def list_memory() -> None:
    kept = []
    while True:
        kept.append(bytes(1 << 24))


def fails() -> None:
    raise ValueError("first line\nsecond \x1b[31mline")


def numpy_fails() -> None:
    np.linalg.inv(np.zeros((2, 2)))


class Base(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


def base_exception() -> None:
    raise Base


def interrupt() -> None:
    raise KeyboardInterrupt


def recursion() -> None:
    recursion()


def no_such_name() -> None:
    importlib.import_module("no_such_module")


def close_all() -> None:
    os.closerange(0, 4096)
    time.sleep(60)


def close_all_and_return() -> Result:
    os.closerange(0, 4096)
    return {}, {}


def _sockets() -> list[socket.socket]:
    found = [item for item in gc.get_objects() if isinstance(item, socket.socket)]
    return [item for item in found if item.fileno() >= 0]


def garbage() -> None:
    for item in _sockets():
        item.sendall(b"\xff" * 4096)
    time.sleep(60)


def forged_header() -> None:
    text = b'{"kind": "reply", "number": 1, "arrays": [["x", "object", [1]]]}'
    for item in _sockets():
        item.sendall(b"KCF1" + len(text).to_bytes(4, "little") + text)
    time.sleep(60)


def forged_size() -> None:
    text = b'{"kind": "reply", "number": 1, "arrays": [["x", "float64", [281474976710655]]]}'
    for item in _sockets():
        item.sendall(b"KCF1" + len(text).to_bytes(4, "little") + text)
    time.sleep(60)


def forged_answer() -> None:
    text = b'{"kind": "reply", "number": 0, "outcome": "ok", "payload": {}, "detail": "", "arrays": []}'
    for item in _sockets():
        item.sendall(b"KCF1" + len(text).to_bytes(4, "little") + text)
    time.sleep(60)


def half_a_frame() -> None:
    for item in _sockets():
        item.sendall(b"KCF1\x40")
    time.sleep(60)


def returns_none() -> None:
    return None


def returns_list() -> object:
    return [{}, {}]


def returns_no_json() -> object:
    return {"x": object()}, {}


def returns_circle() -> object:
    payload: dict[str, Any] = {}
    payload["payload"] = payload
    return payload, {}


def returns_objects() -> object:
    return {}, {"x": np.array([object()])}


def returns_tensor() -> object:
    import torch

    return {}, {"x": torch.zeros(2)}


def returns_huge() -> object:
    # Takes no memory until it is copied.
    return {}, {"x": np.broadcast_to(np.zeros(1), (1 << 40,))}


def returns_more_than_it_holds() -> object:
    # One array under three names: 1.5 GiB to send, half a GiB in memory, and that never touched.
    one = np.zeros(1 << 29, np.uint8)
    return {}, {"x": one, "y": one, "z": one}


def fork_returns_twice() -> Result:
    # The copy returns first, and must end without an answer.
    if pid := os.fork():
        os.waitpid(pid, 0)
    return {"pid": os.getpid()}, {}


def unimportable_result() -> object:
    class Liar(dict[str, Any]):
        def items(self) -> Any:
            raise OSError("no items")

    return {}, Liar()


FAULTS: dict[str, Callable[[], object]] = {
    name: call for name, call in list(globals().items())
    if callable(call) and getattr(call, "__module__", "") == __name__
    and getattr(call, "__code__", None) is not None and call.__code__.co_argcount == 0
}  # fmt: skip


def fault(payload: dict[str, Any], arrays: dict[str, Array]) -> Any:
    """Run the fault that the payload names."""
    return FAULTS[payload["fault"]]()


def print_much(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    for _ in range(10_000):
        print("x" * 99)
    print("the last \x1b[2J line", file=sys.stderr)
    os.write(2, b"\xff\xfe from C\n")
    if payload["fail"]:
        raise ValueError("after printing")
    return {}, {}


def break_state(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    """Leave the process in disorder: folder, standard streams, descriptors 1 and 2."""
    os.chdir("/")
    sys.stdout.close()
    sys.stderr = None
    os.close(1)
    os.close(2)
    return {}, {}


def grandchildren(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    """Start one process in the group and one that detaches itself; then end as told."""
    read, write = os.pipe()
    for detach in (False, True):
        if os.fork() == 0:
            if detach:
                os.setsid()
                if os.fork():
                    os._exit(0)
            os.write(write, f"{os.getpid()} ".encode())
            time.sleep(600)
            os._exit(0)
    pids: list[str] = []
    while len(pids) < 2:
        pids += os.read(read, 100).decode().split()
    Path(payload["file"]).write_text(" ".join([*pids, str(os.getpid())]))
    if payload["then"] == "crash":
        os.abort()
    if payload["then"] == "hang":
        sum(range(10**12))
    return {}, {}


def steps(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    """Take longer than the timeout, in steps that do not."""
    for _ in range(payload["steps"]):
        time.sleep(payload["seconds"])
        if payload["report"]:
            progress()
    return {}, {}


def nested(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    """A worker inside a worker."""
    from contract.worker import Worker

    # More memory than the outer worker may have: the outer limit holds.
    with Worker(timeout=20.0, memory=64 << 30) as worker:
        reply = worker.call("faulty:echo", {"n": 1}, arrays)
    return {"outcome": reply.outcome, "detail": reply.detail, **reply.payload}, reply.arrays


def ancestors(payload: dict[str, Any], arrays: dict[str, Array]) -> Result:
    """The processes above this one, the nearest first."""
    found = [os.getppid()]
    while found[-1] > 1:
        stat = Path(f"/proc/{found[-1]}/stat").read_text()
        found.append(int(stat.rpartition(")")[2].split()[1]))
    return {"ancestors": found}, {}
