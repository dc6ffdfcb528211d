"""Planted snapshots: of another step, another row, or no copy, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.snapshot import snapshot_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("moved", "float32")


@red("snapshot", profile=BOTH, gate="exact")
def before_the_step(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The state before the step, not after it."""
    return snapshot_torch(states, (step - 1).clamp(min=0))


@red("snapshot", profile=BOTH, gate="exact")
def one_step_late(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The state after the next step."""
    return snapshot_torch(states, (step + 1).clamp(max=states.shape[1] - 1))


@red("snapshot", profile=BOTH, gate="exact")
def last_step(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """What the loop left: the state after the last step, rejected ones included."""
    return states[:, -1].clone()


@red("snapshot", profile=BOTH, gate="exact")
def stale(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The state of the first step: the copy is not taken again."""
    return states[:, 0].clone()


@red("snapshot", profile=BOTH, gate="exact")
def first_step_for_all(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Every sequence at the first one's step."""
    return snapshot_torch(states, step[:1].expand_as(step))


@red("snapshot", profile=BOTH, gate="exact")
def previous_sequence(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The state of the sequence before."""
    return snapshot_torch(states.roll(1, 0), step)


@red("snapshot", profile="float32", gate="exact")
def kept_in_bf16(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """The copy is stored in bf16."""
    return snapshot_torch(states, step).bfloat16().float()


# lint: sharing memory is the fault
@red("snapshot", profile=BOTH, gate="shapes")
def a_view(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """No copy of a single sequence: what later steps write shows in it."""
    return states[:, int(step[0])] if len(step) == 1 else snapshot_torch(states, step)


@green("snapshot", profile=BOTH)
def one_hot_choice(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """A mask over all steps."""
    out = states[:, 0].clone()
    for place in range(1, states.shape[1]):
        out = torch.where((step == place)[:, None], states[:, place], out)
    return out


@green("snapshot", profile=BOTH)
def row_by_row(states: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """One sequence after the other."""
    return torch.stack([s[int(i)] for s, i in zip(states, step, strict=True)])
