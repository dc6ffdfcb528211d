"""Changes of Python source: what the rules make of a line, how a change is put in place, what the gates make of it."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from sampling import SAMPLED

from contract import mutantbook, recordbook
from contract.cli import main
from contract.errors import StoreError
from contract.mutation import changed_kernel
from contract.mutation import source as judging
from contract.mutation.applied import nested
from contract.mutation.changes import Candidate, Change, Ran, candidates, chosen
from contract.mutation.edit import Source
from contract.mutation.noting import _HELD, Notes, holds, noting, same_numbers
from contract.mutation.operators import edits
from contract.mutation.verdicts import EQUAL, FREEDOM, KILLED, NOT_RUN, SURVIVED, Result
from contract.store import Store


def of(line: str, before: str = "") -> set[tuple[str, str]]:
    """(kind, the line as it then is) of every change of a line of a function's body."""
    text = f"def f(x, y, n):\n    {before or 'pass'}\n    {line}\n"
    source = Source(text)
    changed = [(edit.kind, source.applied(edit)) for edit in edits(source, source.tree.body[0])]
    for _, after in changed:
        ast.parse(after)
    return {
        (kind, after.splitlines()[2].strip())
        for kind, after in changed
        if after.splitlines()[1] == text.splitlines()[1]
    }


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("return x[3:n]", {
            ("integer by one", "return x[4:n]"), ("integer by one", "return x[2:n]"), ("offset", "return x[3:n - 1]")}),
        ("return x & 0x0f", {
            ("integer by one", "return x & 0x10"), ("integer by one", "return x & 0xe"), ("operator", "return x | 0x0f")}),
        ("return x.sum(-1, keepdim=True)", {
            ("dim", "return x.sum(-2, keepdim=True)"), ("flag", "return x.sum(-1, keepdim=False)"),
            ("another function", "return x.mean(-1, keepdim=True)")}),
        ("return x.unflatten(dim=0)", {("dim", "return x.unflatten(dim=1)")}),
        ("y = f(0.5)", {
            ("float constant", "y = f(0.50390625)"), ("sign of a constant", "y = f(-0.5)")}),
        ("return (x + y).float()", {
            ("cast dropped", "return (x + y)"), ("cast narrowed", "return (x + y).bfloat16()"),
            ("operator", "return (x - y).float()")}),
        ("return x.to(torch.float32)", {
            ("cast dropped", "return x"), ("dtype", "return x.to(torch.bfloat16)")}),
        ("return x - y", {("operator", "return x + y"), ("operands swapped", "return y - x")}),
        ("return (x + 1) / y * n", {
            ("operator", "return (x - 1) / y * n"), ("operator", "return (x + 1) * y * n"),
            ("operator", "return (x + 1) / y / n"), ("operands swapped", "return y / (x + 1) * n"),
            ("integer by one", "return (x + 2) / y * n"), ("integer by one", "return (x + 0) / y * n")}),
        ("return x @ y", {("operands swapped", "return y @ x")}),
        ("return -x", {("sign dropped", "return x")}),
        ("return y if x < n else x", {("comparison", "return y if x <= n else x")}),
        ("return x is None", {("comparison", "return x is not None")}),
        ("return x and y", {("and, or", "return x or y")}),
        ("return not x", {("not dropped", "return x")}),
        ("return x if y else n", {("condition negated", "return x if not y else n")}),
        ("return torch.where(x, y, n)", {("arms of a selection", "return torch.where(x, n, y)")}),
        ("return g(x, y)", {("arguments swapped", "return g(y, x)")}),
        ("return x.transpose(0, 1)", {("dim", "return x.transpose(1, 1)"), ("dim", "return x.transpose(0, 0)")}),
        ("x.mul_(y)", {
            ("call dropped", "x"), ("another function", "x.div_(y)"), ("statement dropped", "pass")}),
        ("for i in range(n): x = i", {("offset", "for i in range(n - 1): x = i")}),
        ("x += y", {("operator", "x -= y"), ("statement dropped", "pass")}),
        ("x[y] = n", {("statement dropped", "pass")}),
        # what no output rests on
        ("raise ValueError(x + 1)", set()),
        ("if n < 1: raise ValueError(n)", set()),
        ("z: Tuple[1] = x", set()),
        ("return zip(x, y, strict=True)", {("arguments swapped", "return zip(y, x, strict=True)")}),
    ],
)  # fmt: skip
def test_what_a_rule_makes_of_a_line(line: str, wanted: set[tuple[str, str]]) -> None:
    assert of(line) == wanted


