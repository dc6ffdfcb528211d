"""Planted gates of the delta rule: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from contract import green, red
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

T: TypeAlias = "torch.Tensor"
Pair = tuple["torch.Tensor", "torch.Tensor"]
BOTH = ("once", "float32")


def rate(b: T) -> torch.Tensor:
    """sigmoid(b), rounded once."""
    return torch.sigmoid(b.float()).to(b.dtype)


def softplus(x: T) -> torch.Tensor:
    """torch's, with its threshold."""
    return torch.nn.functional.softplus(x)


@red("dn_gates", profile=BOTH, gate="exact")
def decay_grows(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """The sign of g is left out."""
    return rate(b), a_log.exp() * softplus(a.float() + dt_bias)


@red("dn_gates", profile=BOTH, gate="exact")
def bias_left_out(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """softplus(a)."""
    return rate(b), -a_log.exp() * softplus(a.float())


@red("dn_gates", profile="once", gate="shapes")
def bias_after_softplus(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """softplus(a) + dt_bias."""
    return rate(b), -a_log.exp() * (softplus(a.float()) + dt_bias)


@red("dn_gates", profile=BOTH, gate="shapes")
def rate_of_decay_not_exponentiated(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """a_log itself."""
    return rate(b), -a_log * softplus(a.float() + dt_bias)


@red("dn_gates", profile=BOTH, gate="stress")
def softplus_written_out(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """log(1 + exp(x)) overflows from 89 on."""
    x = a.float() + dt_bias
    return rate(b), -a_log.exp() * torch.log1p(x.exp())


@red("dn_gates", profile=BOTH, gate="shapes")
def threshold_of_5(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """softplus is its argument from 5 on: log1p(exp(-5)) is 0.0067."""
    x = a.float() + dt_bias
    return rate(b), -a_log.exp() * torch.nn.functional.softplus(x, threshold=5.0)


@red("dn_gates", profile=BOTH, gate="shapes")
def relu_for_softplus(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """max(x, 0)."""
    return rate(b), -a_log.exp() * torch.relu(a.float() + dt_bias)


@red("dn_gates", profile="once", gate="shapes")
def sum_in_bf16(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """a + dt_bias is formed in a's format."""
    return rate(b), -a_log.exp() * softplus((a + dt_bias.to(a.dtype)).float())


@red("dn_gates", profile="once", gate="shapes")
def decay_in_bf16(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """g is rounded to bf16 on its way."""
    g = -a_log.exp() * softplus(a.float() + dt_bias)
    return rate(b), g.bfloat16().float()


# lint: the format of what is handed on is the fault
@red("dn_gates", profile="once", gate="exact")
def rate_not_rounded(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """beta is handed on in fp32."""
    return torch.sigmoid(b.float()), -a_log.exp() * softplus(a.float() + dt_bias)


@red("dn_gates", profile="once", gate="shapes")
def rate_in_fp16(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """beta is rounded to fp16 first."""
    return torch.sigmoid(b.float()).half().to(b.dtype), -a_log.exp() * softplus(a.float() + dt_bias)


@red("dn_gates", profile=BOTH, gate="exact")
def gates_exchanged(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """The rate is taken from a, the decay from b."""
    return rate(a), -a_log.exp() * softplus(b.float() + dt_bias)


@green("dn_gates", profile=BOTH)
def larger_part_first(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """max(x, 0) + log1p(exp(-|x|)), which needs no threshold."""
    x = a.float() + dt_bias
    upper = torch.log1p(torch.exp(-x.abs()))
    return rate(b), -(a_log.exp() * (x.clamp(min=0.0) + upper))


@green("dn_gates", profile=BOTH)
def in_float64(a: T, b: T, a_log: T, dt_bias: T) -> Pair:
    """Every step is kept wider."""
    x = a.double() + dt_bias.double()
    wide = torch.where(x > 20.0, x, torch.log1p(x.clamp(max=20.0).exp()))
    beta = (1.0 / (1.0 + torch.exp(-b.double()))).float().to(b.dtype)
    return beta, (-a_log.double().exp() * wide).float()
