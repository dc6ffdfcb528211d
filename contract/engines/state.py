"""What targets that share a worker share: the state of torch and of the process that one could leave to the next.

Not seen: what a target keeps in modules of its own, and what an extension module keeps for itself.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from contract.lazy import lazy

torch = lazy("torch")

State = tuple[tuple[Any, ...], tuple[list[Any], ...]]


@functools.cache
def baseline() -> State:
    """The state in which the worker was when first asked."""
    return _settings(), tuple(list(space.values()) for space in _spaces())


def differs(before: State) -> bool:
    """Whether a setting, or a function of torch that was there, is another one now."""
    settings, spaces = before
    return (
        _settings() != settings
        # a method of its base class, put over it
        or len(vars(torch.Tensor)) != len(spaces[0])
        # names that came later (torch imports some of its modules when asked) stand behind those that were there
        or any(
            list(itertools.islice(now.values(), len(then))) != then
            for now, then in zip(_spaces(), spaces, strict=True)
        )
    )


def _spaces() -> tuple[Mapping[str, Any], ...]:
    # not vars(torch): here it is a stand-in
    return vars(torch.Tensor), vars(sys.modules["torch"]), vars(torch.nn.functional)


def _environment() -> Mapping[Any, Any]:
    # as it is kept: a call is followed by a look, and to decode the variables would take most of that
    return getattr(os.environ, "_data", os.environ)


@functools.cache
def _tiny() -> Any:
    """A subnormal, made once."""
    return torch.tensor(1e-40, dtype=torch.float32)


def _settings() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        # flushed subnormals: torch can set them, and not be asked
        (_tiny() * 1.0).item() != 0.0,
        tuple(sorted(np.geterr().items())),
        dict(_environment()),
    )
