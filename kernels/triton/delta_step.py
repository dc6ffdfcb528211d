"""One step of the gated delta rule: a Triton kernel that reads and writes the state once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.engines.deferred_jit import jit
from contract.kernels.triton.exact_functions import exp_by_fma
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")

#: Values of a program: 128 bytes of each of the state's rows.
VALUES = 32


@jit
def step(
    q_at: tl.tensor,
    k_at: tl.tensor,
    v_at: tl.tensor,
    beta_at: tl.tensor,
    g_at: tl.tensor,
    state_at: tl.tensor,
    out_at: tl.tensor,
    new_at: tl.tensor,
    group: tl.tensor,
    dk: tl.tensor,
    dv: tl.tensor,
    q_row: tl.tensor,
    k_row: tl.tensor,
    v_head: tl.tensor,
    v_group: tl.tensor,
    beta_head: tl.tensor,
    g_head: tl.tensor,
    state_head: tl.tensor,
    state_group: tl.tensor,
    state_row: tl.tensor,
    root: tl.tensor,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """BLOCK_V columns of one value head's state; `root` is 1 / sqrt(dk)."""
    head, member = tl.program_id(1).to(tl.int64), tl.program_id(2)
    key = tl.arange(0, BLOCK_K)
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    mask = (key < dk)[:, None] & (value < dv)[None, :]
    at = head * state_head + member * state_group
    at += key[:, None].to(tl.int64) * state_row + value[None, :]
    q = tl.load(q_at + head * q_row + key, key < dk, other=0.0)
    k = tl.load(k_at + head * k_row + key, key < dk, other=0.0)
    v = tl.load(v_at + head * v_head + member * v_group + value, value < dv, other=0.0)
    rate = tl.load(beta_at + head * beta_head + member).to(tl.float32)
    decay = exp_by_fma(tl.load(g_at + head * g_head + member))
    kept = tl.load(state_at + at, mask, other=0.0) * decay
    memory = tl.sum(k[:, None] * kept, 0)
    change = (v.to(tl.float32) - memory) * rate
    new = tl.fma(
        tl.broadcast_to(k[:, None], kept.shape), tl.broadcast_to(change[None, :], kept.shape), kept
    )
    new_head = (head * group + member) * dk * dv
    tl.store(new_at + new_head + key[:, None] * dv + value[None, :], new, mask)
    # beyond the keys k is 0, but 0 times an infinite change would be NaN
    read = tl.sum(tl.where((key < dk)[:, None], (q * root)[:, None] * new, 0.0), 0)
    out = read.to(out_at.dtype.element_ty)
    tl.store(out_at + (head * group + member) * dv + value, out, value < dv)


@implementation(
    "delta_step",
    name="triton",
    profile=("once", "float32"),
    engine="ptx",
    requires=("triton",),
)
def delta_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One launch: what is read, and the new state."""
    return launch(step, q, k, v, beta, g, state)


def launch(
    kernel: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel, or another with its arguments, over all value heads; last dimensions lie side by side."""
    heads, group, dk, dv = state.shape
    out = torch.empty((heads, group, dv), dtype=v.dtype, device=v.device)
    new_state = torch.empty((heads, group, dk, dv), dtype=torch.float32, device=v.device)
    kernel[(-(-dv // VALUES), heads, group)](
        q, k, v, beta, g, state, out, new_state,
        group, dk, dv, q.stride(0), k.stride(0), v.stride(0), v.stride(1), beta.stride(0), g.stride(0),
        state.stride(0), state.stride(1), state.stride(2), float(dk) ** -0.5,
        BLOCK_K=max(16, 1 << (dk - 1).bit_length()), BLOCK_V=VALUES, **more,
    )  # fmt: skip
    return out, new_state
