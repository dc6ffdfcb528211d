"""`contract lint`: each rule on source that breaks it, and on the same source mended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sampling import SAMPLED

from contract import registry, suites
from contract.cli import main
from contract.config import Config
from contract.lint import blocks, negatives, operands, rows, tolerances
from contract.lint.reading import Module, read

ROOT = Path(__file__).parent.parent
SUITES = [f"tests/lint/{name}_suite.py" for name in ("symmetric", "other_profile")]
HEAD = """
import numpy as np
import pytest
import torch
from mine.ops import attention, norm, project

"""


def module(folder: Path, body: str) -> Module:
    """A test file of that body."""
    path = folder / "test_given.py"
    path.write_text(HEAD + body)
    return read(path)


def tolerance_rules(folder: Path, body: str) -> list[str]:
    found, _ = tolerances.findings(module(folder, body), lambda name: 0.01)
    return [f"{one.rule}{', conditional' if one.condition else ''}" for one in found]


BELOW = "tolerance-below-half-ulp"
ZEROS = "tolerance-admits-zeros"


@pytest.mark.parametrize(
    ("body", "rules"),
    [
        # half an ulp of bf16 is 2^-8 of the value, 0.0039
        ("x = torch.randn(4).bfloat16()\n    assert torch.allclose(x, x.float().bfloat16())", [BELOW]),
        ("x = torch.randn(4).bfloat16()\n    assert torch.allclose(x, x, rtol=0.0039, atol=0)", [BELOW]),
        ("x = torch.randn(4).bfloat16()\n    assert torch.allclose(x, x, rtol=0.00391, atol=0)", []),
        # equality that says so is no tolerance
        ("x = torch.randn(4).bfloat16()\n    assert torch.allclose(x, x, rtol=0, atol=0)", []),
        # the defaults of assert_close are above, those of allclose in fp32 too
        ("x = torch.randn(4).bfloat16()\n    torch.testing.assert_close(x, x)", []),
        ("x = torch.randn(4)\n    assert torch.allclose(x, x)", []),
        ("x = torch.randn(4)\n    torch.testing.assert_close(x, x, rtol=1e-8, atol=0)", [BELOW]),
        # NumPy's own numbers are float64
        ("x = np.ones(4) / 3\n    np.testing.assert_allclose(x, x, rtol=1e-12)", []),
        ("x = (np.ones(4) / 3).astype(np.float16)\n    np.testing.assert_allclose(x, x)", [BELOW]),
        # a wider cast keeps the values that are there
        ("x = torch.randn(4).bfloat16()\n    torch.testing.assert_close(x.float(), x.float(), rtol=1e-5, atol=0)", [BELOW]),
        # a function returns what it is given: assumed, and told
        (
            "x = torch.randn(4).bfloat16()\n    torch.testing.assert_close(norm(x), x, rtol=1e-4, atol=0)",
            [BELOW],
        ),
        (
            "x = torch.randn(4).bfloat16()\n    y = norm(x)\n    torch.testing.assert_close(y, norm(y), rtol=1e-4, atol=0)",
            [f"{BELOW}, conditional"],
        ),
        # a function that returns float64 is compared in float64
        (
            "x = torch.randn(4).bfloat16()\n    assert torch.allclose(norm(x).double(), x.double(), rtol=2**-8, atol=0)",
            [],
        ),
        # atol counts from where it is half an ulp: 1e-3 is that at 0.5, 1e-2 at 4
        (
            "x = torch.randn(4).bfloat16()\n    torch.testing.assert_close(x, x, rtol=0, atol=1e-3)",
            [f"{BELOW}, conditional"],
        ),
        ("x = torch.randn(4).bfloat16()\n    torch.testing.assert_close(x, x, rtol=0, atol=1e-2)", []),
        ("x = torch.tensor([0.25, -0.5]).bfloat16()\n    torch.testing.assert_close(norm(x), x, rtol=0, atol=3e-3)", []),
        # zeros
        ("torch.testing.assert_close(norm(1), torch.tensor([1e-3, -2e-3]), rtol=0, atol=1e-2)", [ZEROS]),
        ("torch.testing.assert_close(norm(1), torch.tensor([1e-3, -2e-3]), rtol=0, atol=1e-3)", []),
        ("torch.testing.assert_close(norm(1), torch.zeros(4), rtol=0, atol=1e-2)", []),
        ("torch.testing.assert_close(norm(1), 0.01 * torch.rand(4), rtol=0.5, atol=6e-3)", [ZEROS]),
        ("assert norm(1) == pytest.approx(1e-13)", [ZEROS]),
        ("assert norm(1) == pytest.approx(1e-13, abs=0)", []),
        ("assert norm(1) == pytest.approx(1.0)", []),
        ("torch.testing.assert_close(norm(1), norm(2), rtol=1.0, atol=0)", [ZEROS]),
        # a name of the function around is not the module's
        (
            "rtol = given()\n    def inner(x=torch.randn(4).bfloat16()):\n        assert torch.allclose(x.half(), x.half(), rtol=rtol)\n\nrtol = 1e-6",
            [],
        ),
        # a name that is assigned twice is not known
        ("x = torch.randn(4).bfloat16()\n    x = norm(x)\n    assert torch.allclose(x, x)", []),
    ],
)  # fmt: skip
def test_tolerances(tmp_path: Path, body: str, rules: list[str]) -> None:
    assert tolerance_rules(tmp_path, f"def test_one():\n    {body}\n") == rules


def test_a_contract_that_a_test_names_says_how_large_its_outputs_are(tmp_path: Path) -> None:
    body = """
