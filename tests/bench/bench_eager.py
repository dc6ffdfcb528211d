"""The torch implementations of norms, GeGLU and soft cap against the eager formulas of modelling code, 128 rows in bf16."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from run import best

from contract.kernels.add_rms_tail import add_rms_tail_torch
from contract.kernels.geglu import geglu_torch
from contract.kernels.layer_norm import layer_norm_torch
from contract.kernels.rms_norm import rms_norm_torch
from contract.kernels.softcap import softcap_torch

ROWS, D, EPS, CAP = 128, 3840, 1e-6, 30.0
PASSES = 30
#: Of the formula's time.
MOST = 1.3
T = torch.Tensor


def rms(x: T, gain: T) -> T:
    """Gemma's: one rounding at the end."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return (normed * gain.float()).type_as(x)


def rms_two_step(x: T, gain: T) -> T:
    """Qwen3's and Llama's."""
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return gain * (wide * torch.rsqrt(variance + EPS)).to(x.dtype)


def layer(x: T, gain: T, bias: T) -> T:
    """In fp32, rounded at the end."""
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = (wide - mean).pow(2).mean(-1, keepdim=True)
    return ((wide - mean) * torch.rsqrt(variance + EPS) * gain.float() + bias.float()).type_as(x)


def tail(x: T, residual: T, gain: T, branch: T) -> tuple[T, T]:
    """Gemma's sandwich: the branch's norm, the stream, the next norm."""
    total = residual + rms(x, branch)
    return total, rms(total, gain)


def gelu_written_out(gate: T, up: T) -> T:
    """NewGELUActivation: an operator a step."""
    inner = math.sqrt(2.0 / math.pi) * (gate + 0.044715 * torch.pow(gate, 3.0))
    return 0.5 * gate * (1.0 + torch.tanh(inner)) * up


def gelu_in_registers(gate: T, up: T) -> T:
    """fp32 from end to end."""
    wide = torch.nn.functional.gelu(gate.float(), approximate="tanh")
    return (wide * up.float()).type_as(gate)


def pairs() -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """(name, implementation, the formula that it replaces)."""
    made = torch.Generator().manual_seed(0)
    x, y = (torch.randn(ROWS, D, generator=made).bfloat16() for _ in "xy")
    w, b = (1 + 0.25 * torch.randn(D, generator=made).bfloat16() for _ in "wb")
    gelu = torch.nn.functional.gelu
    return [
        (
            "rms_norm/once",
            lambda: rms_norm_torch(x, w, eps=EPS, gain="w", profile="once"),
            lambda: rms(x, w),
        ),
        (
            "rms_norm/two_step",
            lambda: rms_norm_torch(x, w, eps=EPS, gain="w", profile="two_step"),
            lambda: rms_two_step(x, w),
        ),
        (
            "layer_norm/once",
            lambda: layer_norm_torch(x, w, b, eps=EPS, profile="once"),
            lambda: layer(x, w, b),
        ),
        (
            "add_rms_tail/each",
            lambda: add_rms_tail_torch(x, y, w, b, eps=EPS, profile="each"),
            lambda: tail(x, y, w, b),
        ),
        (
            "geglu/two_step",
            lambda: geglu_torch(x, y, profile="two_step"),
            lambda: gelu(x, approximate="tanh") * y,
        ),
        (
            "geglu/each_product",
            lambda: geglu_torch(x, y, profile="each_product"),
            lambda: gelu_written_out(x, y),
        ),
        (
            "geglu/once",
            lambda: geglu_torch(x, y, profile="once"),
            lambda: gelu_in_registers(x, y),
        ),
        (
            "softcap/each_op",
            lambda: softcap_torch(x, cap=CAP, profile="each_op"),
            lambda: torch.tanh(x / CAP) * CAP,
        ),
        (
            "softcap/once",
            lambda: softcap_torch(x, cap=CAP, profile="once"),
            lambda: (torch.tanh(x.float() / CAP) * CAP).type_as(x),
        ),
    ]


def measure() -> list[tuple[str, float, float]]:
    """(name, time of the implementation over that of the formula, the negative of the most that it may be)."""
    found = []
    for name, ours, theirs in pairs():
        mine, eager = best(ours, theirs, passes=PASSES)
        found.append((f"{name}, of the eager formula's time", mine / eager, -MOST))
    return found
