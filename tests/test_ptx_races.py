"""Races, uninitialised reads, barriers that not all come to: each fault beside its legal twin."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from ptx_kernel import memory, program, run

from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx.machine import launch

SHARED = """.shared .align 16 .b8 s[4096]; mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3;
    xor.b32 %r5, %r3, 128; add.u32 %r5, %r5, %r2; setp.lt.u32 %p1, %r0, 32;"""
OUT = "st.global.u32 [%e0], %r6;"


def out(n: int = 64) -> np.ndarray:
    return np.zeros(n, np.uint32)


# body, what makes it legal in place of {}, what makes it wrong, what is then said
RACES = {
    "read after write": ("st.shared.u32 [%r4], %r0; {} ld.shared.u32 %r6, [%r5];", "bar.sync 0;", "", "read is not ordered after `st.shared"),
    "the barrier is in front of the write": (
        "st.shared.u32 [%r4], 1; bar.sync 0; st.shared.u32 [%r4], %r0; {} ld.shared.u32 %r6, [%r5];", "bar.sync 0;", "", "read is not"),
    "write after read": (
        "st.shared.u32 [%r4], %r0; bar.sync 0; ld.shared.u32 %r6, [%r5]; {} st.shared.u32 [%r4], 99;", "bar.sync 0;", "", "write is not ordered after `ld.shared"),
    "write after write": ("st.shared.u32 [%r4], 7; {} st.shared.u32 [%r5], 8; mov.u32 %r6, 0;", "bar.sync 0;", "", "write is not ordered after `st.shared"),
    "a barrier of one warp is not enough": (
        "st.shared.u32 [%r4], %r0; {} ld.shared.u32 %r6, [%r5];", "barrier.sync 0, 64;", "bar.warp.sync -1;", "read is not"),
    "bytes inside a wider access": (
        "st.shared.u32 [%r4], %r0; {} and.b32 %r7, %r5, -8; ld.shared.v2.u32 {%r6, %r8}, [%r7];", "bar.sync 0;", "", "read is not"),
    "an atomic and a read": (
        "st.shared.u32 [%r4], 0; bar.sync 0; atom.shared.add.u32 %r7, [s], 1; {} ld.shared.u32 %r6, [s];", "bar.sync 0;", "", "read is not ordered after `atom"),
    "in a loop, the next round's write": (
        "mov.u32 %r8, 0; L: add.u32 %r9, %r8, %r0; st.shared.u32 [%r4], %r9; bar.sync 0; ld.shared.u32 %r6, [%r5]; {}add.u32 %r8, %r8, 1; setp.lt.u32 %p2, %r8, 3; @%p2 bra L;", "bar.sync 0;", "", "write is not ordered after `ld"),
    "an asynchronous copy": (
        "and.b32 %r7, %r0, 31; setp.lt.u32 %p3, %r7, 1; @%p3 cp.async.ca.shared.global [%r4], [%e0], 4; cp.async.wait_all; {}@%p3 ld.shared.u32 %r6, [%r5];", "bar.sync 0;", "", "read is not ordered after `cp.async.wait_all"),
    "an asynchronous copy over what others read": (
        "st.shared.u32 [%r4], 1; bar.sync 0; ld.shared.u32 %r6, [%r5]; {} cp.async.ca.shared.global [%r4], [%e0], 4; cp.async.wait_all;",
        "bar.sync 0;", "", "write is not ordered after `ld"),
    "ldmatrix": (
        "st.shared.u32 [%r4], %r0; {} and.b32 %r7, %r0, 7; mad.lo.u32 %r7, %r7, 16, %r2; ldmatrix.sync.aligned.m8n8.x1.shared.b16 %r6, [%r7];", "bar.sync 0;", "", "read is not"),
    "generic addresses": (
        "cvt.u64.u32 %d4, %r4; cvta.shared.u64 %d4, %d4; st.u32 [%d4], %r0; {} ld.shared.u32 %r6, [%r5];", "bar.sync 0;", "", "read is not"),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_a_race_in_shared_memory_is_a_fault_with_both_instructions(name: str) -> None:
    body, legal, wrong, said = RACES[name]
    body = f"{SHARED} mov.u32 %r6, 0; {body} {OUT}"
    run(body.replace("{}", legal), out(), block=64)
    with pytest.raises(PtxFault, match="race in shared memory") as caught:
        run(body.replace("{}", wrong), out(), block=64)
    assert said in str(caught.value)
    assert "warp" in str(caught.value)
    assert "block (0, 0, 0)" in str(caught.value)


# %r7 and %r5: the address of the next lane's and of the same lane's 64 lanes on; {} as above
LANES = {
    "read after write": ("st.shared.u32 [%r4], %r0; {} ld.shared.u32 %r6, [%r7];", "bar.warp.sync -1;", "", "read is not ordered after `st.shared"),
    "a barrier of the block": ("st.shared.u32 [%r4], %r0; {} ld.shared.u32 %r6, [%r7];", "bar.sync 0;", "", "read is not"),
    "a barrier of one warp's threads": (
        "setp.lt.u32 %p2, %r0, 32; st.shared.u32 [%r4], %r0; {} ld.shared.u32 %r6, [%r7];", "@%p2 bar.sync 1, 32; @!%p2 bar.sync 2, 32;", "@%p2 bar.sync 1, 32;", "read is not"),
    "the own value, and not the next lane's": ("st.shared.u32 [%r4], %r0; ld.shared.u32 %r6, [{}];", "%r4", "%r7", "read is not"),
    "a shuffle orders no memory": (
        "st.shared.u32 [%r4], %r0; shfl.sync.idx.b32 %r8, %r0, 0, 31, -1; {} ld.shared.u32 %r6, [%r7];", "bar.warp.sync -1;", "", "read is not"),
    "write after read": (
        "st.shared.u32 [%r4], %r0; bar.sync 0; ld.shared.u32 %r6, [%r7]; {} st.shared.u32 [%r4], 99;", "bar.warp.sync -1;", "", "write is not ordered after `ld.shared"),
    "write after a read of many": (
        "st.shared.u32 [%r4], %r0; bar.sync 0; and.b32 %r8, %r4, -128; ld.shared.u32 %r6, [%r8]; {} and.b32 %r9, %r0, 31; setp.eq.u32 %p2, %r9, 31; @%p2 st.shared.u32 [%r8], 99;",
        "bar.warp.sync -1;", "", "write is not ordered after `ld.shared"),
    "write after write": ("st.shared.u32 [%r4], 7; {} st.shared.u32 [%r7], 8; mov.u32 %r6, 0;", "bar.warp.sync -1;", "", "write is not ordered after `st.shared"),
    "one half of the warp": (
        "and.b32 %r9, %r0, 31; setp.lt.u32 %p2, %r9, 16; st.shared.u32 [%r4], %r0; @%p2 bar.warp.sync 0xffff; @!%p2 bar.warp.sync {}; xor.b32 %r7, %r4, 4; ld.shared.u32 %r6, [%r7];",
        "0xffff0000", "0xffff0000; st.shared.u32 [%r4], 5", "read is not ordered after `st.shared"),
    "halves that met alone": (
        "and.b32 %r9, %r0, 31; setp.lt.u32 %p2, %r9, 16; st.shared.u32 [%r4], %r0; @%p2 bar.warp.sync 0xffff; @!%p2 bar.warp.sync 0xffff0000; xor.b32 %r7, %r4, {}; ld.shared.u32 %r6, [%r7];",
        "60", "64", "read is not ordered after `st.shared"),
    "halves that met alone, by one instruction": (
        "and.b32 %r9, %r0, 31; setp.lt.u32 %p2, %r9, 16; selp.b32 %r8, 0xffff, 0xffff0000, %p2; st.shared.u32 [%r4], %r0; bar.warp.sync %r8; xor.b32 %r7, %r4, {}; ld.shared.u32 %r6, [%r7];",
        "60", "64", "read is not ordered after `st.shared"),
    "lanes that a third one met": (
        "and.b32 %r9, %r0, 31; st.shared.u32 [%r4], %r0; setp.lt.u32 %p2, %r9, 16; {} sub.u32 %r8, %r9, 8; setp.lt.u32 %p2, %r8, 16; @%p2 bar.warp.sync 0xffff00; setp.eq.u32 %p2, %r9, 23; @%p2 ld.shared.u32 %r6, [%r4-92];",
        "@%p2 bar.warp.sync 0xffff;", "", "read is not ordered after `st.shared"),
    "write after a read of half the warp": (
        "st.shared.u32 [%r4], %r0; bar.sync 0; and.b32 %r9, %r0, 31; and.b32 %r8, %r4, -128; setp.lt.u32 %p2, %r9, 16; @%p2 ld.shared.u32 %r6, [%r8]; {} setp.eq.u32 %p2, %r9, 15; @%p2 st.shared.u32 [%r8], 99;",
        "@%p2 bar.warp.sync 0xffff;", "", "write is not ordered after `@%p2 ld.shared"),
    "all, after halves that met alone": (
        "and.b32 %r9, %r0, 31; setp.lt.u32 %p2, %r9, 16; st.shared.u32 [%r4], %r0; @%p2 bar.warp.sync 0xffff; @!%p2 bar.warp.sync 0xffff0000; {} xor.b32 %r7, %r4, 64; ld.shared.u32 %r6, [%r7];",
        "bar.warp.sync -1;", "", "read is not ordered after `st.shared"),
    "in a loop, the next round's write": (
        "mov.u32 %r8, 0; L: add.u32 %r9, %r8, %r0; st.shared.u32 [%r4], %r9; bar.warp.sync -1; ld.shared.u32 %r6, [%r7]; {}add.u32 %r8, %r8, 1; setp.lt.u32 %p2, %r8, 3; @%p2 bra L;", "bar.warp.sync -1;", "", "write is not ordered after `ld"),
    "two loads and two stores": (
        "st.shared.u32 [%r4], %r0; st.shared.u32 [%r4+512], %r0; {} ld.shared.u32 %r6, [%r7]; ld.shared.u32 %r8, [%r7+512]; add.u32 %r6, %r6, %r8;", "bar.warp.sync -1;", "", "read is not"),
    "an asynchronous copy": (
        "cp.async.ca.shared.global [%r4], [%e0], 4; cp.async.wait_all; {} ld.shared.u32 %r6, [%r7];", "bar.warp.sync -1;", "", "read is not ordered after `cp.async.wait_all"),
}  # fmt: skip


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("block", [32, 64])
def test_a_race_between_lanes_of_one_warp_is_a_fault(name: str, block: int) -> None:
    body, legal, wrong, said = LANES[name]
    if block == 32 and wrong.startswith("@%p2 bar.sync 1"):
        wrong = ""
    following = "add.u32 %r7, %r0, 1; and.b32 %r7, %r7, 31; and.b32 %r8, %r0, -32; or.b32 %r7, %r7, %r8; shl.b32 %r7, %r7, 2; add.u32 %r7, %r7, %r2;"
    body = f"{SHARED} {following} mov.u32 %r6, 0; {body} {OUT}"
    run(body.replace("{}", legal), out(block), block=block)
    with pytest.raises(PtxFault, match="race in shared memory") as caught:
        run(body.replace("{}", wrong), out(block), block=block)
    assert said in str(caught.value)
    assert "of another lane of its warp: bar.warp.sync, __syncwarp() in CUDA, orders them" in str(caught.value)  # fmt: skip


def test_lanes_that_write_what_is_there_do_not_race() -> None:
    body = f"{SHARED} st.shared.u32 [s], 5; st.shared.u32 [s], 5; bar.sync 0; ld.shared.u32 %r6, [s]; {OUT}"
    run(body, got := out(32))
    assert (got == 5).all()


def test_what_one_lane_does_needs_no_barrier() -> None:
    run(f"{SHARED} st.shared.u32 [%r4], %r0; ld.shared.u32 %r6, [%r4]; {OUT}", out(), block=64)


def test_equal_values_written_by_several_threads_are_no_race() -> None:
    run(
        f"{SHARED} st.shared.u32 [s], 5; bar.sync 0; ld.shared.u32 %r6, [s]; {OUT}",
        got := out(),
        block=64,
    )
    assert (got == 5).all()


@pytest.mark.parametrize(("skew", "winner"), [(-1, 0), (0, 63), (1, 31)])
def test_of_lanes_that_store_at_once_any_may_win(skew: int, winner: int) -> None:
    body = f"{SHARED} st.shared.u32 [s], %r0; bar.sync 0; ld.shared.u32 %r6, [s]; {OUT}"
    assert run(body, got := out(), block=64, skew=skew).contended
    assert (got == winner).all()


def test_of_lanes_that_store_at_once_one_without_a_value_may_win() -> None:
    body = f"{SHARED} setp.{{}}.u32 %p2, %r0, 3; @%p2 mov.u32 %r7, 5; st.shared.u32 [s], %r7; bar.sync 0; ld.shared.u32 %r6, [s]; {OUT}"
    run(body.format("lt").replace("%r0, 3", "%r0, 64"), got := out(), block=64)
    assert (got == 5).all()
    with pytest.raises(PtxFault, match="stores a value that was never defined"):
        run(body.format("ge"), out(), block=64)


# an atomic of each lane on its own place or on one for all, then a read of the next lane's
AFTER_ATOMICS = {
    "another lane's": ("atom.shared.add.u32 %r8, [%r4], 1; {} ld.shared.u32 %r6, [%r7];", "bar.warp.sync -1;", ""),
    "a sum of all": ("red.shared.add.u32 [%r2], 1; {} ld.shared.u32 %r6, [%r2];", "bar.warp.sync -1;", ""),
    "a volatile store of another lane": ("st.volatile.shared.u32 [%r4], 1; {} ld.shared.u32 %r6, [%r7];", "bar.warp.sync -1;", ""),
    "a write over it": ("atom.shared.add.u32 %r8, [%r4], 1; {} st.shared.u32 [%r7], 3; mov.u32 %r6, 0;", "bar.warp.sync -1;", ""),
    "what the own lane changed": ("atom.shared.add.u32 %r8, [{}], 1; ld.shared.u32 %r6, [%r4];", "%r4", "%r7"),
}  # fmt: skip


@pytest.mark.parametrize("name", AFTER_ATOMICS)
def test_an_atomic_and_a_plain_access_of_another_lane_of_the_warp_race(name: str) -> None:
    body, legal, wrong = AFTER_ATOMICS[name]
    body = f"""{SHARED} st.shared.u32 [%r4], 0; bar.sync 0; add.u32 %r7, %r0, 1; and.b32 %r7, %r7, 31;
        shl.b32 %r7, %r7, 2; add.u32 %r7, %r7, %r2; {body} {OUT}"""
    run(body.replace("{}", legal), out(32), block=32)
    with pytest.raises(PtxFault, match="of another lane of its warp"):
        run(body.replace("{}", wrong), out(32), block=32)


COUNTED = """{} add.u32 %r8, %r7, 1; setp.ne.u32 %p2, %r8, {}; @%p2 bra E; st.{}.u32 {}, 0; E: """


@pytest.mark.parametrize("most", [64, 1 << 15])
def test_who_counted_last_may_set_the_counter_back(most: int) -> None:
    """CUDA C++ Programming Guide, __threadfence(): the last block does, by a plain store."""
    last = COUNTED.format("setp.ne.u32 %p3, %r0, 0; @%p3 bra E; atom.global.add.u32 %r7, [%d0], 1;", 4, "global", "[%d0]")  # fmt: skip
    run(last, count := out(1), block=64, grid=4, most_lanes=most)
    assert count[0] == 0
    with pytest.raises(PtxFault, match="race in global memory"):
        run(last.replace("%r8, 4", "%r8, 3"), out(1), block=64, grid=4, most_lanes=64)


def test_the_warp_that_counted_last_may_set_the_counter_back() -> None:
    start = f"{SHARED} mov.u32 %r6, 0; setp.eq.u32 %p3, %r0, 0; @%p3 st.shared.u32 [s], 0; bar.sync 0; and.b32 %r9, %r0, 31; setp.ne.u32 %p3, %r9, 0; @%p3 bra E;"
    last = COUNTED.format(f"{start} atom.shared.add.u32 %r7, [s], 1;", 2, "shared", "[s]")
    run(last + OUT, out(), block=64)
    unseen = last.replace("atom.shared.add.u32 %r7, [s]", "red.shared.add.u32 [s]")
    unseen = unseen.replace("add.u32 %r8, %r7, 1;", "shr.u32 %r8, %r0, 5; add.u32 %r8, %r8, 1;")
    with pytest.raises(PtxFault, match="race in shared memory"):
        run(unseen + OUT, out(), block=64)


@pytest.mark.parametrize("most", [32, 1 << 15])
def test_atomics_of_a_blocks_scope_order_nothing_between_blocks(most: int) -> None:
    """PTX ISA, section 8: operations whose scopes do not hold each other are not morally strong."""
    for scope in ("gpu", "cta"):
        own = f"atom.relaxed.{scope}.global.add.u32 %r7, [{{}}], 1;"
        run(own.format("%e0"), out(), grid=2, most_lanes=most)
        if scope == "gpu":
            run(own.format("%d0"), out(), grid=2, most_lanes=32)
            continue
        with pytest.raises(PtxFault, match="race in global memory"):
            run(own.format("%d0"), out(), grid=2, most_lanes=32)
    flag = "mov.u32 %r9, %ctaid.x; setp.eq.u32 %p1, %r9, 0; @%p1 st.global.u32 [%e0], 7; @%p1 bra S; L: ld.acquire.{}.global.u32 %r7, [%d1]; setp.eq.u32 %p2, %r7, 0; @%p2 bra L; ld.global.u32 %r6, [%d0]; st.global.u32 [%e0], %r6; bra E; S: st.release.{}.global.u32 [%d1], 1; E:"
    run(flag.format("gpu", "gpu"), out(), out(1), grid=2, block=1, most_lanes=most)
    for scopes in (("cta", "gpu"), ("gpu", "cta")):
        with pytest.raises(PtxFault, match="race in global memory"):
            run(flag.format(*scopes), out(), out(1), grid=2, block=1, most_lanes=32)


def test_named_barriers_order_those_that_meet() -> None:
    """Warp 0 makes, warp 1 takes; warp 2 was not there."""
    body = f"""{SHARED} mov.u32 %r6, 0; setp.ge.u32 %p2, %r0, 64; setp.ge.u32 %p3, %r0, 32; @%p2 bra THIRD; @%p3 bra TAKE;
        st.shared.u32 [%r4], %r0; bar.arrive 1, 64; bra E; TAKE: bar.sync 1, 64; ld.shared.u32 %r6, [%r5]; bra E;
        THIRD: {{}} E: {OUT}"""
    run(body.replace("{}", ""), got := out(96), block=96)
    assert np.array_equal(got, np.r_[[0] * 32, np.arange(32), [0] * 32])
    with pytest.raises(PtxFault, match="race in shared memory"):
        run(body.replace("{}", "ld.shared.u32 %r6, [s];"), out(96), block=96)


def test_what_follows_an_arrival_is_not_ordered_by_its_barrier() -> None:
    body = f"""{SHARED} mov.u32 %r6, 0; setp.ge.u32 %p3, %r0, 32; @%p3 bra TAKE;
        {{}} bra E; TAKE: bar.sync 1, 64; ld.shared.u32 %r6, [%r5]; E: {OUT}"""
    make, arrive = "st.shared.u32 [%r4], %r0;", "bar.arrive 1, 64;"
    run(body.replace("{}", make + arrive), got := out(), block=64)
    assert np.array_equal(got, np.r_[[0] * 32, np.arange(32)])
    with pytest.raises(PtxFault, match="race in shared memory"):
        run(body.replace("{}", arrive + make), out(), block=64)


# the second warp waits for a flag of the first, with loads and stores of these kinds
FLAGS = {
    "volatile": ("membar.cta; st.volatile.{space}.u32 {flag}, 1;", "ld.volatile.{space}.u32 %r8, {flag};"),
    "relaxed": ("fence.acq_rel.cta; st.relaxed.cta.{space}.u32 {flag}, 1;", "ld.relaxed.cta.{space}.u32 %r8, {flag};"),
    "release": ("st.release.cta.{space}.u32 {flag}, 1;", "ld.acquire.cta.{space}.u32 %r8, {flag};"),
    "atomic": ("membar.cta; atom.{space}.exch.b32 %r9, {flag}, 1;", "atom.{space}.or.b32 %r8, {flag}, 0;"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FLAGS)
@pytest.mark.parametrize("space", ["shared", "global"])
def test_warps_of_one_block_may_wait_for_each_other_through_memory(kind: str, space: str) -> None:
    flag = "[s+2048]" if space == "shared" else "[%d1]"
    set_it, look = (text.format(space=space, flag=flag) for text in FLAGS[kind])
    body = f"""{SHARED} mov.u32 %r6, 0; st.shared.u32 [s+2048], 0; bar.sync 0; @%p1 bra MAKE;
        WAIT: {look} setp.eq.u32 %p2, %r8, 0; @%p2 bra WAIT; ld.shared.u32 %r6, [%r5]; bra E;
        MAKE: st.shared.u32 [%r4], %r0; {{}} E: {OUT}"""
    run(body.replace("{}", set_it), got := out(), out(1), block=64)
    assert np.array_equal(got, np.r_[[0] * 32, np.arange(32)])
    unfenced = set_it.replace("membar.cta;", "").replace("fence.acq_rel.cta;", "").replace(".release", ".relaxed")  # fmt: skip
    with pytest.raises(PtxFault, match="race in shared memory"):
        run(body.replace("{}", unfenced), out(), out(1), block=64)


def test_what_other_warps_wrote_is_published_behind_a_barrier_alone() -> None:
    """The last block reads what the first wrote: its first thread counts blocks, behind the barrier of its warps."""
    body = """st.global.u32 [%e0], %r1; {} setp.eq.u32 %p1, %r0, 0; @%p1 membar.gl;
        @%p1 atom.global.add.u32 %r7, [%d1], 1; bar.sync 0; mov.u32 %r8, %ctaid.x; setp.ne.u32 %p2, %r8, 1;
        @%p2 bra E; mul.wide.u32 %d4, %r0, 4; add.s64 %d5, %d0, %d4; ld.global.u32 %r6, [%d5];
        add.s64 %d5, %d2, %d4; st.global.u32 [%d5], %r6; E: """
    run(body.replace("{}", "bar.sync 0;"), out(128), out(1), got := out(), block=64, grid=2)
    assert np.array_equal(got, np.arange(64))
    # each thread fences what it wrote, and the barrier comes behind that
    run(body.replace("{}", "membar.gl; bar.sync 0;").replace("@%p1 membar.gl;", ""), out(128), out(1), got := out(), block=64, grid=2)  # fmt: skip
    assert np.array_equal(got, np.arange(64))
    for wrong in (body.replace("{}", ""), body.replace("{}", "bar.sync 0;").replace("membar.gl", "membar.cta")):  # fmt: skip
        with pytest.raises(PtxFault, match="race in global memory"):
            run(wrong, out(128), out(1), out(), block=64, grid=2)


def test_a_barrier_of_one_block_orders_nothing_in_another() -> None:
    body = (
        f"{SHARED} mov.u32 %r9, %ctaid.x; st.shared.u32 [%r4], %r0; setp.ge.u32 %p2, %r9, {{}}; @%p2 bra L; bar.sync 0; \
        L: ld.shared.u32 %r6, [%r5]; {OUT}"
    )
    run(body.format(2), out(128), block=64, grid=2)
    with pytest.raises(PtxFault, match=r"race in shared memory.*block \(1, 0, 0\)"):
        run(body.format(1), out(128), block=64, grid=2)


# global memory

EVERY = {
    "two blocks": ("st.global.u32 [%d0], {};", "5", "%r1", {"grid": 2, "block": 1}, r"different values to one place, byte 0 of a0; .*thread \(0, 0, 0\) of block \(1, 0, 0\)"),
    "blocks of two batches": ("setp.eq.u32 %p1, %r0, 0; @%p1 st.global.u32 [%d0], {};", "5", "%r1", {"grid": 3, "block": 32, "most_lanes": 32}, "write is not ordered after `@%p1 st.*warp 0 of block"),
    "two warps": ("ld.global.u32 %r6, [%e0]; {} setp.eq.u32 %p1, %r0, 0; @%p1 st.global.u32 [%d0+128], 9; setp.eq.u32 %p2, %r0, 33; @%p2 st.global.u32 [%e0], %r6; setp.eq.u32 %p2, %r0, 32; @%p2 st.global.u32 [%d0+4], %r6;",
        "bar.sync 0;", "", {"block": 64}, r"write is not ordered after `ld.*of warp 1 of block.*what was read matters: .*stores a value"),
    "a read of what another warp wrote": (
        "st.global.u32 [%e0], %r0; {} xor.b32 %r2, %r0, 32; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0; ld.global.u32 %r6, [%d4]; bar.sync 0; st.global.u32 [%e0], %r6;",
        "bar.sync 0;", "", {"block": 64}, "read is not ordered after `st"),
    "a read of what another block wrote": (
        "setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%d0], 1; setp.eq.u32 %p2, %r1, 32; @%p2 ld.global.u32 %r6, [%d0+{}]; @%p2 st.global.u32 [%d0+8], %r6;", "4", "0",
        {"grid": 2, "block": 32, "most_lanes": 32}, "read is not ordered after `@%p1 st.global"),
    "a write over what another block read": (
        "setp.eq.u32 %p1, %r1, 0; @%p1 ld.global.u32 %r6, [%d0]; @%p1 st.global.u32 [%d0+8], %r6; setp.eq.u32 %p2, %r1, 32; @%p2 st.global.u32 [%d0+{}], 3;", "4", "0",
        {"grid": 2, "block": 32, "most_lanes": 32}, "write is not ordered after `@%p1 ld.global"),
    "an atomic and a plain write": ("red.global.add.u32 [%d0], 1; setp.eq.u32 %p1, %r1, 32; @%p1 st.global.u32 [%d0+{}], 9;", "4", "0",
        {"grid": 2, "block": 32}, "write is not ordered after `red"),
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_a_race_in_global_memory_is_a_fault(name: str) -> None:
    body, legal, wrong, options, said = EVERY[name]
    run(body.replace("{}", legal), out(), **options)  # type: ignore[arg-type]  # sizes of a launch
    with pytest.raises(PtxFault, match=said):
        run(body.replace("{}", wrong), out(), **options)  # type: ignore[arg-type]  # sizes of a launch


LAST = """st.global.u32 [%e0], %r1; {} setp.eq.u32 %p1, %r0, 0; mov.u32 %r6, 0; {} .shared .b32 s;
    @%p1 atom.global.add.u32 %r6, [%d1], 1; @%p1 st.shared.u32 [s], %r6; bar.sync 0; ld.shared.u32 %r6, [s];
    setp.ne.u32 %p2, %r6, 3; @%p2 exit; mov.u32 %r7, 0; mov.u32 %r8, 0; mov.b64 %d5, %d0;
    L: ld.global.u32 %r9, [%d5]; add.s64 %d5, %d5, 4; add.u32 %r7, %r7, %r9; add.u32 %r8, %r8, 1; setp.lt.u32 %p3, %r8, 256; @%p3 bra L;
    st.global.u32 [%d2], %r7;"""


@pytest.mark.parametrize("most", [64, 1 << 15])
def test_the_last_block_may_read_what_the_others_fenced_and_counted(most: int) -> None:
    arrays = [out(256), out(1), out(1)]
    run(LAST.format("membar.gl;", "bar.sync 0;"), *arrays, grid=4, block=64, most_lanes=most)
    assert arrays[2][0] == 255 * 128
    with pytest.raises(PtxFault, match="race in global memory"):
        run(
            LAST.format("", "bar.sync 0;"),
            *[np.zeros_like(a) for a in arrays],
            grid=4,
            block=64,
            most_lanes=most,
        )


# reads that race: the launch, and what makes the value visible in place of {}
COPIES = {
    # as Triton's replicated tiles: both warps load the row and the first alone stores
    "a copy of what another warp overwrites": (
        ("and.b32 %r2, %r0, 31; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0; setp.lt.u32 %p1, %r0, 32;"
        "ld.global.u32 %r6, [%d4]; add.u32 %r6, %r6, 1; @%p1 st.global.u32 [%d4], %r6; {}"), "@!%p1 st.global.u32 [%d4+128], %r6;"),
    "the copy of the first warp": (
        ("and.b32 %r2, %r0, 31; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0; setp.ge.u32 %p1, %r0, 32;"
        "ld.global.u32 %r6, [%d4]; add.u32 %r6, %r6, 1; @%p1 st.global.u32 [%d4], %r6; {}"), "@!%p1 st.global.u32 [%d4+128], %r6;"),
    "a read after the write": (
        ("and.b32 %r2, %r0, 31; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0; setp.lt.u32 %p1, %r0, 32; mov.u32 %r7, 1;"
        "@%p1 st.global.u32 [%d4], 1; ld.global.u32 %r6, [%d4]; {} @%p1 st.global.u32 [%d4], %r6;"), "@!%p1 st.global.u32 [%d4+128], %r6;"),
    "through shared memory": (
        (f"{SHARED} and.b32 %r7, %r0, 31; mad.lo.u32 %r7, %r7, 4, %r2; st.shared.u32 [%r7], 3; bar.sync 0; ld.shared.u32 %r6, [%r7];"
        "@%p1 st.shared.u32 [%r7], 4; @%p1 mov.u32 %r6, 1; @!%p1 st.shared.u32 [%r4], %r6; {} mov.u32 %r6, 1; @%p1 st.global.u32 [%e0], %r6;"),
        "@!%p1 ld.shared.u32 %r6, [%r4]; @!%p1 st.global.u32 [%e0], %r6;"),
    "copied by cp.async": (
        (f"{SHARED} and.b32 %r7, %r0, 31; mul.wide.u32 %d4, %r7, 4; add.s64 %d4, %d4, %d0; cp.async.ca.shared.global [%r4], [%d4], 4;"
        "cp.async.wait_all; ld.shared.u32 %r6, [%r4]; @%p1 st.global.u32 [%d4], 1; {}"), "@!%p1 st.global.u32 [%e0], %r6;"),
    "an address": (
        ("and.b32 %r2, %r0, 31; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0; setp.lt.u32 %p1, %r0, 32;"
        "ld.global.u32 %r6, [%d4]; @%p1 st.global.u32 [%d4], 1; and.b32 %r6, %r6, 0x7c; cvt.u64.u32 %d5, %r6; add.s64 %d5, %d5, %d0; {}"),
        "@!%p1 st.global.u32 [%d5+128], 0;"),
    "a branch": (
        ("and.b32 %r2, %r0, 31; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0; setp.lt.u32 %p1, %r0, 32;"
        "ld.global.u32 %r6, [%d4]; @%p1 st.global.u32 [%d4], 1; setp.eq.u32 %p2, %r6, 7; {}"), "@!%p1 bra L; exit; L: @%p2 bra M; M:"),
    "in every round of a loop": (
        ("setp.lt.u32 %p1, %r0, 32; and.b32 %r2, %r0, 31; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0; mov.u32 %r8, 0; mov.u32 %r7, 0;"
        "L: ld.global.u32 %r6, [%d4]; add.u32 %r7, %r7, %r6; add.u32 %r8, %r8, 1; setp.lt.u32 %p2, %r8, 40; @%p2 bra L; @%p1 st.global.u32 [%d4], 1; {}"),
        "@!%p1 st.global.u32 [%d4+128], %r7;"),
    "in an odd block": (
        "setp.eq.u32 %p1, %r1, 33; ld.global.u32 %r6, [%d0+4]; @%p1 st.global.u32 [%d0+4], 1; setp.eq.u32 %p2, %r0, 0; {} @%p2 st.global.u32 [%d0], 1;",
        "@%p2 st.global.u32 [%e0+8], %r6;"),
}  # fmt: skip


@pytest.mark.parametrize("most", [64, 1 << 15])
@pytest.mark.parametrize("name", COPIES)
def test_a_read_that_races_is_a_fault_where_it_becomes_visible(name: str, most: int) -> None:
    body, used = COPIES[name]
    grid = 3 if "block" in name else 1
    got = out(256)
    done = run(body.replace("{}", ""), got, block=64, grid=grid, most_lanes=most)
    # once, though the launch was run twice
    assert set(got[:32]) <= {0, 1}
    assert got.any()
    assert done.racing_reads >= 32
    with pytest.raises(
        PtxFault, match=r"a race in .* is not ordered after .*what was read matters"
    ):
        run(body.replace("{}", used), out(256), block=64, grid=grid, most_lanes=most)


def test_the_race_that_matters_is_named() -> None:
    """Not the one before it, whose value nobody uses; an undefined value beside them is none of both."""
    body = """and.b32 %r2, %r0, 31; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0; setp.lt.u32 %p1, %r0, 32;
        ld.global.u32 %r5, [%d4]; ld.global.u32 %r6, [%d4+128]; @%p1 st.global.u32 [%d4], 1; @%p1 st.global.u32 [%d4+128], 1; {}"""
    assert run(body.replace("{}", ""), out(), block=64).racing_reads == 64
    for register, read in ((5, r"\[%d4\]`"), (6, r"\[%d4\+128\]`")):
        with pytest.raises(
            PtxFault, match=rf"not ordered after `ld.global.u32 %r{register}, {read}"
        ):
            run(
                body.replace("{}", f"@!%p1 st.global.u32 [%d4+256], %r{register};"),
                out(128),
                block=64,
            )
    with pytest.raises(
        PtxFault, match=r"`st.global.u32 \[%d4\+256\], %r30`: stores a value"
    ) as caught:
        run(body.replace("{}", "st.global.u32 [%d4+256], %r30;"), out(128), block=64)
    assert "race" not in str(caught.value)


def test_a_launch_that_is_run_again_finds_the_memory_as_it_was() -> None:
    """The bytes, and which of them were never written."""
    body = """red.global.add.u32 [%d1], 1; and.b32 %r2, %r0, 31; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0;
        setp.lt.u32 %p1, %r0, 32; ld.global.u32 %r6, [%d4]; add.u32 %r6, %r6, 1; @%p1 st.global.u32 [%d4], %r6;"""
    row, count = np.arange(32, dtype=np.uint32), out(1)
    run(body, row, count, block=64)
    assert np.array_equal(row, np.arange(32) + 1)
    assert count[0] == 64
    with pytest.raises(PtxFault, match="stores a value that was never defined"):
        run(body, out(32), out(1), block=64, fresh=(0,))
    # written after it was read, in the first run
    late = f"ld.global.u32 %r8, [%e2]; st.global.u32 [%e2], 7; {body} st.global.u32 [%e2], %r8;"
    with pytest.raises(PtxFault, match=r"%r8`: stores a value that was never defined"):
        run(late, out(32), out(1), out(), block=64, fresh=(2,))
    assert run("st.global.u32 [%e0], %r0;", out(), block=64).racing_reads == 0


def test_a_fault_after_an_unused_racing_read_is_that_fault() -> None:
    body = """and.b32 %r2, %r0, 31; mul.wide.u32 %d4, %r2, 4; add.s64 %d4, %d4, %d0; setp.lt.u32 %p1, %r0, 32;
        ld.global.u32 %r6, [%d4]; @%p1 st.global.u32 [%d4], 1; ld.global.u32 %r6, [%d4+4096];"""
    with pytest.raises(PtxFault, match="out of bounds"):
        run(body, out(), block=64)


def test_a_reader_that_has_not_looked_knows_nothing_of_another_block() -> None:
    """The writer fenced and counted; the reader's own atomic, or none."""
    body = """setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, 32; @%p1 st.global.u32 [%d0], 5; membar.gl; @%p1 red.global.add.u32 [%d1], 1;
        {} @%p2 ld.global.u32 %r6, [%d0]; @%p2 st.global.u32 [%d0+8], %r6;"""
    look = "@%p2 atom.global.add.u32 %r7, [%d1], 0;"
    run(body.format(look), got := out(), out(1), grid=2, most_lanes=32)
    assert got[2] == 5
    with pytest.raises(PtxFault, match=r"read is not ordered after `@%p1 st\.global"):
        run(body.format(""), out(), out(1), grid=2, most_lanes=32)


