"""The gpu engine: which checks there are, what it does on a stand-in for a GPU, and what a GPU itself shows."""

from __future__ import annotations

import contextlib
import ctypes
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from contract import case as cases
from contract import cli, formats, runner, select, suites
from contract.checks import collect_checks, names_gpu
from contract.compiledbook import judge_loaded
from contract.config import RunOptions, read_config
from contract.engines import cuda_driver, devices, gpu, host, nvcc, state
from contract.engines.capture import LaunchError
from contract.engines.cuda_driver import DeviceFault, Driver
from contract.engines.placement import on_device, place
from contract.errors import UsageError
from contract.receipts import Keys
from contract.results import CheckResult

SUITE = Path(__file__).parent / "suite" / "fake_gpu.py"
Run = Callable[..., tuple[int, str, str]]

WHY = devices.missing_device()
needs_gpu = pytest.mark.skipif(bool(WHY), reason=WHY)


@pytest.fixture
def suite(project: Path) -> Path:
    """A project whose one suite has a GPU kernel."""
    (project / "contracts" / "scaled.py").unlink()
    return Path(shutil.copy(SUITE, project / "contracts" / "doubled.py"))


@pytest.fixture
def fake(suite: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The suite's module, loaded, its stand-ins in place."""
    suites.load(read_config())
    files = {getattr(m, "__file__", None): m for m in list(sys.modules.values())}
    module = files[str(suite)]
    module.install(monkeypatch.setattr)
    return module


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contract.checks.has_driver", lambda: False)
    monkeypatch.setattr(devices, "has_driver", lambda: False)


def ids(*asked: str) -> list[str]:
    return [c.id for c in collect_checks(automatic=False, asked=asked) if c.implementation]


# Collection


def test_gpu_kernels_have_checks_on_the_gpu_where_a_driver_is_loaded_or_they_are_asked_for(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contract.checks.has_driver", lambda: False)
    alone = ids()
    assert alone
    assert not any("gpu" in name for name in alone)
    monkeypatch.setattr("contract.checks.has_driver", lambda: True)
    both = ids()
    assert both == sorted(both, key=lambda name: "+gpu" in name)
    assert [name for name in both if "+gpu" in name] == [
        name.replace("/cuda/", "/cuda+gpu/") for name in alone
    ]
    monkeypatch.setattr("contract.checks.has_driver", lambda: False)
    for asked in ("gpu", "cuda+gpu", "doubled/once/cuda+gpu/shapes"):
        assert ids(asked) == both


@pytest.mark.parametrize(
    ("name", "asks"),
    [("gpu", True), ("triton+gpu", True), ("softcap/once/triton+gpu", True), ("triton", False),
     ("gpu/once", False), ("a+gpus/b", False), ("x+gpu.py", False)],
)  # fmt: skip
def test_names_that_ask_for_the_gpu(name: str, asks: bool) -> None:
    assert names_gpu(name) is asks


@pytest.mark.usefixtures("no_driver", "suite")
def test_what_is_asked_for_and_cannot_run_ends_1_with_its_reason(
    project: Path, contract_run: Run
) -> None:
    words = ("-k", "gpu and shapes")
    code, _, err = contract_run(*words)
    assert code == 5
    assert "nothing ran: none of" in err
    table = '[tool.contract]\nsuites = ["contracts"]\nrequire = ["gpu"]\n'
    (project / "pyproject.toml").write_text(table)
    code, out, err = contract_run(*words, "--impl", "cuda+gpu")
    assert (code, err) == (1, "")
    for name in ("gpu", "cuda+gpu"):
        why = "none of its 1 checks ran (there is no GPU (no driver is loaded))"
        assert f"PROBLEM: required '{name}': {why}" in out


def test_every_way_to_ask_makes_a_check_that_did_not_run_a_problem() -> None:
    result = CheckResult(
        "k/p/cuda+gpu/shapes", "k", "p", "not_run", "cuda", engine="gpu", gate="shapes", detail="no GPU"
    )  # fmt: skip
    for name in ("gpu", "cuda+gpu", *cli._on_gpu([result.id]), *cli._on_gpu(["k/p/cuda+gpu"])):
        said = f"required '{name}': none of its 1 checks ran (no GPU)"
        assert runner._required_problems([result], [name]) == [said]
    assert cli._on_gpu(["gpu", "k/p/cuda", "k", "k/gpu"]) == []


def test_a_result_on_a_gpu_depends_on_the_gpu(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = {c.id: c for c in collect_checks(automatic=False, asked=["gpu"])}
    keys = Keys(RunOptions(store_root=tmp_path))

    def key(name: str) -> str:
        return keys.key(checks[f"doubled/once/{name}/shapes"])

    before = key("cuda"), key("cuda+gpu")
    monkeypatch.setattr("contract.receipts.identity", lambda: ["Model: another"])
    assert key("cuda") == before[0]
    assert key("cuda+gpu") != before[1]


# A whole run on the stand-in


def test_every_gate_runs_on_a_gpu(
    fake: Any, contract_run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FAKE_GPU", "1")
    code, out, _ = contract_run("--engine", "gpu", "--json", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    found = {c["id"].split("/")[-1]: c for c in report["checks"]}
    assert {n: c["outcome"] for n, c in found.items()} == {
        "shapes": "pass", "stress": "pass", "exact": "not_applicable", "invariance": "pass", "bounds": "pass",
        "limits": "not_run",
    }, out  # fmt: skip
    assert found["shapes"]["compiled"] == ["nvcc 13.0.88, sm_90 (Fake 90), fusion on"]
    assert "no folder" in found["limits"]["detail"] or "records" in found["limits"]["detail"]
    assert code == 0


# One call


def called(
    fake: Any, call: Any = None, *, graph: bool = False, twice: bool = False, **more: Any
) -> Any:
    """gpu.run of the suite's kernel on 3 x 40 drawn values: (report, outputs, operand)."""
    x = np.random.default_rng(1).integers(0x3F00, 0x4100, (3, 40)).astype(np.uint16)
    launch = {
        "name": "plain", "layout": "contiguous", "batch": 0, "threads": 1, "arguments": {}, "skew": 0,
        "configuration": 0, "graph": graph, **more,
    }  # fmt: skip
    payload = {
        "kernel": "doubled", "profile": "once", "parameters": {}, "shape": {"rows": 3, "d": 40}, "scalars": {},
        "target": {"kind": "implementation", "name": "cuda"}, "poison": "nan", "launch": launch, "twice": twice,
    }  # fmt: skip
    report, outputs = gpu.run(payload, {"x": x})
    return report, outputs, x


@pytest.fixture
def wrapper(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Puts another launcher in place of the suite's."""

    def put(call: Callable[..., Any]) -> None:
        item = SimpleNamespace(call=call, fusion=False, repeatable=True)
        monkeypatch.setattr(host, "target_of", lambda _: item)
        monkeypatch.setattr(host, "resolve", lambda *_: (call, False))

    monkeypatch.setattr(gpu, "_unrecordable", {})
    return put


@pytest.mark.parametrize("layout", ["contiguous", "strided", "offset"])
@pytest.mark.parametrize("graph", [False, True])
def test_a_call_is_launched_and_its_output_comes_back(fake: Any, layout: str, graph: bool) -> None:
    report, outputs, x = called(fake, graph=graph, twice=True, layout=layout)
    assert not report["bad"], report
    assert (report["changed"], report["around"], report["notes"]) == ([], [], [])
    # an exponent more
    assert np.array_equal(outputs["out"], x + 0x80)
    ((_, *sizes, stream, _, extra), *_) = fake.LIBRARY.named("cuLaunchKernel")
    assert [n.value for n in sizes] == [3, 1, 1, 32, 1, 1, 0]
    assert (stream.value, extra) == (7, None)
    assert fake.LIBRARY.named("cuModuleGetFunction")[0][2] == b"doubled"
    assert fake.LIBRARY.named("cuModuleLoadData")[0][1].value == b"cubin of sm_90"
    # an eager call, and one for each graph
    assert len(fake.LIBRARY.named("cuLaunchKernel")) == (4 if graph else 2)


def test_without_a_gpu_nothing_runs(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "missing_device", lambda: "there is none")
    assert called(fake)[0] == {"not_run": "there is none"}
    monkeypatch.setattr(devices, "missing_device", lambda: "")
    old = devices.Gpu(torch.device("cpu"), "Old", 75, lambda: None, lambda _: (None, None))
    monkeypatch.setattr(devices, "current", lambda: old)
    assert "Old is sm_75, which is not listed; kernels are compiled for sm_80" in called(fake)[0]["not_run"]  # fmt: skip


def test_what_torch_computes_alone_is_no_kernel(fake: Any, wrapper: Any) -> None:
    wrapper(lambda x: x + x)
    report, _, _ = called(fake)
    assert report["bad"].startswith("it launched no kernel")
    assert report["unfit"]


def test_a_write_outside_and_into_an_input_is_seen(fake: Any) -> None:
    def around(x: Any, out: Any) -> None:
        out.copy_(x + x)
        # one element before the operand
        ctypes.c_uint16.from_address(x.data_ptr() - 2).value = 1

    fake.LIBRARY.kernel = around
    report, _, _ = called(fake)
    assert (report["changed"], report["around"]) == ([], ["x"])

    def into(x: Any, out: Any) -> None:
        out.copy_(x + x)
        x[0, 0] = 1.0

    fake.LIBRARY.kernel = into
    report, _, _ = called(fake)
    assert (report["changed"], report["around"]) == (["x"], [])


def test_what_a_kernel_leaves_out_is_nan(fake: Any) -> None:
    called(fake)
    fake.LIBRARY.kernel = lambda x, out: out[:, 1:].copy_((x + x)[:, 1:])
    report, outputs, x = called(fake)
    assert not report["bad"]
    assert (outputs["out"][:, 0] == 0xFFFF).all()
    assert np.array_equal(outputs["out"][:, 1:], x[:, 1:] + 0x80)


def test_an_output_in_the_memory_of_an_input_is_refused(fake: Any, wrapper: Any) -> None:
    def in_place(x: Any) -> Any:
        fake.launched(x)
        return x

    wrapper(in_place)
    assert called(fake)[0]["bad"] == "output out shares memory with input x"


def test_a_fault_of_the_driver_is_named_and_ends_the_worker(fake: Any) -> None:
    fake.LIBRARY.codes["cuLaunchKernel"] = 700
    report, outputs, _ = called(fake)
    assert report["bad"] == "cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700): what it means"
    assert (report["touched"], outputs) == (True, {})


def test_a_launch_that_failed_is_told_though_its_launcher_goes_on(fake: Any, wrapper: Any) -> None:
    def goes_on(x: Any) -> Any:
        out = fake.launched(x)
        with contextlib.suppress(DeviceFault):
            fake.LIBRARY.codes["cuLaunchKernel"] = 1
            fake.launched(x)
        return out

    wrapper(goes_on)
    assert called(fake)[0]["bad"].startswith("cuLaunchKernel: CUDA_ERROR_INVALID_VALUE (1)")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered\nfurther"), "CUDA error: an illegal memory access was encountered"),
        (RuntimeError("Triton Error [CUDA]: invalid argument"), "Triton Error [CUDA]: invalid argument"),
        (type("OutOfResources", (Exception,), {})("out of resource: shared memory"), "out of resource: shared memory"),
        (type("AcceleratorError", (RuntimeError,), {})("CUDA error: launch failure"), "CUDA error: launch failure"),
        (LaunchError("k: a block of 2,048 threads"), "k: a block of 2,048 threads"),
        (RuntimeError("shapes do not match"), ""),
        (torch.OutOfMemoryError("CUDA out of memory"), ""),
    ],
)  # fmt: skip
def test_errors_that_a_launch_is_to_blame_for(error: Exception, said: str) -> None:
    assert gpu.fault_of(error) == said


def test_another_error_of_a_launcher_is_its_own(fake: Any, wrapper: Any) -> None:
    def broken(x: Any) -> Any:
        raise ValueError("its own")

    wrapper(broken)
    with pytest.raises(ValueError, match="its own"):
        called(fake)


# Graphs


def test_a_replayed_graph_that_gives_other_bits_is_bad(fake: Any, wrapper: Any) -> None:
    calls = []

    def counting(x: Any, out: Any) -> None:
        calls.append(1)
        out.copy_(x + len(calls))

    fake.LIBRARY.kernel = counting
    wrapper(fake.launched)
    report, _, _ = called(fake, graph=True)
    assert report["bad"] == "a replayed graph gives other bits"


def test_an_input_that_a_call_changes_is_as_it_was_before_the_replay(
    fake: Any, wrapper: Any
) -> None:
    def into(x: Any, out: Any) -> None:
        out.copy_(x + x)
        x.add_(1.0)

    fake.LIBRARY.kernel = into
    wrapper(fake.launched)
    report, outputs, x = called(fake, graph=True)
    assert not report["bad"]
    assert np.array_equal(outputs["out"], x + 0x80)
    assert report["changed"] == ["x"]


def test_a_launcher_that_waits_is_called_as_it_is_with_a_note(
    fake: Any, wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "differs", lambda _: False)

    def waits(x: Any) -> Any:
        out = fake.launched(x)
        fake.synchronize()
        return out

    wrapper(waits)
    for again in (False, True):
        report, outputs, x = called(fake, graph=True)
        assert not report["bad"]
        assert np.array_equal(outputs["out"], x + 0x80)
        assert report["notes"] == [
            "not recorded into a graph: RuntimeError: CUDA error: operation not permitted when stream is capturing"
        ]
        # a failed recording may leave torch in another state
        assert report["touched"] is not again


def test_a_launcher_that_keeps_its_result_launches_nothing_into_a_graph(
    fake: Any, wrapper: Any
) -> None:
    kept: list[Any] = []

    def once(x: Any) -> Any:
        if not kept:
            kept.append(fake.launched(x))
        return kept[0]

    wrapper(once)
    report, _, _ = called(fake, graph=True)
    assert report["bad"] == "recorded into a graph, it launches no kernel"


# Memory


@pytest.mark.parametrize("layout", ["contiguous", "strided", "offset"])
@pytest.mark.parametrize("name", ["bf16", "fp32", "e4m3fn", "int64"])
def test_an_operand_lies_on_a_device_as_on_the_host(name: str, layout: str) -> None:
    fmt = formats.FORMATS[name]
    bits = np.arange(3 * 7).astype(fmt.storage).reshape(3, 7)
    here = place("x", bits, fmt, layout, "finite")
    there = on_device(here, fmt, torch.device("cpu"))
    assert there.tensor.data_ptr() % 64 == here.tensor.data_ptr() % 64
    assert there.tensor.data_ptr() != here.tensor.data_ptr()
    assert (there.tensor.dtype, there.tensor.stride()) == (here.tensor.dtype, here.tensor.stride())
    assert torch.equal(there.tensor.view(torch.uint8), here.tensor.view(torch.uint8))
    there.fetch()
    assert there.touched() == (False, False)
    there.tensor.view(torch.uint8)[1, 0] ^= 1
    there.fetch()
    assert there.touched() == (True, False)
    assert there.body[1, 0] == bits[1, 0] ^ 1
    there.tensor.view(torch.uint8)[1, 0] ^= 1
    there.memory[5] ^= 1
    there.fetch()
    assert there.touched() == (False, True)


# The driver


def test_dynamic_shared_memory_is_asked_for_once(fake: Any) -> None:
    function = Driver(fake.LIBRARY).load(b"image", "doubled")
    x = torch.ones(1, 4).bfloat16()
    words = [x.data_ptr().to_bytes(8, "little")] * 2 + [n.to_bytes(4, "little") for n in (1, 4, 4)]
    for shared in (0, 48 * 1024, 64 * 1024, 64 * 1024, 60 * 1024):
        function.launch((1, 1, 1), (32, 1, 1), shared, 0, words)
    assert [a[1:] for a in fake.LIBRARY.named("cuFuncSetAttribute")] == [(8, 64 * 1024)]
    assert function.attributes() == {
        "max_threads": 1024, "static_shared_bytes": 1024, "local_bytes": 0, "registers": 18,
    }  # fmt: skip


@pytest.mark.parametrize(
    "name", ["cuInit", "cuModuleLoadData", "cuModuleGetFunction", "cuFuncGetAttribute"]
)
def test_every_code_is_looked_at(fake: Any, name: str) -> None:
    fake.LIBRARY.codes[name] = 1
    with pytest.raises(
        DeviceFault, match=rf"{name}: CUDA_ERROR_INVALID_VALUE \(1\): what it means"
    ):
        Driver(fake.LIBRARY).load(b"", "f").attributes()


def test_tensors_of_a_launch_lie_on_one_device() -> None:
    on = [SimpleNamespace(device=name) for name in ("cuda:0", "cpu", "cuda:1")]
    with pytest.raises(LaunchError, match="k: there is no device to launch on; the ptx engine"):
        cuda_driver.place_of("k", {"a": on[1]})
    with pytest.raises(LaunchError, match="k: its tensors lie on several devices: a on cuda:0, b on cpu"):  # fmt: skip
        cuda_driver.place_of("k", {"a": on[0], "b": on[1]})


# Records


def test_what_the_driver_says_is_compared_with_the_record(fake: Any) -> None:
    kernel = cases.find("doubled", "once", {})
    x = np.zeros((1, 4), np.uint16)
    payload = {
        "kernel": "doubled", "profile": "once", "parameters": {}, "scalars": {},
        "target": {"kind": "implementation", "name": "cuda"},
        "launch": {"name": "plain"},
    }  # fmt: skip
    (live,) = gpu.measure(payload, {"x": x})[0]["live"]
    counts = {"registers": 18, "static_shared_bytes": 0, "dynamic_shared_bytes": 0, "threads": 32, "stack_bytes": 0}  # fmt: skip

    def judged(**more: Any) -> tuple[int, str, str]:
        change = more.pop("counts", {})
        entry = {
            "kernel": kernel.id, "implementation": "cuda", "launch": "plain", "function": "doubled", "place": 0,
            "configuration": [0, 1], "compiler": "nvcc 13.0.88", "shape": {"rows": 1, "d": 4},
            "architectures": {"sm_90": {"ptxas": "13.0.88", "resources": {**counts, **change}}}, **more,
        }  # fmt: skip
        return judge_loaded(
            {"compiled": [entry]}, (kernel.id, "cuda", "plain"), {"rows": 1, "d": 4}, [live]
        )

    assert judged() == (4, "pass", "doubled on sm_90: 18 registers, as recorded")
    for registers in (17, 19):
        assert judged(counts={"registers": registers})[1:] == (
            "fail", f"not as recorded: doubled on sm_90: registers {registers} recorded, 18 loaded",
        )  # fmt: skip
    assert judged(counts={"static_shared_bytes": 512})[1] == "fail"
    assert judged(counts={"static_shared_bytes": 1024})[1] == "pass"
    assert judged(counts={"threads": 64})[1] == "fail"
    none = "doubled on sm_90: no record; run with --update-records"
    assert judged(architectures={}) == (0, "not_run", none)
    assert judged(function="other") == judged(shape={"rows": 2, "d": 4}) == (0, "not_run", none)
    assert judged(compiler="nvcc 12.9") == (
        0, "not_run", "doubled on sm_90: recorded with nvcc 12.9 and ptxas 13.0.88, this is nvcc 13.0.88 and ptxas 13.0.88",
    )  # fmt: skip


# On a GPU


@needs_gpu
@pytest.mark.parametrize("implementation", ["triton", "cuda"])
@pytest.mark.parametrize("gate", ["shapes", "bounds"])
def test_soft_cap_passes_on_the_gpu(implementation: str, gate: str) -> None:
    if implementation == "triton":
        pytest.importorskip("triton", reason="triton is not installed")
    elif nvcc.missing_reason():
        pytest.skip(nvcc.missing_reason())
    from contract.cli import main

    assert main(["run", "--effort", "quick", f"softcap/each_op/{implementation}+gpu/{gate}"]) == 0


def test_unknown_engines_are_still_refused(fake: Any) -> None:
    checks = collect_checks(automatic=False, asked=["gpu"])
    with pytest.raises(UsageError, match="gpus"):
        select.select(checks, select.Selection(engines=("gpus",)))
