"""A chunk of up to 64 steps of the gated delta rule: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.delta_data import ANY_ORDER, EXP, log_decays, rates, unit_rows
from contract.lazy import lazy
from contract.references.delta_chunk64 import CHUNK
from contract.references.delta_chunk64 import delta_chunk64 as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

STAGES = ("cumulative", "new_values", "decayed_keys", "correction", "state")
LAST_BIT = (
    "sums in any order are wider than the last bit of fp32; where they are exact, so is the store"
)


def sized(heads: int, group: int, steps: int, dk: int, dv: int) -> dict[str, int]:
    """A shape, in the order of its dims."""
    return {"heads": heads, "group": group, "steps": steps, "dk": dk, "dv": dv}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates without decay, beta 1 or 1/2, keys of four +-1/2 on supports that are the same or disjoint, integer
    values, states and queries: bits of U grow with the keys that meet, and stay below 24."""
    heads, group, steps, dk, dv = (shape[d] for d in ("heads", "group", "steps", "dk", "dv"))
    k = np.zeros((heads, steps, dk // 4, 4))
    place = rng.integers(0, dk // 4, (heads, steps))
    signs = np.where(rng.random((heads, steps, 4)) < 0.5, -0.5, 0.5)
    np.put_along_axis(k, place[..., None, None], signs[:, :, None], axis=2)
    return {
        "q": rng.integers(-8, 9, (heads, steps, dk)),
        "k": k.reshape(heads, steps, dk),
        "v": rng.integers(-127, 128, (heads, group, steps, dv)),
        "beta": np.where(rng.random((heads, group, steps)) < 0.75, 1.0, 0.5),
        "g": np.zeros((heads, group, steps)),
        "state": 2.0 * rng.integers(-32, 32, (heads, group, dk, dv)) + 1.0,
    }


delta_chunk64 = register(
    Contract(
        name="delta_chunk64",
        family="delta",
        summary="up to 64 steps of the gated delta rule at once, through a triangular system",
        reference=reference,
        operands=(
            tensor("q", "heads steps dk", "fp32", typical=unit_rows, finite=True),
            tensor("k", "heads steps dk", "fp32", typical=unit_rows, finite=True),
            tensor("v", "heads group steps dv", finite=True),
            tensor("beta", "heads group steps", typical=rates, finite=True),
            tensor("g", "heads group steps", "fp32", typical=log_decays, finite=True),
            tensor("state", "heads group dk dv", "fp32", finite=True),
            output("out", "heads group steps dv"),
            output("new_state", "heads group dk dv", "fp32"),
            output("cumulative", "heads group steps", "fp32", stage=True),
            output("new_values", "heads group steps dv", "fp32", stage=True),
            output("decayed_keys", "heads group steps dk", "fp32", stage=True),
            output("correction", "heads group steps dv", "fp32", stage=True),
        ),
        profiles=(
            Profile(
                "once",
                {**dict.fromkeys(STAGES, "fp32"), "out": "bf16"},
                users="Qwen3.5 and Qwen3-Next in transformers",
                vacuous=dict.fromkeys(STAGES, LAST_BIT),
            ),
        ),
        row_dims=("heads",),
        # Qwen3.5 has 16 key heads that serve two value heads each, all 128 wide; one of them is judged
        shapes=(sized(1, 2, 64, 128, 128), sized(4, 2, 64, 32, 16)),
        awkward=(
            sized(1, 1, 1, 1, 1),
            sized(3, 2, 2, 5, 3),
            sized(2, 2, 17, 8, 5),
            sized(2, 1, 63, 16, 4),
        ),
        exact=exact_rows,
        exact_shapes=(
            {"heads": 16, "group": 2, "steps": 6, "dk": 16, "dv": 4},
            {"heads": 8, "group": 1, "steps": 16, "dk": 64, "dv": 4},
            {"heads": 16, "group": 1, "steps": 3, "dk": 4, "dv": 3},
        ),
        freedoms={
            "exp": EXP,
            "solve": "substitution, its sums in any order: Higham, Accuracy and Stability, theorem 8.5",
            **dict.fromkeys(("cumulative", "products", "memory", "read", "update"), ANY_ORDER),
        },
        not_applicable={
            "stress": "what an overflow does to a chunk depends on how its padding and its masked half are treated"
        },
        rules={"a chunk has at most 64 steps": lambda s: s["steps"] <= CHUNK},
    )
)


@implementation("delta_chunk64", name="torch", profile="once")
def delta_chunk64_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Padded to 64 steps, fp32 inside, with everything that it stores on the way."""
    steps = v.shape[-2]
    return chunk(padded(q, k, v.float(), beta.float(), g), state, steps, v.dtype)


def padded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """64 steps: zeros after the last one, so that it neither decays nor corrects."""
    missing = CHUNK - v.shape[-2]
    pad = torch.nn.functional.pad
    rows = [pad(x, (0, 0, 0, missing)) for x in (q, k, v)]
    return (*rows, pad(beta, (0, missing)), pad(g, (0, missing)))


def chunk(
    rows: Sequence[torch.Tensor],
    state: torch.Tensor,
    steps: int,
    dtype: torch.dtype,
    *,
    diagonal: int = -1,
) -> dict[str, torch.Tensor]:
    """The whole chunk of these rows of q, k, v, beta and g in fp32; what is stored of the first `steps`."""
    q, k, v, beta, g = rows
    total = g.cumsum(-1)[..., None]
    decay = (total - total.mT).tril().exp().tril()
    keys, rated = k[:, None], k[:, None] * beta[..., None]
    system = ((rated @ keys.mT) * decay).tril(diagonal)
    system = system + torch.eye(system.shape[-1])
    new_values, decayed_keys = (
        torch.linalg.solve_triangular(system, b, upper=False, unitriangular=diagonal < 0)
        for b in (v * beta[..., None], rated * total.exp())
    )
    correction = new_values - decayed_keys @ state
    out, new_state = read_and_update(q, keys, total, decay, correction, state)
    return {
        "out": out[..., :steps, :].to(dtype),
        "new_state": new_state,
        "cumulative": total[..., :steps, 0].clone(),
        "new_values": new_values[..., :steps, :].clone(),
        "decayed_keys": decayed_keys[..., :steps, :].clone(),
        "correction": correction[..., :steps, :].clone(),
    }


def read_and_update(
    q: torch.Tensor,
    keys: torch.Tensor,
    total: torch.Tensor,
    decay: torch.Tensor,
    correction: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the queries read of the state and of the chunk, and the state after it."""
    scaled = q[:, None] * q.shape[-1] ** -0.5
    out = (scaled * total.exp()) @ state + ((scaled @ keys.mT) * decay) @ correction
    last = total[..., -1:, :]
    held = keys * (last - total).exp()
    return out, state * last.exp() + held.mT @ correction
