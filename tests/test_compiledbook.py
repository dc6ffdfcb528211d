"""Records of compiled kernels: what is refused, named and written; what edits of a kernel show per architecture."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from contract import compiledbook, recordbook
from contract.case import Kernel
from contract.compiled import measure
from contract.compiled.architectures import CUDA_NAMES
from contract.compiledbook import entries, judge
from contract.engines import nvcc
from contract.engines.capture import LaunchError, MissingCompiler
from contract.errors import StoreError
from contract.gates import limits
from contract.judge import Bench, Subject, Tally
from contract.kernels import softcap as softcap_suite

LAUNCH = ("softcap/once", "triton", "plain")
SHAPE = {"n": 64, "rows": 4}
Change = Callable[[dict[str, Any]], object]


def code(**more: int) -> dict[str, Any]:
    counts = {
        "registers": 32, "stack_bytes": 0, "spill_store_bytes": 0, "spill_load_bytes": 0, "static_shared_bytes": 0,
        "dynamic_shared_bytes": 512, "barriers": 1, "threads": 128, **more,
    }  # fmt: skip
    return {"ptxas": "12.9.86", "code": "ab", "code_bytes": 640, "resources": counts}


def amd(**more: int) -> dict[str, Any]:
    counts = {
        "vgprs": 40, "sgprs": 20, "vgpr_spills": 0, "sgpr_spills": 0, "lds_bytes": 512, "private_bytes": 0,
        "threads": 256, **more,
    }  # fmt: skip
    return {"ptxas": "none", "code": "cd", "code_bytes": 320, "resources": counts}


def function(name: str = "capped", place: int = 0, configuration: Any = (0, 1)) -> dict[str, Any]:
    return {
        "function": name, "place": place, "configuration": list(configuration), "compiler": "triton 3.9.0",
        "source": "ef", "architectures": {"sm_80": code(), "sm_86": code(), "sm_90": code(), "gfx942": amd()},
    }  # fmt: skip


def book(*measured: dict[str, Any], waivers: Any = ()) -> dict[str, Any]:
    held = entries(LAUNCH, SHAPE, copy.deepcopy(measured))
    return {"schema": 1, "kernel": "softcap", "entries": [], "waivers": list(waivers), "compiled": held}  # fmt: skip


def waiver(architecture: str, resource: str, limit: int) -> dict[str, Any]:
    kernel, implementation, launch = LAUNCH
    return {"kernel": kernel, "implementation": implementation, "launch": launch, "architecture": architecture,
            "resource": resource, "limit": limit, "reason": "of a test"}  # fmt: skip


def changed(change: Change, *names: str) -> dict[str, Any]:
    one = function()
    for name in names:
        change(one["architectures"][name])
    return one


def test_what_is_as_recorded_passes_in_one_line() -> None:
    verdict = judge(book(function()), LAUNCH, SHAPE, [function()])
    assert verdict == (
        "pass", "capped: at most 32 registers, no spills, occupancy from 100%; no kernel's code changed on 4 architectures",
        True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c["resources"].update(registers=40), "above the record: capped on sm_80, sm_90: registers 32 -> 40"),
        (lambda c: c["resources"].update(spill_load_bytes=8, spill_store_bytes=4),
         "above the record: capped on sm_80, sm_90: spill_store_bytes 0 -> 4, spill_load_bytes 0 -> 8"),
        (lambda c: c["resources"].update(registers=30),
         "improved: capped on sm_80, sm_90: registers 32 -> 30; run with --update-records"),
        (lambda c: c["resources"].update(registers=256),
         "does not fit or compile: capped on sm_80, sm_90: registers 256, the architecture has 255"),
        (lambda c: c["resources"].update(threads=1024, registers=128),
         "does not fit or compile: capped on sm_80, sm_90: 1,024 threads of 128 registers do not fit"),
    ],
)  # fmt: skip
def test_a_change_is_named_with_its_function_and_architectures(change: Change, said: str) -> None:
    verdict = judge(book(function()), LAUNCH, SHAPE, [changed(change, "sm_80", "sm_90")])
    assert verdict.outcome == "fail"
    assert said in verdict.detail.splitlines()
    assert "sm_86" not in verdict.detail
    assert verdict.fits is not said.startswith("does not")


def test_limits_are_those_of_each_architecture() -> None:
    # 100 KiB fit on sm_80 and sm_90, on sm_86 no block has more than 99
    one = changed(lambda c: c["resources"].update(dynamic_shared_bytes=100 << 10), "sm_80", "sm_86", "sm_90")  # fmt: skip
    verdict = judge(book(one), LAUNCH, SHAPE, [one])
    assert verdict.detail == (
        "does not fit or compile: capped on sm_86: dynamic_shared_bytes 102,400, the architecture has 101,376"
    )
    waived = book(one, waivers=[waiver("sm_86", "dynamic_shared_bytes", 102_400)])
    assert judge(waived, LAUNCH, SHAPE, [one]).outcome == "pass"
    big = changed(lambda c: c["resources"].update(vgprs=513), "gfx942")
    assert "capped on gfx942: vgprs 513, the architecture has 512" in judge(book(big), LAUNCH, SHAPE, [big]).detail  # fmt: skip


def test_what_is_not_recorded_or_no_longer_there_fails() -> None:
    verdict = judge(book(function("old")), LAUNCH, SHAPE, [function("new")])
    assert verdict.outcome == "fail"
    new, gone = verdict.detail.splitlines()
    assert new.startswith("no record: new on sm_80, sm_86, sm_90: registers 32, dynamic_shared_bytes 512, barriers 1")  # fmt: skip
    assert new.endswith("; run with --update-records")
    assert gone == (
        "no longer there: old on sm_80, sm_86, sm_90, gfx942: recorded, not launched; run with --update-records"
    )
    fewer = function()
    del fewer["architectures"]["gfx942"]
    assert judge(book(function()), LAUNCH, SHAPE, [fewer]).detail == (
        "no longer there: capped on gfx942: recorded, not compiled for; run with --update-records"
    )


def test_code_that_moved_and_takes_the_same_passes_and_is_named() -> None:
    one = changed(lambda c: c.update(code="00", code_bytes=704), "sm_86", "sm_90")
    verdict = judge(book(function(), function("other")), LAUNCH, SHAPE, [one, function("other")])
    assert verdict.outcome == "pass"
    summary, moved = verdict.detail.splitlines()
    assert summary.endswith("no other kernel's code changed on 4 architectures")
    assert moved == "moved: capped on sm_86, sm_90: code of 640 -> 704 bytes"


def test_counts_of_another_compiler_are_not_compared() -> None:
    one = changed(lambda c: (c.update(ptxas="13.4.59"), c["resources"].update(registers=99)), "sm_86")  # fmt: skip
    verdict = judge(book(function()), LAUNCH, SHAPE, [one])
    assert verdict == (
        "not_run",
        "capped on sm_86: recorded with triton 3.9.0 and ptxas 12.9.86, this is triton 3.9.0 and ptxas 13.4.59",
        True,
    )
    newer = {**function(), "compiler": "triton 3.10.0"}
    assert "recorded with triton 3.9.0, this is triton 3.10.0" in judge(book(function()), LAUNCH, SHAPE, [newer]).detail  # fmt: skip
    # what is worse where the compiler is the same fails all the same
    one["architectures"]["sm_80"]["resources"]["registers"] = 33
    assert judge(book(function()), LAUNCH, SHAPE, [one]).outcome == "fail"


def test_a_waiver_allows_one_architecture_so_much() -> None:
    one = changed(lambda c: c["resources"].update(registers=40), "sm_80", "sm_86")
    waived = book(function(), waivers=[waiver("sm_80", "registers", 40)])
    verdict = judge(waived, LAUNCH, SHAPE, [one])
    assert verdict.detail == "above the record: capped on sm_86: registers 32 -> 40"


def test_what_does_not_compile_fails_unless_that_is_waived() -> None:
    one = function()
    one["architectures"]["gfx942"] = {"error": "does not compile: no such type"}
    verdict = judge(book(function()), LAUNCH, SHAPE, [one])
    assert verdict == (
        "fail", "does not fit or compile: capped on gfx942: does not compile: no such type", False,
    )  # fmt: skip
    held = book(one, waivers=[waiver("gfx942", "compile", 0)])
    assert list(held["compiled"][0]["architectures"]) == ["sm_80", "sm_86", "sm_90"]
    assert judge(held, LAUNCH, SHAPE, [one]).outcome == "pass"


def test_a_record_of_another_shape_is_stale() -> None:
    verdict = judge(book(function()), LAUNCH, {"n": 65, "rows": 4}, [function()])
    assert verdict.outcome == "fail"
    assert verdict.detail.startswith("stale: recorded at {'n': 64, 'rows': 4}, the contract's first shape is {'n': 65")  # fmt: skip


def test_configurations_and_launches_of_one_name_are_told_apart() -> None:
    measured = [function(place=1), function(configuration=(1, 3))]
    for one in measured:
        one["architectures"]["sm_80"]["resources"]["registers"] = 40
    base = [function(place=1), function(configuration=(1, 3))]
    assert judge(book(*base), LAUNCH, SHAPE, measured).detail == (
        "above the record: capped #2 on sm_80: registers 32 -> 40;"
        " capped configuration 1 on sm_80: registers 32 -> 40"
    )


# Files


def test_a_file_is_written_a_line_an_architecture_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "softcap.json"
    recordbook.update_compiled(path, entries(LAUNCH, SHAPE, [function()]))
    text = path.read_text()
    assert recordbook.read(path) == book(function())
    assert sum('"registers"' in line for line in text.splitlines()) == 3
    # another launch stays; one that is measured again has its old functions replaced
    other = ("softcap/each_op", "triton", "plain")
    recordbook.update_compiled(path, entries(other, SHAPE, [function()]))
    recordbook.update_compiled(path, entries(LAUNCH, SHAPE, [function("new")]))
    held = [(e["kernel"], e["function"]) for e in recordbook.read(path)["compiled"]]
    assert held == [("softcap/each_op", "capped"), ("softcap/once", "new")]


def test_a_file_without_compiled_kernels_has_no_such_list(tmp_path: Path) -> None:
    path = tmp_path / "softcap.json"
    data = {"schema": 1, "kernel": "softcap", "entries": [], "waivers": []}
    path.write_text(json.dumps(data))
    assert recordbook.read(path) == data
    assert compiledbook.dumped(data) == json.dumps(data, indent=1, sort_keys=True) + "\n"


def test_leftovers_are_named_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / "softcap.json"
    waivers = [waiver("sm_80", "registers", 40), waiver("sm_100", "registers", 40), waiver("gfx950", "compile", 0)]  # fmt: skip
    path.write_text(compiledbook.dumped(book(function(), waivers=waivers)))
    assert recordbook.unused(tmp_path, {LAUNCH}) == [
        "unused waiver softcap/once/triton/plain/sm_100 in softcap.json; remove it"
    ]
    found = recordbook.unused(tmp_path, set())
    assert found[0] == (
        "unused record softcap/once/triton/plain of compiled kernels in softcap.json; remove it (--update-records does)"
    )
    recordbook.drop_unused(tmp_path, set())
    assert "compiled" not in recordbook.read(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(compiled={}), "compiled is dict, not a list"),
        (lambda d: d.update(more=[]), "needs exactly schema"),
        (lambda d: d["compiled"][0].pop("source"), r"compiled\[0\] needs exactly the fields kernel"),
        (lambda d: d["compiled"][0].update(place="0"), r"compiled\[0\].place is '0', not int"),
        (lambda d: d["compiled"][0].update(configuration=[0]), r"configuration is \[0\], not which one"),
        (lambda d: d["compiled"][0]["architectures"].update(sm_70=code()), "architecture 'sm_70' is none of sm_80"),
        (lambda d: d["compiled"][0]["architectures"].update(sm_80=[]), r"compiled\[0\].sm_80 needs exactly the fields ptxas"),
        (lambda d: d["compiled"][0]["architectures"].update(sm_80=amd()), "sm_80.resources needs counts >= 0 of registers"),
        (lambda d: d["compiled"][0]["architectures"].update(sm_80=code(registers=-1)), "needs counts >= 0"),
        (lambda d: d["compiled"].append(d["compiled"][0]), r"compiled\[1\] is for the same function as compiled\[0\]"),
        (lambda d: d["waivers"].append(waiver("sm_80", "luck", 1)), r"waivers\[0\].resource is 'luck', none of bytes_read, .*registers"),
        (lambda d: d["waivers"].append(waiver("*", "registers", 1)), r"waivers\[0\].architecture is '\*'; a waiver is for one of sm_80, .*gfx1201"),
    ],
)  # fmt: skip
def test_a_malformed_record_is_one_named_error(tmp_path: Path, change: Change, said: str) -> None:
    data = book(function())
    change(data)
    path = tmp_path / "softcap.json"
    path.write_text(json.dumps(data))
    with pytest.raises(StoreError, match=f"record .*softcap.json: {said}|record .*softcap.json: .*{said}"):  # fmt: skip
        recordbook.read(path)


# The gate


def gated(
    reply: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    data: dict[str, Any],
    outcome: str = "ok",
) -> Tally:
    """What `limits` says of a worker's answer, for softcap under a profile, against a record."""
    contract = softcap_suite.softcap
    kernel = Kernel(contract, {}, next(p for p in contract.profiles if p.name == "once"))
    shape = recordbook.shape_of(kernel)
    held = [{**entry, "shape": shape} for entry in data["compiled"]]
    monkeypatch.setattr(limits, "book_of", lambda *_: (Path("softcap.json"), {**data, "compiled": held}))  # fmt: skip
    answer = SimpleNamespace(outcome=outcome, payload=reply, detail="of the worker")
    worker: Any = SimpleNamespace(call=lambda *_: answer)
    target = {"kind": "implementation", "name": "triton", "module": ""}
    return limits.run(Bench(kernel, "quick", 0), Subject(kernel, target, worker, engine="ptx"))


