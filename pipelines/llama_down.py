"""The down projection of a model of Llama's kind in eight bits, three ways, everything else in fp32.

y = x Wd^T, x (rows, inter) the output of SwiGLU, Wd (width, inter) dequantised; Q: codes of eight bits.

    int8             s_x s_w (Q(x / s_x) Q(Wd / s_w)^T)               s = max|.| / 127
    int8-hadamard    s_x s_w (Q(x H / s_x) Q(Wd H / s_w)^T)           s = max|. H| / 127
    f143             2^(k_x + k_w) (Q(x 2^-k_x) Q(Wd 2^-k_w)^T)       k the least that clips nothing

One scale for the whole of x and one for the whole of Wd. The scale of x is static: it is that of the rows of a calibration
text. H is the Walsh-Hadamard matrix over tiles of a row, orthogonal and symmetric: (x H)(Wd H)^T = x Wd^T, and a value that
stands out is spread over its tile. Sources: QuaRot (Ashkboos et al., 2024), section 3; Noune et al., 8-bit Numerical
Formats for Deep Neural Networks, 2022 (1-4-3).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from contract import captured, verified
from contract.engines.placement import from_bits
from contract.errors import CaseError
from contract.pipelines.compare import compare_logits
from contract.pipelines.guard import measuring
from contract.pipelines.llama import Kernels, Llama, LlamaConfig, Product, Weights
from contract.pipelines.llama_check import forced
from contract.pipelines.run_record import json_value

#: Neighbouring values that `hadamard_quant` moves together.
LANES = 32
#: What rounds beyond the largest value of 1-4-3, 240, is clipped from here on.
CLIPPED = 248.0
#: Exponents that a scale of 1-4-3 can have.
LEAST_K, LARGEST_K = -32, 31
HEAD = (
    "down input | logits cosine mean / min | top-1 | KL | zero codes"
    " | product's relative error (worst layer)"
)


@dataclass(frozen=True)
class QuantisedDown:
    """A quantised product that has its weight and its scales.

    Attributes:
        codes: x (rows, inter) fp32 -> its codes, int8 or e4m3fnuz, of the same shape.
        product: these codes -> y (rows, width) fp32.
    """

    codes: Callable[[torch.Tensor], torch.Tensor]
    product: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, *, x: torch.Tensor) -> torch.Tensor:
        return self.product(self.codes(x))


@dataclass(frozen=True)
class Measured:
    """What quantisation does to one product y = x W^T.

    Attributes:
        zeros: share of x's codes that are 0.
        lost: share of rows whose codes are all 0, so that nothing of them is left.
        error: ||y_q - y|| / ||y|| over all rows, y in float64.
    """

    zeros: float
    lost: float
    error: float


@dataclass(frozen=True)
class Row:
    """A variant along the text, against the fp32 model's own logits.

    Attributes:
        variant: of VARIANTS.
        cosine, worst_cosine: of a position's logits, mean over positions, and the worst.
        top1: share of positions whose largest logit is the same token's.
        kl: KL(fp32 || variant) in nats, mean over positions.
        zeros: share of zero codes among all down inputs of the fp32 model.
        error: relative error of the down product, mean over layers.
        worst_error, worst_layer: the largest, and the layer it is of.
        layers: of every layer, on the down inputs of the fp32 model.
    """

    variant: str
    cosine: float
    worst_cosine: float
    top1: float
    kl: float
    zeros: float
    error: float
    worst_error: float
    worst_layer: int
    layers: tuple[Measured, ...]

    def line(self) -> str:
        """For people, below HEAD."""
        return (
            f"{self.variant} | {self.cosine:.6f} / {self.worst_cosine:.6f} | {100 * self.top1:.1f} % | {self.kl:.3g} |"
            f" {100 * self.zeros:.1f} % | {self.error:.3g} ({self.worst_error:.3g}, layer {self.worst_layer})"
        )


@dataclass(frozen=True)
class Study:
    """The rows of all variants, and what is claimed of them."""

    rows: tuple[Row, ...]

    def claims(self) -> dict[str, bool]:
        """Claim -> whether the rows keep it; NaN keeps none.

        That the rotation brings the logits nearer is none of them. It brings the products nearer; but where one row sets
        the static scale, nothing may be left of the others, rotated or not, and of SmolLM2 it held along two texts of 32
        tokens and not along one of 8.
        """
        plain, tiles, f143 = (self._row(variant) for variant in VARIANTS)
        return {
            "KL(f143) < KL(int8)": f143.kl < plain.kl,
            "KL(f143) < KL(int8-hadamard)": f143.kl < tiles.kl,
            "error(int8-hadamard) < error(int8)": tiles.error < plain.error,
        }

    def _row(self, variant: str) -> Row:
        return next(row for row in self.rows if row.variant == variant)

    @property
    def exit_code(self) -> int:
        """0 where every claim holds, else 1."""
        return int(not all(self.claims().values()))

    def lines(self) -> list[str]:
        """The table, and a line for each claim that does not hold."""
        failed = [f"does not hold here: {claim}" for claim, holds in self.claims().items() if not holds]  # fmt: skip
        return [HEAD, *(row.line() for row in self.rows), *failed]

    def to_json(self) -> dict[str, Any]:
        """Rows and claims as JSON values."""
        found: dict[str, Any] = json_value(dataclasses.asdict(self) | {"claims": self.claims()})
        return found


def tiling(inter: int) -> tuple[int, int]:
    """(parts, d): a row of `inter` values as parts of d = 32 2^j each, the largest that a rotation takes, j >= 1.

    Raises:
        CaseError: a size with no such tiling.
    """
    d = inter & -inter
    if inter < 1 or d < 2 * LANES:
        raise CaseError(
            f"rows of {inter} values; a rotation needs tiles of {LANES} times a power of two, {2 * LANES} or more: use a"
            f" multiple of {2 * LANES}"
        )
    return inter // d, d


def quantised(x: torch.Tensor, weight: torch.Tensor, variant: str) -> QuantisedDown:
    """The product of a variant, its scales made for these rows.

    Args:
        x: (rows, inter) fp32, rows of a calibration text.
        weight: (width, inter) fp32.
        variant: of VARIANTS.

    Raises:
        CaseError: no such variant, or operands that it cannot take.
        NotVerified: a kernel that is not.
    """
    if variant not in VARIANTS:
        raise CaseError(f"variant {variant!r}; there are {', '.join(VARIANTS)}")
    return VARIANTS[variant](x, weight)


def measured(down: QuantisedDown, x: torch.Tensor, weight: torch.Tensor) -> Measured:
    """What a quantised product makes of these rows.

    Raises:
        CaseError: a product that is zero, to which no error is relative.
    """
    codes = down.codes(x)
    found = down.product(codes)
    with measuring():
        right = x.double() @ weight.double().T
        size = float(right.norm())
        if not size > 0:
            raise CaseError("the product of these rows is zero; give rows whose product is not")
        # the one code of zero is 0x00 in both formats
        zero = codes.view(torch.uint8) == 0
        return Measured(
            zeros=float(zero.double().mean()),
            lost=float(zero.all(1).double().mean()),
            error=float((found.double() - right).norm()) / size,
        )


def relative_error(x: Any, weight: Any, variant: str) -> float:
    """||y_q - y|| / ||y|| of y = x W^T over all rows, the scale of x made for these rows.

    Args:
        x: (rows, inter), a tensor or an array; taken in fp32.
        weight: (width, inter), the same.
        variant: of VARIANTS.

    Raises:
        CaseError: other shapes, values that are not finite in fp32, or what `quantised` and `measured` refuse.
        NotVerified: a kernel that is not.
    """
    rows, held = _fp32("x", x), _fp32("weight", weight)
    if rows.shape[1] != held.shape[1]:
        raise CaseError(
            f"x of {rows.shape[1]} values a row, weight of {held.shape[1]}; give a weight of as many"
        )
    return measured(quantised(rows, held, variant), rows, held).error


def captured_lines(config: LlamaConfig, root: Path) -> list[str]:
    """The variants on captured rows of down projections that are packed in four bits; none where there are none.

    Each captured call is a product of its own, with scales made for its rows alone.

    Raises:
        StoreError: a file of captured rows that cannot be used.
        NotVerified: a kernel that is not.
    """
    call = verified("w4_gemv", profile="kept", block="32", offsets="yes")
    kernel = call.kernel
    found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    rows = 0
    for case in captured.read(root, kernel):
        if (case.shape["k"], case.shape["n"]) != (config.mlp, config.width):
            continue
        given = {
            o.name: from_bits(case.operands[o.name].copy(), kernel.format(o))
            for o in kernel.inputs()
        }
        x = given.pop("x")
        # a product of one term each: the weight itself, in bf16
        weight = call(x=torch.eye(config.mlp, dtype=x.dtype), **given).T
        rows += len(x)
        for variant, errors in found.items():
            errors.append(relative_error(x, weight, variant))
    if not rows:
        return []
    shown = ", ".join(f"{name} {np.mean(e):.3g} ({max(e):.3g})" for name, e in found.items())
    calls = len(next(iter(found.values())))
    return [
        f"captured: {rows} rows of {calls} calls; product's relative error, mean (worst): {shown}"
    ]


def study(
    config: LlamaConfig,
    weights: Weights,
    prompt: Sequence[int],
    text: Sequence[int],
) -> Study:
    """Every variant forced along a text, against the fp32 model along it.

    Args:
        config, weights: of the fp32 model, its weights dequantised.
        prompt, text: the tokens; the fp32 model's greedy text.

    Raises:
        CaseError: packed weights, or a size that a variant cannot take.
        NotVerified: a kernel that is not.
    """
    kernels = Kernels("fp32")
    seen = DownInputs(config)
    right = forced(Llama(config, weights, kernels, watch=seen), prompt, text)
    matrices = [_weight_of(layer.down) for layer in weights.layers]
    inputs = [seen.rows(index) for index in range(config.layers)]
    rows = []
    for variant in VARIANTS:
        downs = [quantised(x, w, variant) for x, w in zip(inputs, matrices, strict=True)]
        facts = [measured(*one) for one in zip(downs, inputs, matrices, strict=True)]
        logits = forced(Llama(config, with_downs(weights, downs), kernels), prompt, text)
        rows.append(_row(variant, logits, right, facts))
    return Study(tuple(rows))


class DownInputs:
    """Looks on at a model, and keeps what every layer's down projection is given."""

    def __init__(self, config: LlamaConfig) -> None:
        self.parts: list[list[torch.Tensor]] = [[] for _ in range(config.layers)]

    def __call__(self, layer: int, stage: str, values: Mapping[str, torch.Tensor]) -> None:
        if stage == "down":
            self.parts[layer].append(values["x"])

    def rows(self, layer: int) -> torch.Tensor:
        """(rows, inter) of all steps."""
        return torch.cat(self.parts[layer])


