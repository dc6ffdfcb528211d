"""Shards judged by the workers of a Dask cluster that exists.

Each worker loads the suites itself and judges with a worker process of its own, as everywhere: a kernel that crashes takes
neither the Dask worker nor the sweep with it. A Dask worker that dies has its shards done by the others.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from contract.errors import UsageError
from contract.sweeps.local import Result
from contract.sweeps.shard import Plan, Sweeper, Unfinished
from contract.sweeps.space import Shard

#: Shards that are handed out beyond one for each thread of the cluster.
_AHEAD = 2
#: Times that a shard is begun anew where its worker died under it.
_RETRIES = 3
_CONNECT_SECONDS = 30


def judged(
    plan: Plan,
    head: Mapping[str, Any],
    shards: Sequence[Shard],
    address: str,
    progress: Callable[[int], None],
) -> Generator[Result]:
    """The shards' results as they are finished.

    Args:
        head: of the ledger; a worker whose sources or environment differ is refused.
        address: of the scheduler, tcp://HOST:PORT.

    Raises:
        UsageError: no distributed package, no scheduler there, or one without workers.
    """
    try:
        from distributed import Client, as_completed
    except ImportError as error:
        raise UsageError(
            "--dask needs the package distributed; install kernel-contract[dask]"
        ) from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--dask {address}: no scheduler answers there ({' '.join(str(error).split())[:200]});"
            " start one with `dask scheduler`"
        ) from error
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise UsageError(
                f"--dask {address}: the cluster has no workers; start some with `dask worker {address}`"
            )
        sent = {"plan": vars(plan), "head": dict(head), "path": [p for p in sys.path if p]}
        # one copy for each worker, not one for each shard
        common = client.scatter(sent, broadcast=True, hash=False)
        waiting = iter(shards)

        def submit(shard: Shard) -> Any:
            return client.submit(_one, common, vars(shard), pure=False, retries=_RETRIES)

        first = [submit(shard) for shard in itertools.islice(waiting, threads + _AHEAD)]
        running = as_completed(first, loop=client.loop)
        try:
            for future in running:
                answer = future.result()
                for shard in itertools.islice(waiting, 1):
                    running.add(submit(shard))
                if "unfinished" in answer:
                    yield Unfinished(*answer["unfinished"])
                    continue
                progress(int(answer["line"]["outputs"]))
                yield answer["line"]
        finally:
            running.clear()


class _Sweepers(threading.local):
    """The sweeper of each thread of a Dask worker, of the sweep that it was last asked for."""

    key: str = ""
    sweeper: Sweeper | None = None


_sweepers = _Sweepers()
_loading = threading.Lock()


def _one(sent: Mapping[str, Any], shard: Mapping[str, Any]) -> dict[str, Any]:
    """In a Dask worker: one shard's line, or why it has none."""
    plan = Plan(**sent["plan"])
    if _sweepers.key != plan.key or _sweepers.sweeper is None:
        if _sweepers.sweeper is not None:
            _sweepers.sweeper.close()
            _sweepers.sweeper, _sweepers.key = None, ""
        with _loading:
            if said := _load(sent, plan):
                return {"unfinished": ("not_run", said)}
        _sweepers.sweeper, _sweepers.key = Sweeper(plan), plan.key
    try:
        return {"line": _sweepers.sweeper.judge(Shard(**shard))}
    except Unfinished as why:
        return {"unfinished": (why.outcome, why.detail)}


def _load(sent: Mapping[str, Any], plan: Plan) -> str:
    """Load the suites; why this worker cannot take part, '' where it can."""
    from contract import suites
    from contract.checks import Check
    from contract.sweeps.ledger import difference, headed
    from contract.sweeps.run import head_of

    for folder in sent["path"]:
        if folder not in sys.path:
            sys.path.append(folder)
    suites.reload(plan.options["suites"])
    check = Check(**{**plan.check, "keywords": frozenset(plan.check["keywords"])})
    said = difference(headed(head_of(check, plan.mode)), sent["head"])
    return f"a worker of the cluster is another environment: {said}" if said else ""


__all__ = ["judged"]