def test_the_gate_compares_every_count(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = gated({"functions": [function()]}, monkeypatch, book(function()))
    assert (tally.outcome, tally.compared) == ("pass", 3 * 8 + 7)
    assert [entry["function"] for entry in tally.recorded] == ["capped"]


def test_what_is_broken_is_never_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = changed(lambda c: c["resources"].update(registers=256), "sm_80")
    tally = gated({"functions": [one]}, monkeypatch, book(function()))
    assert (tally.outcome, tally.recorded) == ("fail", [])


@pytest.mark.parametrize(
    ("reply", "outcome", "said"),
    [
        ({"functions": []}, "fail", "it launches no compiled kernel"),
        ({"not_run": "nvcc is not installed"}, "not_run", "nvcc is not installed"),
    ],
)
def test_nothing_counted_is_no_pass(
    monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any], outcome: str, said: str
) -> None:
    tally = gated(reply, monkeypatch, book(function()))
    assert tally.outcome == outcome
    assert said in tally.detail
    assert gated({}, monkeypatch, book(function()), "timeout").outcome == "timeout"
    assert gated({}, monkeypatch, book(function()), "exception").outcome == "crash"


def test_a_missing_compiler_is_no_finding_of_an_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: Any) -> Any:
        raise MissingCompiler("nvcc is not installed")

    def wrong(*_: Any) -> Any:
        raise LaunchError("refused")

    launch: Any = SimpleNamespace(language="cuda", function="f", configuration=(0, 1), block=(1, 1, 1), shared=0, compiler="nvcc 13")  # fmt: skip
    monkeypatch.setattr(measure, "source_of", lambda _: "ef")
    monkeypatch.setattr(measure, "resources_of", missing)
    with pytest.raises(MissingCompiler):
        measure.functions([launch], tmp_path)
    monkeypatch.setattr(measure, "resources_of", wrong)
    (one,) = measure.functions([launch], tmp_path)
    assert set(map(str, one["architectures"].values())) == {"{'error': 'refused'}"}
    assert list(one["architectures"]) == list(CUDA_NAMES)