def test_atomics_of_many_blocks_are_no_race() -> None:
    cell = out(1)
    run("red.global.add.u32 [%d0], %r1;", cell, grid=4, block=64, most_lanes=64)
    assert cell[0] == 255 * 128


@pytest.mark.parametrize(
    "body",
    [
        "st.global.u32 [%e0], %r0; ld.global.nc.u32 %r6, [%e0]; st.global.u32 [%e1], %r6;",
        "ld.global.nc.u32 %r6, [%e0]; add.u32 %r6, %r6, 1; st.global.u32 [%e0], %r6;",
        "ldu.global.u32 %r6, [%d0]; st.global.u32 [%e1], %r6; red.global.add.u32 [%d0], 1;",
        "ld.global.nc.u32 %r6, [%e0]; st.global.u32 [%e1], %r6; st.volatile.global.u32 [%e0], %r0;",
        # several stores, executed together
        "ld.global.nc.v2.u32 {%r6, %r7}, [%d0]; mov.u32 %r8, 1; st.global.u32 [%e1], %r6; st.global.u32 [%e0], %r8;",
    ],
    ids=["after", "before", "atomic", "strong", "together"],
)  # fmt: skip
def test_what_is_read_through_the_non_coherent_cache_is_written_by_nobody(body: str) -> None:
    with pytest.raises(PtxFault, match=r"`ld.* reads a0 through the non-coherent.*of this launch"):
        run(body, out(32), out(32))
    run(body.replace(".nc", "").replace("ldu", "ld.volatile"), out(32), out(32))


