"""Planted rotations: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels.clients import transformers_rotary
from contract.kernels.clients.transformers_norms import NEEDS
from contract.kernels.rope import pairs, rope_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, pairing: str = "halves"
) -> torch.Tensor:
    """The contract's kernel, for faults that lie in what it is given."""
    return rope_torch(x, cos, sin, pairing=pairing)


def wide(table: torch.Tensor) -> torch.Tensor:
    """A table in fp32, with a dim for the heads."""
    return table.float()[:, None]


# -- rounding


@red("rope", profile="each_op", gate="exact", pairing="halves")
def products_not_rounded(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """bf16 tables, fp32 arithmetic, one rounding."""
    return rotated(x, cos.float(), sin.float())


@red("rope", profile="each_op", gate="exact", pairing="halves")
def one_product_fused(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first product goes into the sum unrounded, as a multiply-add does."""
    out, half = x.clone(), cos.shape[-1]
    a, b = pairs(x, half, "halves")
    first, second = pairs(out, half, "halves")
    first.copy_(a.float() * wide(cos) - (b * sin[:, None]).float())
    second.copy_(b.float() * wide(cos) + (a * sin[:, None]).float())
    return out


@red("rope", profile="once", gate="exact", pairing="halves")
def products_in_bf16(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Each product is stored in the row's format."""
    out, half = x.clone(), cos.shape[-1]
    a, b = pairs(x.float(), half, "halves")
    first, second = pairs(out, half, "halves")
    first.copy_((a * wide(cos)).to(x.dtype) - (b * wide(sin)).to(x.dtype))
    second.copy_((b * wide(cos)).to(x.dtype) + (a * wide(sin)).to(x.dtype))
    return out


@red("rope", profile="once", gate="exact", pairing=("halves", "interleaved"))
def tables_in_bf16(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, pairing: str
) -> torch.Tensor:
    """The tables are rounded before they are used, in fp32 all the same."""
    return rotated(x, cos.bfloat16().float(), sin.bfloat16().float(), pairing=pairing)


@red("rope", profile="once", gate="exact", pairing="halves")
def tables_in_fp16(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """11 bits of the tables' 24."""
    return rotated(x, cos.half().float(), sin.half().float())


@red("rope", profile="once", gate="exact", pairing="halves")
def half_away(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The store adds half a unit to the bits and cuts: ties go away from zero."""
    stored = rotated(x.float(), cos, sin).view(torch.int32) + 0x8000
    return (stored >> 16 << 16).view(torch.float32).to(x.dtype)


# -- pairs, sides and signs


@red("rope", profile="each_op", gate="shapes", pairing="halves")
def neighbours_for_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (2 i, 2 i + 1) where (i, i + half) are named."""
    return rotated(x, cos, sin, pairing="interleaved")


@red("rope", profile="each_op", gate="shapes", pairing="interleaved")
def halves_for_neighbours(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (i, i + half) where (2 i, 2 i + 1) are named."""
    return rotated(x, cos, sin)


@red("rope", profile="each_op", gate="shapes", pairing="interleaved")
def evens_then_odds(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Neighbours turn, and are stored as halves."""
    turned = rotated(x, cos, sin, pairing="interleaved")
    out = turned.clone()
    for target, side in zip(
        pairs(out, cos.shape[-1], "halves"),
        pairs(turned, cos.shape[-1], "interleaved"),
        strict=True,
    ):
        target.copy_(side)
    return out


@red("rope", profile="each_op", gate="exact", pairing="halves")
def halves_of_the_head(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (i, i + d / 2), though only the first dims turn."""
    out, half, middle = x.clone(), cos.shape[-1], x.shape[-1] // 2
    c, s = cos[:, None], sin[:, None]
    a, b = x[..., :half], x[..., middle : middle + half]
    out[..., :half], out[..., middle : middle + half] = a * c - b * s, b * c + a * s
    return out


@red("rope", profile="each_op", gate="exact", pairing="halves")
def rest_turned_too(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The dims behind the rotary ones turn by the same angles."""
    out, width = rotated(x, cos, sin), 2 * cos.shape[-1]
    if x.shape[-1] >= 2 * width:
        out[..., width : 2 * width] = rotated(x[..., width : 2 * width], cos, sin)
    return out


@red("rope", profile="each_op", gate="exact", pairing="halves")
def rest_not_written(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The dims behind the rotary ones are left as the memory was."""
    out = rotated(x, cos, sin)
    out[..., 2 * cos.shape[-1] :] = 0
    return out


@red("rope", profile="each_op", gate="exact", pairing="halves")
def backwards(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """By minus the angle."""
    return rotated(x, cos, -sin)


@red("rope", profile="each_op", gate="exact", pairing="halves")
def minus_on_both_sides(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """(a cos - b sin, b cos - a sin)."""
    out, half = rotated(x, cos, sin), cos.shape[-1]
    out[..., half : 2 * half] = rotated(x, cos, -sin)[..., half : 2 * half]
    return out


@red("rope", profile="each_op", gate="exact", pairing="halves")
def second_side_reads_the_first(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """In one buffer: b turns with an a that has turned already."""
    out, half = rotated(x, cos, sin), cos.shape[-1]
    a, b = out[..., :half], x[..., half : 2 * half]
    out[..., half : 2 * half] = b * cos[:, None] + a * sin[:, None]
    return out


@red("rope", profile="each_op", gate="shapes", pairing="by_axis")
def axes_swapped(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first half of the head turns by the second axis."""
    quarter = cos.shape[-1] // 2
    return rotated(x, cos.roll(quarter, -1), sin.roll(quarter, -1), pairing="by_axis")


# -- indices and memory


@red("rope", profile="each_op", gate="shapes", pairing="halves")
def tables_of_the_next_token(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The position is one too far."""
    return rotated(x, cos.roll(-1, 0), sin.roll(-1, 0))


@red("rope", profile="each_op", gate="shapes", pairing="halves")
def tables_by_head(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rows of x are counted head by head, and the tables read at that index."""
    flat = torch.arange(x.shape[0] * x.shape[1]) % len(cos)
    return rotated(x.flatten(0, 1)[:, None], cos[flat], sin[flat]).reshape(x.shape)


@red("rope", profile="each_op", gate="shapes", pairing="halves")
def last_head_left(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Heads are taken in pairs: the last of an odd number does not turn."""
    out = rotated(x, cos, sin)
    whole = x.shape[1] // 2 * 2
    out[:, whole:] = x[:, whole:]
    return out


@red("rope", profile="each_op", gate="bounds", pairing="halves")
def in_its_input(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x is overwritten, which only an implementation that says so may do."""
    x.copy_(rotated(x, cos, sin))
    return x.clone()


# -- other people's kernels under a profile or pairing that is not theirs


def client(gate: str, profile: str, pairing: str = "halves") -> Any:
    """A client planted where it rounds or pairs otherwise; it gets tables of that profile."""
    return lambda call, name: red(
        "rope", profile=profile, gate=gate, name=name, requires=NEEDS, pairing=pairing
    )(call)


client("exact", "each_op")(transformers_rotary.qwen3_5_vision, "transformers.qwen3_5_vision")
client("exact", "each_op")(transformers_rotary.gptj, "transformers.gptj")
client("exact", "each_op", "interleaved")(transformers_rotary.qwen3_5, "transformers.qwen3_5")
client("exact", "each_op", "by_axis")(transformers_rotary.llama, "transformers.llama")


@red("rope", profile="once", gate="exact", requires=NEEDS, pairing="halves")
def qwen3_5_text(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The text model's rotation, with its bf16 tables, in place of the tower's."""
    turned: torch.Tensor = transformers_rotary.qwen3_5(x, cos.to(x.dtype), sin.to(x.dtype))
    return turned


# -- legal variants


@green("rope", profile=("once", "float32"), pairing="halves")
def in_float64(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Every step is kept wider."""
    return rotated(x.double(), cos.double(), sin.double()).float().to(x.dtype)


@green("rope", profile=("once", "float32"), pairing="halves")
def first_product_fused(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first product stays exact (float64), the second is rounded to fp32."""
    out, half = x.clone(), cos.shape[-1]
    a, b = pairs(x.float(), half, "halves")
    first, second = pairs(out, half, "halves")
    c = wide(cos).double()
    first.copy_((a * c - b * wide(sin)).float())
    second.copy_((b * c + a * wide(sin)).float())
    return out


@green("rope", profile=("once", "float32"), pairing="halves")
def second_product_fused(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The first product is rounded to fp32, the second stays exact."""
    out, half = x.clone(), cos.shape[-1]
    a, b = pairs(x.float(), half, "halves")
    first, second = pairs(out, half, "halves")
    s = wide(sin).double()
    first.copy_((a * wide(cos) - b * s).float())
    second.copy_((b * wide(cos) + a * s).float())
    return out


@green("rope", profile="once", pairing="interleaved")
def complex_product(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """(a + b i) (cos + sin i)."""
    out, width = x.clone(), 2 * cos.shape[-1]
    turning = torch.view_as_complex(x[..., :width].float().unflatten(-1, (-1, 2)).contiguous())
    turned = turning * torch.complex(cos, sin)[:, None]
    out[..., :width] = torch.view_as_real(turned).flatten(-2)
    return out


@green("rope", profile="each_op", pairing="halves")
def tables_of_both_sides(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x C + (-b, a) S with tables of the head's width."""
    out, half = x.clone(), cos.shape[-1]
    a, b = pairs(x, half, "halves")
    c, s = (torch.cat((table, table), -1)[:, None] for table in (cos, sin))
    out[..., : 2 * half] = x[..., : 2 * half] * c + torch.cat((-b, a), -1) * s
    return out


@green("rope", profile=("each_op", "once"), pairing="interleaved")
def head_by_head(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """One token and head at a time."""
    out = torch.empty(x.shape, dtype=x.dtype)
    for token in range(x.shape[0]):
        at = slice(token, token + 1)
        for head in range(x.shape[1]):
            one = x[at, head : head + 1]
            out[at, head : head + 1] = rotated(one, cos[at], sin[at], pairing="interleaved")
    return out