def test_an_assignment_is_dropped_where_its_name_has_a_value() -> None:
    assert ("statement dropped", "pass") in of("z = x", before="z = y")
    assert of("z = x", before="w = y") == set()


# Which


def ran(text: str, lines: set[int], notes: Notes | None = None) -> Ran:
    told = (notes or Notes()).as_json()
    return Ran(frozenset(lines), frozenset(told["arms"]), told["keys"], told["casts"])


def changes_of(path: Path, one: Ran, count: int | None = None, seed: int = 0) -> list[Change]:
    return chosen([candidates({str(path): one})], seed, count)


TEXT = textwrap.dedent(
    """
    UNIT = 4
    OTHER = 5


    def outer(x, y):
        if x > 3:
            return x * UNIT
        return inner(x - y)


    def inner(x):
        return x + 1
    """
).lstrip()


def test_one_line_differs_and_the_choice_is_the_same_every_time(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(TEXT)
    every = ran(TEXT, set(range(1, 20)))
    found = changes_of(path, every, 6, seed=3)
    assert found == changes_of(path, every, 6, seed=3)
    assert found != changes_of(path, every, 6, seed=4)
    assert len({one.digest for one in changes_of(path, every)}) == len(changes_of(path, every)) > 10
    for one in found:
        lines, changed = TEXT.splitlines(), one.text.splitlines()
        differ = [i + 1 for i, (a, b) in enumerate(zip(lines, changed, strict=True)) if a != b]
        assert differ == [one.line]
        assert f"-{lines[one.line - 1]}" in one.diff
        assert f"+{changed[one.line - 1]}" in one.diff
    assert path.read_text() == TEXT


def test_what_did_not_run_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(TEXT)
    # the first arm of outer, and neither the call nor inner
    found = changes_of(path, ran(TEXT, {6, 7}))
    assert {one.line for one in found} == {1, 6, 7}
    # a constant that nothing of it reads
    assert {one.name for one in found if not one.function} == {"UNIT"}
    assert changes_of(path, ran(TEXT, set())) == []


def test_the_digest_is_of_the_change_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = tmp_path / "a" / "kernel.py", tmp_path / "b" / "kernel.py"
    one.write_text(TEXT)
    two.write_text("import math\n\n" + TEXT)
    every = set(range(1, 30))
    before = {c.digest: c.after for c in changes_of(one, ran(TEXT, every))}
    after = {c.digest: c.after for c in changes_of(two, ran(TEXT, every))}
    assert before == after


def noted(text: str, **values: object) -> Notes:
    """What `f(**values)` notes."""
    notes = Notes()
    defined(compile(noting(text), "kernel", "exec"), notes)(**values)
    return notes


def defined(code: CodeType, notes: Notes | None = None) -> Callable[..., Any]:
    """The function `f` that a code defines."""
    space: dict[str, Any] = {"__noted__": notes, "torch": pytest.importorskip("torch")}
    exec(code, space)  # noqa: S102 - the test's own text
    function: Callable[..., Any] = space["f"]
    return function


def test_arms_that_never_ran_are_left_alone(tmp_path: Path) -> None:
    text = 'def f(x, y):\n    return (x + 1 if y else x + 2) + {"a": 3, "b": 4}[y] if y and x > 5 else x - 6\n'
    path = tmp_path / "kernel.py"
    path.write_text(text)

    def touched(**values: object) -> set[str]:
        found = candidates({str(path): ran(text, {2}, noted(text, **values))})
        return {text.encode()[c.edit.start : c.edit.end].decode() for c in found.values()}

    never = touched(x=6, y="")
    assert "6" in never
    assert not never & {"1", "2", "3", "4", "5"}
    taken = touched(x=6, y="a")
    assert {"1", "3", "5"} <= taken
    assert not taken & {"2", "4", "6"}


def test_a_noting_function_computes_the_same() -> None:
    torch = pytest.importorskip("torch")
    text = "def f(x, y):\n    return torch.addcmul(x.float(), y, y.float()) * (y.float() if x.ndim else y)\n"
    x, y = torch.randn(5).bfloat16(), torch.randn(5)
    notes = Notes()
    plain = defined(compile(text, "kernel", "exec"))
    assert torch.equal(defined(compile(noting(text), "kernel", "exec"), notes)(x, y), plain(x, y))
    assert len(notes.casts) == 3


# Formats


@pytest.mark.parametrize(
    ("line", "dtype", "argument"),
    [
        # torch promotes bf16 beside fp32 to it
        ("return x.float() * y", None, "the value is bfloat16, which torch promotes beside float32"),
        ("return y * (x.float() if x.ndim else x)", None, "the value is bfloat16, which torch promotes beside float32"),
        ("return torch.addcmul(y, y, x.float())", None, "the value is bfloat16, which torch promotes beside float32"),
        ("return y.float() * x", None, "the value is float32"),
        # the product of two bf16 is rounded
        ("return x.float() * x", None, ""),
        # a number promotes nothing
        ("return x.float() * 2.0", None, ""),
        # fp32 does not fit
        ("return y.float() * y", "bfloat16", ""),
        ("return torch.sigmoid(x.float())", None, ""),
        # a tensor without dims promotes nothing
        ("return x.float() * y[0]", None, ""),
    ],
)  # fmt: skip
def test_a_cast_is_argued_away_only_where_torch_makes_it_anyway(
    line: str, dtype: str | None, argument: str
) -> None:
    torch = pytest.importorskip("torch")
    text = f"def f(x, y):\n    {line}\n"
    notes = noted(text, x=torch.randn(7).bfloat16(), y=torch.randn(7)).as_json()
    (cast,) = notes["casts"].values()
    assert same_numbers(cast, dtype) == argument


def test_two_formats_at_one_cast_argue_for_nothing() -> None:
    assert same_numbers({"value": ["bfloat16", "float32"], "result": ["float32"], "beside": ["float32"]}, None) == ""  # fmt: skip


@pytest.mark.parametrize(("small", "large"), [(a, b) for a, ones in _HELD.items() for b in sorted(ones)])  # fmt: skip
def test_a_format_that_holds_another_holds_each_of_its_values(small: str, large: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, small)
    if kind.is_floating_point and kind.itemsize == 2:
        values = torch.arange(-(2**15), 2**15).short().view(kind)
        values = values[~values.isnan()]
    elif kind.is_floating_point:
        info = torch.finfo(kind)
        values = torch.tensor([info.max, info.tiny, info.smallest_normal / 2**23, 1 + info.eps], dtype=kind)  # fmt: skip
    elif kind == torch.bool:
        values = torch.tensor([False, True])
    else:
        info = torch.iinfo(kind)
        near = torch.arange(-300, 300).clamp(info.min, info.max).to(kind)
        values = torch.cat([near, torch.tensor([info.min, info.min + 1, info.max - 1, info.max], dtype=kind)])  # fmt: skip
    there = values.to(getattr(torch, large))
    assert torch.equal(there.to(kind), values)
    assert torch.equal(there.double(), values.double())


def test_a_format_does_not_hold_a_wider_one() -> None:
    assert holds("bfloat16", "bfloat16")
    assert not holds("float32", "bfloat16")
    assert not holds("int32", "float32")
    assert not holds("int16", "bfloat16")


def test_nested_functions_are_found_in_a_code_object() -> None:
    code = compile("def f():\n    def g():\n        return lambda: 1\n    return g\n", "x", "exec")
    assert [one.co_name for one in nested(code)] == ["<module>", "f", "g", "<lambda>"]


# Judged

SCALED = "    product = x * scale\n    return product + y"


@pytest.fixture
def mutate(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`contract mutate` with these words, of a suite whose implementation has this body: (exit code, output)."""
    suite = project / "contracts" / "scaled.py"

    def run(*words: str, body: str = "", head: str = "") -> tuple[int, str]:
        text = suite.read_text()
        if body:
            text = text.replace(SCALED, textwrap.indent(body, "    ") + "\n" + SCALED, 1)
        if head:
            text = text.replace("from typing import Any\n", f"from typing import Any\n{head}\n", 1)
        suite.write_text(text)
        capsys.readouterr()
        before = suite.read_bytes()
        code = main(["mutate", "scaled", *words])
        assert suite.read_bytes() == before
        return code, capsys.readouterr().out

    return run


def test_the_gates_refuse_what_is_changed(mutate: Callable[..., tuple[int, str]]) -> None:
    code, out = mutate("--count", "all", "--json", "found.json")
    assert code == 0, out
    said = json.loads(Path("found.json").read_text())
    assert said["counts"] == {"killed": len(said["mutants"])}
    assert len(said["mutants"]) >= 5
    assert code == said["exit_code"] == 0
    assert out.startswith(f"scaled/torch: {len(said['mutants'])} mutants: ")
    swapped = next(one for one in said["mutants"] if one["kind"] == "operands swapped")
    # in the second arm, which one kernel of the two runs
    assert swapped["detail"].startswith("scaled,sign=minus/two_step: ")
    assert swapped["reason"] == "values"
    assert set(swapped) == {
        "implementation", "entry", "verdict", "gate", "reason", "detail", "calls", "moved", "file", "line", "kind",
        "before", "after", "digest", "diff"}  # fmt: skip
    assert swapped["entry"] == "contracts/scaled.py:scaled_torch"


IDLE = "idle = x * 2"


def test_a_survivor_is_printed_as_a_diff(mutate: Callable[..., tuple[int, str]]) -> None:
    code, out = mutate("--count", "all", body=IDLE)
    assert code == 1
    assert "3 survived" in out
    assert "no output of any gate moved, and no argument says that none can" in out
    assert "    --- a/contracts/scaled.py\n    +++ b/contracts/scaled.py\n    @@ " in out
    assert "\n    -    idle = x * 2\n    +    idle = x / 2\n" in out


def argue(project: Path, out: str, verdict: str) -> None:
    """Give every survivor an argument in the suite's records."""
    digests = [line.split()[1][:-1] for line in out.splitlines() if line.startswith("    (diff ")]
    book = {
        "arguments": [{"diff": d, "verdict": verdict, "argument": "nothing reads it"} for d in digests],
        "scores": [],
    }  # fmt: skip
    folder = project / "contracts" / "records"
    folder.mkdir()
    record = {"schema": 1, "kernel": "scaled", "entries": [], "waivers": [], "mutants": book}
    (folder / "scaled.json").write_text(json.dumps(record))


def test_an_argument_and_equal_outputs_make_it_equal(
    mutate: Callable[..., tuple[int, str]], project: Path
) -> None:
    _, out = mutate("--count", "all", body=IDLE)
    argue(project, out, "equal")
    code, out = mutate("--count", "all")
    assert code == 0
    assert "3 equal on every input" in out
    assert "0 survived" in out


@pytest.mark.parametrize(
    ("verdict", "moved", "argument", "becomes"),
    [
        (EQUAL, 0, "equal", EQUAL),
        (EQUAL, 0, None, SURVIVED),
        (EQUAL, 0, "freedom", FREEDOM),
        (SURVIVED, 3, "freedom", FREEDOM),
        (SURVIVED, 3, None, SURVIVED),
        (SURVIVED, 3, "equal", SURVIVED),
        (KILLED, 3, "equal", KILLED),
        (NOT_RUN, 0, "equal", NOT_RUN),
    ],
)
def test_an_argument_is_taken_only_where_the_outputs_agree(
    verdict: str, moved: int, argument: str | None, becomes: str
) -> None:
    told = None if argument is None else mutantbook.Argument(argument, "because")
    change = Change("a", "a", "f", 1, "k", "", "", (), "", "")
    result = judging._argued(Result("a/b", "f", change, verdict, moved=moved), told)
    assert result.verdict == becomes
    assert (result.detail == "because") == (becomes == argument != "killed")
    if becomes == SURVIVED and argument == "equal":
        assert result.detail == "3 outputs moved, all allowed; the argument says that none can: because"  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        (EQUAL, KILLED, KILLED),
        (SURVIVED, KILLED, KILLED),
        (EQUAL, SURVIVED, SURVIVED),
        (FREEDOM, EQUAL, FREEDOM),
        (NOT_RUN, EQUAL, NOT_RUN),
        (NOT_RUN, SURVIVED, SURVIVED),
    ],
)
def test_of_two_kernels_the_one_that_says_more_counts(first: str, second: str, both: str) -> None:
    change = Change("a", "a", "f", 1, "k", "", "", (), "", "")
    one, two = (Result("a/b", "f", change, v, calls=2, moved=1) for v in (first, second))
    assert judging._worse(None, one) == one
    for found in (judging._worse(one, two), judging._worse(two, one)):
        assert (found.verdict, found.calls, found.moved) == (both, 4, 2)


