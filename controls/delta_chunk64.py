"""Planted chunks of the delta rule: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from contract import green, red
from contract.kernels.delta_chunk64 import chunk, delta_chunk64_torch, padded, read_and_update
from contract.lazy import lazy
from contract.references.delta_chunk64 import CHUNK

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

T: TypeAlias = "torch.Tensor"
Stages: TypeAlias = "dict[str, torch.Tensor]"


def parts(q: T, k: T, v: T, beta: T, g: T) -> tuple[torch.Tensor, ...]:
    """Sums of g, decays between steps, keys, keys times beta, and the lower part of their products."""
    total = g.cumsum(-1)[..., None]
    decay = (total - total.mT).tril().exp().tril()
    keys, rated = k[:, None], k[:, None] * beta.float()[..., None]
    return total, decay, keys, rated, ((rated @ keys.mT) * decay).tril(-1)


def finished(
    q: T, keys: T, total: T, decay: T, state: T, new_values: T, decayed_keys: T, correction: T
) -> Stages:
    """The end of a chunk with all that is stored on the way."""
    out, new_state = read_and_update(q, keys, total, decay, correction, state)
    return {
        "out": out.bfloat16(),
        "new_state": new_state,
        "cumulative": total[..., 0].clone(),
        "new_values": new_values,
        "decayed_keys": decayed_keys,
        "correction": correction,
    }


def solved(lower: T, rhs: T) -> torch.Tensor:
    """(I + L)^-1 B."""
    system = lower + torch.eye(lower.shape[-1])
    found: torch.Tensor = torch.linalg.solve_triangular(
        system, rhs, upper=False, unitriangular=True
    )
    return found


# -- the triangular system


@red("delta_chunk64", profile="once", gate="exact")
def diagonal_kept(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """The system's own diagonal is added to that of the identity."""
    rows = padded(q, k, v.float(), beta.float(), g)
    return chunk(rows, state, v.shape[-2], v.dtype, diagonal=0)


