"""Softmax of rows: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.data import activations
from contract.kernels.swiglu import EXP
from contract.lazy import lazy
from contract.references.softmax import softmax as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: equal live places, all others masked or 200 below, whose exponential is 0 in fp32.

    The largest value is any number, also one whose exponential is not finite. Rows without a live place, with one, with
    a NaN and with +inf are among them, and rows of small integers, which are one value where the output is bf16.
    """
    rows, n = shape["rows"], shape["n"]
    live = rng.random((rows, n)) < rng.choice([0.05, 0.3, 1.0], (rows, 1))
    top = rng.integers(-300, 300, (rows, 1)) * 0.5
    below = np.where(rng.random((rows, n)) < 0.5, -np.inf, top - 200.0)
    x = np.where(live, top, below)
    x[::5] = -rng.integers(0, 40, x[::5].shape) / 8.0
    x[1::16] = -np.inf
    x[2::16] = -np.inf
    x[2::16, -1] = 7.0
    x[3::32, n // 2] = np.nan
    x[4::32, 0] = np.inf
    return {"x": x}


softmax = register(
    Contract(
        name="softmax",
        family="activations",
        summary="softmax of each row, the maximum taken off",
        reference=reference,
        operands=(
            tensor("x", "rows n", typical=activations),
            output("out", "rows n", in_place_of="x"),
        ),
        options={"empty": ("nan", "zeros")},
        profiles=(
            Profile(
                "once", {"out": "bf16"}, options={"empty": "nan"}, users="torch.softmax in bf16"
            ),
            Profile(
                "empty_zeros",
                {"out": "bf16"},
                options={"empty": "zeros"},
                users="fused attention, whose rows without a key are zeros",
            ),
            Profile(
                "float32",
                {"out": "fp32"},
                {"x": "fp32", "out": "fp32"},
                options={"empty": "nan"},
                users="eager attention: softmax in fp32, rounded after",
            ),
        ),
        row_dims=("rows",),
        # keys of PaliGemma's prefix, of SigLIP's 27 x 27 patches; logits of a vocabulary's tile
        shapes=({"rows": 16, "n": 1028}, {"rows": 64, "n": 729}, {"rows": 1, "n": 16_384}),
        awkward=({"rows": 3, "n": 1}, {"rows": 5, "n": 517}, {"rows": 17, "n": 33}),
        stress=({"n": 64}, {"n": 5}, {"n": 257}, {"n": 2}, {"n": 512}, {"n": 3}),
        exact=exact_rows,
        exact_shapes=({"n": 64}, {"n": 16}, {"n": 1024, "rows": 32}, {"n": 7}),
        freedoms={
            "exp": EXP,
            "sum": "any order: a proof, Higham section 4.2",
        },
    )
)


@implementation("softmax", name="torch", profile=("once", "empty_zeros", "float32"))
def softmax_torch(x: torch.Tensor, *, profile: str) -> torch.Tensor:
    """fp32 inside, one rounding."""
    wide = x.float()
    top = wide.amax(-1, keepdim=True)
    raised = torch.exp(wide - top)
    shares = raised / raised.sum(-1, keepdim=True)
    if profile == "empty_zeros":
        shares = torch.where(top == -torch.inf, 0.0, shares)
    return shares.to(x.dtype)
