"""atom and red: a value in memory replaced by a function of it, one lane after the other.

Lanes take their turns by number; on a device the order is open, so that sums of floating-point numbers may differ.

Source: PTX ISA, sections 9.7.13.5 (atom), 9.7.13.7 (red): `add.f32` on global memory flushes subnormal inputs and
results to zero, on shared memory it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx import table
from contract.engines.ptx.accesses import (
    Run,
    Shape,
    destinations,
    lanes_of,
    malformed,
    parts,
    published,
    undefined,
    unsupported,
    where,
)
from contract.engines.ptx.batch import Batch, Mask
from contract.engines.ptx.decoded import SIGNED, Constant, Instruction, Place, Program, Register
from contract.engines.ptx.faults import Unsupported
from contract.engines.ptx.memory import Bytes, Region
from contract.engines.ptx.noting import note_write
from contract.engines.ptx.syntax import width

Array = NDArray[Any]
OPERATIONS = frozenset(["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"])
Function = Callable[..., Array]


def atom(program: Program, instruction: Instruction) -> Run:
    """atom (with the old value) and red (without)."""
    keeps = instruction.root == "atom"
    shape = Shape(instruction, OPERATIONS | {"noftz"})
    operation = [p for p in shape.rest if p != "noftz"]
    if len(operation) != 1 or shape.k != 1 or shape.space == "local":
        raise unsupported(instruction)
    given = instruction.operands if keeps else (None, *instruction.operands)
    # a cache policy may follow
    count = 2 if operation[0] == "cas" else 1
    policy = "L2::cache_hint" in instruction.opcode
    if len(given) != 2 + count + policy:
        raise malformed(instruction, f"an address and {count} sources")
    target = destinations(given[0], shape, instruction)[0] if keeps else (-1, None)
    address = where(program, given[1], shape, instruction)
    bits = width(shape.type)
    sources = []
    for what in given[2 : 2 + count]:
        if not isinstance(what, (Register, Constant, Place)) or (
            isinstance(what, Register) and what.width != bits
        ):
            raise malformed(instruction, f"a source of {bits} bits")
        sources.append(program.slot(what, bits))
    registers = tuple(w.index for w in given[2 : 2 + count] if isinstance(w, Register))
    f = function(operation[0], shape.type, instruction)
    flushed = (
        function("flush", shape.type, instruction)
        if (operation[0], shape.type) == ("add", "f32")
        else f
    )
    dtype, size, space = shape.dtype, shape.size, shape.space
    index, fit = target
    observed = index >= 0 and any(
        index in one.reads
        for block in program.blocks
        for one in (*block.body, *([block.end] if block.end else []))
    )

    def run(b: Batch, m: Mask) -> None:
        flat = b.active(address(b), m)
        values = [b.active(b.regs[s], m) for s in sources]
        if b.poison and (bad := undefined(b, registers, m)) is not None:
            lane = int(np.nonzero(bad)[0][0])
            b.visible(
                "takes a value that was never defined",
                lane if m.index is None else int(m.index[lane]),
            )
        old = np.zeros(m.count, dtype)
        for memory, chosen, at in parts(b, m, flat, size, space):
            lanes = lanes_of(b, m, chosen)
            mine = values if chosen is None else [v[chosen] for v in values]
            _noted(b, memory, at, size, lanes, operation[0], shape, observed)
            shared = isinstance(memory, Region)
            got = in_turn(memory, at, dtype, mine, flushed if shared else f)
            if shared and b.program.polls and (memory.take(at, dtype) != got).any():
                # what failed to take a lock changed nothing
                b.window.version += 1
            old[slice(None) if chosen is None else chosen] = got
        if index >= 0:
            b.put_active(index, old if fit is None else fit(old), m)
            if b.poison:
                b.set_poison(index, None, m)

    instruction.propagates = False
    return run


def _noted(
    b: Batch,
    memory: Bytes,
    at: Array,
    size: int,
    lanes: Array,
    operation: str,
    shape: Shape,
    observed: bool,
) -> None:
    if memory.defined is not None and operation != "exch":
        g, each = memory.granules(at, size)
        fresh = ~memory.defined[g]
        if fresh.any():
            bad = int(np.nonzero(fresh)[0][0]) // each
            b.fault(f"changes {memory.name} that was never written", int(lanes[bad]))
    every = np.ones(len(at), bool)
    note_write(
        b,
        memory,
        at,
        size,
        lanes,
        lambda: every,
        atomic=True,
        observed=observed,
        narrow=shape.narrow,
    )
    published(b, memory, lanes, shape)
    b.order.look(np.unique(b.warp[lanes]))
    if isinstance(memory, Region) and not shape.narrow:
        b.order.acquired[np.unique(b.owner[lanes]) + b.first] = b.order.time + 1


def in_turn(memory: Bytes, at: Array, dtype: Any, values: list[Array], f: Function) -> Array:
    """Apply f lane by lane; what each lane found. Lanes of different places take their turns together."""
    old = np.zeros(len(at), dtype)
    order = np.argsort(at, kind="stable")
    places = at[order]
    starts = np.flatnonzero(np.r_[True, places[1:] != places[:-1]])
    turn = np.arange(len(at)) - np.repeat(starts, np.diff(np.r_[starts, len(at)]))
    by_turn = np.argsort(turn, kind="stable")
    for chosen in np.split(order[by_turn], np.flatnonzero(np.diff(turn[by_turn])) + 1):
        where_to = at[chosen]
        found = memory.take(where_to, dtype)
        memory.put(where_to, f(found, *(v[chosen] for v in values)).astype(dtype, copy=False))
        old[chosen] = found
    return old


def function(operation: str, kind: str, instruction: Instruction) -> Function:
    """What an operation makes of the value in memory and the operands, all raw bits."""
    bits = width(kind)
    if operation in ("and", "or", "xor"):
        call: Any = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[operation]
        return (
            cast(Function, call)
            if kind == f"b{bits}" and bits in (32, 64)
            else _refuse(instruction)
        )
    if operation == "exch":
        return (lambda old, new: new) if kind in ("b32", "b64") else _refuse(instruction)
    if operation == "cas":
        if kind not in ("b16", "b32", "b64"):
            return _refuse(instruction)
        return lambda old, wanted, new: np.asarray(np.where(old == wanted, new, old))
    if operation in ("inc", "dec"):
        if kind != "u32":
            return _refuse(instruction)
        one: Any = np.uint32(1)
        if operation == "inc":
            return lambda old, top: np.where(old >= top, np.uint32(0), old + one)
        return lambda old, top: np.where((old == 0) | (old > top), top, old - one)
    if kind in ("u32", "u64", "s32", "s64"):
        return _integer(operation, kind)
    if operation in ("add", "flush") and kind in ("f32", "f64"):
        dtype = np.float32 if kind == "f32" else np.float64
        if operation == "flush":
            return lambda old, x: _flush(_flush(old).view(dtype) + _flush(x).view(dtype)).view(
                old.dtype
            )
        return lambda old, x: (old.view(dtype) + x.view(dtype)).view(old.dtype)
    if operation in ("add", "min", "max") and kind in ("f16", "f16x2", "bf16", "bf16x2"):
        if operation == "add" and "noftz" not in instruction.parts:
            return _refuse(instruction)
        opcode = f"add.rn.{kind}" if operation == "add" else f"{operation}.{kind}"
        try:
            found: Function = table.find(opcode).call
        except Unsupported as error:
            raise unsupported(instruction, str(error)) from None
        return found
    return _refuse(instruction)


def _refuse(instruction: Instruction) -> Function:
    raise unsupported(instruction)


def _integer(operation: str, kind: str) -> Function:
    bits = width(kind)
    dtype: Any = SIGNED[bits] if kind[0] == "s" else None
    call: Any = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation]
    if dtype is None or operation == "add":
        return lambda old, x: call(old, x)
    return lambda old, x: call(old.view(dtype), x.view(dtype)).view(old.dtype)


def _flush(x: Array) -> Array:
    """Subnormal fp32 to zero of the same sign."""
    raw = x.view(np.uint32)
    return np.where(raw & np.uint32(0x7F800000) == 0, raw & np.uint32(0x80000000), raw)


__all__ = ["OPERATIONS", "Mask", "atom"]
