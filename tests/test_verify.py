"""verified() gives out what was judged green here, from these sources, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import contract
from contract.errors import DeclarationError, NotVerified

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
        "scaled/two_step/torch: the sources changed since it was verified;"
        " run `contract run scaled/two_step`"
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