@red("delta_chunk64", profile="once", gate="exact")
def no_triangular_solve(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """beta v for U and beta k e^G for W: the steps of a chunk do not see each other; nothing of it is shown."""
    total, decay, keys, rated, _ = parts(q, k, v, beta, g)
    correction = v.float() * beta.float()[..., None] - (rated * total.exp()) @ state
    out, new_state = read_and_update(q, keys, total, decay, correction, state)
    return {"out": out.bfloat16(), "new_state": new_state}


@red("delta_chunk64", profile="once", gate="shapes")
def solution_in_bf16(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """U is stored in bf16."""
    total, decay, keys, rated, lower = parts(q, k, v, beta, g)
    new_values = solved(lower, v.float() * beta.float()[..., None]).bfloat16().float()
    decayed_keys = solved(lower, rated * total.exp())
    correction = new_values - decayed_keys @ state
    return finished(q, keys, total, decay, state, new_values, decayed_keys, correction)


@red("delta_chunk64", profile="once", gate="shapes")
def inverse_in_bf16(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """The inverse of the system is stored in bf16 and multiplied."""
    total, decay, keys, rated, lower = parts(q, k, v, beta, g)
    inverse = solved(lower, torch.eye(lower.shape[-1]).expand_as(lower)).bfloat16().float()
    new_values = inverse @ (v.float() * beta.float()[..., None])
    decayed_keys = inverse @ (rated * total.exp())
    correction = new_values - decayed_keys @ state
    return finished(q, keys, total, decay, state, new_values, decayed_keys, correction)


@red("delta_chunk64", profile="once", gate="shapes")
def system_in_bf16(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """I + L is stored in bf16, all else is fp32."""
    total, decay, keys, rated, lower = parts(q, k, v, beta, g)
    lower = lower.bfloat16().float()
    new_values = solved(lower, v.float() * beta.float()[..., None])
    decayed_keys = solved(lower, rated * total.exp())
    correction = new_values - decayed_keys @ state
    return finished(q, keys, total, decay, state, new_values, decayed_keys, correction)


@red("delta_chunk64", profile="once", gate="exact")
def rate_not_in_the_system(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """k k^T for (beta k) k^T."""
    total, decay, keys, rated, _ = parts(q, k, v, beta, g)
    lower = ((keys @ keys.mT) * decay).tril(-1)
    new_values = solved(lower, v.float() * beta.float()[..., None])
    decayed_keys = solved(lower, rated * total.exp())
    correction = new_values - decayed_keys @ state
    return finished(q, keys, total, decay, state, new_values, decayed_keys, correction)


# -- decays


@red("delta_chunk64", profile="once", gate="shapes")
def sum_without_the_step_itself(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """G_i = g_1 + ... + g_(i-1)."""
    before = torch.cat([torch.zeros_like(g[..., :1]), g[..., :-1]], -1)
    return delta_chunk64_torch(q, k, v, beta, before, state)


@red("delta_chunk64", profile="once", gate="shapes")
def decay_of_the_other_side(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """e^(G_j - G_i): what is long ago counts more."""
    total, decay, keys, rated, _ = parts(q, k, v, beta, g)
    decay = (total.mT - total).tril().exp().tril()
    lower = ((rated @ keys.mT) * decay).tril(-1)
    new_values = solved(lower, v.float() * beta.float()[..., None])
    decayed_keys = solved(lower, rated * total.exp())
    correction = new_values - decayed_keys @ state
    return finished(q, keys, total, decay, state, new_values, decayed_keys, correction)


@red("delta_chunk64", profile="once", gate="shapes")
def keys_decay_from_the_start(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """k e^G for k e^(G_C - G) in the update of the state."""
    right = delta_chunk64_torch(q, k, v, beta, g, state)
    total = g.cumsum(-1)[..., None]
    held = k[:, None] * total.exp()
    right["new_state"] = state * total[..., -1:, :].exp() + held.mT @ right["correction"]
    return right


@red("delta_chunk64", profile="once", gate="shapes")
def query_does_not_decay(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """q S for (q e^G) S."""
    right = delta_chunk64_torch(q, k, v, beta, g, state)
    _, decay, keys, _, _ = parts(q, k, v, beta, g)
    scaled = q[:, None] * q.shape[-1] ** -0.5
    out = scaled @ state + ((scaled @ keys.mT) * decay) @ right["correction"]
    right["out"] = out.bfloat16()
    return right


# -- queries, state and padding


@red("delta_chunk64", profile="once", gate="exact")
def query_not_scaled(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """1 / sqrt(dk) is left out."""
    return delta_chunk64_torch(q * q.shape[-1] ** 0.5, k, v, beta, g, state)


@red("delta_chunk64", profile="once", gate="exact")
def step_does_not_read_itself(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """The mask of the reads is strict."""
    right = delta_chunk64_torch(q, k, v, beta, g, state)
    total, decay, keys, _, _ = parts(q, k, v, beta, g)
    out, _ = read_and_update(q, keys, total, decay.tril(-1), right["correction"], state)
    right["out"] = out.bfloat16()
    return right


@red("delta_chunk64", profile="once", gate="exact")
def state_not_carried(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """Every chunk starts from zeros."""
    return delta_chunk64_torch(q, k, v, beta, g, torch.zeros_like(state))


@red("delta_chunk64", profile="once", gate="exact")
def state_read_but_not_kept(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """The new state holds this chunk alone."""
    right = delta_chunk64_torch(q, k, v, beta, g, state)
    total = g.cumsum(-1)[..., None]
    held = k[:, None] * (total[..., -1:, :] - total).exp()
    right["new_state"] = held.mT @ right["correction"]
    return right


@red("delta_chunk64", profile="once", gate="exact")
def state_not_corrected_for(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """V = U: what the state holds of a key is not subtracted."""
    total, decay, keys, rated, lower = parts(q, k, v, beta, g)
    new_values = solved(lower, v.float() * beta.float()[..., None])
    decayed_keys = solved(lower, rated * total.exp())
    return finished(q, keys, total, decay, state, new_values, decayed_keys, new_values.clone())


@red("delta_chunk64", profile="once", gate="shapes")
def state_in_bf16(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """The state is carried in bf16."""
    right = delta_chunk64_torch(q, k, v, beta, g, state)
    right["new_state"] = right["new_state"].bfloat16().float()
    return right


@red("delta_chunk64", profile="once", gate="exact")
def padding_repeats_the_last_step(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """Padded steps have the last step's rows: they correct the state again."""
    rows = [
        torch.cat([x, x[..., -1:, :].expand(*x.shape[:-2], CHUNK - x.shape[-2], x.shape[-1])], -2)
        for x in (q, k, v.float(), beta.float()[..., None])
    ]
    grown = torch.nn.functional.pad(g, (0, CHUNK - g.shape[-1]))
    return chunk((*rows[:3], rows[3][..., 0], grown), state, v.shape[-2], v.dtype)


@red("delta_chunk64", profile="once", gate="shapes")
def padding_decays(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """Padded steps have the last step's decay: the state forgets on."""
    rows = padded(q, k, v.float(), beta.float(), g)
    missing = CHUNK - g.shape[-1]
    last = g[..., -1:].expand(*g.shape[:-1], missing)
    return chunk((*rows[:4], torch.cat([g, last], -1)), state, v.shape[-2], v.dtype)


# -- legal variants


@green("delta_chunk64", profile="once")
def row_by_row(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """Forward substitution, each sum from the nearest step to the first; no padding."""
    total, decay, keys, rated, lower = parts(q, k, v, beta, g)

    def substituted(rhs: T) -> torch.Tensor:
        found = rhs.clone()
        for i in range(1, rhs.shape[-2]):
            row = rhs[..., i, :]
            for j in reversed(range(i)):
                row = row - lower[..., i, j, None] * found[..., j, :]
            found[..., i, :] = row
        return found

    new_values = substituted(v.float() * beta.float()[..., None])
    decayed_keys = substituted(rated * total.exp())
    correction = new_values - decayed_keys @ state
    return finished(q, keys, total, decay, state, new_values, decayed_keys, correction)


@green("delta_chunk64", profile="once")
def in_float64(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """Every product is kept wider; what is stored is rounded, and then read."""
    total = g.double().cumsum(-1)[..., None].float()
    wide = total.double()
    decay = (wide - wide.mT).tril().exp().tril()
    keys, rated = k.double()[:, None], k.double()[:, None] * beta.double()[..., None]
    lower = ((rated @ keys.mT) * decay).tril(-1)
    rhs = v.double() * beta.double()[..., None]
    # row by row, as each is stored before the next one reads it
    both = torch.cat([rhs, rated * wide.exp()], -1)
    found = both.float()
    for i in range(1, v.shape[-2]):
        done = lower[..., i : i + 1, :i] @ found[..., :i, :].double()
        found[..., i, :] = (both[..., i : i + 1, :] - done).float()[..., 0, :]
    new_values, decayed_keys = (x.contiguous() for x in found.split([v.shape[-1], k.shape[-1]], -1))
    correction = (new_values.double() - decayed_keys.double() @ state.double()).float()
    out, new_state = read_and_update(
        q.double(), keys, wide, decay, correction.double(), state.double()
    )
    return {
        "out": out.float().bfloat16(),
        "new_state": new_state.float(),
        "cumulative": total[..., 0].clone(),
        "new_values": new_values,
        "decayed_keys": decayed_keys,
        "correction": correction,
    }


@green("delta_chunk64", profile="once")
def stages_kept_to_itself(q: T, k: T, v: T, beta: T, g: T, state: T) -> Stages:
    """Only the end is shown."""
    right = delta_chunk64_torch(q, k, v, beta, g, state)
    return {name: right[name] for name in ("out", "new_state")}
