"""Planted lookups: other orders of the table, shortened indices, arithmetic on entries, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.gelu_table import gelu_of_codes, gelu_of_words
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


@red("gelu_table", profile="moved", gate="exact", index="int8")
def codes_as_bytes(codes: torch.Tensor, code_table: torch.Tensor) -> torch.Tensor:
    """The code's byte is the index: the table would have to begin with code 0."""
    return code_table[codes.view(torch.uint8).long()]


@red("gelu_table", profile="moved", gate="exact", index="int8")
def one_entry_early(codes: torch.Tensor, code_table: torch.Tensor) -> torch.Tensor:
    """The table is taken to begin with code -127; -128 shares its entry."""
    return code_table[(codes.long() + 127).clamp(min=0)]


@red("gelu_table", profile="moved", gate="exact", index="int8")
def lowest_code_clamped(codes: torch.Tensor, code_table: torch.Tensor) -> torch.Tensor:
    """-128 is read as -127."""
    return gelu_of_codes(codes.clamp(min=-127), code_table)


@red("gelu_table", profile="moved", gate="exact", index="int8")
def every_second_entry(codes: torch.Tensor, code_table: torch.Tensor) -> torch.Tensor:
    """A table of 128 entries: the code's last bit is dropped."""
    return code_table[(codes.long() + 128) & ~1]


@red("gelu_table", profile="moved", gate="exact", index="int8")
def mean_of_neighbours(codes: torch.Tensor, code_table: torch.Tensor) -> torch.Tensor:
    """Entries are interpolated half a step further on."""
    place = codes.long() + 128
    return (code_table[place] + code_table[(place + 1).clamp(max=255)]) / 2


@red("gelu_table", profile="moved", gate="exact", index="bf16")
def words_as_signed(words: torch.Tensor, word_table: torch.Tensor) -> torch.Tensor:
    """The word is read as a signed one: negative values come first."""
    return word_table[(words.long() ^ 0x8000)]


@red("gelu_table", profile="moved", gate="exact", index="bf16")
def twelve_bits(words: torch.Tensor, word_table: torch.Tensor) -> torch.Tensor:
    """A table of 4,096 entries: four bits of the significand are dropped."""
    return word_table[words.long() & ~0xF]


@red("gelu_table", profile="moved", gate="exact", index="bf16")
def sign_dropped(words: torch.Tensor, word_table: torch.Tensor) -> torch.Tensor:
    """A table of the positive half, as for an even function."""
    return word_table[words.long() & 0x7FFF]


@red("gelu_table", profile="moved", gate="exact", index="bf16")
def next_entry(words: torch.Tensor, word_table: torch.Tensor) -> torch.Tensor:
    """Off by one."""
    return word_table[(words.long() + 1) % len(word_table)]


@red("gelu_table", profile="moved", gate="exact", index="bf16")
def last_entry_missing(words: torch.Tensor, word_table: torch.Tensor) -> torch.Tensor:
    """The last entry is the one before it."""
    return gelu_of_words(words.clamp(max=len(word_table) - 2), word_table)


@red("gelu_table", profile="moved", gate="exact", index="bf16")
def flushed(words: torch.Tensor, word_table: torch.Tensor) -> torch.Tensor:
    """Subnormal entries become zeros: the lookup goes through arithmetic that flushes them."""
    out = gelu_of_words(words, word_table)
    return torch.where(out.abs() < 2.0**-126, out * 0.0, out)


@red("gelu_table", profile="moved", gate="exact", index="bf16")
def index_in_bf16(words: torch.Tensor, word_table: torch.Tensor) -> torch.Tensor:
    """The word travels in bf16, which holds no odd number above 256."""
    place = words.to(torch.bfloat16).long().clamp(max=len(word_table) - 1)
    return word_table[place]


@green("gelu_table", profile="moved", index="int8")
def two_tables(codes: torch.Tensor, code_table: torch.Tensor) -> torch.Tensor:
    """Half the table for negative codes, half for the others."""
    negative, other = code_table[:128], code_table[128:]
    place = codes.long()
    return torch.where(place < 0, negative[(place + 128).clamp(max=127)], other[place.clamp(min=0)])


@green("gelu_table", profile="moved", index="bf16")
def two_halves(words: torch.Tensor, word_table: torch.Tensor) -> torch.Tensor:
    """Half the table for negative values, half for the others."""
    place = words.long()
    positive, negative = word_table.chunk(2)
    return torch.where(place < 0x8000, positive[place & 0x7FFF], negative[place & 0x7FFF])
