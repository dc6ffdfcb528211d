"""Stages continue from observed bits, and a shared value must explain its row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from soundness import CHOICES

from contract import formats
from contract.case import Case, Kernel, make_case
from contract.declare import Contract, Launch, Profile, output, tensor
from contract.endpoints import Array
from contract.engines.host import BadOutput, _collect
from contract.errors import DeclarationError
from contract.gates.invariance import _even
from contract.gates.reference import _observed
from contract.judge import Bench, Tally, compare, same_bits
from contract.ranges import case_range, plain_run
from contract.readings.base import Quantity, Reading
from contract.readings.sample import SampleReading
from contract.stages import joint_refused, not_shown, observing, stage_names, structure

FREEDOMS = {"square": "a proof", "rsqrt": "CUDA math table", "dot": "a proof"}


def norm(r: Reading, x: Quantity, w: Quantity) -> dict[str, Quantity]:
    total = r.sum(r.square(r.round("read", x)), name="square")
    inverse = r.observed("inverse", r.round("inverse", r.rsqrt(total + 1e-3)))
    return {"out": r.round("out", x * inverse * w)}


def shared_norm(r: Reading, x: Quantity, w: Quantity) -> Quantity:
    total = r.sum(r.square(x), depth=24, name="square")
    inverse = r.shared("inverse", r.rsqrt(total + 1e-3, ulps=64), axis=-1)
    return r.round("out", x * inverse * w)


def kernel_of(reference: Any, *, stage: bool = True) -> Kernel:
    points = {"read": None, "inverse": "fp32", "out": "bf16"} if stage else {"out": "bf16"}
    stages = (output("inverse", "rows one", "fp32", stage=True),) if stage else ()
    contract = Contract(
        name="staged",
        family="test",
        reference=reference,
        operands=(tensor("x", "rows d"), tensor("w", "d"), output("out", "rows d"), *stages),
        profiles=(Profile("plain", points),),
        row_dims=("rows",),
        shapes=({"rows": 8, "d": 96, "one": 1} if stage else {"rows": 8, "d": 2048},),
        freedoms=FREEDOMS,
        not_applicable={"exact": "a test"},
    )
    return Kernel(contract, {}, contract.profiles[0])


def case_of(kernel: Kernel, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    shape = dict(kernel.contract.shapes[0])
    d = shape["d"]
    values = {"x": rng.standard_normal((8, d)), "w": 1 + rng.standard_normal(d) / 8}
    return make_case(kernel, shape, values)


def run(kernel: Kernel, case: Case, choice: Any, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return plain_run(
        kernel,
        case,
        lambda: SampleReading(kernel.contract, kernel.profile, choice=choice, rng=rng),
        {},
    )


def refused(kernel: Kernel, case: Case, outputs: dict[str, Array]) -> dict[str, int]:
    ranges = case_range(kernel, case, prepare=observing(kernel, outputs))
    return {k: int(r.refused(outputs[k]).sum()) for k, r in ranges.items() if k in outputs}


def test_legal_executions_pass_with_the_stage_shown_or_not() -> None:
    kernel = kernel_of(norm)
    assert stage_names(kernel) == ("inverse",)
    seen = 0
    for seed in range(22):
        case = case_of(kernel, seed)
        for choice in CHOICES:
            out = run(kernel, case, choice, seed)
            assert set(refused(kernel, case, out).values()) == {0}, choice
            del out["inverse"]
            assert refused(kernel, case, out) == {"out": 0}
            seen += out["out"].size
    assert seen >= 100_000


def test_an_observed_stage_narrows_what_follows() -> None:
    kernel = kernel_of(norm)
    case = case_of(kernel)
    out = run(kernel, case, CHOICES[0])
    hidden = case_range(kernel, case)["out"]
    shown = case_range(kernel, case, prepare=observing(kernel, out))["out"]
    assert (shown.lo >= hidden.lo).all()
    assert (shown.hi <= hidden.hi).all()
    assert shown.one_value().mean() > hidden.one_value().mean()


def test_a_range_is_computed_anew_only_where_something_continues_from_a_stage() -> None:
    """One for each sample and each fault would be most of the cost of a contract with a mere second output."""

    def apart(r: Reading, x: Quantity, w: Quantity) -> dict[str, Quantity]:
        total = r.round("inverse", r.sum(r.square(r.round("read", x)), name="square"))
        return {"out": r.round("out", x * w), "inverse": total}

    for reference, again in ((norm, True), (apart, False)):
        kernel = kernel_of(reference)
        case = case_of(kernel)
        outputs = run(kernel, case, CHOICES[0])
        found = _observed(Bench(kernel, "quick", 0), case, outputs, 0)
        assert (found is not None) is again


def by_option(r: Reading, x: Quantity, w: Quantity, reads: str) -> dict[str, Quantity]:
    total = r.sum(r.square(r.round("read", x)), name="square")
    inverse = r.round("inverse", r.rsqrt(total + 1e-3))
    if reads == "stored":
        return {"out": r.round("out", x * r.observed("inverse", inverse) * w)}
    return {"out": r.round("out", x * inverse * w), "inverse": inverse}


def test_a_stage_that_one_alternative_alone_continues_from_narrows_what_follows() -> None:
    """Which stages there are was asked of the first alternative only."""
    plain = kernel_of(by_option)
    profile = replace(plain.profile, options={"reads": ("unrounded", "stored")})
    contract = replace(
        plain.contract, options={"reads": ("unrounded", "stored")}, profiles=(profile,)
    )
    kernel = Kernel(contract, {}, profile)
    assert structure(kernel)[0] == {"inverse": ("read", "inverse")}
    bench, case = Bench(kernel, "quick", 0), case_of(kernel)
    bench._sets["shapes"] = [case]
    outputs = plain_run(kernel, case, lambda: SampleReading(contract, profile), {"reads": "stored"})

    def known(option: int, seen: Any) -> int:
        return int(bench.range("shapes", 0, option, None, seen)["out"].one_value().sum())

    assert known(0, None) == known(0, outputs) == known(1, None) < known(1, outputs)


def test_a_wrong_stage_is_refused_at_the_stage_and_its_own_consequence_is_not() -> None:
    kernel = kernel_of(norm)
    case = case_of(kernel)
    out = run(kernel, case, CHOICES[1])
    wrong = formats.decode(out["inverse"], formats.get("fp32")) * 1.001
    fp32, bf16 = formats.get("fp32"), formats.get("bf16")
    out["inverse"] = formats.encode(formats.round_to(wrong, fp32), fp32)
    x, w = (formats.decode(case.operands[n], bf16) for n in ("x", "w"))
    kept = formats.decode(out["inverse"], fp32)
    out["out"] = formats.encode(formats.round_to(x * kept * w, bf16), bf16)
    found = refused(kernel, case, out)
    assert found["inverse"] == 8
    assert found["out"] == 0
    # without the stage the end alone must tell
    del out["inverse"]
    assert refused(kernel, case, out)["out"] > 0


def test_an_end_that_does_not_follow_from_its_own_stage_is_refused() -> None:
    kernel = kernel_of(norm)
    case = case_of(kernel)
    out = run(kernel, case, CHOICES[1])
    out["out"] = np.roll(out["out"], 1, axis=0)
    assert refused(kernel, case, out)["out"] > 500


class _Subject:
    depths: dict[str, int] = {}  # noqa: RUF012 -- a stand-in of few fields
    repeatable, control = False, None

    def told(self, launch: Launch) -> str:
        return launch.name


def judge(kernel: Kernel, outputs: dict[str, Array], case: Case) -> Tally:
    bench = Bench(kernel, "quick", 0)
    bench._sets["shapes"] = [case]
    tally = Tally()
    compare(bench, _Subject(), "shapes", 0, Launch("plain"), outputs, tally, {0})  # type: ignore[arg-type]
    return tally


def test_the_judge_lists_what_a_hidden_stage_does_not_show() -> None:
    kernel = kernel_of(norm)
    case = case_of(kernel)
    out = run(kernel, case, CHOICES[0])
    whole = judge(kernel, out, case)
    assert (whole.outcome, whole.notes, whole.compared) == ("", [], 8 * 96 + 8)
    inverse = out.pop("inverse")
    hidden = judge(kernel, out, case)
    assert hidden.notes == ["not shown: read, inverse"]
    assert hidden.compared == 8 * 96
    assert structure(kernel) == ({"inverse": ("read", "inverse")}, ())
    assert not_shown({"inverse": ("read",)}, {"inverse": inverse}) == []
    assert same_bits(kernel, out, out) == 0
    assert same_bits(kernel, out, {**out, "inverse": inverse}) == 1


def test_a_stage_may_be_left_out_and_an_output_may_not() -> None:
    torch = pytest.importorskip("torch")
    kernel = kernel_of(norm)
    case = case_of(kernel)
    out = torch.zeros(8, 96, dtype=torch.bfloat16)
    stage = torch.zeros(8, 1)
    for result in (out, (out,), {"out": out}, {"out": out, "inverse": None}, (out, None)):
        assert set(_collect(kernel, case, result, {}, False)) == {"out"}
    assert set(_collect(kernel, case, (out, stage), {}, False)) == {"out", "inverse"}
    for wrong in ({"inverse": stage}, (), (out, stage, stage), (None, stage)):
        with pytest.raises(BadOutput):
            _collect(kernel, case, wrong, {}, False)


def test_rows_of_hidden_stages_are_not_looked_for() -> None:
    kernel = kernel_of(norm)
    out = run(kernel, case_of(kernel), CHOICES[0])
    assert set(_even(kernel, out)) == {"out", "inverse"}
    del out["inverse"]
    assert set(_even(kernel, out)) == {"out"}


def test_an_observed_output_may_not_be_left_out() -> None:
    torch = pytest.importorskip("torch")
    stage = output("inverse", "rows one", "fp32", observed=True)
    staged = kernel_of(norm)
    operands = (*staged.contract.operands[:-1], stage)
    kernel = Kernel(replace(staged.contract, operands=operands), {}, staged.profile)
    case = case_of(kernel)
    assert stage_names(kernel) == ()
    out = run(kernel, case, CHOICES[0])
    # as with a stage, what follows is judged from its bits
    shown = case_range(kernel, case, prepare=observing(kernel, out))["out"]
    assert shown.one_value().mean() > case_range(kernel, case)["out"].one_value().mean()
    with pytest.raises(BadOutput):
        _collect(kernel, case, torch.zeros(8, 96, dtype=torch.bfloat16), {}, False)
    with pytest.raises(BadOutput):
        _collect(kernel, case, {"out": torch.zeros(8, 96, dtype=torch.bfloat16)}, {}, False)


def test_a_stage_that_is_not_declared_is_refused() -> None:
    kernel = kernel_of(norm, stage=False)
    with pytest.raises(DeclarationError, match=r"stage=True|not in profile"):
        case_range(kernel, case_of(kernel))
    kernel = kernel_of(lambda r, x, w: {"out": r.round("out", r.observed("other", x) * w)})
    with pytest.raises(DeclarationError, match="stage=True"):
        case_range(kernel, case_of(kernel))


def test_one_value_must_explain_the_whole_row() -> None:
    kernel = kernel_of(shared_norm, stage=False)
    case = case_of(kernel)
    for choice in CHOICES[:3]:
        out = run(kernel, case, choice)
        assert not joint_refused(kernel, case, out, "inverse").any(), choice
    # every element inside its own range, but each end by a different inverse
    r = case_range(kernel, case)["out"]
    wide = r.lo != r.hi
    assert wide.any()
    ends = np.where(np.cumsum(wide, axis=1) % 2 == 1, r.lo, r.hi).astype(np.int64)
    mixed = {"out": formats.from_ordered(ends, formats.get("bf16"))}
    assert not r.refused(mixed["out"]).any()
    rows = wide.sum(axis=1) >= 5
    assert rows.any()
    joint = joint_refused(kernel, case, mixed, "inverse")
    assert joint[rows].mean() > 0.5
    assert judge(kernel, mixed, case).outcome == "fail"
    assert judge(kernel, run(kernel, case, CHOICES[0]), case).outcome == ""


def doubling(r: Reading, x: Quantity, w: Quantity) -> dict[str, Quantity]:
    """Column by column: the sum so far, twice, and the next column; each from the sum that was stored."""
    total, sums = w[:1] * 0.0, []
    for j in range(3):
        total = r.round("sum", (total + total) + x[:, j : j + 1] * w[j : j + 1])
        total = r.observed("sums", total, along=-1)
        sums.append(total)
    return {"out": r.round("out", r.concat(sums) * 3.0)}


def stepwise(axis: int = -1) -> Kernel:
    def reference(r: Reading, x: Quantity, w: Quantity) -> dict[str, Quantity]:
        if axis != -1:
            r.observed("sums", r.round("sum", x), along=axis)
        return doubling(r, x, w)

    contract = Contract(
        name="stepwise",
        family="test",
        reference=reference,
        operands=(
            tensor("x", "rows d", "fp32"),
            tensor("w", "d", "fp32"),
            output("out", "rows d"),
            output("sums", "rows d", "fp32", observed=True),
        ),
        profiles=(Profile("plain", {"sum": "fp32", "out": "bf16"}),),
        row_dims=("rows",),
        shapes=({"rows": 2, "d": 3},),
        not_applicable={"exact": "a test"},
    )
    return Kernel(contract, {}, contract.profiles[0])


def test_a_stage_in_pieces_is_judged_piece_by_piece() -> None:
    kernel = stepwise()
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    case = make_case(kernel, {"rows": 2, "d": 3}, {"x": x, "w": np.ones(3)})
    out = run(kernel, case, CHOICES[0])
    fp32, bf16 = formats.get("fp32"), formats.get("bf16")
    sums = formats.decode(out["sums"], fp32)
    assert sums.tolist() == [[1.0, 4.0, 11.0], [4.0, 13.0, 32.0]]
    assert refused(kernel, case, out) == {"out": 0, "sums": 0}
    # a wrong second sum, from which the third and all outputs follow, is one wrong sum
    sums[0] = [1.0, 5.0, 13.0]
    out["sums"] = formats.encode(sums, fp32)
    out["out"] = formats.encode(formats.round_to(3.0 * sums, bf16), bf16)
    assert refused(kernel, case, out) == {"out": 0, "sums": 1}
    assert structure(kernel)[0] == {"sums": ("sum",)}


def test_axes_of_pieces_are_counted_from_the_end() -> None:
    kernel = stepwise(axis=1)
    case = make_case(kernel, {"rows": 2, "d": 3}, {"x": np.ones((2, 3)), "w": np.ones(3)})
    with pytest.raises(DeclarationError, match="count axes from the end"):
        run(kernel, case, CHOICES[0])