# Edits of a kernel

KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def mixed(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    # here
    tl.store(out + at, v * 2, mask=at < n)


def run(x):
    out = torch.empty_like(x)
    mixed[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024, num_warps=4)
    # twice, and counted once
    mixed[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024, num_warps=4)
"""
# sums over the block between what each element still needs
HUNGRY = """
    a = v
    for i in tl.static_range(4):
        a = tl.where(a > i, a * v + i, tl.exp(a)) + tl.sum(a, 0)
    v = a
"""


def measured(folder: Path, name: str, text: str) -> list[dict[str, Any]]:
    """The functions that a client's file launches, from a cache of its own."""
    pytest.importorskip("triton", reason="triton is not installed")
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cache = folder / name
    found = measure.launches(lambda: module.run(torch.ones(4096)), False, cache)
    return measure.functions(found, cache)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(measure.TARGETS, "triton", ("sm_80", "sm_90", "gfx942"))
        return measured(tmp_path_factory.mktemp("base"), "mixed_base", KERNEL)


@pytest.fixture(autouse=True)
def few_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.TARGETS, "triton", ("sm_80", "sm_90", "gfx942"))


def held(recorded: list[dict[str, Any]]) -> dict[str, Any]:
    return {"waivers": [], "compiled": entries(LAUNCH, SHAPE, recorded)}


