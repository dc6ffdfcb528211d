"""Blocks that synchronise through global memory: in every turn that a device may give them, and while they wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ptx_kernel import run

from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx.machine import BLOCKS

BLOCK_COUNT = 5


def out(n: int = BLOCK_COUNT) -> Any:
    return np.zeros(n, np.uint32)


def one_lane(body: str, *arrays: Any, blocks: str, grid: int = BLOCK_COUNT, **more: Any) -> Any:
    """The first lane of each block of a warp."""
    head = "setp.ne.u32 %p9, %r0, 0; @%p9 exit; mov.u32 %r2, %ctaid.x; mul.wide.u32 %d8, %r2, 4; add.s64 %d7, %d1, %d8;"
    return run(f".reg .pred %p9;{head}{body}", *arrays, grid=grid, blocks=blocks, **more)


ADD = "atom.acq_rel.gpu.global.add.u32 %r3, [%d0], 1;"
READ = "ld.relaxed.gpu.global.u32 %r4, [%d0]; st.global.u32 [%d7], %r4;"
BARRIER = f"{ADD} L: ld.acquire.gpu.global.u32 %r5, [%d0]; setp.lt.u32 %p1, %r5, {BLOCK_COUNT}; @%p1 bra L;"
# of the same, weak: what a compiler makes of __ldcg
WEAK = BARRIER.replace("ld.acquire.gpu.global", "ld.global.cg")


@pytest.mark.parametrize(
    ("blocks", "seen"),
    [("together", [5, 5, 5, 5, 5]), ("in_turn", [1, 2, 3, 4, 5]), ("reversed", [5, 4, 3, 2, 1])],
)
def test_a_block_sees_what_has_come_before_it(blocks: str, seen: list[int]) -> None:
    """A sum that is read without waiting for it: complete where all blocks add before any reads, and nowhere else."""
    done = one_lane(ADD + READ, out(1), got := out(), blocks=blocks)
    assert got.tolist() == seen
    assert done.communicates


def test_a_plain_read_of_what_others_still_change_is_a_race_in_turn() -> None:
    weak = READ.replace("relaxed.gpu.", "")
    one_lane(ADD + weak, out(1), out(), blocks="together")
    for blocks in ("in_turn", "reversed"):
        with pytest.raises(
            PtxFault, match=r"write is not ordered after `ld\.global.*what was read matters"
        ):
            one_lane(ADD + weak, out(1), out(), blocks=blocks)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_blocks_that_wait_for_all_see_all(blocks: str) -> None:
    one_lane(BARRIER + READ, out(1), got := out(), blocks=blocks)
    assert got.tolist() == [5] * 5


@pytest.mark.parametrize("blocks", ["in_turn", "reversed"])
def test_a_wait_for_a_later_block_lets_it_begin(blocks: str) -> None:
    """With weak loads as well, and where all wait for the one that begins last."""
    chain = f"""setp.eq.u32 %p2, %r2, {BLOCK_COUNT - 1}; @%p2 bra D;
        add.s64 %d6, %d7, 4; L: ld.volatile.global.u32 %r5, [%d6]; setp.eq.u32 %p1, %r5, 0; @%p1 bra L;
        D: add.u32 %r6, %r2, 10; st.volatile.global.u32 [%d7], %r6;"""
    one_lane(chain, out(1), got := out(), blocks=blocks)
    assert got.tolist() == [10, 11, 12, 13, 14]


def test_a_last_block_ticket_is_right_in_every_turn() -> None:
    last = (
        f"st.global.u32 [%d7], 3; membar.gl; {ADD} setp.ne.u32 %p1, %r3, 4; @%p1 exit; membar.gl;"
        + "".join(
            f"ld.global.u32 %r5, [%d1+{4 * i}]; add.u32 %r6, %r6, %r5;" for i in range(BLOCK_COUNT)
        )
        + "st.global.u32 [%d2], %r6;"
    )
    for blocks in BLOCKS:
        total = out(1)
        one_lane("mov.u32 %r6, 0;" + last, out(1), out(), total, blocks=blocks)
        assert total[0] == 15


def test_blocks_that_touch_nothing_together_do_not_communicate() -> None:
    done = run("st.global.u32 [%e0], %r1;", out(64), grid=2)
    assert not done.communicates
    done = run("red.global.add.u32 [%d0], 1;", out(1), grid=1)
    assert not done.communicates


LOCK = """L: atom.acquire.gpu.global.cas.b32 %r3, [%d0], 0, 1; setp.ne.u32 %p1, %r3, 0; @%p1 bra L;
    ld.volatile.global.u32 %r4, [%d1]; add.u32 %r4, %r4, 1; st.volatile.global.u32 [%d1], %r4;
    membar.gl; atom.release.gpu.global.exch.b32 %r5, [%d0], 0;"""


@pytest.mark.parametrize("blocks", BLOCKS)
def test_those_that_wait_for_a_lock_leave_the_others_the_turn(blocks: str) -> None:
    """Each poll that fails is repeated only after the lock changed: at most twice for each that takes it."""
    n = 40
    done = one_lane(LOCK, out(1), got := out(1), blocks=blocks, grid=n)
    assert got[0] == n
    assert done.counts["atom.acquire.gpu.global.cas.b32"] <= n * (n + 1)


def test_a_lock_that_nobody_gives_back_is_a_fault() -> None:
    body = LOCK.split("membar")[0]
    with pytest.raises(PtxFault, match="loop without an end"):
        one_lane(body, out(1), out(1), blocks="together", limit=300)


def test_an_unknown_turn_is_refused() -> None:
    with pytest.raises(
        ValueError, match="blocks='sideways'; use one of together, in_turn, reversed"
    ):
        run("", out(), blocks="sideways")


@pytest.mark.parametrize("blocks", BLOCKS)
def test_whole_warps_wait_in_a_loop_of_several_stretches(blocks: str) -> None:
    """The poll stands behind an instruction at which lanes meet, and all lanes of the block are at it."""
    body = f"""mov.u32 %r9, 1; red.release.gpu.global.add.u32 [%d0], %r9;
        L: add.u32 %r6, %r9, 1; shfl.sync.idx.b32 %r7, %r6, 0, 31, -1; ld.acquire.gpu.global.u32 %r5, [%d0];
        setp.lt.u32 %p1, %r5, {32 * BLOCK_COUNT}; @%p1 bra L; st.global.u32 [%e1], %r5;"""
    run(body, out(1), got := out(32 * BLOCK_COUNT), grid=BLOCK_COUNT, blocks=blocks, limit=20_000)
    assert set(got.tolist()) == {32 * BLOCK_COUNT}
