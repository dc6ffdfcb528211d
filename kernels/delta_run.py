"""A run of steps of the gated delta rule: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.delta_data import ANY_ORDER, EXP, log_decays, rates, unit_rows
from contract.kernels.delta_step import correction, read
from contract.lazy import lazy
from contract.references.delta_run import delta_run as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

POINTS = {"state": "fp32", "out": "bf16"}


def sized(heads: int, group: int, steps: int, dk: int, dv: int) -> dict[str, int]:
    """A shape, in the order of its dims."""
    return {"heads": heads, "group": group, "steps": steps, "dk": dk, "dv": dv}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates without decay (exp has no other exact point), beta 1 or 1/2, keys of four +-1/2.

    Even rows hold integers, and keys may meet: their bits grow by a few a step. Odd rows have keys on supports of their
    own, along which states of 21 bits cancel, and values with bits below the state's last one: what is stored must be
    rounded, at every step, and one entry of q reads it. Each step's states are a quarter of the last one's, so that its
    sums are exact beside the bits that are there already. Every fourth of these rows overflows where it is read, which
    alone tells a truncated store of fp32. Lengths are of all sizes; padding holds what would move a state.
    """
    heads, group, steps, dk, dv = (shape[d] for d in ("heads", "group", "steps", "dk", "dv"))
    parts = dk // 4
    places = np.stack([rng.permutation(max(parts, steps))[:steps] % parts for _ in range(heads)])
    signs = rng.choice((-0.5, 0.5), (heads, steps, 4))
    entries = np.zeros((heads, steps, parts, 4))
    np.put_along_axis(entries, places[..., None, None], signs[:, :, None], axis=2)
    k = entries.reshape(heads, steps, dk)
    state = 2.0 * rng.integers(-32, 32, (heads, group, dk, dv)) + 1.0
    q = np.where(rng.random((heads, steps, dk)) < 0.5, rng.integers(-8, 9, (heads, steps, dk)), 0.0)
    v = rng.integers(-127, 128, (heads, group, steps, dv)).astype(np.float64)
    for row in range(1, heads, 2):
        for t in range(steps):
            at = np.flatnonzero(k[row, t])
            small = 2.0 * rng.integers(-8, 8, (group, 4, dv)) + 1.0
            large = np.floor(rng.uniform(1.25, 1.75, (group, 1, dv)) * 2.0 ** (20 - 2 * t))
            turns = np.array([1.0, -1.0, 1.0, -1.0])[None, :, None]
            state[row][:, at] = np.sign(k[row, t, at])[None, :, None] * (turns * large + small)
            v[row, :, t] = full_significands(rng, (group, dv)) * 2.0 ** (-2 * t - 6)
            q[row, t] = 0.0
            size = 2.0**120 if row % 8 == 5 else 2.0 ** rng.integers(0, 3)
            q[row, t, rng.choice(at)] = rng.choice((-size, size))
    lengths = np.where(rng.random(heads) < 0.5, steps, rng.integers(0, steps + 1, heads))
    return {
        "q": q,
        "k": k,
        "v": v,
        "beta": np.where(rng.random((heads, group, steps)) < 0.5, 1.0, 0.5),
        "g": np.zeros((heads, group, steps)),
        "state": state,
        "lengths": lengths,
    }


delta_run = register(
    Contract(
        name="delta_run",
        family="delta",
        summary="steps of the gated delta rule one after the other, each judged from the state before it",
        reference=reference,
        operands=(
            tensor("q", "heads steps dk", "fp32", typical=unit_rows),
            tensor("k", "heads steps dk", "fp32", typical=unit_rows),
            tensor("v", "heads group steps dv"),
            tensor("beta", "heads group steps", typical=rates),
            tensor("g", "heads group steps", "fp32", typical=log_decays),
            tensor("state", "heads group dk dv", "fp32"),
            tensor("lengths", "heads", "int32", below="steps+1"),
            output("out", "heads group steps dv"),
            output("states", "heads group steps dk dv", "fp32", observed=True),
        ),
        profiles=(
            Profile("once", POINTS, users="Qwen3.5 and Qwen3-Next: decoding, verified drafts"),
            Profile(
                "float32",
                {**POINTS, "out": "fp32"},
                {"v": "fp32", "beta": "fp32", "out": "fp32"},
                users="the same in fp32",
            ),
        ),
        row_dims=("heads",),
        column_dim="dv",
        # Qwen3.5 has 16 key heads that serve two value heads each, all 128 wide; one of them, of a few columns, is judged
        shapes=(sized(1, 2, 3, 128, 32), sized(4, 2, 6, 32, 16)),
        awkward=(sized(1, 1, 1, 1, 1), sized(3, 3, 2, 17, 5), sized(2, 1, 9, 6, 3)),
        stress=(
            {"group": 1, "steps": 3, "dk": 8, "dv": 4},
            {"group": 2, "steps": 2, "dk": 5, "dv": 3},
            {"group": 1, "steps": 4, "dk": 2, "dv": 2},
        ),
        exact=exact_rows,
        exact_shapes=(
            {"heads": 32, "group": 2, "steps": 4, "dk": 16, "dv": 4},
            {"heads": 16, "group": 1, "steps": 5, "dk": 64, "dv": 4},
            {"heads": 16, "group": 1, "steps": 1, "dk": 4, "dv": 3},
        ),
        freedoms={"exp": EXP, "memory": ANY_ORDER, "read": ANY_ORDER},
    )
)


@implementation("delta_run", name="torch", profile=("once", "float32"))
def delta_run_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
    lengths: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What every step reads, and the state after it; products of matrices and vectors, fp32 inside."""
    states = state.new_empty(*v.shape[:3], *state.shape[2:])
    out = torch.zeros_like(v)
    for t in range(v.shape[2]):
        live = (t < lengths)[:, None, None]
        kept = state * g[..., t, None, None].exp()
        change = correction(k[:, t], v[:, :, t], beta[:, :, t], kept)
        moved = kept + k[:, t, None, :, None] * change
        state = torch.where(live[..., None], moved, state)
        states[:, :, t] = state
        out[:, :, t] = torch.where(live, read(q[:, t], state), 0.0).to(v.dtype)
    return out, states
