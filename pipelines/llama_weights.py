"""Weights of Llama's kind from a checkpoint, packed as they are stored or dequantised once.

Of GGUF's Q4_1 (w = d q + m) a packed product takes w = (q - 8) s + o with s = R(d) and o = R(m + 8 d), and of Q8_0
(w = d q) the scale R(d): R is the one rounding of the import, fp16 to bf16. Dequantised, every weight is d q + m, rounded
to fp32 once by `dequant_gguf`. Rows of q and k are put back into the order of the model's own checkpoint, whose rotation
pairs dims i and i + d / 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from contract import formats, verified
from contract.errors import CheckpointError
from contract.pipelines.checkpoints import Checkpoint
from contract.pipelines.gguf_file import split_q4_1, split_q8_0, unpermuted_rows
from contract.pipelines.llama import Layer, LlamaConfig, Product, Weights

#: No model of this kind is larger; a hostile file says what it likes.
MOST, MOST_LAYERS = 1 << 24, 1024
NORMS = ("attn_norm", "ffn_norm")
#: Products that share their rows are one: its rows lie one after the other.
QKV, GATE_UP = ("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up")


def config_of(metadata: Mapping[str, Any]) -> LlamaConfig:
    """The sizes that a GGUF file states.

    Raises:
        CheckpointError: another architecture, or a size that is missing or no number.
        CaseError: sizes that no model has.
    """
    kind = metadata.get("general.architecture")
    if kind != "llama":
        raise CheckpointError(f"a model of architecture {kind!r}; this pipeline runs llama")

    def number(name: str) -> Any:
        value = metadata.get(f"llama.{name}")
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise CheckpointError(f"llama.{name} is {value!r}; the model's file states a number")
        return value

    def size(name: str) -> int:
        value = number(name)
        if value != int(value) or not 1 <= value <= MOST:
            raise CheckpointError(
                f"llama.{name} is {value!r}; the model's file states a whole number of 1 to {MOST}"
            )
        return int(value)

    layers = size("block_count")
    if layers > MOST_LAYERS:
        raise CheckpointError(
            f"llama.block_count is {layers}; at most {MOST_LAYERS} layers are read"
        )
    return LlamaConfig(
        layers=layers,
        width=size("embedding_length"),
        heads=size("attention.head_count"),
        kv_heads=size("attention.head_count_kv"),
        d=size("rope.dimension_count"),
        mlp=size("feed_forward_length"),
        vocab=size("vocab_size"),
        theta=float(number("rope.freq_base")),
        # the file holds it in fp32; models state it in a few decimal digits
        eps=float(f"{number('attention.layer_norm_rms_epsilon'):.6g}"),
        context=size("context_length"),
    )


def expected(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a model of these sizes has, its head tied to its embedding."""
    q, kv = config.heads * config.d, config.kv_heads * config.d
    layer = {
        "attn_norm": (config.width,), "ffn_norm": (config.width,),
        "attn_q": (q, config.width), "attn_k": (kv, config.width), "attn_v": (kv, config.width),
        "attn_output": (config.width, q),
        "ffn_gate": (config.mlp, config.width), "ffn_up": (config.mlp, config.width),
        "ffn_down": (config.width, config.mlp),
    }  # fmt: skip
    return {
        "token_embd.weight": (config.vocab, config.width),
        "output_norm.weight": (config.width,),
        **{
            f"blk.{index}.{name}.weight": shape
            for index in range(config.layers)
            for name, shape in layer.items()
        },
    }


