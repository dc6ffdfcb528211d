"""Everything that can become of a process that runs a kernel, as implementations of `scaled`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

import contract


def fault(call: Callable[..., Any]) -> Callable[..., Any]:
    return contract.implementation("scaled", sign="plus")(call)


@fault
def segfault(x: Any, y: Any, scale: float) -> Any:
    return ctypes.string_at(0)


@fault
def abort(x: Any, y: Any, scale: float) -> Any:
    os.abort()


@fault
def terminates_itself(x: Any, y: Any, scale: float) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)


@fault
def system_exit(x: Any, y: Any, scale: float) -> Any:
    sys.exit(0)


@fault
def os_exit_0(x: Any, y: Any, scale: float) -> Any:
    os._exit(0)


@fault
def c_loop_with_the_gil(x: Any, y: Any, scale: float) -> Any:
    return ctypes.PyDLL(None).sleep(60)


@fault
def python_loop(x: Any, y: Any, scale: float) -> Any:
    while True:
        pass


@fault
def out_of_memory(x: Any, y: Any, scale: float) -> Any:
    return torch.ones(1 << 32)


@fault
def raises(x: Any, y: Any, scale: float) -> Any:
    raise ValueError("no such tile")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@fault
def raises_unprintable(x: Any, y: Any, scale: float) -> Any:
    raise Unprintable


@fault
def recursion(x: Any, y: Any, scale: float) -> Any:
    return recursion(x, y, scale)


@fault
def missing_module(x: Any, y: Any, scale: float) -> Any:
    import absent_package_x  # type: ignore[import-not-found]

    return absent_package_x.scaled(x, y, scale)


@fault
def keyboard_interrupt(x: Any, y: Any, scale: float) -> Any:
    raise KeyboardInterrupt


@fault
def wrong_shape(x: Any, y: Any, scale: float) -> Any:
    return (x * scale + y).flatten()


@fault
def wrong_dtype(x: Any, y: Any, scale: float) -> Any:
    return (x * scale + y).float()


@fault
def returns_none(x: Any, y: Any, scale: float) -> Any:
    return None


@fault
def returns_a_list(x: Any, y: Any, scale: float) -> Any:
    return [x, y]


@fault
def all_nan(x: Any, y: Any, scale: float) -> Any:
    return torch.full_like(x, float("nan"))


@fault
def returns_its_input(x: Any, y: Any, scale: float) -> Any:
    return x


@fault
def returns_a_view(x: Any, y: Any, scale: float) -> Any:
    return x.view(x.shape)[:, :]


@fault
def writes_its_input(x: Any, y: Any, scale: float) -> Any:
    out = x * scale + y
    x.zero_()
    return out


@fault
def prints_garbage(x: Any, y: Any, scale: float) -> Any:
    os.write(1, b'\x00\xff{"result": {"outcome": "pass"}}\n' * 5000)
    print('{"done": 1}', file=sys.stderr)
    return x - x


@fault
def closes_every_file(x: Any, y: Any, scale: float) -> Any:
    os.closerange(0, 4096)
    return x * scale + y


@fault
def kills_its_parent(x: Any, y: Any, scale: float) -> Any:
    os.kill(os.getppid(), signal.SIGKILL)
    # until its own end comes
    signal.pause()


@fault
def forks(x: Any, y: Any, scale: float) -> Any:
    os.fork()
    return x - x


@fault
def patches_torch(x: Any, y: Any, scale: float) -> Any:
    torch.Tensor.__mul__ = torch.Tensor.__sub__  # type: ignore[method-assign]
    return x * scale + y


@fault
def patches_the_judge(x: Any, y: Any, scale: float) -> Any:
    import contract.ranges
    from contract.ranges import OutputRange

    OutputRange.refused = lambda self, bits: bits != bits  # type: ignore[method-assign] # noqa: PLR0124
    contract.ranges.case_range = None  # type: ignore[assignment]
    return x - x


@fault
def z_right_after_all_of_them(x: Any, y: Any, scale: float) -> Any:
    return x * scale + y