def test_what_another_launch_wrote_may_be_read_through_the_non_coherent_cache() -> None:
    """Of one memory, by a launch after the other; and beside what is written in the same one."""
    held = memory(data := out(64), got := out(64))
    for body in (
        "st.global.u32 [%e0], %r0;",
        "ld.global.nc.u32 %r6, [%e0]; st.global.u32 [%e1], %r6; st.global.u32 [%e0+128], %r0;",
        "st.global.u32 [%e0], 5;",
    ):
        params = struct.pack("<2Q", data.ctypes.data, got.ctypes.data)
        launch(program(body, 2), (1, 1, 1), (32, 1, 1), params, held)
    assert got.tolist()[:32] == list(range(32))
    assert data.tolist() == [5] * 32 + list(range(32))


# uninitialised


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("st.global.u32 [%e0], %r30;", "stores a value that was never defined"),
        ("add.u32 %r6, %r30, 1; st.global.u32 [%e0], %r6;", "stores a value"),
        ("setp.eq.u32 %p1, %r30, 0; @%p1 mov.u32 %r6, 1;", "predicate was never defined"),
        ("setp.eq.u32 %p1, %r30, 0; @%p1 bra L; L:", "predicate was never defined"),
        ("ld.global.u32 %r6, [%d15];", "never defined"),
        ("setp.lt.u32 %p1, %r0, 31; @%p1 mov.u32 %r6, 3; st.global.u32 [%e0], %r6;", r"stores a value.*thread \(31, 0, 0\)"),
        ("setp.lt.u32 %p1, %r0, 31; @%p1 bra L; bra M; L: mov.u32 %r6, 3; M: st.global.u32 [%e0], %r6;", r"thread \(31, 0, 0\)"),
        (".shared .align 4 .b8 s[128]; ld.shared.u32 %r6, [s]; st.global.u32 [%e0], %r6;", "stores a value"),
        (".local .b32 l; ld.local.u32 %r6, [l]; st.global.u32 [%e0], %r6;", "stores a value"),
        (".shared .align 4 .b8 s[8]; ld.shared.u32 %r6, [s]; st.shared.u32 [s+4], %r6; ld.shared.u32 %r7, [s+4]; st.global.u32 [%e0], %r7;", "stores a value"),
        ("shfl.sync.bfly.b32 %r6, %r30, 1, 31, -1; st.global.u32 [%e0], %r6;", "stores a value"),
        ("red.global.add.u32 [%e0], %r30;", "never defined"),
        ("setp.eq.u32 %p1, %r0, 0; mov.u32 %r6, 1; @%p1 add.u32 %r6, %r6, %r30; st.global.u32 [%e0], %r6;", r"thread \(0, 0, 0\)"),
        (".shared .align 16 .b8 s[128]; and.b32 %r7, %r0, 7; mov.u32 %r8, s; mad.lo.u32 %r7, %r7, 16, %r8;ldmatrix.sync.aligned.m8n8.x1.shared.b16 %r6, [%r7]; st.global.u32 [%e0], %r6;", "stores a value"),
    ],
)  # fmt: skip
def test_an_undefined_value_that_becomes_visible_is_a_fault(body: str, said: str) -> None:
    with pytest.raises(PtxFault, match=said):
        run(body, out(32))


