"""Patch embeddings: literal roundings, layouts, torch's convolution and linear, the vacuous declaration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import Kernel, find, make_case
from contract.inputs import exact_cases
from contract.kernels.patch_embed import patch_embed_torch
from contract.ranges import case_range

LEFT_OUT = {"both": (), "position": ("offset",), "bias": ("table", "places")}


def kernel_of(adds: str, profile: str = "inside") -> Kernel:
    return find("patch_embed", profile, {"adds": adds})


def allowed(adds: str, profile: str = "inside", options: Any = None, **values: Any) -> Any:
    """The range of a case; what `adds` leaves out is dropped."""
    kernel = kernel_of(adds, profile)
    rows, k = np.shape(values["patches"])
    shape = {
        "rows": rows,
        "k": k,
        "n": len(values["weight"]),
        "entries": len(values.get("table", [0])),
        "axes": np.shape(values.get("places", [[0]]))[1],
    }
    given = {name: x for name, x in values.items() if name not in LEFT_OUT[adds]}
    return case_range(kernel, make_case(kernel, shape, given), options)["out"]


def refused(out: Any, values: Any) -> int:
    values = np.broadcast_to(np.asarray(values, np.float64), out.lo.shape)
    return int(out.refused(formats.encode(formats.round_to(values, "bf16"), "bf16")).sum())


# 256 + 1 = 257, a tie that bf16 rounds to 256; with a bias of 1 inside, 258; 256 + 1 outside again 257 -> 256
ONE: dict[str, Any] = {"patches": [[256.0, 1.0]], "weight": [[1.0, 1.0]], "offset": [1.0]}


def test_the_bias_is_inside_or_outside_the_rounding() -> None:
    position: dict[str, Any] = {"table": [[0.0]], "places": [[0]]}
    for profile, right, other in (("inside", 258.0, 256.0), ("outside", 256.0, 258.0)):
        out = allowed("both", profile, **ONE, **position)
        assert (refused(out, right), refused(out, other)) == (0, 1)
    assert refused(allowed("bias", **ONE), 258.0) == 0
    assert refused(allowed("bias", **ONE), 256.0) == 1


def test_the_position_is_added_to_the_rounded_row() -> None:
    # y = 258; p = 1: 259, a tie, -> 260; without the rounding of y (257 + 1 = 258 in `position`) 258
    out = allowed("both", **ONE, table=[[5.0], [1.0]], places=[[1]])
    assert (refused(out, 260.0), refused(out, 258.0)) == (0, 1)
    unbiased: dict[str, Any] = {"patches": ONE["patches"], "weight": ONE["weight"]}
    out = allowed("position", **unbiased, table=[[5.0], [1.0]], places=[[1]])
    # R(257) + 1 = 257 -> 256, and 257 + 1 = 258
    assert (refused(out, 256.0), refused(out, 258.0)) == (0, 1)


def test_two_entries_are_added_to_each_other_first() -> None:
    given: dict[str, Any] = {
        "patches": [[256.0]],
        "weight": [[1.0]],
        "table": [[1.0], [1.0]],
        "places": [[0, 1]],
    }
    # 256 + 2, and one by one 256 + 1 -> 256, twice
    out = allowed("position", **given)
    assert (refused(out, 258.0), refused(out, 256.0)) == (0, 1)


def test_the_columns_of_patch_and_weight_are_in_one_order() -> None:
    rng = np.random.default_rng(6)
    patch = rng.integers(-8, 8, (2, 2, 2, 3)).astype(np.float64)
    weight = rng.integers(-8, 8, (4, 12)).astype(np.float64)
    offset = np.zeros(4)
    last = patch.reshape(2, 12)
    first = patch.transpose(0, 3, 1, 2).reshape(2, 12)
    out = allowed("bias", patches=last, weight=weight, offset=offset)
    assert refused(out, last @ weight.T) == 0
    assert refused(out, first @ weight.T) > 4


def rounded(rng: Any, *shape: int) -> Any:
    return formats.round_to(rng.standard_normal(shape), "bf16")


def test_torch_convolution_and_linear_are_allowed_inside() -> None:
    rng = np.random.default_rng(7)
    patches, weight, offset = rounded(rng, 9, 75), rounded(rng, 6, 75), rounded(rng, 6)
    x, w, b = (torch.from_numpy(a).bfloat16() for a in (patches, weight, offset))
    linear = torch.nn.functional.linear(x, w, b)
    image = x.reshape(3, 3, 3, 5, 5).permute(2, 0, 3, 1, 4).reshape(1, 3, 15, 15)
    convolved = torch.nn.functional.conv2d(image, w.reshape(6, 3, 5, 5), b, stride=5)
    inside = allowed("bias", patches=patches, weight=weight, offset=offset)
    for out in (linear, convolved.reshape(6, 9).T):
        assert refused(inside, out.double().numpy()) == 0
    placed = {"table": np.zeros((1, 6)), "places": np.zeros((9, 1))}
    outside = allowed("both", "outside", patches=patches, weight=weight, offset=offset, **placed)
    assert refused(outside, linear.double().numpy()) > 0


@pytest.mark.parametrize(
    ("adds", "profile"),
    [("both", "inside"), ("both", "outside"), ("position", "inside"), ("bias", "inside")],
)
def test_the_torch_kernel_gives_an_exact_rows_value(adds: str, profile: str) -> None:
    found, candidates = exact_cases(kernel_of(adds, profile), 0)
    # a sum of zero, whose sign is free, is one value only under the addition of a position
    assert sum(case.shape["rows"] for case, _ in found) >= candidates - 2
    for case, ranges in found:
        given = {
            name: torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16)
            if bits.dtype == np.uint16
            else torch.from_numpy(bits.view(np.int32).copy())
            for name, bits in case.operands.items()
        }
        out = patch_embed_torch(**given, profile=profile).view(torch.int16).numpy()
        assert not ranges[0]["out"].refused(out.view(np.uint16)).any()


def test_without_a_bias_nothing_tells_where_it_is_added() -> None:
    rng = np.random.default_rng(8)
    given = {"patches": rounded(rng, 64, 33), "weight": rounded(rng, 16, 33)}
    given |= {"table": rounded(rng, 4, 16), "places": rng.integers(0, 4, (64, 1))}
    inside, outside = (
        allowed("position", options={"bias": bias}, **given) for bias in ("inside", "outside")
    )
    assert (inside.lo == outside.lo).all()
    assert (inside.hi == outside.hi).all()
