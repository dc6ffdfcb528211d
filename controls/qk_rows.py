"""Planted norms and rotations of queries and keys: faults that kernels have had, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import green, red
from contract.kernels.qk_rows import qk_rows_torch, unit
from contract.kernels.rope import rope_torch
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

Rows = tuple["torch.Tensor", ...]

#: The contract's parameters of most controls.
PLAIN: dict[str, Any] = {"gain": "w", "v_norm": "no"}
WITH_V: dict[str, Any] = {"gain": "w", "v_norm": "yes"}


def under(profile: str, operands: dict[str, Any], **changed: Any) -> Rows:
    """The contract's kernel under a profile, for faults that lie in what it is given or in what is done after it."""
    own = {name: x for name, x in operands.items() if name not in ("v_norm", "profile")}
    return qk_rows_torch(**{"gain": "w", **own, **changed, "profile": profile})


def gained(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The normed row, rounded once."""
    return (unit(x, eps) * weight.float()).to(x.dtype)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The rotation of pairs (i, i + half), in the tables' format."""
    return rope_torch(x, cos, sin, pairing="halves")


# -- which rows are normed, and by what


@red("qk_rows", profile="each_op", gate="exact", **WITH_V)
def v_of_the_normed_k(**operands: Any) -> Rows:
    """Values are normed from keys that have been normed and gained."""
    k = gained(operands["k"], operands["k_weight"], operands["eps"])
    return under("each_op", operands, v=k)


@red("qk_rows", profile="each_op", gate="exact", **WITH_V)
def v_gained_and_turned(**operands: Any) -> Rows:
    """Values are treated as keys are."""
    q, k, _ = under("each_op", operands)
    return q, k, under("each_op", operands, k=operands["v"])[1]


@red("qk_rows", profile=("each_op", "once"), gate="exact", **WITH_V)
def v_not_normed(**operands: Any) -> Rows:
    """Values pass."""
    profile = "each_op" if operands["cos"].dtype == torch.bfloat16 else "once"
    return (*under(profile, operands)[:2], operands["v"].clone())


@red("qk_rows", profile="each_op", gate="exact", **PLAIN)
def keys_not_normed(**operands: Any) -> Rows:
    """Only queries are normed; keys are gained and turned."""
    q, _ = under("each_op", operands)
    k = operands["k"] * operands["k_weight"]
    return q, turned(k, operands["cos"], operands["sin"])


@red("qk_rows", profile="each_op", gate="exact", **PLAIN)
def gains_exchanged(**operands: Any) -> Rows:
    """Queries take the keys' gain and the other way round."""
    q_weight, k_weight = operands["k_weight"], operands["q_weight"]
    return under("each_op", operands, q_weight=q_weight, k_weight=k_weight)


@red("qk_rows", profile="each_op", gate="exact", **PLAIN)
def gain_missing(**operands: Any) -> Rows:
    """Rows are normed and turned."""
    ones = torch.ones_like(operands["q_weight"])
    return under("each_op", operands, q_weight=ones, k_weight=ones)


@red("qk_rows", profile="each_op", gate="exact", gain="1+w", v_norm="no")
def one_plus_w_in_bf16(**operands: Any) -> Rows:
    """1 + w is rounded to the weight's format."""
    more = {name: 1.0 + operands[name] for name in ("q_weight", "k_weight")}
    return under("each_op", operands, gain="w", **more)


# -- over which dims


@red("qk_rows", profile="each_op", gate="shapes", **PLAIN)
def statistics_of_all_heads(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float,
) -> Rows:
    """One mean square a token, over all of its heads (OLMo 2 norms like that)."""
    rows = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        normed = unit(x.flatten(1), eps).reshape(x.shape)
        rows.append(turned((normed * weight.float()).to(x.dtype), cos, sin))
    return tuple(rows)


@red("qk_rows", profile="each_op", gate="exact", **PLAIN)
def statistics_of_the_rotary_dims(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float,
) -> Rows:
    """The mean square of the dims that turn scales the whole head."""
    rows = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        part = x[..., : 2 * cos.shape[-1]].float()
        inverse = torch.rsqrt(part.square().mean(-1, keepdim=True) + eps)
        rows.append(turned((x.float() * inverse * weight.float()).to(x.dtype), cos, sin))
    return tuple(rows)


@red("qk_rows", profile="each_op", gate="exact", **PLAIN)
def rest_not_normed(**operands: Any) -> Rows:
    """The dims behind the rotary ones pass as they came."""
    q, k = under("each_op", operands)
    width = 2 * operands["cos"].shape[-1]
    q[..., width:], k[..., width:] = operands["q"][..., width:], operands["k"][..., width:]
    return q, k


# -- order and rounding


@red("qk_rows", profile=("each_op", "norm"), gate="exact", **PLAIN)
def turned_before_the_norm(**operands: Any) -> Rows:
    """The rotation keeps lengths, but not the gain's place nor the roundings."""
    cos, sin, eps = operands["cos"], operands["sin"], operands["eps"]
    return tuple(
        gained(turned(operands[x], cos, sin), operands[f"{x}_weight"], eps) for x in ("q", "k")
    )


@red("qk_rows", profile="norm", gate="exact", **PLAIN)
def norm_not_rounded(**operands: Any) -> Rows:
    """The normed row is turned in fp32."""
    return under("once", operands)


@red("qk_rows", profile="once", gate="exact", **WITH_V)
def norm_rounded(**operands: Any) -> Rows:
    """The normed row is stored in bf16, then turned."""
    return under("norm", operands)


@red("qk_rows", profile="two_step", gate="exact", **PLAIN)
def norm_rounded_once(**operands: Any) -> Rows:
    """No rounding before the gain, as Gemma 4 has it."""
    return under("each_op", operands)


@red("qk_rows", profile="each_op", gate="exact", **PLAIN)
def norm_rounded_twice(**operands: Any) -> Rows:
    """A rounding before the gain, as Qwen3 has it."""
    return under("two_step", operands)


@red("qk_rows", profile="each_op", gate="exact", **PLAIN)
def squares_in_bf16(**operands: Any) -> Rows:
    """Each square is rounded before the sum."""
    eps, rows = operands["eps"], []
    for name in ("q", "k"):
        x = operands[name]
        inverse = torch.rsqrt(x.square().float().mean(-1, keepdim=True) + eps)
        row = (x.float() * inverse * operands[f"{name}_weight"].float()).to(x.dtype)
        rows.append(turned(row, operands["cos"], operands["sin"]))
    return tuple(rows)


# -- pairs and indices


@red("qk_rows", profile="each_op", gate="exact", **PLAIN)
def neighbours_for_halves(**operands: Any) -> Rows:
    """Pairs (2 i, 2 i + 1) where (i, i + half) are named."""
    return tuple(
        rope_torch(
            gained(operands[x], operands[f"{x}_weight"], operands["eps"]),
            operands["cos"],
            operands["sin"],
            pairing="interleaved",
        )
        for x in ("q", "k")
    )


@red("qk_rows", profile="each_op", gate="shapes", **PLAIN)
def tables_of_the_next_token(**operands: Any) -> Rows:
    """The position is one too far."""
    return under("each_op", operands, **{t: operands[t].roll(-1, 0) for t in ("cos", "sin")})


@red("qk_rows", profile="each_op", gate="shapes", **PLAIN)
def keys_at_the_queries_stride(**operands: Any) -> Rows:
    """Key rows are counted with the number of query heads: tokens read further tokens' keys."""
    q, k = under("each_op", operands)
    heads, kv_heads = q.shape[1], k.shape[1]
    flat = torch.arange(len(k))[:, None] * heads + torch.arange(kv_heads)
    return q, k.flatten(0, 1)[flat % (len(k) * kv_heads)]


@red("qk_rows", profile="each_op", gate="bounds", **PLAIN)
def in_their_inputs(**operands: Any) -> Rows:
    """q is overwritten, which only an implementation that says so may do."""
    q, k = under("each_op", operands)
    operands["q"].copy_(q)
    return q, k


# -- legal variants


@green("qk_rows", profile="once", **WITH_V)
def in_float64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    eps: float,
) -> Rows:
    """Every step is kept wider."""

    def normed(x: torch.Tensor) -> torch.Tensor:
        wide = x.double()
        return wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)

    rows = [
        turned(normed(x) * weight.double(), cos.double(), sin.double())
        for x, weight in ((q, q_weight), (k, k_weight))
    ]
    return tuple(row.float().to(q.dtype) for row in (*rows, normed(v)))


