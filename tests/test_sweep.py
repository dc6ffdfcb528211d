"""`contract sweep`: every value is judged once, a fault at one of them is found, and a ledger survives what kills a sweep."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sampling import SAMPLED

from contract.case import find
from contract.sweeps import ledger
from contract.sweeps.space import CODES, FP32, PAIRS, SHARD, Space, pieces, unfit

SWEPT = Path(__file__).parent / "suite" / "swept.py"
Sweep = Callable[..., tuple[int, str, str]]
#: Fourteen shards of two operands, seven values beside each.
GATED = "gated/once/good"


@pytest.fixture
def sweep(project: Path, contract_command: Sweep) -> Sweep:
    """`contract sweep` with these words, in a project whose kernels are those of SWEPT: (exit code, stdout, stderr)."""
    (project / "contracts" / "scaled.py").unlink()
    (project / "contracts" / "swept.py").write_text(SWEPT.read_text())
    return lambda *words: contract_command("sweep", *words)


def _command(project: Path, *words: str) -> subprocess.Popen[bytes]:
    """The same in a process of its own; its errors go to errors.txt."""
    with open(project / "errors.txt", "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "contract", "sweep", *words],
            cwd=project,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            start_new_session=True,
        )


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") - 1 if path.is_file() else 0


# -- spaces


@pytest.mark.parametrize(
    ("name", "profile", "mode", "settings", "inputs"),
    [
        ("softcap", "each_op", CODES, 2, 1 << 16),
        ("softcap", "float32", FP32, 1, 1 << 32),
        ("swiglu", "once", CODES, 14, 1 << 16),
        ("swiglu", "once", PAIRS, 1, 1 << 22),
        ("scale", "once", CODES, 7, 1 << 16),
    ],
)
def test_shards_hold_every_input_of_every_setting_once(
    name: str, profile: str, mode: str, settings: int, inputs: int
) -> None:
    importlib.import_module(f"contract.kernels.{name}")
    kernel = find(name, profile)
    assert unfit(kernel, mode) == ""
    space = Space(kernel, mode)
    shards = space.shards()
    assert [s.number for s in shards] == list(range(len(shards)))
    assert len(space.settings) == settings
    for number in range(settings):
        edges = [(s.first, s.last) for s in shards if s.setting == number]
        assert edges[0][0] == 0
        assert edges[-1][1] == inputs - 1
        assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(edges))
        assert all(last - first < SHARD for first, last in edges)


def test_the_inputs_of_a_16_bit_operand_are_its_65536_patterns() -> None:
    importlib.import_module("contract.kernels.softcap")
    space = Space(find("softcap", "once"), CODES)
    codes = space.codes(space.settings[0], 0, (1 << 16) - 1)["x"]
    assert np.array_equal(np.sort(codes), np.arange(1 << 16))


def test_a_grid_of_pairs_holds_the_specials_of_both_operands_together() -> None:
    importlib.import_module("contract.kernels.swiglu")
    space = Space(find("swiglu", "once"), PAIRS)
    setting = space.settings[0]
    codes = space.codes(setting, 0, space.size(setting) - 1)
    gate, up = codes["gate"].astype(np.int64), codes["up"].astype(np.int64)
    pairs = set((gate << 16 | up).tolist())
    # 1, infinity, a NaN, -0, the smallest subnormal
    some = (0x3F80, 0x7F80, 0x7FC0, 0x8000, 0x0001)
    assert {a << 16 | b for a in some for b in some} <= pairs
    # its low bits, too
    assert len(np.unique(gate & 0xFF)) > 200


@pytest.mark.parametrize(
    ("name", "mode", "why"),
    [
        ("rms_norm", CODES, "depends on several elements"),
        ("layer_norm", CODES, "depends on several elements"),
        ("softmax", CODES, "depends on several elements"),
        ("softcap", FP32, "fp32"),
        ("softcap", PAIRS, "two such operands"),
        ("linear", CODES, "no operand has one element for each output"),
    ],
)
def test_a_kernel_that_cannot_be_swept_says_why(name: str, mode: str, why: str) -> None:
    importlib.import_module(f"contract.kernels.{name}")
    assert why in unfit(find(name), mode)


def test_a_norm_in_fp32_is_no_kernel_of_single_elements() -> None:
    importlib.import_module("contract.kernels.layer_norm")
    assert "several elements" in unfit(find("layer_norm", "float32"), FP32)


def test_pieces_do_not_cross_a_multiple_of_their_size() -> None:
    assert list(pieces(5, 20, 8)) == [(5, 7), (8, 15), (16, 20)]
    assert list(pieces(8, 15, 8)) == [(8, 15)]


# -- verdicts


def test_a_good_kernel_passes_on_all_its_inputs(sweep: Sweep, project: Path) -> None:
    code, out, _ = sweep("cap/once/good", "--json", "said.json")
    assert code == 0, out
    assert "cap/once/good  pass: 65,536 outputs, 0 refused" in out
    assert "SUMMARY 1 swept, 65,536 outputs: 1 pass" in out
    (said,) = json.loads((project / "said.json").read_text())["sweeps"]
    assert (said["outcome"], said["inputs"], said["refused"]) == ("pass", 65_536, 0)


@pytest.mark.parametrize(
    ("name", "refused", "first"),
    [("one_wrong", 1, "0x4049"), ("nan_lost", 254, "0x7f81"), ("sign_lost", 1, "0x8000")],
)
def test_a_fault_at_one_of_65536_inputs_is_found_and_replayed(
    sweep: Sweep, name: str, refused: int, first: str
) -> None:
    code, out, _ = sweep(f"cap/once/{name}")
    assert code == 1
    assert f"cap/once/{name}  fail: 65,536 outputs, {refused} refused" in out
    replay = f"contract sweep cap/once/{name} --bits {first}:{first}"
    assert replay in out
    code, out, _ = sweep(*replay.split()[2:])
    assert code == 1
    assert "1 outputs, 1 refused" in out
    assert ("got 0x" in out) or ("allowed NaN only" in out)
    beside = f"0x{int(first, 16) - 1:x}"
    assert sweep(f"cap/once/{name}", "--bits", f"{beside}:{beside}")[0] == 0


def test_a_fault_at_one_of_2_to_the_32_inputs_is_found_on_its_shard(
    sweep: Sweep, project: Path
) -> None:
    code, out, _ = sweep("cap/float32/one_wrong", "--fp32", "--shard", "66/256")
    assert code == 1
    assert "16,777,216 outputs, 1 refused" in out
    assert "--fp32 --bits 0x41234567:0x41234567" in out
    assert sweep("cap/float32/one_wrong", "--fp32", "--bits", "0x41234568:0x41234fff")[0] == 0
    assert sweep("cap/float32/one_wrong", "--fp32", "--bits", "0x41234567:0x41234567")[0] == 1
    # the red one is remembered, and not judged again
    code, out, _ = sweep("cap/float32/one_wrong", "--fp32", "--shard", "66/256")
    assert code == 1
    assert "16,777,216 of them from the ledger" in out


def test_specials_of_fp32_are_judged(sweep: Sweep) -> None:
    for bits in (
        "0x0:0xfff",
        "0x7f7ff000:0x7f800fff",
        "0x80000000:0x800007ff",
        "0xffffff00:0xffffffff",
    ):
        code, out, _ = sweep("cap/float32/good", "--fp32", "--bits", bits)
        assert code == 0, out


def test_what_cannot_be_swept_is_named_and_alone_it_ends_5(sweep: Sweep) -> None:
    code, out, err = sweep("centred")
    assert code == 5
    assert "centred/once/good  not run: an output depends on several elements" in out
    assert "nothing was swept" in err


def test_a_share_without_shards_is_no_pass(sweep: Sweep, project: Path) -> None:
    code, out, _ = sweep("cap/once/good", "--shard", "8/8", "--json", "x.json")
    assert code == 5
    assert "cap/once/good  not run: of its 1 shards none is in --shard 8/8" in out
    assert json.loads((project / "x.json").read_text())["sweeps"][0]["outcome"] == "not_run"


def test_a_crash_is_red_and_told_and_what_was_finished_is_kept(sweep: Sweep, project: Path) -> None:
    code, out, _ = sweep("cap/once/dies")
    assert code == 1
    assert "cap/once/dies  unfinished" in out
    assert "crash: killed by signal 6 (SIGABRT)" in out
    code, out, _ = sweep("gated/once/dies_late", "-j", "1")
    assert code == 1
    assert "b=0x7f80" in out
    # those before it: b fixed at four other values
    path = project / ".contract" / "sweeps" / "gated.once.dies_late.codes.jsonl"
    assert _lines(path) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cap/once/good", "--shard", "9/8"), "is not K/N"),
        (("cap/once/good", "--bits", "7:3"), "is not FIRST:LAST"),
        (("cap/once/good", "--bits", "0:65536"), "has inputs 0x0 to 0xffff"),
        (("cap/once/good", "--bits", "0:5", "--json", "x.json"), "leave --json out"),
        (("cap/once/good", "--bits", "0:5", "--shard", "1/2"), "leave --shard out"),
        (("cap", "--ledger", "x.jsonl"), "one ledger is of one implementation"),
        (("--merge", "x.jsonl"), "--merge needs -o"),
        (("--merge", "x.jsonl", "-o", "y.jsonl"), "no ledger is there"),
        (("absent",), "absent"),
        (("cap/once/good", "--dask", "tcp://127.0.0.1:1"), "--dask"),
    ],
)
def test_a_usage_error_is_one_line(sweep: Sweep, words: tuple[str, ...], said: str) -> None:
    code, _, err = sweep(*words)
    assert code == 4
    assert said in err
    assert err.count("\n") == 1


# -- ledgers


def test_shares_that_are_merged_are_the_ledger_of_a_whole_sweep(
    sweep: Sweep, project: Path
) -> None:
    assert sweep(GATED, "--ledger", "whole.jsonl", "-j", "2")[0] == 0
    for k in (1, 2, 3):
        code, out, _ = sweep(GATED, "--ledger", f"{k}.jsonl", "--shard", f"{k}/3")
        assert code == 0, out
    code, out, _ = sweep("--merge", "2.jsonl", "1.jsonl", "-o", "part.jsonl")
    assert code == 1
    assert "not done: shards 2, 5, 8, 11" in out
    assert sweep("--merge", "3.jsonl", "1.jsonl", "2.jsonl", "-o", "all.jsonl")[0] == 0
    assert (project / "all.jsonl").read_bytes() == (project / "whole.jsonl").read_bytes()
    # a part goes on
    assert sweep(GATED, "--ledger", "part.jsonl")[0] == 0
    assert (project / "part.jsonl").read_bytes() == (project / "whole.jsonl").read_bytes()


def test_a_line_that_was_cut_is_done_again(sweep: Sweep, project: Path) -> None:
    path = project / "ledger.jsonl"
    sweep(GATED, "--ledger", "ledger.jsonl")
    whole = path.read_bytes()
    for cut in (whole[:-7], whole[: whole.rindex(b"\n", 0, -1) + 1], whole[:100], b""):
        path.write_bytes(cut)
        code, out, _ = sweep(GATED, "--ledger", "ledger.jsonl")
        assert code == 0, out
        assert path.read_bytes() == whole


def test_what_is_written_after_a_cut_line_begins_a_line(sweep: Sweep, project: Path) -> None:
    path = project / "ledger.jsonl"
    sweep(GATED, "--ledger", "ledger.jsonl")
    found = ledger.read(path)
    assert found is not None
    path.write_bytes(path.read_bytes()[:-7])
    # a second kill may come before the ledger is sorted
    again = ledger.opened(path, found.head)
    assert again.missing == [13]
    again.append(found.lines[13])
    read = ledger.read(path)
    assert read is not None
    assert read.lines == found.lines


def test_a_ledger_of_another_source_is_refused_by_name(sweep: Sweep, project: Path) -> None:
    assert sweep("cap/once/good")[0] == 0
    file = project / "contracts" / "swept.py"
    file.write_text(file.read_text() + "\n# edited\n")
    code, _, err = sweep("cap/once/good")
    assert code == 4
    assert "sources differ in" in err
    assert "swept" in err
    assert "--fresh begins anew" in err
    assert sweep("cap/once/good", "--fresh")[0] == 0


def test_a_ledger_of_another_kernel_or_environment_is_refused(
    sweep: Sweep, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sweep("cap/once/good", "--ledger", "x.jsonl")[0] == 0
    code, _, err = sweep("cap/once/one_wrong", "--ledger", "x.jsonl")
    assert code == 4
    assert "implementation 'good', here 'one_wrong'" in err
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    code, _, err = sweep("cap/once/good", "--ledger", "x.jsonl")
    assert code == 4
    assert "environment differ in isa_variables" in err


@pytest.mark.parametrize("edit", ["refused", "head", "junk", "order"])
def test_an_edited_ledger_is_refused_and_the_line_named(
    sweep: Sweep, project: Path, edit: str
) -> None:
    path = project / "x.jsonl"
    sweep("cap/once/one_wrong", "--ledger", "x.jsonl")
    head, line = path.read_text().splitlines()
    if edit == "refused":
        line = line.replace('"refused": [1]', '"refused": [0]')
        path.write_text(f"{head}\n{line}\n")
    elif edit == "head":
        head = head.replace('"shards": 1', '"shards": 2')
        path.write_text(f"{head}\n{line}\n")
    elif edit == "junk":
        path.write_text(f"{head}\n[1, 2]\n{line}\n")
    else:
        path.write_text(f"{line}\n{head}\n")
    code, _, err = sweep("cap/once/one_wrong", "--ledger", "x.jsonl")
    assert code == 4
    assert "x.jsonl" in err
    assert "delete" in err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shard": None}, "counts"),
        ({"shard": 0.5}, "counts"),
        ({"refused": []}, "counts"),
        ({"refused": [-1]}, "counts"),
        ({"outputs": 0}, "counts"),
        ({"shard": 1}, "another ledger"),
    ],
)
def test_a_line_with_a_right_hash_and_odd_counts_is_refused(
    sweep: Sweep, project: Path, change: dict[str, object], said: str
) -> None:
    sweep("cap/once/good", "--ledger", "x.jsonl")
    head, line = map(json.loads, (project / "x.jsonl").read_text().splitlines())
    del line["hash"]
    lines = [head, ledger.hashed({**line, **change})]
    (project / "x.jsonl").write_text(
        "".join(json.dumps(one, sort_keys=True) + "\n" for one in lines)
    )
    code, _, err = sweep("--merge", "x.jsonl", "-o", "y.jsonl")
    assert code == 4
    assert "x.jsonl, line 2" in err
    assert said in err


@pytest.mark.parametrize("change", [{"shards": 0}, {"shards": -1}, {"options": []}])
def test_a_ledger_of_no_shards_is_no_pass(
    sweep: Sweep, project: Path, change: dict[str, object]
) -> None:
    sweep("cap/once/good", "--ledger", "x.jsonl")
    head = json.loads((project / "x.jsonl").read_text().splitlines()[0])
    del head["key"], head["schema"]
    edited = ledger.headed({**head, **change})
    (project / "x.jsonl").write_text(json.dumps(edited, sort_keys=True) + "\n")
    code, _, err = sweep("--merge", "x.jsonl", "-o", "y.jsonl")
    assert code == 4
    assert "its first line was edited" in err


def test_two_sweeps_on_one_ledger_keep_the_lines_of_both(sweep: Sweep, project: Path) -> None:
    path = project / "x.jsonl"
    sweep(GATED, "--ledger", "x.jsonl", "--shard", "1/2")
    one = ledger.read(path)
    assert one is not None
    sweep(GATED, "--ledger", "x.jsonl", "--shard", "2/2")
    whole = path.read_bytes()
    # the first of them read the file before the second wrote to it
    one.settle()
    assert path.read_bytes() == whole


def test_two_results_of_one_shard_are_told(sweep: Sweep, project: Path) -> None:
    sweep("cap/once/good", "--ledger", "x.jsonl")
    found = ledger.read(project / "x.jsonl")
    assert found is not None
    other = {k: v for k, v in found.lines[0].items() if k != "hash"} | {"sha256": {"out": "0"}}
    text = found.text()
    (project / "x.jsonl").write_text(text + json.dumps(ledger.hashed(other), sort_keys=True) + "\n")
    code, _, err = sweep("cap/once/good", "--ledger", "x.jsonl")
    assert code == 4
    assert "shard 0 stands there twice" in err


def test_one_alternative_must_allow_all_shards() -> None:
    head = {"options": [{"by": "a"}, {"by": "b"}]}
    lines = [{"shard": n, "inputs": 4, "outputs": 4, "refused": list(r), "refusal": None}
             for n, r in enumerate([(0, 2), (1, 0)])]  # fmt: skip
    found = ledger.verdict(head, lines, 0)
    assert (found.refused, found.option) == (1, 0)
    assert ledger.verdict(head, lines[:1], 1).refused == 0


# -- kills


def _killed_and_resumed(
    project: Path, whole: bytes, name: str, lines: int, wait: float, delay: float = 0.0
) -> int:
    """Kill a sweep a delay after its ledger has so many lines, or after so long; go on; returns how many shards it had."""
    path = project / name
    words = ("gated/once/slow", "--ledger", name, "-j", "2")
    process = _command(project, *words)
    start = time.monotonic()
    try:
        while process.poll() is None and _lines(path) < lines and time.monotonic() - start < wait:
            time.sleep(0.005)
        time.sleep(delay)
    finally:
        # it may have ended by itself
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    kept = _lines(path)
    assert _command(project, *words).wait() == 0, (project / "errors.txt").read_text()
    assert path.read_bytes() == whole
    return kept


def test_a_sweep_that_was_killed_goes_on_to_the_same_ledger(sweep: Sweep, project: Path) -> None:
    assert sweep("gated/once/slow", "--ledger", "whole.jsonl")[0] == 0
    whole = (project / "whole.jsonl").read_bytes()
    kept = _killed_and_resumed(project, whole, "killed.jsonl", 3, 120.0)
    assert 3 <= kept < 14


@pytest.mark.slow
def test_sweeps_killed_at_random_moments_go_on_to_the_same_ledger(
    sweep: Sweep, project: Path
) -> None:
    assert sweep("gated/once/slow", "--ledger", "whole.jsonl")[0] == 0
    whole = (project / "whole.jsonl").read_bytes()
    start = time.monotonic()
    assert _command(project, "gated/once/slow", "--ledger", "timed.jsonl").wait() == 0
    whole_time = time.monotonic() - start
    rng = np.random.default_rng(0)
    kept = []
    kills = 2 if SAMPLED else 20
    for n in range(kills):
        # half of them at any moment, most of which are before the first shard; half while shards are judged
        lines, wait = (14, rng.uniform(0.0, whole_time)) if n % 2 else (rng.integers(1, 12), 120.0)
        delay = rng.uniform(0.0, 0.1)
        kept.append(_killed_and_resumed(project, whole, f"{n}.jsonl", int(lines), wait, delay))
    assert len(kept) == kills
    assert sum(0 < n < 14 for n in kept) >= max(1, kills // 4)


# -- a cluster


def test_a_cluster_loses_a_worker_and_gives_the_same_ledger(sweep: Sweep, project: Path) -> None:
    pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    assert sweep("gated/once/slow", "--ledger", "whole.jsonl")[0] == 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    def start(module: str, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *words, "--no-dashboard"],
            cwd=project, env=environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    file = project / "scheduler.json"
    running = [
        start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
    ]
    try:
        _until(file.is_file)
        address = json.loads(file.read_text())["address"]
        running += [
            start("dask_worker", address, "--nthreads", "1", "--no-nanny", "--name", n)
            for n in "ab"
        ]
        _until(lambda: _workers(address) == 2)
        process = _command(project, "gated/once/slow", "--ledger", "dask.jsonl", "--dask", address)
        running.append(process)
        _until(lambda: _lines(project / "dask.jsonl") >= 2 or process.poll() is not None)
        assert process.poll() is None
        os.killpg(running[1].pid, signal.SIGKILL)
        assert process.wait(300) == 0
        assert (project / "dask.jsonl").read_bytes() == (project / "whole.jsonl").read_bytes()
        assert _workers(address) == 1
    finally:
        for one in running:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def _workers(address: str) -> int:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return len(client.scheduler_info()["workers"])


def _until(holds: Callable[[], bool]) -> None:
    limit = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.05)