def test_a_kernel_that_is_launched_twice_is_one_function(recorded: list[dict[str, Any]]) -> None:
    (one,) = recorded
    assert (one["function"], one["place"], one["configuration"]) == ("mixed", 0, [0, 1])
    assert list(one["architectures"]) == ["sm_80", "sm_90", "gfx942"]
    assert not any("error" in c for c in one["architectures"].values())


def test_a_comment_moves_no_code(recorded: list[dict[str, Any]], tmp_path: Path) -> None:
    again = measured(tmp_path, "mixed_comment", "\n\n" + KERNEL)
    verdict = judge(held(recorded), LAUNCH, SHAPE, again)
    assert verdict.outcome == "pass"
    assert verdict.detail.endswith("no kernel's code changed on 3 architectures")


def test_more_warps_are_seen_on_every_architecture(
    recorded: list[dict[str, Any]], tmp_path: Path
) -> None:
    again = measured(tmp_path, "mixed_warps", KERNEL.replace("num_warps=4", "num_warps=8"))
    detail = judge(held(recorded), LAUNCH, SHAPE, again).detail
    worse = next(line for line in detail.splitlines() if line.startswith("above the record"))
    for name, change in (("sm_80", "threads 128 -> 256"), ("gfx942", "threads 256 -> 512")):
        assert name in worse
        assert change in worse


