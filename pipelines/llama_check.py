"""A model of Llama's kind against transformers' fp32 one on the same dequantised weights, with its negative controls.

The expected text is transformers' greedy one. Ours is forced along it, step after step with the cache, and compared at
every position. In fp32 a largest logit may differ only where the expected margin is below 0.05; in bf16 where it is below
twice the largest logit difference between transformers' own bf16 and fp32 on that text, which also bounds every logit. In bf16 the stages of the first
and the last layer are judged by their contracts as well, which sees what a comparison of logits cannot.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contract import NotAllowed, assert_allowed, verified
from contract.pipelines.compare import compare_logits
from contract.pipelines.extras import extra
from contract.pipelines.gates import (
    Gate,
    NegativeControl,
    Report,
    at_most,
    exactly,
    judge,
    previous_position,
    zero_output,
)
from contract.pipelines.guard import measuring
from contract.pipelines.llama import Kernels, Llama, LlamaConfig, Weights

#: fp32: sums of different orders move a logit of some 8 by a few 1e-5; a margin of 0.05 is a thousand of these.
FP32_MARGIN = 0.05
#: Of the logits' standard deviation: five times what two orders of the same sums differ by (2e-5).
FP32_ERROR = 1e-4
LOAD = Callable[[Callable[[str, torch.Tensor], torch.Tensor] | None], Weights]


@dataclass(frozen=True)
class Forced:
    """What a model gave along a text.

    Attributes:
        logits: (positions, vocab) of the last prompt token and every token after it but the last.
        refused: outputs of stages that their contracts do not allow.
    """

    logits: torch.Tensor
    refused: int


@dataclass(frozen=True)
class Expected:
    """What transformers gives.

    Attributes:
        text: the greedy tokens after the prompt.
        logits: its fp32 logits along it.
        noise: the largest difference between its bf16 and fp32 logits there.
    """

    text: tuple[int, ...]
    logits: torch.Tensor
    noise: float


def transformers_model(config: LlamaConfig, weights: Mapping[str, torch.Tensor]) -> Any:
    """transformers' LlamaForCausalLM in fp32 on these weights, eager attention.

    Raises:
        UsageError: transformers is not installed.
    """
    transformers = extra("transformers")
    described = transformers.LlamaConfig(
        vocab_size=config.vocab, hidden_size=config.width, intermediate_size=config.mlp,
        num_hidden_layers=config.layers, num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads, head_dim=config.d, rms_norm_eps=config.eps,
        max_position_embeddings=config.context, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": config.theta},
    )  # fmt: skip
    described._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM(described)
    model.load_state_dict(dict(weights), strict=False)
    model.tie_weights()
    model.eval()
    return model


@dataclass(frozen=True)
class Imported:
    """What of a GGUF file is read otherwise than transformers reads it; 0 where everything is the same, bit for bit.

    Attributes:
        sizes: names of the sizes and conventions that differ.
        tensors: names of the tensors that differ, or that one of both lacks.
    """

    sizes: tuple[str, ...]
    tensors: tuple[str, ...]

    @property
    def different(self) -> int:
        return len(self.sizes) + len(self.tensors)

    def gate(self) -> Gate:
        """The gate `import`."""
        return Gate("import", lambda out: self, [exactly("different", 0)])


def their_import(path: Path) -> tuple[LlamaConfig, dict[str, torch.Tensor]]:
    """A GGUF file as transformers' own loader reads it: sizes, and dequantised tensors by its names.

    Raises:
        UsageError: transformers is not installed.
    """
    transformers, loader = extra("transformers"), extra("transformers.modeling_gguf_pytorch_utils")
    read = loader.load_gguf_checkpoint
    # it counts tensors there
    with contextlib.redirect_stderr(io.StringIO()):
        found = read(str(path), return_tensors=False)["config"]
        with torch.device("meta"):
            described = transformers.LlamaConfig(
                **{k: v for k, v in found.items() if k != "model_type"}
            )
            named = transformers.LlamaForCausalLM(described)
        tensors = read(str(path), return_tensors=True, model_to_load=named)["tensors"]
    sizes = {ours: found[theirs] for ours, theirs in _SIZES.items()}
    return LlamaConfig(**sizes), {name: torch.as_tensor(x) for name, x in tensors.items()}


#: LlamaConfig's names -> those of transformers' LlamaConfig.
_SIZES = {
    "layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "d": "head_dim", "mlp": "intermediate_size", "vocab": "vocab_size",
    "theta": "rope_theta", "eps": "rms_norm_eps", "context": "max_position_embeddings",
}  # fmt: skip


def compare_imports(
    ours: tuple[LlamaConfig, Mapping[str, torch.Tensor]],
    theirs: tuple[LlamaConfig, Mapping[str, torch.Tensor]],
) -> Imported:
    """Sizes as fp32 numbers, tensors bit for bit."""
    mine, other = (vars(config) for config, _ in (ours, theirs))
    sizes = [n for n in mine if np.float32(mine[n]) != np.float32(other[n])]
    left, right = ours[1], theirs[1]
    tensors = [
        n for n in sorted(left.keys() | right.keys())
        if n not in left or n not in right or not torch.equal(left[n].float(), right[n].float())
    ]  # fmt: skip
    return Imported(tuple(sizes), tuple(tensors))


def expected_of(
    config: LlamaConfig,
    weights: Mapping[str, torch.Tensor],
    prompt: Sequence[int],
    tokens: int,
    stop_ids: frozenset[int],
) -> Expected:
    """transformers' greedy text, and its logits along it.

    Raises:
        UsageError: transformers is not installed.
    """
    model = transformers_model(config, weights)
    with torch.no_grad():
        ids = list(prompt)
        while len(ids) < len(prompt) + tokens:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] in stop_ids:
                break
        forced = torch.tensor([ids[:-1]])
        first = len(prompt) - 1
        logits = model(forced).logits[0, first:].clone()
        short = model.bfloat16()(forced).logits[0, first:].float()
    return Expected(tuple(ids[len(prompt) :]), logits, float((short - logits).abs().max()))


def forced(model: Llama, prompt: Sequence[int], text: Sequence[int]) -> torch.Tensor:
    """Logits (positions, vocab) of our model along the text, one step for each token."""
    rows = [model.step(prompt, 0)]
    for at, token in enumerate(text[:-1]):
        rows.append(model.step([token], len(prompt) + at))
    return torch.cat(rows)


@dataclass(frozen=True)
class Runs:
    """Runs of a broken model: run(kernels=, changed=, swap=) -> Forced."""

    config: LlamaConfig
    precision: str
    run: Callable[..., Forced]


class Stages:
    """Looks on at a model's stages, and counts the outputs that their contracts do not allow."""

    def __init__(self, config: LlamaConfig) -> None:
        self.layers, self.refused, self.eps = {0, config.layers - 1}, 0, config.eps

    def __call__(self, layer: int, stage: str, values: Mapping[str, torch.Tensor]) -> None:
        given: dict[str, Any] = dict(values)
        if layer not in self.layers or "out" not in given:
            return
        out: Any = given.pop("out")
        kind: dict[str, Any]
        if stage == "rope":
            kind = {"kernel": "rope", "profile": "each_op"}
        elif stage == "mlp_norm":
            kind = {"kernel": "rms_norm", "profile": "two_step", "gain": "w", "eps": self.eps}
        elif stage == "swiglu":
            kind = {"kernel": "swiglu", "profile": "two_step"}
        elif stage == "tail":
            out = {"total": given.pop("total"), "out": out}
            kind = {
                "kernel": "add_rms_tail", "profile": "two_step", "branch_norm": "no", "scale": "no",
                "eps": self.eps,
            }  # fmt: skip
        else:
            return
        with measuring():
            try:
                assert_allowed(kind.pop("kernel"), out, **kind, **given)
            except NotAllowed:
                self.refused += 1