def test_of_two_survivals_the_one_that_moved_outputs_is_told() -> None:
    change = Change("a", "a", "f", 1, "k", "", "", (), "", "")
    still = Result("a/b", "f", change, SURVIVED, detail="nothing moved")
    moved = Result("a/b", "f", change, SURVIVED, moved=3)
    assert judging._worse(still, moved).detail == judging._worse(moved, still).detail == ""


def test_a_mutant_that_hangs_or_ends_its_process_is_killed_and_the_run_goes_on(
    mutate: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_kernel, "LEAST_SECONDS", 1.0)
    body = "n = 2\nwhile n != 0:\n    n -= 1\nif n > 0:\n    os._exit(3)"
    code, _ = mutate("--count", "all", "--json", "found.json", body=body, head="import os")
    found = json.loads(Path("found.json").read_text())["mutants"]
    reasons = {(one["kind"], one["after"]): one["reason"] for one in found}
    assert reasons["operator", "n += 1"] == "timeout"
    assert reasons["comparison", "if n >= 0:"] == "crash"
    # and those after them were judged
    assert ("operands swapped", 'return product + y if sign == "plus" else product - y') in reasons
    assert code == 1
    assert {one["verdict"] for one in found} == {"killed", "survived"}


def test_helpers_and_constants_of_other_files_are_changed_where_they_are_read(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "helpers.py").write_text(
        "import functools\n\nUNIT = 1\nIDLE = 7\n\n\n@functools.lru_cache\ndef unit(x=3):\n    return UNIT\n\n\n"
        "class Table:\n    @staticmethod\n    def one():\n        return UNIT + 0\n"
    )
    suite = project / "contracts" / "scaled.py"
    text = suite.read_text().replace("import contract\n", "import contract\nfrom helpers import UNIT, Table, unit\n", 1)  # fmt: skip
    suite.write_text(text.replace(SCALED, SCALED.replace("x * scale", "x * scale * unit() * Table.one() * UNIT")))  # fmt: skip
    main(["mutate", "scaled", "--count", "all", "--json", "found.json"])
    found = json.loads((project / "found.json").read_text())["mutants"]
    verdicts = {(one["entry"], one["after"]): one["verdict"] for one in found}
    # a constant that three modules and a cache have, under its name or by it
    assert verdicts["helpers.py:UNIT", "UNIT = 2"] == KILLED
    assert verdicts["helpers.py:Table.one", "return UNIT + 1"] == KILLED
    assert "helpers.py:IDLE" not in {entry for entry, _ in verdicts}


