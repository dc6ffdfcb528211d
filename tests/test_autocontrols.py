"""Controls: one for each point, option, parameter and freedom, and what becomes of those that are wrong."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract import autocontrols, formats, registry, suites
from contract.case import Case, Kernel, find, make_case
from contract.config import read_config
from contract.declare import Contract, Profile, Scalar, output, tensor
from contract.inputs import typical_case
from contract.kernels.add_rms_tail import add_rms_tail
from contract.kernels.quantize_int8 import quantize_int8
from contract.kernels.rms_norm import rms_norm
from contract.ranges import OutputRange, case_range, codes_of_bits

Run = Callable[..., tuple[int, str, str]]
NULLS = {"red.null-zeros", "red.null-mean", "red.null-copy", "red.null-previous-row",
         "red.null-neighbour", "red.null-unwritten", "red.null-one-ulp-beyond"}  # fmt: skip
ALWAYS = {"green.wide", "green.ftz", "green.second-form"}


def names(kernel: str, **parameters: str) -> set[str]:
    found = autocontrols.automatic(find(kernel, None, parameters))
    assert len({auto.name for auto in found}) == len(found)
    return {f"{auto.colour}.{auto.name}" for auto in found}


def rich(r: Any, x: Any, eps: float, form: str, gain: str) -> Any:
    """Two points, an option, a parameter, an order and a function."""
    inner = r.round("inner", r.tanh(x, ulps=2))
    total = r.sum(inner, -1) if form == "sum" else r.mean(inner, -1, name="sum")
    return r.round("out", (total + eps) * (inner if gain == "one" else inner + inner))


def make(**changed: Any) -> Contract:
    profile = {"points": {"inner": "bf16", "out": "bf16"}, "options": {"form": "sum"}}
    given: dict[str, Any] = {
        "name": "rich", "family": "sums", "reference": rich, "scalars": (Scalar("eps", (0.5,)),),
        "operands": (tensor("x", "rows d"), output("out", "rows d")),
        "parameters": {"gain": ("one", "two")}, "options": {"form": ("sum", "mean")},
        "profiles": (Profile("two_step", **{**profile, **changed.pop("profile", {})}),),
        "row_dims": ("rows",), "shapes": ({"rows": 3, "d": 4},),
        "not_applicable": {"exact": "a test"},
        "freedoms": {"tanh": "a test", "sum": "a test"}, **changed,
    }  # fmt: skip
    return registry.register(Contract(**given))


def test_one_control_for_each_point_option_parameter_and_freedom(project: Path) -> None:
    make()
    orders = {f"green.order-{order}" for order in ("sequential", "sorted")}
    ulps = {f"green.ulps-{which}" for which in ("plus", "minus", "random")}
    assert names("rich") == {
        "red.drop-inner", "red.truncate-inner", "red.truncate-out", "red.form=mean", "red.gain=two",
        *orders, *ulps, *ALWAYS, *NULLS,
    }  # fmt: skip
    # the other kernel of the contract has the other parameter as its fault
    assert "red.gain=one" in names("rich", gain="two")


def test_a_listed_alternative_is_no_fault_and_a_vacuous_one_has_no_control(project: Path) -> None:
    make(profile={"options": {"form": ("sum", "mean")}, "vacuous": {"inner": "a test"}})
    found = names("rich")
    assert not found & {"red.form=mean", "red.drop-inner", "red.truncate-inner"}
    assert "red.truncate-out" in found


def test_kept_points_and_subnormals_have_no_control_and_honest_nulls_neither(
    project: Path,
) -> None:
    profile = {"points": {"inner": None, "out": "bf16"}, "keeps_subnormals": True}
    make(profile=profile, honest_nulls={"null-copy": "a test"})
    found = names("rich")
    assert not found & {"red.drop-inner", "red.truncate-inner", "green.ftz", "red.null-copy"}


def test_green_executions_stay_in_the_range_and_red_ones_leave_it(project: Path) -> None:
    make()
    kernel = find("rich")
    case = typical_case(kernel, {"rows": 64, "d": 64}, 0)
    allowed = case_range(kernel, case)["out"]
    for auto in autocontrols.automatic(kernel):
        refused = int(allowed.refused(auto.run(kernel, case, 0)["out"]).sum())
        assert (refused > 0) == (auto.colour == "red"), auto.name


def beyond(kernel: Kernel, case: Case) -> tuple[str, tuple[int, ...]]:
    """Output and place of the one element that null-one-ulp-beyond moves, one step out of its range."""
    out = autocontrols.run(kernel, "red.null-one-ulp-beyond", case, 0)
    right, allowed = autocontrols.nominal(kernel, case), case_range(kernel, case)
    (moved,) = [
        (name, tuple(int(i) for i in place))
        for name, bits in out.items()
        for place in np.argwhere(bits != right[name])
    ]
    name, place = moved
    of = allowed[name]
    code = int(codes_of_bits(out[name], of.fmt)[place])
    assert code in (int(of.hi[place]) + 1, int(of.lo[place]) - 1)
    assert [int(allowed[o].refused(out[o]).sum()) for o in out] == [int(o == name) for o in out]
    return moved


MOVED = [
    Kernel(rms_norm, {"gain": "w"}, rms_norm.profile("two_step")),
    Kernel(rms_norm, {"gain": "w"}, rms_norm.profile("float32")),
    Kernel(add_rms_tail, {"branch_norm": "yes", "scale": "no"}, add_rms_tail.profile("each")),
    Kernel(quantize_int8, {"granularity": "tensor"}, quantize_int8.profile("divide")),
    Kernel(quantize_int8, {"granularity": "channel"}, quantize_int8.profile("divide")),
]


@pytest.mark.parametrize("kernel", MOVED, ids=lambda kernel: kernel.id)
def test_one_ulp_beyond_moves_one_element_by_one_ulp(kernel: Kernel) -> None:
    _, place = beyond(kernel, typical_case(kernel, {"rows": 4, "d": 8}, 0))
    assert place[0] == 0


@pytest.mark.parametrize(("got", "moved"), [(10, 9), (11, 9), (19, 21), (20, 21)])
def test_one_ulp_beyond_leaves_by_the_nearer_end(got: int, moved: int) -> None:
    codes = np.array([[10], [20], [got], [moved]], np.int64)
    lo, hi = codes[:1].astype(np.int32), codes[1:2].astype(np.int32)
    bits = formats.from_ordered(codes, "fp32")
    allowed = OutputRange(formats.get("fp32"), lo, hi, None)
    assert autocontrols._moved(allowed, bits[2:3]) == ((0, 0), bits[3, 0])


def test_one_ulp_beyond_moves_another_row_where_none_of_the_first_can(project: Path) -> None:
    make()
    kernel = find("rich")
    x = np.array([[np.nan] * 4, [np.nan] * 4, [np.nan, 1.0, 2.0, 3.0], [0.5, 1.0, 2.0, 3.0]])
    # rows of NaN only: nothing is beyond them
    assert beyond(kernel, make_case(kernel, {"rows": 4, "d": 4}, {"x": x})) == ("out", (3, 0))
    nowhere = make_case(kernel, {"rows": 2, "d": 4}, {"x": x[:2]})
    out = autocontrols.run(kernel, "red.null-one-ulp-beyond", nowhere, 0)["out"]
    np.testing.assert_array_equal(out, autocontrols.nominal(kernel, nowhere)["out"])


def test_one_ulp_beyond_never_ends_on_an_infinity_or_nan(project: Path) -> None:
    contract = make(
        name="huge", reference=lambda r, x: r.round("out", r.round("inner", x)), scalars=(),
        parameters={}, options={}, profile={"options": {}}, freedoms={},
    )  # fmt: skip
    kernel = Kernel(contract, {}, contract.profiles[0])
    top = formats.get("bf16").max
    x = np.array([[top, -top, np.inf], [top, np.inf, 1.0]])
    assert beyond(kernel, make_case(kernel, {"rows": 2, "d": 3}, {"x": x})) == ("out", (1, 2))


def test_null_kernels_of_different_cases_do_not_share_their_start(project: Path) -> None:
    make()
    kernel, other = find("rich"), find("rich", None, {"gain": "two"})
    case = typical_case(kernel, {"rows": 3, "d": 4}, 0)
    bits = case.operands["x"].copy()
    bits[2, 3] ^= 0x8000
    cases = [
        (kernel, case),
        (kernel, replace(case, operands={"x": bits}, values={})),
        (kernel, replace(case, scalars={"eps": 0.25})),
        (other, case),
        (kernel, replace(case, shape={"rows": 4, "d": 3},
                         operands={"x": case.operands["x"].reshape(4, 3)}, values={})),
    ]  # fmt: skip
    right = [autocontrols.nominal(k, c)["out"] for k, c in cases]
    assert len({out.tobytes() for out in right}) == len(cases)
    # each after each other one: what is kept is that of the last case
    for turn in itertools.chain(*itertools.permutations(range(len(cases)), 2)):
        k, c = cases[turn]
        # each is asked twice: made, and kept
        for _ in range(2):
            rolled = autocontrols.run(k, "red.null-previous-row", c, 0)["out"]
            np.testing.assert_array_equal(rolled, np.roll(right[turn], 1, 0))
            # what this one moves stays its own
            autocontrols.run(k, "red.null-one-ulp-beyond", c, 0)
            np.testing.assert_array_equal(autocontrols._right(k, c)["out"], right[turn])


PLANTED = """
import ctypes
import time
import contract


