"""Each gate catches the fault it is for, and says where, by how much and how to see it again."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import contract
from contract import (
    Contract,
    Profile,
    autocontrols,
    diagnose,
    gates,
    output,
    registry,
    suites,
    tensor,
)
from contract.autocontrols import nominal
from contract.case import Case, Kernel, find, kernels_of, make_case, take_rows
from contract.checks import collect_checks
from contract.config import read_config
from contract.engines import host
from contract.errors import StoreError
from contract.gates import reference
from contract.gates.invariance import _with_other_rows
from contract.gates.reference import _audit_case
from contract.judge import Bench, Subject, Tally
from contract.judge_process import Judge
from contract.readings.base import Quantity, Reading
from contract.recordbook import RESOURCES, architecture, judge_entry, read, torch_version, unused
from contract.results import CheckResult
from contract.worker import Worker

FAULTY = Path(__file__).parent / "suite" / "gate_faults.py"
Judged = Callable[..., tuple[dict[str, Any], dict[str, Any] | None]]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    """The result of one check by id, and the failing row that is to be kept."""
    folder = tmp_path_factory.mktemp("gates")
    shutil.copy(FAULTY, folder / "gate_faults.py")
    (folder / "pyproject.toml").write_text('[tool.contract]\nsuites = ["gate_faults.py"]\n')
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_contracts", "_implementations", "_controls"):
            patch.setattr(registry, name, {})
        patch.setattr(suites, "entry_points", lambda group: [])
        patch.setattr(suites, "_registered", {})
        patch.setattr(sys, "path", list(sys.path))
        loaded = suites.load(read_config(folder))
        checks = {check.id: check for check in collect_checks()}
        said: list[Any] = []
        options = {"effort": "quick", "seed": 0, "timeout": 60.0, "memory": 8 << 30,
                   "suites": loaded.payload()}  # fmt: skip
        judge = Judge(options, said.append)

        def run(
            name: str, effort: str = "quick", **more: Any
        ) -> tuple[dict[str, Any], dict[str, Any] | None]:
            check = checks[name]
            judge.options, judge.last = {**options, "effort": effort, **more}, ("", None)
            judge.judge({"kernel": check.spec, "checks": [check.as_json()], "rows": []})
            return said[-1]["result"], said[-1]["row"]

        yield run
        judge.close()
    sys.modules.pop(suites.module_name(folder / "gate_faults.py"), None)


GATES = ("shapes", "stress", "exact", "invariance", "bounds")


@pytest.mark.parametrize("gate", GATES)
def test_a_right_kernel_passes(judged: Judged, gate: str) -> None:
    result, row = judged(f"affine/two_step/right/{gate}")
    assert (result["outcome"], row, result["detail"]) == ("pass", None, "")
    assert result["outputs_compared"] > 0


CAUGHT = [
    ("wrong_tail", "shapes", r"outputs are not allowed \(typical rows=3 d=5, launch plain\)"),
    ("wrong_above_100", "exact", "outputs are not allowed .exact d=8, launch plain."),
    ("drops_product", "exact", "reproduces all observed bits: dropped point `product`"),
    ("truncates", "stress", "`out` truncated instead of rounded to nearest even"),
    ("not_repeatable", "invariance", "the same call twice moves 1 outputs"),
    ("reads_other_rows", "invariance", "other values in the odd rows move"),
    ("multiplies_other_rows_by_zero", "invariance", "NaN in the odd rows move"),
    ("batch_listed", "invariance", "launch one-row moves .* batch is declared invariant"),
    ("layout_listed", "invariance", "launch strided moves .* layout is declared invariant"),
    ("block_listed", "invariance", "launch block-16 moves .* launch is declared invariant"),
    ("writes_its_input", "bounds", "wrote to its input x"),
    ("writes_its_input", "shapes", "wrote to its input x"),
    ("writes_its_input", "stress", "wrote to its input x"),
    ("writes_before", "exact", "wrote outside operand x"),
    ("writes_before", "bounds", "wrote outside operand x"),
    ("writes_into_the_gap", "bounds", r"wrote outside operand x .*launch strided"),
    ("reads_behind", "bounds", "poison around the inputs moves .* it reads outside an operand"),
    ("reads_the_gap", "bounds", "it reads outside an operand .*launch strided"),
    ("returns_its_input", "shapes", "output out shares memory with input x"),
]


@pytest.mark.parametrize(("name", "gate", "said"), CAUGHT, ids=[c[0] for c in CAUGHT])
def test_a_fault_is_caught_by_its_gate(judged: Judged, name: str, gate: str, said: str) -> None:
    result, _ = judged(f"affine/two_step/{name}/{gate}")
    assert result["outcome"] == "fail"
    assert re.search(said, result["detail"], re.DOTALL), result["detail"]
    assert result["reproduce"] == f"contract run affine/two_step/{name}/{gate}"


BLIND = [
    ("wrong_above_100", "shapes"),
    ("declared_not_repeatable", "invariance"),
    ("reads_the_gap", "exact"),
    ("block_listed", "bounds"),
]


@pytest.mark.parametrize(("name", "gate"), BLIND)
def test_a_fault_is_not_seen_by_another_gate(judged: Judged, name: str, gate: str) -> None:
    """Else the table above could pass for the wrong reason."""
    result, _ = judged(f"affine/two_step/{name}/{gate}")
    if name == "declared_not_repeatable":
        assert "twice" not in result["detail"]
    else:
        assert result["outcome"] == "pass", result["detail"]


def test_an_unlisted_difference_is_measured_and_not_red(judged: Judged) -> None:
    # quick leaves it out
    result, _ = judged("affine/two_step/batch_unlisted/invariance", "default")
    assert result["outcome"] == "pass"
    assert any(re.match(r"one-row: .* % of bits move", note) for note in result["notes"])


# Which launches an effort runs

LAUNCHES = ["plain", "strided", "offset", "one-row", "three-rows", "two-threads"]


class Here:
    """Stands for a worker: calls in this process, and notes shape and launch."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str]] = []

    def call(self, function: str, payload: dict[str, Any], arrays: dict[str, Any]) -> Any:
        self.calls.append((payload["shape"]["rows"], payload["launch"]["name"]))
        report, outputs = host.run(payload, arrays)
        return SimpleNamespace(outcome="ok", detail="", payload=report, arrays=outputs)