@pytest.mark.parametrize(
    "body",
    [
        "add.u32 %r6, %r30, 1; mov.u32 %r6, 4;",
        "setp.eq.u32 %p1, %r30, 0; mov.u32 %r6, 4;",
        "setp.lt.u32 %p1, %r0, 33; mov.u32 %r6, 4; selp.u32 %r6, %r6, %r30, %p1;",
        "xor.b32 %r6, %r30, %r30; or.b32 %r6, %r6, 4;",
        "and.b32 %r6, %r30, 0; or.b32 %r6, %r6, 4;",
        "setp.eq.u32 %p1, %r30, 0; setp.lt.u32 %p2, %r0, 33; or.pred %p3, %p1, %p2; mov.u32 %r6, 0; @%p3 mov.u32 %r6, 4;",
        "setp.lt.u32 %p1, %r0, 40; @%p1 mov.u32 %r6, 4; @!%p1 mov.u32 %r6, 5;",
        # a store of what is undefined makes shared memory as undefined as it was
        ".shared .align 4 .b8 s[8]; st.shared.u32 [s], %r30; mov.u32 %r6, 4;",
        ".shared .align 4 .b8 s[8]; ld.shared.u32 %r6, [s]; mov.u32 %r6, 4;",
        # registers that only some lanes have written, read by those
        "setp.lt.u32 %p1, %r0, 9; @%p1 mov.u32 %r7, 4; mov.u32 %r6, 4; @%p1 mov.u32 %r6, %r7;",
        "setp.lt.u32 %p1, %r0, 9; mov.u32 %r6, 4; @%p1 bra L; bra M; L: mov.u32 %r7, 2; add.u32 %r6, %r7, 2; M:",
    ],
)
def test_an_undefined_value_that_nothing_depends_on_is_none(body: str) -> None:
    run(f"{body} st.global.u32 [%e0], %r6;", got := out(32))
    assert (got == 4).all()


