"""The memory a kernel touches: regions of real memory under their real addresses, and bytes that lanes or blocks own.

An access lies whole inside one region, at a multiple of its size; anything else is a fault.

Source: PTX ISA, sections 5.1 (State Spaces), 6.4.1 (addresses: aligned to the access size), 9.7.9 (data movement).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.engines.ptx.races import GlobalShadow, SharedShadow

Array = NDArray[Any]
# Generic addresses of shared, local and parameter memory: far above what an operating system hands out (below 1 << 57).
WINDOWS = {"shared": 1 << 60, "local": 1 << 61, "param": 1 << 62}
WINDOW_BYTES = 1 << 32
# An address so far from every buffer is wrong in another way than by an index.
FAR = 1 << 30


class Bytes:
    """A run of bytes that is read and written at many positions at once.

    Attributes:
        defined: one bool a granule: whether it was ever written; None where all is.
    """

    def __init__(self, view: Array, address: int, name: str) -> None:
        if view.dtype != np.uint8 or view.ndim != 1:
            raise TypeError(f"{name}: memory is a one-dimensional array of uint8")
        self.view, self.address, self.name = view, address, name
        self.shift = 0
        self.defined: Array | None = None
        self.shadow: SharedShadow | GlobalShadow | None = None
        self._typed: dict[tuple[Any, int], Array] = {}

    def grain(self, size: int) -> None:
        """Watch `size` bytes as one, from now on; a power of two."""
        before, self.shift = self.shift, size.bit_length() - 1
        if self.defined is not None and before != self.shift:
            count = (len(self.view) >> self.shift) + 1
            every = np.zeros(count << self.shift, bool)
            known = np.repeat(self.defined, 1 << before)[: len(every)]
            every[: len(known)] = known
            self.defined = np.asarray(every.reshape(count, -1).all(1))

    def granules(self, at: Array, size: int) -> tuple[Array, int]:
        """The granules of accesses at these positions, all of one access together, and how many each has."""
        first = at >> self.shift
        each = max(size >> self.shift, 1)
        if each == 1:
            return first, 1
        return (first[:, None] + np.arange(each)).ravel(), each

    def _rows(self, dtype: Any, k: int) -> Array | None:
        key = (dtype, k)
        if key not in self._typed:
            size = np.dtype(dtype).itemsize * k
            if self.address % size:
                return None
            whole = self.view[: len(self.view) // size * size].view(dtype)
            self._typed[key] = whole if k == 1 else whole.reshape(-1, k)
        return self._typed[key]

    def take(self, at: Array, dtype: Any, k: int = 1) -> Array:
        """(n,) elements at n positions, or (n, k) vectors of them."""
        size = np.dtype(dtype).itemsize * k
        rows = self._rows(dtype, k)
        if rows is not None:
            return np.asarray(rows[at >> (size.bit_length() - 1)])
        raw = self.view[at[:, None] + np.arange(size)]
        return np.asarray(raw.view(dtype) if k > 1 else raw.view(dtype)[:, 0])

    def put(self, at: Array, values: Array) -> None:
        """Write (n,) elements or (n, k) vectors; where positions coincide the last one stays."""
        k = 1 if values.ndim == 1 else values.shape[1]
        size = values.dtype.itemsize * k
        rows = self._rows(values.dtype, k)
        if rows is not None:
            rows[at >> (size.bit_length() - 1)] = values
            return
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(at), size)
        self.view[at[:, None] + np.arange(size)] = raw


class Region(Bytes):
    """A tensor's storage, or a module's variable."""

    # what it was before the launch: its bytes, and which were defined; None until the launch writes it
    kept: tuple[Array, Array | None] | None = None
    # of each granule when it was read through the non-coherent cache, 0 for never; None where none was
    constant: Array | None = None

    def keep(self) -> None:
        """Keep what it is before it is written."""
        if self.kept is None:
            self.kept = self.view.copy(), None if self.defined is None else self.defined.copy()

    def restore(self) -> None:
        """Be as before the launch."""
        if self.kept is not None:
            self.view[:], self.defined = self.kept
            self.kept = None

    @property
    def end(self) -> int:
        return self.address + len(self.view)


class GlobalMemory:
    """Regions of global memory, sorted by address."""

    def __init__(self) -> None:
        self.regions: list[Region] = []

    def add(self, address: int, view: Array, name: str, initialised: bool = True) -> None:
        """Let kernels touch these bytes under this address.

        Args:
            view: one-dimensional uint8; what a kernel writes is written there.
            name: for messages.
            initialised: False for memory whose contents mean nothing yet: reading it before it is written is a fault.
        """
        made = Region(view, address, name)
        if not initialised:
            made.defined = np.zeros(len(view) + 1, bool)
        at = bisect.bisect([r.address for r in self.regions], address)
        near = self.regions[max(at - 1, 0) : at + 1]
        for other in near:
            if address < other.end and other.address < made.end:
                raise ValueError(f"{name} overlaps {other.name}")
        self.regions.insert(at, made)

    def initialise(self, address: int, span: tuple[int, int] | None = None) -> None:
        """Count the region that begins at this address as written: something else than a kernel did.

        Args:
            span: the first of its bytes and the one past the last, where not all.
        """
        for region in self.regions:
            if region.address != address:
                continue
            if span is None:
                region.defined = None
            elif region.defined is not None:
                # between launches: the next one says how many bytes it watches as one
                region.grain(1)
                region.defined[span[0] : span[1]] = True


class Window:
    """The regions of one launch: the caller's, and the module's own variables.

    Attributes:
        version: grows whenever a byte of them may have changed.
    """

    def __init__(self, regions: Iterable[Region], grain: int) -> None:
        self.regions = sorted(regions, key=lambda r: r.address)
        self.starts = np.array([r.address for r in self.regions], np.uint64)
        self.ends = [r.end for r in self.regions]
        self.last: Region | None = None
        self.version = 0
        for r in self.regions:
            # granules begin with the region: of one at an odd address they are single bytes
            r.grain(min(grain, r.address & -r.address or grain))
            r.shadow = GlobalShadow((len(r.view) >> r.shift) + 1)
            r.kept = r.constant = None

    def restore(self) -> None:
        """Be as before the launch."""
        for r in self.regions:
            r.restore()

    def done(self) -> None:
        """Drop what is needed during a launch only."""
        for r in self.regions:
            r.shadow = r.kept = r.constant = None

    def nearest(self, address: int) -> str:
        """The region that lies nearest to an address, in words; no address, which differs from run to run."""
        if not self.regions:
            return "there is no memory at all"

        def distance(r: Region) -> int:
            return max(r.address - address, address - r.end + 1, 0)

        found = min(self.regions, key=distance)
        if distance(found) > FAR:
            return "far from every buffer"
        where = f"{address - found.address} bytes from the start"
        if address >= found.end:
            where = f"{address - found.end} bytes past the end"
        elif address < found.address:
            where = f"{found.address - address} bytes before the start"
        return f"{where} of {found.name} ({len(found.view)} bytes)"

    def find(self, low: int, high: int) -> Region | None:
        """The region that holds all of low..high-1."""
        last = self.last
        if last is not None and last.address <= low and high <= last.address + len(last.view):
            return last
        at = int(np.searchsorted(self.starts, np.uint64(low), "right")) - 1
        if at >= 0 and high <= self.ends[at]:
            self.last = self.regions[at]
            return self.last
        return None

    def split(self, address: Array, size: int) -> tuple[list[tuple[Region, Array]], Array]:
        """Regions with the indices of the addresses inside them, and the indices of those outside all."""
        which = np.searchsorted(self.starts, address, "right").astype(np.int64) - 1
        inside = which >= 0
        for i in np.unique(which[inside]):
            inside &= (which != i) | (address <= np.uint64(max(self.ends[i] - size, 0)))
        found = [
            (self.regions[i], np.nonzero(inside & (which == i))[0])
            for i in np.unique(which[inside])
        ]
        return found, np.nonzero(~inside)[0]


class Space(Bytes):
    """Memory that each block (shared) or each lane (local) has for itself.

    Attributes:
        base: of each lane, where its owner's bytes begin in `view`.
        limit: bytes of each owner.
        flight: granules that a cp.async has been started for and that no wait has made visible.
    """

    def __init__(self, name: str, owners: int, limit: int, base: Array, grain: int) -> None:
        self.limit = limit
        self.stride = -(-max(limit, 16) // 128) * 128
        super().__init__(np.zeros(owners * self.stride, np.uint8), 0, name)
        self.base = base * self.stride
        self.grain(grain)
        self.defined = np.zeros(len(self.view) >> self.shift, bool)
        self.flight: Array | None = None
