"""Launches of CUDA C++ kernels: packing, entries, compiler, cache, and what their errors name."""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract.engines import nvcc, tools
from contract.engines.capture import (
    CapturedLaunch,
    LaunchError,
    MissingCompiler,
    NeedsLater,
    extent,
)
from contract.engines.cuda_launch import Kernel
from contract.engines.executed import Execution
from contract.engines.nvcc import CompileError
from contract.engines.pointers import tensors_at
from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx_entries import entries
from contract.engines.triton_launch import capturing
from contract.errors import DeclarationError

SOURCE = """
#include "scale.cuh"
struct Pair { char c; double d; };
extern "C" __global__ void scaled(const float *x, float *out, int n, double d, char c, float s, Pair p)
{
    extern __shared__ float held[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    held[threadIdx.x] = x[i];
    __syncthreads();
    if (i < n) out[i] = held[threadIdx.x ^ 1] * SCALE * s + d + c + p.d;
}
template<int N> __global__ void filled(float *x) { x[threadIdx.x] = N; }
template __global__ void filled<3>(float *);
"""

needs_nvcc = pytest.mark.skipif(bool(nvcc.missing_reason()), reason=nvcc.missing_reason())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "scaled.cu").write_text(SOURCE)
    (folder / "scale.cuh").write_text("#define SCALE 2.0f\n")
    return folder


def kernel(folder: Path, name: str = "scaled", **more: Any) -> Kernel:
    return Kernel(folder / "scaled.cu", name, headers=(folder / "scale.cuh",), **more)


def launched(folder: Path, one: Kernel, *args: Any, **keywords: Any) -> CapturedLaunch:
    found: list[CapturedLaunch] = []
    with capturing(found.append, cache=folder / "cache"):
        one.launch(*args, **keywords)
    return found[0]


@needs_nvcc
def test_arguments_lie_where_the_entry_wants_them(folder: Path) -> None:
    x, out = torch.ones(100), torch.zeros(100)
    pair = struct.pack("<b7xd", 5, 6.0)
    given = (x, out, np.int32(100), ctypes.c_double(1.5), np.int8(-3), np.float32(2.0), pair)
    launch = launched(folder, kernel(folder), 2, (64,), given, shared=256)
    assert launch.parameters == struct.pack(
        "<QQi4xdb3xfb7xd", x.data_ptr(), out.data_ptr(), 100, 1.5, -3, 2.0, 5, 6.0
    )
    assert (launch.grid, launch.block, launch.shared) == ((2, 1, 1), (64, 1, 1), 256)
    assert (launch.language, launch.entry, launch.target) == ("cuda", "scaled", "sm_80")
    assert list(launch.tensors) == ["argument 0", "argument 1"]
    assert (launch.fusion, launch.compiler) == (True, f"nvcc {nvcc.version()}")


@needs_nvcc
def test_products_and_sums_are_contracted_as_nvcc_does_unless_an_option_says_no(
    tmp_path: Path,
) -> None:
    source = tmp_path / "axpy.cu"
    source.write_text(
        'extern "C" __global__ void axpy(float *x, float a) { x[0] = x[1] * a + x[2]; }'
    )
    given = (torch.ones(3), np.float32(2.0))
    for options, fused in (((), True), (("-fmad=false",), False)):
        launch = launched(tmp_path, Kernel(source, "axpy", options), 1, 1, given)
        assert (launch.fusion, "fma.rn" in launch.ptx) == (fused, fused)


@needs_nvcc
def test_an_instance_of_a_template_is_found_by_its_name(folder: Path) -> None:
    launch = launched(folder, kernel(folder, "filled"), 1, 32, (torch.ones(32),))
    assert launch.entry == "_Z6filledILi3EEvPf"
    with pytest.raises(LaunchError, match=r"0 entries are named 'fill'; the source has .*scaled"):
        launched(folder, kernel(folder, "fill"), 1, 32, ())


