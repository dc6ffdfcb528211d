"""Whatever a function does in a worker has a name, and its judge goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract import worker_child, worker_process, worker_server
from contract.errors import ContractError
from contract.shared_arrays import (
    Malformed,
    SharedArrays,
    open_shared,
    pack_frame,
    plain,
    read_frame,
    read_specs,
)
from contract.worker import Reply, Worker
from contract.worker_child import MESSAGE_BYTES

FAULTS = str(Path(__file__).parent / "faults")
ROOT = str(Path(__file__).parent.parent)
# Long enough for every fault that ends by itself on a busy machine.
PATIENT = 30.0
# Faults that only the clock ends.
SHORT = 0.4


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(timeout=PATIENT, memory=1 << 30, sys_path=[FAULTS]) as one:
        yield one


@pytest.fixture
def no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of the test's own, in an environment without torch: it starts in a tenth of a second.

    The value is the folder of a torch that is not there.
    """
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "torch.py").write_text("raise ImportError('not installed')\n")
    monkeypatch.syspath_prepend(str(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_server, "_server", None)
        yield str(folder)
        worker_server.close()


def run(worker: Worker, fault: str, timeout: float | None = None) -> Reply:
    return worker.call("faulty:fault", {"fault": fault}, {}, timeout=timeout)


def test_payload_and_arrays_come_back(worker: Worker) -> None:
    arrays: dict[str, Any] = {
        "matrix": np.arange(6.0).reshape(2, 3),
        "transposed": np.arange(6, dtype=np.int16).reshape(2, 3).T,
        "swapped": np.array([1, 2], ">u4"),
        "scalar": np.array(-0.0),
        "empty": np.zeros((0, 3), np.float16),
        "large": np.arange(1 << 20),
    }
    payload = {"eps": 1e-6, "infinity": float("inf"), "nested": [1, {"deep": None}], "é": "ü"}
    reply = worker.call("faulty:echo", payload, arrays)
    assert reply.outcome == "ok"
    assert reply.detail == ""
    assert reply.payload == payload
    assert list(reply.arrays) == list(arrays)
    for name, array in arrays.items():
        assert reply.arrays[name].shape == array.shape
        assert reply.arrays[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(reply.arrays[name], array)
    assert np.signbit(reply.arrays["scalar"])


@pytest.mark.parametrize(
    ("fault", "outcome", "detail"),
    [
        ("segfault", "crash", "killed by signal 11 (SIGSEGV) at faulty.py:"),
        ("abort", "crash", "killed by signal 6 (SIGABRT) at faulty.py:"),
        ("bad_alloc", "out_of_memory", "killed by signal 6 (SIGABRT) at faulty.py:"),
        ("illegal_free", "crash", "killed by signal "),
        ("exit_0", "crash", "exited with code 0 before it answered"),
        ("exit_3", "crash", "exited with code 3"),
        ("thread_exits", "crash", "exited with code 6"),
        ("sys_exit", "exception", "SystemExit: 4 (faulty.py:"),
        ("kill_self", "crash", "killed by signal 9 (SIGKILL)"),
        ("terminate_self", "crash", "killed by signal 15 (SIGTERM)"),
        ("kill_parent", "crash", "killed its supervisor, and was killed with it"),
        ("kill_parent_and_leave_a_child", "crash", "killed its supervisor, and was killed with it"),
        ("kill_parent_group", "crash", "killed its supervisor, and was killed with it"),
        ("numpy_memory", "out_of_memory", "MemoryError: Unable to allocate"),
        ("bytes_memory", "out_of_memory", "MemoryError"),
        ("torch_memory", "out_of_memory", "RuntimeError: "),
        ("list_memory", "out_of_memory", "MemoryError (faulty.py:"),
        ("fails", "exception", "ValueError: first line second ?[31mline (faulty.py:"),
        ("numpy_fails", "exception", "LinAlgError: Singular matrix (faulty.py:"),
        ("base_exception", "exception", "Base: (its text raises RuntimeError) (faulty.py:"),
        ("interrupt", "exception", "KeyboardInterrupt (faulty.py:"),
        ("recursion", "exception", "RecursionError: maximum recursion depth exceeded"),
        ("no_such_name", "exception", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("close_all", "crash", "closed its connection before it answered"),
        ("close_all_and_return", "crash", ""),
        ("garbage", "crash", "worker sent a malformed reply"),
        ("forged_header", "crash", "worker sent a malformed reply"),
        ("forged_answer", "crash", "worker sent a malformed reply"),
        ("forged_size", "crash", "worker sent a malformed reply"),
        ("returns_none", "exception", "TypeError: faulty:fault returned a NoneType; return ("),
        ("returns_list", "exception", "TypeError: faulty:fault returned a list; return ("),
        ("returns_no_json", "exception", "TypeError: Object of type object is not JSON"),
        ("returns_circle", "exception", "ValueError: Circular reference detected"),
        ("returns_objects", "exception", "TypeError: array 'x' has dtype object; use one of"),
        ("returns_tensor", "exception", "TypeError: array 'x' is a Tensor, not a numpy array"),
        ("returns_huge", "out_of_memory", "MemoryError: Unable to allocate"),
        ("returns_more_than_it_holds", "exception", "ValueError: faulty:fault returned 1610612736"),
        ("unimportable_result", "exception", "OSError: no items"),
        ("fork_returns_twice", "ok", ""),
    ],
)
def test_a_fault_has_a_name(worker: Worker, fault: str, outcome: str, detail: str) -> None:
    start = time.monotonic()
    reply = run(worker, fault)
    assert (reply.outcome, reply.detail[: len(detail)]) == (outcome, detail), reply.detail
    assert "\n" not in reply.detail
    # None of them waited for the clock.
    assert time.monotonic() - start < PATIENT / 2
    # The next call finds a worker, and nothing left of this one.
    assert worker.call("faulty:echo", {"n": 1}, {}).payload == {"n": 1}


@pytest.mark.parametrize(
    "fault",
    ["c_loop", "python_loop", "sleep", "stop_self", "deaf_loop", "printing_loop", "half_a_frame"],
)
def test_a_hang_ends_with_the_clock(worker: Worker, fault: str) -> None:
    start = time.monotonic()
    reply = run(worker, fault, timeout=SHORT)
    assert reply.outcome == "timeout"
    assert reply.detail.startswith("no call finished for 0.4 s")
    assert SHORT <= time.monotonic() - start < PATIENT / 2
    assert worker.call("faulty:echo", {"n": 1}, {}).outcome == "ok"


def test_progress_restarts_the_clock(worker: Worker) -> None:
    task = {"steps": 6, "seconds": SHORT / 3}
    late = worker.call("faulty:steps", {**task, "report": False}, {}, timeout=SHORT)
    assert late.outcome == "timeout"
    reply = worker.call("faulty:steps", {**task, "report": True}, {}, timeout=SHORT)
    assert reply.outcome == "ok"


def test_an_exception_brings_its_traceback(worker: Worker) -> None:
    trace = run(worker, "numpy_fails").payload["traceback"]
    assert "np.linalg.inv(np.zeros((2, 2)))" in trace
    assert "LinAlgError: Singular matrix" in trace


@pytest.mark.parametrize("name", ["no_such_module:f", "faulty:no_such_function", "faulty", ":"])
def test_a_function_that_does_not_exist_is_an_exception(worker: Worker, name: str) -> None:
    assert worker.call(name, {}, {}).outcome == "exception"


def test_what_is_printed_shows_in_the_detail_of_a_failure_only(
    worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    assert worker.call("faulty:print_much", {"fail": False}, {}).detail == ""
    reply = worker.call("faulty:print_much", {"fail": True}, {})
    assert reply.outcome == "exception"
    said, _, printed = reply.detail.partition("; printed: ")
    assert said.startswith("ValueError: after printing (faulty.py:")
    assert printed.endswith(f"{'x' * 99} | the last ?[2J line | \ufffd\ufffd from C")
    # Of an earlier call nothing is left to be told with the next.
    assert "printed" not in run(worker, "fails").detail
    assert capfd.readouterr() == ("", "")


def test_disorder_does_not_reach_the_next_call(worker: Worker) -> None:
    before = worker.call("faulty:state", {}, {}).payload
    assert worker.call("faulty:break_state", {}, {}).outcome == "ok"
    reply = worker.call("faulty:state", {}, {})
    assert reply.outcome == "ok", reply.detail
    assert reply.payload == before
    assert before["folder"] == str(Path.cwd())


def test_threads_and_preloaded_imports(worker: Worker) -> None:
    payload = worker.call("faulty:state", {}, {}).payload
    assert (payload["threads"], payload["omp"], payload["preloaded"]) == (1, "1", True)
    assert payload["main"] is None
    with Worker(threads=2, sys_path=[FAULTS]) as two:
        payload = two.call("faulty:state", {}, {}).payload
    assert (payload["threads"], payload["omp"]) == (2, "2")


def test_setup_runs_before_the_first_call() -> None:
    say = {"say": "ready"}
    with Worker(setup="faulty:good_setup", setup_payload=say, sys_path=[FAULTS]) as worker:
        assert worker.call("faulty:said", {}, {}).payload == {"said": "ready"}
        assert run(worker, "exit_3").outcome == "crash"
        assert worker.call("faulty:said", {}, {}).payload == {"said": "ready"}


@pytest.mark.parametrize(
    ("setup", "detail"),
    [
        ("faulty:bad_setup", "setup failed: ImportError: no module mine (faulty.py:"),
        ("no_such_suite:f", "setup failed: ModuleNotFoundError: No module named 'no_such_suite'"),
        ("faulty:dying_setup", "during setup: exited with code 5"),
    ],
)
def test_a_setup_that_fails_is_a_crash_of_each_call(setup: str, detail: str) -> None:
    with Worker(setup=setup, timeout=PATIENT, sys_path=[FAULTS]) as worker:
        for _ in range(2):
            reply = worker.call("faulty:echo", {}, {})
            assert (reply.outcome, reply.detail[: len(detail)]) == ("crash", detail)


def test_a_setup_may_take_longer_than_a_call() -> None:
    seconds = {"seconds": 2 * SHORT}
    with Worker(setup="faulty:slow_setup", setup_payload=seconds, sys_path=[FAULTS]) as worker:
        assert worker.call("faulty:echo", {}, {}, timeout=SHORT).outcome == "ok"


def test_a_setup_that_failed_is_tried_again(tmp_path: Path) -> None:
    file = {"file": str(tmp_path / "tried")}
    with Worker(setup="faulty:setup_fails_once", setup_payload=file, sys_path=[FAULTS]) as worker:
        assert "OSError: the device was busy" in worker.call("faulty:echo", {}, {}).detail
        assert worker.call("faulty:echo", {}, {}).outcome == "ok"


def test_a_setup_that_hangs_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contract.worker.START_SECONDS", SHORT)
    with Worker(setup="faulty:hanging_setup", timeout=SHORT, sys_path=[FAULTS]) as worker:
        reply = worker.call("faulty:echo", {}, {})
    assert (reply.outcome, reply.detail) == ("timeout", "setup did not finish in 0.4 s")


def test_what_cannot_be_sent_is_the_callers_mistake(worker: Worker) -> None:
    pid = worker.call("faulty:pid", {}, {}).payload
    with pytest.raises(TypeError, match="array 'x' has dtype object; use one of"):
        worker.call("faulty:echo", {}, {"x": np.array([None])})
    with pytest.raises(TypeError, match="not JSON"):
        worker.call("faulty:echo", {"x": object()}, {})
    # The worker never heard of it.
    assert worker.call("faulty:pid", {}, {}).payload == pid


def test_shared_arrays_are_copied_on_write(worker: Worker, tmp_path: Path) -> None:
    given: dict[str, Any] = {"x": np.arange(5, dtype=np.uint16), "y": np.full((2, 2), 1e300)}
    with SharedArrays(given, tmp_path) as shared:
        assert json.loads(json.dumps(shared.handle)) == shared.handle
        for name in ("faulty:write_into", "faulty:echo", "faulty:write_into"):
            reply = worker.call(name, {}, shared)
            expected = given["x"] if name == "faulty:echo" else np.full(5, 7)
            np.testing.assert_array_equal(reply.arrays["x"], expected)
        np.testing.assert_array_equal(open_shared(shared.handle)["y"], given["y"])
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []
    with SharedArrays({}, tmp_path) as nothing:
        reply = worker.call("faulty:echo", {}, nothing)
        assert (reply.outcome, reply.arrays) == ("ok", {})


def test_bytes_travel_in_native_order() -> None:
    # "=" would be the other order on a machine of the other kind.
    expected = np.array([1, 2], "=u4").tobytes()
    frame = b"".join(pack_frame({}, {"x": plain("x", np.array([1, 2], ">u4"))}))
    assert frame.endswith(b"]}" + expected)


def test_a_copy_of_the_worker_does_not_answer(worker: Worker) -> None:
    pid = worker.call("faulty:pid", {}, {}).payload["pid"]
    assert run(worker, "fork_returns_twice").payload["pid"] == pid
    assert worker.call("faulty:pid", {}, {}).payload["pid"] == pid


def test_of_what_is_printed_only_the_end_is_kept() -> None:
    child = object.__new__(worker_process.Child)
    child.output, write = os.pipe()
    os.set_blocking(child.output, False)
    child.printed = bytearray()
    os.write(write, b"x" * 60_000)
    child.drain(1 << 20)
    assert len(child.printed) == 32 << 10
    os.close(child.output)
    os.close(write)


@pytest.mark.parametrize(
    "specs",
    [
        None,
        {},
        ["x"],
        [["x", "float64"]],
        [[1, "float64", []]],
        [["x", "object", [1]]],
        [["x", ["float64"], [1]]],
        [["x", "V8", [1]]],
        [["x", "float64", [-1]]],
        [["x", "float64", [True]]],
        [["x", "float64", [1.0]]],
        [["x", "float64", [1] * 33]],
        [["x", "float64", [1 << 47, 1 << 47]]],
        [["x", "uint8", [1 << 10, 1 << 10, 2]]],
        [["x", "uint8", [1]], ["x", "uint8", [1]]],
    ],
)
def test_a_description_of_anything_else_is_refused(specs: Any) -> None:
    with pytest.raises(Malformed):
        read_specs(specs, 1 << 20)


@pytest.mark.parametrize(
    "data",
    [
        b'XXXX\x0e\0\0\0{"arrays": []}',
        b"KCF1\xff\xff\xff\xff",
        b"KCF1\x02\0\0\0[]",
        b"KCF1\x02\0\0\0{]",
        b"KCF1\x01\0\0\0\xff",
        b"KCF1\x02\0\0\0{}",
        b"KCF1\x50\xc3\0\0" + b"[" * 50_000,
    ],
)
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    rest = bytearray(data)

    def fill(view: memoryview) -> None:
        assert len(rest) >= len(view), "read on after the fault"
        view[:] = rest[: len(view)]
        del rest[: len(view)]

    with pytest.raises(Malformed):
        read_frame(fill, 1 << 20)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that init has not fetched yet does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def all_end(pids: list[int], seconds: float = 5.0) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(map(alive, pids))


@pytest.mark.parametrize("then", ["return", "crash", "hang"])
def test_processes_that_a_kernel_started_end_with_it(tmp_path: Path, then: str) -> None:
    file = tmp_path / "pids"
    with Worker(timeout=PATIENT, sys_path=[FAULTS]) as worker:
        worker.call("faulty:echo", {}, {})
        seconds = 2.0 if then == "hang" else None
        reply = worker.call(
            "faulty:grandchildren", {"file": str(file), "then": then}, {}, timeout=seconds
        )
        assert reply.outcome == {"return": "ok", "crash": "crash", "hang": "timeout"}[then]
        pids = [int(word) for word in file.read_text().split()]
        assert len(set(pids)) == 3
        if then == "return":
            assert all(map(alive, pids))
    assert all_end(pids)


JUDGE = """
    import sys
    from contract.worker import Worker
    worker = Worker(sys_path=[sys.argv[1]], timeout=600)
    worker.call("faulty:grandchildren", {"file": sys.argv[2], "then": "hang"}, {})
"""


@pytest.mark.parametrize("first", ["judge", "attendant"])
def test_killing_the_judge_leaves_no_process(tmp_path: Path, no_torch: str, first: str) -> None:
    file = tmp_path / "pids"
    # As a script: the worker must not import it again.
    script = tmp_path / "judge.py"
    script.write_text(textwrap.dedent(JUDGE))
    judge = subprocess.Popen(
        [sys.executable, str(script), FAULTS, str(file)],
        env={**os.environ, "PYTHONPATH": f"{no_torch}:{ROOT}"},
    )
    try:
        until = time.monotonic() + 60
        while not (file.exists() and len(file.read_text().split()) == 3):
            assert time.monotonic() < until
            assert judge.poll() is None
            time.sleep(0.02)
        pids = [int(word) for word in file.read_text().split()]
        assert all(map(alive, pids))
        descendants = _descendants(judge.pid)
        # Server, attendant, worker and the grandchild that did not detach itself, at the least.
        assert len(descendants) >= 4
        if first == "attendant":
            # Nobody is left to kill the worker but the system, and none to find what it detached.
            parent = Path(f"/proc/{pids[2]}/stat").read_text().rpartition(")")[2].split()[1]
            judge.send_signal(signal.SIGSTOP)
            os.kill(int(parent), signal.SIGKILL)
            assert all_end(pids[2:])
    finally:
        judge.kill()
        judge.wait()
        if first == "attendant":
            for pid in pids[:2]:
                os.kill(pid, signal.SIGKILL)
    assert all_end([*pids, *descendants])


def _descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def test_a_kernel_that_kills_its_parent_leaves_other_workers_alone(worker: Worker) -> None:
    with Worker(timeout=PATIENT, sys_path=[FAULTS]) as other:
        pid = other.call("faulty:state", {}, {}).payload["pid"]
        assert run(worker, "kill_parent_group").outcome == "crash"
        # A death by way of its supervisor would take a moment.
        time.sleep(0.2)
        assert other.call("faulty:state", {}, {}).payload["pid"] == pid


def test_a_fork_of_the_judge_has_workers_of_its_own(no_torch: str) -> None:
    worker = Worker(timeout=PATIENT, sys_path=[FAULTS])
    pid = worker.call("faulty:pid", {}, {}).payload["pid"]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            alone = worker_server._server is None
            mine = worker.call("faulty:pid", {}, {})
            worker.close()
            # Taken before the call: the parent's server is not this process's.
            code = 0 if alone and mine.outcome == "ok" and mine.payload["pid"] != pid else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert worker.call("faulty:pid", {}, {}).payload["pid"] == pid
    worker.close()


def test_a_worker_inside_a_worker(no_torch: str) -> None:
    with Worker(timeout=60.0, sys_path=[FAULTS]) as outer:
        reply = outer.call("faulty:nested", {}, {"x": np.arange(3)})
    assert reply.outcome == "ok", reply.detail
    assert reply.payload == {"outcome": "ok", "detail": "", "n": 1}
    np.testing.assert_array_equal(reply.arrays["x"], [0, 1, 2])


def test_the_command_line_needs_no_guard(tmp_path: Path, no_torch: str) -> None:
    code = (
        "from contract.worker import Worker\n"
        f"print(Worker(sys_path=[{FAULTS!r}]).call('faulty:echo', {{'n': 1}}, {{}}).payload)"
    )
    # Not closed either: the end of the process does it, without a word.
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code],
        env={**os.environ, "PYTHONPATH": f"{no_torch}:{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("{'n': 1}\n", "", 0)


@pytest.mark.parametrize("when", ["before the order", "after the order"])
def test_a_server_that_was_killed_is_replaced(no_torch: str, when: str) -> None:
    with Worker(sys_path=[FAULTS]) as worker:
        assert worker.call("faulty:echo", {"n": 1}, {}).outcome == "ok"
        worker.close()
        server = worker_server._server
        assert isinstance(server, worker_server._Server)
        # An interrupt from the terminal must not reach it.
        assert os.getsid(server.process.pid) == server.process.pid
        if when == "before the order":
            server.process.kill()
            server.process.wait()
        else:
            # Stopped, it takes the order and never carries it out.
            server.process.send_signal(signal.SIGSTOP)
            threading.Timer(0.2, server.process.kill).start()
        assert worker.call("faulty:echo", {"n": 2}, {}).payload == {"n": 2}
        assert worker_server._server is not server


def test_a_server_started_under_other_library_variables_is_replaced(
    no_torch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Worker(sys_path=[FAULTS]) as worker:
        worker.call("faulty:echo", {}, {})
        server = worker_server._server
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
        # The worker that runs is kept; a new one is of the new server.
        worker.call("faulty:echo", {}, {})
        assert worker_server._server is server
        worker.close()
        assert worker.call("faulty:echo", {}, {}).outcome == "ok"
        assert worker_server._server is not server


def test_a_server_that_cannot_start_says_why(
    no_torch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An interpreter that finds no standard library dies at once.
    monkeypatch.setenv("PYTHONHOME", "/nonexistent")
    with Worker(sys_path=[FAULTS]) as worker, pytest.raises(ContractError) as caught:
        worker.call("faulty:echo", {}, {})
    assert str(caught.value).startswith("the fork server of the workers does not start: ")


# Libraries that are imported once, and the server that judges share

IMPORTED = """
import os
from pathlib import Path
PID = os.getpid()
def pids(payload, arrays):
    return {"imported": PID, "own": os.getpid()}, {}
"""


@pytest.fixture
def library(no_torch: str) -> Path:
    """A module `library` that the server of the test finds; it knows in which process it was imported."""
    path = Path(no_torch) / "library.py"
    path.write_text(IMPORTED)
    return path


def worker_with(*modules: str) -> Worker:
    worker = Worker(timeout=PATIENT, sys_path=[FAULTS])
    worker.imports = modules
    return worker


def test_a_library_is_imported_once_for_several_workers(library: Path) -> None:
    with worker_with("library") as worker, worker_with("library") as other:
        found = [worker.call("library:pids", {}, {}).payload]
        worker.close()
        found += [one.call("library:pids", {}, {}).payload for one in (worker, other)]
        # whoever asks for it without naming it imports it itself
        alone = worker_with().call("library:pids", {}, {}).payload
    assert len({one["imported"] for one in found}) == 1
    assert len({one["own"] for one in found} | {found[0]["imported"]}) == 4
    assert alone["imported"] == alone["own"]


@pytest.mark.parametrize(
    "more",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "raise OSError('no device')",
        "mark = Path(__file__).with_name('ended'); mark.exists() or (mark.touch(), os._exit(3))",
    ],
    ids=["starts a thread", "raises", "ends its process"],
)
def test_a_library_that_no_template_can_import_is_left_to_the_worker(
    library: Path, more: str
) -> None:
    library.write_text(IMPORTED + more)
    with worker_with("library") as worker:
        for _ in range(2):
            assert worker.call("faulty:echo", {"n": 1}, {}).payload == {"n": 1}
            reply = worker.call("library:pids", {}, {})
            if "raise" in more:
                assert reply.detail == "OSError: no device (library.py:7)"
            else:
                assert reply.payload["imported"] == reply.payload["own"]
            worker.close()


def test_a_default_timeout_that_a_library_sets_is_not_the_workers(library: Path) -> None:
    library.write_text(IMPORTED + "import socket; socket.setdefaulttimeout(0.001)")
    with worker_with("library") as worker:
        for _ in range(2):
            assert worker.call("library:pids", {}, {}).outcome == "ok"
            time.sleep(0.05)


def test_a_library_is_imported_for_those_that_name_it(library: Path) -> None:
    library.with_name("other.py").write_text("import library\n")
    with worker_with("other") as one, worker_with("library") as two:
        found = [worker.call("library:pids", {}, {}).payload["imported"] for worker in (one, two)]
    assert found[0] != found[1]


def test_more_libraries_are_imported_on_top_of_those_that_are_there(library: Path) -> None:
    more = "import library\ndef both(p, a): return {'first': library.PID, 'second': PID}, {}\n"
    library.with_name("other.py").write_text(IMPORTED + more)
    with worker_with("library") as one, worker_with("library", "other") as two:
        first = one.call("library:pids", {}, {}).payload["imported"]
        found = two.call("other:both", {}, {}).payload
        again = two.call("other:pids", {}, {}).payload
    assert found["first"] == first
    assert len({first, found["second"], again["own"]}) == 3


@pytest.mark.parametrize("more", ["raise OSError('no device')", "os._exit(3)"])
def test_what_cannot_be_imported_on_top_is_left_to_the_worker(library: Path, more: str) -> None:
    library.with_name("other.py").write_text(IMPORTED + more)
    with worker_with("library") as one, worker_with("library", "other") as two:
        first = one.call("library:pids", {}, {}).payload["imported"]
        for _ in range(2):
            assert two.call("library:pids", {}, {}).outcome == "ok"
            outcome = two.call("other:pids", {}, {}).outcome
            assert outcome == ("exception" if "raise" in more else "crash")
            two.close()
        one.close()
        # what they share is there for the next
        assert one.call("library:pids", {}, {}).payload["imported"] == first


def test_what_an_import_starts_ends_with_its_template(library: Path) -> None:
    more = "import subprocess; CHILD = subprocess.Popen(['sleep', '777']).pid\n"
    more += "def child(payload, arrays): return {'pid': CHILD}, {}\n"
    library.write_text(IMPORTED + more)
    with worker_with("library") as worker:
        child = worker.call("library:child", {}, {}).payload["pid"]
        assert alive(child)
    worker_server.close()
    until = time.monotonic() + PATIENT
    while alive(child):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_more_libraries_than_a_message_holds_are_left_to_the_worker(library: Path) -> None:
    with worker_with("library", "x" * MESSAGE_BYTES) as worker:
        reply = worker.call("library:pids", {}, {})
        assert reply.payload["imported"] == reply.payload["own"]
        server = worker_server._server
        worker.close()
        assert worker.call("library:pids", {}, {}).outcome == "ok"
        assert worker_server._server is server


@pytest.fixture
def shared(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[worker_server.Shared]:
    """A server of the parent's, adopted."""
    with contextlib.closing(worker_server.Shared(os.environ)) as one:
        monkeypatch.setenv(worker_server.SHARED, str(os.dup(one.descriptor)))
        worker_server.adopt()
        assert worker_server.SHARED not in os.environ
        one.preload("builtins:dict", {})
        yield one


def test_a_shared_server_waits_for_what_to_preload_and_its_workers_have_it(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = library.with_name("preloaded")
    library.write_text(
        "from pathlib import Path\n"
        "def note(payload):\n    Path(payload['mark']).write_text(str(__import__('os').getpid()))"
    )
    with contextlib.closing(worker_server.Shared(os.environ)) as one:
        assert one.fits()
        monkeypatch.setenv("OMP_SCHEDULE", "static")
        assert not one.fits()
        monkeypatch.delenv("OMP_SCHEDULE")
        monkeypatch.setenv(worker_server.SHARED, str(os.dup(one.descriptor)))
        worker_server.adopt()
        one.preload("library:note", {"mark": str(mark)})
        with worker_with() as worker:
            assert worker.call("faulty:echo", {"n": 1}, {}).payload == {"n": 1}
        assert int(mark.read_text()) == one._server.process.pid
        # what no message holds is left to the workers
        one.preload("library:note", {"mark": "x" * MESSAGE_BYTES})


def test_a_shared_server_that_nobody_uses_ends_with_its_owner() -> None:
    one = worker_server.Shared(os.environ)
    process = one._server.process
    one._server.control.close()
    assert process.wait(PATIENT) == 0
    one.close()


def test_libraries_are_prepared_before_a_worker_needs_them(
    library: Path, shared: worker_server.Shared
) -> None:
    mark = library.with_name("imported")
    library.write_text(IMPORTED + "Path(__file__).with_name('imported').write_text(str(PID))")
    shared.prepare(["library"])
    until = time.monotonic() + PATIENT
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < until
        time.sleep(0.01)
    with worker_with("library") as worker:
        assert worker.call("library:pids", {}, {}).payload["imported"] == int(mark.read_text())


def test_an_adopted_server_is_used_and_replaced_when_it_is_killed(
    shared: worker_server.Shared,
) -> None:
    server = shared._server.process
    with worker_with() as worker, worker_with() as other:
        for one in (worker, other):
            above = one.call("faulty:ancestors", {}, {}).payload["ancestors"]
            assert above[1:3] == [server.pid, os.getpid()]
        assert isinstance(worker_server._server, worker_server._Adopted)
        server.kill()
        server.wait()
        # Nobody is told of it here, and the workers that it forked go on.
        shared.prepare(["library"])
        assert other.call("faulty:echo", {"n": 1}, {}).payload == {"n": 1}
        worker.close()
        above = worker.call("faulty:ancestors", {}, {}).payload["ancestors"]
        mine = worker_server._server
        assert isinstance(mine, worker_server._Server)
        assert above[1:3] == [mine.process.pid, os.getpid()]


def test_torch_need_not_be_installed(no_torch: str) -> None:
    with Worker(sys_path=[FAULTS]) as worker:
        assert worker.call("faulty:echo", {"n": 1}, {}).payload == {"n": 1}


def test_resident_memory_is_watched_where_the_address_space_is_not() -> None:
    with Worker(timeout=PATIENT, memory=1 << 29, sys_path=[FAULTS], resident=True) as worker:
        reply = run(worker, "list_memory")
    assert (reply.outcome, reply.detail) == ("out_of_memory", "more than 512 MiB resident")


def test_a_kill_by_the_kernel_for_memory_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(10))
    monkeypatch.setattr(worker_process, "oom_kills", lambda: next(counts))
    monkeypatch.setattr("contract.worker.oom_kills", lambda: next(counts))
    with Worker(timeout=PATIENT, sys_path=[FAULTS]) as worker:
        reply = run(worker, "kill_self")
    assert reply.outcome == "out_of_memory"
    assert "by the kernel: the machine ran out of memory" in reply.detail


def test_an_interrupt_of_the_judge_ends_the_call(worker: Worker) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    worker.call("faulty:echo", {}, {})
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, SHORT)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(worker, "c_loop")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert worker.call("faulty:echo", {"n": 1}, {}).payload == {"n": 1}


def test_a_worker_starts_fast_and_answers_fast(worker: Worker) -> None:
    """Measured on two busy cores: 50 ms and 0.5 ms; the limits leave room for ten times that."""
    worker.call("faulty:echo", {}, {})
    starts, calls = [], []
    for _ in range(3):
        worker.close()
        start = time.monotonic()
        worker.call("faulty:echo", {}, {})
        starts.append(time.monotonic() - start)
        start = time.monotonic()
        worker.call("faulty:echo", {}, {"x": np.zeros(64)})
        calls.append(time.monotonic() - start)
    assert min(starts) < 0.5
    assert min(calls) < 0.005


def test_a_failure_is_placed_at_the_line_of_its_author_and_not_at_an_engines() -> None:
    engine = str(Path(worker_child.__file__).parent / "engines" / "triton_launch.py")
    lines = [
        ("/x/site-packages/triton/compiler.py", 9),
        (engine, 155),
        ("/home/me/mine.py", 12),
        ("/home/me/run.py", 3),
    ]
    assert worker_child.own_line(lines) == "mine.py:12"
    assert worker_child.own_line(lines[:2]) == "compiler.py:9"