def test_one():
    call = contract.verified("tiny")
    torch.testing.assert_close(call(1), norm(1), rtol=0, atol={atol})
"""
    assert tolerance_rules(tmp_path, body.format(atol=0.02)) == [f"{ZEROS}, conditional"]
    assert tolerance_rules(tmp_path, body.format(atol=0.005)) == []


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ('"dtype,rtol", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)]', 0),
        ('"dtype,rtol", [(torch.float32, 2e-2), (torch.bfloat16, 1e-5)]', 1),
    ],
)
def test_parametrised_values_are_read_together(tmp_path: Path, values: str, found: int) -> None:
    body = f"""
@pytest.mark.parametrize({values})
def test_one(dtype, rtol):
    x = torch.randn(4, dtype=dtype)
    torch.testing.assert_close(x, norm(x), rtol=rtol, atol=0)
"""
    assert len(tolerance_rules(tmp_path, body)) == found


def test_a_table_by_dtype_is_looked_up(tmp_path: Path) -> None:
    body = """
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1e-4}

@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one(dtype):
    x = torch.randn(4, dtype=dtype)
    torch.testing.assert_close(x, norm(x), rtol=TOLERANCE[dtype], atol=0)
"""
    (finding,) = tolerances.findings(module(tmp_path, body), lambda name: None)[0]
    assert "half an ulp of fp16 (0.000488 of the value)" in finding.reason
    assert finding.line == 13


SYMMETRIC = """
def test_one():
    x = torch.randn(4, 4)
    torch.testing.assert_close({first}, norm(x))
