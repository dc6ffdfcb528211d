"""Exchange within a warp, against NumPy; and lanes that should take part and do not."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_kernel import run

from contract.engines.ptx.faults import PtxFault, Unsupported

RNG = np.random.default_rng(1)
VALUES = RNG.integers(0, 1 << 32, 64, np.uint64).astype(np.uint32)
LANES = np.arange(64) % 32
BASE = np.arange(64) - LANES
LOAD = "ld.global.u32 %r2, [%e0];"
STORE = "st.global.u32 [%e1], %r3;"


@pytest.mark.parametrize(
    ("mode", "by", "clamp", "partner", "inside"),
    [
        ("bfly", 5, 31, LANES ^ 5, LANES >= 0),
        ("bfly", 16, 0x1F | 16 << 8, LANES ^ 16, (LANES ^ 16) <= (LANES & 16 | 15)),
        ("down", 3, 31, LANES + 3, LANES + 3 <= 31),
        ("down", 3, 0x1F | 24 << 8, LANES + 3, LANES % 8 + 3 <= 7),
        ("up", 3, 0, LANES - 3, LANES - 3 >= 0),
        ("up", 3, 24 << 8, LANES - 3, LANES % 8 - 3 >= 0),
        ("idx", 7, 31, 0 * LANES + 7, LANES >= 0),
        ("idx", 9, 0x1F | 24 << 8, (LANES & 24) + 1, LANES >= 0),
    ],
)
def test_shfl(mode: str, by: int, clamp: int, partner: np.ndarray, inside: np.ndarray) -> None:
    out, flag = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    run(
        f"{LOAD} shfl.sync.{mode}.b32 %r3|%p1, %r2, {by}, {clamp}, -1; {STORE}"
        "selp.u32 %r4, 1, 0, %p1; st.global.u32 [%e2], %r4;",
        VALUES.copy(), out, flag, block=64,
    )  # fmt: skip
    want = VALUES[np.where(inside, partner, LANES) + BASE]
    assert np.array_equal(out, want)
    assert np.array_equal(flag, inside)


def test_shfl_takes_a_partner_of_each_lane() -> None:
    out = np.zeros(64, np.uint32)
    run(
        f"{LOAD} sub.u32 %r4, 31, %r0; shfl.sync.idx.b32 %r3, %r2, %r4, 31, -1; {STORE}",
        VALUES.copy(),
        out,
        block=64,
    )
    assert np.array_equal(out, VALUES[31 - LANES + BASE])


def test_shfl_that_leaves_a_lane_out_is_a_fault() -> None:
    apart = "setp.lt.u32 %p1, %r0, 16; @%p1 bra L; mov.u32 %r9, 1; bra M; L: {0} bra N; M: {1} N: bar.warp.sync -1; {2}"
    body = f"{LOAD} mov.u32 %r3, 0; " + apart.format(
        "shfl.sync.bfly.b32 %r3, %r2, 1, 31, {0};", "mov.u32 %r8, 1;", STORE
    )
    out = np.zeros(32, np.uint32)
    run(body.replace("{0}", "0xffff"), VALUES.copy(), out)
    assert np.array_equal(out[:16], VALUES[LANES[:16] ^ 1])
    # lanes that have exited are not waited for
    run(body.replace("{0}", "-1").replace("bar.warp.sync -1;", ""), VALUES.copy(), out)
    assert np.array_equal(out[:16], VALUES[LANES[:16] ^ 1])
    with pytest.raises(PtxFault, match=r"divergence.*not all lanes.*thread \(16, 0, 0\)"):
        run(body.replace("{0}", "-1"), VALUES.copy(), out)


def test_lanes_of_a_warp_may_meet_at_different_barrier_instructions() -> None:
    """PTX ISA, bar.warp.sync: until all of the mask have executed one with the same mask."""
    body = f""".shared .b32 s[64]; {LOAD} mov.u32 %r4, s; shl.b32 %r5, %r0, 2; add.u32 %r5, %r5, %r4; xor.b32 %r6, %r5, 64;
        st.shared.u32 [%r5], %r2; and.b32 %r7, %r0, 16; setp.eq.u32 %p1, %r7, 0; @%p1 bra A;
        bar.warp.sync -1; ld.shared.u32 %r3, [%r6]; bra E; A: {{}} ld.shared.u32 %r3, [%r6]; E: {STORE}"""
    out = np.zeros(64, np.uint32)
    run(body.replace("{}", "bar.warp.sync -1;"), VALUES.copy(), out, block=64)
    assert np.array_equal(out, VALUES[np.arange(64) ^ 16])
    # twice the same two places, in a loop
    again = body.replace("@%p1 bra A;", "mov.u32 %r9, 0; L: add.u32 %r9, %r9, 1; @%p1 bra A;")
    again = again.replace("E: ", "E: setp.lt.u32 %p2, %r9, 2; @%p2 bra L; ")
    run(again.replace("{}", "bar.warp.sync -1;"), VALUES.copy(), out, block=64)
    with pytest.raises(PtxFault, match="race in shared memory"):
        run(body.replace("{}", ""), VALUES.copy(), out, block=64)


def test_lanes_that_exchange_values_from_several_places_are_not_executed() -> None:
    """Which they may: PTX ISA, shfl.sync: with the same qualifiers and the same mask."""
    body = f"""{LOAD} setp.lt.u32 %p1, %r0, 16; @%p1 bra A; shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1; bra E;
        A: shfl.sync.{{}}.b32 %r3, %r2, 16, 31, -1; E: {STORE}"""
    with pytest.raises(Unsupported, match=r"in several places: line \d+, line \d+"):
        run(body.format("bfly"), VALUES.copy(), np.zeros(32, np.uint32))
    with pytest.raises(PtxFault, match="divergence"):
        run(body.format("idx"), VALUES.copy(), np.zeros(32, np.uint32))


def test_shfl_by_a_lane_that_its_mask_does_not_name_is_a_fault() -> None:
    body = f"{LOAD} shfl.sync.bfly.b32 %r3, %r2, 1, 31, 0xffff; {STORE}"
    with pytest.raises(PtxFault, match="does not name"):
        run(body, VALUES.copy(), np.zeros(32, np.uint32))


def test_a_value_read_from_a_lane_that_is_not_there_is_a_fault_where_it_is_stored() -> None:
    out = np.zeros(32, np.uint32)
    body = (
        f"{LOAD} shfl.sync.down.b32 %r3, %r2, 8, 31, -1; setp.lt.u32 %p1, %r0, {{0}}; @%p1 {STORE}"
    )
    run(body.replace("{0}", "8"), VALUES.copy(), out, block=16)
    assert np.array_equal(out[:8], VALUES[8:16])
    with pytest.raises(PtxFault, match="never defined"):
        run(body.replace("{0}", "9"), VALUES.copy(), out, block=16)


def test_lanes_that_diverged_meet_at_a_shfl() -> None:
    """Both sides jump, the later one in the text first."""
    out = np.zeros(32, np.uint32)
    body = f"{LOAD} setp.lt.u32 %p1, %r0, 5; @%p1 bra A; bra B; MEET: shfl.sync.bfly.b32 %r3, %r2, 1, 31, -1; {STORE} ret; \
        A: add.u32 %r2, %r2, 1; bra MEET; B: add.u32 %r2, %r2, 2; bra MEET;"
    run(body, VALUES.copy(), out)
    changed = VALUES[:32] + np.where(LANES[:32] < 5, 1, 2).astype(np.uint32)
    assert np.array_equal(out, changed[LANES[:32] ^ 1])


@pytest.mark.parametrize("mode", ["all", "any", "uni", "ballot"])
@pytest.mark.parametrize("bound", [0, 7, 32])
def test_vote(mode: str, bound: int) -> None:
    out = np.zeros(32, np.uint32)
    to, more = ("%p2", "selp.u32 %r3, 1, 0, %p2;") if mode != "ballot" else ("%r3", "")
    kind = "b32" if mode == "ballot" else "pred"
    run(
        f"setp.lt.u32 %p1, %r0, {bound}; vote.sync.{mode}.{kind} {to}, %p1, -1; {more} st.global.u32 [%e0], %r3;",
        out,
    )
    yes = np.arange(32) < bound
    want = {
        "all": yes.all(),
        "any": yes.any(),
        "uni": yes.all() or not yes.any(),
        "ballot": (1 << bound) - 1,
    }[mode]
    assert (out == np.uint32(want)).all()


def test_vote_of_the_negated_predicate_and_activemask() -> None:
    out, active = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    run(
        "setp.lt.u32 %p1, %r0, 4; vote.sync.ballot.b32 %r3, !%p1, -1; st.global.u32 [%e0], %r3;"
        "@%p1 activemask.b32 %r4; @%p1 st.global.u32 [%e1], %r4;", out, active,
    )  # fmt: skip
    assert (out == 0xFFFFFFF0).all()
    assert active.tolist() == [15] * 4 + [0] * 28


def test_match() -> None:
    values = RNG.integers(0, 4, 32).astype(np.uint32)
    out, flag = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    run(f"{LOAD} match.any.sync.b32 %r3, %r2, -1; {STORE}", values, out)
    assert out.tolist() == [
        sum(1 << j for j in range(32) if values[j] == values[i]) for i in range(32)
    ]
    body = f"{LOAD} match.all.sync.b32 %r3|%p1, %r2, -1; {STORE} selp.u32 %r4, 1, 0, %p1; st.global.u32 [%e2], %r4;"
    run(body, values, out, flag)
    assert not out.any()
    assert not flag.any()
    run(body, np.full(32, 7, np.uint32), out, flag)
    assert (out == 0xFFFFFFFF).all()
    assert flag.all()


@pytest.mark.parametrize(
    ("operation", "kind", "want"),
    [
        ("add", "u32", int(VALUES[:32].sum()) % 2**32),
        ("min", "u32", VALUES[:32].min()),
        ("max", "u32", VALUES[:32].max()),
        ("min", "s32", VALUES[:32].view(np.int32).min()),
        ("max", "s32", VALUES[:32].view(np.int32).max()),
        ("and", "b32", np.bitwise_and.reduce(VALUES[:32])),
        ("or", "b32", np.bitwise_or.reduce(VALUES[:32])),
        ("xor", "b32", np.bitwise_xor.reduce(VALUES[:32])),
    ],
)
def test_redux(operation: str, kind: str, want: int) -> None:
    out = np.zeros(32, np.uint32)
    run(f"{LOAD} redux.sync.{operation}.{kind} %r3, %r2, -1; {STORE}", VALUES.copy(), out)
    assert (out == np.uint32(int(want) % 2**32)).all()


def test_elect() -> None:
    out, leader = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    run(
        "setp.gt.u32 %p2, %r0, 3; @%p2 elect.sync %r3|%p1, 0xfffffff0; @%p2 st.global.u32 [%e0], %r3;"
        "@%p2 selp.u32 %r4, 1, 0, %p1; @%p2 st.global.u32 [%e1], %r4;", out, leader,
    )  # fmt: skip
    assert out.tolist() == [0] * 4 + [4] * 28
    assert leader.tolist() == [0] * 4 + [1] + [0] * 27


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_and_stmatrix(trans: bool, count: int) -> None:
    """Two warps, each its own matrices: M -> shared -> ldmatrix -> registers -> stmatrix -> shared -> out."""
    matrices = np.arange(2 * count * 64, dtype=np.uint16)
    words = matrices.view(np.uint32)
    loaded = np.zeros((count, 64), np.uint32)
    back = np.zeros(2 * count * 32, np.uint32)
    regs = "{" + ", ".join(f"%r{20 + i}" for i in range(count)) + "}"
    per = count * 128
    way = ".trans" if trans else ""
    fill = "".join(
        f"ld.global.u32 %r2, [%d5+{i * 128}]; st.shared.u32 [%r6+{i * 128}], %r2;\n"
        for i in range(count)
    )
    stores = "".join(f"st.global.u32 [%e1+{i * 256}], %r{20 + i};\n" for i in range(count))
    drain = "".join(
        f"ld.shared.u32 %r2, [%r6+{4096 + i * 128}]; st.global.u32 [%d6+{i * 128}], %r2;\n"
        for i in range(count)
    )
    body = f"""
        .shared .align 16 .b8 s[8192];
        shr.u32 %r3, %r0, 5; and.b32 %r4, %r0, 31; mul.lo.u32 %r5, %r3, {per}; mov.u32 %r11, s; add.u32 %r12, %r5, %r11;
        shl.b32 %r7, %r4, 2; add.u32 %r10, %r5, %r7; add.u32 %r6, %r12, %r7;
        cvt.u64.u32 %d4, %r10; add.s64 %d5, %d0, %d4; add.s64 %d6, %d2, %d4;
        {fill} bar.warp.sync -1;
        rem.u32 %r8, %r4, {8 * count}; mad.lo.u32 %r9, %r8, 16, %r12;
        ldmatrix.sync.aligned.m8n8.x{count}{way}.shared.b16 {regs}, [%r9];
        {stores}
        stmatrix.sync.aligned.m8n8.x{count}{way}.shared.b16 [%r9+4096], {regs};
        bar.warp.sync -1;
        {drain}"""
    run(body, words.copy(), loaded, back, block=64)
    tiles = matrices.reshape(2, count, 8, 8)
    tiles = tiles.transpose(0, 1, 3, 2) if trans else tiles
    # lane l: elements 2*(l%4) and 2*(l%4)+1 of row l/4
    for warp in range(2):
        for i in range(count):
            for lane in range(32):
                low, high = tiles[warp, i, lane // 4, 2 * (lane % 4) : 2 * (lane % 4) + 2]
                assert loaded[i, warp * 32 + lane] == int(low) | int(high) << 16
    assert np.array_equal(back, words)


def test_movmatrix_transposes() -> None:
    matrix = RNG.integers(0, 1 << 16, (8, 8)).astype(np.uint16)
    out = np.zeros(32, np.uint32)
    run(
        f"{LOAD} movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r2; {STORE}",
        matrix.view(np.uint32).ravel(),
        out,
    )
    assert np.array_equal(out.view(np.uint16).reshape(8, 8), matrix.T)


def test_mma_of_ones() -> None:
    """m16n8k16: 16 products of 1 and 2, plus 1 (the arithmetic itself: test_ptx_matrix)."""
    out = np.zeros(32, np.float32)
    regs = "{%f1,%f2,%f3,%f4}"
    run(
        "mov.b32 %r2, 0x3f803f80; mov.b32 %r3, 0x40004000; mov.b32 %f1, 0f3F800000; mov.b32 %f2, %f1; mov.b32 %f3, %f1;"
        "mov.b32 %f4, %f1; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        f" {regs}, {{%r2,%r2,%r2,%r2}}, {{%r3,%r3}}, {regs}; st.global.f32 [%e0], %f3;", out,
    )  # fmt: skip
    assert (out == 33).all()