def gates(expected: Expected, precision: str, exact: torch.Tensor | None = None) -> list[Gate]:
    """What a run has to keep; `exact`, the logits of the same model in fp32, have to be as near as in a run of fp32."""
    if precision == "fp32":
        margin, error = FP32_MARGIN, FP32_ERROR * float(expected.logits.std())
    else:
        margin = error = 2 * expected.noise
    found = [
        Gate(
            "logits",
            lambda out: compare_logits(out.logits.float(), expected.logits),
            [
                at_most("max_error", error),
                at_most("logits.widest", margin),
                at_most("logits.kl", 0.1),
            ],
        )
    ]
    if exact is not None:
        # in bf16 a fault of the model's structure can be smaller than what the rounding does to anybody's logits
        (same,) = gates(expected, "fp32")
        found.append(Gate("fp32", lambda out: same.measure(Forced(exact, 0)), same.limits))
    if precision == "bf16":
        found.append(Gate("stages", lambda out: out, [exactly("refused", 0)]))
    return found


def check(
    config: LlamaConfig,
    load: LOAD,
    precision: str,
    prompt: Sequence[int],
    expected: Expected,
    controls: Sequence[str],
    name: str,
    *,
    exact: Callable[[], Weights] | None = None,
    more: Sequence[Gate] = (),
) -> Report:
    """Our model along the expected text, and broken ones.

    Args:
        config, load: the model; load(changed) gives its weights with every tensor through `changed`.
        precision: 'bf16' or 'fp32'.
        prompt, expected: what is compared.
        controls: names of CONTROLS.
        exact: the fp32 weights, with which the same model is looked at beside one of bf16.
        more: further gates.
    """

    def run(
        kernels: Kernels | None = None, changed: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
        swap: bool = False,
    ) -> Forced:  # fmt: skip
        weights = load(changed)
        if swap:
            first, second, *rest = weights.layers
            weights = Weights(weights.embed, [second, first, *rest], weights.final_norm, weights.head)  # fmt: skip
        stages = Stages(config)
        watch = stages if precision == "bf16" else None
        model = Llama(config, weights, kernels or Kernels(precision), watch=watch)
        return Forced(forced(model, prompt, expected.text), stages.refused)

    def made(name: str) -> NegativeControl:
        blind = ""
        if name == "dropped-rounding" and precision == "fp32":
            blind = "in fp32 no step is rounded to fewer bits"
        runs = Runs(config, precision, run)
        return NegativeControl(name, lambda right: CONTROLS[name](right, runs), blind)

    wide = None
    if exact is not None:
        wide = forced(Llama(config, exact(), Kernels("fp32")), prompt, expected.text)
    wanted = [*gates(expected, precision, wide), *more]
    return judge(wanted, run(), [made(n) for n in controls], name)


