"""Folded scales: literal channels, a layer that computes what it did, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from literal import refused

from contract.kernels.smooth_fold import ln_equalise_torch, smooth_fold_torch

# peaks 16 and 1/4: the scale is 8; 4 and 4: 1; nothing active: 1e-5; a negative weight is the largest
WEIGHT = [[0.25, -1.0, 0.5, 0.125], [-0.125, 4.0, 0.25, -1.0]]
PEAKS = [16.0, 4.0, 0.0, 1.0]
GAIN = [0.5, -0.25, 3.0, 1.0]
LEAST = float(np.float32(1e-5))
SCALE = [8.0, 1.0, LEAST, 1.0]
NEW_WEIGHT = np.array(WEIGHT) * SCALE


def judged(answers: dict[str, Any], profile: str = "float32", form: str = "1+w") -> dict[str, int]:
    inputs = {"weight": WEIGHT, "gain": GAIN, "peaks": PEAKS}
    return refused("smooth_fold", inputs, answers, profile=profile, form=form)


def test_scales_by_hand() -> None:
    plain = np.array(GAIN) / SCALE
    shifted = (1.0 + np.array(GAIN)) / SCALE - 1.0
    for form, gain in (("w", plain), ("1+w", shifted)):
        right: dict[str, Any] = {"scale": SCALE, "new_gain": gain, "new_weight": NEW_WEIGHT}
        assert set(judged(right, form=form).values()) == {0}
        given = [torch.tensor(x) for x in (WEIGHT, GAIN, PEAKS)]
        found = smooth_fold_torch(*given, form=form)
        for value, name in zip(found, right, strict=True):
            np.testing.assert_allclose(value.numpy(), right[name], rtol=2.0**-23)
    # each side alone, the other way round, and the other convention
    other = {"scale": SCALE, "new_gain": GAIN, "new_weight": NEW_WEIGHT}
    assert judged(other)["new_gain"] == 2
    assert judged({**other, "new_weight": WEIGHT})["new_weight"] == 4
    assert judged({**other, "new_weight": np.array(WEIGHT) / SCALE})["new_weight"] == 4
    assert judged({**other, "new_gain": plain})["new_gain"] == 2
    assert judged({**other, "scale": np.square(SCALE)})["scale"] == 2


def test_stored_weights_are_rounded_once() -> None:
    # 1.5 / 1.0078125 - 1 and 129 / 128 times 131 / 128, both beside bf16's grid
    inputs = {"weight": [[129.0 / 128.0], [1.5]], "gain": [0.5], "peaks": [1.5]}
    right = {"scale": 1.0, "new_gain": 0.5, "new_weight": inputs["weight"]}
    assert set(refused("smooth_fold", inputs, right, profile="once").values()) == {0}
    inputs["peaks"] = [3.0]
    # sqrt(3) / sqrt(1.5) in fp32 is 1.4142135, times 1.0078125 is 1.4252621: bf16 has 1.421875 and 1.4296875
    scale = np.float32(np.sqrt(np.float32(3.0))) / np.float32(np.sqrt(np.float32(1.5)))
    new_gain = 1.5 / float(scale) - 1.0
    stored = {"scale": scale, "new_gain": new_gain, "new_weight": [[1.421875], [2.125]]}
    assert set(refused("smooth_fold", inputs, stored, profile="once").values()) == {0}
    stored["new_weight"] = [[1.4296875], [2.125]]
    assert refused("smooth_fold", inputs, stored, profile="once")["new_weight"] == 1


def layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 64, generator=generator) * torch.logspace(-1, 1.5, 64)
    return x, torch.randn(96, 64, generator=generator), 0.1 * torch.randn(64, generator=generator)


def test_a_norm_and_its_layers_compute_what_they_did() -> None:
    x, weight, gain = layer()
    normed = torch.nn.functional.rms_norm(x, (64,))
    before = (normed * (1 + gain)) @ weight.T
    peaks = (normed * (1 + gain)).abs().amax(0)
    scale, new_gain, new_weight = smooth_fold_torch(weight, gain, peaks, form="1+w")
    after = (normed * (1 + new_gain)) @ new_weight.T
    assert (after - before).abs().max() <= 1e-5 * before.abs().max()
    # what is quantised lies closer together: both sides have the same peaks
    np.testing.assert_allclose(peaks / scale, (weight.abs().amax(0) * scale).numpy(), rtol=1e-5)
    one_side = (normed * (1 + gain)) @ new_weight.T
    assert (one_side - before).abs().max() > 0.1 * before.abs().max()


def test_a_layer_norm_and_its_layer_compute_what_they_did() -> None:
    x, weight, bias = layer()
    gain = 1 + bias.flip(0)

    def computed(g: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (64,), g, b) @ w.T

    before = computed(gain, bias, weight)
    peaks = torch.logspace(-3, 3, 64)
    scale, new_gain, new_bias, new_weight = ln_equalise_torch(weight, gain, bias, peaks, bound=4.0)
    after = computed(new_gain, new_bias, new_weight)
    assert (after - before).abs().max() <= 1e-5 * before.abs().max()
    assert (computed(new_gain, bias, new_weight) - before).abs().max() > 0.01 * before.abs().max()
    assert float(scale.min()) == 0.25
    assert float(scale.max()) == 4.0


def test_bounded_scales_by_hand() -> None:
    inputs = {
        "weight": [[0.25, 1.0, 0.5, 0.0, 1.0]],
        "gain": [1.0] * 5,
        "bias": [0.5] * 5,
        "peaks": [100.0, 4.0, 0.0, 1.0, 2.0**-8],
    }
    # 20 and 1/16 are held; nothing active, and nothing that reads: 1
    scale = np.array([4.0, 2.0, 1.0, 1.0, 0.25])
    right = {
        "scale": scale,
        "new_gain": 1.0 / scale,
        "new_bias": 0.5 / scale,
        "new_weight": np.array(inputs["weight"]) * scale,
    }
    how: dict[str, Any] = {"profile": "float32", "scalars": {"bound": 4.0}}
    assert set(refused("ln_equalise", inputs, right, **how).values()) == {0}
    free = {**right, "scale": [20.0, 2.0, 1.0, 1.0, 2.0**-4]}
    assert refused("ln_equalise", inputs, free, **how)["scale"] == 2
    assert refused("ln_equalise", inputs, {**right, "new_bias": [0.5] * 5}, **how)["new_bias"] == 3
    third = {"profile": "float32", "scalars": {"bound": 3.0}}
    held = {**right, "scale": np.array([3.0, 2.0, 1.0, 1.0, 1 / 3], np.float32)}
    assert refused("ln_equalise", inputs, held, **third)["scale"] == 0


@pytest.mark.parametrize("bound", [0.5, float("nan")])
def test_a_bound_is_at_least_one(bound: float) -> None:
    parts = [torch.ones(1, 1), *(torch.ones(1) for _ in range(3))]
    with pytest.raises(ValueError, match="at least 1"):
        ln_equalise_torch(*parts, bound=bound)
