"""What is checked and noted of each access: races, bytes in flight, bytes whose value is not defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.batch import WARP, Batch
from contract.engines.ptx.faults import PtxFault
from contract.engines.ptx.memory import Bytes, Region, Space
from contract.engines.ptx.races import SharedShadow, Unordered

Array = NDArray[Any]


def note_read(
    b: Batch, memory: Bytes, at: Array, size: int, lanes: Array, strong: bool, narrow: bool = False
) -> Array | None:
    """Check a read for races and note it; which of the accesses read bytes without a value: never written, or racing.

    narrow: of .cta scope.
    """
    g, each = memory.granules(at, size)
    racing = None
    if memory.shadow is not None:
        by = lanes if each == 1 else np.repeat(lanes, each)
        racing = b.racing.undefined(b.now, memory, g, b.grid_warp[by]) if b.racing.readers else None
        _note_read(b, memory, g, by, strong, narrow, racing)
    fresh = None if memory.defined is None else ~memory.defined[g]
    bad = racing if fresh is None else fresh if racing is None else fresh | racing
    if bad is None or not bad.any():
        return None
    if racing is not None:
        b.racing.reads += int(np.count_nonzero(racing.reshape(-1, each).any(1)))
    return bad if each == 1 else np.asarray(bad.reshape(-1, each).any(1))


def _note_read(
    b: Batch,
    memory: Bytes,
    g: Array,
    by: Array,
    strong: bool,
    narrow: bool,
    racing: Array | None,
) -> None:
    """Check and note a read of granules by lanes; those that are known to race are not looked for again."""
    shadow, order = memory.shadow, b.order
    time = order.tick(b.now)
    _landed(b, memory, g, by, "reads")
    warp = b.grid_warp[by]
    found: list[Unordered] = []
    if strong:
        order.look(np.unique(b.warp[by]))
    if isinstance(shadow, SharedShadow):
        found = shadow.unordered(g, b.warp[by], by % WARP, order, write=False, atomic=strong)
    else:
        assert shadow is not None
        if strong and not narrow:
            order.acquired[np.unique(warp // order.warps)] = time
        found = shadow.unordered(g, warp, order, write=False, atomic=strong, narrow=narrow)
    for one in found:
        _racing_read(b, memory, g, by, one)
    if strong:
        return
    if racing is not None:
        g, by, warp = g[~racing], by[~racing], warp[~racing]
    if isinstance(shadow, SharedShadow):
        shadow.mark_read(g, b.local_warp[by], by % WARP, time)
    else:
        shadow.mark_read(g, warp, time, order.warps)


def _racing_read(b: Batch, memory: Bytes, g: Array, by: Array, one: Unordered) -> None:
    """A read that is not ordered after a write: what it gives is undefined."""
    assert b.now is not None
    b.racing.add(
        b.now,
        memory,
        g[one.at],
        b.grid_warp[by[one.at]],
        lambda: _race(b, memory, "read", int(by[one.at[0]]), one),
    )


def _racing_write(b: Batch, memory: Bytes, g: Array, by: Array, one: Unordered) -> None:
    """A write that is not ordered after reads: what they gave is undefined."""
    order, shared = b.order, isinstance(memory, Space)
    writer, when = b.grid_warp[by[one.at]].astype(np.int64), one.when
    who, granule = one.who, g[one.at]
    if shared:
        who = writer // order.warps * order.warps + who
    else:
        # one reader is kept of a block: the others that read there are no more ordered than it is
        every = (who // order.warps * order.warps)[:, None] + np.arange(order.warps)
        writer = np.repeat(writer, order.warps)
        when, granule = np.repeat(when, order.warps), np.repeat(granule, order.warps)
        who = every.ravel()
        late = (who != writer) & ~order.before(who, when, writer)
        who, when, granule = who[late], when[late], granule[late]
    for time in np.unique(when):
        mine = when == time
        b.racing.add(
            order.history[int(time)],
            memory,
            granule[mine],
            who[mine],
            lambda: _race(b, memory, "write", int(by[one.at[0]]), one),
        )


def note_write(
    b: Batch,
    memory: Bytes,
    at: Array,
    size: int,
    lanes: Array,
    changed: Callable[[], Array],
    *,
    atomic: bool = False,
    observed: bool = False,
    narrow: bool = False,
    undefined: Array | None = None,
) -> None:
    """Check a write for races and note it, before it is done. changed: of each access, whether bytes will change;
    observed: whether what an atomic gives is looked at; narrow: whether it is of .cta scope."""
    g, each = memory.granules(at, size)
    shadow, order = memory.shadow, b.order
    if isinstance(memory, Region):
        memory.keep()
    if memory.defined is not None:
        bad = undefined if undefined is None or each == 1 else np.repeat(undefined, each)
        memory.defined[g] = True
        if bad is not None:
            # where several lanes store at once any may win
            memory.defined[g[bad]] = False
    if shadow is None:
        return
    time = order.tick(b.now)
    by = lanes if each == 1 else np.repeat(lanes, each)
    _landed(b, memory, g, by, "writes")
    if isinstance(shadow, SharedShadow):
        found = shadow.unordered(g, b.warp[by], by % WARP, order, write=True, atomic=atomic)
    else:
        found = shadow.unordered(
            g, b.grid_warp[by], order, write=True, atomic=atomic, narrow=narrow
        )
    for one in found:
        differs = changed() if each == 1 else np.repeat(changed(), each)
        chosen = differs[one.at]
        one = Unordered(one.at[chosen], one.who[chosen], one.when[chosen], one.reads)
        if not len(one.at):
            continue
        if not one.reads:
            raise PtxFault(_race(b, memory, "write", int(by[one.at[0]]), one))
        _racing_write(b, memory, g, by, one)
    if isinstance(shadow, SharedShadow):
        shadow.mark_write(g, b.local_warp[by], by % WARP, time, atomic=atomic, observed=observed)
    else:
        shadow.mark_write(
            g,
            b.grid_warp[by],
            time,
            order.warps,
            atomic=atomic,
            observed=observed,
            narrow=narrow,
        )


def _landed(b: Batch, memory: Bytes, g: Array, by: Array, what: str) -> None:
    """Raise where shared memory is touched that a copy is on its way to."""
    flight = memory.flight if isinstance(memory, Space) else None
    if flight is not None and flight[g].any():
        bad = int(np.nonzero(flight[g])[0][0])
        b.fault(f"{what} shared memory that a cp.async is still writing", int(by[bad]))


def _race(b: Batch, memory: Bytes, kind: str, lane: int, one: Unordered) -> str:
    """What is said of a race: both instructions, and who executed them."""
    earlier = b.order.history[int(one.when[0])]
    who = int(one.who[0])
    shared = isinstance(memory, Space)
    other = f"warp {who}" if shared else b.warp_of_grid(who)
    if shared and who == b.local_warp[lane]:
        other = "another lane of its warp: bar.warp.sync, __syncwarp() in CUDA, orders them"
    space = "shared" if shared else "global"
    return (
        f"{b.where()}: a race in {space} memory: this {kind} is not ordered after `{earlier.text}`"
        f" ({b.program.line(earlier)}) of {other}; {b.who(lane)}"
    )


def write(
    b: Batch,
    memory: Bytes,
    at: Array,
    size: int,
    lanes: Array,
    values: Array,
    bad: Array | None,
    *,
    strong: bool = False,
    narrow: bool = False,
) -> None:
    """Check, note and do a write."""

    def changed() -> Array:
        differs: Array = (
            memory.take(at, values.dtype, 1 if values.ndim == 1 else values.shape[1]) != values
        )
        return differs if values.ndim == 1 else np.asarray(differs.any(1))

    note_write(b, memory, at, size, lanes, changed, atomic=strong, narrow=narrow, undefined=bad)
    memory.put(at, values)
    if isinstance(memory, Region):
        b.window.version += 1
    if memory.shadow is not None:
        lost = changed()
        if lost.any() and bad is None:
            if isinstance(memory, Space):
                # of one instruction it is left open which lane wins: warps that hold copies of a sum, each rounded in
                # its own order where products are fused, all store it
                b.racing.contended = True
                if b.skew < 0:
                    memory.put(at[::-1], values[::-1])
                if b.skew > 0:
                    # neither the first nor the last
                    half = len(at) // 2
                    memory.put(np.roll(at, half), np.roll(values, half, axis=0))
                return
            first = int(np.nonzero(lost)[0][0])
            winner = int(np.nonzero(at == at[first])[0][-1])
            b.fault(
                f"two lanes write different values to one place, byte {int(at[first]):,} of {memory.name};"
                f" the other is {b.who(int(lanes[winner]))}",
                int(lanes[first]),
            )
