"""Resources of compiled kernels: each reader against what the tools wrote, and readers against each other."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract.compiled import amdgcn, cuobjdump, elf, occupancy, ptxas, read
from contract.compiled.architectures import AMD_NAMES, ARCHITECTURES, CUDA_NAMES, Amd, cuda, find
from contract.compiled.faults import Disagreement, Refused, Unreadable
from contract.engines import nvcc
from contract.engines.capture import CapturedLaunch
from contract.engines.cuda_launch import Kernel
from contract.engines.triton_launch import capturing
from contract.errors import UsageError
from contract.store import digest

# A frame that is indexed, static shared memory, a barrier; a second entry.
SOURCE = """
extern "C" __global__ void held(const float *a, float *b, int n)
{
    __shared__ float s[300];
    float f[40];
    for (int i = 0; i < 40; i++) f[(i * n) % 40] = a[i];
    s[threadIdx.x] = f[n];
    __syncthreads();
    b[threadIdx.x] = s[threadIdx.x ^ n];
}
extern "C" __global__ void plain(float *a) { a[0] = 1; }
"""
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'plain' for 'sm_80'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : Compiling entry function 'held' for 'sm_80'
ptxas info    : Function properties for held
    160 bytes stack frame, 12 bytes spill stores, 24 bytes spill loads
ptxas-blackwell info    : Used 32 registers, used 1 barriers, 160 bytes cumulative stack size, 1200 bytes smem
ptxas info    : Function properties for deep
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""
LISTING = """
Resource usage:
 Common:
  GLOBAL:0
 Function plain:
  REG:8 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:360 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function held:
  REG:32 STACK:160 SHARED:2224 LOCAL:0 CONSTANT[0]:372 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
ASSEMBLY = """
	.amdhsa_group_segment_fixed_size 128
	.amdhsa_private_segment_fixed_size 16
; TotalNumSgprs: 19
; NumVgprs: 14
; TotalNumVgprs: 16
; ScratchSize: 16
; LDSByteSize: 128 bytes/workgroup (compile time only)
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .group_segment_fixed_size: 128
    .private_segment_fixed_size: 16
    .sgpr_count:     19
    .sgpr_spill_count: 1
    .vgpr_count:     16
    .vgpr_spill_count: 2
...
	.end_amdgpu_metadata
"""

needs_nvcc = pytest.mark.skipif(bool(nvcc.missing_reason()), reason=nvcc.missing_reason())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def launch(folder: Path) -> CapturedLaunch:
    (folder / "held.cu").write_text(SOURCE)
    found: list[CapturedLaunch] = []
    a = torch.ones(300)
    with capturing(found.append, cache=folder):
        Kernel(folder / "held.cu", "held").launch(1, 256, (a, a.clone(), np.int32(1)), shared=64)
    return found[0]


@pytest.fixture(scope="module")
def cubin(launch: CapturedLaunch, folder: Path) -> bytes:
    return bytes(launch.source.compiled("sm_80", "cubin", folder)[0])


# Readers


def test_the_log_of_ptxas_is_read_entry_by_entry() -> None:
    assert ptxas.parse(LOG) == {
        "plain": ptxas.Usage(8, 0, 0, 0, 0, 0),
        "held": ptxas.Usage(32, 160, 12, 24, 1200, 1),
    }


@pytest.mark.parametrize(
    ("drop", "said"),
    [("Used 32", "no line of registers for held"), ("160 bytes stack", "registers of held before its stack"),
     ("ptxas", "no line of registers for any entry")],
)  # fmt: skip
def test_a_log_that_lacks_a_line_is_unreadable(drop: str, said: str) -> None:
    log = "\n".join(line for line in LOG.splitlines() if drop not in line)
    with pytest.raises(Unreadable, match=f"ptxas -v: {said}"):
        ptxas.parse(log)


def test_the_listing_of_cuobjdump_is_read() -> None:
    assert cuobjdump.parse(LISTING) == {
        "plain": {"registers": 8, "stack": 0, "shared": 0},
        "held": {"registers": 32, "stack": 160, "shared": 2224},
    }
    with pytest.raises(Unreadable, match=r"held: .* lacks a count"):
        cuobjdump.parse(LISTING.replace("STACK:160", ""))
    with pytest.raises(Unreadable, match=r"no function \(what it said\)"):
        cuobjdump.parse("", "what it said")