def with_downs(weights: Weights, downs: Sequence[Product]) -> Weights:
    """The model with these down projections."""
    layers = [
        dataclasses.replace(layer, down=down)
        for layer, down in zip(weights.layers, downs, strict=True)
    ]
    return dataclasses.replace(weights, layers=layers)


def _row(variant: str, logits: torch.Tensor, right: torch.Tensor, facts: Sequence[Measured]) -> Row:
    found = compare_logits(logits, right)
    assert found.logits is not None
    errors = np.array([one.error for one in facts])
    worst = int(errors.argmax())
    return Row(
        variant, found.cosine, found.worst_cosine, found.logits.top1, found.logits.kl,
        zeros=float(np.mean([one.zeros for one in facts])), error=float(errors.mean()),
        worst_error=float(errors[worst]), worst_layer=worst,
        layers=tuple(facts),
    )  # fmt: skip


def _int8(x: torch.Tensor, weight: torch.Tensor) -> QuantisedDown:
    quantise = verified("quantize_int8", profile="divide", granularity="tensor")
    held, w_scale = quantise(x=weight)
    scale = _scale(_largest(x))
    product = partial(_gemm_i8(), weight=held, x_scale=torch.tensor(scale), w_scale=w_scale)
    return QuantisedDown(
        partial(_static_codes, verified("hadamard_quant", profile="float32"), scale),
        lambda codes: product(x=codes),
    )