# a word whose lower half holds 4, and whose upper one was never written
HALF = ".shared .align 8 .b8 s[8]; mov.u16 %h1, 4; st.shared.u16 [s], %h1; bar.warp.sync -1; ld.shared.u32 %r7, [s]; "
# the same as the second of two words, after one that is whole
SECOND = (
    ".shared .align 8 .b8 s[8]; mov.u16 %h1, 4; st.shared.u16 [s], %h1; st.shared.u16 [s+2], %h1;"
    "st.shared.u16 [s+4], %h1; bar.warp.sync -1; ld.shared.v2.u32 {%r8, %r7}, [s]; "
)


@pytest.mark.parametrize("word", [HALF, SECOND], ids=["alone", "second"])
@pytest.mark.parametrize(
    ("body", "defined"),
    [
        ("and.b32 %r6, %r7, 65535;", True),
        ("mov.u32 %r8, 255; and.b32 %r6, %r8, %r7;", True),
        ("and.b32 %r6, %r7, 131071;", False),
        ("and.b32 %r6, %r7, %r30;", False),
        ("or.b32 %r6, %r7, 0xffff0000; and.b32 %r6, %r6, 7;", True),
        ("or.b32 %r6, %r7, 0xfff00000; and.b32 %r6, %r6, 7;", False),
        ("prmt.b32 %r6, %r7, 0, 0x4410;", True),
        ("prmt.b32 %r6, 0, %r7, 0x0054;", True),
        ("prmt.b32 %r6, %r7, 0, 0x4490;", True),
        ("prmt.b32 %r6, %r7, 0, 0x4420;", False),
        ("prmt.b32 %r6, %r7, 0, %r30;", False),
        ("prmt.b32.rc8 %r6, %r7, 0, 0; and.b32 %r6, %r6, 4;", False),
        ("mov.u32 %r8, %r7; and.b32 %r6, %r8, 65535;", False),
        # written again by some lanes, as a word of which nothing is known
        ("setp.eq.u32 %p1, %r0, 3; @%p1 mov.u32 %r7, %r30; and.b32 %r6, %r7, 65535;", False),
    ],
)  # fmt: skip
def test_of_a_word_that_was_written_in_part_the_rest_is_undefined(
    word: str, body: str, defined: bool
) -> None:
    body = f"{word}{body} st.global.u32 [%e0], %r6;"
    if not defined:
        with pytest.raises(PtxFault, match="stores a value"):
            run(body, out(32))
        return
    run(body, got := out(32))
    assert (got == 4).all()


