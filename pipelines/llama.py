"""Decoders of Llama's kind, out of verified kernels: RMSNorm, RoPE in halves, grouped-query attention, SwiGLU.

One layer, for rows x of width d (R: a rounding to bf16; in fp32 nothing is rounded below fp32):

    n = R(w R(x rsqrt(mean x^2 + eps)))                 q, k, v = n Wq^T, n Wk^T, n Wv^T       q, k rotated by position
    a = attention(q, keys, values)                      x = R(x + a Wo^T)
    n = R(w R(x rsqrt(mean x^2 + eps)))                 x = R(x + R(R(silu(n Wg^T)) (n Wu^T)) Wd^T)

and the logits of the last row are n We^T with the table that rows of tokens are taken from. Sources: transformers'
modeling_llama.py; Touvron et al. 2023, LLaMA, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from contract import verified
from contract.calls import Call
from contract.errors import CaseError
from contract.pipelines.cache import Form, KVCache

#: A kernel that has its weight, and is called with rows.
Product = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes and conventions of a model.

    Attributes:
        layers, width, mlp, vocab: of the model; heads and kv_heads of d each.
        theta: base of the rotation's frequencies theta^(-2 i / d).
        eps: of every RMSNorm.
        context: positions at most.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    d: int
    mlp: int
    vocab: int
    theta: float
    eps: float
    context: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise CaseError(f"{name} = {value!r} of a model; it has to be positive")
        if self.heads % self.kv_heads or self.d % 2:
            raise CaseError(
                f"{self.heads} heads over {self.kv_heads} key heads of {self.d}; heads are a multiple of key heads, and d is"
                " even"
            )

    def frequencies(self) -> torch.Tensor:
        """theta^(-2 i / d) for i below d / 2, rounded to fp32 once: (d / 2,)."""
        return torch.tensor(
            [self.theta ** (-2 * i / self.d) for i in range(self.d // 2)], dtype=torch.float32
        )


@dataclass(frozen=True)
class Layer:
    """The weights of one layer: norms (width,), and products that hold theirs.

    Attributes:
        qkv: (rows, width) -> (rows, (heads + 2 kv_heads) d).
        out: (rows, heads d) -> (rows, width).
        gate_up: (rows, width) -> (rows, 2 mlp).
        down: (rows, mlp) -> (rows, width).
    """

    attention_norm: torch.Tensor
    qkv: Product
    out: Product
    mlp_norm: torch.Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True)
class Weights:
    """All of a model.

    Attributes:
        embed: ids (rows,) -> rows (rows, width).
        final_norm: (width,).
        head: (rows, width) -> logits (rows, vocab).
    """

    embed: Callable[[torch.Tensor], torch.Tensor]
    layers: Sequence[Layer]
    final_norm: torch.Tensor
    head: Product


class Kernels:
    """The verified kernels of a precision, 'bf16' or 'fp32'.

    Raises:
        NotVerified: one whose sources changed, or that is red; the message has the command that verifies it.
    """

    def __init__(self, precision: str) -> None:
        if precision not in ("bf16", "fp32"):
            raise CaseError(f"precision {precision!r}; use bf16 or fp32")
        self.precision, short = precision, precision == "bf16"
        self.dtype = torch.bfloat16 if short else torch.float32
        self.tables = verified("rope_tables", profile="once" if short else "float32")
        self.rope = verified("rope", profile="each_op" if short else "float32")
        self.norm = verified("rms_norm", profile="two_step" if short else "float32", gain="w")
        self.add = verified("residual_add", profile="once" if short else "float32")
        self.swiglu = verified("swiglu", profile="two_step" if short else "float32")
        self.append = verified("kv_append", store=precision, ring="no")
        self.decode = verified("decode_attention", profile="running" if short else "float32")
        self.prefill = verified(
            "attention", profile="eager" if short else "float32", mask="causal", capped="no"
        )
        self.tail = (
            verified("add_rms_tail", profile="two_step", branch_norm="no", scale="no")
            if short
            else self._add_and_norm
        )

    def _add_and_norm(
        self, *, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next row of the stream and its norm."""
        total = self.add(a=residual, b=x)
        return total, self.norm(x=total, weight=weight, eps=eps)

    def all(self) -> Mapping[str, Callable[..., Any]]:
        """Every kernel by the name it has here."""
        return {name: kernel for name, kernel in vars(self).items() if isinstance(kernel, Call)}


