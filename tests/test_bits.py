"""Two digests of a check: equal for the same bits of the same inputs, and not for others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.bits import Digests, case_digest
from contract.case import Kernel, find, make_case
from contract.config import read_config
from contract.suites import load

Run = Callable[..., tuple[int, str, str]]
SHAPE = {"rows": 2, "d": 2}
ONES, ZEROS = np.ones((2, 2)), np.zeros((2, 2))


@pytest.fixture
def kernel(project: Path) -> Kernel:
    load(read_config())
    return find("scaled", "two_step")


def digest(kernel: Kernel, scale: float = 1.25, x: Any = ONES, y: Any = ZEROS) -> str:
    operands = {"x": x, "y": y}
    return case_digest(kernel, make_case(kernel, SHAPE, operands, {"scale": scale}))


def test_inputs_differ_by_value_place_scalar_and_sign_of_zero(kernel: Kernel) -> None:
    one = digest(kernel)
    assert digest(kernel) == one
    other = [digest(kernel, 0.75), digest(kernel, x=ZEROS, y=ONES), digest(kernel, y=-ZEROS)]
    assert len({one, *other}) == 4


def outputs(kernel: Kernel, bits: list[int], launch: str = "plain") -> dict[str, str]:
    found = Digests()
    found.add(kernel, "00", launch, {"out": np.array(bits, np.uint16)})
    return found.as_json()


def test_outputs_differ_by_bits_and_a_nan_by_none(kernel: Kernel) -> None:
    one = outputs(kernel, [0x3F80, 0x7FC0])
    assert outputs(kernel, [0x3F80, 0xFFC1]) == one
    moved = outputs(kernel, [0x3F81, 0x7FC0])
    assert moved["outputs"] != one["outputs"]
    assert moved["inputs"] == one["inputs"]
    assert outputs(kernel, [0x3F80, 0x7FC0], "strided")["inputs"] != one["inputs"]
    assert outputs(kernel, [0x0000])["outputs"] != outputs(kernel, [0x8000])["outputs"]
    assert Digests().as_json() == {}


def test_a_stage_that_is_kept_back_is_told_from_one_that_is_shown(kernel: Kernel) -> None:
    hidden = Digests()
    hidden.add(kernel, "00", "plain", {})
    assert hidden.as_json()["outputs"] != Digests().as_json().get("outputs")
    assert hidden.as_json() != outputs(kernel, [])


def test_a_run_reports_them_for_implementations_whose_bits_stay(
    project: Path, contract_run: Run
) -> None:
    path = project / "contracts" / "scaled.py"
    path.write_text(path.read_text() + REPEATED)
    assert contract_run("scaled", "-k", "not auto", "--json", "a.json")[0] == 0
    checks = {c["id"]: c for c in json.loads(Path("a.json").read_text())["checks"]}
    ours = "scaled/two_step/torch"
    for gate in ("shapes", "stress", "exact", "bounds"):
        assert set(checks[f"{ours}/{gate}"]["bits"]) == {"inputs", "outputs"}
        # the same kernel of the same inputs, written otherwise
        assert checks["scaled/two_step/other/" + gate]["bits"] == checks[f"{ours}/{gate}"]["bits"]
        assert "bits" not in checks[f"scaled/two_step/moving/{gate}"]
    assert "bits" not in checks["scaled/two_step/red.rounds_once"]
    assert "bits" not in checks["scaled/two_step/reference"]


REPEATED = """

@contract.implementation("scaled", name="other", sign="plus")
def other(x: Any, y: Any, scale: float) -> Any:
    return y + scale * x


@contract.implementation("scaled", name="moving", sign="plus", repeatable=False)
def moving(x: Any, y: Any, scale: float) -> Any:
    return y + scale * x
"""
