"""Norm and rotation of queries and keys: small values by hand, the faults they refuse, agreement with transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from contract import formats
from contract.case import find, make_case, shape_from
from contract.inputs import typical_case
from contract.kernels.clients import transformers_rotary
from contract.kernels.qk_rows import qk_rows_torch
from contract.ranges import case_range

F8 = NDArray[np.float64]
# One token, one head: the mean square of q and k is 4, that of v is 16; the first pair turns by a right angle.
Q, K, V = [2.0, 2.0, -2.0, 2.0], [-2.0, 2.0, 2.0, 2.0], [4.0, -4.0, 4.0, 4.0]
GAINS = [1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 2.0, 1.0]


def refused(
    profile: str,
    outputs: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    **parameters: str,
) -> dict[str, int]:
    """How many of these outputs the contract refuses."""
    kernel = find("qk_rows", profile, parameters)
    given = {"q": [[Q]], "k": [[K]], "v": [[V]], "q_weight": GAINS[0], "k_weight": GAINS[1],
             "cos": [[0.0, 1.0]], "sin": [[1.0, 0.0]], **(inputs or {})}  # fmt: skip
    values = {o.name: np.asarray(given[o.name], np.float64) for o in kernel.inputs()}
    sizes = shape_from(kernel, {name: x.shape for name, x in values.items()})
    allowed = case_range(kernel, make_case(kernel, sizes, values, {"eps": 1e-12}))
    counts = {}
    for name, values_out in outputs.items():
        x = formats.round_to(
            np.asarray(values_out, np.float64).reshape(allowed[name].lo.shape), "bf16"
        )
        counts[name] = int(allowed[name].refused(formats.encode(x, "bf16")).sum())
    return counts


# (1, 2, -3, 4) and (-.5, 1, 2, 1): dims 0 and 2 turn by a right angle, (a, b) -> (-b, a)
RIGHT = {"q_out": [3.0, 2.0, 1.0, 4.0], "k_out": [-2.0, 1.0, -0.5, 1.0]}
UNIT = {"v_out": [1.0, -1.0, 1.0, 1.0]}


@pytest.mark.parametrize("profile", ["each_op", "two_step", "norm"])
def test_rows_are_normed_gained_and_turned(profile: str) -> None:
    assert refused(profile, RIGHT) == {"q_out": 0, "k_out": 0}
    # the gain after the rotation: (-b, ., a, .) of the normed row, gained in place
    turned_first = {"q_out": [1.0, 2.0, 3.0, 4.0], "k_out": [-0.5, 1.0, -2.0, 1.0]}
    assert refused(profile, turned_first) == {"q_out": 2, "k_out": 2}
    without = {"q_out": [1.0, 1.0, 1.0, 1.0], "k_out": [-1.0, 1.0, -1.0, 1.0]}
    assert refused(profile, without) == {"q_out": 3, "k_out": 2}
    # neighbours: dims 0 and 1 turn
    neighbours = {"q_out": [-2.0, 1.0, -3.0, 4.0], "k_out": [-1.0, -0.5, 2.0, 1.0]}
    assert refused(profile, neighbours) == {"q_out": 3, "k_out": 3}


@pytest.mark.parametrize("profile", ["each_op", "once"])
def test_values_are_normed_and_no_more(profile: str) -> None:
    assert refused(profile, {**RIGHT, **UNIT}, v_norm="yes") == {"q_out": 0, "k_out": 0, "v_out": 0}
    from_the_normed_key = {"v_out": np.array([-0.5, 1.0, 2.0, 1.0]) / 1.25}
    assert refused(profile, from_the_normed_key, {"v": [[K]]}, v_norm="yes") == {"v_out": 4}
    turned = {"v_out": [-1.0, -1.0, 1.0, 1.0]}
    assert refused(profile, turned, v_norm="yes") == {"v_out": 1}
    assert refused(profile, {"v_out": V}, v_norm="yes") == {"v_out": 4}


def test_the_gain_may_be_one_plus_w() -> None:
    inputs = {"q_weight": [0.0, 1.0, 2.0, 3.0], "k_weight": [-0.5, 0.0, 1.0, 0.0]}
    assert refused("each_op", RIGHT, inputs, gain="1+w") == {"q_out": 0, "k_out": 0}
    assert refused("each_op", RIGHT, inputs)["q_out"] == 4


def test_each_head_has_its_own_mean_square() -> None:
    """Two heads, one twice the other: both are normed to 1; together they would be 0.63 and 1.26."""
    q = np.array([[[1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]]])
    inputs = {"q": q, "q_weight": np.ones(4), "cos": [[1.0, 1.0]], "sin": [[0.0, 0.0]]}
    assert refused("each_op", {"q_out": np.ones((1, 2, 4))}, inputs) == {"q_out": 0}
    together = q / np.sqrt(2.5)
    assert refused("each_op", {"q_out": together}, inputs) == {"q_out": 8}


def test_the_dims_behind_the_rotary_ones_are_normed() -> None:
    # a head of 6 dims, of which 4 turn by a right angle: (a, b) -> (-b, a)
    six = {name: [[[*row, 4.0, -4.0]]] for name, row in (("q", Q), ("k", K))}
    tables = {"cos": [[0.0, 0.0]], "sin": [[1.0, 1.0]]}
    inputs = {**six, **tables, "q_weight": np.ones(6), "k_weight": np.ones(6)}
    root = np.sqrt(48 / 6)
    turned = np.array([2.0, -2.0, 2.0, 2.0]) / root
    right, passed = [*turned, 4.0 / root, -4.0 / root], [*turned, 4.0, -4.0]
    assert refused("norm", {"q_out": right}, inputs) == {"q_out": 0}
    assert refused("norm", {"q_out": passed}, inputs) == {"q_out": 2}


def test_bf16_outputs_are_nearly_all_one_value() -> None:
    for profile, parameters in (
        ("each_op", {}), ("two_step", {}), ("norm", {}), ("once", {"v_norm": "yes"}),
    ):  # fmt: skip
        kernel = find("qk_rows", profile, parameters)
        shape = {"tokens": 4, "heads": 2, "kv_heads": 1, "d": 128, "half": 64}
        allowed = case_range(kernel, typical_case(kernel, shape, 0))
        shares = [allowed[o.name].one_value().mean() for o in kernel.outputs()]
        assert min(shares) > 0.95, (profile, shares)


CLIENTS = [
    ("qwen3_rows", "two_step", "w", False),
    ("gemma4_rows", "each_op", "w", True),
    ("qwen3_5_rows", "each_op", "1+w", False),
]


@pytest.mark.parametrize(("client", "profile", "gain", "with_v"), CLIENTS)
def test_the_torch_kernel_is_transformers_bit_for_bit(
    client: str, profile: str, gain: str, with_v: bool
) -> None:
    pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 64, 2, 64, generator=generator).bfloat16()
    q_weight, k_weight = torch.randn(2, 64, generator=generator).bfloat16()
    angles = 100 * torch.randn(64, 16, generator=generator)
    operands = {"q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight,
                "cos": angles.cos().bfloat16(), "sin": angles.sin().bfloat16(), "eps": 1e-6,
                **({"v": v} if with_v else {})}  # fmt: skip
    theirs = getattr(transformers_rotary, client)(**operands)
    ours: Any = qk_rows_torch(**operands, gain=gain, profile=profile)
    other: Any = qk_rows_torch(
        **operands, gain=gain, profile="each_op" if profile == "two_step" else "two_step"
    )
    differ = sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in zip(theirs, ours, strict=True))  # fmt: skip
    moved = sum(int((a.view(torch.int16) != b.view(torch.int16)).sum()) for a, b in zip(theirs, other, strict=True))  # fmt: skip
    # Gemma 4 takes the inverse root as a power: within the 2 ulps of rsqrt, not always its bits
    assert differ <= (8 if client == "gemma4_rows" else 0)
    assert moved > 1000
