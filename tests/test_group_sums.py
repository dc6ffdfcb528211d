"""Group sums: the tree, bit for bit."""

from __future__ import annotations

import numpy as np
import torch

from contract.case import Kernel, make_case
from contract.kernels.group_sums import group_sums, group_sums_torch
from contract.ranges import case_range

BIG, ONE = 2.0**24, 1.0


def allowed(row: object) -> list[list[float]]:
    """The one value that the contract allows for each group."""
    kernel = Kernel(group_sums, {}, group_sums.profile("float32"))
    x = np.asarray([row], np.float64)
    case = make_case(kernel, {"rows": 1, "d": x.size, "groups": x.size // 64}, {"x": x})
    out = case_range(kernel, case)["sums"]
    assert bool(out.one_value().all())
    ends = [out.ends((0, group))[0] for group in range(x.size // 64)]
    return np.array([ends], np.uint32).view(np.float32).tolist()  # type: ignore[no-any-return]


def test_neighbours_are_added_first() -> None:
    # (2^24 + 1) + (1 + 0) rounds twice to even, (1 + 1) + 2^24 does not lose the 2
    assert allowed([BIG, ONE, ONE, 0.0] + [0.0] * 60) == [[2.0**24]]
    assert allowed([ONE, ONE, BIG, 0.0] + [0.0] * 60) == [[2.0**24 + 2]]


def test_specials_follow_ieee_additions() -> None:
    inf = float("inf")
    assert allowed([inf] + [ONE] * 63) == [[inf]]
    assert np.signbit(allowed([-0.0] * 64)[0][0])
    assert allowed([2.0**-149] * 64) == [[2.0**-143]]


def test_torch_kernel_gives_the_same_bits() -> None:
    x = np.random.default_rng(0).standard_normal(640).astype(np.float32)
    assert group_sums_torch(torch.from_numpy(x[None])).tolist() == allowed(x)
    assert torch.from_numpy(x[None]).unflatten(-1, (-1, 64)).sum(-1).tolist() != allowed(x)
