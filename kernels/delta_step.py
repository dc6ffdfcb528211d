"""One step of the gated delta rule: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import full_significands
from contract.kernels.delta_data import ANY_ORDER, EXP, half_keys, log_decays, rates, unit_rows
from contract.lazy import lazy
from contract.references.delta_step import delta_step as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

POINTS = {"state": "fp32", "out": "bf16"}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates without decay (exp has no other exact point), beta 1 or 1/2, keys of four +-1/2.

    Even rows hold integers, read by several entries of q: every sum is exact in every order. Odd rows have states of 21
    bits that cancel along the key to small numbers, and values with bits below the state's last one: what is stored must
    be rounded, and one entry of q reads it; every fourth of them overflows, which alone tells a truncated store of fp32.
    1 / sqrt(dk) is a power of two where dk is one of four.
    """
    heads, group, dk, dv = (shape[d] for d in ("heads", "group", "dk", "dv"))
    k = half_keys(rng, (heads, dk))
    # odd integers, so that no entry of the state is without weight in a sum
    state = 2.0 * rng.integers(-32, 32, (heads, group, dk, dv)) + 1.0
    q = np.where(rng.random((heads, dk)) < 0.5, rng.integers(-8, 9, (heads, dk)), 0.0)
    v = rng.integers(-127, 128, (heads, group, dv)).astype(np.float64)
    for row in range(1, heads, 2):
        at = np.flatnonzero(k[row])
        sign = np.sign(k[row, at])[None, :, None]
        small = 2.0 * rng.integers(-8, 8, (group, len(at), dv)) + 1.0
        large = np.floor(rng.uniform(1.25, 1.75, (group, 1, dv)) * 2.0**20)
        turns = np.where(np.arange(len(at)) % 2 == 0, 1.0, -1.0)[None, :, None]
        state[row][:, at] = sign * (turns * large + small)
        v[row] = full_significands(rng, (group, dv)) / 64.0
        q[row] = 0.0
        size = 2.0**120 if row % 8 == 5 else 2.0 ** rng.integers(0, 3)
        q[row, rng.choice(at)] = rng.choice((-size, size))
    return {
        "q": q,
        "k": k,
        "v": v,
        "beta": np.where(rng.random((heads, group)) < 0.5, 1.0, 0.5),
        "g": np.zeros((heads, group)),
        "state": state,
    }


delta_step = register(
    Contract(
        name="delta_step",
        family="delta",
        summary="one step of the gated delta rule: decay, correct and read the state of each head",
        reference=reference,
        operands=(
            tensor("q", "heads dk", "fp32", typical=unit_rows),
            tensor("k", "heads dk", "fp32", typical=unit_rows),
            tensor("v", "heads group dv"),
            tensor("beta", "heads group", typical=rates),
            tensor("g", "heads group", "fp32", typical=log_decays),
            tensor("state", "heads group dk dv", "fp32"),
            output("out", "heads group dv"),
            output("new_state", "heads group dk dv", "fp32", observed=True, in_place_of="state"),
        ),
        profiles=(
            Profile(
                "once",
                POINTS,
                users="Qwen3.5 and Qwen3-Next in transformers, flash-linear-attention",
            ),
            Profile(
                "float32",
                {**POINTS, "out": "fp32"},
                {"v": "fp32", "beta": "fp32", "out": "fp32"},
                users="the same in fp32",
            ),
        ),
        row_dims=("heads",),
        column_dim="dv",
        # Qwen3.5 has 16 key heads that serve two value heads each, all 128 wide; one of them is judged
        shapes=(
            {"heads": 1, "group": 2, "dk": 128, "dv": 128},
            {"heads": 4, "group": 2, "dk": 64, "dv": 32},
        ),
        awkward=(
            {"heads": 1, "group": 1, "dk": 1, "dv": 1},
            {"heads": 3, "group": 3, "dk": 17, "dv": 5},
            {"heads": 2, "group": 1, "dk": 33, "dv": 65},
        ),
        stress=(
            {"group": 2, "dk": 16, "dv": 8},
            {"group": 1, "dk": 5, "dv": 3},
            {"group": 2, "dk": 64, "dv": 4},
            {"group": 1, "dk": 2, "dv": 2},
            {"group": 3, "dk": 3, "dv": 5},
        ),
        exact=exact_rows,
        exact_shapes=(
            {"group": 2, "dk": 16, "dv": 8, "heads": 32},
            {"group": 1, "dk": 64, "dv": 32, "heads": 8},
            {"group": 2, "dk": 4, "dv": 4},
        ),
        freedoms={
            "exp": EXP,
            "memory": ANY_ORDER,
            "read": ANY_ORDER,
        },
    )
)


@implementation("delta_step", name="torch", profile=("once", "float32"))
def delta_step_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is read and the new state; products of matrices and vectors, fp32 inside."""
    kept = state * g.exp()[..., None, None]
    new_state = kept + k[:, None, :, None] * correction(k, v, beta, kept)
    return read(q, new_state).to(v.dtype), new_state


def correction(
    k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, kept: torch.Tensor
) -> torch.Tensor:
    """beta (v - S^T k), as rows beside the columns of keys: (heads, group, 1, dv)."""
    memory = k[:, None, None, :] @ kept
    change: torch.Tensor = (v.float()[:, :, None] - memory) * beta.float()[..., None, None]
    return change


def read(q: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """S^T (q / sqrt(dk)) in fp32."""
    scaled = q * q.shape[-1] ** -0.5
    out: torch.Tensor = (scaled[:, None, None, :] @ state).squeeze(-2)
    return out