def test_global_memory_that_was_never_written() -> None:
    body = "ld.global.u32 %r6, [%e0]; st.global.u32 [%e1], %r6;"
    run(body, out(32), out(32), fresh=(1,))
    with pytest.raises(PtxFault, match="stores a value"):
        run(body, out(32), out(32), fresh=(0,))
    run(f"st.global.u32 [%e0], %r0; {body}", out(32), out(32), fresh=(0, 1))
    with pytest.raises(PtxFault, match="changes a0 that was never written"):
        run("red.global.add.u32 [%e0], 1;", out(32), fresh=(0,))


def test_what_one_launch_wrote_the_next_may_read() -> None:
    """Whatever the sizes of their accesses: what is watched as one differs from launch to launch."""
    cells, result = out(32), out(32)
    given = memory(cells, result, fresh=(0, 1))
    params = np.array([cells.ctypes.data, result.ctypes.data], np.uint64).tobytes()
    write = program(
        "cvt.u16.u32 %h1, %r0; shl.b64 %d4, %d9, 0; st.global.u16 [%e0], %h1; st.global.u16 [%e0+2], %h1;",
        2,
    )
    wide = "setp.lt.u32 %p1, %r0, 8; shl.b64 %d4, %d9, 2; add.s64 %d5, %d0, %d4; add.s64 %d6, %d1, %d4;"
    copy = program(
        wide
        + "@%p1 ld.global.v4.u32 {%r2,%r3,%r4,%r5}, [%d5]; @%p1 st.global.v4.u32 [%d6], {%r2,%r3,%r4,%r5};",
        2,
    )
    with pytest.raises(PtxFault, match="stores a value"):
        launch(copy, (1, 1, 1), (32, 1, 1), params, given)
    launch(write, (1, 1, 1), (32, 1, 1), params, given)
    launch(copy, (1, 1, 1), (32, 1, 1), params, given)
    assert np.array_equal(result, np.arange(32) * 65537)
    again = program("ld.global.u16 %h1, [%e1+2]; st.global.u16 [%e0], %h1;", 2)
    launch(again, (1, 1, 1), (32, 1, 1), params, given)


