"""Planted dense layers: accumulators, indices, biases and roundings that kernels have got wrong, and legal orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.clients.torch_linear import functional_linear, matmul_then_bias
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

STORED = ("once", "float16")
INSIDE = ("once", "float16", "float32")
ALL = ("once", "bias_after", "float16", "float32")

red("linear", profile="bias_after", gate="exact", name="torch.F.linear")(functional_linear)
red("linear", profile=STORED, gate="exact", name="torch.matmul", bias_term="yes")(matmul_then_bias)


def stored(
    product: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, profile: str
) -> torch.Tensor:
    """The rest of a right kernel behind its product."""
    if bias is None:
        return product.to(x.dtype)
    if profile == "bias_after":
        product = product.to(x.dtype)
    return (product + bias.to(product.dtype).float()).to(x.dtype)


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The fp32 product."""
    return x.float() @ weight.float().T


# -- the accumulator and what it is fed with


@red("linear", profile=("once", "bias_after"), gate="exact", bias_term="yes")
def accumulator_in_bf16(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """The running sum is stored after every 16 columns."""
    total = torch.zeros((x.shape[0], weight.shape[0]), dtype=torch.bfloat16)
    for a, b in zip(x.split(16, -1), weight.split(16, -1), strict=True):
        total = (total.float() + product(a, b)).bfloat16()
    return stored(total.float(), x, bias, profile)


@red("linear", profile="float16", gate="exact")
def accumulator_in_fp16(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """HMMA with an fp16 accumulator."""
    total = torch.zeros((x.shape[0], weight.shape[0]), dtype=torch.float16)
    for a, b in zip(x.split(16, -1), weight.split(16, -1), strict=True):
        total = (total.float() + product(a, b)).half()
    return stored(total.float(), x, bias, profile)


@red("linear", profile="once", gate="exact")
def split_k_partials_in_bf16(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """Each half of the columns is stored before the two are added."""
    half = (x.shape[-1] + 1) // 2
    parts = [product(a, b) for a, b in zip(x.split(half, -1), weight.split(half, -1), strict=True)]
    return stored(sum((p.bfloat16().float() for p in parts), parts[0] * 0.0), x, bias, profile)


@red("linear", profile="float32", gate="exact")
def operands_in_tf32(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """The matrix unit's default: eleven bits of each operand, the others cut."""

    def cut(a: torch.Tensor) -> torch.Tensor:
        return (a.contiguous().view(torch.int32) & -(1 << 13)).view(torch.float32)

    return stored(cut(x) @ cut(weight).T, x, bias, profile)


@red("linear", profile=("float16", "float32"), gate="exact")
def operands_in_bf16(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """The operands are stored in bf16 on the way."""
    return stored(product(x.bfloat16(), weight.bfloat16()), x, bias, profile)


# -- indices


@red("linear", profile=ALL, gate="exact")
def tail_dropped(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """Columns beyond a multiple of the tile of 32 are left out."""
    k = x.shape[-1] // 32 * 32
    return stored(product(x[:, :k], weight[:, :k]), x, bias, profile)


@red("linear", profile=ALL, gate="exact")
def tail_counted_twice(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """The last tile of 32 is moved back to fit, over columns that were added already."""
    k = x.shape[-1] // 32 * 32
    again = product(x[:, -32:], weight[:, -32:]) if k < x.shape[-1] else 0.0
    return stored(product(x[:, :k], weight[:, :k]) + again, x, bias, profile)


@red("linear", profile=ALL, gate="exact")
def last_column_twice(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """An index that is clamped one too early: column k - 2 stands for k - 1."""
    index = torch.arange(x.shape[-1]).clamp(max=max(x.shape[-1] - 2, 0))
    return stored(product(x, weight[:, index]), x, bias, profile)


@red("linear", profile=ALL, gate="exact")
def weight_read_as_stored_by_input(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """(n, k) words read as (k, n)."""
    turned = weight.reshape(weight.shape[1], weight.shape[0]).T
    return stored(product(x, turned), x, bias, profile)


@red("linear", profile=ALL, gate="exact")
def last_output_of_its_neighbour(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """The last row of the weight is never loaded."""
    index = torch.arange(weight.shape[0]).clamp(max=max(weight.shape[0] - 2, 0))
    return stored(product(x, weight[index]), x, bias, profile)


# -- the bias


@red("linear", profile=ALL, gate="exact", bias_term="yes")
def bias_left_out(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """The product alone."""
    return stored(product(x, weight), x, None, profile)


@red("linear", profile=INSIDE, gate="exact", bias_term="yes")
def bias_once_per_split(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """Both halves of a split product start from the bias."""
    return stored(product(x, weight) + bias.float(), x, bias, profile)


@red("linear", profile=ALL, gate="exact", bias_term="yes")
def bias_of_the_neighbour(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, profile: str
) -> torch.Tensor:
    """Off by one output."""
    return stored(product(x, weight), x, bias.roll(1), profile)


# -- the store


@red("linear", profile="once", gate="exact")
def store_truncates(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The upper half of the fp32 word."""
    total = product(x, weight) + (0.0 if bias is None else bias.float())
    return (total.view(torch.int32) & -(1 << 16)).view(torch.float32).to(x.dtype)


@red("linear", profile="once", gate="exact")
def store_rounds_half_away(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Half a unit is added to the magnitude before the cut."""
    total = product(x, weight) + (0.0 if bias is None else bias.float())
    word = total.view(torch.int32) + (1 << 15)
    return torch.where(total.isfinite(), (word & -(1 << 16)).view(torch.float32), total).to(x.dtype)


# -- legal variants


@green("linear", profile=ALL)
def in_float64(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """The sum is kept wider."""
    total = x.double() @ weight.double().T
    if profile == "bias_after" and bias is not None:
        return stored(total.float(), x, bias, profile)
    # one rounding to fp32 more, of a sum that any order may have rounded there
    return (total if bias is None else total + bias.double()).float().to(x.dtype)


@green("linear", profile=ALL)
def columns_in_reverse(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """Tiles of 16 columns from the last to the first."""
    parts = zip(x.split(16, -1), weight.split(16, -1), strict=True)
    total = torch.zeros((x.shape[0], weight.shape[0]))
    for a, b in reversed(list(parts)):
        total = total + product(a, b)
    return stored(total, x, bias, profile)


@green("linear", profile=INSIDE, bias_term="yes")
def starts_from_the_bias(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The accumulator is loaded with the bias."""
    return torch.addmm(bias.float(), x.float(), weight.float().T).to(x.dtype)


@green("linear", profile=ALL)
def split_in_two(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, profile: str
) -> torch.Tensor:
    """Even and odd columns apart, as two splits."""
    total = product(x[:, 1::2], weight[:, 1::2]) + product(x[:, 0::2], weight[:, 0::2])
    return stored(total, x, bias, profile)
