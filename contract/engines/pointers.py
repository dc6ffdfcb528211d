"""Addresses among the bytes that a launch is given, as in a structure of parameters that holds pointers."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from contract.lazy import lazy

torch = lazy("torch")

_POINTER = 8
# no process is given memory below, and counts and sizes stay there
_LOWEST = 1 << 16


def tensors_at(arguments: Mapping[str, bytes]) -> dict[str, Any]:
    """The living tensors that arguments point into, by argument and byte: {"argument 0, byte 8": tensor}.

    Every eight bytes at a multiple of eight count as an address where a tensor lies: a number that happens to be one only
    says that this tensor may be read.
    """
    words = {
        f"{name}, byte {_POINTER * place}": int(word)
        for name, data in arguments.items()
        for place, word in enumerate(np.frombuffer(data[: len(data) // _POINTER * _POINTER], "<u8"))
        if word >= _LOWEST
    }
    if not words:
        return {}
    spans = list(_spans())
    found = {}
    for name, word in words.items():
        for first, end, tensor in spans:
            if first <= word < end:
                found[name] = tensor
                break
    return found


def _spans() -> Iterator[tuple[int, int, Any]]:
    """(first address, one past the last, tensor) of the storage of each tensor that Python knows."""
    for one in gc.get_objects():
        # its type and not its __class__, which an object may compute
        if issubclass(type(one), torch.Tensor):
            # some have no memory: those of torch's compiler, and of the device meta, which begin at 0 and may be large
            with contextlib.suppress(RuntimeError, NotImplementedError):
                storage = one.untyped_storage()
                first = storage.data_ptr()
                if first and storage.nbytes():
                    yield first, first + storage.nbytes(), one