def test_a_kernel_that_is_wrong_as_it_is_is_not_changed(
    mutate: Callable[..., tuple[int, str]], project: Path
) -> None:
    suite = project / "contracts" / "scaled.py"
    suite.write_text(suite.read_text().replace("product = x * scale", "product = x / scale"))
    code, out = mutate()
    assert code == 1
    assert out.startswith("scaled/torch: scaled/two_step/torch is refused before anything is changed: exact: ")  # fmt: skip


def test_what_is_done_is_taken_from_the_store(
    mutate: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = mutate("--count", "5")
    monkeypatch.setattr(
        changed_kernel.ChangedKernel, "_start", lambda *_: pytest.fail("judged again")
    )
    assert mutate("--count", "5") == first
    with pytest.raises(pytest.fail.Exception, match="judged again"):
        mutate("--count", "5", "--fresh")


def test_a_run_that_is_killed_goes_on_where_it_was(project: Path) -> None:
    command = [sys.executable, "-m", "contract", "mutate", "scaled/two_step", "scaled,sign=minus", "--count", "all"]  # fmt: skip
    store = project / ".contract" / "checks"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        until = time.monotonic() + 120
        while len(list(store.glob("??/*.json"))) < 4:
            assert time.monotonic() < until
            assert running.poll() is None
            time.sleep(0.01)
        os.kill(running.pid, signal.SIGKILL)
    kept = len(list(store.glob("??/*.json")))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    entries = Store(project / ".contract")
    keys = entries.keys()
    assert all(entries.get(key) is not None for key in keys)
    assert not entries.unreadable
    assert len(keys) > kept
    assert "0 survived" in done.stdout


# Records


def test_the_score_is_kept_and_a_drop_is_a_problem(
    mutate: Callable[..., tuple[int, str]], project: Path
) -> None:
    (project / "contracts" / "records").mkdir()
    assert mutate("--count", "all", "--update-records")[0] == 0
    path = project / "contracts" / "records" / "scaled.json"
    (score,) = recordbook.read(path)["mutants"]["scores"]
    assert (score["implementation"], score["count"], score["survived"]) == ("torch", 0, 0)
    code, out = mutate("--count", "all", body=IDLE)
    assert code == 1
    assert f"the record has {score['killed']} of {score['killed']}" in out
    # another choice of mutants is not compared
    assert "the record has" not in mutate("--count", "all", "--seed", "7")[1]


def test_a_score_of_part_of_an_implementation_is_not_kept(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "contracts" / "records").mkdir()
    assert main(["mutate", "scaled,sign=minus", "--count", "2", "--update-records"]) == 0
    assert not (project / "contracts" / "records" / "scaled.json").exists()


GOOD = {"diff": "0123456789abcdef", "verdict": "equal", "argument": "because"}


@pytest.mark.parametrize(
    ("book", "said"),
    [
        ([], "needs exactly arguments and scores"),
        ({"arguments": [GOOD | {"diff": "x"}], "scores": []}, "needs the 16 digits"),
        ({"arguments": [GOOD | {"verdict": "killed"}], "scores": []}, "a verdict of equal, freedom"),
        ({"arguments": [GOOD | {"argument": " "}], "scores": []}, "say why it is equal"),
        ({"arguments": [GOOD, GOOD], "scores": []}, "for the same diff as arguments[0]"),
        ({"arguments": [], "scores": [{}]}, "needs exactly the fields implementation, count"),
        ({"arguments": [{**GOOD, "argument": 3}], "scores": []}, "argument is 3, not str"),
    ],
)  # fmt: skip
def test_a_record_of_mutants_is_read_strictly(book: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "scaled.json"
    record = {"schema": 1, "kernel": "scaled", "entries": [], "waivers": [], "mutants": book}
    path.write_text(json.dumps(record))
    with pytest.raises(StoreError) as caught:
        recordbook.read(path)
    assert said in str(caught.value)


def test_a_diff_is_argued_about_once(tmp_path: Path) -> None:
    argued: dict[str, Any] = {"arguments": [GOOD], "scores": []}
    for name in ("a", "b"):
        record: dict[str, Any] = {
            "schema": 1,
            "kernel": name,
            "entries": [],
            "waivers": [],
            "mutants": argued,
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    with pytest.raises(StoreError, match="another file argues about"):
        mutantbook.arguments(tmp_path)
    (tmp_path / "b.json").unlink()
    assert mutantbook.arguments(tmp_path)["0123456789abcdef"].text == "because"


def test_scores_keep_what_else_a_record_holds(tmp_path: Path) -> None:
    path = tmp_path / "scaled.json"
    argued: dict[str, Any] = {"arguments": [GOOD], "scores": []}
    record: dict[str, Any] = {
        "schema": 1,
        "kernel": "scaled",
        "entries": [],
        "waivers": [],
        "mutants": argued,
    }
    path.write_text(json.dumps(record))
    score = {"implementation": "torch", "count": 20, "seed": 0, "killed": 19, "survived": 1}
    mutantbook.update(path, score)
    mutantbook.update(path, {**score, "killed": 20, "survived": 0})
    data = recordbook.read(path)
    assert data["mutants"]["arguments"] == [GOOD]
    assert [one["killed"] for one in data["mutants"]["scores"]] == [20]
    assert mutantbook.drop(data, {**score, "killed": 20, "survived": 0}) == ""
    assert "19 of 20 are killed, the record has 20 of 20" in mutantbook.drop(data, score)
    assert mutantbook.drop(data, {**score, "seed": 1}) == ""


def test_a_candidate_is_named_by_what_it_edits() -> None:
    edit = next(edits(Source("def f(x):\n    return x + 1\n"), ast.parse("x + 1", mode="eval")))
    one = Candidate(edit.kind, edit.line, "k.py", "f", "", edit)
    assert one.key == ("k.py", edit.start, edit.end, edit.text)


# Of the catalogue

#: Of the sampled form.
FEW = ("rms_norm", "softcap", "geglu", "rope")


@pytest.mark.slow
def test_of_mutants_of_the_torch_kernels_the_gates_refuse_nearly_all(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    names = FEW if SAMPLED else ()
    assert main(["mutate", *names, "--impl", "torch", "--json", str(file)]) in (0, 1)
    said = json.loads(file.read_text())
    assert not said["not_run"]
    assert not said["refused"]
    # no score of a kernel is below its record
    assert not said["problems"]
    counts = said["counts"]
    assert counts["killed"] >= 0.95 * (counts["killed"] + counts.get("survived", 0)), [
        one for one in said["mutants"] if one["verdict"] == "survived"
    ]
