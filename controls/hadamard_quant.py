"""Planted rotations: other axes, orders, stages, norms and roundings, and legal variants."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.hadamard_quant import hadamard_quant_torch, rotated
from contract.kernels.static_int8 import static_codes
from contract.lazy import lazy
from contract.references.hadamard_quant import LANES

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("bf16_rows", "float32")


def folded(x: torch.Tensor, scale: float) -> float:
    """s sqrt(G)."""
    return scale * math.sqrt(x.shape[-1] // LANES)


def stages(x: torch.Tensor, spans: list[int]) -> torch.Tensor:
    """Sums and differences of groups these many groups apart, one after the other."""
    h, (rows, d) = x.float(), x.shape
    for span in (n * LANES for n in spans):
        low, high = h.reshape(rows, d // (2 * span), 2, span).unbind(2)
        h = torch.stack((low + high, low - high), 2)
    return h.reshape(rows, d)


def spans(x: torch.Tensor) -> list[int]:
    """1, 2, 4, ... up to half the groups."""
    groups = x.shape[-1] // LANES
    return [1 << k for k in range(groups.bit_length() - 1)]


# -- the rotation


@red("hadamard_quant", profile=BOTH, gate="shapes")
def over_the_lanes(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The 32 lanes of each group are rotated, with their own norm."""
    lanes = x.float().reshape(-1, LANES, 1).expand(-1, -1, LANES).reshape(-1, LANES * LANES)
    turned = rotated(lanes).reshape(*x.shape, LANES)[..., 0]
    return static_codes(turned, scale * math.sqrt(LANES))


