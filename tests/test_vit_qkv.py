"""Norms and rotation of a vision tower: literal quarter turns, transformers' operators, the pairs and axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import find, make_case
from contract.kernels.vit_qkv import vit_qkv_torch
from contract.ranges import case_range


def allowed(profile: str, **values: Any) -> Any:
    """The ranges of a case at eps 1e-6."""
    rows, heads, d = np.shape(values["q"])
    case = make_case(
        find("vit_qkv", profile), {"rows": rows, "heads": heads, "d": d}, values, {"eps": 1e-6}
    )
    return case_range(find("vit_qkv", profile), case)


def refused(out: Any, values: Any) -> int:
    values = np.broadcast_to(np.asarray(values, np.float64), out.lo.shape)
    return int(out.refused(formats.encode(formats.round_to(values, "bf16"), "bf16")).sum())


#: one patch, one head of eight: +-1 has the norm 1 but for eps, so that gains decide the values
SIGNS = np.array([[[1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, 1.0]]])
GAIN = np.arange(1.0, 9.0)
NORMED = (SIGNS * GAIN)[0, 0]
GIVEN = {"q": SIGNS, "k": -SIGNS, "v": 4 * SIGNS, "q_weight": GAIN, "k_weight": 2 * GAIN}


def angles(column: float, row: float) -> dict[str, Any]:
    """Tables of a patch whose angles are the same at both frequencies, in quarter turns."""
    turns = np.array([[column] * 4 + [row] * 4]) * np.pi / 2
    return {"cos": np.rint(np.cos(turns)), "sin": np.rint(np.sin(turns))}


@pytest.mark.parametrize("profile", ["each_step", "two_step"])
def test_each_half_of_a_head_turns_by_its_own_axis(profile: str) -> None:
    out = allowed(profile, **GIVEN, **angles(1, 0))
    a, b, c, d, *rest = NORMED
    right = [-c, -d, a, b, *rest]
    assert refused(out["q_out"], right) == 0
    assert refused(out["k_out"], -2 * np.array(right)) == 0
    assert refused(out["v_out"], SIGNS) == 0
    by_row = [a, b, c, d, -rest[2], -rest[3], rest[0], rest[1]]
    assert refused(out["q_out"], by_row) == 8
    assert refused(allowed(profile, **GIVEN, **angles(0, 1))["q_out"], by_row) == 0


def test_other_pairs_and_the_other_sign_are_refused() -> None:
    out = allowed("each_step", **GIVEN, **angles(1, 1))["q_out"]
    a, b, c, d, e, f, g, h = NORMED
    assert refused(out, [-c, -d, a, b, -g, -h, e, f]) == 0
    assert refused(out, [c, d, -a, -b, g, h, -e, -f]) == 8
    assert refused(out, [-e, -f, -g, -h, a, b, c, d]) > 4
    assert refused(out, [-b, a, -d, c, -f, e, -h, g]) > 4


def test_products_are_rounded_before_their_sum_or_not() -> None:
    # 5 * 0.859375 = 4.296875 -> 4.3125
    cos, sin = 0.859375, 0.5
    given = {name: x[..., :4] for name, x in GIVEN.items() if name in ("q", "k", "v")}
    ones = np.abs(given["q"])
    gain = np.array([5.0, 1.0, 1.0, 1.0])
    tables = {"cos": np.full((1, 4), cos), "sin": np.full((1, 4), sin)}
    weights = {"q_weight": gain, "k_weight": gain}
    for profile, right, other in (
        # 4.3125 - 0.5 = 3.8125 and 4.296875 - 0.5 = 3.796875: both are bf16 values
        ("each_step", 3.8125, 3.796875),
        ("two_step", 3.796875, 3.8125),
    ):
        out = allowed(profile, q=ones, k=ones, v=ones, **weights, **tables)["q_out"]
        rest = [5 * sin + cos, cos - sin, cos + sin]
        assert refused(out, [[[right, *rest]]]) == 0
        assert refused(out, [[[other, *rest]]]) == 1


def bf16(rng: Any, *shape: int) -> Any:
    return formats.round_to(rng.standard_normal(shape), "bf16")


def test_transformers_attention_steps_are_allowed() -> None:
    module = pytest.importorskip("transformers.models.gemma4.modeling_gemma4")
    rng = np.random.default_rng(12)
    rows, heads, d = 6, 3, 72
    values = {name: bf16(rng, rows, heads, d) for name in ("q", "k", "v")}
    values |= {"q_weight": 1 + bf16(rng, d) / 4, "k_weight": 1 + bf16(rng, d) / 4}
    values = {name: formats.round_to(x, "bf16") for name, x in values.items()}
    places = torch.tensor([[c, r] for r in range(2) for c in range(3)])[None]
    freqs = places[..., None].float() * (100.0 ** (-torch.arange(0, 36, 2) / 36))
    angle = torch.cat([freqs[:, :, 0]] * 2 + [freqs[:, :, 1]] * 2, -1)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    out = allowed("each_step", **values, cos=cos[0].double().numpy(), sin=sin[0].double().numpy())
    for name in ("q", "k", "v"):
        norm = module.Gemma4RMSNorm(d, 1e-6, with_scale=name != "v").bfloat16()
        x = torch.from_numpy(values[name]).bfloat16()[None]
        with torch.no_grad():
            if name != "v":
                norm.weight.copy_(torch.from_numpy(values[f"{name}_weight"]))
            y = norm(x)
            if name != "v":
                y = module.apply_multidimensional_rope(y, cos, sin, places)
        got = y[0].double().numpy()
        assert refused(out[f"{name}_out"], got) == 0
        assert refused(out[f"{name}_out"], got[::-1]) > 1000


@pytest.mark.parametrize("profile", ["each_step", "two_step"])
def test_the_torch_kernel_keeps_zeros_and_specials_where_they_are(profile: str) -> None:
    rng = np.random.default_rng(13)
    values = {name: bf16(rng, 4, 2, 8) for name in ("q", "k", "v")}
    values["q"][0, 0, 0], values["k"][1, 1, 3], values["v"][2, 0] = np.nan, np.inf, 0.0
    values |= {name: bf16(rng, 4, 8) for name in ("cos", "sin")}
    values |= {name: bf16(rng, 8) for name in ("q_weight", "k_weight")}
    given = {name: torch.from_numpy(x).bfloat16() for name, x in values.items()}
    out = vit_qkv_torch(**given, eps=1e-6, profile=profile)
    ranges = allowed(profile, **values)
    for name, y in zip(("q_out", "k_out", "v_out"), out, strict=True):
        assert refused(ranges[name], y.double().numpy()) == 0
    assert torch.isnan(out[0]).sum() == 8
    assert not out[2][2, 0].any()
