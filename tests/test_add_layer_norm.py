"""Sum and layer norm: which row the norm reads, literal rows, torch's own operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from literal import refused

from contract.formats import round_to
from contract.kernels.add_layer_norm import add_layer_norm_torch

EPS = 1e-6
# sums 257 and -257 are ties that are stored as 256; the others are 3 and -3
X = [[256.0, -256.0, 1.0, -1.0]]
H = [[1.0, -1.0, 2.0, -2.0]]
ONES, ZEROS = [1.0] * 4, [0.0] * 4
TOTAL = np.array([[256.0, -256.0, 3.0, -3.0]])
SUM = np.array([[257.0, -257.0, 3.0, -3.0]])


def norm(row: Any, eps: float = EPS) -> Any:
    return (row - row.mean(-1, keepdims=True)) / np.sqrt(row.var(-1, keepdims=True) + eps)


def judged(profile: str, total: Any, out: Any, **rows: Any) -> dict[str, int]:
    inputs = {"x": X, "residual": H, "weight": ONES, "bias": ZEROS, **rows}
    scalars = {"eps": EPS}
    answers = {"total": total, "out": out}
    return refused("add_layer_norm", inputs, answers, profile=profile, scalars=scalars)


@pytest.mark.parametrize(("profile", "read"), [("stored", TOTAL), ("fused", SUM)])
def test_the_norm_reads_the_row_that_the_profile_names(profile: str, read: Any) -> None:
    # 3 / rms: 0.01657 of the stored row, 0.01651 of the sum: neighbours in bf16
    assert judged(profile, TOTAL, norm(read)) == {"total": 0, "out": 0}
    other = SUM if profile == "stored" else TOTAL
    assert judged(profile, TOTAL, norm(other))["out"] == 2
    assert judged(profile, SUM, norm(read)) == {"total": 0, "out": 0}
    assert judged(profile, np.array([[258.0, -258.0, 3.0, -3.0]]), norm(read))["total"] == 2
    rows = [torch.tensor(v).bfloat16() for v in (X, H, ONES, ZEROS)]
    total, out = add_layer_norm_torch(*rows, eps=EPS, profile=profile)
    assert total.tolist() == TOTAL.tolist()
    assert judged(profile, total.double(), out.double()) == {"total": 0, "out": 0}


def test_faulty_rows_are_refused() -> None:
    right = norm(TOTAL)
    assert judged("stored", H, right)["total"] == 4
    assert judged("stored", TOTAL, norm(np.array(X)))["out"] == 2
    assert judged("stored", TOTAL, norm(np.array(H)))["out"] == 4
    assert judged("stored", right, TOTAL) == {"total": 4, "out": 4}
    assert judged("stored", TOTAL, right * 2.0)["out"] == 4


@pytest.mark.parametrize("profile", ["stored", "each_op"])
def test_operators_of_torch_are_allowed(profile: str) -> None:
    rng = np.random.default_rng(2)
    values = [3.0 * rng.standard_normal((16, 200)) for _ in range(2)]
    values += [1.0 + 0.25 * rng.standard_normal(200), 0.25 * rng.standard_normal(200)]
    x, h, w, b = (torch.from_numpy(round_to(v, "bf16")).bfloat16() for v in values)
    rows = {"x": x.double(), "residual": h.double(), "weight": w.double(), "bias": b.double()}
    total = x + h
    if profile == "stored":
        out = torch.nn.functional.layer_norm(total.float(), (200,), w.float(), b.float(), EPS)
    else:
        wide = total.float() - total.float().mean(-1, keepdim=True)
        out = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).bfloat16() * w + b
    good = judged(profile, total.double(), out.bfloat16().double(), **rows)
    assert good == {"total": 0, "out": 0}
    other = "each_op" if profile == "stored" else "stored"
    assert judged(other, total.double(), out.bfloat16().double(), **rows)["out"] > 100
