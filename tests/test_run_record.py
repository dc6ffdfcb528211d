"""A record of a run is readable at every moment, after a kill too."""

from __future__ import annotations

import functools
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contract.errors import CaseError, StoreError
from contract.pipelines.run_record import (
    Header,
    Record,
    RunRecord,
    Stage,
    Step,
    read_record,
    verification,
    versions,
)

HEADER = Header(
    "tiny", "sha256:00", "bf16", None, {"torch": "2"}, {"threads": {}}, [{"kernel": "k", "sources": "s"}]
)  # fmt: skip

# Writes one token after the other, as fast as it can, until it is killed.
ENDLESS = """
import itertools, sys
from contract.pipelines.run_record import *
record = RunRecord(sys.argv[1], Header("tiny", "sha256:00", "bf16", 7, {}, {}, []))
record.stage("prefill", 0.5, rows=3)
for i in itertools.count():
    record.step(Step(i, 3 * i, "é" * 400, 0.25, 1.5))
    print(i, flush=True)
"""


def step(index: int, margin: float = 0.5) -> Step:
    return Step(index, 10 + index, " é\n", 0.125, margin)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_a_record_says_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    with RunRecord(path, HEADER) as record:
        assert read_record(path) == Record(HEADER, (), (), "running", False)
        record.stage("load", 1.5, tensors=3, worst=math.nan)
        record.step(step(0))
        record.step(step(1, margin=math.inf))
        assert read_record(path).state == "running"
    found = read_record(path)
    assert found.header == HEADER
    assert found.stages == (Stage("load", 1.5, {"tensors": 3, "worst": "nan"}),)
    assert found.steps == (step(0), step(1, margin=math.inf))
    assert (found.state, found.cut, found.text) == ("finished", False, " é\n é\n")


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError("no such tensor"), "failed: ValueError: no such tensor"),
        (KeyboardInterrupt(), "failed: interrupted"),
    ],
)
def test_the_state_says_why_a_run_failed(tmp_path: Path, error: BaseException, state: str) -> None:
    record = RunRecord(tmp_path / "r", HEADER)
    record.step(step(0))
    with pytest.raises(type(error)), record:
        raise error
    assert read_record(tmp_path / "r").state == state
    assert read_record(tmp_path / "r").steps == (step(0),)
    with pytest.raises(CaseError, match="has its end already"):
        record.step(step(1))


