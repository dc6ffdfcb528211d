"""Planted norms and rotations of a vision tower: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels.vit_qkv import crossed, normed, turned, vit_qkv_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = lazy("torch")

Three = tuple["Tensor", "Tensor", "Tensor"]
EACH, BOTH = "each_step", ("each_step", "two_step")


def with_tables(cos: Tensor, sin: Tensor, given: dict[str, Any]) -> Three:
    """The right kernel with other tables."""
    return vit_qkv_torch(**given, cos=cos, sin=sin, profile=EACH)


# -- the norms


@red("vit_qkv", profile=BOTH, gate="shapes")
def gains_exchanged(q_weight: Tensor, k_weight: Tensor, *, profile: str, **given: Any) -> Three:
    """q takes the gain of k and the other way round."""
    return vit_qkv_torch(**given, q_weight=k_weight, k_weight=q_weight, profile=profile)


@red("vit_qkv", profile=EACH, gate="shapes")
def values_not_normed(v: Tensor, **given: Any) -> Three:
    """v is stored as it came."""
    q_out, k_out, _ = vit_qkv_torch(**given, v=v, profile=EACH)
    return q_out, k_out, v.clone()


@red("vit_qkv", profile=EACH, gate="shapes")
def values_gained(v: Tensor, k_weight: Tensor, eps: float, **given: Any) -> Three:
    """v takes the gain of k."""
    q_out, k_out, _ = vit_qkv_torch(**given, v=v, k_weight=k_weight, eps=eps, profile=EACH)
    return q_out, k_out, normed(v, eps, k_weight).to(v.dtype)


@red("vit_qkv", profile=EACH, gate="shapes")
def values_turned(v: Tensor, cos: Tensor, sin: Tensor, **given: Any) -> Three:
    """v is turned like q and k."""
    q_out, k_out, v_out = vit_qkv_torch(**given, v=v, cos=cos, sin=sin, profile=EACH)
    return q_out, k_out, turned(v_out, cos, sin, EACH)


@red("vit_qkv", profile=EACH, gate="shapes")
def one_norm_for_all_heads(q: Tensor, q_weight: Tensor, eps: float, **given: Any) -> Three:
    """The mean square is that of the patch, not of its head."""
    _, k_out, v_out = vit_qkv_torch(**given, q=q, q_weight=q_weight, eps=eps, profile=EACH)
    wide = normed(q.flatten(1), eps).view(q.shape) * q_weight.float()
    return turned(wide.to(q.dtype), given["cos"], given["sin"], EACH), k_out, v_out


@red("vit_qkv", profile=EACH, gate="stress")
def eps_left_out(eps: float, **given: Any) -> Three:
    """Heads of small values grow to 1."""
    return vit_qkv_torch(**given, eps=0.0, profile=EACH)


@red("vit_qkv", profile=BOTH, gate="exact")
def norm_not_rounded(
    q: Tensor, q_weight: Tensor, cos: Tensor, sin: Tensor, eps: float, *, profile: str, **given: Any
) -> Three:
    """The rotation reads q's norm in fp32."""
    _, k_out, v_out = vit_qkv_torch(
        **given, q=q, q_weight=q_weight, cos=cos, sin=sin, eps=eps, profile=profile
    )
    n = normed(q, eps, q_weight)
    direct, other = n * cos[:, None].float(), crossed(n) * sin[:, None].float()
    if profile == EACH:
        direct, other = direct.to(q.dtype).float(), other.to(q.dtype).float()
    return (direct + other).to(q.dtype), k_out, v_out


@red("vit_qkv", profile=EACH, gate="exact")
def squares_in_bf16(q: Tensor, q_weight: Tensor, eps: float, **given: Any) -> Three:
    """q's squares are rounded before they are summed."""
    _, k_out, v_out = vit_qkv_torch(**given, q=q, q_weight=q_weight, eps=eps, profile=EACH)
    inverse = torch.rsqrt(q.square().float().mean(-1, keepdim=True) + eps)
    n = (q.float() * inverse * q_weight.float()).to(q.dtype)
    return turned(n, given["cos"], given["sin"], EACH), k_out, v_out


# -- the rotation


