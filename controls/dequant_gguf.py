"""Planted readers of GGUF blocks: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.dequant_gguf import halves
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Q4_1, Q8_0 = 20, 34


def values(d: torch.Tensor, q: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    """d q + m in fp32, block after block."""
    return (d * q.float() + m).flatten(-2)


def parts(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """d, m and the 16 bytes of codes of Q4_1 blocks."""
    b = blocks.unflatten(-1, (-1, Q4_1))
    return halves(b[..., :2]), halves(b[..., 2:4]), b[..., 4:]


@red("dequant_gguf", profile="float32", gate="exact", kind="q4_1")
def high_half_first(blocks: torch.Tensor) -> torch.Tensor:
    """Values 0 to 15 from the high halves."""
    d, m, byte = parts(blocks)
    return values(d, torch.cat([byte >> 4, byte & 15], -1), m)


@red("dequant_gguf", profile="float32", gate="exact", kind="q4_1")
def halves_in_turn(blocks: torch.Tensor) -> torch.Tensor:
    """Both halves of a byte are neighbours, as in most other formats."""
    d, m, byte = parts(blocks)
    return values(d, torch.stack([byte & 15, byte >> 4], -1).flatten(-2), m)


@red("dequant_gguf", profile="float32", gate="exact", kind="q4_1")
def minimum_dropped(blocks: torch.Tensor) -> torch.Tensor:
    """d q alone."""
    d, m, byte = parts(blocks)
    return values(d, torch.cat([byte & 15, byte >> 4], -1), m * 0.0)


@red("dequant_gguf", profile="float32", gate="exact", kind="q4_1")
def codes_around_8(blocks: torch.Tensor) -> torch.Tensor:
    """d (q - 8) + m: the codes of Q4_0."""
    d, m, byte = parts(blocks)
    return values(d, torch.cat([byte & 15, byte >> 4], -1).float() - 8.0, m)


@red("dequant_gguf", profile="float32", gate="exact", kind="q4_1")
def scale_and_minimum_exchanged(blocks: torch.Tensor) -> torch.Tensor:
    """m comes first."""
    d, m, byte = parts(blocks)
    return values(m, torch.cat([byte & 15, byte >> 4], -1), d)


@red("dequant_gguf", profile="float32", gate="exact", kind="q4_1")
def high_byte_first(blocks: torch.Tensor) -> torch.Tensor:
    """fp16 numbers are read big-endian."""
    b = blocks.unflatten(-1, (-1, Q4_1))
    d, m = halves(b[..., :2].flip(-1)), halves(b[..., 2:4].flip(-1))
    return values(d, torch.cat([b[..., 4:] & 15, b[..., 4:] >> 4], -1), m)


@red("dequant_gguf", profile="float32", gate="exact", kind="q4_1")
def scale_of_the_next_block(blocks: torch.Tensor) -> torch.Tensor:
    """Block i takes d of block i + 1."""
    d, m, byte = parts(blocks)
    return values(d.roll(-1, -2), torch.cat([byte & 15, byte >> 4], -1), m)


@red("dequant_gguf", profile="once", gate="exact", kind="q4_1")
def product_rounded(blocks: torch.Tensor) -> torch.Tensor:
    """d q in bf16, then m."""
    d, m, byte = parts(blocks)
    product = (d * torch.cat([byte & 15, byte >> 4], -1).float()).bfloat16()
    return (product.float() + m).bfloat16().flatten(-2)


@red("dequant_gguf", profile="once", gate="exact", kind="q8_0")
def scale_rounded(blocks: torch.Tensor) -> torch.Tensor:
    """d in bf16 before it multiplies."""
    b = blocks.unflatten(-1, (-1, Q8_0))
    result: torch.Tensor = (halves(b[..., :2]).bfloat16() * b[..., 2:].view(torch.int8)).flatten(-2)
    return result


@red("dequant_gguf", profile="float32", gate="exact", kind="q8_0")
def unsigned_codes(blocks: torch.Tensor) -> torch.Tensor:
    """Codes are read as 0 to 255."""
    b = blocks.unflatten(-1, (-1, Q8_0))
    result: torch.Tensor = (halves(b[..., :2]) * b[..., 2:].float()).flatten(-2)
    return result


@red("dequant_gguf", profile="float32", gate="exact", kind="q8_0")
def scale_behind_the_codes(blocks: torch.Tensor) -> torch.Tensor:
    """d in the last two bytes of a block."""
    b = blocks.unflatten(-1, (-1, Q8_0))
    codes = b[..., :32].contiguous().view(torch.int8).float()
    result: torch.Tensor = (halves(b[..., 32:]) * codes).flatten(-2)
    return result


@red("dequant_gguf", profile="float32", gate="exact", kind="q8_0")
def scale_of_the_first_block(blocks: torch.Tensor) -> torch.Tensor:
    """One d a row."""
    b = blocks.unflatten(-1, (-1, Q8_0))
    result: torch.Tensor = (halves(b[..., :1, :2]) * b[..., 2:].view(torch.int8).float()).flatten(
        -2
    )
    return result


@green("dequant_gguf", profile="float32", kind="q4_1")
def in_float64(blocks: torch.Tensor) -> torch.Tensor:
    """Exact in float64, rounded once."""
    d, m, byte = parts(blocks)
    return values(d.double(), torch.cat([byte & 15, byte >> 4], -1).double(), m.double()).float()


@green("dequant_gguf", profile="float32", kind="q8_0")
def block_by_block(blocks: torch.Tensor) -> torch.Tensor:
    """One block at a time."""
    done = [halves(b[:, :2]) * b[:, 2:].view(torch.int8).float() for b in blocks.split(Q8_0, -1)]
    return torch.cat(done, -1)
