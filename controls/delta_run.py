"""Planted runs of the delta rule: states that are lost, rounded or moved by padding, and legal variants."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from contract import green, red
from contract.kernels.delta_run import delta_run_torch
from contract.kernels.delta_step import correction, read
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

T: TypeAlias = "torch.Tensor"
Pair = tuple["torch.Tensor", "torch.Tensor"]
BOTH = ("once", "float32")


def step(q: T, k: T, v: T, beta: T, g: T, state: T) -> torch.Tensor:
    """The right state after a step."""
    kept = state * g[..., None, None].exp()
    return kept + k[:, None, :, None] * correction(k, v, beta, kept)


def run(
    q: T,
    k: T,
    v: T,
    beta: T,
    g: T,
    state: T,
    lengths: T,
    *,
    begin: Callable[[T, T, int], T] = lambda state, first, t: state,
    end: Callable[[T], T] = lambda moved: moved,
    alive: Callable[[int, T], T] = lambda t, lengths: t < lengths,
) -> Pair:
    """The right run with what a step begins with, what it stores, or which steps count replaced."""
    first, states, outs = state, [], []
    for t in range(v.shape[2]):
        live = alive(t, lengths)[:, None, None]
        given = begin(state, first, t)
        moved = end(step(q[:, t], k[:, t], v[:, :, t], beta[:, :, t], g[:, :, t], given))
        state = torch.where(live[..., None], moved, state)
        states.append(state)
        outs.append(torch.where(live, read(q[:, t], state), 0.0).to(v.dtype))
    return torch.stack(outs, 2), torch.stack(states, 2)


# -- the state


@red("delta_run", profile=BOTH, gate="exact")
def state_not_carried(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """Every step begins with the state that came in."""
    return run(q, k, v, beta, g, state, lengths, begin=lambda state, first, t: first)


@red("delta_run", profile=BOTH, gate="exact")
def run_starts_from_zeros(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """The state that came in is not read."""
    return run(q, k, v, beta, g, torch.zeros_like(state), lengths)


@red("delta_run", profile=BOTH, gate="exact")
def state_in_bf16(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """The state is carried in bf16."""
    return run(q, k, v, beta, g, state, lengths, end=lambda moved: moved.bfloat16().to(moved.dtype))


@red("delta_run", profile=BOTH, gate="exact")
def last_state_everywhere(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """One buffer for all steps: every state shown is the last one, as after an accepted draft that is not taken back."""
    out, states = delta_run_torch(q, k, v, beta, g, state, lengths)
    return out, states[:, :, -1:].expand(states.shape).contiguous()


@red("delta_run", profile="once", gate="exact")
def state_of_the_step_before(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """The state is stored before it is moved."""
    out, states = delta_run_torch(q, k, v, beta, g, state, lengths)
    return out, torch.cat([state[:, :, None], states[:, :, :-1]], 2)


@red("delta_run", profile="once", gate="exact")
def read_before_the_update(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """q reads the state that the step began with."""
    out, states = delta_run_torch(q, k, v, beta, g, state, lengths)
    before = torch.cat([state[:, :, None], states[:, :, :-1]], 2)
    for t in range(v.shape[2]):
        live = (t < lengths)[:, None, None]
        out[:, :, t] = torch.where(live, read(q[:, t], before[:, :, t]), 0.0).to(v.dtype)
    return out, states


@red("delta_run", profile="once", gate="exact")
def last_step_dropped(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """A loop that ends one step early."""
    return run(q, k, v, beta, g, state, lengths, alive=lambda t, n: t < n - 1)


# -- decay and rate


@red("delta_run", profile=BOTH, gate="shapes")
def decay_dropped(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """The state keeps everything."""
    return delta_run_torch(q, k, v, beta, torch.zeros_like(g), state, lengths)


@red("delta_run", profile="once", gate="shapes")
def decay_of_the_first_step(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """All steps decay by the first one's g."""
    return delta_run_torch(q, k, v, beta, g[..., :1].expand(g.shape), state, lengths)


