"""The rotary embeddings of transformers' models.

They take tables of the head's width, in which every angle stands once for each side of its pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.clients.transformers_norms import (
    NEEDS,
    gemma4,
    gemma4_weightless,
    qwen3,
    weighted,
)
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

HALVES: dict[str, Any] = {"pairing": "halves"}


def both_sides(table: torch.Tensor) -> torch.Tensor:
    """One batch of a table for both halves of the rotary dims."""
    return torch.cat((table, table), -1)[None]


@implementation("rope", name="transformers.llama", profile="each_op", requires=NEEDS, **HALVES)
def llama(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Three torch operators, each stored in bf16; the whole head turns (the rest is put back here)."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    width = 2 * cos.shape[-1]
    turning = x[None, ..., :width]
    turned, _ = apply_rotary_pos_emb(
        turning, turning[:, :, :1], both_sides(cos), both_sides(sin), 2
    )
    return torch.cat((turned[0], x[..., width:]), -1)


@implementation("rope", name="transformers.qwen3_5", profile="each_op", requires=NEEDS, **HALVES)
def qwen3_5(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """The same of the first dims of a head, the others pass."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb

    rotate: Any = apply_rotary_pos_emb
    return rotate(x[None], x[None, :, :1], both_sides(cos), both_sides(sin), 2)[0][0]


@implementation(
    "rope", name="transformers.qwen3_5_vision", profile="once", requires=NEEDS, **HALVES
)
def qwen3_5_vision(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """The vision towers of Qwen3-VL and Qwen3.5: fp32 tables and arithmetic, one rounding."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import apply_rotary_pos_emb_vision

    width = 2 * cos.shape[-1]
    turning = x[..., :width]
    tables = both_sides(cos)[0], both_sides(sin)[0]
    return torch.cat(
        (apply_rotary_pos_emb_vision(turning, turning, *tables)[0], x[..., width:]), -1
    )


@implementation(
    "rope", name="transformers.gemma4_vision", profile="each_op", requires=NEEDS, pairing="by_axis"
)
def gemma4_vision(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Gemma 4's tower: the two halves of the head turn apart, by one axis each."""
    from transformers.models.gemma4.modeling_gemma4 import apply_multidimensional_rope

    width, axes = 2 * cos.shape[-1], torch.zeros(1, len(cos), 2)
    c, s = (torch.cat([both_sides(axis) for axis in t.chunk(2, -1)], -1) for t in (cos, sin))
    turned = apply_multidimensional_rope(x[None, ..., :width], c, s, axes)[0]
    return torch.cat((turned, x[..., width:]), -1)


@implementation(
    "rope", name="transformers.gptj", profile="each_op", requires=NEEDS, pairing="interleaved"
)
def gptj(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Neighbouring dims are the pairs, as in RoFormer's paper."""
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    width = 2 * cos.shape[-1]
    turned = apply_rotary_pos_emb(x[None, ..., :width], sin[None], cos[None])[0]
    return torch.cat((turned, x[..., width:]), -1)


# -- tables, by modules whose own frequencies are replaced by the operand


def tables_of(
    module: Any, inv_freq: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The module's tables at these positions, without their batch."""
    module.inv_freq = inv_freq
    cos, sin = module(torch.empty(0, dtype=dtype), positions)
    return cos.squeeze(0), sin.squeeze(0)


@implementation(
    "rope_tables", name="transformers.qwen3", profile="once", requires=NEEDS, scheme="plain"
)
def qwen3_tables(positions: torch.Tensor, inv_freq: torch.Tensor) -> Any:
    """bf16 tables of text positions."""
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    module, half = Qwen3RotaryEmbedding(Qwen3Config()), len(inv_freq)
    return [t[:, :half] for t in tables_of(module, inv_freq, positions[None], torch.bfloat16)]


@implementation(
    "mrope_tables",
    name="transformers.qwen3_5",
    profile="once",
    requires=NEEDS,
    layout="interleaved",
)
def qwen3_5_tables(positions: torch.Tensor, inv_freq: torch.Tensor, sections: torch.Tensor) -> Any:
    """bf16 tables of time, height and width."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

    module, half = Qwen3_5TextRotaryEmbedding(Qwen3_5TextConfig()), len(inv_freq)
    module.mrope_section = sections.tolist()
    return [t[:, :half] for t in tables_of(module, inv_freq, positions[:, None], torch.bfloat16)]


@implementation(
    "vit_rope_tables", name="transformers.qwen3_5_vision", profile="float32", requires=NEEDS
)
def qwen3_5_vision_tables(positions: torch.Tensor, inv_freq: torch.Tensor) -> Any:
    """fp32 tables of rows and columns, each angle twice in the layout h, w, h, w."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionRotaryEmbedding

    module, half = Qwen3_5VisionRotaryEmbedding(Qwen3_5VisionConfig()), 2 * len(inv_freq)
    return [t[:, :half] for t in tables_of(module, inv_freq, positions.T[None], torch.float32)]


@implementation(
    "vit_rope_tables", name="transformers.gemma4_vision", profile="once", requires=NEEDS
)
def gemma4_vision_tables(positions: torch.Tensor, inv_freq: torch.Tensor) -> Any:
    """bf16 tables of columns and rows, each angle twice in the layout x, x, y, y."""
    from transformers.models.gemma4.configuration_gemma4 import Gemma4VisionConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionRotaryEmbedding

    module, count = Gemma4VisionRotaryEmbedding(Gemma4VisionConfig()), len(inv_freq)
    return [
        torch.cat((t[:, :count], t[:, 2 * count : 3 * count]), -1)
        for t in tables_of(module, inv_freq, positions[None], torch.bfloat16)
    ]


# -- norm and rotation, as the attention layers have them


@implementation(
    "qk_rows", name="transformers.qwen3", profile="two_step", requires=NEEDS, v_norm="no", gain="w"
)
def qwen3_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float,
) -> Any:
    """Qwen3RMSNorm of each head, then the rotation of its first dims."""
    return qwen3_5(qwen3(q, q_weight, eps=eps), cos, sin), qwen3_5(
        qwen3(k, k_weight, eps=eps), cos, sin
    )


@implementation(
    "qk_rows", name="transformers.gemma4", profile="each_op", requires=NEEDS, v_norm="yes", gain="w"
)
def gemma4_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float,
) -> Any:
    """Gemma4RMSNorm of queries, keys and (weightless) values; the rotation as everywhere."""
    rows = gemma4(q, q_weight, eps=eps), gemma4(k, k_weight, eps=eps)
    return *(qwen3_5(row, cos, sin) for row in rows), gemma4_weightless(v, eps=eps)


@implementation(
    "qk_rows",
    name="transformers.qwen3_5",
    profile="each_op",
    requires=NEEDS,
    v_norm="no",
    gain="1+w",
)
def qwen3_5_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float,
) -> Any:
    """Qwen3_5RMSNorm, whose gain is 1 + w, and a rotation of a quarter of the head."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm

    rows = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        norm = weighted(Qwen3_5RMSNorm(x.shape[-1], eps), weight)
        rows.append(qwen3_5(norm(x), cos, sin))
    return rows