@pytest.fixture
def judged_here(judged: Judged) -> Iterator[Callable[..., tuple[Tally, Here]]]:
    """One gate of an implementation of affine, which gets more shapes, and the calls that were made."""
    threads = torch.get_num_threads()

    def run(name: str, gate: str, effort: str) -> tuple[Tally, Here]:
        kernel, worker = find("affine"), Here()
        more = ({"rows": 5, "d": 7}, {"rows": 2, "d": 3}, {"rows": 3, "d": 5})
        kernel = replace(kernel, contract=replace(kernel.contract, awkward=more))
        item = next(i for i in registry.implementations("affine") if i.name == name)
        subject = Subject(
            kernel,
            {"kind": "implementation", "name": name, "profile": "two_step"},
            cast(Worker, worker),
            launches=kernel.contract.launches,
            invariant=item.invariant,
        )
        return gates.run(gate, Bench(kernel, effort, 0), subject), worker

    yield run
    torch.set_num_threads(threads)


JudgedHere = Callable[..., tuple[Tally, Here]]


@pytest.mark.parametrize(
    ("effort", "every", "plain"), [("quick", [5], [4]), ("default", [2, 3], [5, 4])]
)
def test_the_first_shapes_see_every_launch_and_the_others_one(
    judged_here: JudgedHere, effort: str, every: list[int], plain: list[int]
) -> None:
    tally, worker = judged_here("right", "shapes", effort)
    assert tally.outcome == "pass"
    want = [(rows, launch) for rows in every for launch in LAUNCHES]
    assert list(dict.fromkeys(worker.calls)) == [*want, *((rows, "plain") for rows in plain)]


@pytest.mark.parametrize(
    ("name", "listed"), [("batch_listed", ["one-row"]), ("layout_listed", ["strided"])]
)
def test_quick_still_refuses_what_a_listed_launch_moves(
    judged_here: JudgedHere, name: str, listed: list[str]
) -> None:
    tally, worker = judged_here(name, "invariance", "quick")
    assert tally.outcome == "fail"
    assert f"launch {listed[0]} moves" in tally.detail
    assert list(dict.fromkeys(launch for _, launch in worker.calls)) == ["plain", *listed]


@pytest.mark.parametrize("effort", ["quick", "default"])
def test_unlisted_launches_are_measured_by_default_and_left_out_by_quick(
    judged_here: JudgedHere, effort: str
) -> None:
    tally, worker = judged_here("batch_unlisted", "invariance", effort)
    assert tally.outcome == "pass"
    measured = [note for note in tally.notes if note.startswith("one-row: ")]
    seen = list(dict.fromkeys(launch for _, launch in worker.calls))
    assert (seen, len(measured)) == ((["plain"], 0) if effort == "quick" else (LAUNCHES, 1))