@green("qk_rows", profile=("each_op", "norm"), **PLAIN)
def head_by_head(**operands: Any) -> Rows:
    """One head at a time, its squares summed by a dot product."""
    rows = []
    for name in ("q", "k"):
        out = operands[name].clone()
        for at in [(t, h) for t in range(out.shape[0]) for h in range(out.shape[1])]:
            x = out[at].float()
            inverse = torch.rsqrt(x.dot(x) / len(x) + operands["eps"])
            out[at] = (x * inverse * operands[f"{name}_weight"].float()).to(out.dtype)
        rows.append(turned(out, operands["cos"], operands["sin"]))
    return tuple(rows)


@green("qk_rows", profile="two_step", **PLAIN)
def all_heads_at_once(**operands: Any) -> Rows:
    """Heads of queries and keys side by side, as one projection gives them."""
    heads = operands["q"].shape[1]
    both = torch.cat((operands["q"], operands["k"]), 1)
    normed = unit(both, operands["eps"]).to(both.dtype)
    weights = [
        operands[w].expand_as(operands[x]) for x, w in (("q", "q_weight"), ("k", "k_weight"))
    ]
    out = turned(normed * torch.cat(weights, 1), operands["cos"], operands["sin"])
    return out[:, :heads].clone(), out[:, heads:].clone()