@red("hadamard_quant", profile=BOTH, gate="shapes")
def axes_exchanged(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The row is read as 32 stretches of G values: value 32 g + l is taken for lane g."""
    rows, d = x.shape
    swapped = x.reshape(rows, LANES, d // LANES).transpose(1, 2).reshape(rows, d)
    turned = rotated(swapped.float()).reshape(rows, d // LANES, LANES).transpose(1, 2)
    return static_codes(turned.reshape(rows, d), folded(x, scale))


@red("hadamard_quant", profile=BOTH, gate="shapes")
def whole_row(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Groups and lanes are both rotated."""
    rows, d = x.shape
    h = rotated(x.float()).reshape(-1, LANES, 1).expand(-1, -1, LANES).reshape(-1, LANES * LANES)
    both = rotated(h).reshape(rows, d, LANES)[..., 0]
    return static_codes(both, scale * math.sqrt(d))


@red("hadamard_quant", profile=BOTH, gate="shapes")
def not_rotated(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Codes of the row as it is."""
    return static_codes(x.float(), scale)


@red("hadamard_quant", profile=BOTH, gate="shapes")
def first_stage_missing(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Neighbouring groups are not mixed."""
    return static_codes(stages(x, spans(x)[1:]), folded(x, scale))


@red("hadamard_quant", profile=BOTH, gate="shapes")
def last_stage_missing(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The two halves are not mixed."""
    return static_codes(stages(x, spans(x)[:-1]), folded(x, scale))


@red("hadamard_quant", profile=BOTH, gate="exact")
def stages_reversed(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The halves are mixed first: the same sums, rounded in another order."""
    return static_codes(stages(x, spans(x)[::-1]), folded(x, scale))


@red("hadamard_quant", profile=BOTH, gate="shapes")
def sequency_order(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Rows of H in the order of their sign changes (Walsh), not Sylvester's."""
    groups = x.shape[-1] // LANES
    bits, order = groups.bit_length() - 1, []
    for g in range(groups):
        gray = g ^ (g >> 1)
        order.append(int(f"{gray:0{bits}b}"[::-1], 2))
    h = rotated(x.float()).reshape(len(x), groups, LANES)[:, order]
    return static_codes(h.reshape(x.shape), folded(x, scale))


@red("hadamard_quant", profile=BOTH, gate="shapes")
def differences_turned(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The second minus the first."""
    h, (rows, d) = x.float(), x.shape
    for span in (n * LANES for n in spans(x)):
        low, high = h.reshape(rows, d // (2 * span), 2, span).unbind(2)
        h = torch.stack((low + high, high - low), 2)
    return static_codes(h.reshape(rows, d), folded(x, scale))


@red("hadamard_quant", profile=BOTH, gate="shapes")
def stages_in_bf16(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Sums are stored in bf16 between the stages."""
    return static_codes(rotated(x.bfloat16()).float(), folded(x, scale))


@red("hadamard_quant", profile=BOTH, gate="exact")
def stages_in_float64(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Stages are not rounded to fp32."""
    return static_codes(rotated(x.double()), folded(x, scale))


@red("hadamard_quant", profile=BOTH, gate="exact")
def previous_row(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The codes of the row before."""
    return hadamard_quant_torch(x, scale=scale).roll(1, 0)


# -- the scale


@red("hadamard_quant", profile=BOTH, gate="shapes")
def unnormalised(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """G^-1/2 is not folded into the scale."""
    return static_codes(rotated(x.float()), scale)


@red("hadamard_quant", profile=BOTH, gate="shapes")
def divided_by_the_groups(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """1 / G, as the inverse of the matrix without a norm has it."""
    return static_codes(rotated(x.float()), scale * (x.shape[-1] // LANES))


@red("hadamard_quant", profile=BOTH, gate="shapes")
def norm_of_the_whole_row(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """d^-1/2 in place of G^-1/2."""
    return static_codes(rotated(x.float()), scale * math.sqrt(x.shape[-1]))


# -- the codes


@red("hadamard_quant", profile=BOTH, gate="exact")
def half_away(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Halves are rounded away from zero."""
    q = rotated(x.float()) / folded(x, scale)
    whole = (q.abs() + 0.5).floor().copysign(q)
    return whole.clamp(-127.0, 127.0).nan_to_num(0.0).to(torch.int8)


@red("hadamard_quant", profile=BOTH, gate="exact")
def floor_of_half_more(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """floor(q + 0.5)."""
    q = rotated(x.float()) / folded(x, scale)
    return (q + 0.5).floor().clamp(-127.0, 127.0).nan_to_num(0.0).to(torch.int8)


@red("hadamard_quant", profile=BOTH, gate="exact")
def truncated(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The store's conversion cuts the fraction off."""
    q = rotated(x.float()) / folded(x, scale)
    return q.clamp(-127.0, 127.0).nan_to_num(0.0).to(torch.int8)


@red("hadamard_quant", profile=BOTH, gate="exact")
def down_to_minus_128(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The lower end is the type's."""
    q = rotated(x.float()) / folded(x, scale)
    return q.clamp(-128.0, 127.0).nan_to_num(0.0).round().to(torch.int8)


@red("hadamard_quant", profile=BOTH, gate="exact")
def wraps(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """No clamp: what does not fit wraps round."""
    q = (rotated(x.float()) / folded(x, scale)).nan_to_num(0.0).clamp(-(2.0**20), 2.0**20)
    return q.round().to(torch.int32).to(torch.int8)


# -- legal variants


@green("hadamard_quant", profile=BOTH)
def recursive(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Both halves by themselves, then mixed: the same additions."""

    def turned(h: torch.Tensor) -> torch.Tensor:
        if h.shape[-1] == LANES:
            return h
        low, high = (turned(part) for part in h.chunk(2, -1))
        return torch.cat((low + high, low - high), -1)

    return static_codes(turned(x.float()), folded(x, scale))


@green("hadamard_quant", profile=BOTH)
def lane_by_lane(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """Eight lanes at a time."""
    h = x.float().reshape(len(x), -1, LANES)
    parts = [
        rotated(part.repeat(1, 1, LANES // 8).flatten(1)).reshape(len(x), -1, LANES)[..., :8]
        for part in h.split(8, -1)
    ]
    return static_codes(torch.cat(parts, -1).reshape(x.shape), folded(x, scale))


@green("hadamard_quant", profile=BOTH)
def reciprocal_scale(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """A product with 1 / (s sqrt G)."""
    q = rotated(x.float()) * (1.0 / folded(x, scale))
    return q.clamp(-127.0, 127.0).nan_to_num(0.0).round().to(torch.int8)


@green("hadamard_quant", profile=BOTH)
def divided_in_float64(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    """The quotient is kept wider."""
    return static_codes(rotated(x.float()).double(), folded(x, scale))
