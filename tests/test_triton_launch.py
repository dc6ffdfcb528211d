"""Launches of Triton kernels: what is captured, and that nothing is left behind."""

from __future__ import annotations

import copy
import importlib.util
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from contract.availability import NVCC, modules
from contract.compiled import measure
from contract.engines import GPU, HOST, PTX, triton_launch
from contract.engines.capture import CapturedLaunch, LaunchError, MissingCompiler, NeedsLater
from contract.engines.ptx.faults import Unsupported
from contract.engines.tools import of_triton
from contract.engines.triton_driver import stand_in
from contract.engines.triton_launch import capturing, configurations
from contract.errors import DeclarationError

# As a client writes it: nothing of ours.
CLIENT = """
import torch
import triton
import triton.language as tl


@triton.jit
def affine(x, y, out, n, s, b, flag, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n) * s
    if y is not None:
        v = v + tl.load(y + at, mask=at < n)
    tl.store(out + at, v + b, mask=(at < n) & flag)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 256}, num_warps=8),
             triton.Config({"BLOCK": 32}, num_warps=1)],
    key=["n"],
)
@triton.heuristics({"EVEN": lambda a: a["n"] % a["BLOCK"] == 0})
@triton.jit
def doubled(x, out, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + at, tl.load(x + at) * 2)
    else:
        tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def waits(x, n, BLOCK: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n), mask=at < n)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))


@triton.jit
def described(d, out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), d.load([0]))


def run_affine(x, y, s, b, flag=True, **options):
    out = torch.zeros_like(x)
    affine[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel(), s, b, flag, BLOCK=128, **options)
    return out


def run_doubled(x):
    out = torch.zeros_like(x)
    doubled[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("triton")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[ModuleType]:
    pytest.importorskip("triton", reason="triton is not installed")
    path = folder / "client_of_a_test.py"
    path.write_text(CLIENT)
    spec = importlib.util.spec_from_file_location("client_of_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def captured(folder: Path, call: Any, **options: Any) -> list[CapturedLaunch]:
    found: list[CapturedLaunch] = []
    with capturing(found.append, cache=folder / "cache", **options):
        call()
    return found


def test_a_launch_has_the_arguments_where_the_entry_wants_them(
    client: ModuleType, folder: Path
) -> None:
    x, y = torch.ones(300), torch.ones(300)
    (launch,) = captured(folder, lambda: client.run_affine(x, y, 2.5, -0.0))
    assert (launch.function, launch.entry, launch.target) == ("affine", "affine", "sm_80")
    assert (launch.grid, launch.block, launch.num_warps) == ((3, 1, 1), (128, 1, 1), 4)
    assert list(launch.tensors) == ["x", "y", "out"]
    out = launch.tensors["out"]
    # three pointers, n, s, b, flag, and at a multiple of 8 the two scratch pointers
    expected = struct.pack("<QQQiffB3xQQ", x.data_ptr(), y.data_ptr(), out.data_ptr(), 300, 2.5, -0.0, 1, 0, 0)  # fmt: skip
    assert launch.parameters == expected
    assert ".entry affine" in launch.ptx
    assert ".target sm_80" in launch.ptx


def test_none_and_the_value_1_are_constants_as_triton_decides(
    client: ModuleType, folder: Path
) -> None:
    (launch,) = captured(folder, lambda: client.run_affine(torch.ones(1), None, 2.0, 3.0))
    out = launch.tensors["out"]
    expected = struct.pack("<QQffB7xQQ", launch.tensors["x"].data_ptr(), out.data_ptr(), 2.0, 3.0, 1, 0, 0)  # fmt: skip
    assert launch.parameters == expected


def test_shared_memory_and_warps_are_those_of_the_compiled_kernel(
    client: ModuleType, folder: Path
) -> None:
    x, out = torch.ones(1000), torch.zeros(1)
    (launch,) = captured(folder, lambda: client.total[(1,)](x, out, 1000, BLOCK=1024, num_warps=8))
    assert launch.block == (256, 1, 1)
    # one float of each warp
    assert launch.shared == 32


def test_a_tensor_descriptor_is_taken_apart(client: ModuleType, folder: Path) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, out = torch.ones(64), torch.zeros(64)
    described = TensorDescriptor.from_tensor(x, [64])
    (launch,) = captured(folder, lambda: client.described[(1,)](described, out, BLOCK=64))
    expected = struct.pack("<QqqBB2xiqQQQ", x.data_ptr(), 64, 1, 0, 0, 64, 1, out.data_ptr(), 0, 0)
    assert launch.parameters == expected
    assert list(launch.tensors) == ["d", "out"]


@pytest.mark.parametrize(("place", "blocks", "threads"), [(0, 4, 64), (1, 1, 256), (2, 7, 32), (3, 4, 64)])  # fmt: skip
def test_every_configuration_can_be_chosen(
    client: ModuleType, folder: Path, place: int, blocks: int, threads: int
) -> None:
    found: list[CapturedLaunch] = []
    with capturing(found.append, cache=folder / "cache", configuration=place) as capture:
        client.run_doubled(torch.ones(200))
    (launch,) = found
    assert (launch.grid[0], launch.block[0]) == (blocks, threads)
    assert launch.configuration == (place % 3, 3)
    assert capture.configurations == {"doubled": 3}
    assert "num_warps=" in capture.chosen["doubled"]
    assert configurations(client.doubled) == 3
    assert configurations(client.affine) == 1


def test_heuristics_are_asked(client: ModuleType, folder: Path) -> None:
    (even,) = captured(folder, lambda: client.run_doubled(torch.ones(256)))
    (odd,) = captured(folder, lambda: client.run_doubled(torch.ones(255)))
    assert "setp" not in even.ptx
    assert "setp" in odd.ptx


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("stated", "own", "fused"),
    [(False, None, False), (True, None, True), (None, None, True), (None, False, False), (False, True, False)],
)  # fmt: skip
def test_fusion_is_stated_or_left_to_the_author(
    client: ModuleType, folder: Path, stated: bool | None, own: bool | None, fused: bool
) -> None:
    options = {} if own is None else {"enable_fp_fusion": own}
    x = torch.ones(128)
    (launch,) = captured(
        folder, lambda: client.run_affine(x, x, 2.0, 3.0, **options), fusion=stated
    )
    assert launch.fusion is fused
    assert ("fma.rn.f32" in launch.ptx) is fused


@pytest.mark.filterwarnings("error")
def test_code_for_a_later_architecture_is_no_fault(client: ModuleType, folder: Path) -> None:
    with pytest.raises(NeedsLater, match=r"affine compiles for sm_90 and not for sm_80.*num_ctas"):
        captured(folder, lambda: client.run_affine(torch.ones(9), None, 2.0, 3.0, num_ctas=2))


@pytest.mark.filterwarnings("error")
def test_an_instruction_of_a_later_architecture_is_named(client: ModuleType, folder: Path) -> None:
    with pytest.raises(NeedsLater, match=r"'griddepcontrol' requires \.target sm_90 or higher$"):
        captured(folder, lambda: client.waits[(1,)](torch.ones(8), 8, BLOCK=8))


@pytest.mark.filterwarnings("error")
def test_code_that_compiles_for_nothing_is_told_in_a_line(client: ModuleType, folder: Path) -> None:
    x = torch.ones(9)
    with pytest.raises(
        LaunchError, match=r"^total does not compile: [^\n]*power of 2[^\n]*$"
    ) as told:
        captured(folder, lambda: client.total[(1,)](x, x, 8, BLOCK=3))
    assert not isinstance(told.value, NeedsLater)


def test_a_target_is_what_is_compiled_for(client: ModuleType, folder: Path) -> None:
    (launch,) = captured(
        folder, lambda: client.run_affine(torch.ones(9), None, 2.0, 3.0), target=90
    )
    assert launch.target == "sm_90"
    assert ".target sm_90" in launch.ptx
    assert launch.ptxas.startswith("13.")


def test_the_sink_runs_before_the_wrapper_goes_on(client: ModuleType, folder: Path) -> None:
    def sink(launch: CapturedLaunch) -> None:
        launch.tensors["out"].fill_(7.0)

    with capturing(sink, cache=folder / "cache"):
        assert client.run_affine(torch.ones(5), None, 2.0, 3.0).tolist() == [7.0] * 5


def test_an_empty_grid_is_no_launch(client: ModuleType, folder: Path) -> None:
    assert captured(folder, lambda: client.run_affine(torch.ones(0), None, 2.0, 3.0)) == []


def test_a_warm_up_is_no_launch(client: ModuleType, folder: Path) -> None:
    x = torch.ones(8)
    assert captured(folder, lambda: client.total.warmup(x, x, 8, BLOCK=8, grid=(1,))) == []


def test_what_no_device_takes_is_refused(client: ModuleType, folder: Path) -> None:
    from triton.runtime.errors import OutOfResources

    x = torch.ones(8)
    with pytest.raises(
        LaunchError, match=r"total: a grid of \(1, 65536, 1\) blocks; a device takes"
    ):
        captured(folder, lambda: client.total[(1, 65_536)](x, x, 8, BLOCK=8))
    with pytest.raises(LaunchError, match=r"total: grid \(-1,\) is not one to three numbers"):
        captured(folder, lambda: client.total[(-1,)](x, x, 8, BLOCK=8))
    metadata = captured(folder, lambda: client.total[(1,)](x, x, 8, BLOCK=8))[
        0
    ].source.compiled.metadata
    with pytest.raises(OutOfResources, match="Hardware limit: 166912"):
        triton_launch._check_shared(metadata._replace(shared=166_913))


@pytest.fixture
def made(client: ModuleType) -> Iterator[list[tuple[Any, ...]]]:
    """The launches that Triton makes by a driver for sm_90, which loads and runs nothing."""
    from triton.runtime.driver import driver

    launches: list[tuple[Any, ...]] = []
    base = stand_in("sm_90")

    class Utils(type(base.utils)):  # type: ignore[misc]
        def load_binary(self, name: str, *_: Any) -> tuple[int, int, int, int, int]:
            # module, function, registers, words of local memory, threads
            return 1, 2, 40, 3, 1024

    class Loading(type(base)):  # type: ignore[misc]
        utils = Utils()

        def get_current_device(self) -> str:
            return "loading"

        def launcher_cls(self, src: Any, metadata: Any) -> Any:
            return lambda *args: launches.append(args)

    before = dict(vars(driver))
    driver.set_active(Loading())
    yield launches
    vars(driver).clear()
    vars(driver).update(before)


def test_a_native_launch_is_made_by_the_driver_and_handed_over(
    client: ModuleType, folder: Path, made: list[tuple[Any, ...]]
) -> None:
    x = torch.ones(300)
    native: dict[str, Any] = {"target": 90, "native": True}
    (launch,) = captured(folder, lambda: client.run_affine(x, x, 2.0, 3.0), **native)
    assert [args[:3] for args in made] == [launch.grid] == [(3, 1, 1)]
    assert (launch.function, launch.target, launch.fusion) == ("affine", "sm_90", True)
    # words of local memory as bytes
    assert launch.loaded == {"registers": 40, "local_bytes": 12}
    # nothing of the launch is needed again
    assert (launch.parameters, dict(launch.tensors)) == (b"", {})
    assert captured(folder, lambda: client.total.warmup(x, x, 8, BLOCK=8, grid=(1,)), **native) == []  # fmt: skip
    assert captured(folder, lambda: client.run_affine(x[:0], None, 2.0, 3.0), **native) == []
    # the driver is the one that was there
    del made[:]
    client.run_affine(x, x, 2.0, 3.0, enable_fp_fusion=False)
    assert len(made) == 1


def test_every_configuration_is_launched_natively_and_none_is_timed(
    client: ModuleType, folder: Path, made: list[tuple[Any, ...]]
) -> None:
    call = lambda: client.run_doubled(torch.ones(200))
    found = measure.launches(call, False, folder / "cache", target=90, native=True)
    assert [one.configuration for one in found] == [(0, 3), (1, 3), (2, 3)]
    assert [args[0] for args in made] == [4, 1, 7]
    assert [(one.num_warps, place) for one, _, place in measure.distinct(found)] == [(2, 0), (8, 0), (1, 0)]  # fmt: skip


def state() -> tuple[Any, ...]:
    from triton.runtime import autotuner, jit
    from triton.runtime.driver import driver

    return (
        jit.JITFunction.run, autotuner.Autotuner.run, dict(vars(driver)), os.environ.get("TRITON_CACHE_DIR"),
    )  # fmt: skip


def test_nothing_stays_changed(client: ModuleType, folder: Path) -> None:
    before = state()
    captured(folder, lambda: client.run_doubled(torch.ones(8)))
    assert state() == before

    def failing(launch: CapturedLaunch) -> None:
        raise RuntimeError("of a test")

    with pytest.raises(RuntimeError, match="of a test"), capturing(failing, cache=folder):
        client.run_doubled(torch.ones(8))
    assert state() == before


def test_one_context_at_a_time(client: ModuleType, folder: Path) -> None:
    with (
        capturing(print, cache=folder),
        pytest.raises(LaunchError, match="captured already"),
        capturing(print, cache=folder),
    ):
        pass
    # the refused one closed nothing
    captured(folder, lambda: client.run_doubled(torch.ones(8)))


@pytest.mark.parametrize("name", triton_launch._REFUSED)
def test_a_variable_that_changes_the_code_is_refused(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(LaunchError, match=f"{name} is set: .*unset it"), capturing(print, cache=folder):  # fmt: skip
        pass
    monkeypatch.setenv(name, "0")
    with capturing(print, cache=folder):
        pass


def test_the_cache_is_the_callers_or_the_users(
    client: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "own"))
    with capturing(print):
        seen.append(os.environ["TRITON_CACHE_DIR"])
    with capturing(print, cache=tmp_path / "given"):
        seen.append(os.environ["TRITON_CACHE_DIR"])
    assert seen == [str(tmp_path / "own"), str(tmp_path / "given" / "triton")]


# Deferred kernels

DEFERRED = """
from __future__ import annotations
from contract.engines.deferred_jit import autotune, heuristics, jit
from contract.lazy import lazy
tl = lazy("triton.language")