def test_assembly_of_amd_says_the_same_in_three_places() -> None:
    found = amdgcn.readings(ASSEMBLY)
    assert found["metadata"] == {
        "vgprs": 16, "sgprs": 19, "vgpr_spills": 2, "sgpr_spills": 1, "lds_bytes": 128, "private_bytes": 16,
    }  # fmt: skip
    read.agreed("k", "gfx942", found)
    for old, new, said in (
        ("; TotalNumVgprs: 16", "; TotalNumVgprs: 17", "vgprs is not one number: metadata 16, comments 17"),
        (".amdhsa_group_segment_fixed_size 128", ".amdhsa_group_segment_fixed_size 0", "lds_bytes is not"),
        ("; ScratchSize: 16", "; ScratchSize: 20", "private_bytes is not one number"),
    ):  # fmt: skip
        with pytest.raises(Disagreement, match=f"k on gfx942: {said}"):
            read.agreed("k", "gfx942", amdgcn.readings(ASSEMBLY.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "said"),
    [("    .vgpr_count:     16\n", "no metadata of exactly one"), (".amdgpu_metadata\n---", "no metadata"),
     ("    .sgpr_count:     19\n", "metadata: .sgpr_count stands there 0 times"), ("; TotalNumSgprs: 19\n", "comments: no TotalNumSgprs")],
)  # fmt: skip
def test_assembly_of_amd_that_lacks_a_count_is_unreadable(old: str, said: str) -> None:
    with pytest.raises(Unreadable, match=f"amdgcn.*: {said}|amdgcn {said}"):
        amdgcn.readings(ASSEMBLY.replace(old, ""))


@needs_nvcc
def test_the_elf_file_has_what_the_tools_say(cubin: bytes, launch: CapturedLaunch, folder: Path) -> None:  # fmt: skip
    _, log = launch.source.compiled("sm_80", "cubin", folder)
    said, found = ptxas.parse(log), elf.read(cubin)
    assert found.keys() == said.keys() == {"held", "plain"}
    assert {n: (f.registers, f.stack, f.shared) for n, f in found.items()} == {
        n: (u.registers, u.stack, u.shared) for n, u in said.items()
    }
    assert (found["held"].stack, found["held"].shared) == (160, 1200)
    assert found["held"].code != found["plain"].code


@needs_nvcc
def test_a_damaged_cubin_is_one_named_error(cubin: bytes) -> None:
    rng = random.Random(5)
    for wrong in (b"", b"\x7fELF", b"text", cubin[:500], cubin[:2000]):
        with pytest.raises(Unreadable, match="cubin: "):
            elf.read(wrong)
    for _ in range(2000):
        data = bytearray(cubin)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(Unreadable):
            elf.read(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))


# Readings against each other


@needs_nvcc
@pytest.mark.parametrize("architecture", CUDA_NAMES)
def test_resources_of_a_cuda_kernel(
    architecture: str, launch: CapturedLaunch, folder: Path
) -> None:
    found = read.resources_of(launch, architecture, folder)
    counts = found["resources"]
    assert 8 <= counts.pop("registers") <= 64
    assert counts == {
        "stack_bytes": 160, "spill_store_bytes": 0, "spill_load_bytes": 0, "static_shared_bytes": 1200,
        "dynamic_shared_bytes": 64, "barriers": 1, "threads": 256,
    }  # fmt: skip
    assert (found["architecture"], found["ptxas"]) == (architecture, launch.ptxas)
    assert re.fullmatch("[0-9a-f]{64}", found["code"])
    assert read.resources_of(launch, architecture, folder)["code"] == found["code"]


