"""The quantised down projections: their codes by hand, and a small random model through the whole study."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract.config import Config
from contract.errors import CaseError, NotVerified, UsageError
from contract.pipelines import llama_down, smollm2
from contract.pipelines.capture import Capture
from contract.pipelines.decoding import generate, greedy
from contract.pipelines.guard import KernelsOnly
from contract.pipelines.llama import Kernels, Layer, Llama, LlamaConfig, Weights
from contract.pipelines.llama_down import (
    VARIANTS,
    DownInputs,
    Measured,
    Row,
    Study,
    captured_lines,
    least_exponent,
    quantised,
    relative_error,
    rotated,
    study,
    tiling,
    with_downs,
)
from contract.verify import verified

SIZES = LlamaConfig(
    layers=2, width=64, heads=4, kv_heads=2, d=16, mlp=192, vocab=96, theta=1e4, eps=1e-5, context=64
)  # fmt: skip
PROMPT = [5, 77, 31, 2, 9, 64, 13]


@pytest.fixture(scope="module", autouse=True)
def _kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kernels that are verified: in a store of these tests where the project's is of other sources."""
    rows = torch.eye(64)
    with pytest.MonkeyPatch.context() as patched:
        try:
            Kernels("fp32")
            for variant in VARIANTS:
                quantised(rows, rows, variant)
        except NotVerified:
            folder = tmp_path_factory.mktemp("verified")
            patched.setattr(Config, "store_root", property(lambda _: folder))
        yield


@pytest.fixture(scope="module")
def weights() -> Weights:
    """Random ones whose first layer has a down input that stands out."""
    draw = torch.Generator().manual_seed(11)
    linear = verified("linear", profile="float32", bias_term="no")

    def matrix(n: int, k: int, size: float = 1.0) -> Any:
        return partial(linear, weight=torch.randn(n, k, generator=draw) * size / math.sqrt(k))

    def layer(spread: float) -> Layer:
        pair, down = matrix(2 * SIZES.mlp, SIZES.width, 2.0), matrix(SIZES.width, SIZES.mlp)
        # gate and up of one value, and what it is multiplied by
        pair.keywords["weight"][[7, 7 + SIZES.mlp]] *= spread
        down.keywords["weight"][:, 7] /= spread**2
        return Layer(
            attention_norm=torch.ones(SIZES.width), qkv=matrix(128, SIZES.width),
            out=matrix(SIZES.width, 64), mlp_norm=torch.ones(SIZES.width),
            gate_up=pair, down=down,
        )  # fmt: skip

    table = torch.randn(SIZES.vocab, SIZES.width, generator=draw)
    return Weights(
        table.__getitem__, [layer(5.0), layer(1.0)], torch.ones(SIZES.width),
        partial(linear, weight=table),
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(weights: Weights) -> Study:
    model = Llama(SIZES, weights, Kernels("fp32"))
    pick = greedy(verified("argmax_rows", profile="float32_logits"))
    text = generate(model.step, PROMPT, 12, pick).ids
    return study(SIZES, weights, PROMPT, text)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("inter", "parts", "d"),
    [(1536, 3, 512), (16384, 1, 16384), (192, 3, 64), (64, 1, 64), (11008, 43, 256)],
)
def test_a_row_is_cut_into_the_largest_tiles(inter: int, parts: int, d: int) -> None:
    assert tiling(inter) == (parts, d)


@pytest.mark.parametrize("inter", [0, -64, 32, 96, 4304])
def test_a_size_without_tiles_is_named(inter: int) -> None:
    with pytest.raises(CaseError, match=f"rows of {inter} values.*multiple of 64"):
        tiling(inter)


@pytest.mark.parametrize("inter", [192, 40])
def test_int8_codes_have_the_static_scale(inter: int) -> None:
    x = normal(5, inter)
    down = quantised(x, normal(3, inter, seed=1), "int8")
    scale = torch.tensor(float(x.abs().max()) / 127.0)
    # twice as large: the scale stays, and the codes saturate
    for rows in (x, 2 * x):
        codes = down.codes(rows)
        assert codes.dtype == torch.int8
        assert torch.equal(codes, (rows / scale).clamp(-127, 127).round().to(torch.int8))
    assert int(down.codes(2 * x).abs().max()) == 127


def test_the_rotation_keeps_products_and_spreads_a_value() -> None:
    x, weight = normal(4, 192), normal(6, 192, seed=1)
    assert torch.allclose(rotated(rotated(x)), x.double(), rtol=0, atol=1e-12)
    assert torch.allclose(rotated(x) @ rotated(weight).T, x.double() @ weight.double().T)
    one = torch.zeros(1, 512)
    one[0, 5] = 4.0
    spread = rotated(one).view(16, 32)
    assert torch.equal(spread[:, 5], torch.ones(16, dtype=torch.float64))
    assert not spread[:, 6].any()


def test_rotated_codes_are_those_of_the_rotated_row() -> None:
    x, weight = normal(4, 1536), normal(6, 1536, seed=1)
    codes = quantised(x, weight, "int8-hadamard").codes(x)
    exact = rotated(x) / (float(rotated(x).abs().max()) / 127)
    assert int(codes.abs().max()) == 127
    assert float((codes - exact).abs().max()) < 0.501