"""


@pytest.mark.parametrize(
    ("first", "says"),
    [
        ("project(x, torch.eye(4))", "operand 2 of mine.ops.project is the identity"),
        ("project(x, torch.ones(4).bfloat16())", "operand 2 of mine.ops.project is one value"),
        ("project(x, w=2.0 * torch.full((4, 4), 3.0))", "operand 'w' of mine.ops.project is one"),
        ("project(x, torch.tensor([1.0, 2.0, 1.0]))", "is the same from both ends"),
        ("project(x, torch.tensor([[1.0, 2.0], [2.0, 3.0]]))", "is equal to its transpose"),
        ("project(x[0].clone().expand(4, -1), torch.randn(4))", "operand 1 of mine.ops.project is equal rows"),
        ("project(torch.randn(4).repeat(8, 1), torch.randn(4))", "operand 1 of mine.ops.project is equal rows"),
        ("attention(x, x, torch.randn(4))", "operand 1 and operand 2 of mine.ops.attention are the same tensor"),
        ("attention(torch.arange(4), torch.arange(4), torch.randn(4))", "are the same tensor"),
    ],
)  # fmt: skip
def test_symmetric_operands(tmp_path: Path, first: str, says: str) -> None:
    (finding,) = operands.findings([module(tmp_path, SYMMETRIC.format(first=first))])[0]
    assert says in finding.reason
    assert finding.rule == "symmetric-input"


@pytest.mark.parametrize(
    "first",
    [
        "project(x, torch.randn(4, 4))",
        # one of its calls has general operands
        "project(x, torch.eye(4)), project(x, torch.randn(4, 4))",
        # made out of sight, or passed on
        "project(x, given())",
        "project(x, torch.eye(4)), map(project, [x])",
        # two draws are two tensors, and a scalar has no order
        "attention(torch.randn(4), torch.randn(4), torch.randn(4))",
        "project(x, torch.ones(()))",
        # two rows, four times
        "project(torch.randn(2, 4).repeat(4, 1), torch.randn(4))",
    ],
)
def test_general_operands_are_no_finding(tmp_path: Path, first: str) -> None:
    assert operands.findings([module(tmp_path, SYMMETRIC.format(first=first))])[0] == []


def test_a_buffer_that_is_compared_is_an_output(tmp_path: Path) -> None:
    body = """
def test_one():
    x, out = torch.randn(4), torch.zeros(4)
    project(x, out)
    torch.testing.assert_close(out, norm(x))
