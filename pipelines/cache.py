"""Keys and values of the positions a decoder has seen, one slot a position, written by a verified kernel.

A layer's part is (sequences, slots, kv heads, d). Slots that hold nothing are poisoned (NaN; the least code of an integer
format), so that a kernel that reads one shows it. A ring has as many slots as its window: position p lies in slot p mod
slots, and the oldest one is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from contract.errors import ContractError
from contract.pipelines.guard import measuring

PARTS = ("keys", "values")


class CacheError(ContractError):
    """A row that has no slot, layers that are at different positions, or a cache that cannot be."""


@dataclass(frozen=True)
class Form:
    """How keys, or values, are held."""

    dtype: torch.dtype
    #: append(cache=(rows, slots, kv, d), new=(rows, kv, d), slot=(rows,) int32): overwrites one slot of every row, as
    #: contract.verified("kv_append", ring="no") does. Bind further arguments (a scale) by functools.partial.
    append: Callable[..., Any]


@dataclass(frozen=True)
class Snapshot:
    """A copy of a cache; what is appended later does not reach it."""

    keys: torch.Tensor
    values: torch.Tensor
    lengths: tuple[tuple[int, ...], ...]


class KVCache:
    """Slots for keys and values of all layers, allocated at once.

    Args:
        layers, kv_heads, d: of the model.
        capacity: slots at first; the window of a ring.
        keys, values: how they are held; values as keys where absent.
        sequences: how many are decoded side by side.
        limit: slots at most: a full cache doubles up to there. Its capacity where absent, and for a ring.
        ring: whether a full cache overwrites its oldest slot.

    Raises:
        CacheError: a size below 1, a limit below the capacity or of a ring, or sizes that memory does not hold.
    """

    def __init__(
        self,
        layers: int,
        capacity: int,
        kv_heads: int,
        d: int,
        keys: Form,
        values: Form | None = None,
        *,
        sequences: int = 1,
        limit: int | None = None,
        ring: bool = False,
    ) -> None:
        sizes = {"layers": layers, "capacity": capacity, "kv_heads": kv_heads, "d": d, "sequences": sequences}  # fmt: skip
        for name, size in sizes.items():
            if size < 1:
                raise CacheError(f"a cache with {name}={size}; give 1 or more")
        self.limit = capacity if limit is None else limit
        if self.limit < capacity or (ring and self.limit != capacity):
            raise CacheError(
                f"a cache of {capacity} slots with limit={limit}; give a limit of {capacity} or more"
                f"{', and none for a ring' if ring else ''}"
            )
        self.ring, self.forms = ring, (keys, values or keys)
        self._shape = (layers, sequences, capacity, kv_heads, d)
        self._parts = self._allocated(capacity)
        self._lengths = [[0] * sequences for _ in range(layers)]
        self._zeros = torch.zeros(0, dtype=torch.int32)

    @property
    def capacity(self) -> int:
        """Slots that there are now."""
        return int(self._parts[0].shape[2])

    def length(self, sequence: int = 0) -> int:
        """Positions that a sequence has seen.

        Raises:
            CacheError: layers are at different ones: a step was left in its middle; `truncate` ends it.
        """
        found = {of_layer[sequence] for of_layer in self._lengths}
        if len(found) > 1:
            raise CacheError(
                f"sequence {sequence}: layers hold from {min(found)} to {max(found)} positions; append to every layer"
                f" once a step, or truncate({min(found)}) after one that was left"
            )
        return found.pop()

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """One new position of every sequence in a layer: keys and values (sequences, kv, d).

        Raises:
            CacheError: no slot is left; nothing is written.
        """
        lengths = self._lengths[layer]
        self._make_room(max(lengths) + 1)
        slot = torch.tensor([self._slot(n) for n in lengths], dtype=torch.int32)
        for part, form, new in zip(self._parts, self.forms, (keys, values), strict=True):
            form.append(cache=part[layer], new=new, slot=slot)
        self._lengths[layer] = [n + 1 for n in lengths]

    def extend(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, sequence: int = 0
    ) -> None:
        """New positions of one sequence in a layer, in order: keys and values (positions, kv, d).

        To the kernel each slot is a cache of one slot, so that a run of slots is one call. Of more positions than a ring
        has slots the last ones stay: attend to the earlier ones before.

        Raises:
            CacheError: not as many values as keys, or no slot is left; nothing is written.
        """
        rows = len(keys)
        if len(values) != rows:
            raise CacheError(f"layer {layer}: {rows} keys and {len(values)} values; give as many")
        start = self._lengths[layer][sequence]
        self._make_room(start + rows)
        for at, slot, count in self._runs(start, rows):
            zeros = self._first_slots(count)
            for part, form, new in zip(self._parts, self.forms, (keys, values), strict=True):
                slots = part[layer, sequence, slot : slot + count].unsqueeze(1)
                form.append(cache=slots, new=new[at : at + count], slot=zeros)
        self._lengths[layer][sequence] = start + rows

    def _first_slots(self, count: int) -> torch.Tensor:
        """(count,) zeros, one tensor for all layers of a step: what a kernel has looked at it need not look at again."""
        if len(self._zeros) != count:
            self._zeros = torch.zeros(count, dtype=torch.int32)
        return self._zeros

    def used(self, layer: int, sequence: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of a sequence's filled slots of a layer: keys and values (slots, kv, d), in the order of the slots."""
        count = min(self._lengths[layer][sequence], self.capacity)
        keys, values = (part[layer, sequence, :count] for part in self._parts)
        return keys, values

    def slots(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of all slots of a layer, poisoned ones too: keys and values (sequences, slots, kv, d)."""
        keys, values = (part[layer] for part in self._parts)
        return keys, values

    def lengths(self, layer: int) -> torch.Tensor:
        """Filled slots of every sequence in a layer: (sequences,) int32."""
        filled = [min(n, self.capacity) for n in self._lengths[layer]]
        return torch.tensor(filled, dtype=torch.int32)

    def positions(self, layer: int, sequence: int = 0) -> list[int]:
        """The position that lies in each filled slot of a layer, in the order of the slots."""
        length, slots = self._lengths[layer][sequence], self.capacity
        # of a ring: the last one that has this remainder
        return [length - 1 - (length - 1 - slot) % slots for slot in range(min(length, slots))]

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget a sequence's positions from `length` on, in every layer: a step that was left, a draft refused.

        Raises:
            CacheError: more positions than a layer holds, or those that a ring has overwritten.
        """
        held = [of_layer[sequence] for of_layer in self._lengths]
        lost = self.ring and max(held) > self.capacity and length < max(held)
        if not 0 <= length <= min(held) or lost:
            raise CacheError(
                f"truncate({length}) of a sequence of {min(held)} positions"
                f"{': its ring has overwritten the oldest ones' if lost else ''}; give one that is still held"
            )
        for of_layer in self._lengths:
            of_layer[sequence] = length

    def snapshot(self) -> Snapshot:
        """A copy of all slots and lengths."""
        keys, values = (part.clone() for part in self._parts)
        return Snapshot(keys, values, tuple(tuple(of_layer) for of_layer in self._lengths))

    def restore(self, before: Snapshot) -> None:
        """Be what the snapshot was of, its capacity too.

        Raises:
            CacheError: a snapshot of a cache of other sizes or dtypes.
        """
        self._matched(before)
        self._parts = (before.keys.clone(), before.values.clone())
        self._lengths = [list(of_layer) for of_layer in before.lengths]

    def slots_changed(self, before: Snapshot) -> dict[tuple[int, int], list[tuple[int, str]]]:
        """Slots of which a bit differs from the snapshot: (sequence, slot) -> [(layer, 'keys' or 'values'), ...].

        After a step of one sequence that is one slot, with both of every layer. Slots that came by growth were poisoned.

        Raises:
            CacheError: a snapshot of a cache of other sizes or dtypes, or of more slots than there are.
        """
        self._matched(before)
        if before.keys.shape[2] > self.capacity:
            raise CacheError(
                f"the snapshot has {before.keys.shape[2]} slots, the cache {self.capacity}; give an earlier one"
            )
        found: dict[tuple[int, int], list[tuple[int, str]]] = {}
        for name, part, old in zip(PARTS, self._parts, (before.keys, before.values), strict=True):
            with measuring():
                same = _poisoned(part.shape, part.dtype)
                same[:, :, : old.shape[2]] = old
                differs = (_bytes(part) != _bytes(same)).any(-1)
                places = differs.nonzero().tolist()
            for layer, sequence, slot in places:
                found.setdefault((sequence, slot), []).append((layer, name))
        return {place: sorted(found[place]) for place in sorted(found)}

    def _matched(self, before: Snapshot) -> None:
        for name, part, old in zip(PARTS, self._parts, (before.keys, before.values), strict=True):
            here, there = list(part.shape), list(old.shape)
            del here[2], there[2]
            if here != there or part.dtype != old.dtype:
                raise CacheError(
                    f"{name} of the snapshot are {old.dtype} {tuple(old.shape)}, of the cache {part.dtype}"
                    f" {tuple(part.shape)}; give a snapshot of this cache"
                )

    def _slot(self, position: int) -> int:
        return position % self.capacity if self.ring else position

    def _runs(self, start: int, rows: int) -> Iterator[tuple[int, int, int]]:
        """Rows that lie side by side: (the first one, its slot, how many)."""
        at = 0
        while at < rows:
            slot = self._slot(start + at)
            count = min(rows - at, self.capacity - slot)
            yield at, slot, count
            at += count

    def _make_room(self, needed: int) -> None:
        if self.ring or needed <= self.capacity:
            return
        if needed > self.limit:
            raise CacheError(
                f"position {needed - 1} has no slot: the cache holds {self.limit}; ask for fewer tokens, or make it with a"
                " larger limit"
            )
        capacity = self.capacity
        while capacity < needed:
            capacity = min(2 * capacity, self.limit)
        grown = self._allocated(capacity)
        for part, new in zip(self._parts, grown, strict=True):
            new[:, :, : part.shape[2]] = part
        self._parts = grown

    def _allocated(self, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (*self._shape[:2], capacity, *self._shape[3:])
        try:
            keys, values = (_poisoned(shape, form.dtype) for form in self.forms)
        except (RuntimeError, MemoryError) as error:
            raise CacheError(
                f"a cache of {shape} (layers, sequences, slots, kv heads, d) has no room in memory; ask for fewer slots"
            ) from error
        return keys, values


def _poisoned(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    poison = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).min
    return torch.full(shape, poison, dtype=dtype)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    """(layers, sequences, slots, bytes of a slot)."""
    return x.flatten(3).view(torch.uint8)
