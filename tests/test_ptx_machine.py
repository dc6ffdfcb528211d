"""Control flow, calls, special registers, and what a launch is refused for."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ptx_kernel import HEAD, memory, program, run, source

from contract.engines.ptx.faults import PtxFault, Unsupported
from contract.engines.ptx.machine import launch
from contract.engines.ptx.program import decode
from contract.engines.ptx.text import parse

STORE = "st.global.u32 [%e0], %r3;"
N = np.arange(64, dtype=np.uint32)


def test_special_registers() -> None:
    grid, block = (2, 3, 2), (4, 2, 5)
    threads, blocks = 40, 12
    out = np.zeros((blocks * threads, 12), np.uint32)
    names = [f"%{n}.{a}" for n in ("tid", "ctaid", "ntid", "nctaid") for a in "xyz"]
    body = """
        mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mad.lo.u32 %r4, %r3, 2, %r2; mad.lo.u32 %r4, %r4, 4, %r0;
        mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ctaid.y; mov.u32 %r7, %ctaid.z;
        mad.lo.u32 %r8, %r7, 3, %r6; mad.lo.u32 %r8, %r8, 2, %r5; mad.lo.u32 %r8, %r8, 40, %r4;
        mul.wide.u32 %d4, %r8, 48; add.s64 %d5, %d0, %d4;
    """ + "".join(
        f"mov.u32 %r9, {n}; st.global.u32 [%d5+{4 * i}], %r9;\n" for i, n in enumerate(names)
    )
    run(body, out, grid=grid, block=block, most_lanes=100)
    for row, got in enumerate(out):
        t, c = row % threads, row // threads
        want = [t % 4, t // 4 % 2, t // 8, c % 2, c // 2 % 3, c // 6, *block, *grid]
        assert got.tolist() == want


def test_lane_and_warp_registers() -> None:
    out = np.zeros((7, 64), np.uint32)
    names = [
        "%laneid",
        "%warpid",
        "%lanemask_eq",
        "%lanemask_lt",
        "%lanemask_le",
        "%lanemask_gt",
        "%lanemask_ge",
    ]
    body = "".join(
        f"mov.u32 %r3, {n}; st.global.u32 [%e0+{256 * i}], %r3;" for i, n in enumerate(names)
    )
    run(body, out, block=64)
    for i in range(64):
        lane = i % 32
        before, itself, all_of = (1 << lane) - 1, 1 << lane, (1 << 32) - 1
        masks = [itself, before, before | itself, all_of & ~(before | itself), all_of & ~before]
        assert out[:, i].tolist() == [lane, i // 32, *masks]


def test_a_loop_runs_as_often_as_each_lane_needs() -> None:
    out = np.zeros(64, np.uint32)
    body = f"mov.u32 %r3, 0; mov.u32 %r4, 0; L: setp.ge.u32 %p1, %r4, %r0; @%p1 bra E; \
        add.u32 %r3, %r3, %r4; add.u32 %r4, %r4, 1; bra.uni L; E: {STORE}"
    report = run(body, out, block=64)
    assert np.array_equal(out, N * (N - 1) // 2 * (N > 0))
    # one thread each: those of block E once, the additions once a round
    assert report.counts["st.global.u32"] == 64
    assert report.counts["bra.uni"] == N.sum()


def test_nested_divergence_and_predicated_instructions() -> None:
    out = np.zeros(64, np.uint32)
    body = f"""and.b32 %r4, %r0, 3; mov.u32 %r3, 7; setp.lt.u32 %p1, %r4, 2; @%p1 bra A;
        setp.eq.u32 %p2, %r4, 2; @!%p2 bra B; mov.u32 %r3, 20; bra M; B: mov.u32 %r3, 30; bra M;
        A: setp.eq.u32 %p3, %r4, 0; @%p3 add.u32 %r3, %r3, 100; @!%p3 sub.u32 %r3, %r3, 1;
        M: {STORE}"""
    run(body, out, block=64)
    assert np.array_equal(out, np.array([107, 6, 20, 30], np.uint32)[N % 4])


def test_brx_goes_to_the_target_of_each_lane() -> None:
    out = np.zeros(64, np.uint32)
    body = f"""and.b32 %r4, %r0, %r5; ts: .branchtargets A, B, C;
        brx.idx %r4, ts; A: mov.u32 %r3, 1; bra M; B: mov.u32 %r3, 2; bra M; C: mov.u32 %r3, 3; M: {STORE}"""
    head = "mov.u32 %r5, {}; "
    with pytest.raises(PtxFault, match="outside the list"):
        run(head.format(3) + body, out, block=64)
    run(head.format(1) + body, out, block=64)
    assert np.array_equal(out, N % 2 + 1)
    run(head.format(2) + body, out, block=64)
    assert np.array_equal(out, (N & 2) + 1)


def test_exit_ends_some_lanes_and_trap_is_a_fault() -> None:
    out = np.zeros(64, np.uint32)
    run(f"setp.gt.u32 %p1, %r0, 40; @%p1 exit; mov.u32 %r3, 5; {STORE}", out, block=64)
    assert np.array_equal(out, np.where(N > 40, 0, 5))
    body = "setp.gt.u32 %p1, %r0, {0}; @%p1 trap;"
    run(body.format(63), out, block=64)
    with pytest.raises(PtxFault, match=r"trap; thread \(41, 0, 0\) of block \(0, 0, 0\), warp 1"):
        run(body.format(40), out, block=64)


def test_a_device_function_is_called_with_parameters_and_twice() -> None:
    head = """.func (.param .b32 out) twice(.param .b32 a, .param .align 8 .b8 s[8]) {
        .reg .b32 %r<5>; .reg .pred %p1; .local .align 4 .b8 mine[4];
        ld.param.u32 %r1, [a]; ld.param.u32 %r2, [s+4]; setp.gt.u32 %p1, %r1, 9; @%p1 bra BIG;
        st.local.u32 [mine], %r1; ld.local.u32 %r3, [mine]; add.u32 %r3, %r3, %r2; st.param.b32 [out], %r3; ret;
        BIG: st.param.b32 [out+0], 1000; ret; }
        .func (.reg .b32 y) plus(.reg .b32 x) { add.u32 y, x, 1; }"""
    call = """{ .param .b32 p0; .param .align 8 .b8 p1[8]; .param .b32 r0; st.param.b32 [p0+0], %r0;
        st.param.v2.b32 [p1+0], {%r1, %r9}; call.uni (r0), twice, (p0, p1); ld.param.b32 %r3, [r0+0]; }"""
    out = np.zeros(64, np.uint32)
    run(
        f"mov.u32 %r9, 50; {call} mov.u32 %r9, %r3; {call} call (%r3), plus, (%r3); {STORE}",
        out,
        block=64,
        head=head,
    )
    assert np.array_equal(out, np.where(N > 9, 1001, 50 + 2 * N + 1))


def test_inline_assembly_has_registers_and_labels_of_its_own() -> None:
    part = "{ .reg .pred p; .reg .b32 t; setp.gt.u32 p, %r0, 3; @p bra L1; mov.b32 t, 7; bra L2; L1: mov.b32 t, 9; L2: add.u32 %r3, %r3, t; }"
    out = np.zeros(64, np.uint32)
    run(f"mov.u32 %r3, 0; {part} {part} {STORE}", out, block=64)
    assert np.array_equal(out, np.where(N > 3, 18, 14))


def test_vectors_are_packed_and_unpacked() -> None:
    out = np.zeros((2, 64), np.uint32)
    run(
        "mov.b32 {%h1, %h2}, %r0; add.u16 %h1, %h1, 1; mov.b32 %r3, {%h2, %h1}; st.global.u32 [%e0], %r3;"
        "mov.b64 %d4, {%r0, %r3}; mov.b64 {_, %r5}, %d4; st.global.u32 [%e0+256], %r5;", out, block=64,
    )  # fmt: skip
    assert np.array_equal(out[0], (N + 1) << 16)
    assert np.array_equal(out[0], out[1])


def test_narrow_results_are_extended_into_wider_registers() -> None:
    out = np.zeros((3, 64), np.uint32)
    run(
        "sub.u32 %r2, %r0, 32; cvt.s8.s32 %r3, %r2; st.global.u32 [%e0], %r3; cvt.u8.u32 %r4, %r2; st.global.u32 [%e0+256], %r4;"
        "shl.b32 %r5, %r2, 7; cvt.s16.s32 %r6, %r5; st.global.u32 [%e0+512], %r6;", out, block=64,
    )  # fmt: skip
    less = N.astype(np.int32) - 32
    assert np.array_equal(out[0].view(np.int32), less)
    assert np.array_equal(out[1], less.astype(np.uint8))
    assert np.array_equal(out[2].view(np.int32), less << 7)


def test_carry_goes_from_one_instruction_to_the_next() -> None:
    out = np.zeros((2, 64), np.uint32)
    run(
        "not.b32 %r2, %r0; mov.u32 %r3, 40; add.cc.u32 %r4, %r2, %r3; addc.u32 %r5, 0, 0;"
        "st.global.u32 [%e0], %r4; st.global.u32 [%e0+256], %r5;", out, block=64,
    )  # fmt: skip
    total = (~N).astype(np.uint64) + 40
    assert np.array_equal(out[0], total.astype(np.uint32))
    assert np.array_equal(out[1], total >> np.uint64(32))


def test_skew_moves_approximate_instructions_and_the_report_names_them() -> None:
    out = np.zeros((3, 32), np.float32)
    body = "cvt.rn.f32.u32 %f1, %r0; add.f32 %f1, %f1, 0f3E99999A; ex2.approx.f32 %f2, %f1; st.global.f32 [%e0], %f2;"
    for i, skew in enumerate((-1, 0, 1)):
        report = run(body, out[i], skew=skew)
    assert report.approximate == ("ex2.approx.f32",)
    assert (out[0] < out[1]).all()
    assert (out[1] < out[2]).all()
    assert run("add.u32 %r3, %r0, 1;", out[0]).approximate == ()


def test_blocks_go_in_batches_and_progress_is_told() -> None:
    out = np.zeros(640, np.uint32)
    seen: list[tuple[int, int]] = []
    report = run(
        f"add.u32 %r3, %r1, 1; {STORE}",
        out,
        grid=10,
        block=64,
        most_lanes=256,
        progress=lambda *a: seen.append(a),
    )
    assert np.array_equal(out, np.arange(640) + 1)
    assert seen == [(4, 10), (8, 10), (10, 10)]
    assert (report.batches, report.lanes) == (3, 640)
    assert report.counts["st.global.u32"] == 640


def test_a_block_that_fills_no_warp() -> None:
    out = np.zeros(40 * 3 + 8, np.uint32)
    run(f"add.u32 %r3, %r1, 1; bar.sync 0; {STORE}", out, grid=3, block=40)
    assert np.array_equal(out[:120], np.arange(120) + 1)
    assert not out[120:].any()


def test_a_loop_without_an_end_is_a_fault() -> None:
    body = "mov.u32 %r4, 0; L: add.u32 %r4, %r4, 1; setp.ne.u32 %p1, %r4, {}; @%p1 bra L;"
    run(body.format(1000), N.copy(), limit=2000)
    with pytest.raises(PtxFault, match=r"loop without an end"):
        run(body.format(0), N.copy(), limit=2000)


def test_a_lane_may_wait_for_another_one_of_its_warp() -> None:
    """Lanes spin until lane 31 has stored: lowest first alone would never let it."""
    flag = np.zeros(1, np.uint32)
    body = """setp.eq.u32 %p1, %r0, 31; @%p1 bra S; L: ld.volatile.global.u32 %r3, [%d0]; setp.eq.u32 %p2, %r3, 0;
        @%p2 bra L; bra E; S: st.volatile.global.u32 [%d0], 1; E:"""
    run(body, flag)
    assert flag[0] == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"block": 1025}, "blocks of"),
        ({"block": (1, 1, 65)}, "blocks of"),
        ({"grid": (1, 65536, 1)}, "grid of"),
        ({"grid": 0}, "grid of"),
        ({"block": 64, "directives": ".maxntid 32"}, "maxntid"),
        ({"block": 64, "directives": ".reqntid 32"}, "reqntid"),
    ],
)
def test_a_launch_that_a_driver_refuses_is_a_fault(options: dict[str, object], said: str) -> None:
    with pytest.raises(PtxFault, match=said):
        run("", N.copy(), **options)  # type: ignore[arg-type]  # each names what it changes


def test_too_few_bytes_of_parameters() -> None:
    made = program("", 2)
    with pytest.raises(PtxFault, match="8 bytes of parameters, it has 16"):
        launch(made, (1, 1, 1), (32, 1, 1), bytes(8), memory())


def test_parameters_of_a_structure_are_read_at_their_offsets() -> None:
    text = (
        HEAD
        + """.entry k(.param .u8 a, .param .align 8 .b8 s[24], .param .u64 p) {
        .reg .b32 %r<9>; .reg .b64 %d<9>;
        ld.param.u64 %d0, [p]; ld.param.s8 %r1, [a]; ld.param.v2.u32 {%r2, %r3}, [s+8]; ld.param.u16 %r4, [s+16];
        mov.u32 %r5, %tid.x; shl.b32 %r5, %r5, 2; cvt.u64.u32 %d2, %r5; mov.b64 %d1, s; add.s64 %d1, %d1, %d2;
        ld.param.u32 %r6, [%d1]; add.s64 %d3, %d0, 16; add.s64 %d3, %d3, %d2;
        st.global.v4.u32 [%d0], {%r1, %r2, %r3, %r4}; st.global.u32 [%d3], %r6; ret; }"""
    )
    out = np.zeros(8, np.uint32)
    numbers = np.array([10, 11, 12, 13, 14, 15], np.uint32)
    params = b"\xfe" + bytes(7) + numbers.tobytes() + np.uint64(out.ctypes.data).tobytes()
    launch(decode(parse(text)), (1, 1, 1), (4, 1, 1), params, memory(out))
    assert out.tolist() == [0xFFFFFFFE, 12, 13, 14, 10, 11, 12, 13]


def test_a_failed_assertion_is_a_fault_with_its_words() -> None:
    head = """.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
        .global .align 1 .b8 words[6] = {120, 32, 60, 32, 57, 0}; .global .align 1 .b8 file[5] = {107, 46, 99, 117, 0};"""
    body = """setp.lt.u32 %p1, %r0, {}; @%p1 bra E; mov.u64 %d4, words; cvta.global.u64 %d4, %d4; mov.u64 %d5, file;
        {{ .param .b64 p0; st.param.b64 [p0], %d4; .param .b64 p1; st.param.b64 [p1], %d5; .param .b32 p2; st.param.b32 [p2], 22;
        .param .b64 p3; st.param.b64 [p3], %d5; .param .b64 p4; st.param.b64 [p4], 1;
        call.uni __assertfail, (p0, p1, p2, p3, p4); }} E:"""
    run(body.format(32), N.copy(), head=head)
    with pytest.raises(PtxFault, match=r"assertion failed: x < 9 \(k\.cu\); thread \(9, 0, 0\)"):
        run(body.format(9), N.copy(), head=head)


def test_clusters_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="clusters"):
        run("", N.copy(), directives=".reqnctapercluster 2")


CUDA = r"""
__constant__ float tab[4] = {1.f, 2.f, 3.f, 4.f};
__device__ __noinline__ float helper(float a, int b) { return a * b + tab[b & 3]; }
extern "C" __global__ void k(const float* x, float* y, int n, int mode) {
  __shared__ float s[32];
  extern __shared__ float dyn[];
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[i];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if ((threadIdx.x & 31) == 0) s[threadIdx.x / 32] = v;
  dyn[threadIdx.x] = threadIdx.x;
  __syncthreads();
  float total = 0;
  for (int i = 0; i < blockDim.x / 32; i++) total += s[i];
  float local[8];
  for (int i = 0; i < 8; i++) local[i] = i * total;
  switch (mode) { case 0: total += 11; break; case 1: total *= 22; break; case 2: total -= 33; break;
                  case 3: total /= 4; break; case 4: total = -total; break; case 5: total += 1000; break; }
  y[threadIdx.x] = helper(total, mode) + dyn[(threadIdx.x + 33) % blockDim.x] + local[threadIdx.x & 7];
}
"""


def nvcc() -> str:
    found = shutil.which("nvcc")
    if found is None:
        package = importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.cu13")
        folders = [] if package is None else list(package.submodule_search_locations or [])
        if not folders:
            pytest.skip("nvcc is not installed")
        found = str(Path(folders[0]) / "bin" / "nvcc")
    return found


@pytest.mark.parametrize("mode", range(6))
def test_what_nvcc_makes_of_a_kernel(mode: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "nvcc_ptx"
    if not (folder / "k.ptx").exists():
        folder.mkdir(exist_ok=True)
        (folder / "k.cu").write_text(CUDA)
        command = [nvcc(), "-ptx", "-arch=sm_80", "-fmad=false", "k.cu", "-o", "k.ptx"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"nvcc does not compile here: {done.stderr.strip()[:200]}")
    x = np.random.default_rng(0).integers(-50, 50, 300).astype(np.float32)
    y = np.zeros(64, np.float32)
    params = (
        np.array([x.ctypes.data, y.ctypes.data], np.uint64).tobytes()
        + np.array([300, mode], np.int32).tobytes()
    )
    made = decode(parse((folder / "k.ptx").read_text()), "k")
    launch(made, (1, 1, 1), (64, 1, 1), params, memory(x, y, fresh=(1,)), dynamic_shared=256)
    # small integers: every order of the sum gives the same
    total = float(x.sum())
    t = np.arange(64)
    local = (t & 7) * total
    total = [total + 11, total * 22, total - 33, total / 4, -total, total + 1000][mode]
    assert np.array_equal(y, total * mode + [1, 2, 3, 4][mode & 3] + (t + 33) % 64 + local)


def test_what_triton_makes_of_a_kernel() -> None:
    """A sum over rows, as Triton 3.9.0 compiled it for sm_80: shuffles, shared memory, a barrier, predicated loads."""
    text = (Path(__file__).parent / "data" / "triton_row_sum.ptx").read_text()
    made = decode(parse(text))
    x = np.random.default_rng(0).integers(-50, 50, (6, 300)).astype(np.float32)
    y = np.zeros(6, np.float32)
    params = (
        np.array([x.ctypes.data, y.ctypes.data], np.uint64).tobytes()
        + np.int32(300).tobytes()
        + bytes(4 + 16)
    )
    report = launch(
        made, (6, 1, 1), (128, 1, 1), params, memory(x, y, fresh=(1,)), dynamic_shared=64
    )
    assert np.array_equal(y, x.sum(1))
    assert any(opcode.startswith("shfl") for opcode in report.counts)


def test_source_of_the_tests_is_one_entry() -> None:
    assert list(parse(source("", 1)).entries) == ["k"]


SPIN = """setp.eq.u32 %p1, %r1, 32; @%p1 st.volatile.global.u32 [%d0], 1; mov.u32 %r6, 0;
    L: {} setp.eq.u32 %p2, %r6, 0; @%p2 bra L;"""


@pytest.mark.parametrize(
    "read",
    [
        "ld.volatile.global.u32 %r6, [%d0];",
        "ld.acquire.gpu.global.u32 %r7, [%d0]; add.u32 %r6, %r7, 0;",
        "atom.global.add.u32 %r6, [%d0], 0;",
    ],
)
def test_a_loop_that_waits_for_another_block_ends(read: str) -> None:
    """Of blocks that are executed together, of one, and of blocks one of which begins after the other."""
    every: tuple[dict[str, Any], ...] = (
        {"grid": 2}, {"grid": 1, "block": 64}, {"grid": 2, "most_lanes": 32},
    )  # fmt: skip
    for options in every:
        run(SPIN.format(read), cell := np.zeros(1, np.uint32), limit=3000, **options)
        assert cell[0] == 1


@pytest.mark.parametrize(
    ("read", "options"),
    [
        # nothing that another block may write decides
        ("ld.volatile.global.u32 %r7, [%d0];", {"grid": 2, "most_lanes": 32}),
        (".shared .b32 s; ld.volatile.shared.u32 %r7, [s]; and.b32 %r6, %r7, 0;", {"grid": 2, "most_lanes": 32}),
        # there is no other block
        ("ld.volatile.global.u32 %r6, [%d0];", {"grid": 1}),
    ],
)  # fmt: skip
def test_a_loop_that_waits_for_nothing_is_a_fault(read: str, options: dict[str, Any]) -> None:
    with pytest.raises(PtxFault, match="loop without an end"):
        run(SPIN.format(read), np.zeros(1, np.uint32), limit=300, **options)
