"""Planted joins of rows: exchanged, overlapping, stale and interleaved ones, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.concat_rows import concat_rows_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("concat_rows", profile="moved", gate="exact")
def exchanged(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The second comes first."""
    return torch.cat([second, first], 1)


@red("concat_rows", profile="moved", gate="exact")
def one_row_early(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The second starts over the first's last row; the last row keeps what was there (zeros)."""
    out = torch.cat([first, torch.zeros_like(second)], 1)
    out[:, first.shape[1] - 1 : -1] = second
    return out


@red("concat_rows", profile="moved", gate="exact")
def last_row_missing(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The last row is the one before it."""
    out = concat_rows_torch(first, second)
    out[:, -1] = out[:, -2]
    return out


@red("concat_rows", profile="moved", gate="exact")
def stale_second(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Every sequence of the batch gets the first one's second part."""
    return torch.cat([first, second[:1].expand_as(second)], 1)


@red("concat_rows", profile="moved", gate="exact")
def previous_sequence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The second part of the sequence before."""
    return torch.cat([first, second.roll(1, 0)], 1)


@red("concat_rows", profile="moved", gate="exact")
def batch_not_in_the_stride(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """All first parts, then all second parts: right for a batch of one."""
    flat = torch.cat([first.flatten(0, 1), second.flatten(0, 1)])
    return flat.reshape(first.shape[0], -1, first.shape[2])


@red("concat_rows", profile="moved", gate="exact")
def columns_reversed(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The second part's columns run backwards."""
    return torch.cat([first, second.flip(-1)], 1)


@red("concat_rows", profile="moved", gate="shapes")
def scaled_second(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The second part is multiplied by sqrt(d) again."""
    return torch.cat([first, second * second.shape[-1] ** 0.5], 1)


@red("concat_rows", profile="moved", gate="exact")
def flushed(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Subnormals become zeros: the copy goes through arithmetic that flushes them."""
    out = torch.cat([first, second], 1)
    return torch.where(out.abs() < 2.0**-126, out * 0.0, out)


@green("concat_rows", profile="moved")
def row_by_row(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Rows are written one after the other."""
    out = first.new_empty(first.shape[0], first.shape[1] + second.shape[1], first.shape[2])
    for place, row in enumerate([*first.unbind(1), *second.unbind(1)]):
        out[:, place] = row
    return out


@green("concat_rows", profile="moved")
def as_words(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Bits are moved as integers."""
    words = [x.contiguous().view(torch.int16) for x in (first, second)]
    return torch.cat(words, 1).view(first.dtype)