@needs_nvcc
def test_what_was_compiled_is_kept_by_its_content(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, header = tmp_path / "scaled.cu", tmp_path / "scale.cuh"
    source.write_text(SOURCE)
    header.write_text("#define SCALE 2.0f\n")
    runs: list[str] = []
    compile_once = nvcc._compile
    monkeypatch.setattr(nvcc, "_compile", lambda *a: runs.append(a[1]) or compile_once(*a))  # type: ignore[func-returns-value]

    def ptx(**more: Any) -> bytes:
        one = kernel(tmp_path, **more)
        return one.compiled("sm_80", "ptx", tmp_path / "cache")[0]

    first = ptx()
    assert ptx() == first
    assert runs == ["sm_80"]
    header.write_text("#define SCALE 3.0f\n")
    assert ptx() != first
    assert ptx(options=("-fmad=false",)) != ptx()
    assert len(runs) == 3


@needs_nvcc
def test_code_for_a_later_architecture_is_no_fault(tmp_path: Path) -> None:
    source = tmp_path / "late.cu"
    source.write_text(
        'extern "C" __global__ void late(float *x) {\n#if __CUDA_ARCH__ < 900\n#error "for Hopper"\n#endif\n}\n'
    )
    with pytest.raises(NeedsLater, match=r"late compiles for sm_90a and not for sm_80.*for Hopper"):
        launched(tmp_path, Kernel(Path(str(source)), "late"), 1, 32, (torch.ones(32),))


def test_a_source_is_a_path() -> None:
    text: Any = "k.cu"
    assert Kernel(text, "k").source == Path("k.cu")
    text = "__global__ void k() {}\n"
    with pytest.raises(
        DeclarationError, match=r"the path of a \.cu file is needed, not '__global__"
    ):
        Kernel(text, "k")


@needs_nvcc
@pytest.mark.parametrize("damage", ["ptx", "log"])
def test_what_is_not_what_was_compiled_is_compiled_again(
    damage: str, folder: Path, tmp_path: Path
) -> None:
    first = kernel(folder).compiled("sm_80", "ptx", tmp_path)
    for path in tmp_path.rglob(f"*.{damage}"):
        # cut short, and as long as it was
        for damaged in (path.read_bytes()[:40], path.read_bytes().replace(b"0", b"1")):
            path.write_bytes(damaged)
            assert kernel(folder).compiled("sm_80", "ptx", tmp_path) == first


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("kill -9 $$", "ended by a signal"),
        ("exit 139", "ended by a signal"),
        ("exit 1", "ended with 1 and said nothing"),
        ("echo 'Segmentation fault' >&2; exit 1", "Segmentation fault"),
        ("echo 'g++: internal compiler error: Killed' >&2; exit 4", "internal compiler error"),
        ("echo 'cannot write a.o: No space left on device' >&2; exit 1", "No space left"),
        (
            "echo \"nvcc error   : 'cicc' died due to signal 9 (Kill signal)\" >&2; exit 9",
            "died due",
        ),
        ("exit 0", "gave no code"),
        ("touch out.ptx", "gave no code"),
    ],
)
def test_a_compiler_that_crashes_says_nothing_of_the_source(
    does: str, said: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvcc"
    version = 'if [ "$1" = --version ]; then echo "release 13.0, V13.0.88"; exit; fi'
    tool.write_text(f"#!/bin/sh\n{version}\n{does}\n")
    tool.chmod(0o755)
    monkeypatch.setattr(nvcc, "find", lambda: tool)
    with pytest.raises(MissingCompiler, match=said):
        kernel(folder).compiled("sm_80", "ptx", tmp_path / "cache")


@needs_nvcc
def test_a_header_that_is_not_declared_is_missed(folder: Path) -> None:
    with pytest.raises(CompileError, match=r"scaled.cu: .*scale.cuh: No such file"):
        launched(folder, Kernel(folder / "scaled.cu", "scaled"), 1, 32, ())


@needs_nvcc
def test_a_folder_of_headers_keeps_its_names(tmp_path: Path) -> None:
    (tmp_path / "lib" / "inner").mkdir(parents=True)
    (tmp_path / "lib" / "inner" / "scale.cuh").write_text("#define SCALE 4.0f\n")
    source = tmp_path / "k.cu"
    source.write_text('#include "inner/scale.cuh"\n__global__ void k(float *x) { *x = SCALE; }\n')
    one = Kernel(source, "k", headers=(tmp_path / "lib",))
    assert launched(tmp_path, one, 1, 1, (torch.ones(1),)).entry == "_Z1kPf"


@needs_nvcc
def test_a_compile_error_is_nvcc_s_first(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k(float *x) {\n  *x = wrong;\n  also;\n}\n")
    with pytest.raises(CompileError, match=r'k.cu: k.cu\(2\): error: identifier "wrong"'):
        launched(tmp_path, Kernel(tmp_path / "k.cu", "k"), 1, 1, (torch.ones(1),))


@needs_nvcc
@pytest.mark.parametrize(
    ("arguments", "block", "shared", "said"),
    [
        ((1,), 32, 0, "argument 0 is 1 .int., whose size is not stated"),
        ((torch.ones(1), torch.ones(1)), 32, 0, "the entry has 1 parameters, the launch 2 arguments"),
        ((np.int32(1),), 32, 0, "argument 0 has 4 bytes, the entry's parameter 8"),
        ((torch.ones(1),), 1025, 0, r"a block of \(1025, 1, 1\) threads; a device takes 1 to 1,024"),
        ((torch.ones(1),), (1, 1, 65), 0, "a block of"),
        ((torch.ones(1),), 0, 0, "a block of"),
        ((torch.ones(1),), "big", 0, "block 'big' is not one to three numbers"),
        ((torch.ones(1),), 32, 166_913, "166,913 bytes of dynamic shared memory; sm_80 has 0 to 166,912"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    folder: Path, arguments: Any, block: Any, shared: int, said: str
) -> None:
    with pytest.raises(LaunchError, match=f"filled: {said}"):
        launched(folder, kernel(folder, "filled"), 1, block, arguments, shared=shared)


def test_without_a_device_the_engine_is_named(folder: Path) -> None:
    with pytest.raises(LaunchError, match=r"no device to launch on; .* --engine ptx"):
        kernel(folder).launch(1, 1, ())


def test_a_missing_compiler_names_wheel_and_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcc, "_places", lambda: iter(()))
    nvcc.find.cache_clear()
    try:
        with pytest.raises(LaunchError, match=r"nvidia-cuda-nvcc .*kernel-contract\[cuda\]"):
            launched(folder, kernel(folder), 1, 1, ())
        assert "nvcc is not installed" in nvcc.missing_reason()
    finally:
        nvcc.find.cache_clear()


def test_another_nvcc_of_the_same_version_compiles_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, source = nvcc.find(), tmp_path / "k.cu"
    source.write_text(
        '#ifndef N\n#define N 7\n#endif\nextern "C" __global__ void k(int* x) { *x = N; }'
    )

    def made() -> bytes:
        return nvcc.compiled(source, "sm_80", "ptx", cache=tmp_path / "cache")[0]

    before = made()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then exec {own} --version; fi\nexec {own} -DN=8 "$@"\n'
    )
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    nvcc.find.cache_clear()
    try:
        assert made() != before
    finally:
        nvcc.find.cache_clear()


def test_cuda_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    nvcc.find.cache_clear()
    try:
        assert nvcc.find() == tmp_path / "bin" / "nvcc"
        assert "does not run" in nvcc.missing_reason()
    finally:
        nvcc.find.cache_clear()


@pytest.mark.parametrize(
    ("options", "fused"),
    [(("-fmad=false",), False), ((), True), (("--fmad=true",), True), (("-use_fast_math",), True),
     (("-use_fast_math", "-fmad=false"), False)],
)  # fmt: skip
def test_fusion_is_what_the_options_say(options: tuple[str, ...], fused: bool) -> None:
    assert Kernel(Path("k.cu"), "k", options).fusion is fused


def test_parameters_are_laid_out_as_ptx_says() -> None:
    ptx = """
    // .entry not_this(
    .visible .entry none() { ret; }
    .visible .entry bare
    { ret; }
    .visible .entry all(.param .u8 a, .param .u64 .ptr .global .align 16 b, .param .f32 c,
        .param .align 16 .b8 d[20], /* one */ .param .b16 e, .param .u64 .ptr f) { ret; }
    """
    assert entries(ptx) == {
        "none": [], "bare": [], "all": [(0, 1), (8, 8), (16, 4), (32, 20), (52, 2), (56, 8)],
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"'\.reg \.u8 a' is not understood"):
        entries(".entry k(.reg .u8 a)")


def test_sizes_are_one_to_three_numbers() -> None:
    assert extent("k", "grid", 5) == (5, 1, 1)
    assert extent("k", "grid", (5, np.int64(2))) == (5, 2, 1)
    for wrong in ((), (1, 2, 3, 4), (1, -1), None, ("a",)):
        with pytest.raises(LaunchError, match=r"k: grid .* is not one to three numbers"):
            extent("k", "grid", wrong)


MODULE = """
import contract, numpy as np, torch
from pathlib import Path
from contract.engines.cuda_launch import Kernel

def made():
    return Kernel(Path(__file__).parent / "device" / "add.cu", "add", headers=(Path(__file__).parent / "lib",))

{kernel}

@contract.implementation("residual_add", profile="float32", engine="ptx", requires=("nvcc",))
def mine(a, b):
    a, b = a.contiguous(), b.contiguous()
    out = torch.empty_like(a)
    {get}.launch(-(-a.numel() // 128), 128, (a, b, out, np.int32(a.numel())))
    return out
"""
ADD = """
#include "sum.cuh"
extern "C" __global__ void add(const float *a, const float *b, float *out, int n)
{ int i = blockIdx.x * 128 + threadIdx.x; if (i < n) out[i] = SUM(a[i], b[i]); }
"""


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(("lazily", "edited"), [(False, "lib/sum.cuh"), (True, "device/add.cu")])
def test_an_edit_of_device_code_wherever_it_lies_judges_again(
    lazily: bool, edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kernel, get = ("", "made()") if lazily else ("KERNEL = made()", "KERNEL")
    for name, text in {
        "pyproject.toml": "",
        "mine.py": MODULE.replace("{kernel}", kernel).replace("{get}", get),
        "device/add.cu": ADD,
        "lib/sum.cuh": "#define SUM(x, y) ((x) + (y))\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    def ran() -> tuple[int, bool, bool]:
        words = ["run", "mine.py", "residual_add/float32/mine/shapes", "--effort", "quick"]
        done = subprocess.run(
            [sys.executable, "-m", "contract", *words], capture_output=True, text=True, check=False
        )
        return done.returncode, "from receipts" in done.stdout, "is not kept" in done.stdout

    assert ran() == (0, False, lazily)
    # what no import shows is judged each time
    assert ran() == (0, not lazily, lazily)
    file = tmp_path / edited
    file.write_text(file.read_text().replace("+ (y)", "- (y)").replace("SUM(a", "-SUM(a"))
    assert ran() == (1, False, lazily)


@needs_nvcc
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('unsigned short r; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %1;" : "=h"(r) : "f"(x[0])); x[0] = r;', "sm_89"),
        ('unsigned r; asm("add.rn.bf16x2 %0, %1, %1;" : "=r"(r) : "r"(1)); x[0] = r;', "'add.bf16x2' requires .target sm_90"),
        ('unsigned r; asm volatile("{ .reg .pred p; elect.sync %0|p, -1; }" : "=r"(r)); x[0] = r;', "'elect' requires .target sm_90"),
        ('asm volatile("frobnicate;");', ""),
        ('asm volatile("wgmma.fence.sync.aligned;");', "'wgmma.fence' not supported on .target 'sm_80'"),
    ],
)  # fmt: skip
def test_what_the_assembler_refuses_of_the_target_is_not_run(
    body: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "k.cu").write_text(f"__global__ void k(float *x) {{ {body} }}\n")
    # what is for no architecture is the source's fault
    with pytest.raises(NeedsLater if said else CompileError) as error:
        launched(tmp_path, Kernel(tmp_path / "k.cu", "k"), 1, 1, (torch.ones(1),))
    assert (said or "Not a name of any known instruction: 'frobnicate'") in str(error.value)
    assert not list((tmp_path / "cache").rglob("*.ptx"))


@needs_nvcc
@pytest.mark.parametrize("name", ["NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"])  # fmt: skip
def test_no_variable_changes_what_is_compiled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "seen.h").write_text("#define SEEN\n")
    (tmp_path / "k.cu").write_text(
        '#if __has_include("seen.h") || defined(SEEN)\n#error "seen"\n#endif\n__global__ void k() {}\n'
    )
    monkeypatch.setenv(name, "-DSEEN" if name.startswith("NVCC") else str(tmp_path / "inc"))
    assert Kernel(tmp_path / "k.cu", "k").compiled("sm_80", "ptx", tmp_path / "cache")[0]


@needs_nvcc
@pytest.mark.parametrize("how", ["option", "include", "above"])
def test_a_header_whose_edits_nobody_would_notice_is_refused(how: str, tmp_path: Path) -> None:
    (tmp_path / "in c").mkdir()
    header = tmp_path / "in c" / "h.cuh"
    header.write_text("#define V 1.0f\n")
    name = {"option": "h.cuh", "include": str(header), "above": f"../../../../..{header}"}[how]
    (tmp_path / "k.cu").write_text(
        f'#include "{name}"\n__global__ void k(float *x) {{ *x = V; }}\n'
    )
    options = (f"-I{header.parent}",) if how == "option" else ()
    one = Kernel(tmp_path / "k.cu", "k", options)
    with pytest.raises(LaunchError, match=r"k\.cu: it reads /.*/in c/h\.cuh, .* headers="):
        one.compiled("sm_80", "ptx", tmp_path / "cache")


@needs_nvcc
def test_headers_of_the_toolkit_and_the_system_are_no_matter(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(
        "#include <cuda_bf16.h>\n#include <cooperative_groups.h>\n#include <cmath>\n#include <cuda/std/limits>\n"
        "__global__ void k() {}\n"
    )
    for form in ("ptx", "cubin"):
        assert Kernel(tmp_path / "k.cu", "k").compiled("sm_80", form, tmp_path / "cache")[0]


def test_a_file_of_options_is_refused(folder: Path) -> None:
    with pytest.raises(LaunchError, match="option --options-file=all of nvcc is not taken"):
        kernel(folder, options=("--options-file=all",)).compiled("sm_80", "ptx", folder / "cache")


def test_a_tool_that_never_ends_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\nexec sleep 5\n")
    tool.chmod(0o755)
    monkeypatch.setattr(tools, "_SECONDS", 0.1)
    with pytest.raises(MissingCompiler, match=r"does not end within 0\.1 s"):
        tools.tool_version(tool)


STRUCTURE = """
struct P { const float *x; float *out; int n; float scale; };
extern "C" __global__ void scaled(P p)
{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < p.n) p.out[i] = p.scale * p.x[i]; }
"""


@needs_nvcc
def test_pointers_in_a_structure_are_followed(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(STRUCTURE)
    one = Kernel(tmp_path / "k.cu", "scaled")
    x, out = torch.arange(100.0), torch.zeros(100)
    # begins inside the storage
    part = x[10:]
    given = struct.pack("<QQif", part.data_ptr(), out.data_ptr(), 90, 2.0)
    execution = Execution(0)
    with capturing(execution.execute, cache=tmp_path / "cache"):
        one.launch(1, 96, (given,))
    assert torch.equal(out[:90], 2 * part)
    assert not out[90:].any()
    # one element more than the tensor has
    given = struct.pack("<QQif", part.data_ptr(), out.data_ptr(), 91, 2.0)
    with (
        pytest.raises(PtxFault, match=r"argument 0, byte 0"),
        capturing(Execution(0).execute, cache=tmp_path / "cache"),
    ):
        one.launch(1, 96, (given,))


def test_numbers_are_not_taken_for_pointers() -> None:
    x = torch.ones(4)
    # has no memory
    nowhere = torch.empty(1 << 50, device="meta")
    assert tensors_at({"a": struct.pack("<Q", 1 << 40)}) == {}
    assert nowhere.is_meta
    assert tensors_at({"a": struct.pack("<QdQ", 12, 6.0, 0), "b": b"\1\2\3"}) == {}
    found = tensors_at({"a": struct.pack("<QQ", 7, x.data_ptr() + 15)})
    assert list(found) == ["a, byte 8"]
    assert found["a, byte 8"].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert tensors_at({"a": struct.pack("<Q", x.data_ptr() + 16)}) == {}


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "declared"), [("cap.h", "cap.h"), ("lib/cap.h", "lib"), ("nowhere.h", "")]
)
def test_a_header_that_lies_beside_its_source_is_to_be_declared(
    name: str, declared: str, tmp_path: Path
) -> None:
    if declared:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "k.cu").write_text(f'#include "{name}"\n__global__ void k() {{}}\n')
    with pytest.raises(CompileError, match=f"{name}: No such file") as error:
        Kernel(tmp_path / "k.cu", "k").compiled("sm_80", "ptx", tmp_path / "cache")
    assert ("declare " in str(error.value)) == bool(declared)
    assert not declared or f"declare {tmp_path / declared} in headers=" in str(error.value)


@pytest.mark.parametrize("option", ["-arch=sm_90a", "-arch", "--gpu-architecture=sm_90", "-gencode=arch=compute_90,code=sm_90"])  # fmt: skip
def test_the_architecture_is_no_option(option: str, tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("__global__ void k() {}\n")
    with pytest.raises(LaunchError, match=rf"option {re.escape(option)} .*leave it out"):
        Kernel(tmp_path / "k.cu", "k", options=(option,)).compiled("sm_80", "ptx", tmp_path)
