"""Instructions executed at once: the same results, and the same findings, as one by one."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_kernel import memory, program, size

from contract.engines.ptx import machine
from contract.engines.ptx.decoded import Program, Together
from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx.machine import Launched, launch

Array = NDArray[Any]
SHARED = ".shared .align 16 .b8 s[8192];"
RNG = np.random.default_rng(5)


def go(
    made: Program, arrays: tuple[Array, ...], fresh: tuple[int, ...] = (), **how: Any
) -> Launched:
    params = struct.pack(f"<{len(arrays)}Q", *(a.ctypes.data for a in arrays))
    return launch(made, size(1), size(128), params, memory(*arrays, fresh=fresh), **how)


def alone(made: Program) -> Program:
    """The program as it is executed where not all lanes are at one place."""
    for block in made.blocks:
        block.steps, block.last = list(block.body), block.number
    return made


def together(made: Program) -> list[tuple[str, Together]]:
    """What is executed at once, by the name of its kind; moves are left out."""
    found = []
    for block in made.blocks:
        for step in block.steps:
            if isinstance(step, Together) and step.members[0].kin is not None:
                kind = step.members[0].kin.kind
                name = kind[0] if isinstance(kind, tuple) else step.members[0].root
                if name != "mov":
                    found.append((name, step))
    return found


def groups(made: Program) -> dict[str, list[int]]:
    """How many instructions of each kind are executed at once."""
    found: dict[str, list[int]] = {}
    for name, step in together(made):
        found.setdefault(name, []).append(len(step.members))
    return found


def counted(made: Program) -> dict[str, int]:
    """How often several of a kind were executed at once; filled by the launch that follows."""
    done: dict[str, int] = {}

    def watched(name: str, run: Any) -> Any:
        def call(b: Any) -> bool:
            good = bool(run(b))
            done[name] = done.get(name, 0) + good
            return good

        return call

    for name, step in together(made):
        step.run = watched(name, step.run)
    return done


def both(body: str, *arrays: Array, head: str = SHARED, **how: Any) -> dict[str, int]:
    """Launch a body in both ways on the same memory; what was executed at once."""
    once, apart = program(body, len(arrays), head), alone(program(body, len(arrays), head))
    before = [a.copy() for a in arrays]
    done = counted(once)
    report, mine = go(once, arrays, **how), [a.copy() for a in arrays]
    for array, old in zip(arrays, before, strict=True):
        array[:] = old
    assert go(apart, arrays, **how) == report
    for one, other in zip(mine, arrays, strict=True):
        assert np.array_equal(one, other)
    return done


def found(body: str, *arrays: Array, head: str = SHARED, **how: Any) -> str:
    """What is said of a body that is wrong, which must be the same in both ways."""
    said = []
    copies = tuple(a.copy() for a in arrays)
    for made in (program(body, len(arrays), head), alone(program(body, len(arrays), head))):
        for copy, array in zip(copies, arrays, strict=True):
            copy[:] = array
        with pytest.raises(PtxFault) as caught:
            go(made, copies, **how)
        said.append(str(caught.value))
    assert said[0] == said[1]
    return said[0]


# of each thread its own 16 bytes of shared memory, and 2 KiB further on, and so on
PLACE = "mov.u32 %r2, s; shl.b32 %r3, %r0, 4; add.u32 %r2, %r2, %r3; mul.wide.u32 %d4, %r0, 16; add.s64 %d5, %d0, %d4; add.s64 %d6, %d1, %d4;"
COPIES = PLACE + "".join(
    f"cp.async.cg.shared.global [%r2+{2048 * i}], [%d5+{2048 * i}], 16, %r{4 + i};\n"
    for i in range(4)
)
LANDED = "cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;\n"
BACK = "".join(
    f"ld.shared.v4.b32 {{%r{10 + 4 * i}, %r{11 + 4 * i}, %r{12 + 4 * i}, %r{13 + 4 * i}}}, [%r2+{2048 * i}];\n"
    for i in range(4)
) + "".join(
    f"st.global.v4.b32 [%d6+{2048 * i}], {{%r{10 + 4 * i}, %r{11 + 4 * i}, %r{12 + 4 * i}, %r{13 + 4 * i}}};\n"
    for i in range(4)
)


def sizes(*given: int) -> str:
    return "".join(f"mov.u32 %r{4 + i}, {n};" for i, n in enumerate(given))


@pytest.mark.parametrize("given", [(16, 16, 16, 16), (16, 0, 16, 0), (0, 0, 0, 0), (16, 8, 16, 0)])
def test_copies_and_loads(given: tuple[int, ...]) -> None:
    x, out = RNG.integers(0, 256, 8192, np.uint8), np.zeros(8192, np.uint8)
    done = both(sizes(*given) + COPIES + LANDED + BACK, x, out)
    # a copy of a part is for the instructions themselves
    assert done == {"cp": int(8 not in given), "ld": 1, "st.global": 1}
    want = x.reshape(4, 128, 16).copy()
    for i, n in enumerate(given):
        want[i, :, n:] = 0
    assert np.array_equal(out, want.reshape(-1))


def test_some_lanes_that_copy_nothing_are_for_the_instructions_themselves() -> None:
    x, out = RNG.integers(0, 256, 8192, np.uint8), np.zeros(8192, np.uint8)
    some = "setp.lt.u32 %p1, %r0, 50; selp.b32 %r5, 16, 0, %p1;"
    done = both(sizes(16, 16, 16, 16) + some + COPIES + LANDED + BACK, x, out)
    assert done == {"cp": 0, "ld": 1, "st.global": 1}
    assert not out.reshape(4, 128, 16)[1, 50:].any()


def test_what_is_in_flight_or_was_never_written_is_found_in_a_group() -> None:
    x, out = np.ones(8192, np.uint8), np.zeros(8192, np.uint8)
    whole = sizes(16, 16, 16, 16)
    early = LANDED.replace("wait_group 0", "wait_group 1")
    assert "cp.async is still writing" in found(whole + COPIES + early + BACK, x, out)
    # one of the four is never written
    three = COPIES.rsplit("cp.async", 1)[0]
    assert "never defined" in found(whole + three + LANDED + BACK, x, out)
    # nor the source of one
    assert "never defined" in found(whole + COPIES + LANDED + BACK, x, out, fresh=(0,))


def test_a_copy_out_of_bounds_or_misaligned_is_found_in_a_group() -> None:
    x, out, whole = np.ones(8192, np.uint8), np.zeros(8192, np.uint8), sizes(16, 16, 16, 16)
    short = found(whole + COPIES + LANDED + BACK, x[:-16], out)
    assert "out of bounds" in short
    assert "+6144" in short
    for change, said in (
        (("[%r2+6144]", "[%r2+6160]"), "out of bounds"),
        (("[%r2+4096]", "[%r2+4104]"), "misaligned"),
        (("[%d5+4096]", "[%d5+4088]"), "misaligned"),
    ):
        assert said in found(whole + COPIES.replace(*change) + LANDED + BACK, x, out)


STORES = PLACE + "".join(f"st.shared.u32 [%r2+{2048 * i}], %r0;\n" for i in range(3))


# of each thread that of the thread 32 further on, in the next warp but for the last one
NEXT = "add.u32 %r6, %r0, 32; min.u32 %r6, %r6, 127; shl.b32 %r6, %r6, 4; mov.u32 %r7, s; add.u32 %r7, %r7, %r6;\n"


def test_races_of_a_group_name_its_instructions() -> None:
    out = np.zeros(8192, np.uint8)
    load = "ld.shared.u32 %r4, [{0}+2048]; ld.shared.u32 %r5, [{0}]; "
    keep = "st.global.u32 [%d6], %r5; st.global.u32 [%d6+4], %r4;"
    own, other = load.format("%r2") + keep, NEXT + load.format("%r7") + keep
    every = {"st": 1, "ld": 1, "st.global": 1}
    assert both(STORES + own, out, out.copy()) == every
    assert both(STORES + "bar.sync 0;" + other, out, out.copy()) == every
    said = found(STORES + other, out, out.copy())
    assert "this read is not ordered after `st.shared.u32 [%r2+2048], %r0`" in said
    # two writes of one group
    again = NEXT + "st.shared.u32 [%r7], %r1; st.shared.u32 [%r7+4096], %r0;"
    assert max(groups(program(STORES + again, 2, SHARED))["st"]) == 5
    said = found(STORES + again, out, out.copy())
    assert "this write is not ordered after `st.shared.u32 [%r2+0], %r0`" in said


def test_a_read_that_a_group_of_stores_races_with_is_undefined() -> None:
    out = np.zeros(8192, np.uint8)
    load = "ld.shared.u32 %r4, [%r7+2048]; ld.shared.u32 %r5, [%r7];"
    late = "st.shared.u32 [%r2], %r9; st.shared.u32 [%r2+2048], %r9;"
    body = "mov.u32 %r9, 777;" + STORES + "bar.sync 0;" + NEXT + load + late
    said = found(body + "st.global.u32 [%d6], %r5;", out, out.copy())
    assert "this write is not ordered after" in said
    assert "what was read matters" in said
    # where nothing depends on what was read it does not matter; the second run is one by one
    assert both(body, out, out.copy()) == {"st": 1, "ld": 1}


MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


def test_matrices_of_a_group() -> None:
    x = RNG.normal(size=4096).astype(np.float32)
    bf16 = (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)
    load = "".join(
        f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r{10 + 4 * i}, %r{11 + 4 * i}, %r{12 + 4 * i}, %r{13 + 4 * i}}}, [%r2+{2048 * i}];\n"
        for i in range(4)
    )
    zeros = "".join(f"mov.b32 %f{i}, 0f00000000;" for i in range(8))
    products = "".join(
        f"{MMA} {{%f0, %f1, %f2, %f3}}, {{%r{a}, %r{a + 1}, %r{a + 2}, %r{a + 3}}}, {{%r{b}, %r{b + 1}}}, {{%f0, %f1, %f2, %f3}};\n"
        f"{MMA} {{%f4, %f5, %f6, %f7}}, {{%r{a}, %r{a + 1}, %r{a + 2}, %r{a + 3}}}, {{%r{b + 2}, %r{b + 3}}}, {{%f4, %f5, %f6, %f7}};\n"
        for a, b in ((10, 18), (14, 22), (10, 22))
    )
    keep = "st.global.v4.f32 [%d6], {%f0, %f1, %f2, %f3}; st.global.v4.f32 [%d6+2048], {%f4, %f5, %f6, %f7};"
    body = sizes(16, 16, 16, 16) + COPIES + LANDED + load + zeros + products + keep
    for skew in (-1, 0, 1):
        out = np.zeros(8192, np.uint8)
        # three products of each sum, one after the other
        assert both(body, bf16, out, skew=skew) == {
            "cp": 1,
            "ldmatrix": 1,
            "mma": 3,
            "st.global": 1,
        }
        assert len(np.unique(out.view(np.float32))) > 900


def test_arithmetic_of_floats_in_a_group() -> None:
    x, out = RNG.normal(size=(4, 128)).astype(np.float32), np.zeros((4, 128), np.float32)
    load = "".join(f"ld.global.f32 %f{i}, [%e0+{512 * i}];" for i in range(4))
    work = "".join(
        f"ex2.approx.f32 %f{i + 4}, %f{i}; fma.rn.f32 %f{i}, %f{i + 4}, %f{i}, %f0;"
        for i in (3, 2, 1, 0)
    )
    store = "".join(f"st.global.f32 [%e1+{512 * i}], %f{i};" for i in range(4))
    # %f0 is written last, after the three that read it
    assert groups(program(load + work + store, 2)) == {"ex2": [4], "fma": [3], "st.global": [4]}
    every = {"ex2": 1, "fma": 1, "st.global": 1}
    for skew in (-1, 0, 1):
        assert both(load + work + store, x, out, skew=skew, head="") == every


def random_body(rng: np.random.Generator, length: int) -> str:
    """Arithmetic and shared memory on few registers, so that nearly everything depends on something."""
    lines = [f"cvt.rn.f32.u32 %f{i}, %r0; add.u32 %r{i + 4}, %r0, {i};" for i in range(6)]
    for _ in range(length):
        a, b, c = (int(n) for n in rng.integers(0, 6, 3))
        p = int(rng.integers(1, 3))
        lines.append(
            str(
                rng.choice(
                    [
                        f"fma.rn.f32 %f{a}, %f{b}, 0f3F000000, %f{c};",
                        f"mul.rn.f32 %f{a}, %f{b}, %f{c};",
                        f"cvt.rn.bf16.f32 %h{a}, %f{b};",
                        f"cvt.f32.bf16 %f{a}, %h{b};",
                        f"add.u32 %r{a + 4}, %r{b + 4}, %r{c + 4};",
                        f"setp.gt.f32 %p{p}, %f{a}, %f{b};",
                        f"@%p{p} add.rn.f32 %f{a}, %f{b}, %f{c};",
                        f"selp.f32 %f{a}, %f{b}, %f{c}, %p{p};",
                        f"st.shared.f32 [%r2+{4 * c}], %f{a};",
                        f"st.shared.v2.f32 [%r2+{8 * (c // 3)}], {{%f{a}, %f{b}}};",
                        f"ld.shared.f32 %f{a}, [%r2+{4 * c}];",
                        f"ld.shared.v2.f32 {{%f{a}, %f{(a + 1) % 6}}}, [%r2+{8 * (c // 3)}];",
                        f"mov.b32 %f{a}, %r{b + 4};",
                        f"shfl.sync.bfly.b32 %f{a}, %f{b}, {1 << c % 5}, 31, -1;",
                    ]
                )
            )
        )
    return "\n".join(lines)


@pytest.mark.parametrize("seed", range(30))
def test_random_code_does_the_same(seed: int) -> None:
    # of each thread its own 32 bytes, of which all are defined
    begin = (
        "mov.u32 %r2, s; shl.b32 %r3, %r0, 5; add.u32 %r2, %r2, %r3; mul.wide.u32 %d4, %r0, 32; add.s64 %d6, %d0, %d4;"
        "st.shared.v4.b32 [%r2], {%r0, %r3, %r0, %r3}; st.shared.v4.b32 [%r2+16], {%r3, %r0, %r0, %r3};"
        "setp.lt.u32 %p1, %r0, 9; setp.lt.u32 %p2, %r0, 80;"
    )
    halves = "".join(f"mov.b16 %h{i}, 0x3f80;" for i in range(6))
    keep = "".join(f"st.global.f32 [%d6+{4 * i}], %f{i};" for i in range(6))
    out = np.zeros(4096, np.uint8)
    both(begin + halves + random_body(np.random.default_rng(seed), 60) + keep, out)


def test_a_carry_keeps_its_order() -> None:
    carry = "add.cc.u32 %r4, %r0, 4294967290; cvt.rn.f32.u32 %f0, %r0; addc.u32 %r5, 0, 0; cvt.rn.f32.u32 %f1, %r1;"
    carry += "st.global.u32 [%e0], %r5;"
    assert groups(program(carry, 1)) == {}
    out = np.zeros(128, np.uint32)
    both(carry, out, head="")
    assert out.tolist() == [0] * 6 + [1] * 122


def test_a_barrier_of_all_orders_what_was_before() -> None:
    out = np.zeros(128, np.uint32)
    arrive = (
        "setp.lt.u32 %p1, %r0, 64; @%p1 bra A; bar.arrive 1, 128; bra B; A: bar.sync 1, 128; B: "
    )
    turn = (
        "mov.u32 %r2, s; shl.b32 %r3, %r0, 2; add.u32 %r2, %r2, %r3; st.shared.u32 [%r2], %r0; bar.sync 0;"
        "xor.b32 %r4, %r3, 508; mov.u32 %r5, s; add.u32 %r5, %r5, %r4; ld.shared.u32 %r6, [%r5];"
        "st.global.u32 [%e0], %r6;"
    )
    for body in (turn, arrive + turn):
        both(body, out)
        assert np.array_equal(out, np.arange(127, -1, -1))
    assert "a race in shared memory" in found(turn.replace("bar.sync 0;", ""), out)


def test_a_barrier_at_which_some_arrived_is_looked_at() -> None:
    some = "setp.lt.u32 %p1, %r0, 64; @%p1 bra A; bar.arrive 3, 96; A: bar.sync 3;"
    assert "different numbers of threads" in found(some, np.zeros(128, np.uint32))


def test_stores_to_global_memory() -> None:
    x, out = np.arange(8192, dtype=np.uint8), np.zeros(8192, np.uint8)
    store = PLACE + "setp.lt.u32 %p1, %r0, {0}; setp.ge.u32 %p2, %r0, {0}; mov.u32 %r9, 5;"
    store += "@%p1 st.global.u32 [%d6], %r0; @!%p2 st.global.u32 [%d6+{1}], %r9; st.global.u32 [%d6+4096], %r3;"
    for lanes, done in ((128, 1), (100, 0)):
        assert both(store.format(lanes, 2048), x, out) == {"st.global": done}
    # out of bounds; misaligned; two lanes, and two instructions, at one place
    assert "out of bounds" in found(store.format(128, 8192), x, out)
    assert "misaligned" in found(store.format(128, 2050), x, out)
    assert "two lanes write different values" in found(
        PLACE + "st.global.u32 [%d1], %r0; st.global.u32 [%d1+64], %r3;", x, out
    )
    assert "this write is not ordered after `@%p1 st.global.u32 [%d6], %r0`" in found(
        store.format(128, 512), x, out
    )
    # a value that was never defined
    assert "never defined" in found(store.format(128, 2048).replace("%r9;", "%r8;", 2), x, out)


def test_what_was_written_in_a_group_is_defined_and_restored_where_a_launch_is_run_again() -> None:
    x, out = np.arange(8192, dtype=np.uint8), np.zeros(8192, np.uint8)
    write = (
        PLACE + "st.global.u32 [%d6], %r0; st.global.u32 [%d6+4], %r3; st.shared.u32 [%r2], %r0;"
    )
    add = "ld.global.u32 %r4, [%d6]; add.u32 %r4, %r4, 1; st.global.u32 [%d6], %r4; st.global.u32 [%d6+8], %r4;"
    assert both(write + add, x, out, fresh=(1,)) == {"st.global": 2}
    # reads that race and do not matter: what was written before is taken back
    race = "bar.sync 0;" + NEXT + "ld.shared.u32 %r5, [%r7]; st.shared.u32 [%r2], %r3;"
    again = "ld.global.u32 %r4, [%d6+16]; add.u32 %r4, %r4, 1; st.global.u32 [%d6+16], %r4; st.global.u32 [%d6+32], %r4;"
    out[:] = 0
    both(PLACE.replace("%r0, 16", "%r0, 64") + again + "st.shared.u32 [%r2], %r0;" + race, x, out)
    assert out.view(np.uint32).reshape(-1, 16)[:, 4].tolist() == [1] * 128


def test_groups_of_stores_to_global_memory_race_with_each_other() -> None:
    x, out = np.ones(8192, np.uint8), np.zeros(8192, np.uint8)
    other = "add.u32 %r6, %r0, 32; and.b32 %r6, %r6, 127; mul.wide.u32 %d7, %r6, 16; add.s64 %d7, %d1, %d7;"
    body = PLACE + "st.global.u32 [%d6], %r0; st.global.u32 [%d6+4], %r0; ld.global.u32 %r4, [%d5];"
    again = "st.global.u32 [{0}], %r3; st.global.u32 [{0}+4], %r3;"
    assert both(body + again.format("%d6"), x, out) == {"st.global": 2}
    said = found(body + other + again.format("%d7"), x, out)
    assert "this write is not ordered after `st.global.u32 [%d6], %r0`" in said
    said = found(body + other + "st.global.u32 [%d7+4], %r3;", x, out)
    assert "this write is not ordered after `st.global.u32 [%d6+4], %r0`" in said


def test_what_blocks_wait_for_is_looked_at_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll begins a stretch, where the schedule sees it; stores count as a change of what others poll."""
    poll = "shfl.sync.idx.b32 %r7, %r0, 0, 31, -1; ld.acquire.gpu.global.u32 %r5, [%d0]; st.global.u32 [%e1], %r5;"
    made = program("mov.u32 %r9, 1;" + poll, 2)
    assert made.polls
    inside = {n for block in made.blocks for n in range(block.number + 1, block.last + 1)}
    assert not made.polls & inside
    windows = []
    real = machine._window

    def window(*given: Any) -> Any:
        windows.append(real(*given))
        return windows[-1]

    monkeypatch.setattr(machine, "_window", window)
    stores = program("st.global.u32 [%e0], %r0; st.global.u32 [%e0+512], %r0;", 1)
    done = counted(stores)
    go(stores, (np.zeros(256, np.uint32),))
    assert done == {"st.global": 1}
    assert windows[-1].version == 1