@red("vit_qkv", profile=EACH, gate="shapes")
def axes_exchanged(cos: Tensor, sin: Tensor, **given: Any) -> Three:
    """The first half turns by the row, the second by the column."""
    half = cos.shape[1] // 2
    return with_tables(cos.roll(half, 1), sin.roll(half, 1), given)


@red("vit_qkv", profile=EACH, gate="shapes")
def turned_backwards(cos: Tensor, sin: Tensor, **given: Any) -> Three:
    """The other sign of the angle."""
    return with_tables(cos, -sin, given)


@red("vit_qkv", profile=EACH, gate="shapes")
def tables_exchanged(cos: Tensor, sin: Tensor, **given: Any) -> Three:
    """Sines where cosines belong."""
    return with_tables(sin, cos, given)


@red("vit_qkv", profile=EACH, gate="shapes")
def position_of_the_next_patch(cos: Tensor, sin: Tensor, **given: Any) -> Three:
    """Tables one patch too far."""
    return with_tables(cos.roll(-1, 0), sin.roll(-1, 0), given)


def turned_in_other_pairs(pairs: str, **given: Any) -> Three:
    """q with a value of another place crossed over."""
    _, k_out, v_out = vit_qkv_torch(**given, profile=EACH)
    q, cos, sin = given["q"], given["cos"], given["sin"]
    n = normed(q, given["eps"], given["q_weight"]).to(q.dtype)
    if pairs == "halves":
        a, b = n.chunk(2, dim=-1)
        other = torch.cat([-b, a], -1)
    else:
        other = torch.stack([-n[..., 1::2], n[..., 0::2]], -1).flatten(-2)
    return n * cos[:, None] + other * sin[:, None], k_out, v_out


@red("vit_qkv", profile=EACH, gate="shapes")
def pairs_across_the_head(**given: Any) -> Three:
    """Value i is paired with i + d / 2, as in text."""
    return turned_in_other_pairs("halves", **given)


@red("vit_qkv", profile=EACH, gate="shapes")
def pairs_of_neighbours(**given: Any) -> Three:
    """Value 2 i is paired with 2 i + 1."""
    return turned_in_other_pairs("neighbours", **given)


@red("vit_qkv", profile=EACH, gate="exact")
def rotation_rounded_once(**given: Any) -> Three:
    """The products are added in fp32."""
    return vit_qkv_torch(**given, profile="two_step")


@red("vit_qkv", profile="two_step", gate="exact")
def products_rounded(**given: Any) -> Three:
    """Each product is rounded before the addition."""
    return vit_qkv_torch(**given, profile=EACH)


# -- legal variants


@green("vit_qkv", profile="two_step")
def in_float64(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    *,
    eps: float,
) -> Three:
    """Every unnamed step is kept wider."""

    def wide_norm(x: Tensor, weight: Tensor | None) -> Tensor:
        wide = x.double()
        y = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (y if weight is None else y * weight.double()).float().to(x.dtype)

    turned_ones = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        n = wide_norm(x, weight).double()
        y = n * cos[:, None].double() + crossed(n) * sin[:, None].double()
        turned_ones.append(y.float().to(x.dtype))
    return turned_ones[0], turned_ones[1], wide_norm(v, None)


@green("vit_qkv", profile=BOTH)
def head_by_head(q: Tensor, k: Tensor, v: Tensor, *, profile: str, **given: Any) -> Three:
    """One head at a time."""
    parts = [
        vit_qkv_torch(q=a, k=b, v=c, **given, profile=profile)
        for a, b, c in zip(*(x.split(1, dim=1) for x in (q, k, v)), strict=True)
    ]
    q_out, k_out, v_out = (torch.cat(heads, 1) for heads in zip(*parts, strict=True))
    return q_out, k_out, v_out


@green("vit_qkv", profile=EACH)
def raised_to_minus_a_half(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, **given: Any
) -> Three:
    """The inverse as a power, as transformers has it."""

    def powered(x: Tensor, weight: Tensor | None) -> Tensor:
        wide = x.float()
        y = wide * torch.pow(wide.square().mean(-1, keepdim=True) + given["eps"], -0.5)
        return (y if weight is None else y * weight.float()).to(x.dtype)

    q_out = turned(powered(q, given["q_weight"]), cos, sin, EACH)
    k_out = turned(powered(k, given["k_weight"]), cos, sin, EACH)
    return q_out, k_out, powered(v, None)