# barriers


def test_a_barrier_that_some_lanes_of_a_warp_miss_is_a_fault() -> None:
    body = "setp.lt.u32 %p1, %r0, {}; @%p1 bra L; bra M; L: bar.sync 0; M: {} mov.u32 %r6, 1;"
    run(body.format(32, "bar.sync 0;"), out(), block=32)
    with pytest.raises(
        PtxFault,
        match=r"divergence.*not all lanes of the warp come here; thread \(\d+, 0, 0\).*waits at `bar.sync 0`",
    ):
        run(body.format(7, "bar.sync 0;"), out(), block=32)
    with pytest.raises(PtxFault, match=r"divergence"):
        run("setp.lt.u32 %p1, %r0, 7; @%p1 bar.sync 0;", out(), block=32)


def test_warps_may_meet_at_different_barrier_instructions() -> None:
    body = (
        "setp.lt.u32 %p1, %r0, 32; @%p1 bra L; bar.sync 0; bra M; L: bar.sync 0; M: mov.u32 %r6, 1;"
    )
    run(f"{body} {OUT}", got := out(), block=64)
    assert (got == 1).all()


def test_lanes_that_have_exited_are_not_waited_for() -> None:
    run(
        f"setp.lt.u32 %p1, %r0, 40; @%p1 exit; mov.u32 %r6, 1; bar.sync 0; {OUT}",
        got := out(),
        block=64,
    )
    assert np.array_equal(got, np.arange(64) >= 40)


