"""Planted steps of the gated delta rule in Triton: one fault a kernel, and another launch of the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.controls.triton_faults import TRITON
from contract.engines.deferred_jit import jit
from contract.kernels.triton.delta_step import launch, step
from contract.kernels.triton.exact_functions import exp_by_fma
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    import triton.language as tl
else:
    torch, tl = lazy("torch"), lazy("triton.language")


@jit
def faulty(
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
    FAULT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
) -> None:
    """BLOCK_V columns of one value head's state."""
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
    old = tl.load(state_at + at, mask, other=0.0)
    kept = old * decay
    parts = k[:, None] * (old if FAULT == "undecayed" else kept)
    if FAULT == "lanes":
        # a shuffle step less: every second key
        parts = tl.where((key % 2 == 0)[:, None], parts, 0.0)
    change = (v.to(tl.float32) - tl.sum(parts, 0)) * rate
    new = k[:, None] * change[None, :] + kept
    if FAULT == "narrow":
        new = new.to(tl.bfloat16).to(tl.float32)
    new_head = (head * group + member) * dk * dv
    tl.store(new_at + new_head + key[:, None] * dv + value[None, :], new, mask)
    read = kept if FAULT == "early" else new
    out = tl.sum(tl.where((key < dk)[:, None], (q * root)[:, None] * read, 0.0), 0)
    out = out.to(out_at.dtype.element_ty)
    tl.store(out_at + (head * group + member) * dv + value, out, value < dv)


@red("delta_step", profile="once", gate="stress", **TRITON)
def triton_memory_of_the_undecayed_state(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The memory is read before the decay."""
    return launch(faulty, q, k, v, beta, g, state, FAULT="undecayed")


@red("delta_step", profile="once", gate="exact", **TRITON)
def triton_every_second_key(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over keys lacks a shuffle step."""
    return launch(faulty, q, k, v, beta, g, state, FAULT="lanes")


@red("delta_step", profile="once", gate="exact", **TRITON)
def triton_state_in_bf16(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The new state is rounded to bf16."""
    return launch(faulty, q, k, v, beta, g, state, FAULT="narrow")


@red("delta_step", profile="once", gate="exact", **TRITON)
def triton_read_before_the_update(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output is read from the state before the correction."""
    return launch(faulty, q, k, v, beta, g, state, FAULT="early")


@green("delta_step", profile="once", **TRITON)
def triton_one_warp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Another lane tree."""
    return launch(step, q, k, v, beta, g, state, num_warps=1)
