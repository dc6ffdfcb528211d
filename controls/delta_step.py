"""Planted steps of the delta rule: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from contract import green, red
from contract.kernels.delta_step import correction, read
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

T: TypeAlias = "torch.Tensor"
Pair = tuple["torch.Tensor", "torch.Tensor"]
BOTH = ("once", "float32")


def updated(k: T, v: T, beta: T, kept: T) -> torch.Tensor:
    """S + k d^T."""
    return kept + k[:, None, :, None] * correction(k, v, beta, kept)


def decayed(state: T, g: T) -> torch.Tensor:
    """e^g S."""
    return state * g.exp()[..., None, None]


# -- the state


@red("delta_step", profile=BOTH, gate="exact")
def state_in_bf16(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """The state is carried in bf16: small corrections vanish in it."""
    new_state = updated(k, v, beta, decayed(state, g)).bfloat16().float()
    return read(q, new_state).to(v.dtype), new_state


@red("delta_step", profile=BOTH, gate="shapes")
def state_not_carried(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """Every step starts from zeros."""
    new_state = updated(k, v, beta, torch.zeros_like(state))
    return read(q, new_state).to(v.dtype), new_state


@red("delta_step", profile="once", gate="shapes")
def state_not_stored(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """The step is read but the state that came in goes out."""
    return read(q, updated(k, v, beta, decayed(state, g))).to(v.dtype), state.clone()


@red("delta_step", profile="once", gate="exact")
def axes_of_the_state_swapped(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """The buffer is read as (dv, dk): columns of keys where rows are."""
    heads, group, dk, dv = state.shape
    turned = decayed(state, g).reshape(heads, group, dv, dk).transpose(-1, -2)
    new_state = updated(k, v, beta, turned)
    out = read(q, new_state).to(v.dtype)
    return out, new_state.transpose(-1, -2).reshape(heads, group, dk, dv).contiguous()


@red("delta_step", profile="once", gate="shapes")
def read_before_the_update(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """q reads the state that the step began with."""
    kept = decayed(state, g)
    return read(q, kept).to(v.dtype), updated(k, v, beta, kept)


# -- decay and rate


@red("delta_step", profile=BOTH, gate="shapes")
def decay_dropped(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """The state keeps everything."""
    new_state = updated(k, v, beta, state)
    return read(q, new_state).to(v.dtype), new_state


@red("delta_step", profile=BOTH, gate="shapes")
def decay_after_the_update(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """The correction is formed with the undecayed state and decays with it."""
    new_state = decayed(updated(k, v, beta, state), g)
    return read(q, new_state).to(v.dtype), new_state


@red("delta_step", profile="once", gate="shapes")
def decay_not_in_the_memory(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """S^T k is taken before the decay."""
    new_state = decayed(state, g) + k[:, None, :, None] * correction(k, v, beta, state)
    return read(q, new_state).to(v.dtype), new_state


@red("delta_step", profile="once", gate="shapes")
def decay_not_exponentiated(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """1 + g for e^g."""
    new_state = updated(k, v, beta, state * (1.0 + g)[..., None, None])
    return read(q, new_state).to(v.dtype), new_state


@red("delta_step", profile=BOTH, gate="exact")
def rate_dropped(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """beta = 1: every value replaces what its key held."""
    new_state = updated(k, v, torch.ones_like(beta), decayed(state, g))
    return read(q, new_state).to(v.dtype), new_state


@red("delta_step", profile="once", gate="exact")
def rate_on_the_value_alone(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """beta v - S^T k."""
    kept = decayed(state, g)
    scaled = v.float() * beta.float()[..., None]
    new_state = updated(k, scaled, torch.ones_like(beta), kept)
    return read(q, new_state).to(v.dtype), new_state


@red("delta_step", profile="once", gate="exact")
def no_correction(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """Linear attention: beta v is added, what the key held stays."""
    kept = decayed(state, g)
    new_state = kept + k[:, None, :, None] * (v.float() * beta.float()[..., None])[:, :, None]
    return read(q, new_state).to(v.dtype), new_state


# -- the query


@red("delta_step", profile=BOTH, gate="exact")
def query_not_scaled(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """1 / sqrt(dk) is left out."""
    new_state = updated(k, v, beta, decayed(state, g))
    return read(q * q.shape[-1] ** 0.5, new_state).to(v.dtype), new_state


@red("delta_step", profile="once", gate="exact")
def query_scaled_twice(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """1 / dk: scaled by the caller's convention and by the kernel's."""
    new_state = updated(k, v, beta, decayed(state, g))
    return read(q * q.shape[-1] ** -0.5, new_state).to(v.dtype), new_state


@red("delta_step", profile="once", gate="exact")
def state_read_in_bf16(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """The state is read in bf16, though it is stored in fp32."""
    new_state = updated(k, v, beta, decayed(state, g))
    return read(q, new_state.bfloat16().float()).to(v.dtype), new_state


# -- heads


@red("delta_step", profile="once", gate="shapes")
def value_heads_dealt_in_turn(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """Value head i takes key head i modulo their number, not i over the group."""
    heads, group, dv = v.shape
    flat = (heads * group, 1)
    keys, queries = (x.repeat(group, 1) for x in (k, q))
    kept = decayed(state, g).reshape(*flat, *state.shape[2:])
    new_state = updated(keys, v.reshape(*flat, dv), beta.reshape(flat), kept)
    out = read(queries, new_state).to(v.dtype)
    return out.reshape(v.shape), new_state.reshape(state.shape)


@red("delta_step", profile="once", gate="bounds")
def state_in_place(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """The state is overwritten, which only an implementation that says so may do."""
    state.copy_(updated(k, v, beta, decayed(state, g)))
    return read(q, state).to(v.dtype), state.clone()


# -- legal variants


@green("delta_step", profile=BOTH)
def in_float64(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """Every step is kept wider; the state is rounded once, and then read."""
    kept = state.double() * g.double().exp()[..., None, None]
    memory = torch.einsum("hd,hgdv->hgv", k.double(), kept)
    change = (v.double() - memory) * beta.double()[..., None]
    new_state = (kept + torch.einsum("hd,hgv->hgdv", k.double(), change)).float()
    out = torch.einsum("hd,hgdv->hgv", q.double() * q.shape[-1] ** -0.5, new_state.double())
    return out.float().to(v.dtype), new_state


@green("delta_step", profile=BOTH)
def key_by_key(q: T, k: T, v: T, beta: T, g: T, state: T) -> Pair:
    """Sums from the last key to the first, q divided by the root."""
    kept = decayed(state, g)
    memory = torch.zeros_like(kept[:, :, 0])
    for i in reversed(range(k.shape[-1])):
        memory = memory + kept[:, :, i] * k[:, i, None, None]
    change = (v.float() - memory) * beta.float()[..., None]
    new_state = kept + k[:, None, :, None] * change[:, :, None]
    out = torch.zeros_like(memory)
    for i in reversed(range(k.shape[-1])):
        out = out + new_state[:, :, i] * (q[:, i] / q.shape[-1] ** 0.5)[:, None, None]
    return out.to(v.dtype), new_state