def _rotated(x: torch.Tensor, weight: torch.Tensor) -> QuantisedDown:
    kernel = verified("hadamard_quant", profile="float32")
    scale, w_scale = (_scale(_largest(rotated(one))) for one in (x, weight))
    held = _rotated_codes(kernel, w_scale, weight)
    product = partial(
        _gemm_i8(), weight=held, x_scale=torch.tensor(scale), w_scale=torch.tensor(w_scale)
    )
    return QuantisedDown(partial(_rotated_codes, kernel, scale), lambda codes: product(x=codes))


def _f143(x: torch.Tensor, weight: torch.Tensor) -> QuantisedDown:
    quantise = verified("quant_f143_sat", profile="saturate", source="fp32")
    gemm = verified("gemm_f143", profile="once")
    k_a, k_w = (least_exponent(_largest(one)) for one in (x, weight))
    held, _ = quantise(x=weight, k=k_w)

    def codes(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = quantise(x=x, k=k_a)[0]
        return found

    return QuantisedDown(
        codes, lambda codes: _widened(gemm(x=codes, weight=held, k_a=k_a, k_w=k_w))
    )


#: Name -> (rows of the calibration, weight) -> product.
VARIANTS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], QuantisedDown]] = {
    "int8": _int8,
    "int8-hadamard": _rotated,
    "f143": _f143,
}


