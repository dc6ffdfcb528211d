"""Tables of the rotary embedding: what the kernels must compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.readings.base import Quantity, Reading

#: cos and sin of an fp32 angle of any size.
ULPS = 3.5


def rope_tables(
    r: Reading, positions: Quantity, inv_freq: Quantity, scheme: str
) -> dict[str, Quantity]:
    """cos and sin of every position's angles: angle[i] = position * inv_freq[i].

    Args:
        positions: (tokens,) int32, 0 to 262,143: exact in fp32 (not in bf16, where they end at 256).
        inv_freq: (half,) fp32, radians a position; finite. It is theta^(-i / half), or scaled as the caller likes.
        scheme: 'plain', every pair turns; 'proportional', the first quarter of them: from half / 4 on the angle is 0,
            whatever inv_freq holds there.

    Rounding points:
        angle: the product in fp32, so that an angle is one value.
        cos, sin: the tables, in bf16 (once) or fp32.

    Freedoms: cos and sin within 3.5 fp32 ulps; cos 0 = 1 and sin 0 = 0 exactly.

    Source: Su et al., RoFormer, 2021, section 3.2.2; Gemma 4's config (partial_rotary_factor of a rope of type
    proportional).
    """
    angle = r.round("angle", positions.reshape(-1, 1) * inv_freq)
    half = angle.shape[-1]
    if scheme == "proportional":
        # of the pairs that stand still
        still = r.exactly(np.zeros((positions.shape[0], half - half // 4)))
        angle = r.concat([angle[:, : half // 4], still])
    return _tables(r, angle)


def mrope_tables(
    r: Reading, positions: Quantity, inv_freq: Quantity, sections: Quantity, layout: str
) -> dict[str, Quantity]:
    """Tables of three position axes (time, height, width): each frequency reads one of them.

    Args:
        positions: (3, tokens) int32, 0 to 262,143, in the order time, height, width.
        inv_freq: (half,) fp32, radians a position; finite.
        sections: (3,) int32, how many frequencies each axis has: [24, 20, 20] of 64, [11, 11, 10] of 32.
        layout: 'interleaved': frequency i reads height where i % 3 = 1 and i < 3 sections[1], width where i % 3 = 2 and
            i < 3 sections[2], else time. 'contiguous': the first sections[0] read time, the next sections[1] height,
            the others width.

    Rounding points, freedoms: as rope_tables.

    Source: Wang et al., Qwen2-VL, 2024, section 2.1 (contiguous); Qwen3-VL Technical Report, 2025, section 2
    (interleaved).
    """
    axis = axis_of_each(r.integers(sections), inv_freq.shape[0], layout)
    read = r.take(positions, axis, axis=0).swapaxes(0, 1)
    return _tables(r, r.round("angle", read * inv_freq))


def axis_of_each(sections: Any, half: int, layout: str) -> Any:
    """The axis (0, 1, 2) that each frequency reads."""
    axis = np.zeros(half, np.int64)
    if layout == "contiguous":
        axis[sections[0] :] = 1
        axis[sections[0] + sections[1] :] = 2
        return axis
    for k in (1, 2):
        axis[k : 3 * sections[k] : 3] = k
    return axis


def vit_rope_tables(r: Reading, positions: Quantity, inv_freq: Quantity) -> dict[str, Quantity]:
    """Tables of two position axes: the first half of the pairs turns by the first axis, the second by the second.

    With rope's pairing=halves a head's angles are then h, w, h, w in quarters (Qwen3-VL: row before column); with
    pairing=by_axis they are x, x, y, y (Gemma 4's tower: column before row). Which axis comes first is the caller's
    order.

    Args:
        positions: (tokens, 2) int32, 0 to 10,239: the two coordinates of each patch.
        inv_freq: (half / 2,) fp32, radians a position, the same for both axes; finite.

    Rounding points, freedoms: as rope_tables.

    Source: Qwen2-VL, 2024, section 2.1 (2D rotary embedding of the vision tower).
    """
    tokens = positions.shape[0]
    angle = r.round("angle", positions.reshape(tokens, 2, 1) * inv_freq)
    return _tables(r, angle.reshape(tokens, 2 * inv_freq.shape[0]))


def _tables(r: Reading, angle: Quantity) -> dict[str, Quantity]:
    return {
        "cos": r.round("cos", r.cos(angle, ulps=ULPS)),
        "sin": r.round("sin", r.sin(angle, ulps=ULPS)),
    }
