"""Host resources of one launch, counted and never timed.

bytes_read, bytes_written: inputs and outputs of every aten call, summed
workspace_bytes: peak of live allocations that are neither operands nor outputs
threads: OS threads that the launch added
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any


def os_threads() -> int:
    """Threads of this process now."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        import threading

        return threading.active_count()


def count(call: Callable[..., Any], keywords: Mapping[str, Any]) -> dict[str, int] | None:
    """Run the callable once warm, once counted; None where it made no aten call (nothing to count)."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counter(TorchDispatchMode):
        """Sums bytes over aten calls and follows the storages they allocate."""

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # the compiler is not in use here, and loading it to be skipped costs seconds
            return False

        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.read = self.written = self.calls = self.live = self.peak = 0
            # address -> bytes, and what is called when the storage ends
            self.seen: dict[int, tuple[int, Any]] = {}

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            self.calls += 1
            view = func.is_view if hasattr(func, "is_view") else False
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            if not view:
                self.read += sum(_bytes(x) for x in tensors)
            old = {x.untyped_storage().data_ptr() for x in tensors}
            for x in tree_leaves(result):
                if isinstance(x, torch.Tensor):
                    self.written += 0 if view else _bytes(x)
                    self._track(x, old)
            return result

        def _track(self, x: Any, old: set[int]) -> None:
            storage = x.untyped_storage()
            key = storage.data_ptr()
            if key in old or key in given or not storage.nbytes():
                return
            if key in self.seen:
                # handed out again before the end of the last storage there was told
                size, end = self.seen.pop(key)
                end.detach()
                self.live -= size
            size = storage.nbytes()
            self.seen[key] = (size, weakref.finalize(storage, self._free, key))
            self.live += size
            self.peak = max(self.peak, self.live)

        def _free(self, key: int) -> None:
            self.live -= self.seen.pop(key, (0, None))[0]

    def _bytes(x: Any) -> int:
        return int(x.numel() * x.element_size())

    given = {
        x.untyped_storage().data_ptr() for x in keywords.values() if isinstance(x, torch.Tensor)
    }
    call(**keywords)
    before = os_threads()
    counter = Counter()
    with counter:
        result = call(**keywords)
    if not counter.calls:
        return None
    outputs = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
        for x in tree_leaves(result)
        if isinstance(x, torch.Tensor)
    }
    own = sum(size for key, size in outputs.items() if key not in given)
    return {
        "bytes_read": counter.read,
        "bytes_written": counter.written,
        "workspace_bytes": max(0, counter.peak - own),
        "threads": max(0, os_threads() - before),
    }
