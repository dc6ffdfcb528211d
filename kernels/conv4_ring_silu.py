"""Causal convolution of four taps with a history, then SiLU: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.delta_data import ANY_ORDER, EXP
from contract.lazy import lazy
from contract.references.conv4_ring_silu import TAPS
from contract.references.conv4_ring_silu import conv4_ring_silu as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def sized(channels: int, steps: int, kept: int) -> dict[str, int]:
    """A shape with its four taps."""
    return {"channels": channels, "steps": steps, "kept": kept, "taps": TAPS}


def widths(steps: int, kept: int) -> dict[str, int]:
    """The same without the row dim."""
    return {"steps": steps, "kept": kept, "taps": TAPS}


def half(rng: Any, shape: tuple[int, ...]) -> Any:
    """Taps as trained convolutions have them: below 1."""
    return 0.5 * rng.standard_normal(shape, dtype=np.float32)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Five bits times four: sums of 10 bits and more, exact in every order, where silu bends; every place of the history
    and every tap takes part."""
    channels, steps, kept = shape["channels"], shape["steps"], shape["kept"]
    return {
        "x": full_significands(rng, (channels, steps), 5) / 16.0,
        "weight": full_significands(rng, (channels, TAPS), 4) / 16.0,
        "past": full_significands(rng, (channels, kept), 5) / 16.0,
        "slot": np.asarray(rng.integers(0, kept)),
    }


conv4_ring_silu = register(
    Contract(
        name="conv4_ring_silu",
        family="delta",
        summary="causal convolution of four taps per channel with its history, then SiLU",
        reference=reference,
        operands=(
            tensor("x", "channels steps"),
            tensor("weight", "channels taps", typical=half),
            tensor("past", "channels kept"),
            tensor("slot", "", "int32", below="kept", when={"layout": ("ring",)}),
            output("out", "channels steps"),
            output("new_past", "channels kept", in_place_of="past"),
        ),
        parameters={"layout": ("ring", "shift")},
        profiles=(
            Profile(
                "two_step",
                {"sum": "bf16", "out": "bf16"},
                users="Qwen3.5 and Qwen3-Next in transformers: conv1d and silu of torch",
            ),
            Profile(
                "once",
                {"sum": None, "out": "bf16"},
                users="fused kernels (causal-conv1d, flash-linear-attention)",
            ),
        ),
        row_dims=("channels",),
        # Qwen3.5 has 8192 channels (q, k and v together): one step of all of them, and 70 steps of a few
        shapes=(sized(8192, 1, 3), sized(256, 70, 4)),
        awkward=(sized(1, 1, 4), sized(3, 2, 3), sized(17, 9, 4), sized(33, 4, 3)),
        stress=(widths(5, 3), widths(1, 4), widths(2, 3), widths(3, 4), widths(17, 4)),
        exact=exact_rows,
        exact_shapes=(widths(1, 3), widths(7, 4), widths(2, 4), widths(3, 3)),
        freedoms={"sum": ANY_ORDER, "exp": EXP},
        rules={
            "there are 4 taps": lambda s: s["taps"] == TAPS,
            "3 or 4 columns are kept": lambda s: s["kept"] in (TAPS - 1, TAPS),
        },
    )
)


@implementation("conv4_ring_silu", name="torch", profile=("two_step", "once"))
def conv4_ring_silu_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    past: torch.Tensor,
    slot: torch.Tensor | None = None,
    *,
    profile: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Four shifted products in fp32; the history is a ring where it has a slot."""
    columns = torch.cat([past if slot is None else in_order(past, slot), x], -1)
    total = convolved(columns, weight, x.shape[-1])
    if profile == "two_step":
        total = total.to(x.dtype).float()
    out = torch.nn.functional.silu(total).to(x.dtype)
    return out, kept_columns(columns, past.shape[-1], slot, x.shape[-1])


def in_order(past: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """The ring's columns in order of time, the oldest first."""
    return past.roll(-int(slot), -1)


def convolved(columns: torch.Tensor, weight: torch.Tensor, steps: int) -> torch.Tensor:
    """The sum of four products for each of the last `steps` columns, in fp32."""
    wide, taps = columns.float(), weight.float()
    first = columns.shape[-1] - steps - TAPS + 1
    total = wide[:, first : first + steps] * taps[:, :1]
    for i in range(1, TAPS):
        total = total + wide[:, first + i : first + i + steps] * taps[:, i : i + 1]
    return total


def kept_columns(
    columns: torch.Tensor, kept: int, slot: torch.Tensor | None, steps: int
) -> torch.Tensor:
    """The last columns, in order of time or in their places of the ring."""
    last = columns[:, -kept:]
    # the oldest of them lies where the next column goes
    return last.clone() if slot is None else last.roll((int(slot) + steps) % kept, -1)