@red("delta_run", profile="once", gate="shapes")
def decays_summed(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """The sum of g from the first step on, as a chunk has it, at every step."""
    return delta_run_torch(q, k, v, beta, g.cumsum(-1), state, lengths)


@red("delta_run", profile=BOTH, gate="exact")
def rate_dropped(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """beta = 1."""
    return delta_run_torch(q, k, v, torch.ones_like(beta), g, state, lengths)


@red("delta_run", profile=BOTH, gate="shapes")
def steps_do_not_see_each_other(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """A chunk without its correction: every step's memory is that of the first state; updates are added up."""
    total, states, outs = state, [], []
    for t in range(v.shape[2]):
        live = (t < lengths)[:, None, None]
        change = correction(k[:, t], v[:, :, t], beta[:, :, t], state)
        moved = total * g[:, :, t, None, None].exp() + k[:, t, None, :, None] * change
        total = torch.where(live[..., None], moved, total)
        states.append(total)
        outs.append(torch.where(live, read(q[:, t], total), 0.0).to(v.dtype))
    return torch.stack(outs, 2), torch.stack(states, 2)


# -- padding


@red("delta_run", profile=BOTH, gate="exact")
def padding_counts(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """Steps past the sequence correct the state."""
    return run(q, k, v, beta, g, state, torch.full_like(lengths, v.shape[2]))


@red("delta_run", profile=BOTH, gate="exact")
def padding_clears_the_state(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """The state is multiplied with the mask."""
    out, states = delta_run_torch(q, k, v, beta, g, state, lengths)
    live = torch.arange(v.shape[2]) < lengths[:, None]
    return out, torch.where(live[:, None, :, None, None], states, 0.0)


@red("delta_run", profile=BOTH, gate="shapes")
def padding_decays(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """Values and rates of padding are masked, its decay is not."""
    live = (torch.arange(v.shape[2]) < lengths[:, None])[:, None]
    masked = torch.where(live, beta, 0.0).to(beta.dtype)
    out, states = run(q, k, v, masked, g, state, torch.full_like(lengths, v.shape[2]))
    return torch.where(live[..., None], out, 0.0).to(v.dtype), states


@red("delta_run", profile="once", gate="exact")
def padding_is_read(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """Queries of padding read the state."""
    out, states = delta_run_torch(q, k, v, beta, g, state, lengths)
    for t in range(v.shape[2]):
        out[:, :, t] = read(q[:, t], states[:, :, t]).to(v.dtype)
    return out, states


@red("delta_run", profile="once", gate="exact")
def length_of_the_first_sequence(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """One length for all."""
    return run(q, k, v, beta, g, state, lengths, alive=lambda t, n: t < n[:1].expand(n.shape))


# -- legal variants


@green("delta_run", profile=BOTH)
def in_float64(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """Every step is kept wider; a state is rounded once, and then read."""
    wide = [x.double() for x in (q, k, v, beta, g, state)]
    states, outs = [], []
    for t in range(v.shape[2]):
        live = (t < lengths)[:, None, None]
        kept = wide[5] * wide[4][:, :, t, None, None].exp()
        memory = torch.einsum("hd,hgdv->hgv", wide[1][:, t], kept)
        change = (wide[2][:, :, t] - memory) * wide[3][:, :, t, None]
        moved = kept + torch.einsum("hd,hgv->hgdv", wide[1][:, t], change)
        wide[5] = torch.where(live[..., None], moved.float(), state).double()
        state = wide[5].float()
        states.append(state)
        got = torch.einsum("hd,hgdv->hgv", wide[0][:, t] * q.shape[-1] ** -0.5, wide[5])
        outs.append(torch.where(live, got.float(), 0.0).to(v.dtype))
    return torch.stack(outs, 2), torch.stack(states, 2)


@green("delta_run", profile=BOTH)
def sequence_by_sequence(q: T, k: T, v: T, beta: T, g: T, state: T, lengths: T) -> Pair:
    """Each sequence runs for its own steps alone; the rest is filled."""
    out, states = torch.zeros_like(v), state[:, :, None].repeat(1, 1, v.shape[2], 1, 1)
    for i, n in enumerate(lengths.tolist()):
        if n:
            one = slice(i, i + 1)
            v_own, beta_own, g_own = (x[one, :, :n] for x in (v, beta, g))
            own = delta_run_torch(
                q[one, :n], k[one, :n], v_own, beta_own, g_own, state[one], lengths[one]
            )
            out[one, :, :n], states[one, :, :n] = own
            states[one, :, n:] = own[1][:, :, -1:]
    return out, states