def _zero(right: Forced, runs: Runs) -> Forced:
    return Forced(zero_output(right.logits), right.refused)


def _previous(right: Forced, runs: Runs) -> Forced:
    return Forced(previous_position(right.logits), right.refused)


def _flipped(right: Forced, runs: Runs) -> Forced:
    # in the first layer's values: the lowest exponent bit of one block's scale, 32 weights of 20 bytes
    def flip(name: str, x: torch.Tensor) -> torch.Tensor:
        if name != "blk.0.attn_v":
            return x
        x = x.clone()
        x[0, 1] ^= 0x10
        return x

    return runs.run(changed=flip)


def _neighbour(right: Forced, runs: Runs) -> Forced:
    return runs.run(swap=True)


def _unrounded(right: Forced, runs: Runs) -> Forced:
    if runs.precision == "fp32":
        return right
    kernels = Kernels(runs.precision)
    kernels.swiglu = verified("swiglu", profile="once")
    return runs.run(kernels=kernels)


def _stale(right: Forced, runs: Runs) -> Forced:
    """The second token after the prompt leaves the first one's keys and values in its slots."""
    kernels = Kernels(runs.precision)
    append: Any = kernels.append
    a_step = 2 * runs.config.layers
    written: list[torch.Tensor] = []

    def stale(**named: Any) -> Any:
        written.append(named["new"])
        if 2 * a_step < len(written) <= 3 * a_step:
            named["new"] = written[-1 - a_step]
        return append(**named)

    changed: Any = stale
    kernels.append = changed
    return runs.run(kernels=kernels)


#: Name -> (right output, runs of broken models) -> the broken one's output.
CONTROLS: Mapping[str, Callable[[Forced, Runs], Forced]] = {
    "zero-output": _zero,
    "previous-position": _previous,
    "word-flipped": _flipped,
    "neighbour-layer": _neighbour,
    "dropped-rounding": _unrounded,
    "stale-slot": _stale,
}
