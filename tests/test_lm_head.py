"""Output head: literal rows, the position that is read, and what exact rows cover."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from contract import formats
from contract.case import find, make_case
from contract.engines.placement import place, to_bits
from contract.errors import CaseError
from contract.inputs import exact_cases
from contract.kernels.lm_head import lm_head_torch
from contract.kernels.products import CHUNK
from contract.orders import Chunks
from contract.ranges import case_range

NAN = np.nan
#: two sequences of three positions; the second one's padding holds NaN
X = [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[7.0, 8.0], [NAN, NAN], [NAN, NAN]]]
W = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [100.0, 0.75]]


def judged(out: ArrayLike, last: list[int], profile: str = "once") -> int:
    """How many logits are not allowed."""
    kernel = find("lm_head", profile)
    shape = {"rows": 2, "t": 3, "k": 2, "n": 4}
    case = make_case(
        kernel, shape, {"x": np.array(X), "weight": np.array(W), "last": np.array(last)}
    )
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64), fmt), fmt)
    return int(case_range(kernel, case)["out"].refused(bits).sum())


def logits(first: int, second: int) -> Any:
    x, w = np.array(X), np.array(W)
    return np.stack([x[0, first] @ w.T, x[1, second] @ w.T])


def test_the_last_kept_position_of_each_sequence_is_read() -> None:
    right = [[5.0, 6.0, 11.0, 504.5], [7.0, 8.0, 15.0, 706.0]]
    assert judged(right, [2, 0]) == 0
    # the first position, the one before, and the end of the padding
    assert judged(logits(0, 0), [2, 0]) == 4
    assert judged(logits(1, 0), [2, 0]) == 4
    assert judged(logits(2, 2), [2, 0]) == 4
    # one sequence's position for both
    assert judged(logits(0, 0), [0, 0]) == 0


def test_fp32_logits_are_not_rounded_to_bf16() -> None:
    out = logits(1, 0)
    # 303 is no bf16 value: it is stored as 304
    out[0, 3] = 304.0
    assert judged(out, [1, 0], "once") == 0
    assert judged(out, [1, 0], "fp32_logits") == 1


def test_a_position_outside_is_refused() -> None:
    with pytest.raises(CaseError, match="last"):
        judged(logits(0, 0), [3, 0])
    x = torch.zeros((2, 3, 4), dtype=torch.bfloat16)
    for bad in (3, -1):
        with pytest.raises(ValueError, match="positions are 0 to 2"):
            lm_head_torch(x, x[0], torch.tensor([bad, 0], dtype=torch.int32), profile="once")


@pytest.mark.parametrize("profile", ["once", "fp32_logits"])
def test_exact_rows_have_nan_beside_the_row_and_every_position(profile: str) -> None:
    kernel = find("lm_head", profile)
    found, candidates = exact_cases(kernel, 0)
    assert sum(case.rows(kernel) for case, _ in found) > 0.9 * candidates
    case = found[0][0]
    x, last = (case.value(kernel, o) for o in (kernel.inputs()[0], kernel.inputs()[2]))
    assert set(last.ravel()) == {0, 1, 2, 3}
    assert np.isnan(x).any()
    assert np.isfinite(x[np.arange(len(x)), last.astype(int)]).all()


@pytest.mark.parametrize("profile", ["once", "fp32_logits"])
@pytest.mark.parametrize("k", [1, 257])
def test_the_torch_kernel_is_allowed(profile: str, k: int) -> None:
    kernel = find("lm_head", profile)
    rng = np.random.default_rng(k)
    values = {
        "x": rng.standard_normal((6, 5, k)),
        "weight": rng.standard_normal((9, k)),
        "last": rng.integers(0, 5, 6),
    }
    case = make_case(kernel, {"rows": 6, "t": 5, "k": k, "n": 9}, values)
    placed: dict[str, Any] = {
        o.name: place(o.name, case.operands[o.name], kernel.format(o), "strided", "nan").tensor
        for o in kernel.inputs()
    }
    bits = to_bits(lm_head_torch(**placed, profile=profile), kernel.format(kernel.outputs()[0]))
    allowed = case_range(kernel, case, depths={"dot": Chunks(CHUNK)})["out"]
    assert not allowed.refused(bits).any()
