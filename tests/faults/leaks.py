"""Implementations and controls of `scaled` that change the process they run in, and some that feel it.

Each writes its process id into the file `pids` beside this one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import contract

PIDS = Path(__file__).with_name("pids")


def note(name: str) -> None:
    with PIDS.open("a") as file:
        file.write(f"{name} {os.getpid()}\n")


def right(x: Any, y: Any, scale: float) -> Any:
    return x.mul(scale).add(y)


def default_dtype() -> None:
    torch.set_default_dtype(torch.float64)


def denormals() -> None:
    torch.set_flush_denormal(True)


def patch() -> None:
    torch.Tensor.__mul__ = torch.Tensor.__sub__  # type: ignore[method-assign]


def touched() -> bool:
    """Whether somebody changed this process."""
    one = torch.ones(1, dtype=torch.float32)
    return (
        torch.get_default_dtype() != torch.float32
        or bool((one.mul(1e-40) == 0).all())
        or bool((one * 3 != 3).any())
    )


def leaking(leak: Callable[[], None]) -> None:
    @contract.implementation("scaled", name=f"leaks_{leak.__name__}", sign="plus")
    def implementation(x: Any, y: Any, scale: float) -> Any:
        note(f"leaks_{leak.__name__}")
        out = right(x, y, scale)
        leak()
        return out

    @contract.green("scaled", profile="two_step", name=f"leaks_{leak.__name__}", sign="plus")
    def control(x: Any, y: Any, scale: float) -> Any:
        note(f"green.leaks_{leak.__name__}")
        out = right(x, y, scale)
        leak()
        return out


for one in (default_dtype, denormals, patch):
    leaking(one)


@contract.implementation("scaled")
def spoiled(x: Any, y: Any, scale: float, sign: str) -> Any:
    """Wrong in a process that was touched."""
    note("spoiled")
    if touched():
        return x.sub(x)
    return right(x, y, scale) if sign == "plus" else y.sub(x.mul(scale))


@contract.implementation("scaled", sign="plus")
def saved(x: Any, y: Any, scale: float) -> Any:
    """Right only in a process that was touched."""
    note("saved")
    return right(x, y, scale) if touched() else x.sub(x)


def planted(leak: Callable[[], None]) -> None:
    @contract.red(
        "scaled", profile="two_step", gate="shapes", name=f"leaks_{leak.__name__}", sign="plus"
    )
    def control(x: Any, y: Any, scale: float) -> Any:
        leak()
        return x.sub(x)


for one in (default_dtype, denormals, patch):
    planted(one)


@contract.red("scaled", profile="two_step", gate="shapes", sign="plus")
def no_fault(x: Any, y: Any, scale: float) -> Any:
    """Wrong only in a process that was touched."""
    return x.sub(x) if touched() else right(x, y, scale)


called: list[str] = []


@contract.implementation("scaled", name="twin", sign="plus")
def plus(x: Any, y: Any, scale: float) -> Any:
    called.append("plus")
    return right(x, y, scale)


@contract.implementation("scaled", name="twin", sign="minus")
def minus(x: Any, y: Any, scale: float) -> Any:
    """Another function of the same name: wrong where the first one ran before it."""
    return x.sub(x) if called else y.sub(x.mul(scale))


@contract.red("scaled", profile="two_step", gate="shapes", sign="plus")
def other_argument(x: Any, y: Any, factor: float) -> Any:
    """Never called: the contract has no such argument."""
    return x.sub(x)


@contract.red("scaled", profile="two_step", gate="shapes", sign="plus")
def no_result(x: Any, y: Any, scale: float) -> None:
    """Gives nothing that could be wrong."""


@contract.implementation("scaled", name="elsewhere", engine="cuda", sign="plus")
def elsewhere(x: Any, y: Any, scale: float) -> Any:
    return right(x, y, scale)


@contract.implementation("scaled", name="spoiled", engine="cuda", sign="plus")
def second(x: Any, y: Any, scale: float) -> Any:
    """Another engine's, of the name of a right one."""
    return x.sub(x)