def _gemm_i8() -> Callable[..., torch.Tensor]:
    kernel: Callable[..., torch.Tensor] = verified(
        "gemm_i8", profile="float32", granularity="tensor"
    )
    return kernel


def _static_codes(
    kernel: Callable[..., torch.Tensor], scale: float, x: torch.Tensor
) -> torch.Tensor:
    """clamp(round(x / s), -127, 127) by the kernel that rotates: 32 values beside 32 zeros.

    The rotation of (a, 0) is (a, a) / sqrt 2, exact but for the root, which the kernel folds into the scale. No contract
    has static codes of fp32 values as they are.
    """
    flat = x.reshape(-1)
    groups = torch.cat((flat, flat.new_zeros(-len(flat) % LANES))).view(-1, LANES)
    codes = kernel(x=torch.cat((groups, torch.zeros_like(groups)), 1), scale=scale / math.sqrt(2))
    return codes[:, :LANES].reshape(-1)[: len(flat)].view(x.shape)


def _rotated_codes(
    kernel: Callable[..., torch.Tensor], scale: float, x: torch.Tensor
) -> torch.Tensor:
    """Codes of x H, tile by tile: every tile is a row to the kernel."""
    _, d = tiling(x.shape[1])
    return kernel(x=x.reshape(-1, d), scale=scale).view(x.shape)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """x H of (rows, inter) in float64, for measuring: H normalised, over the groups of a tile."""
    _, d = tiling(x.shape[1])
    with measuring():
        order = d // LANES
        pair = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
        matrix = torch.ones(1, 1, dtype=torch.float64)
        while len(matrix) < order:
            matrix = torch.kron(pair, matrix)
        found: torch.Tensor = matrix @ x.double().reshape(-1, order, LANES) / math.sqrt(order)
        return found.reshape(x.shape)


def least_exponent(largest: float) -> int:
    """The least k with largest 2^-k < 248, where nothing is clipped; 0 of zero, -32 where less would do.

    Raises:
        CaseError: more than the format's scales reach.
    """
    # m 2^e with m in [1/2, 1): 2^e is the least power above the quotient
    k = math.frexp(largest / CLIPPED)[1]
    if k > LARGEST_K:
        raise CaseError(
            f"values up to {largest:.3g}; scales of 1-4-3 reach {CLIPPED * 2.0**LARGEST_K:.3g}: scale them down"
        )
    return max(k, LEAST_K)


def _scale(largest: float) -> float:
    """max / 127 in fp32; 1 where all values are zero, or too small for a scale that divides."""
    return float(np.float32(largest / 127.0)) or 1.0


def _largest(x: torch.Tensor) -> float:
    with measuring():
        return float(x.abs().max())


def _widened(x: torch.Tensor) -> torch.Tensor:
    """bf16 -> fp32, exact and without arithmetic: bf16 is the high half of fp32's bits."""
    high = x.contiguous().view(torch.int16)
    return torch.stack((torch.zeros_like(high), high), -1).view(torch.float32).squeeze(-1)


def _weight_of(product: Product) -> torch.Tensor:
    """The matrix of a product that `llama_weights` dequantised."""
    found = product.keywords.get("weight") if isinstance(product, partial) else None
    if not isinstance(found, torch.Tensor):
        raise CaseError("a down projection whose weights are packed; load the model in fp32")
    return found


def _fp32(name: str, values: Any) -> torch.Tensor:
    """A matrix in fp32."""
    with measuring():
        given = values.detach() if isinstance(values, torch.Tensor) else torch.from_numpy(np.array(values, np.float64))  # fmt: skip
        found: torch.Tensor = given.to(torch.float32)
        if found.ndim != 2 or not found.numel():
            raise CaseError(f"{name} of shape {tuple(found.shape)}; give a matrix of rows")
        if not bool(found.isfinite().all()):
            raise CaseError(f"{name} has values that are not finite in fp32; give finite ones")
    return found