@jit
def helped(x: tl.tensor) -> tl.tensor:
    return x * 2

@autotune([{"kwargs": {"BLOCK": 64}, "num_warps": 2}, {"kwargs": {"BLOCK": 32}}], key=["n"])
@heuristics({"EVEN": lambda a: a["n"] % a["BLOCK"] == 0})
@jit(do_not_specialize=["n"])
def kernel(x: tl.tensor, n: tl.tensor, EVEN: tl.constexpr, BLOCK: tl.constexpr) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, helped(tl.load(x + at, mask=at < n)), mask=at < n)
"""


def test_a_file_of_kernels_is_imported_without_triton(folder: Path) -> None:
    (folder / "deferred_of_a_test.py").write_text(DEFERRED)
    code = (
        "import sys; sys.modules['triton'] = None; import deferred_of_a_test as m;"
        "import contract.engines.triton_launch, contract.engines.cuda_launch;"
        "from contract.engines.triton_launch import configurations;"
        "assert configurations(m.kernel) == 2; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
    )  # fmt: skip
    assert done.stdout == "False\n", done.stderr


def test_a_deferred_kernel_is_triton_s_at_its_launch(
    client: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "deferred_of_a_test.py").write_text(DEFERRED)
    monkeypatch.syspath_prepend(folder)
    module = importlib.import_module("deferred_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    (launch,) = captured(folder, lambda: module.kernel[(2,)](torch.ones(64), 64), configuration=1)
    assert (launch.function, launch.block, launch.configuration) == ("kernel", (128, 1, 1), (1, 2))
    # a launcher that says nothing runs unfused on a device, too
    assert not launch.fusion
    fused = {"enable_fp_fusion": True}
    (launch,) = captured(folder, lambda: module.kernel[(2,)](torch.ones(64), 64, **fused))
    assert launch.fusion
    import triton

    assert isinstance(module.helped, triton.JITFunction)
    assert module.tl is triton.language


def test_annotations_that_are_no_texts_are_refused() -> None:
    from contract.engines.deferred_jit import jit

    def kernel(x, n): ...  # type: ignore[no-untyped-def]

    kernel.__annotations__["n"] = int
    with pytest.raises(DeclarationError, match="from __future__ import annotations"):
        jit(kernel)


def test_a_compiled_kernel_that_is_launched_by_itself_is_named(
    client: ModuleType, folder: Path
) -> None:
    x = torch.ones(64)

    def call() -> None:
        compiled = client.total.warmup(x, x, 64, BLOCK=64, grid=(1,))
        compiled[(1,)](x, x, 64)

    with pytest.raises(Unsupported, match=r"launch the function of triton\.jit"):
        captured(folder, call)


@pytest.mark.parametrize("damage", ["ptx", "json", "seal"])
def test_what_is_not_what_was_compiled_is_compiled_again(
    damage: str, client: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, kernel = torch.ones(256), client.doubled.fn.fn
    # what a process compiled it keeps: another one reads the files
    monkeypatch.setattr(kernel, "device_caches", copy.copy(kernel.device_caches))
    kept = kernel.device_caches
    kept.clear()
    (before,) = captured(tmp_path, lambda: client.run_doubled(x))
    kept.clear()
    paths = [p for p in (tmp_path / "cache").rglob(f"doubled*.{damage}") if "__grp__" not in p.name]
    for path in paths:
        path.write_text(path.read_text()[:100])
    (again,) = captured(tmp_path, lambda: client.run_doubled(x))
    assert paths
    assert again.ptx == before.ptx
    assert again.block == before.block


def test_a_worker_of_gpu_code_starts_with_what_is_computed_once() -> None:
    """Forked from a process that imported these: each would hash Triton's library and import Gluon for itself."""
    pytest.importorskip("triton", reason="triton is not installed")
    names = modules(("triton", "liger_kernel", NVCC), HOST)
    assert names == ("contract.engines.triton_ready", "liger_kernel")
    # launches of any kind are captured with Triton's, also where the implementation names no library
    assert modules((), PTX) == modules((), GPU) == names[:1]
    assert modules((), HOST) == ()
    code = (
        f"import sys, {names[0]}\n"
        "from triton.runtime import cache\n"
        "assert cache.triton_key.cache_info().currsize == 1\n"
        "assert 'triton.experimental.gluon.nvidia.hopper' in sys.modules\n"
        "assert 'contract.engines.executed' in sys.modules\n"
        "assert 'contract.compiled.measure' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def assembler(path: Path, line: str) -> str:
    """A script in place of Triton's ptxas, of the same version."""
    own = of_triton("ptxas")
    assert own is not None
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then exec {own} --version; fi\n{line.format(own)}\n'
    )
    path.chmod(0o755)
    return str(path)


