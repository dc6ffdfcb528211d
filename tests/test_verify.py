"""verified() gives out what was judged green here, from these sources, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import contract
from contract import verify
from contract.checks import collect_checks
from contract.errors import DeclarationError, NotVerified
from contract.results import CheckResult
from contract.store import Store

Run = Callable[..., tuple[int, str, str]]


def call(kernel: Callable[..., torch.Tensor]) -> list[float]:
    x = torch.tensor([[1.0, 2.0]]).bfloat16()
    result: list[float] = kernel(x=x, y=x, scale=1.25).flatten().tolist()
    return result


def test_the_quick_gates_run_once_where_there_is_no_receipt(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kernel = contract.verified("scaled", profile="two_step", sign="minus")
    assert call(kernel) == [-0.25, -0.5]
    err = capfd.readouterr().err
    assert err.startswith(
        "contract: verifying scaled,sign=minus/two_step/torch (quick gates, once)"
    )
    assert call(contract.verified("scaled", sign="minus")) == [-0.25, -0.5]
    assert capfd.readouterr().err == ""


def test_a_run_verifies_and_an_edit_refuses(project: Path, contract_run: Run) -> None:
    assert contract_run("scaled/two_step/torch", "scaled/two_step/reference")[0] == 0
    assert call(contract.verified("scaled")) == [2.25, 4.5]
    path = project / "contracts" / "scaled.py"
    path.write_text(path.read_text().replace('"""Two bf16 operations."""', '"""The same."""'))
    # as a new process would find it
    contract_run("--co")
    with pytest.raises(NotVerified) as caught:
        contract.verified("scaled")
    assert str(caught.value) == (
        f"scaled/two_step/torch: the sources are not those that were verified in {project / '.contract'} (edited since,"
        " or another version's); run `contract run scaled/two_step`"
    )
    # that command verifies it again
    assert contract_run("scaled/two_step")[0] == 0
    assert call(contract.verified("scaled")) == [2.25, 4.5]


def test_a_run_without_the_reference_verifies_nothing(
    project: Path, contract_run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    assert contract_run("scaled/two_step/torch")[0] == 0
    contract.verified("scaled")
    assert "contract: verifying scaled/two_step/torch" in capfd.readouterr().err


def test_a_red_kernel_is_refused(project: Path) -> None:
    path = project / "contracts" / "scaled.py"
    path.write_text(path.read_text().replace("return product + y if", "return product - y if"))
    with pytest.raises(NotVerified) as caught:
        contract.verified("scaled")
    said = str(caught.value)
    assert said.startswith("scaled/two_step/torch: scaled/two_step/torch/shapes is fail: ")
    assert "outputs are not allowed" in said
    assert said.endswith("; run `contract run scaled/two_step`")


def test_what_does_not_exist_is_refused_by_name(project: Path) -> None:
    with pytest.raises(NotVerified, match="no implementation 'triton'; there are torch"):
        contract.verified("scaled", impl="triton")
    with pytest.raises(DeclarationError, match="did you mean scaled"):
        contract.verified("scalde")
    with pytest.raises(DeclarationError, match="profiles are two_step"):
        contract.verified("scaled", profile="once")


# What is noted after a run

NOTED = ("reference", *(f"torch/{gate}" for gate in verify.NEEDED))


def note(project: Path, outcome: str = "pass", compared: int = 8, **others: str) -> None:
    """Note what a run gave: this outcome, and of the gates that are named another one."""
    verify.load_suites()
    results = [
        CheckResult(
            f"scaled/two_step/{name}", "scaled", "two_step",
            others.get(name.rpartition("/")[2], outcome),
            gate=name.rpartition("/")[2], outputs_compared=compared,
        )
        for name in NOTED
    ]  # fmt: skip
    pairs = verify.gate_pairs(check for check in collect_checks() if check.kernel == "scaled")
    verify.note_verified(Store(project / ".contract"), pairs.values(), results)


@pytest.fixture
def judged_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """verified() asks the store, and judges nothing itself."""
    monkeypatch.setattr(verify, "_verify_now", lambda *_: None)


@pytest.mark.parametrize("red", ["fail", "crash", "timeout", "out_of_memory"])
def test_a_later_red_takes_a_verification_back(project: Path, judged_never: None, red: str) -> None:
    note(project)
    assert call(contract.verified("scaled")) == [2.25, 4.5]
    note(project, stress=red)
    with pytest.raises(NotVerified) as caught:
        contract.verified("scaled")
    assert str(caught.value) == (
        "scaled/two_step/torch: scaled/two_step/torch/stress was red when it last ran;"
        " run `contract run scaled/two_step`"
    )
    # what did not run says nothing, and a green run gives it again
    note(project, stress="not_run")
    with pytest.raises(NotVerified, match="was red"):
        contract.verified("scaled")
    note(project)
    assert call(contract.verified("scaled")) == [2.25, 4.5]


@pytest.mark.parametrize(
    ("outcome", "compared", "others"),
    [
        ("pass", 0, {}),
        ("not_applicable", 8, {}),
        # the reference says nothing about an implementation
        ("not_applicable", 8, {"reference": "pass"}),
        ("not_run", 8, {}),
        ("pass", 8, {"exact": "not_run"}),
    ],
)
def test_nothing_compared_verifies_nothing(
    project: Path, judged_never: None, outcome: str, compared: int, others: dict[str, str]
) -> None:
    note(project, outcome, compared, **others)
    with pytest.raises(NotVerified, match="its verification could not be stored"):
        contract.verified("scaled")
    # one gate that means nothing here is none the less no obstacle
    note(project, exact="not_applicable")
    assert call(contract.verified("scaled")) == [2.25, 4.5]


def edits_itself(project: Path) -> None:
    path = project / "contracts" / "scaled.py"
    old = "    product = x * scale\n"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, f"    open({str(path)!r}, 'a').write('# edited\\n')\n{old}"))


def test_a_source_edited_during_the_run_is_not_verified_by_it(
    project: Path, contract_run: Run, judged_never: None
) -> None:
    edits_itself(project)
    code, out, _ = contract_run("scaled/two_step/torch", "scaled/two_step/reference")
    assert (code, "was edited during the run: run again" in out) == (1, True)
    # as a new process would find it
    contract_run("--co")
    with pytest.raises(NotVerified):
        contract.verified("scaled")


def test_a_source_edited_while_it_is_verified_is_not_verified(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits_itself(project)
    with pytest.raises(NotVerified):
        contract.verified("scaled")
    # nor by a second look
    monkeypatch.setattr(verify, "_verify_now", lambda *_: None)
    with pytest.raises(NotVerified):
        contract.verified("scaled")