class Llama:
    """A model with its cache: one sequence, token after token.

    Args:
        config: its sizes.
        weights: its weights.
        kernels: of one precision.
        capacity: positions that the cache has at first; it grows up to the model's context.
        watch: called with (layer, stage, values) after every stage: captures and comparisons look on so.
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Weights,
        kernels: Kernels,
        *,
        capacity: int = 256,
        watch: Callable[[int, str, Mapping[str, torch.Tensor]], None] | None = None,
    ) -> None:
        if len(weights.layers) != config.layers:
            raise CaseError(
                f"{len(weights.layers)} layers of weights for a model of {config.layers}"
            )
        self.config, self.weights, self.kernels, self.watch = config, weights, kernels, watch
        self.frequencies, self.scale = config.frequencies(), config.d**-0.5
        self._length = torch.zeros(1, dtype=torch.int32)
        self.cache = KVCache(
            config.layers, min(capacity, config.context), config.kv_heads, config.d,
            Form(kernels.dtype, kernels.append), limit=config.context,
        )  # fmt: skip

    def step(self, ids: Sequence[int], position: int) -> torch.Tensor:
        """Logits (1, vocab) of the last of `ids`, which lie at `position` and after it.

        Raises:
            CaseError: ids that the vocabulary does not have, or a position that does not follow the cache.
        """
        return self.logits(ids, position, last=True)

    def logits(self, ids: Sequence[int], position: int, *, last: bool = False) -> torch.Tensor:
        """Logits (rows, vocab) of all of `ids`, or (1, vocab) of the last one."""
        config, kernels = self.config, self.kernels
        if wrong := [i for i in ids if not 0 <= i < config.vocab]:
            raise CaseError(f"token {wrong[0]}; ids are 0 to {config.vocab - 1}")
        if (held := self.cache.length()) != position:
            raise CaseError(
                f"position {position} after {held} positions in the cache; begin at {held}, or truncate the cache"
            )
        places = torch.arange(position, position + len(ids), dtype=torch.int32)
        cos, sin = kernels.tables(positions=places, inv_freq=self.frequencies)
        x = self.weights.embed(torch.tensor(ids))
        first = self.weights.layers[0]
        normed = kernels.norm(x=x, weight=first.attention_norm, eps=config.eps)
        following = [layer.attention_norm for layer in self.weights.layers[1:]]
        for index, (layer, after) in enumerate(
            zip(self.weights.layers, [*following, self.weights.final_norm], strict=True)
        ):
            x, normed = self._layer(index, layer, after, x, normed, (cos, sin), places)
        if last:
            normed = normed[-1:]
        logits = self.weights.head(x=normed)
        self._saw(config.layers, "head", x=normed, out=logits)
        return logits

    def _layer(
        self,
        index: int,
        layer: Layer,
        after: torch.Tensor,
        x: torch.Tensor,
        normed: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
        places: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream after a layer, and its norm for the next one."""
        config, kernels, rows = self.config, self.kernels, len(x)
        heads = config.heads + config.kv_heads
        qkv = layer.qkv(x=normed).view(rows, -1, config.d)
        rotated = kernels.rope(x=qkv[:, :heads], cos=tables[0], sin=tables[1])
        q, k, v = rotated[:, : config.heads], rotated[:, config.heads :], qkv[:, heads:]
        self.cache.extend(index, k, v)
        mixed = self._attend(index, q, places)
        branch = layer.out(x=mixed.reshape(rows, -1))
        x, inner = kernels.tail(x=branch, residual=x, weight=layer.mlp_norm, eps=config.eps)
        pair = layer.gate_up(x=inner)
        active = kernels.swiglu(gate=pair[:, : config.mlp], up=pair[:, config.mlp :])
        down = layer.down(x=active)
        if self.watch is not None:
            self._saw(index, "qkv", x=normed, out=qkv)
            self._saw(index, "rope", x=qkv[:, :heads], cos=tables[0], sin=tables[1], out=rotated)
            self._saw(index, "attention", q=q, out=mixed)
            self._saw(index, "out", x=mixed, out=branch)
            self._saw(index, "mlp_norm", x=x, weight=layer.mlp_norm, out=inner)
            self._saw(index, "gate_up", x=inner, out=pair)
            self._saw(index, "swiglu", gate=pair[:, : config.mlp], up=pair[:, config.mlp :], out=active)  # fmt: skip
            self._saw(index, "down", x=active, out=down)
        total, following = kernels.tail(x=down, residual=x, weight=after, eps=config.eps)
        self._saw(index, "tail", x=down, residual=x, weight=after, total=total, out=following)
        return total, following

    def _attend(self, index: int, q: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """(rows, heads, d): one row by the decoding kernel, a prompt by the other."""
        keys, values = self.cache.used(index)
        if len(q) == 1:
            # one tensor for all layers of a step, whose value is looked at once
            if int(self._length[0]) != len(keys):
                self._length = torch.full((1,), len(keys), dtype=torch.int32)
            length = self._length
            return _first(
                self.kernels.decode(
                    q=q, k=keys[None], v=values[None], length=length, scale=self.scale
                )
            )
        start = torch.zeros(len(q), dtype=torch.int32)
        return _first(
            self.kernels.prefill(
                q=q, k=keys, v=values, position=places, start=start, scale=self.scale
            )
        )

    def _saw(self, layer: int, stage: str, **values: torch.Tensor) -> None:
        if self.watch is not None:
            self.watch(layer, stage, values)


def _first(result: Any) -> torch.Tensor:
    """The output proper; the log-sum-exp beside it is a stage."""
    out: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return out
