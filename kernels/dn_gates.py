"""Gates of a gated delta layer: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.delta_data import EXP
from contract.lazy import lazy
from contract.references.dn_gates import dn_gates as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

LOG1P = "CUDA C++ Programming Guide, single-precision functions: log1pf at most 1 ulp; 2 allowed"


def log_rates(rng: Any, shape: tuple[int, ...]) -> Any:
    """a_log as it is initialised: logarithms of numbers between 0 and 16."""
    return np.log(rng.uniform(0.01, 16.0, shape))


def steps(rng: Any, shape: tuple[int, ...]) -> Any:
    """dt_bias as it is initialised: around 1."""
    return 1.0 + 0.5 * rng.standard_normal(shape)


def projections(rng: Any, shape: tuple[int, ...]) -> Any:
    """a and b: wide enough that both ends of sigmoid and softplus are seen."""
    return 6.0 * rng.standard_normal(shape)


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """A rate of 1 (exp has no other exact point) and a + dt_bias above the threshold, where softplus is its argument:
    their sum has more than 24 bits, so g must be rounded. beta is any sigmoid in even rows (in bf16 they are one value,
    but next to a tie), in odd ones 1/2 or so near to 1 that fp32 has one value, too."""
    tokens, heads = shape["tokens"], shape["heads"]
    b = rng.integers(-24, 25, (tokens, heads)) / 4.0
    b[1::2] = rng.integers(32, 80, b[1::2].shape) * (rng.random(b[1::2].shape) < 0.5)
    # multiples of 2^-24 between 1/8 and 1/4, beside sums that end at 2^-18
    bias = rng.integers(2**21, 2**22, heads) * 2.0**-24
    return {
        "a": rng.integers(41, 120, (tokens, heads)).astype(np.float64),
        "b": b,
        "a_log": np.zeros(heads),
        "dt_bias": bias,
    }


POINTS = {"beta": "bf16", "g": "fp32"}

dn_gates = register(
    Contract(
        name="dn_gates",
        family="delta",
        summary="rate and log decay of each head of a gated delta layer",
        reference=reference,
        operands=(
            tensor("a", "tokens heads", typical=projections),
            tensor("b", "tokens heads", typical=projections),
            tensor("a_log", "heads", "fp32", typical=log_rates),
            tensor("dt_bias", "heads", "fp32", typical=steps),
            output("beta", "tokens heads"),
            output("g", "tokens heads", "fp32"),
        ),
        profiles=(
            Profile("once", POINTS, users="Qwen3.5 and Qwen3-Next in transformers"),
            Profile(
                "float32",
                {**POINTS, "beta": "fp32"},
                {"a": "fp32", "b": "fp32", "beta": "fp32"},
                users="the same in fp32",
            ),
        ),
        row_dims=("tokens",),
        # the 32 value heads of Qwen3.5
        shapes=(
            {"tokens": 1, "heads": 32},
            {"tokens": 70, "heads": 32},
            {"tokens": 1028, "heads": 32},
        ),
        awkward=({"tokens": 3, "heads": 1}, {"tokens": 17, "heads": 33}),
        stress=({"heads": 32}, {"heads": 3}, {"heads": 65}),
        exact=exact_rows,
        exact_shapes=({"heads": 32}, {"heads": 3}),
        freedoms={"exp": EXP, "log1p": LOG1P},
    )
)


@implementation("dn_gates", name="torch", profile=("once", "float32"))
def dn_gates_torch(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rate in b's format, log decay in fp32."""
    softplus = torch.nn.functional.softplus(a.float() + dt_bias)
    return torch.sigmoid(b.float()).to(b.dtype), -a_log.exp() * softplus