def test_warps_that_wait_for_each_other_are_a_deadlock() -> None:
    body = "setp.lt.u32 %p1, %r0, 32; @%p1 bra L; bar.sync {0}; bar.sync {1}; bra M; L: bar.sync 1; bar.sync 2; M:"
    run(body.format(1, 2), out(), block=64)
    with pytest.raises(PtxFault, match=r"deadlock.*waits at `bar.sync"):
        run(body.format(2, 1), out(), block=64)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (96, "fewer threads"),
        (33, "multiple of 32"),
        (0, "multiple of 32"),
        (128, "within the block"),
    ],
)
def test_a_barrier_counts_its_threads(count: int, said: str) -> None:
    body = "setp.lt.u32 %p1, %r0, 64; @%p1 bar.sync 1, {};"
    run(body.format(64), out(96), block=96)
    # each of the two warps alone completes it
    run(body.format(32), out(96), block=96)
    with pytest.raises(PtxFault, match=said):
        run(body.format(count), out(96), block=96)


def test_a_barrier_reduces_a_predicate() -> None:
    body = """setp.lt.u32 %p1, %r0, {}; bar.red.popc.u32 %r6, 0, %p1; bar.red.and.pred %p2, 0, %p1; bar.red.or.pred %p3, 0, !%p1;
        @%p2 add.u32 %r6, %r6, 1000; @%p3 add.u32 %r6, %r6, 2000;"""
    for bound, want in ((40, 2040), (64, 1064), (0, 2000)):
        run(f"{body.format(bound)} {OUT}", got := out(128), block=64, grid=2)
        assert (got == want).all()


def test_a_barrier_that_a_block_has_not() -> None:
    with pytest.raises(PtxFault, match="a block has 16"):
        run("bar.sync 16;", out())
