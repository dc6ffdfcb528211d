"""Mutants of PTX: what the rules make of an instruction, how they are chosen, and what the gates make of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import ptx_kernel
import pytest
from sampling import SAMPLED

from contract import suites
from contract.checks import collect_checks
from contract.cli import main
from contract.config import RunOptions, read_config
from contract.engines.ptx.faults import Malformed
from contract.engines.ptx.mutants import Mutant, mutants
from contract.mutation import ptx, verdicts
from contract.mutation.verdicts import Judged, Result

SUITE = Path(__file__).parent / "suite"


def of(statement: str, before: str = "") -> set[tuple[str, str]]:
    """(kind, what stands in its place) of every mutant of the statement, which stands on a line of its own."""
    text = ptx_kernel.source(f"{before}\n{statement}", 2)
    line = text.splitlines().index(statement) + 1
    found = [one for one in mutants(text, "k") if one.line == line]
    assert all(one.before == statement for one in found)
    return {(one.kind, one.after) for one in found if one.kind != "another register"}


DEFINED = (
    "mov.f32 %f1, 0f3F800000; mov.f32 %f2, %f1; mov.f32 %f3, %f1; mov.b32 %r5, 3; mov.b32 %r6, 4;\n"
    "setp.eq.u32 %p1, %r0, 0; mov.b32 %r7, 1;"
)


@pytest.mark.parametrize(
    ("statement", "wanted"),
    [
        ("fma.rn.f32 %f4, %f1, %f2, %f3;", {
            ("fused multiply-add to its product", "mul.rn.f32 %f4, %f1, %f2;"),
            ("fused multiply-add to its addend", "mov.b32 %f4, %f3;"),
            ("fused multiply-add in two roundings",
             "{ .reg .b32 %mutant; mul.rn.f32 %mutant, %f1, %f2; add.rn.f32 %f4, %mutant, %f3; }"),
            ("subnormals flushed or kept", "fma.rn.ftz.f32 %f4, %f1, %f2, %f3;")}),
        ("@!%p1 fma.rn.ftz.f32 %f4, %f1, %f2, %f3;", {
            ("fused multiply-add to its product", "@!%p1 mul.rn.ftz.f32 %f4, %f1, %f2;"),
            ("fused multiply-add to its addend", "@!%p1 mov.b32 %f4, %f3;"),
            ("fused multiply-add in two roundings",
             "{ .reg .b32 %mutant; @!%p1 mul.rn.ftz.f32 %mutant, %f1, %f2; @!%p1 add.rn.ftz.f32 %f4, %mutant, %f3; }"),
            ("subnormals flushed or kept", "@!%p1 fma.rn.f32 %f4, %f1, %f2, %f3;"),
            ("predicate inverted", "@%p1 fma.rn.ftz.f32 %f4, %f1, %f2, %f3;"),
            ("predicate dropped", "fma.rn.ftz.f32 %f4, %f1, %f2, %f3;")}),
        ("cvt.rn.f16.f32 %h1, %f1;", {
            ("rounding of a conversion", f"cvt.{mode}.f16.f32 %h1, %f1;") for mode in ("rz", "rm", "rp")}),
        ("cvt.rni.s32.f32 %r8, %f1;", {
            ("rounding of a conversion", f"cvt.{mode}.s32.f32 %r8, %f1;") for mode in ("rzi", "rmi", "rpi")}),
        ("shfl.sync.bfly.b32 %r8, %r5, 4, 31, -1;", {
            ("offset of a shuffle", f"shfl.sync.bfly.b32 %r8, %r5, {n}, 31, -1;") for n in (0, 2, 8)}),
        ("bar.sync 0;", {("barrier removed", ";")}),
        ("add.s32 %r8, %r5, 7;", {
            ("integer constant by one", "add.s32 %r8, %r5, 8;"),
            ("integer constant by one", "add.s32 %r8, %r5, 6;"),
            ("sum and difference", "sub.s32 %r8, %r5, 7;")}),
        ("mul.rn.f32 %f4, %f1, 0fBF800000;", {
            ("float constant by one ulp", "mul.rn.f32 %f4, %f1, 0fBF800001;"),
            ("sign of a float constant", "mul.rn.f32 %f4, %f1, 0f3F800000;"),
            ("subnormals flushed or kept", "mul.rn.ftz.f32 %f4, %f1, 0fBF800000;")}),
        ("max.s32 %r8, %r5, %r6;", {("minimum and maximum", "min.s32 %r8, %r5, %r6;")}),
        ("setp.lt.s32 %p2, %r5, %r6;", {("comparison", "setp.le.s32 %p2, %r5, %r6;")}),
        ("selp.b32 %r8, %r5, %r6, %p1;", {("operands of a selection", "selp.b32 %r8, %r6, %r5, %p1;")}),
        ("st.global.v2.b32 [%e0+8], {%r5, %r6};", {
            ("store narrowed", "st.global.b32 [%e0+8], %r5;"),
            ("offset of an address", "st.global.v2.b32 [%e0+16], {%r5, %r6};"),
            ("offset of an address", "st.global.v2.b32 [%e0+0], {%r5, %r6};")}),
        ("st.global.v4.b32 [%e0], {%r5, %r6, %r7, %r0};", {
            ("store narrowed", "st.global.v2.b32 [%e0], {%r5, %r6};"),
            ("offset of an address", "st.global.v4.b32 [%e0+16], {%r5, %r6, %r7, %r0};"),
            ("offset of an address", "st.global.v4.b32 [%e0+-16], {%r5, %r6, %r7, %r0};")}),
    ],
)  # fmt: skip
def test_what_a_rule_makes_of_an_instruction(statement: str, wanted: set[tuple[str, str]]) -> None:
    assert of(statement, DEFINED) == wanted


def test_a_round_trip_through_bf16_is_dropped_where_its_start_is_known() -> None:
    trip = "mov.b32 %f4, {%h0, %h1};"
    before = "mov.f32 %f1, 0f3F800000; mov.b16 %h0, 0;\ncvt.rn.bf16.f32 %h1, %f1;"
    assert ("round trip dropped", "mov.b32 %f4, %f1;") in of(trip, before)
    # written twice: which value it holds, the text does not tell
    assert of(trip, f"{before}\ncvt.rn.bf16.f32 %h1, %f1;") == set()


MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r1, %r2, %r3, %r4}, {%r5, %r6}, {%f1, %f2, %f3, %f4};"


def test_operands_and_accumulator_of_a_matrix_product() -> None:
    defined = "".join(f"mov.b32 %r{i}, 0; mov.f32 %f{i}, 0f00000000;" for i in range(1, 7))
    found = {after for _, after in of(MMA, defined)}
    assert MMA.replace("{%r1,", "{%r5,") in found
    assert MMA.replace("{%r5, %r6}", "{%r6, %r5}") in found
    assert MMA.replace("{%r1, %r2,", "{%r2, %r1,") in found
    zeroed = MMA.replace("{%f1, %f2, %f3, %f4};", "{%mutant, %mutant, %mutant, %mutant};")
    assert f"{{ .reg .b32 %mutant; mov.b32 %mutant, 0; {zeroed} }}" in found


def test_another_register_is_the_last_of_its_type_that_was_written() -> None:
    text = ptx_kernel.source(f"{DEFINED}\nadd.s32 %r8, %r5, %r6;", 1)
    found = {one.after for one in mutants(text, "k") if one.kind == "another register"}
    assert {"add.s32 %r8, %r7, %r6;", "add.s32 %r8, %r5, %r7;"} <= found


TEXT = ptx_kernel.source(
    f"{DEFINED}\nadd.s32 %r8, %r5, 7;\nadd.s32 %r9, %r8, 9;\n{{ mul.rn.f32 %f4, %f1, 0f40000000;}}\n"
    "setp.lt.s32 %p2, %r8, %r9;\n@%p2 st.global.f32 [%e0], %f4;\nbar.sync 0;", 1)  # fmt: skip


def test_one_line_differs_and_the_choice_is_the_same_every_time() -> None:
    found = mutants(TEXT, "k", 12, seed=3)
    assert found == mutants(TEXT, "k", 12, seed=3)
    assert found != mutants(TEXT, "k", 12, seed=4)
    for one in found:
        lines, changed = TEXT.splitlines(), one.text.splitlines()
        differ = [i + 1 for i, (a, b) in enumerate(zip(lines, changed, strict=True)) if a != b]
        assert differ == [one.line]
        assert one.after in changed[one.line - 1]


def test_few_mutants_are_of_different_kinds() -> None:
    every = {one.kind for one in mutants(TEXT, "k")}
    assert len(every) > 8
    assert Counter(one.kind for one in mutants(TEXT, "k", len(every))) == Counter(every)


@pytest.mark.parametrize("seed", range(6))
def test_of_a_kind_each_line_comes_first(seed: int) -> None:
    every = mutants(TEXT, "k", seed=seed)
    found = [one.line for one in every if one.kind == "integer constant by one"]
    lines = len(set(found))
    assert lines > 1
    assert len(set(found[:lines])) == lines


def test_what_stands_twice_on_its_line_is_left_alone() -> None:
    text = ptx_kernel.source("add.s32 %r8, %r0, 7; add.s32 %r8, %r0, 7;", 1)
    assert not [one for one in mutants(text, "k") if "7" in one.before]


def test_a_text_that_is_no_ptx_is_told() -> None:
    with pytest.raises(Malformed):
        mutants("nonsense", "k")


# Judged


@pytest.fixture
def handmade(project: Path) -> Path:
    (project / "contracts" / "handmade.py").write_text((SUITE / "handmade.py").read_text())
    return project


#: (instruction, kind of change) -> (verdict, as what it is refused).
BECOMES = {
    ("bar.sync 0;", "barrier removed"): (verdicts.KILLED, "race"),
    ("mov.b32 %f5, {0, %rs3};", "round trip dropped"): (verdicts.KILLED, "values"),
    ("cvt.rn.bf16.f32 %rs4, %f6;", "rounding of a conversion"): (verdicts.KILLED, "values"),
    ("@%p1 ld.global.b16 %rs1, [%rd5];", "predicate dropped"): (verdicts.KILLED, "out of bounds"),
    ("@%p1 ld.global.b16 %rs1, [%rd5];", "predicate inverted"): (verdicts.KILLED, "out of bounds"),
    ("setp.lt.s32 %p2, %r13, %r9;", "comparison"): (verdicts.KILLED, "out of bounds"),
    ("ld.shared.f32 %f2, [%r12];", "offset of an address"): (verdicts.KILLED, "out of bounds"),
    # the threads exchange their elements in another way
    ("xor.b32 %r10, %r1, 32;", "integer constant by one"): (verdicts.EQUAL, ""),
    ("mul.wide.s32 %rd4, %r4, 2;", "integer constant by one"): (verdicts.KILLED, "misaligned"),
    ("add.rn.f32 %f6, %f5, %f3;", "sum and difference"): (verdicts.KILLED, "values"),
    # what lanes beyond the end hold is stored nowhere
    ("mov.b16 %rs1, 0;", "integer constant by one"): (verdicts.EQUAL, ""),
    ("mul.rn.f32 %f4, %f2, %f9;", "subnormals flushed or kept"): (verdicts.FREEDOM, ""),
}  # fmt: skip


def chosen(text: str, entry: str, count: int, seed: int) -> list[Mutant]:
    """One mutant of each line of BECOMES."""
    found = {(one.before, one.kind): one for one in reversed(mutants(text, entry))}
    return [found[key] for key in BECOMES]


def test_what_the_gates_make_of_each_fault(handmade: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "mutants", chosen)
    loaded = suites.load(read_config())
    targets = ptx.targets(collect_checks(automatic=False))
    assert [check.implementation for check in targets] == ["handmade"]
    (judged,) = ptx.judge(targets, RunOptions(suites=loaded.payload()), len(BECOMES))
    assert {
        (one.mutant.before, one.mutant.kind): (one.verdict, one.reason) for one in judged.results
    } == BECOMES
    assert verdicts.exit_code([judged]) == 0


def test_the_command_line_prints_what_became_of_them(
    handmade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mutate", "--ptx", "scaled", "--count", "6", "--json", "found.json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("scaled/two_step/handmade: 6 mutants: ")
    assert "0 survived" in out
    said = json.loads((handmade / "found.json").read_text())
    assert len(said["mutants"]) == sum(said["counts"].values()) == 6
    assert set(said["mutants"][0]) == {
        "implementation", "entry", "verdict", "gate", "reason", "detail", "calls", "moved", "line", "kind", "before", "after"}  # fmt: skip


def test_a_kernel_that_is_wrong_as_it_is_is_not_changed(
    handmade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = handmade / "contracts" / "handmade.py"
    suite.write_text(
        suite.read_text().replace("add.rn.f32 %f6, %f5, %f3", "sub.rn.f32 %f6, %f5, %f3")
    )
    assert main(["mutate", "--ptx"]) == 1
    out = capsys.readouterr().out
    assert "scaled/two_step/handmade: refused before anything is changed: shapes: " in out


def test_what_cannot_run_is_named_and_ends_5(
    handmade: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = handmade / "contracts" / "handmade.py"
    suite.write_text(
        suite.read_text().replace('engine="ptx", ', 'engine="ptx", requires=("absent_compiler",), ')
    )
    assert main(["mutate", "--ptx"]) == 5
    assert capsys.readouterr().out == (
        "scaled/two_step/handmade: not run: absent_compiler is not installed\n"
    )


def test_a_selection_without_compiled_code_ends_5(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mutate", "--ptx", "scaled"]) == 5
    assert "no implementation of the engine ptx" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mutate", "--ptx", "--fresh"], "--fresh is for changes of a source"),
        (["mutate", "--ptx", "--count", "all"], "--count all is for changes of a source"),
        (["mutate", "--ptx", "--count", "0"], "'0' is not a whole number >= 1"),
        (["mutate", "--ptx", "scalde"], "no check 'scalde'"),
        (["mutate", "--ptx", "--impl", "torhc"], "no implementation 'torhc'"),
    ],
)
def test_a_usage_error_ends_4(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(words) == 4
    assert said in capsys.readouterr().err


def result(verdict: str, kind: str = "comparison", **more: Any) -> Result:
    mutant = Mutant(7, kind, "setp.lt.s32 %p1, %r1, 5;", "setp.le.s32 %p1, %r1, 5;", "")
    return Result("a/b/c", "k", mutant, verdict, **more)


def test_one_survivor_ends_1_and_is_shown_in_full() -> None:
    killed = [result(verdicts.KILLED, reason="values") for _ in range(3)]
    found = Judged(
        "a/b/c", [*killed, result(verdicts.EQUAL), result(verdicts.SURVIVED, calls=9, moved=2)]
    )
    assert verdicts.exit_code([found]) == 1
    assert verdicts.lines(found) == [
        "a/b/c: 5 mutants: 3 killed (values 3), 1 equal on every input, 0 inside a freedom, 1 survived; kill rate 75.0 %",
        "  survived: comparison, line 7 of k: 2 outputs of 9 calls moved, all allowed",
        "    - setp.lt.s32 %p1, %r1, 5;",
        "    + setp.le.s32 %p1, %r1, 5;",
    ]


def test_what_was_not_run_is_never_green() -> None:
    good = Judged("a/b/c", [result(verdicts.KILLED)])
    assert verdicts.exit_code([good]) == 0
    assert verdicts.exit_code([]) == 5
    assert verdicts.exit_code([good, Judged("a/b/d", not_run="triton is not installed")]) == 5
    assert verdicts.exit_code([Judged("a/b/c", [result(verdicts.NOT_RUN)])]) == 5
    assert verdicts.exit_code([good, Judged("a/b/d", refused="refused")]) == 1


#: Of each of these so many mutants; of the sampled form fewer kernels, too.
KERNELS = (
    "rms_norm/once/triton", "w4_gemv/kept/triton", "geglu/each_op/triton", "rope/each_op/triton",
    "layer_norm/once/triton", "add_rms_tail/each/triton", "softcap/each_op/triton", "vit_pool/mean/triton",
)  # fmt: skip
COUNT = 5 if SAMPLED else 40


@pytest.mark.slow
def test_of_hundreds_of_mutants_of_real_kernels_the_gates_refuse_nearly_all(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    file = tmp_path / "found.json"
    names = KERNELS[:2] if SAMPLED else KERNELS
    assert main(["mutate", "--ptx", *names, "--count", str(COUNT), "--json", str(file)]) in (0, 1)
    said = json.loads(file.read_text())
    assert not said["not_run"]
    assert not said["refused"]
    assert len(said["mutants"]) == COUNT * len(names)
    counts = said["counts"]
    assert counts["killed"] >= 0.97 * (counts["killed"] + counts.get("survived", 0)), [
        one for one in said["mutants"] if one["verdict"] == "survived"
    ]