@pytest.mark.parametrize(
    ("largest", "k"),
    [(248.0, 1), (247.9, 0), (240.0, 0), (124.0, 0), (123.9, -1), (3e-9, -32), (1e-30, -32), (0.0, 0)],
)  # fmt: skip
def test_the_least_exponent_clips_nothing(largest: float, k: int) -> None:
    assert least_exponent(largest) == k
    if k > -32 and largest:
        quantise = verified("quant_f143_sat", profile="saturate", source="fp32")
        x = torch.tensor([[largest]])
        assert int(quantise(x=x, k=float(k))[1]) == 0
        assert int(quantise(x=x, k=k - 1.0)[1]) == 1


def test_what_no_exponent_reaches_is_named() -> None:
    with pytest.raises(CaseError, match=r"values up to 1e\+30; scales of 1-4-3 reach 5.33e\+11"):
        least_exponent(1e30)


def test_bf16_is_widened_bit_by_bit() -> None:
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    x = every.view(torch.bfloat16).view(256, 256)
    wide = llama_down._widened(x)
    assert wide.shape == x.shape
    # the bits: NaN is equal to none
    assert torch.equal(wide.view(torch.int32), every.to(torch.int32).view(256, 256) << 16)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_product_has_the_error_of_its_codes(variant: str) -> None:
    # of another size than x, so that no scale is taken for the other one
    error = relative_error(normal(64, 512), normal(32, 512, seed=1) / 100.0, variant)
    # int8: two steps of max / 127 / sqrt 12, the largest near 4.5 deviations; 1-4-3: two errors of some 2.6 %
    least, most = (0.025, 0.05) if variant == "f143" else (0.01, 0.02)
    assert least < error < most


@pytest.mark.parametrize("variant", ["int8", "f143"])
def test_what_codes_hold_has_no_error(variant: str) -> None:
    # whole numbers that the format has, its largest among them: s = 1 and k = 0
    top = 127.0 if variant == "int8" else 240.0
    x, weight = normal(4, 64).sign(), normal(8, 64, seed=1).sign()
    x[0] = weight[0] = 0.0
    x[0, 0] = weight[0, 0] = top
    x[1:, 0] = weight[1:, 0] = 0.0
    assert relative_error(x, weight, variant) == 0.0


def test_a_value_that_stands_out_costs_plain_int8_the_most() -> None:
    x, weight = normal(64, 512), normal(32, 512, seed=1)
    x[:, 5] *= 100.0
    weight[:, 5] *= 0.01
    error = {variant: relative_error(x, weight, variant) for variant in VARIANTS}
    assert error["f143"] < error["int8-hadamard"] < 0.5 * error["int8"]


def test_captured_rows_are_arrays_too() -> None:
    x, weight = normal(4, 64), normal(8, 64, seed=1)
    held = x.double().numpy()
    held.flags.writeable = False
    for variant in VARIANTS:
        same = relative_error(held, weight.double().numpy(), variant)
        assert same == relative_error(x, weight, variant)