@needs_nvcc
def test_ways_that_disagree_are_refused_with_every_value(
    cubin: bytes, launch: CapturedLaunch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = launch.source.compiled("sm_80", "cubin", folder)
    registers = elf.read(cubin)["held"].registers
    lied = log.replace(f"Used {registers} registers", "Used 7 registers")
    assert lied != log
    with pytest.raises(
        Disagreement,
        match=f"held on sm_80: registers is not one number: ptxas -v 7, ELF {registers}",
    ):
        read.read_cubin("held", cuda(80), cubin, lied, "held")
    with pytest.raises(Disagreement, match="shared is not one number: ptxas -v 1,204, ELF 1,200"):
        read.read_cubin("held", cuda(80), cubin, log.replace("1200 bytes smem", "1204 bytes smem"), "held")  # fmt: skip
    with pytest.raises(Unreadable, match="held on sm_80: ptxas -v has no gone"):
        read.read_cubin("held", cuda(80), cubin, log, "gone")
    if read._cuobjdump():
        entry = {"registers": registers, "stack": 4, "shared": 1200}
        monkeypatch.setattr(cuobjdump, "usage", lambda *_: {"held": entry})
        with pytest.raises(Disagreement, match=r"stack is not one number: .* cuobjdump 4"):
            read.read_cubin("held", cuda(80), cubin, log, "held")


def test_resources_of_a_triton_kernel_on_every_architecture(folder: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from contract.kernels.triton.softcap import softcap_triton

    found: list[CapturedLaunch] = []
    with capturing(found.append, cache=folder):
        softcap_triton(torch.ones(5, 300).bfloat16(), cap=30.0, profile="each_op")
    read_from = {name: read.resources_of(found[0], name, folder) for name in ARCHITECTURES}
    assert {r["ptxas"].partition(".")[0] for n, r in read_from.items() if n in CUDA_NAMES} == {"12", "13"}  # fmt: skip
    assert all(r["resources"]["threads"] == 128 for n, r in read_from.items() if n in CUDA_NAMES)
    assert read_from["gfx942"]["resources"]["threads"] == 256
    assert all(r["resources"]["vgprs"] > 8 for n, r in read_from.items() if n in AMD_NAMES)
    assert len({r["source"] for r in read_from.values()}) == 1


@pytest.mark.parametrize("architecture", ["sm_80", "sm_120"])
def test_what_ptxas_said_when_triton_ran_it_is_kept_with_the_cubin(
    architecture: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from contract.engines.triton_cache import ptxas_log
    from contract.kernels.triton.softcap import softcap_triton

    found: list[CapturedLaunch] = []
    with capturing(found.append, cache=folder):
        softcap_triton(torch.ones(5, 300).bfloat16(), cap=30.0, profile="each_op")
    compiled = found[0].source.compiled_for(architecture, folder)
    again = read._assembled("softcap", compiled, cuda(int(architecture[3:])))
    assert ptxas.parse(ptxas_log(compiled)) == ptxas.parse(again)
    with monkeypatch.context() as patch:
        patch.setattr(ptxas, "assembled", lambda *_: pytest.fail("it was assembled again"))
        kept = read.resources_of(found[0], architecture, folder)
        # also from the cache, by another process
        kernel = compiled.src.fn
        patch.setattr(kernel, "device_caches", defaultdict(kernel.create_binder))
        fresh = found[0].source.compiled_for(architecture, folder)
        assert fresh is not compiled
        assert ptxas_log(fresh) == ptxas_log(compiled)
    # a cache that others filled says nothing: ptxas is run again, and must give the same code
    monkeypatch.setattr(read, "ptxas_log", lambda _: "")
    assert read.resources_of(found[0], architecture, folder / "other") == kept
    real = ptxas.assembled
    monkeypatch.setattr(
        ptxas, "assembled", lambda tool, ptx, name, options: real(tool, ptx, name, [*options, "--opt-level", "0"])
    )  # fmt: skip
    with pytest.raises(Disagreement, match=f"softcap.* on {architecture}: ptxas.* gives other code"):  # fmt: skip
        read.resources_of(found[0], architecture, folder / "third")


def test_what_an_assembler_does_not_take_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from contract.engines.triton_launch import TritonSource
    from contract.kernels.triton.w4_gemv_planes import gemv, launch

    found: list[CapturedLaunch] = []
    words = torch.zeros(8, 16, dtype=torch.int32)
    scales, zeros = torch.ones(8, 1).bfloat16(), torch.zeros(8, 1, dtype=torch.uint8)
    with capturing(found.append, cache=folder):
        a = torch.zeros(1, 128, dtype=torch.int16)
        launch(gemv, a, words, scales, zeros, "signed", torch.bfloat16)
    with pytest.raises(Refused, match=r"does not compile: AMD LLVM .*: AMD assembler rejected"):
        read.resources_of(found[-1], "gfx942", folder)
    with monkeypatch.context() as patch:
        patch.setattr(TritonSource, "compiled_for", lambda *_: pytest.fail("compiled again"))
        with pytest.raises(Refused, match=r"does not compile: AMD LLVM .*: AMD assembler rejected"):
            read.resources_of(found[-1], "gfx942", folder)
    # what fails for another reason may not fail the next time

    def failed(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(TritonSource, "compiled_for", failed)
        with pytest.raises(RuntimeError, match="no memory"):
            read.resources_of(found[-1], "gfx950", folder)
    with pytest.raises(Refused):
        read.resources_of(found[-1], "gfx950", folder)


@needs_nvcc
def test_what_was_read_once_is_not_compiled_again(
    launch: CapturedLaunch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read.resources_of(launch, "sm_80", folder)
    monkeypatch.setattr(read, "read_cubin", lambda *_: pytest.fail("it was read again"))
    assert read.resources_of(launch, "sm_80", folder) == first
    (path,) = (p for p in (folder / "resources").rglob("*.json") if first["code"] in p.read_text())
    kept = path.read_text()
    lied = kept.replace('"spill_store_bytes": 0', '"spill_store_bytes": 8')
    assert lied != kept
    for damaged in ("{}", "[]", kept[:90], lied):
        path.write_text(damaged)
        with pytest.raises(pytest.fail.Exception, match="read again"):
            read.resources_of(launch, "sm_80", folder)
    # with a digest that is right: another's, or nothing that could be one
    for wrong in (
        {"x": 1}, [1], {"refused": 5}, {**first, "architecture": "sm_90"}, {**first, "code": None},
        {**first, "resources": {**first["resources"], "registers": -1}},
        {**first, "resources": {**first["resources"], "threads": 0}},
        {**first, "resources": {"registers": "many"}}, {**first, "code_bytes": "7"}, {**first, "more": 1},
    ):  # fmt: skip
        path.write_text(json.dumps({"found": wrong, "digest": digest(wrong)}))
        with pytest.raises(pytest.fail.Exception, match="read again"):
            read.resources_of(launch, "sm_80", folder)
    path.write_text(kept)
    assert read.resources_of(launch, "sm_80", folder) == first


# Occupancy: worked by hand from the tables


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared", "expected"),
    [
        # 2048 / 256 threads
        (80, 256, 32, 0, 8),
        # 64 registers of 256 threads are 16,384 of 65,536
        (80, 256, 64, 0, 4),
        # 33 registers count as 40: 1,280 a warp, 12 warps a scheduler, 48 in all, 8 a block
        (80, 256, 33, 0, 6),
        # 164 KiB / (40 + 1)
        (80, 256, 32, 40 * 1024, 4),
        (86, 32, 16, 0, 16),
        (89, 32, 16, 0, 24),
        (120, 1024, 32, 0, 1),
        (90, 128, 255, 227 * 1024, 1),
        (90, 128, 16, 227 * 1024 + 1, 0),
        (80, 1024, 128, 0, 0),
    ],
)  # fmt: skip
def test_blocks_that_fit(
    capability: int, threads: int, registers: int, shared: int, expected: int
) -> None:
    limits = cuda(capability)
    found = occupancy.blocks(limits, threads=threads, registers=registers, shared=shared)
    assert found == expected


def test_waves_that_fit() -> None:
    limits = find("gfx942")
    assert isinstance(limits, Amd)
    assert occupancy.waves(limits, vgprs=64, lds=0, threads=256) == 8
    assert occupancy.waves(limits, vgprs=129, lds=0, threads=256) == 3
    # one group of 4 waves on 4 SIMDs
    assert occupancy.waves(limits, vgprs=16, lds=40 * 1024, threads=256) == 1
    assert occupancy.waves(limits, vgprs=513, lds=0, threads=64) == 0
    assert occupancy.share(cuda(80), 4, 256) == 0.5


def test_an_architecture_that_is_not_listed_is_named() -> None:
    with pytest.raises(UsageError, match="architecture 'sm_70' is not listed; it is one of sm_80"):
        find("sm_70")
    shared: dict[str, Any] = {n: a.shared - a.shared_opt_in for n, a in ARCHITECTURES.items() if not isinstance(a, Amd)}  # fmt: skip
    assert set(shared.values()) == {1024}
