"""The gated delta rule of transformers' Qwen3.5 as implementations of our contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import implementation
from contract.kernels.clients.transformers_norms import NEEDS

if TYPE_CHECKING:
    import torch


@implementation(
    "delta_step",
    name="transformers.torch_recurrent_gated_delta_rule",
    profile=("once", "float32"),
    requires=NEEDS,
)
def recurrent(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A sequence of one token. It returns the dtype of its queries, which are normalised in fp32 before: the store in
    v's dtype is ours."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    heads, group, dv = v.shape
    out, new_state = modeling_qwen3_5.torch_recurrent_gated_delta_rule(
        q[None, None],
        k[None, None],
        v.reshape(1, 1, heads * group, dv),
        g.reshape(1, 1, -1),
        beta.reshape(1, 1, -1),
        initial_state=state.reshape(1, heads * group, -1, dv),
        output_final_state=True,
    )
    return out.reshape(v.shape).to(v.dtype), new_state.reshape(state.shape)


@implementation(
    "conv4_ring_silu",
    name="transformers.causal_conv1d_update",
    profile="two_step",
    requires=NEEDS,
    layout="shift",
)
def convolution(
    x: torch.Tensor, weight: torch.Tensor, past: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's conv1d and silu; it moves the history in place, of which it is given a copy."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    history = past[None].clone()
    out = modeling_qwen3_5.causal_conv1d_update(x[None], history, weight, None, "silu")
    return out[0], history[0]


@implementation("l2norm", name="transformers.l2norm", profile="float32", requires=NEEDS)
def length_one(x: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Operators on fp32 rows, to which its callers convert."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    normed: torch.Tensor = modeling_qwen3_5.l2norm(x, eps=eps)
    return normed


@implementation(
    "delta_chunk64",
    name="transformers.torch_chunk_gated_delta_rule",
    profile="once",
    requires=NEEDS,
)
def chunked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk, padded to 64 by itself; its stages are not shown. The store in bf16 is ours, as in `recurrent`."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    heads, group, steps, dv = v.shape
    out, new_state = modeling_qwen3_5.torch_chunk_gated_delta_rule(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.reshape(1, heads * group, steps, dv).transpose(1, 2),
        g.reshape(1, heads * group, steps).transpose(1, 2),
        beta.reshape(1, heads * group, steps).transpose(1, 2),
        initial_state=state.reshape(1, heads * group, -1, dv),
        output_final_state=True,
    )
    rows = out.transpose(1, 2).reshape(v.shape).contiguous()
    return rows.to(v.dtype), new_state.reshape(state.shape)
