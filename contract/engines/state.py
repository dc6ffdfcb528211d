"""What targets that share a worker share: the state of torch and of the process that one could leave to the next.

Not seen: what a target keeps in modules of its own, and what an extension module keeps for itself.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from contract.lazy import lazy

torch = lazy("torch")

State = tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]


@functools.cache
def baseline() -> State:
    """The state in which the worker was when first asked."""
    return _settings(), tuple(dict(space) for space in _spaces())


def differs(before: State) -> bool:
    """Whether a setting, or a function of torch that was there, is another one now."""
    settings, spaces = before
    return (
        _settings() != settings
        # a method of its base class, put over it
        or len(vars(torch.Tensor)) != len(spaces[0])
        or any(
            now.get(name) is not value
            for now, then in zip(_spaces(), spaces, strict=True)
            for name, value in then.items()
        )
    )


def _spaces() -> tuple[Mapping[str, Any], ...]:
    return vars(torch.Tensor), vars(torch), vars(torch.nn.functional), vars(np)


def _settings() -> tuple[Any, ...]:
    tiny = torch.tensor(1e-40, dtype=torch.float32)
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        # flushed subnormals: torch can set them, and not be asked
        bool(tiny * 1.0 != 0.0),
        tuple(sorted(np.geterr().items())),
        tuple(sorted(os.environ.items())),
    )