def test_what_another_assembler_made_is_assembled_again(
    client: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = client.doubled.fn.fn
    monkeypatch.setattr(kernel, "device_caches", copy.copy(kernel.device_caches))

    def cubin() -> bytes:
        kernel.device_caches.clear()
        (launch,) = captured(tmp_path, lambda: client.run_doubled(torch.ones(256)))
        made: bytes = launch.source.compiled.asm["cubin"]
        return made

    before = cubin()
    line = 'exec {} "$@" -O0'
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler(tmp_path / "ptxas", line))
    assert cubin() != before
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    assert cubin() == before


@pytest.mark.parametrize(
    "line",
    [
        "kill -9 $$",
        "exit 139",
        "echo ptxas fatal : write of x.cubin: No space left on device >&2; exit 1",
    ],
)
def test_an_assembler_that_dies_says_nothing_of_the_kernel(
    line: str, client: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = client.doubled.fn.fn
    monkeypatch.setattr(kernel, "device_caches", copy.copy(kernel.device_caches))
    kernel.device_caches.clear()
    monkeypatch.setenv("TRITON_PTXAS_PATH", assembler(tmp_path / "ptxas", line))
    with pytest.raises(MissingCompiler, match=r"^doubled: ptxas was ended by a signal"):
        captured(tmp_path, lambda: client.run_doubled(torch.ones(256)))


def test_what_the_assembler_refuses_is_told_in_its_words(
    client: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = client.doubled.fn.fn
    monkeypatch.setattr(kernel, "device_caches", copy.copy(kernel.device_caches))
    kernel.device_caches.clear()
    line = "echo \"ptxas $0.ptx, line 9; error : Not a name of any known instruction: 'frobnicate'\" >&2; exit 255"
    for name in ("ptxas", "ptxas-blackwell"):
        variable = f"TRITON_{name.upper().replace('-', '_')}_PATH"
        monkeypatch.setenv(variable, assembler(tmp_path / name, line))
    with pytest.raises(
        LaunchError,
        match=r"^doubled does not compile: PTXASError: ptxas, line 9; error : Not a name .*frobnicate",
    ):
        captured(tmp_path, lambda: client.run_doubled(torch.ones(256)))