@pytest.mark.parametrize("tokens", [0, 1, 57])
def test_a_killed_run_keeps_every_token_it_had_finished(tmp_path: Path, tokens: int) -> None:
    path = tmp_path / "run.jsonl"
    command = [sys.executable, "-c", ENDLESS, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        finished = -1
        for _ in range(tokens + 1):
            finished = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        finished = max([finished, *(int(line) for line in child.stdout if line.endswith("\n"))])
    assert child.returncode == -signal.SIGKILL
    found = read_record(path)
    # what was printed was written before; one more may have been
    assert len(found.steps) in (finished + 1, finished + 2)
    assert found.steps[-1] == Step(
        len(found.steps) - 1, 3 * (len(found.steps) - 1), "é" * 400, 0.25, 1.5
    )
    assert found.stages[0].measures == {"rows": 3}
    assert (found.state, found.header.seed) == ("running", 7)


def test_a_file_that_ends_anywhere_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with RunRecord(path, HEADER) as record:
        record.step(step(0))
        record.step(step(1))
    lines = lines_of(path)
    whole, header = b"".join(lines), len(lines[0])
    for size in range(header, len(whole)):
        path.write_bytes(whole[:size])
        found = read_record(path)
        kept = sum(size >= len(b"".join(lines[: i + 1])) for i in (1, 2))
        assert len(found.steps) == kept
        assert found.state == "running"
        assert found.cut == (not whole[:size].endswith(b"\n"))


def test_a_step_costs_the_same_after_thousands(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record = RunRecord(path, HEADER)
    sizes, seconds = [], []
    for i in range(4096):
        before, start = path.stat().st_size, time.perf_counter()
        record.step(step(i))
        seconds.append(time.perf_counter() - start)
        sizes.append(path.stat().st_size - before)
    record.finish()
    # what is written for a step is that step alone
    assert max(sizes) < 2 * min(sizes)
    assert sorted(seconds)[2048] < 0.002
    assert len(read_record(path).steps) == 4096


def test_a_new_record_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    with RunRecord(tmp_path / "r", HEADER) as record:
        record.step(step(0))
    RunRecord(tmp_path / "r", HEADER)
    assert read_record(tmp_path / "r").steps == ()
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    record = RunRecord(tmp_path / "r", HEADER)
    with pytest.raises(CaseError, match="step 1 in the place of step 0"):
        record.step(step(1))
    with pytest.raises(CaseError, match="record of stage load: Object of type set"):
        record.stage("load", 1.0, odd={1})
    record.step(step(0))
    assert len(read_record(tmp_path / "r").steps) == 1
    with pytest.raises(StoreError, match="cannot be written"):
        RunRecord(tmp_path / "r" / "below", HEADER)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [], "is empty"),
        (lambda lines: lines[1:], "line 1 is no header; this is no record"),
        (lambda lines: [b"\x89PNG\r\n", *lines], "line 1 is no JSON"),
        (lambda lines: [lines[0].replace(b'"schema": 1', b'"schema": 9')], "line 1 is of schema 9"),
        (lambda lines: [lines[0].replace(b'"model"', b'"mod"'), *lines[1:]], "line 1 .* mod"),
        (lambda lines: [lines[0].replace(b'"tiny"', b"3")], "line 1 has model = 3, no str"),
        (lambda lines: [lines[0], lines[1][:9] + b"\n", lines[2]], "line 2 is no JSON"),
        (lambda lines: [lines[0], b"[1]\n"], "line 2 is a list"),
        (lambda lines: [lines[0], b"[" * 100_000 + b"\n"], "line 2 is no JSON"),
        (lambda lines: [lines[0], lines[2]], "line 2 is step 1 in the place of step 0"),
        (lambda lines: [*lines, lines[1]], "line 5 follows the end"),
        (lambda lines: [lines[0], b'{"kind": "other"}\n'], "line 2 is of kind 'other'"),
        (lambda lines: [lines[0], b'{"kind": "end", "state": "odd"}\n'], "line 2 has the state 'odd'"),
        (lambda lines: [lines[0], b'{"kind": "end"}\n'], "line 2 is no end"),
        (lambda lines: [lines[0], lines[1].replace(b"0.125", b'"soon"')], "no number"),
        (lambda lines: [lines[0], lines[1].replace(b"0.125", b"1" + b"0" * 400)], "no number"),
        (lambda lines: [lines[0], lines[1].replace(b"0.125", b"true")], "seconds = True"),
        (lambda lines: [lines[0], lines[1].replace(b'"token": 10', b'"token": 1.5')], "no int"),
        (lambda lines: [lines[0], lines[1].replace(b'"seconds"', b'"second"')], "line 2 .*second"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_refused_by_its_line(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], said: str
) -> None:
    path = tmp_path / "r"
    with RunRecord(path, HEADER) as record:
        record.step(step(0))
        record.step(step(1))
    path.write_bytes(b"".join(change(lines_of(path))))
    with pytest.raises(StoreError, match=said):
        read_record(path)


def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contract.pipelines.run_record.LONGEST_LINE", 1000)
    RunRecord(tmp_path / "r", HEADER)
    with open(tmp_path / "r", "ab") as file:
        file.write(b"x" * 5000)
    with pytest.raises(StoreError, match="line 2 is longer than 1000 bytes"):
        read_record(tmp_path / "r")
    with pytest.raises(StoreError, match="cannot be read"):
        read_record(tmp_path / "absent")


def test_the_header_of_a_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from contract.calls import Call
    from contract.case import find
    from contract.verify import implementation_of, load_suites, source_hash

    load_suites()
    kernel = find("argmax_rows", "float32_logits", {})
    item = implementation_of(kernel, "torch")
    call = Call(kernel, item)
    entry = {
        "kernel": "argmax_rows/float32_logits/torch",
        "sources": source_hash(kernel, item),
    }
    assert verification(functools.partial(functools.partial(call), scale=1.0)) == entry
    header = Header.of("tiny", "sha256:00", "bf16", [call], seed=3)
    assert header.kernels == [entry]
    assert header.versions["torch"] == versions()["torch"] is not None
    assert "threads" in header.environment
    with pytest.raises(CaseError, match="is no verified kernel"):
        verification(max)


def test_a_record_is_read_without_torch() -> None:
    program = "import sys, contract.pipelines.run_record; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
