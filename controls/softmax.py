"""Planted softmaxes: other maxima, sums, bases and empty rows, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.softmax import softmax_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

ALL = ("once", "empty_zeros", "float32")
NAN = ("once", "float32")


def shares(raised: torch.Tensor) -> torch.Tensor:
    """Each value over its row's sum."""
    return raised / raised.sum(-1, keepdim=True)


@red("softmax", profile=NAN, gate="exact")
def no_maximum(x: torch.Tensor) -> torch.Tensor:
    """exp(x) overflows, or vanishes everywhere."""
    return shares(x.float().exp()).to(x.dtype)


@red("softmax", profile=NAN, gate="exact")
def largest_magnitude(x: torch.Tensor) -> torch.Tensor:
    """max|x| is taken off: a row of negative values vanishes."""
    wide = x.float()
    return shares((wide - wide.abs().amax(-1, keepdim=True)).exp()).to(x.dtype)


@red("softmax", profile=NAN, gate="exact")
def maximum_of_all_rows(x: torch.Tensor) -> torch.Tensor:
    """One maximum for the whole tensor."""
    return shares((x.float() - x.float().nan_to_num(0.0).amax()).exp()).to(x.dtype)


@red("softmax", profile=NAN, gate="shapes")
def along_the_rows(x: torch.Tensor) -> torch.Tensor:
    """The columns sum to one."""
    return torch.softmax(x.float(), 0).to(x.dtype)


@red("softmax", profile="once", gate="exact")
def base_two(x: torch.Tensor) -> torch.Tensor:
    """exp2 without the factor log2(e)."""
    wide = x.float()
    return shares((wide - wide.amax(-1, keepdim=True)).exp2()).to(x.dtype)


@red("softmax", profile=NAN, gate="exact")
def last_place_missing(x: torch.Tensor) -> torch.Tensor:
    """The sum ends one place before the row does."""
    wide = x.float()
    raised = (wide - wide.amax(-1, keepdim=True)).exp()
    return (raised / raised[:, :-1].sum(-1, keepdim=True)).to(x.dtype)


@red("softmax", profile=NAN, gate="exact")
def padded_with_zeros(x: torch.Tensor) -> torch.Tensor:
    """The row is padded to a multiple of 64 with 0 where -inf is meant: lanes of the padding count."""
    padded = torch.nn.functional.pad(x.float(), (0, 1 + -(x.shape[-1] + 1) % 64))
    return torch.softmax(padded, -1)[:, : x.shape[-1]].to(x.dtype)


@red("softmax", profile="once", gate="shapes")
def sum_in_bf16(x: torch.Tensor) -> torch.Tensor:
    """Exponentials and their running sum are held in bf16."""
    raised = (x.float() - x.float().amax(-1, keepdim=True)).exp().bfloat16()
    total = torch.zeros_like(raised[:, 0])
    for column in raised.unbind(-1):
        total = total + column
    return raised / total[:, None]


@red("softmax", profile="float32", gate="exact")
def through_bf16(x: torch.Tensor) -> torch.Tensor:
    """The result is rounded to bf16 on the way."""
    return torch.softmax(x, -1).bfloat16().float()


@red("softmax", profile=NAN, gate="exact")
def not_normalised(x: torch.Tensor) -> torch.Tensor:
    """exp(x - m) alone."""
    return (x.float() - x.float().amax(-1, keepdim=True)).exp().to(x.dtype)


@red("softmax", profile="empty_zeros", gate="exact")
def empty_row_uniform(x: torch.Tensor) -> torch.Tensor:
    """Masked places hold the lowest finite number: a row of them is uniform."""
    lowest = torch.finfo(torch.float32).min
    return torch.softmax(torch.where(x == -torch.inf, lowest, x.float()), -1).to(x.dtype)


@red("softmax", profile="empty_zeros", gate="exact")
def nan_to_zeros(x: torch.Tensor) -> torch.Tensor:
    """Every NaN is taken for an empty row."""
    return torch.softmax(x.float(), -1).nan_to_num(0.0).to(x.dtype)


@red("softmax", profile="float32", gate="exact")
def finite_fill(x: torch.Tensor) -> torch.Tensor:
    """-inf is replaced with -30, which is no mask where the largest value is low."""
    return torch.softmax(torch.where(x == -torch.inf, -30.0, x), -1)


@green("softmax", profile=ALL)
def in_float64(x: torch.Tensor, *, profile: str) -> torch.Tensor:
    """Every step is kept wider."""
    wide = torch.softmax(x.double(), -1)
    if profile == "empty_zeros":
        wide = torch.where(x.amax(-1, keepdim=True) == -torch.inf, 0.0, wide)
    return wide.float().to(x.dtype)


@green("softmax", profile=NAN)
def reciprocal(x: torch.Tensor) -> torch.Tensor:
    """A product with 1 / sum."""
    raised = (x.float() - x.float().amax(-1, keepdim=True)).exp()
    return (raised * (1.0 / raised.sum(-1, keepdim=True))).to(x.dtype)


@green("softmax", profile=ALL)
def sum_in_chunks(x: torch.Tensor, *, profile: str) -> torch.Tensor:
    """The sum runs from the back, 96 places at a time."""
    wide = x.float()
    top = wide.amax(-1, keepdim=True)
    raised = (wide - top).exp()
    total = torch.zeros_like(top)
    for part in reversed(raised.split(96, -1)):
        total = total + part.sum(-1, keepdim=True)
    out = (
        torch.where(top == -torch.inf, 0.0, raised / total)
        if profile == "empty_zeros"
        else raised / total
    )
    return out.to(x.dtype)


@green("softmax", profile=ALL)
def row_by_row(x: torch.Tensor, *, profile: str) -> torch.Tensor:
    """One row after the other."""
    return torch.cat([softmax_torch(row[None], profile=profile) for row in x])
