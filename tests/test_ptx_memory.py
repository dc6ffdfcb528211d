"""Loads, stores, atomics and asynchronous copies against NumPy; addresses that are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_kernel import memory, run

from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx.memory import GlobalMemory, Window

RNG = np.random.default_rng(2)
N = np.arange(64, dtype=np.uint32)


def words(n: int) -> np.ndarray:
    return RNG.integers(0, 1 << 32, n, np.uint64).astype(np.uint32)


@pytest.mark.parametrize(
    ("kind", "dtype", "register"),
    [("u8", np.uint8, "h"), ("s8", np.int8, "r"), ("u16", np.uint16, "r"), ("s16", np.int16, "h"), ("s16", np.int16, "r"),
     ("b32", np.uint32, "r"), ("s32", np.int32, "d"), ("u32", np.uint32, "d"), ("u64", np.uint64, "d")],
)  # fmt: skip
def test_a_load_is_extended_into_its_register(kind: str, dtype: type, register: str) -> None:
    data: np.ndarray = np.frombuffer(words(32 * 2).tobytes(), dtype)[:32].copy()
    size = np.dtype(dtype).itemsize
    wide = {"h": 2, "r": 4, "d": 8}[register]
    out = np.zeros(32, {2: np.uint16, 4: np.uint32, 8: np.uint64}[wide])
    run(
        f"mul.wide.u32 %d4, %r0, {size}; add.s64 %d4, %d4, %d0; mul.wide.u32 %d5, %r0, {wide}; add.s64 %d5, %d5, %d1;"
        f"ld.global.{kind} %{register}7, [%d4]; st.global.b{wide * 8} [%d5], %{register}7;", data, out,
    )  # fmt: skip
    signed = {2: np.int16, 4: np.int32, 8: np.int64}[wide]
    want = data.astype(signed).view(out.dtype) if kind[0] == "s" else data.astype(out.dtype)
    assert np.array_equal(out, want)


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("space", ["global", "shared", "local"])
def test_vectors_in_every_space(k: int, space: str) -> None:
    data, out = words(64 * k), np.zeros(64 * k, np.uint32)
    regs = "{" + ", ".join(f"%r{10 + i}" for i in range(k)) + "}"
    there = {
        "global": ("add.s64 %d6, %d2, %d4;", "%d6"),
        "shared": (
            ".shared .align 16 .b8 s[1024]; mov.u32 %r3, s; cvt.u32.u64 %r2, %d4; add.u32 %r2, %r2, %r3;",
            "%r2",
        ),
        "local": (".local .align 16 .b8 l[16]; mov.u64 %d6, l;", "%d6"),
    }[space]
    run(
        f"mul.wide.u32 %d4, %r0, {4 * k}; {there[0]} add.s64 %d5, %d0, %d4; ld.global.v{k}.u32 {regs}, [%d5];"
        f"st.{space}.v{k}.u32 [{there[1]}], {regs}; mov.u32 %r10, 0; ld.{space}.v{k}.u32 {regs}, [{there[1]}+0];"
        f"add.s64 %d5, %d1, %d4; st.global.v{k}.u32 [%d5], {regs};", data, out, np.zeros_like(data), block=64,
    )  # fmt: skip
    assert np.array_equal(out, data)


def test_generic_addresses_lead_to_the_space_they_came_from() -> None:
    """One load, its lanes in global, shared and local memory; and isspacep of each."""
    data, out, kinds = words(48), np.zeros(48, np.uint32), np.zeros(48, np.uint32)
    body = """.shared .align 4 .b8 s[256]; .local .align 4 .b8 l[4];
        mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.u32 %r2, %r2, %r3; st.shared.u32 [%r2], %r0; add.u32 %r4, %r0, 1000; st.local.u32 [l], %r4;
        cvt.u64.u32 %d4, %r2; cvta.shared.u64 %d4, %d4; cvta.local.u64 %d5, l; cvta.global.u64 %d6, %e0;
        setp.lt.u32 %p1, %r0, 16; setp.lt.u32 %p2, %r0, 32; selp.b64 %d7, %d5, %d6, %p2; selp.b64 %d7, %d4, %d7, %p1;
        ld.u32 %r5, [%d7]; add.u32 %r6, %r5, 1; st.u32 [%d7], %r6; ld.u32 %r5, [%d7]; st.global.u32 [%e1], %r5;
        isspacep.shared %p3, %d7; selp.u32 %r7, 1, 0, %p3; isspacep.local %p3, %d7; @%p3 add.u32 %r7, %r7, 2;
        isspacep.global %p3, %d7; @%p3 add.u32 %r7, %r7, 4; st.global.u32 [%e2], %r7;
        cvta.to.shared.u64 %d8, %d7; cvt.u32.u64 %r8, %d8; @%p1 ld.shared.u32 %r9, [%r8]; @%p1 st.global.u32 [%e1], %r9;"""
    before = data.copy()
    run(body, data, out, kinds, block=48)
    lane = np.arange(48, dtype=np.uint32)
    assert np.array_equal(
        out, np.where(lane < 16, lane, np.where(lane < 32, lane + 1000, before)) + 1
    )
    assert np.array_equal(data, np.where(lane < 32, before, before + 1))
    assert kinds.tolist() == [1] * 16 + [2] * 16 + [4] * 16


def test_module_variables_keep_their_initial_values_and_hold_addresses() -> None:
    head = """.const .align 4 .b32 tab[4] = {10, 20, 30}; .global .f32 x = 1.5; .global .align 8 .u64 at = generic(tab)+8;
        .global .align 4 .b8 raw[8] = {1, 2, 0xff};"""
    out = np.zeros((5, 32), np.uint32)
    run(
        "mov.u64 %d4, tab; ld.const.u32 %r2, [tab+4]; st.global.u32 [%e0], %r2; ld.global.u64 %d5, [at];"
        "ld.u32 %r2, [%d5]; st.global.u32 [%e0+128], %r2; ld.global.u32 %r2, [x]; st.global.u32 [%e0+256], %r2;"
        "ld.global.u32 %r2, [raw]; st.global.u32 [%e0+384], %r2; ld.const.u32 %r2, [%d4+12]; st.global.u32 [%e0+512], %r2;",
        out, head=head,
    )  # fmt: skip
    assert out[:, 0].tolist() == [20, 30, 0x3FC00000, 0x00FF0201, 0]
    assert (out == out[:, :1]).all()


def test_dynamic_shared_memory_lies_behind_the_static() -> None:
    head = ".extern .shared .align 16 .b8 dyn[];"
    out = np.zeros(64, np.uint32)
    body = """.shared .align 4 .b8 s[20]; setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [s+16], 7; mov.u32 %r2, dyn;
        shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3; st.shared.u32 [%r4], %r2; ld.shared.u32 %r5, [%r4]; st.global.u32 [%e0], %r5;"""
    run(body, out, head=head, block=64, dynamic_shared=256)
    assert (out == 32).all()
    with pytest.raises(
        PtxFault, match=r"out of bounds of shared memory, 284 bytes.*thread \(63, 0, 0\)"
    ):
        run(body, out, head=head, block=64, dynamic_shared=252)


def test_shared_memory_belongs_to_its_block() -> None:
    out = np.zeros(256, np.uint32)
    body = """.shared .align 4 .b8 s[256]; mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3; st.shared.u32 [%r4], %r1;
        bar.sync 0; xor.b32 %r5, %r3, 128; add.u32 %r5, %r5, %r2; ld.shared.u32 %r6, [%r5]; st.global.u32 [%e0], %r6;"""
    run(body, out, block=64, grid=4)
    i = np.arange(256)
    assert np.array_equal(out, i // 64 * 64 + (i % 64 ^ 32))


# addresses that are wrong


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("st.global.u32 [%e0+4], %r0;", r"0 bytes past the end of a0 \(128 bytes\); thread \(31, 0, 0\)"),
        ("st.global.u32 [%e0-4], %r0;", r"4 bytes before the start of a0.*thread \(0, 0, 0\)"),
        ("ld.global.u32 %r2, [%e0+4];", "past the end of a0"),
        ("ld.global.v2.u32 {%r2, %r3}, [%d0+124];", "misaligned for 8 bytes"),
        ("ld.global.u32 %r2, [%e0+2];", "misaligned for 4 bytes"),
        ("ld.global.u32 %r2, [8];", "out of bounds"),
        (".shared .b32 s; ld.shared.u32 %r2, [s+4];", "out of bounds of shared memory, 4 bytes"),
        (".shared .b32 s; st.shared.u16 [s+1], %h1;", "misaligned for 2 bytes"),
        (".local .b32 l; st.local.u32 [l+4], %r0;", "out of bounds of local memory"),
        ("red.global.add.u32 [%e0+4], 1;", "past the end of a0"),
        ("atom.global.add.u32 %r3, [%e0+2], 1;", "misaligned"),
        (".shared .align 16 .b8 s[16]; cp.async.cg.shared.global [s], [%d0+120], 16;", "misaligned"),
        (".shared .align 16 .b8 s[16]; cp.async.cg.shared.global [s], [%d0+128], 16;", "past the end of a0"),
        (".shared .align 16 .b8 s[16]; cp.async.ca.shared.global [s+16], [%d0], 4;", "out of bounds of shared"),
        (".shared .align 16 .b8 s[256]; mov.u32 %r2, s; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r3,%r4,%r5,%r6}, [%r2+8];", "misaligned"),
        (".shared .align 16 .b8 s[64]; mov.u32 %r2, s; mad.lo.u32 %r2, %r0, 16, %r2; ldmatrix.sync.aligned.m8n8.x1.shared.b16 %r3, [%r2];",
         r"out of bounds of shared.*thread \(4, 0, 0\)"),
    ],
)  # fmt: skip
def test_a_wrong_address_is_a_fault_that_names_where(body: str, said: str) -> None:
    with pytest.raises(PtxFault, match=said) as caught:
        run(body, np.zeros(32, np.uint32))
    assert "line " in str(caught.value)


def test_a_fault_names_places_that_are_the_same_in_every_run() -> None:
    """The offset in a buffer, never an address; of what lies nowhere, that."""
    for body, said in (
        ("ld.global.u32 %r2, [%d0+2];", "misaligned for 4 bytes: 2 bytes from the start of a0 (256 bytes)"),
        ("ld.global.u32 %r2, [%d0+256];", "out of bounds: 0 bytes past the end of a0 (256 bytes)"),
        ("ld.global.u32 %r2, [8];", "4 bytes are out of bounds: far from every buffer"),
    ):  # fmt: skip
        with pytest.raises(PtxFault) as caught:
            run(body, np.zeros(64, np.uint32))
        assert said in str(caught.value)
        assert "0x" not in str(caught.value)


def test_a_fault_names_the_line_of_the_source() -> None:
    """That of .loc, and of what was inlined the line that calls it; none where .loc says 0."""
    body = """.loc 1 14 3
        mov.u32 %r2, 1;
        .loc 2 90 5, function_name $L, inlined_at 1 15 7
        {}
        .loc 1 0 0
        {}"""
    head = '.file 1 "/home/me/kernel.py"\n.file 2 "/usr/lib/standard.py"'
    wrong = "ld.global.u32 %r2, [%d0+2];"
    for texts, said in (
        ((wrong, ""), r"line \d+, kernel\.py:15, `ld"),
        (("", wrong), r"line \d+, `ld"),
    ):
        with pytest.raises(PtxFault, match=said):
            run(body.format(*texts), np.zeros(64, np.uint32), head=head)


def test_masked_lanes_may_have_any_address() -> None:
    data = words(20)
    out = np.zeros(32, np.uint32)
    body = "setp.lt.u32 %p1, %r0, {}; mov.u32 %r3, 9; @%p1 ld.global.u32 %r3, [%e0]; st.global.u32 [%e1], %r3;"
    run(body.format(20), data, out)
    assert np.array_equal(out, np.r_[data, [9] * 12])
    with pytest.raises(PtxFault, match=r"past the end of a0.*thread \(20, 0, 0\)"):
        run(body.format(21), data, out)


def test_an_access_across_two_adjacent_regions_is_a_fault() -> None:
    raw = np.zeros(64, np.uint32)
    made = GlobalMemory()
    view = raw.view(np.uint8)
    made.add(raw.ctypes.data, view[:132], "left")
    made.add(raw.ctypes.data + 132, view[132:], "right")
    with pytest.raises(ValueError, match="overlaps"):
        made.add(raw.ctypes.data + 8, view[8:9], "both")
    assert "4 bytes past the end of right" in Window(made.regions, 1).nearest(raw.ctypes.data + 260)


def test_lanes_may_be_in_several_regions_at_once() -> None:
    left, right, out = words(32), words(32), np.zeros(32, np.uint32)
    body = "setp.lt.u32 %p1, %r0, 10; selp.b64 %d7, %e0, %e1, %p1; ld.global.u32 %r3, [%d7]; st.global.u32 [%e2], %r3;"
    run(body, left, right, out)
    assert np.array_equal(out, np.where(np.arange(32) < 10, left, right))


def test_memory_at_an_odd_address() -> None:
    raw = np.zeros(33, np.uint8)
    made = raw[1:]
    run(
        "cvt.u16.u32 %h1, %r0; cvt.u64.u32 %d4, %r0; add.s64 %d4, %d4, %d0; st.global.u8 [%d4], %h1;",
        made,
    )
    assert np.array_equal(raw, np.r_[0, np.arange(32)])


# atomics


def in_turn(
    kind: str, before: np.ndarray, places: np.ndarray, values: np.ndarray, f: object
) -> tuple[np.ndarray, list[int]]:
    """The plain model: one lane after the other, with Python's numbers."""
    cells, old = [int(x) for x in before], []
    for place, value in zip(places.tolist(), values.tolist(), strict=True):
        old.append(cells[place])
        cells[place] = f(cells[place], value)  # type: ignore[operator]  # a function of two integers
    return np.array([c % 2**32 for c in cells], np.uint32), [o % 2**32 for o in old]