"""
    assert operands.findings([module(tmp_path, body)])[0] == []


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("with pytest.raises(AssertionError):", 1),
        ("with pytest.raises(Exception):", 1),
        ("with pytest.raises((ValueError, AssertionError)):", 1),
        ('with pytest.raises(AssertionError, match="Mismatched elements"):', 0),
        ("with pytest.raises(AssertionError) as refusal:", 0),
        ("with pytest.raises(contract.NotAllowed):", 0),
    ],
)
def test_expected_refusals(tmp_path: Path, line: str, count: int) -> None:
    body = f"def test_one():\n    {line}\n        torch.testing.assert_close(norm(1), norm(2))\n"
    found, _ = negatives.findings(module(tmp_path, body))
    assert [one.rule for one in found] == ["red-for-another-reason"] * count


@pytest.mark.parametrize(("mark", "count"), [("", 1), ("(raises=AssertionError)", 0)])
def test_expected_failures(tmp_path: Path, mark: str, count: int) -> None:
    body = (
        f"@pytest.mark.xfail{mark}\ndef test_one():\n    assert torch.allclose(norm(1), norm(2))\n"
    )
    assert len(negatives.findings(module(tmp_path, body))[0]) == count


# -- suites


@pytest.fixture(scope="module")
def linted(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, dict[str, object]]:
    """Exit code, output and JSON of a lint of the suites, by a process of its own: its names stay out of this one."""
    report = tmp_path_factory.mktemp("lint") / "lint.json"
    done = subprocess.run(
        [sys.executable, "-m", "contract", "lint", *SUITES, "--json", str(report)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=600,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout, json.loads(report.read_text())


def test_a_suite_with_findings_exits_with_1(linted: tuple[int, str, dict[str, object]]) -> None:
    code, out, report = linted
    assert code == 1 == report["exit_code"]
    assert out.splitlines()[-1].endswith(": 8 findings, 1 explained")
    assert "tests/lint/symmetric_suite.py:28: shape-never-crosses: " in out


@pytest.mark.parametrize(
    "says",
    [
        # shapes: d is 64 and 128, rows 16 and 4
        "torch: BLOCK = 64: no declared shape of turned has a tail of a block of 64 (d is at most 128)",
        "every declared d of turned is a multiple of 64",
        # rows: x is its own mirror image and the gain has one value, everywhere
        "no exact, stress or typical row shows a kernel that reads weight back to front along d",
        "red.rounds_to_fp32 is refused before a value is compared: output out has dtype torch.float32",
        "red.nothing_at_all gives nothing but zeros",
        "red.squares_in_bf16_rounded_once rounds as once does: of its typical outputs two_step refuses",
    ],
)
def test_what_it_finds(linted: tuple[int, str, dict[str, object]], says: str) -> None:
    assert says in linted[1]


def test_what_it_does_not_find(linted: tuple[int, str, dict[str, object]]) -> None:
    _, out, _ = linted
    # typical rows of x are drawn, and this control is a fault of values
    assert "reads x back to front" not in out
    assert "gain_left_out" not in out
    # the dropped rounding is its fault, also where another profile drops it and changes more
    assert "normed_kept_in_fp32" not in out
    assert "add_rms_tail" not in out
    # a profile that refuses less of everything is no nearer
    assert "w8_gemv" not in out
    assert (
        "symmetric_suite.py:72: red-for-another-reason, explained: the format is the fault" in out
    )


@pytest.fixture
def _catalogue() -> None:
    suites.load(Config(None, Path.cwd(), pythonpath=()))


@pytest.mark.usefixtures("_catalogue")
@pytest.mark.parametrize("name", ["rms_norm", "w4_gemv", "rope"])
def test_the_catalogue_hides_no_convention_and_crosses_its_blocks(name: str) -> None:
    contract = registry.get(name)
    assert rows.findings(contract)[0] == []
    assert blocks.findings(contract, registry.implementations(name))[0] == []


@pytest.mark.slow
@pytest.mark.usefixtures("_catalogue")
def test_no_contract_of_the_catalogue_hides_a_convention() -> None:
    for contract in list(registry.contracts().values())[:: 10 if SAMPLED else 1]:
        assert rows.findings(contract)[0] == []
        assert blocks.findings(contract, registry.implementations(contract.name))[0] == []


# -- the command


def test_the_tests_of_this_project_have_no_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["lint", "tests"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert ": 0 findings, 0 explained" in out


def test_nothing_to_lint_is_code_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    assert main(["lint", str(tmp_path)]) == 5
    assert "nothing to lint" in capsys.readouterr().err


def test_what_is_no_file_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "nowhere.py").symlink_to(tmp_path / "absent")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert main(["lint", str(tmp_path)]) == 5
    assert "nothing to lint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent", "no such file or folder"),
        ("broken.py", "broken.py:1: is no Python"),
        ("long.py", "long.py: is nested too deep"),
        ("deep.py", "deep.py: is nested too deep"),
    ],
)
def test_what_cannot_be_read_is_code_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, says: str
) -> None:
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "long.py").write_text("x = " + "+".join(["1"] * 20_000))
    (tmp_path / "deep.py").write_text("x = " + "-" * 20_000 + "1")
    assert main(["lint", str(tmp_path / name)]) == 4
    assert says in capsys.readouterr().err


def test_a_finding_is_explained_by_a_comment_on_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = "    assert torch.allclose(x, x)"
    head = "import torch\ndef test_one():\n    x = torch.randn(4).bfloat16()\n"
    Path("test_plain.py").write_text(f"{head}{line}\n")
    Path("test_explained.py").write_text(f"{head}{line}  # lint: bits are meant\n")
    Path("test_bare.py").write_text(f"{head}{line}  # lint:\n")
    assert main(["lint", "test_explained.py"]) == 0
    assert (
        "test_explained.py:4: tolerance-below-half-ulp, explained: bits are meant"
        in capsys.readouterr().out
    )
    # a comment without a reason explains nothing
    assert main(["lint", "test_bare.py"]) == main(["lint", "test_plain.py"]) == 1