@pytest.mark.parametrize(
    ("x", "weight", "variant", "said"),
    [
        (torch.ones(2, 64), torch.ones(3, 64), "int4", "variant 'int4'; there are int8, int8-hadamard"),
        (torch.ones(2, 64), torch.ones(3, 96), "int8", "x of 64 values a row, weight of 96"),
        (torch.ones(64), torch.ones(3, 64), "int8", r"x of shape \(64,\)"),
        (torch.ones(0, 64), torch.ones(3, 64), "f143", r"x of shape \(0, 64\)"),
        (torch.ones(2, 64), np.full((3, 64), 1e39), "f143", "weight has values that are not finite"),
        (torch.ones(2, 96), torch.ones(3, 96), "int8-hadamard", "rows of 96 values"),
        (torch.zeros(2, 64), torch.ones(3, 64), "int8", "the product of these rows is zero"),
    ],
)  # fmt: skip
def test_what_has_no_error_is_named(x: Any, weight: Any, variant: str, said: str) -> None:
    with pytest.raises(CaseError, match=said):
        relative_error(x, weight, variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_quantised_model_computes_in_verified_kernels_alone(
    weights: Weights, variant: str
) -> None:
    seen, kernels = DownInputs(SIZES), Kernels("fp32")
    right = Llama(SIZES, weights, kernels, watch=seen).step(PROMPT, 0)
    downs = [
        quantised(seen.rows(i), layer.down.keywords["weight"], variant)  # type: ignore[attr-defined]
        for i, layer in enumerate(weights.layers)
    ]
    model = Llama(SIZES, with_downs(weights, downs), kernels)
    with KernelsOnly():
        logits = model.step(PROMPT, 0)
        model.step([3], len(PROMPT))
    assert logits.dtype == torch.float32
    # another model, and not far from the first one
    difference = float((logits - right).norm() / right.norm())
    assert 1e-3 < difference < 0.2


def test_the_study_has_all_variants(found: Study) -> None:
    plain, rotated_row, f143 = found.rows
    assert [row.variant for row in found.rows] == list(VARIANTS)
    assert max(f143.kl, rotated_row.kl) < 0.5 * plain.kl < 0.5
    assert plain.zeros > rotated_row.zeros > f143.zeros
    assert f143.cosine > plain.cosine > plain.worst_cosine > 0.9
    assert plain.worst_layer == 0
    assert plain.worst_error == max(one.error for one in plain.layers) > plain.error
    assert found.exit_code == 0
    head, *lines = found.lines()
    assert len(lines) == 3
    assert all(line.count("|") == head.count("|") for line in lines)
    assert "layer 0)" in lines[0]
    assert json.loads(json.dumps(found.to_json()))["rows"][0]["layers"][1]["lost"] == 0.0


def test_the_scales_are_those_of_every_row_of_the_text(weights: Weights) -> None:
    seen = DownInputs(SIZES)
    model = Llama(SIZES, weights, Kernels("fp32"), watch=seen)
    model.step(PROMPT, 0)
    model.step([3], len(PROMPT))
    assert [seen.rows(i).shape for i in range(2)] == [(len(PROMPT) + 1, SIZES.mlp)] * 2


def test_a_row_that_another_one_drowns_is_counted() -> None:
    x, weight = normal(4, 64), normal(8, 64, seed=1)
    x[0] *= 1e4
    # one zero code is no lost row
    x[0, 0] = 0.0
    down = quantised(x, weight, "int8")
    assert llama_down.measured(down, x, weight).lost == 0.75


CLAIMS = ["KL(f143) < KL(int8)", "KL(f143) < KL(int8-hadamard)", "error(int8-hadamard) < error(int8)"]  # fmt: skip


@pytest.mark.parametrize(
    ("kl", "error", "failed"),
    [
        ((0.3, 0.2, 0.1), (0.2, 0.1, 0.1), []),
        # the rotation's logits are not claimed
        ((0.3, 0.4, 0.1), (0.2, 0.1, 0.3), []),
        ((0.3, 0.1, 0.2), (0.2, 0.1, 0.1), CLAIMS[1:2]),
        ((0.3, 0.2, 0.1), (0.1, 0.1, 0.1), CLAIMS[2:]),
        ((0.3, 0.2, math.nan), (math.nan, 0.1, 0.1), CLAIMS),
    ],
)
def test_a_claim_that_fails_is_named(
    kl: tuple[float, ...], error: tuple[float, ...], failed: list[str]
) -> None:
    row = Row("", 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0, (Measured(0.0, 0.0, 0.0),))
    made = Study(
        tuple(
            dataclasses.replace(row, variant=v, kl=k, error=e)
            for v, k, e in zip(VARIANTS, kl, error, strict=True)
        )
    )
    assert made.lines()[4:] == [f"does not hold here: {claim}" for claim in failed]
    assert made.exit_code == (1 if failed else 0)


def test_packed_weights_are_refused(weights: Weights) -> None:
    with pytest.raises(CaseError, match="load the model in fp32"):
        study(SIZES, with_downs(weights, [lambda *, x: x[:, :64]] * 2), PROMPT, [3, 4])


@pytest.mark.parametrize("more", [["--check"], ["--negative-control", "stale-slot"], ["--seed", "1"]])  # fmt: skip
def test_the_study_is_a_run_of_its_own(more: list[str]) -> None:
    with pytest.raises(UsageError, match="--quantised-down is a run of its own"):
        smollm2.main(["Hello", "--quantised-down", *more])


def test_captured_down_inputs_are_measured_with_their_own_weights(tmp_path: Path) -> None:
    call = verified("w4_gemv", profile="kept", block="32", offsets="yes")
    draw = torch.Generator().manual_seed(5)
    assert captured_lines(SIZES, tmp_path) == []
    with Capture("a small model") as capture:
        # one of another size, which is no down projection
        for n, k in ((SIZES.width, SIZES.mlp), (SIZES.width, SIZES.width)):
            x = torch.randn(3, k, generator=draw).bfloat16()
            scales, offset = (torch.rand(n, k // 32, generator=draw).bfloat16() for _ in range(2))
            words = torch.randint(-(2**31), 2**31, (n, k // 8), generator=draw).int()
            call(x=x, words=words, scales=scales, offset=offset)
            if k == SIZES.mlp:
                q = (words[:, :, None] >> torch.arange(0, 32, 4)) & 15
                q = q.reshape(n, k // 32, 32).double()
                weight = (
                    (q - 8) * scales[..., None].double() + offset[..., None].double()
                ).reshape(n, k)
                right = {
                    v: relative_error(x.double(), weight.bfloat16().double(), v) for v in VARIANTS
                }
    capture.write(tmp_path)
    (line,) = captured_lines(SIZES, tmp_path)
    assert line.startswith(
        "captured: 3 rows of 1 calls; product's relative error, mean (worst): int8 "
    )
    found = [float(part.split()[1]) for part in line.split(": ")[2].split(", ")]
    # weights are read off as products with one, in bf16
    assert found == pytest.approx(list(right.values()), rel=0.01)