INTEGERS = {
    "add.u32": lambda a, b: (a + b) % 2**32,
    "min.u32": min,
    "max.u32": max,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "xor.b32": lambda a, b: a ^ b,
    "exch.b32": lambda a, b: b,
    "inc.u32": lambda a, b: 0 if a >= b else a + 1,
    "dec.u32": lambda a, b: b if a == 0 or a > b else a - 1,
    "min.s32": lambda a, b: min(a, b, key=lambda x: x - (x >> 31 << 32)),
    "max.s32": lambda a, b: max(a, b, key=lambda x: x - (x >> 31 << 32)),
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("operation", INTEGERS)
def test_atomics_of_integers_take_turns(operation: str, space: str) -> None:
    cells, values, old = words(4), words(64), np.zeros(64, np.uint32)
    want, found = in_turn(operation, cells, np.arange(64) % 4, values, INTEGERS[operation])
    head = ".shared .align 4 .b8 s[16];" if space == "shared" else ""
    base = (
        "mov.u32 %r5, s; add.u32 %r5, %r5, %r4;"
        if space == "shared"
        else "cvt.u64.u32 %d5, %r4; add.s64 %d5, %d5, %d0;"
    )
    at = "%r5" if space == "shared" else "%d5"
    fill = "" if space == "global" else (
        "setp.lt.u32 %p1, %r0, 4; @%p1 ld.global.u32 %r6, [%e0]; @%p1 st.shared.u32 [%r5], %r6; bar.sync 0;")  # fmt: skip
    drain = (
        ""
        if space == "global"
        else "bar.sync 0; @%p1 ld.shared.u32 %r6, [%r5]; @%p1 st.global.u32 [%e0], %r6;"
    )
    run(
        f"and.b32 %r4, %r0, 3; shl.b32 %r4, %r4, 2; {base} {fill} ld.global.u32 %r2, [%e1];"
        f"atom.{space}.{operation} %r3, [{at}], %r2; st.global.u32 [%e2], %r3; {drain}",
        cells, values, old, block=64, head=head,
    )  # fmt: skip
    assert np.array_equal(cells, want)
    assert old.tolist() == found


def test_compare_and_swap_lets_one_lane_win() -> None:
    cell, out = np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    run(
        "add.u32 %r2, %r0, 5; atom.acq_rel.gpu.global.cas.b32 %r3, [%d0], 0, %r2; st.global.u32 [%e1], %r3;",
        cell,
        out,
        block=64,
    )
    assert cell[0] == 5
    assert out.tolist() == [0] + [5] * 63


def test_sums_of_floats_round_once_a_lane_and_global_ones_flush() -> None:
    values = RNG.standard_normal(64).astype(np.float32)
    cell = np.zeros(1, np.float32)
    report = run("ld.global.f32 %f1, [%e1]; red.global.add.f32 [%d0], %f1;", cell, values, block=64)
    want = np.float32(0)
    for v in values:
        want = np.float32(want + v)
    assert cell[0] == want
    assert report.atomics == ("red.global.add.f32",)
    tiny = np.full(64, 1e-40, np.float32)
    run(
        "ld.global.f32 %f1, [%e1]; red.global.add.f32 [%d0], %f1;",
        cell := np.zeros(1, np.float32),
        tiny,
        block=64,
    )
    assert cell[0] == 0
    run(
        ".shared .b32 s; st.shared.u32 [s], 0; bar.sync 0; ld.global.f32 %f1, [%e1]; red.shared.add.f32 [s], %f1; bar.sync 0;"
        "ld.shared.u32 %r2, [s]; st.global.u32 [%d0], %r2;", cell, tiny, block=64,
    )  # fmt: skip
    assert cell[0] == np.float32(64 * tiny[:1].view(np.uint32)[0] * 2.0**-149)


def test_atomic_of_float64_and_of_pairs_of_halves() -> None:
    cell = np.zeros(1, np.float64)
    run("cvt.rn.f64.u32 %fd1, %r0; red.global.add.f64 [%d0], %fd1;", cell)
    assert cell[0] == 31 * 16
    pair = np.zeros(2, np.float16)
    run("mov.b32 %r2, 0x3c004000; red.global.add.noftz.f16x2 [%d0], %r2;", pair)
    assert pair.tolist() == [64, 32]


# asynchronous copies

COPY = """.shared .align 16 .b8 s[1024]; mov.u32 %r2, s; mul.lo.u32 %r3, %r0, 16; add.u32 %r2, %r2, %r3; cvt.u64.u32 %d4, %r3;
    add.s64 %d5, %d0, %d4; add.s64 %d6, %d1, %d4; {} ld.shared.v4.u32 {{%r10,%r11,%r12,%r13}}, [%r2];
    st.global.v4.u32 [%d6], {{%r10,%r11,%r12,%r13}};"""


@pytest.mark.parametrize("size", ["", ", 16", ", %r0", ", 5", ", 0", ", %p1"])
def test_cp_async_copies_and_fills_with_zeros(size: str) -> None:
    data, out = words(64), np.zeros(64, np.uint32)
    block = 16
    wait = f"setp.lt.u32 %p1, %r0, 3; cp.async.cg.shared.global [%r2], [%d5], 16{size}; cp.async.wait_all;"
    run(COPY.format(wait), data, out, block=block)
    keep = {
        "": [16] * 16,
        ", 16": [16] * 16,
        ", %r0": list(range(16)),
        ", 5": [5] * 16,
        ", 0": [0] * 16,
        ", %p1": [0] * 3 + [16] * 13,
    }[size]
    want = data.view(np.uint8).reshape(16, 16) * (np.arange(16) < np.array(keep)[:, None])
    assert np.array_equal(out.view(np.uint8).reshape(16, 16), want)


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        ("cp.async.wait_all;", ""),
        ("cp.async.commit_group; cp.async.wait_group 0;", ""),
        ("cp.async.commit_group; cp.async.commit_group; cp.async.wait_group 1;", ""),
        ("cp.async.commit_group;", "still writing"),
        ("cp.async.wait_group 0;", "still writing"),
        ("cp.async.commit_group; cp.async.wait_group 1;", "still writing"),
        ("", "still writing"),
    ],
)
def test_copied_bytes_are_read_after_the_wait_for_their_group(wait: str, said: str) -> None:
    data, out = words(64), np.zeros(64, np.uint32)
    body = COPY.format(f"cp.async.ca.shared.global [%r2], [%d5], 16; {wait}")
    if said:
        with pytest.raises(PtxFault, match=said):
            run(body, data, out, block=16)
        return
    run(body, data, out, block=16)
    assert np.array_equal(out, data)


def test_hints_change_nothing() -> None:
    data, out = words(32), np.zeros(32, np.uint32)
    run(
        "createpolicy.fractional.L2::evict_last.b64 %d4, 1.0; prefetch.global.L2 [%e0]; "
        "ld.global.nc.L1::no_allocate.L2::cache_hint.b32 %r2, [%e0], %d4; st.relaxed.gpu.global.u32 [%e1], %r2; fence.acq_rel.gpu;",
        data, out,
    )  # fmt: skip
    assert np.array_equal(out, data)


def test_memory_of_the_tests_is_named() -> None:
    assert [r.name for r in sorted(memory(N, N.copy()).regions, key=lambda r: r.name)] == [
        "a0",
        "a1",
    ]
