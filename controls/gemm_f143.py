"""Planted fp8 products: other formats, accumulators and scales, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.products import product
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("float16", "once")


def stored(total: torch.Tensor, shift: float, profile: str) -> torch.Tensor:
    """The rest of a right kernel behind its sum."""
    return (total * float(2.0**shift)).to(torch.float16 if profile == "float16" else torch.bfloat16)


def as_fn(codes: torch.Tensor) -> torch.Tensor:
    """The bytes read as e4m3fn."""
    return codes.view(torch.int8).view(torch.float8_e4m3fn).float()


# -- the format


@red("gemm_f143", profile=BOTH, gate="exact")
def bytes_of_e4m3fn(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """The other fp8: bias 7, twice the value."""
    return stored(as_fn(x) @ as_fn(weight).T, k_a + k_w, profile)


@red("gemm_f143", profile=BOTH, gate="exact")
def bytes_of_e4m3fn_halved(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """The bias is corrected by the scale: 240 is still the other format's NaN."""
    return stored(as_fn(x) @ as_fn(weight).T, k_a + k_w - 2, profile)


@red("gemm_f143", profile=BOTH, gate="exact")
def subnormal_codes_are_zero(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """Codes below 2^-7 are flushed."""
    wide = x.float()
    kept = torch.where(wide.abs() < 2.0**-7, wide * 0.0, wide)
    return stored(product(kept, weight, None), k_a + k_w, profile)


@red("gemm_f143", profile=BOTH, gate="stress")
def nan_is_minus_zero(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """0x80 is decoded as IEEE formats have it."""
    a, b = x.float().nan_to_num(nan=-0.0), weight.float().nan_to_num(nan=-0.0)
    return stored(product(a, b, None), k_a + k_w, profile)


# -- the accumulator


@red("gemm_f143", profile=BOTH, gate="exact")
def accumulator_of_14_bits(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """The running sum keeps 14 bits between steps of 32 columns, as fp8 matrix units of Hopper do."""
    total = torch.zeros((x.shape[0], weight.shape[0]))
    for c in range(0, x.shape[-1], 32):
        total = total + product(x[:, c : c + 32], weight[:, c : c + 32], None)
        total = (total.view(torch.int32) & -(1 << 10)).view(torch.float32)
    return stored(total, k_a + k_w, profile)


@red("gemm_f143", profile=BOTH, gate="exact")
def accumulator_in_fp16(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """The running sum is stored in fp16."""
    total = torch.zeros((x.shape[0], weight.shape[0]), dtype=torch.float16)
    for c in range(0, x.shape[-1], 32):
        total = (total.float() + product(x[:, c : c + 32], weight[:, c : c + 32], None)).half()
    return stored(total.float(), k_a + k_w, profile)


@red("gemm_f143", profile=BOTH, gate="exact")
def tail_dropped(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """Columns beyond a multiple of 16 are left out."""
    k = x.shape[-1] // 16 * 16
    return stored(x[:, :k].float() @ weight[:, :k].float().T, k_a + k_w, profile)


# -- scale and store


@red("gemm_f143", profile=BOTH, gate="exact")
def scale_exponent_off_by_one(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """2^(k_a + k_w + 1)."""
    return stored(product(x, weight, None), k_a + k_w + 1, profile)


@red("gemm_f143", profile=BOTH, gate="exact")
def one_scale_left_out(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """Only the weight is scaled."""
    return stored(product(x, weight, None), k_w, profile)


@red("gemm_f143", profile=BOTH, gate="exact")
def scaled_after_the_store(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """The sum is stored in fp16 before the scale: it overflows, or loses bits below 2^-14."""
    total = product(x, weight, None)
    return stored((total * float(2.0**k_a)).half().float(), k_w, profile)


@red("gemm_f143", profile="once", gate="exact")
def store_truncates(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float
) -> torch.Tensor:
    """The upper half of the fp32 word."""
    total = product(x, weight, None) * float(2.0 ** (k_a + k_w))
    return (total.view(torch.int32) & -(1 << 16)).view(torch.float32).bfloat16()


@red("gemm_f143", profile="once", gate="exact")
def store_rounds_half_away(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float
) -> torch.Tensor:
    """Half a unit is added to the magnitude before the cut."""
    total = product(x, weight, None) * float(2.0 ** (k_a + k_w))
    rounded = ((total.view(torch.int32) + (1 << 15)) & -(1 << 16)).view(torch.float32)
    return torch.where(total.isfinite(), rounded, total).bfloat16()


# -- legal variants


@green("gemm_f143", profile=BOTH)
def operands_scaled_first(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """Both operands are scaled before the product: powers of two move no bit."""
    a, b = x.float() * 2.0**k_a, weight.float() * 2.0**k_w
    return stored(a @ b.T, 0, profile)


@green("gemm_f143", profile=BOTH)
def in_float64(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """The sum is kept wider."""
    total = x.float().double() @ weight.float().double().T
    return stored(total.float(), k_a + k_w, profile)


@green("gemm_f143", profile=BOTH)
def columns_in_reverse(
    x: torch.Tensor, weight: torch.Tensor, *, k_a: float, k_w: float, profile: str
) -> torch.Tensor:
    """Columns from the last to the first."""
    return stored(x.float().flip(-1) @ weight.float().flip(-1).T, k_a + k_w, profile)