def test_a_static_output_buffer_is_red(
    judged_here: JudgedHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_implementations", dict(registry._implementations))
    buffers: dict[Any, torch.Tensor] = {}

    @registry.implementation("affine")
    def static(x: torch.Tensor, w: torch.Tensor, scale: float) -> torch.Tensor:
        out = buffers.setdefault(
            x.shape, torch.empty_like(x, memory_format=torch.contiguous_format)
        )
        return out.copy_(x * scale + w)

    assert judged_here("static", "shapes", "quick")[0].outcome == "pass"
    tally, _ = judged_here("static", "invariance", "quick")
    assert tally.outcome == "fail"
    assert tally.detail.startswith("a second call writes over the result of the first (typical ")


def test_a_failing_row_is_shrunk_and_shown_in_full(judged: Judged) -> None:
    result, row = judged("affine/two_step/drops_product/stress")
    head, element, operands, scalars, cause = result["detail"].splitlines()
    assert re.fullmatch(r"[\d,]+ of 512 outputs are not allowed \(stress seed=0 .*\)", head)
    assert re.fullmatch(
        r"row \d+ of stress seed=0 block=0: out\[0, \d\]: got 0x[0-9a-f]{4} \(.+\),"
        r" allowed 0x[0-9a-f]{4} \(.+\) only, 1 ulp too (high|low)",
        element,
    )
    # nothing but one product and one addend decides the element
    assert re.fullmatch(
        r"operands: x bf16\[1, \d\] .*\[0, \d\]=[^,]+; w bf16\[\d\] .*\[\d\]=[^,]+", operands
    )
    assert scalars == "scalars: scale=1.25"
    assert cause == "reproduces all observed bits: dropped point `product`"
    assert row is not None
    assert row["id"] == "affine/two_step/drops_product/stress"
    assert sum(bits != 0 for bits in row["operands"]["x"]["bits"]) == 1
    assert row["shape"]["rows"] == 1


def test_a_cause_that_the_printed_row_does_not_show_is_not_named(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([["of the case", "of both"], ["of the row", "of both"]])
    monkeypatch.setattr(diagnose, "causes", lambda *_: next(found))
    result, _ = judged("affine/two_step/drops_product/stress")
    assert result["detail"].splitlines()[-1] == "reproduces all observed bits: of both"


@pytest.mark.parametrize("colour", ["red", "green"])
@pytest.mark.parametrize("effort", ["quick", "default"])
def test_rows_that_failed_before_do_not_take_the_place_of_drawn_ones(
    judged: Judged, colour: str, effort: str
) -> None:
    kernel = find("affine")
    plain = Bench(kernel, effort, 0)
    stored = [take_rows(kernel, plain.cases("stress")[0], slice(0, 1))] * 9
    target = {"kind": "control", "name": f"{colour}.any", "profile": "two_step", "module": ""}
    subject = Subject(kernel, target, cast(Worker, None))
    with_rows = subject.chosen(Bench(kernel, effort, 0, stored), "stress")
    assert [case.label for _, case in with_rows[9:]] == [
        case.label for _, case in subject.chosen(plain, "stress")
    ]


@pytest.mark.parametrize("effort", ["default", "nightly"])
def test_a_row_that_failed_before_does_not_keep_invariance_from_a_block_of_rows(
    judged: Judged, effort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = find("affine")
    stored = take_rows(kernel, Bench(kernel, effort, 0).cases("stress")[0], slice(0, 1))
    target = {"kind": "implementation", "name": "any", "profile": "two_step", "module": ""}
    subject = Subject(kernel, target, cast(Worker, None))
    seen: list[tuple[str, int]] = []

    def call(case: Case, *args: Any, **more: Any) -> Any:
        seen.append((case.label, case.rows(kernel)))
        return "", "", {}, autocontrols.nominal(kernel, case)

    monkeypatch.setattr(subject, "call", call)
    assert gates.run("invariance", Bench(kernel, effort, 0, [stored]), subject).outcome == "pass"
    assert ("stress seed=0 block=0", 64) in seen


def test_one_listed_alternative_must_explain_all_outputs(judged: Judged) -> None:
    assert judged("either/once/plus/shapes")[0]["outcome"] == "pass"
    assert judged("either/once/minus/shapes")[0]["outcome"] == "pass"
    result, _ = judged("either/once/mixture/shapes")
    assert result["outcome"] == "fail"
    assert "no listed alternative explains all outputs (nearest: {'form': '" in result["detail"]
    # one alternative for one launch and the other for the next is a mixture too
    assert judged("either/once/one_launch_each/shapes")[0]["outcome"] == "fail"


def test_a_tighter_order_is_judged_by_its_own(judged: Judged) -> None:
    assert judged("total/float32/sequential/stress")[0]["outcome"] == "pass"
    assert judged("total/float32/pairwise_as_depth_8/stress")[0]["outcome"] == "pass"
    result, _ = judged("total/float32/sequential_as_depth_8/stress")
    assert result["outcome"] == "fail"


def test_a_gate_that_compares_nothing_fails(judged: Judged) -> None:
    result, _ = judged("nothing_to_compare/once/whatever/stress")
    assert (result["outcome"], result["detail"]) == ("fail", "the gate stress compared no output")
    assert result["outputs_compared"] == 0
    result, _ = judged("nothing_to_compare/once/whatever/exact")
    assert result["outcome"] == "fail"
    assert "none of 64 candidate rows is proven" in result["detail"]


def test_a_gate_that_means_nothing_is_not_applicable_with_its_reason(judged: Judged) -> None:
    result, _ = judged("either/once/plus/exact")
    assert (result["outcome"], result["detail"]) == ("not_applicable", "a test")


UNSOUND = [
    ("too_narrow/once", r"the range refuses \d+ sampled legal outputs"),
    ("beside_the_formula/once", "the 200-bit audit leaves the range"),
    ("blind/p", "no input shows drop-product, truncate-product: power 0 on every gate"),
    (
        "not_vacuous/p",
        r"drop-product is declared vacuous \(untrue\), yet .* remove the declaration",
    ),
]


@pytest.mark.parametrize(("kernel", "said"), UNSOUND, ids=[u[0] for u in UNSOUND])
def test_an_unsound_or_powerless_reference_is_red(judged: Judged, kernel: str, said: str) -> None:
    result, _ = judged(f"{kernel}/reference")
    assert result["outcome"] == "fail"
    assert re.search(said, result["detail"]), result["detail"]


@pytest.mark.parametrize(("by", "said"), [(-0.0, ""), (0.0, ""), (2.0, "out[0, 0]: inf outside")])
def test_the_audit_does_not_know_the_sign_of_a_zero(by: float, said: str) -> None:
    """1 / -0 is -infinity, and 200-bit numbers have one zero; an infinity where the range has none is refused."""

    def quotient(r: Reading, x: Quantity, w: Quantity) -> Quantity:
        audits = type(r).__name__ == "AuditReading"
        return r.round("out", x / (w * 0.0 if audits else w))

    declared = contract.Contract(
        name="quotient",
        family="sums",
        reference=quotient,
        operands=(
            contract.tensor("x", "rows d"),
            contract.tensor("w", "d"),
            contract.output("out", "rows d"),
        ),
        profiles=(contract.Profile("once", {"out": "bf16"}),),
        row_dims=("rows",),
        shapes=({"rows": 1, "d": 1},),
        not_applicable={"exact": "a test"},
    )
    kernel = kernels_of(declared)[0]
    case = make_case(kernel, {"rows": 1, "d": 1}, {"x": np.ones((1, 1)), "w": np.array([by])})
    assert _audit_case(kernel, case, {}).startswith(said)
    assert bool(_audit_case(kernel, case, {})) == bool(said)


def test_the_audit_uses_a_weight_for_several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has at least 8 rows and at most 8 columns where rows share a weight, for which its 200-bit numbers are the cost."""

    def layer(r: Reading, x: Quantity, w: Quantity) -> Quantity:
        return r.round("out", r.dot(x, w.swapaxes(0, 1)))

    declared = contract.Contract(
        name="layer",
        family="sums",
        reference=layer,
        operands=(
            contract.tensor("x", "rows k"),
            contract.tensor("w", "n k"),
            contract.output("out", "rows n"),
        ),
        profiles=(contract.Profile("once", {"out": "bf16"}),),
        row_dims=("rows",),
        column_dim="n",
        shapes=({"rows": 20, "k": 16, "n": 30},),
        stress=({"k": 8, "n": 3},),
        not_applicable={"exact": "a test"},
        freedoms={"dot": "a test"},
    )
    kernel, seen = kernels_of(declared)[0], []

    def audited(kernel: Kernel, case: Any, options: Any) -> str:
        seen.append((case.rows(kernel), case.shape["n"], *case.operands["w"].shape))
        return _audit_case(kernel, case, options)

    monkeypatch.setattr("contract.gates.reference._audit_case", audited)
    tally = reference.run(Bench(kernel, "default", 0))
    assert tally.outcome == "pass"
    assert set(seen) == {(10, 3, 3, 8), (8, 8, 8, 16)}


def test_a_sound_reference_has_power_at_every_point(judged: Judged) -> None:
    result, _ = judged("affine/two_step/reference")
    assert result["outcome"] == "pass", result["detail"]
    assert set(result["power"]) == {"drop-product", "truncate-product", "truncate-out"}
    assert min(result["power"].values()) > 0


def test_quick_stops_at_the_first_input_that_shows_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = find("affine", "two_step", {})
    runs: dict[str, int] = {}
    for effort in ("quick", "default"):
        tally = Tally()
        seen: list[int] = []
        cases = reference._cases(bench := Bench(kernel, effort, 0))

        def counted(*given: Any, seen: list[int] = seen, **named: Any) -> Any:
            seen.append(1)
            return nominal(*given, **named)

        monkeypatch.setattr("contract.autocontrols.nominal", counted)
        reference._power(bench, cases, tally)
        assert not tally.outcome
        assert min(tally.power.values()) > 0
        runs[effort] = len(seen)
    assert runs["quick"] == len(reference.faults(kernel)) < runs["default"]


NULLS = ("zeros", "mean", "copy", "previous-row", "neighbour", "unwritten", "one-ulp-beyond")


@pytest.mark.parametrize("name", NULLS)
def test_null_kernels_are_red(judged: Judged, name: str) -> None:
    result, _ = judged(f"affine/two_step/red.null-{name}")
    assert (result["outcome"], result["gate"]) == ("red_as_planted", "shapes")


# Limits

MEASURED = {"bytes_read": 10, "bytes_written": 20, "workspace_bytes": 30, "threads": 0}


def record(tmp_path: Path, waivers: Any = (), **entry: Any) -> tuple[Path, dict[str, Any]]:
    """A record file with one entry of affine, as measured but for what is given."""
    resources = {**MEASURED, **{k: entry.pop(k) for k in RESOURCES if k in entry}}
    path = tmp_path / "affine.json"
    whole = {"kernel": "affine/two_step", "implementation": "right", "launch": "plain",
             "architecture": architecture(), "torch": torch_version(),
             "shape": {"d": 16, "rows": 4}, "resources": resources, **entry}  # fmt: skip
    data = {"schema": 1, "kernel": "affine", "entries": [whole], "waivers": list(waivers)}
    path.write_text(json.dumps(data))
    return path, read(path)


def waiver(limit: int, **more: Any) -> dict[str, Any]:
    return {"kernel": "affine/two_step", "implementation": "right", "launch": "plain",
            "architecture": architecture(), "resource": "workspace_bytes", "limit": limit,
            "reason": "a test", **more}  # fmt: skip


LIMITS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "pass", "bytes_read 10, bytes_written 20, workspace_bytes 30, threads 0"),
    ({"workspace_bytes": 29}, "fail", "above the record: workspace_bytes 29 -> 30"),
    ({"bytes_read": 11}, "fail", "improved, run --update-records: bytes_read 11 -> 10"),
    ({"implementation": "left"}, "fail", "no record for affine/two_step/right/plain"),
    ({"shape": {"d": 8, "rows": 4}}, "fail", "stale: recorded at {'d': 8, 'rows': 4}"),
    ({"architecture": "sparc"}, "not_run", f"affine.json lists no {architecture()}"),
    ({"torch": "1.0"}, "pass", "bytes_read 10"),
    ({"torch": "1.0", "workspace_bytes": 29}, "not_run", "recorded with torch 1.0, this is "),
    ({"workspace_bytes": 20, "waivers": [waiver(30)]}, "pass", "workspace_bytes 30"),
    ({"workspace_bytes": 20, "waivers": [waiver(29)]}, "fail", "workspace_bytes 20 -> 30"),
]


@pytest.mark.parametrize(("change", "outcome", "said"), LIMITS, ids=range(len(LIMITS)))
def test_resources_are_compared_with_the_record(
    judged: Judged, tmp_path: Path, change: dict[str, Any], outcome: str, said: str
) -> None:
    book = record(tmp_path, **change)
    found = judge_entry(book, find("affine"), "right", "plain", MEASURED)
    assert found[0] == outcome
    assert said in found[1]


@pytest.mark.parametrize("update", [False, True])
def test_without_a_records_folder_limits_do_not_run(judged: Judged, update: bool) -> None:
    result, _ = judged("affine/two_step/right/limits", update_records=update)
    assert result["outcome"] == "not_run"
    assert "--update-records" in result["detail"]
    # x, the scalar product and w are read; two bf16 tensors of 4 x 16 are written
    assert result["measured"]["bytes_written"] == 2 * 2 * 4 * 16


def test_what_no_kernel_uses_is_a_problem(judged: Judged, tmp_path: Path) -> None:
    record(tmp_path, waivers=[waiver(30, launch="strided")])
    known = {("affine/two_step", "right", "plain")}
    (problem,) = unused(tmp_path, known)
    assert problem.startswith("unused waiver affine/two_step/right/strided/")
    first, _ = unused(tmp_path, set())
    assert first.startswith("unused record affine/two_step/right/plain/")
    assert "--update-records" in first


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"surplus": 1}, "entries[0] needs exactly the fields"),
    ({"torch": 2}, "entries[0].torch is 2, not str"),
    ({"bytes_read": -1}, "entries[0].resources needs counts >= 0"),
    ({"waivers": [waiver(1, reason=" ")]}, "waivers[0].reason is empty"),
    ({"waivers": [waiver(1, resource="seconds")]}, "waivers[0].resource is 'seconds'"),
]


@pytest.mark.parametrize(("change", "said"), BROKEN, ids=range(len(BROKEN)))
def test_a_wrong_record_is_refused_by_file_and_field(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(StoreError) as caught:
        record(tmp_path, **change)
    assert str(caught.value).startswith(f"record {tmp_path / 'affine.json'}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: {**data, "kernel": "other"}, "kernel is 'other', the file's is 'affine'"),
        (
            lambda data: {**data, "entries": 2 * data["entries"]},
            "entries[1] is for the same launch as entries[0]",
        ),
    ],
    ids=["kernel", "twice"],
)
def test_a_record_of_another_kernel_or_of_one_launch_twice_is_refused(
    tmp_path: Path, damage: Callable[[Any], Any], said: str
) -> None:
    record(tmp_path)
    path = tmp_path / "affine.json"
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(StoreError, match=re.escape(said)):
        read(path)


def test_a_record_that_is_too_deep_to_be_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "affine.json"
    path.write_text("[" * 100_000)
    with pytest.raises(StoreError, match="repair it, or delete it"):
        read(path)


def test_a_legal_variant_of_which_nothing_is_compared_is_missed(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = find("affine")
    nothing = Tally().stop("not_applicable", "a test")
    monkeypatch.setattr(gates, "run", lambda *_: nothing)
    target = {"kind": "auto", "name": "green.wide", "profile": "two_step", "module": ""}
    subject = Subject(kernel, target, None)
    base = CheckResult("affine/two_step/green.wide", "affine", "two_step", "crash")
    for effort in ("quick", "default", "nightly"):
        judge = Judge({"effort": effort}, print)
        result = judge._green(base, Bench(kernel, effort, 0), subject)
        assert result.outcome == "missed"
        assert result.detail.startswith("no gate compared an output (shapes")


def test_other_rows_hold_indices_that_exist() -> None:
    """An index outside its table is no input: a kernel may refuse it."""
    declared = Contract(
        name="picked",
        family="tests",
        reference=lambda r, ids: r.round("out", ids),
        operands=(
            tensor("ids", "rows", "int32", below=3),
            output("out", "rows", "int32"),
        ),
        profiles=(Profile("once", {"out": "int32"}),),
        row_dims=("rows",),
        shapes=({"rows": 4},),
        not_applicable={"exact": "not judged here"},
    )
    kernel = Kernel(declared, {}, declared.profiles[0])
    case = make_case(kernel, {"rows": 64}, {"ids": np.full(64, 2.0)})
    for what in ("other values", "NaN"):
        ids = _with_other_rows(kernel, case, what).value(kernel, kernel.inputs()[0])
        assert (ids[::2] == 2).all()
        assert set(ids[1::2]) == {0.0, 1.0, 2.0}
