"""`contract list` and `contract show` tell everything that is declared."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract import registry
from contract.declare import Contract, Profile, Scalar, output, tensor
from contract.errors import UsageError
from contract.listing import list_json, list_lines, markdown_lines, show_lines


def reference(r: Any, x: Any, eps: float) -> Any:
    """Twice x."""
    return r.round("out", x + x)


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of one contract, one implementation and one control."""
    for name in ("_contracts", "_implementations", "_controls"):
        monkeypatch.setattr(registry, name, {})
    contract = Contract(
        name="double",
        family="sums",
        reference=reference,
        scalars=(Scalar("eps", (0.5, 2.0)),),
        operands=(
            tensor("x", "rows d"),
            tensor("w", "d", when={"gain": ("w",)}),
            tensor("z", "d", "uint4", finite=True),
            output("out", "rows d", in_place_of="x"),
        ),
        profiles=(
            Profile("once", {"mid": None, "out": "bf16"}, options={"form": (1, 2)}, users="nobody"),
            Profile(
                "kept",
                {"mid": "fp32", "out": "bf16"},
                options={"form": 1},
                vacuous={"mid": "it is exact"},
                when={"gain": ("w",)},
            ),
        ),
        row_dims=("rows",),
        parameters={"gain": ("none", "w")},
        options={"form": (1, 2)},
        freedoms={"sum": "order any"},
        shapes=({"rows": 1, "d": 4},),
        stress=({"d": 4}, {"d": 3}, {"d": 4}),
        not_applicable={"exact": "a test"},
        summary="x + x",
    )
    registry.register(contract)
    registry.implementation("double", name="plain", requires=["triton"], order={"sum": 3})(
        reference
    )
    registry.red("double", profile="once", gate="shapes", name="copy", expect="timeout")(reference)
    registry.green("double", profile="once", name="other", gain="w")(reference)


def test_list_has_a_line_for_each_contract() -> None:
    head, line = list_lines()
    assert head.split("  ")[0] == "NAME"
    assert line.split() == (
        ["double", "sums", "once", "kept", "gain=none|w", "plain", "1", "red,", "1", "green"]
    )
    assert json.loads(list_json()) == [
        {
            "name": "double",
            "family": "sums",
            "profiles": ["once", "kept"],
            "parameters": {"gain": ["none", "w"]},
            "implementations": ["plain"],
            "planted_controls": {"red": 1, "green": 1},
        }
    ]


def test_a_kernel_without_an_implementation_says_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_implementations", {})
    assert "  none  " in list_lines()[1]


@pytest.mark.parametrize(
    "line",
    [
        "double (sums): x + x",
        "x in (rows, d) bf16",
        "w in (d) bf16 only when gain is w",
        "z in (d) uint4 uint8, one code each; finite values only",
        "only for gain = w",
        "cannot be shown: mid: it is exact",
        "out out (rows, d) bf16 may be written over x",
        "eps: 0.5, 2.0 (default 0.5)",
        "gain: none | w (default none)",
        "form: 1 | 2",
        "once, used by nobody",
        "rounding points: mid not rounded, out bf16",
        "options: form 1 or 2",
        "sum: order any",
        "one per index of rows",
        "real: rows=1 d=4",
        "stress: d=4 (2 times); d=3",
        "one-row: contiguous, 1 rows a call, 1 threads",
        "exact: a test",
        "once/plain on host, sum at most 3, needs triton",
        "once/red.copy, caught by shapes, as a timeout",
        "once/green.other, gain=w",
        "Twice x.",
    ],
)
def test_show_tells_what_is_declared(line: str) -> None:
    assert line in [" ".join(shown.split()) for shown in show_lines("double")]


def test_show_of_an_unknown_kernel_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no contract 'doubel'; did you mean double\?"):
        show_lines("doubel")


def test_the_page_says_what_a_profile_is_for() -> None:
    assert "- profile `kept`: mid fp32, out bf16; only for gain = w" in markdown_lines()
