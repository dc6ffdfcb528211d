"""Shards judged by several processes of this machine: a thread for each worker."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any

from contract.sweeps.shard import Plan, Sweeper, Unfinished
from contract.sweeps.space import Shard

#: What comes back of a shard: its line, or why it has none.
Result = dict[str, Any] | Unfinished


def judged(
    plan: Plan, shards: Sequence[Shard], jobs: int, progress: Callable[[int], None]
) -> Generator[Result]:
    """The shards' results as they are finished.

    The judging threads spend their time in NumPy and in waiting for their workers, both without the interpreter's lock.
    When the caller stops, each of them ends with the shard that it is at.
    """
    waiting: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    for shard in shards:
        waiting.put(shard)
    done: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        try:
            with closing(Sweeper(plan)) as sweeper:
                while not stopped.is_set():
                    try:
                        shard = waiting.get_nowait()
                    except queue.Empty:
                        return
                    try:
                        done.put(sweeper.judge(shard, progress))
                    except Unfinished as why:
                        done.put(why)
        except BaseException as error:  # noqa: BLE001 - told by the thread that asked
            done.put(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(jobs, len(shards)))]
    for thread in threads:
        thread.start()
    try:
        for _ in shards:
            result = done.get()
            if isinstance(result, BaseException) and not isinstance(result, Unfinished):
                raise result
            yield result
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


__all__ = ["Result", "judged"]
