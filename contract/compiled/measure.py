"""The resources of every launch of an implementation on every architecture, counted in a worker; nothing is executed.

`measure` is called by name there (see contract.worker): JSON and arrays in, JSON out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contract import case as cases
from contract import registry
from contract.compiled.architectures import AMD_NAMES, CUDA_NAMES
from contract.compiled.read import resources_of, source_of
from contract.declare import Launch
from contract.engines import host
from contract.engines.capture import CapturedLaunch, NothingToSay, default_cache
from contract.engines.executed import told
from contract.engines.triton_launch import capturing
from contract.errors import ContractError
from contract.interval import Array
from contract.worker_child import progress

#: What a launch in each language is compiled for.
TARGETS = {"cuda": CUDA_NAMES, "triton": (*CUDA_NAMES, *AMD_NAMES)}


def measure(
    payload: dict[str, Any], arrays: dict[str, Array]
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Count one launch of the contract.

    Returns:
        {"functions": see `functions`}: none where the implementation launches nothing. {"not_run": why} without a compiler,
        {"bad": why} where a launch is refused.
    """
    kernel = cases.find(payload["kernel"], payload["profile"], payload["parameters"])
    items = registry.implementations(kernel.contract.name)
    item = host.registered(kernel, payload["target"]["name"], items)
    launch = Launch(**payload["launch"])

    def call() -> None:
        placed = host.placed_operands(kernel, arrays, launch.layout, "finite")
        item.call(**host.keywords_of(item.call, kernel, placed, payload["scalars"], launch))

    cache = Path(payload["cache"]) if payload.get("cache") else default_cache()
    try:
        return {"functions": functions(launches(call, item.fusion, cache), cache)}, {}
    except Exception as error:
        if said := told(error):
            return said, {}
        raise


def launches(call: Any, fusion: bool | None, cache: Path, **how: Any) -> list[CapturedLaunch]:
    """Every launch of a wrapper, once for each configuration of its autotuned kernels; `how` goes to `capturing`."""
    found: list[CapturedLaunch] = []
    place, count = 0, 1
    while place < count:
        with capturing(
            found.append, fusion=fusion, configuration=place, cache=cache, **how
        ) as capture:
            call()
        count = max([count, *capture.configurations.values()])
        place += 1
    return found


def functions(found: Sequence[CapturedLaunch], cache: Path) -> list[dict[str, Any]]:
    """What is compiled, each once however often it is launched.

    Returns:
        [{"function", "place": which of the distinct ones of that name and configuration, "configuration", "compiler",
        "source", "architectures": {name: {"ptxas", "code", "code_bytes", "resources"} or {"error": why it has none}}}]
    """
    return [
        {**_entry(launch, source, cache), "place": place}
        for launch, source, place in distinct(found)
    ]


def distinct(found: Sequence[CapturedLaunch]) -> list[tuple[CapturedLaunch, str, int]]:
    """Each function once, with the hash of its source, and which of those of its name and configuration it is."""
    chosen: list[tuple[CapturedLaunch, str, int]] = []
    seen: set[tuple[Any, ...]] = set()
    places: Counter[tuple[Any, ...]] = Counter()
    for launch in found:
        source, name = source_of(launch), (launch.function, launch.configuration)
        key = (*name, source, launch.block, launch.shared)
        if key not in seen:
            seen.add(key)
            chosen.append((launch, source, places[name]))
            places[name] += 1
    return chosen


def _entry(launch: CapturedLaunch, source: str, cache: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in TARGETS[launch.language]:
        try:
            one = resources_of(launch, name, cache, source)
            found[name] = {k: one[k] for k in ("ptxas", "code", "code_bytes", "resources")}
        except NothingToSay:
            raise
        except ContractError as error:
            found[name] = {"error": str(error)}
        except Exception as error:  # noqa: BLE001 - a compiler that fails on one architecture is a finding of that one
            found[name] = {"error": f"does not compile: {type(error).__name__}: {error}"[:300]}
        progress()
    return {
        "function": launch.function,
        "configuration": list(launch.configuration),
        "compiler": launch.compiler,
        "source": source,
        "architectures": found,
    }
