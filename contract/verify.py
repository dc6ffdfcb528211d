"""Verified kernels: the only way in which simulator and pipelines obtain an implementation.

A verification is one file of the store per (kernel, implementation, environment). It holds the hash of all sources
that the verdict depends on. `contract run` writes it when the reference and every gate are green.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract import registry
from contract.case import Kernel, find
from contract.config import Config
from contract.declare import Implementation, served
from contract.environment import environment_key
from contract.errors import NotVerified
from contract.results import CheckResult
from contract.store import Store, digest

if TYPE_CHECKING:
    from contract.calls import Call

_loaded: set[Config] = set()
NEEDED = ("shapes", "stress", "exact", "invariance", "bounds")


def verified(
    kernel: str, *, profile: str | None = None, impl: str = "torch", **parameters: str
) -> Call:
    """The implementation to call, with its profile and enumerated parameters bound.

    Trusts a verification whose source hashes and environment match, of the store of the working folder's project (that of
    the user's cache where no folder above has a pyproject.toml). Where this environment has none, the quick gates run
    once, here and now, with progress on stderr.

    Args:
        kernel: contract name.
        profile: the contract's first where absent.
        impl: implementation name.
        **parameters: enumerated parameters, as gain="1+w".

    Raises:
        NotVerified: no such implementation; sources that are not the verified ones, or a red gate: names the command that
            verifies.
        DeclarationError: no such contract, profile or parameter.
    """
    load_suites()
    target = find(kernel, profile, parameters)
    item = implementation_of(target, impl)
    store = Store(store_root())
    known = store.get(_key(target, item))
    # with the reference, without which nothing is verified
    command = f"contract run {target.id}"
    if known is None:
        _verify_now(target, item, command)
        known = store.get(_key(target, item))
    if known is None:
        raise NotVerified(
            f"{target.id}/{item.label}: its verification could not be stored; run `{command}`"
        )
    if known.get("red"):
        raise NotVerified(
            f"{target.id}/{item.label}: {known['red']} was red when it last ran; run `{command}`"
        )
    if known.get("sources") != source_hash(target, item):
        raise NotVerified(
            f"{target.id}/{item.label}: the sources are not those that were verified in {store.root} (edited since, or another"
            f" version's); run `{command}`"
        )
    return bound(target, item)


def bound(kernel: Kernel, item: Implementation) -> Call:
    """The callable with what its signature names of profile and parameters bound, its arguments looked at."""
    from contract.calls import Call

    return Call(kernel, item)


def implementation_of(kernel: Kernel, name: str) -> Implementation:
    """The implementation of that name for a kernel, or NotVerified that lists those there are."""
    found = [i for i in registry.implementations(kernel.contract.name)
             if i.profile == kernel.profile.name and served(i.parameters, kernel.parameters)]  # fmt: skip
    for item in found:
        if item.label == name:
            return item
    raise NotVerified(
        f"{kernel.id}: no implementation {name!r}; there are {', '.join(i.label for i in found) or 'none'}"
    )


def load_suites() -> None:
    """Load the suites of the working folder's project, once for each project."""
    from contract import suites
    from contract.config import read_config

    config = read_config()
    # not where something is registered: a caller's own contract says nothing about the suites
    if config not in _loaded:
        suites.load(config)
        _loaded.add(config)


def store_root() -> Path:
    from contract.config import read_config

    return read_config().store_root


def _key(kernel: Kernel, item: Implementation) -> str:
    return digest(
        {"verified": kernel.id, "implementation": item.label, "environment": environment_key()}
    )


def source_hash(kernel: Kernel, item: Implementation) -> str:
    """Hash of every source that the verdict on an implementation depends on."""
    from contract import sources
    from contract.receipts import closure_of, distributions

    name = kernel.contract.name
    modules = {kernel.contract.reference.__module__, item.module, registry.origin(name)}
    modules |= {control.module for control in registry.controls(name)}
    reached, installed = closure_of(tuple(sorted(m for m in modules if m)))
    return digest({
        "framework": sources.framework_hash(), "sources": dict(reached),
        "distributions": distributions((*item.requires, *installed)),
    })  # fmt: skip


def gate_pairs(checks: Iterable[Any]) -> dict[tuple[str, str], tuple[Kernel, Implementation, str]]:
    """Every (kernel, implementation) of which gates are run, with the hash of its sources now."""
    found = {}
    for check in checks:
        pair = (f"{check.kernel}/{check.profile}", check.name)
        if check.kind != "gate" or pair in found:
            continue
        kernel = find(check.spec["name"], check.spec["profile"], check.spec["parameters"])
        item = implementation_of(kernel, check.name)
        found[pair] = (kernel, item, source_hash(kernel, item))
    return found


def note_verified(
    store: Store,
    pairs: Iterable[tuple[Kernel, Implementation, str]],
    results: Iterable[CheckResult],
) -> None:
    """Write the verification of every implementation whose reference and gates all ran green, with the hash that its
    sources had when the run began; take it back from one of which a gate is red."""
    by_id = {result.id: result for result in results}
    for kernel, item, hashed in pairs:
        ids = [f"{kernel.id}/reference", *(f"{kernel.id}/{item.label}/{gate}" for gate in NEEDED)]
        seen = [by_id[one] for one in ids if one in by_id]
        red = [
            result.id
            for result in seen
            if result.outcome not in ("pass", "not_applicable", "not_run")
        ]
        # not_applicable everywhere would be a verification of nothing
        compared = any(r.outcome == "pass" and r.outputs_compared for r in seen if r.gate in NEEDED)
        record = {"id": f"{kernel.id}/{item.label}", "sources": hashed, "checks": ids}
        if red:
            store.put(_key(kernel, item), {**record, "red": red[0]})
        elif len(seen) == len(ids) and compared and all(r.outcome != "not_run" for r in seen):
            store.put(_key(kernel, item), record)


def _verify_now(kernel: Kernel, item: Implementation, command: str) -> None:
    """Run the quick gates of one implementation and store what they say."""
    import sys

    from contract import checks, runner, suites
    from contract.config import RunOptions, read_config

    config = read_config()
    wanted = [c for c in checks.collect_checks() if f"{c.kernel}/{c.profile}" == kernel.id
              and (c.kind == "reference" or (c.kind == "gate" and (c.name, c.engine) == (item.label, item.engine) and c.gate in NEEDED))]  # fmt: skip
    print(f"contract: verifying {kernel.id}/{item.label} (quick gates, once)", file=sys.stderr)
    options = RunOptions(effort="quick", seed=config.seed, jobs=1, store_root=config.store_root,
                         suites=suites.load(config).payload())  # fmt: skip
    report = runner.run(wanted, options, lambda result: None)
    red = [result for result in report.checks if not result.good or result.outcome == "not_run"]
    if red or report.interrupted or report.problems:
        first = red[0] if red else None
        said = (
            f"{first.id} is {first.outcome}: {first.detail.splitlines()[0] if first.detail else ''}"
            if first
            else "; ".join(report.problems) or "interrupted"
        )
        raise NotVerified(f"{kernel.id}/{item.label}: {said}; run `{command}`")