def load(
    checkpoint: Checkpoint,
    precision: str,
    *,
    changed: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[LlamaConfig, Weights]:
    """The model of a GGUF file, its products ready to be called.

    Args:
        checkpoint: opened.
        precision: 'bf16' (weights stay packed) or 'fp32' (dequantised once).
        changed: what a tensor becomes before it is used: negative controls break one so.
        progress: called with the layers that are loaded, and all of them.

    Raises:
        CheckpointError: tensors that are missing, too many or of other shapes or kinds.
        NotVerified: a kernel that is not.
    """
    config = config_of(checkpoint.metadata)
    checkpoint.require(expected(config))
    importer = (_Packed if precision == "bf16" else _Dequantised)(checkpoint, config, changed)
    layers = []
    for index in range(config.layers):
        layers.append(importer.layer(index))
        if progress is not None:
            progress(index + 1, config.layers)
    embed, head = importer.tied()
    return config, Weights(embed, layers, importer.norm("output_norm"), head)


def dequantised(checkpoint: Checkpoint, config: LlamaConfig) -> dict[str, torch.Tensor]:
    """Every weight in fp32, by its name in transformers: what an independent implementation is given."""
    importer = _Dequantised(checkpoint, config, None)
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    found = {
        "model.embed_tokens.weight": importer.matrix("token_embd"),
        "model.norm.weight": importer.norm("output_norm"),
    }
    for index in range(config.layers):
        for ours, theirs in names.items():
            name = f"blk.{index}.{ours}"
            value = importer.norm(name) if ours in NORMS else importer.matrix(name)
            found[f"model.layers.{index}.{theirs}.weight"] = value
    return found


class _Importer:
    """What both precisions share."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: LlamaConfig,
        changed: Callable[[str, torch.Tensor], torch.Tensor] | None,
    ) -> None:
        self.checkpoint, self.config, self.changed = checkpoint, config, changed

    def stored(self, name: str) -> torch.Tensor:
        """A tensor as the file has it, whole packed rows where it is packed; q and k in the model's own order."""
        x = self.checkpoint.tensor(f"{name}.weight")
        if name.endswith(QKV[:2]):
            x = unpermuted_rows(x, self.config.heads if name.endswith("attn_q") else self.config.kv_heads)  # fmt: skip
        return x if self.changed is None else self.changed(name, x)

    def kind(self, name: str, *kinds: str) -> str:
        """How a tensor is packed, which has to be in one of these ways."""
        kind = self.checkpoint.kind(f"{name}.weight")
        if kind not in kinds:
            raise CheckpointError(
                f"{name}.weight is stored as {kind}; this pipeline reads {' or '.join(kinds)}"
            )
        return kind

    def norm(self, name: str) -> torch.Tensor:
        self.kind(name, "F32")
        return self.stored(name)

    def product(self, *names: str) -> Product:
        raise NotImplementedError

    def layer(self, index: int) -> Layer:
        at = f"blk.{index}."
        return Layer(
            attention_norm=self.norm(f"{at}attn_norm"),
            qkv=self.product(*(f"{at}{name}" for name in QKV)),
            out=self.product(f"{at}attn_output"),
            mlp_norm=self.norm(f"{at}ffn_norm"),
            gate_up=self.product(*(f"{at}{name}" for name in GATE_UP)),
            down=self.product(f"{at}ffn_down"),
        )


class _Packed(_Importer):
    """bf16: four-bit products, an eight-bit table."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.gemv = verified("w4_gemv", profile="kept", block="32", offsets="yes")
        self.head = verified("w8_gemv", profile="planes")
        self.rows = verified("dequant_gguf", profile="once", kind="q8_0")
        self.cast = verified("cast", profile="inf", source="fp32", to="bf16")

    def norm(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self.cast(x=super().norm(name)[None])[0]
        return found

    def product(self, *names: str) -> Product:
        for name in names:
            self.kind(name, "Q4_1")
        parts = [split_q4_1(self.stored(name)) for name in names]
        codes, d, m = (torch.cat(x) for x in zip(*parts, strict=True))
        wide, low = d.double().numpy(), m.double().numpy()
        held: Product = self.gemv.hold(
            words=_words(codes), scales=_bf16(wide), offset=_bf16(low + 8 * wide)
        )
        return held

    def tied(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Product]:
        self.kind("token_embd", "Q8_0")
        # a copy, as the mapped file would stay with it
        blocks = self.stored("token_embd").clone()
        codes, d = split_q8_0(blocks)
        head = self.head.hold(codes=codes, scales=_bf16(d.double().numpy()))
        return partial(_row, self.rows, blocks), head


class _Dequantised(_Importer):
    """fp32: every weight whole."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.linear = verified("linear", profile="float32", bias_term="no")
        self.unpack = {
            kind: verified("dequant_gguf", profile="float32", kind=kind.lower())
            for kind in ("Q4_1", "Q8_0")
        }

    def matrix(self, name: str) -> torch.Tensor:
        kind = self.kind(name, "Q4_1", "Q8_0", "F32")
        x = self.stored(name)
        if kind != "F32":
            x = self.unpack[kind](blocks=x)
        return x

    def product(self, *names: str) -> Product:
        return partial(self.linear, weight=torch.cat([self.matrix(name) for name in names]))

    def tied(self) -> tuple[Callable[[torch.Tensor], torch.Tensor], Product]:
        table = self.matrix("token_embd")
        return table.__getitem__, partial(self.linear, weight=table)


def _row(unpack: Callable[..., Any], blocks: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    rows: torch.Tensor = unpack(blocks=blocks[ids])
    return rows


def _bf16(values: Any) -> torch.Tensor:
    """float64 values, rounded to bf16 once."""
    rounded: torch.Tensor = torch.from_numpy(np.asarray(formats.round_to(values, "bf16")))
    return rounded.to(torch.bfloat16)


def _words(codes: torch.Tensor) -> torch.Tensor:
    """(n, k) codes of four bits -> (n, k / 8) int32 words, the first in the low bits of its word."""
    pairs = codes.unflatten(1, (-1, 2))
    joined: torch.Tensor = pairs[..., 0] | pairs[..., 1] << 4
    return joined.contiguous().view(torch.int32)


def resident_bytes(*roots: Any) -> int:
    """Bytes of all tensors that these objects reach, each storage once."""
    storages: dict[int, int] = {}
    for x in _tensors(roots, set()):
        storage = x.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    if id(value) in seen or isinstance(value, str | bytes | int | float | type | None.__class__):
        return
    seen.add(id(value))
    if isinstance(value, partial):
        inner: Any = (value.args, value.keywords, value.func)
    elif isinstance(value, Mapping):
        inner = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        inner = list(value)
    elif hasattr(value, "__self__"):
        # a bound method: table.__getitem__
        inner = [value.__self__]
    elif type(value).__module__.startswith("contract."):
        inner = [v for k, v in vars(value).items() if k != "call"] if hasattr(value, "__dict__") else []  # fmt: skip
    else:
        return
    for one in inner:
        yield from _tensors(one, seen)