def test_a_line_that_needs_registers_is_seen_on_every_architecture(
    recorded: list[dict[str, Any]], tmp_path: Path
) -> None:
    again = measured(tmp_path, "mixed_hungry", KERNEL.replace("    # here\n", HUNGRY))
    detail = judge(held(recorded), LAUNCH, SHAPE, again).detail
    worse = next(line for line in detail.splitlines() if line.startswith("above the record"))
    parts = {part.partition(": ")[0]: part for part in worse.removeprefix("above the record: ").split("; ")}  # fmt: skip
    for name in ("sm_80", "sm_90", "gfx942"):
        (part,) = [text for where, text in parts.items() if name in where]
        assert ("vgprs" if name == "gfx942" else "registers") in part


@pytest.mark.skipif(bool(nvcc.missing_reason()), reason=nvcc.missing_reason())
def test_another_ptxas_is_named_where_it_is_used(
    recorded: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contract.engines.triton_launch import ptxas_version

    monkeypatch.setenv("TRITON_PTXAS_PATH", str(nvcc.ptxas()))
    ptxas_version.cache_clear()
    try:
        again = measured(tmp_path, "mixed_ptxas", KERNEL)
    finally:
        ptxas_version.cache_clear()
    old = recorded[0]["architectures"]["sm_80"]["ptxas"]
    outcome, detail, _ = judge(held(recorded), LAUNCH, SHAPE, again)
    assert outcome == "not_run"
    assert f"mixed on sm_80: recorded with triton 3.9.0 and ptxas {old}, this is triton 3.9.0 and ptxas {nvcc.version()}" in detail  # fmt: skip
    assert "sm_90" not in detail