def right(x, y, scale):
    return x * scale + y


def wrong(x, y, scale):
    return x * scale + y + 1


def crashes(x, y, scale):
    ctypes.string_at(0)


def sleeps(x, y, scale):
    time.sleep(60)


def wrong_on_wide_rows(x, y, scale):
    return wrong(x, y, scale) if x.shape[1] == 32 else right(x, y, scale)


two_step = {"profile": "two_step", "sign": "plus"}
contract.red("scaled", gate="exact", name="repaired", **two_step)(right)
contract.red("scaled", gate="exact", name="elsewhere", **two_step)(wrong_on_wide_rows)
contract.red("scaled", gate="exact", name="still_wrong", **two_step)(wrong)
contract.red("scaled", gate="exact", name="falls_over", **two_step)(crashes)
contract.red("scaled", gate="exact", name="shall_fall_over", expect="crash", **two_step)(crashes)
contract.red("scaled", gate="shapes", name="shall_hang", expect="timeout", **two_step)(sleeps)
contract.red("scaled", gate="exact", name="should_fall_over", expect="crash", **two_step)(wrong)
contract.green("scaled", name="legal", **two_step)(right)
contract.green("scaled", name="illegal", **two_step)(wrong)
contract.green("scaled", name="falls_over", **two_step)(crashes)
"""

OUTCOMES = {
    "red.repaired": ("missed", "green at every gate (exact, shapes, stress, invariance, bounds)"),
    "red.elsewhere": ("red_elsewhere", "planted for exact, caught by shapes"),
    "red.still_wrong": ("red_as_planted", "exact: "),
    "red.falls_over": ("crash", "a planted fault of values must not end as crash"),
    "red.shall_fall_over": ("red_as_planted", "exact: "),
    "red.shall_hang": ("red_as_planted", "shapes: no call finished for 2 s"),
    "red.should_fall_over": ("red_elsewhere", "planted to end as crash, caught by exact"),
    "green.legal": ("green_as_planted", "passed shapes, stress, exact"),
    "green.illegal": ("missed", "a legal variant was refused by shapes"),
    "green.falls_over": ("crash", "a legal variant was refused by shapes"),
}


def test_planted_controls_end_as_what_they_are(project: Path, contract_run: Run) -> None:
    (project / "contracts" / "planted.py").write_text(PLANTED)
    code, out, err = contract_run("contracts/planted.py", "--timeout", "2", "--json", "r.json")
    report = json.loads(Path("r.json").read_text())
    found = {check["control"]: check for check in report["checks"]}
    assert set(found) == set(OUTCOMES)
    for name, (outcome, said) in OUTCOMES.items():
        assert found[name]["outcome"] == outcome, found[name]
        assert said in found[name]["detail"], found[name]
    assert (code, err) == (1, "")
    assert "MISSED scaled/two_step/red.repaired\n" in out
    counted = {
        "red_as_planted": 3,
        "green_as_planted": 1,
        "missed": 2,
        "red_elsewhere": 2,
        "crashed": 2,
    }
    assert report["summary"]["controls"] == counted
    # rows that controls find are theirs alone
    assert not list(project.rglob("rows/*.json"))


def test_a_control_whose_fault_is_taken_out_is_missed_and_ends_1(
    project: Path, contract_run: Run
) -> None:
    assert contract_run("scaled/two_step/red.rounds_once")[0] == 0
    path = project / "contracts" / "scaled.py"
    fault = "return (x.float() * scale + y.float()).bfloat16()"
    assert fault in path.read_text()
    path.write_text(path.read_text().replace(fault, "return x * scale + y"))
    code, out, _ = contract_run("scaled/two_step/red.rounds_once")
    assert code == 1
    assert "1 control: 0 red as planted, 0 green as planted, 1 missed" in out


def test_every_automatic_control_runs_by_its_name(project: Path) -> None:
    suites.load(read_config())
    kernel = find("scaled")
    case = typical_case(kernel, {"rows": 2, "d": 4}, 0)
    for auto in autocontrols.automatic(kernel):
        out = autocontrols.run(kernel, f"{auto.colour}.{auto.name}", case, 0)
        assert out["out"].shape == (2, 4)
