"""Kernels to be swept: one of one operand, one of two; and implementations of which each but the first is wrong."""

from __future__ import annotations

import os
import time

import torch

import contract
from contract import Contract, Profile, Scalar, output, tensor

SHAPE = {"rows": 2, "n": 8}

contract.register(
    Contract(
        name="cap",
        family="activations",
        summary="cap * tanh(x / cap)",
        reference=lambda r, x, cap: r.round("out", r.tanh(x / cap, ulps=2) * cap),
        operands=(tensor("x", "rows n"), output("out", "rows n")),
        scalars=(Scalar("cap", (30.0,)),),
        profiles=(
            Profile("once", {"out": "bf16"}),
            Profile("float32", {"out": "fp32"}, {"x": "fp32", "out": "fp32"}),
        ),
        row_dims=("rows",),
        column_dim="n",
        shapes=(SHAPE,),
        freedoms={"tanh": "a test"},
        not_applicable={"exact": "a test"},
    )
)
contract.register(
    Contract(
        name="gated",
        family="activations",
        summary="a product",
        reference=lambda r, a, b: r.round("out", a * b),
        operands=(tensor("a", "rows n"), tensor("b", "rows n"), output("out", "rows n")),
        profiles=(Profile("once", {"out": "bf16"}),),
        row_dims=("rows",),
        column_dim="n",
        shapes=(SHAPE,),
        not_applicable={"exact": "a test"},
    )
)
contract.register(
    Contract(
        name="centred",
        family="norms",
        summary="less the row's largest",
        reference=lambda r, x: r.round("out", x - r.max(x)),
        operands=(tensor("x", "rows n"), output("out", "rows n")),
        profiles=(Profile("once", {"out": "bf16"}),),
        row_dims=("rows",),
        shapes=(SHAPE,),
        not_applicable={"exact": "a test"},
    )
)
BOTH = ("once", "float32")


def capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    return ((x.float() / cap).tanh_() * cap).to(x.dtype)


@contract.implementation("cap", name="good", profile=BOTH)
def good(x: torch.Tensor, cap: float) -> torch.Tensor:
    return capped(x, cap)


@contract.implementation("cap", name="one_wrong", profile=BOTH)
def one_wrong(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Of 2^16 or 2^32 inputs one is wrong: 0x4049, or 0x41234567."""
    out = capped(x, cap)
    bits, wrong = (torch.int16, 0x4049) if x.dtype == torch.bfloat16 else (torch.int32, 0x41234567)
    return torch.where(x.view(bits) == wrong, (out.view(bits) + 16).view(x.dtype), out)


@contract.implementation("cap", name="nan_lost")
def nan_lost(x: torch.Tensor, cap: float) -> torch.Tensor:
    return torch.nan_to_num(capped(x, cap))


@contract.implementation("cap", name="sign_lost")
def sign_lost(x: torch.Tensor, cap: float) -> torch.Tensor:
    return capped(x, cap) + 0.0


@contract.implementation("cap", name="dies")
def dies(x: torch.Tensor, cap: float) -> torch.Tensor:
    os.abort()


@contract.implementation("gated", name="good")
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * b


@contract.implementation("gated", name="slow")
def slow(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    time.sleep(0.05)
    return a * b


@contract.implementation("gated", name="dies_late")
def dies_late(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if bool(b.isinf().all()):
        os.abort()
    return a * b


@contract.implementation("centred", name="good")
def centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.amax(-1, keepdim=True)
