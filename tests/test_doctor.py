"""`contract doctor`: what it says follows from what is there."""

from __future__ import annotations

import importlib.util

import pytest

from contract import doctor
from contract.cli import main
from contract.engines import devices, interpreter_check, nvcc

HAS_TRITON = importlib.util.find_spec("triton") is not None


def report() -> str:
    return "\n".join(doctor.lines())


def test_it_names_every_engine_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for start in (
        "  host runs: torch ",
        "  ptx runs: ",
        "  gpu ",
        "    Triton: ",
        "    CUDA C++: ",
    ):
        assert any(line.startswith(start) for line in out.splitlines()), start
    assert "Triton's interpreter is refused as an engine" in out


def test_what_is_missing_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing_reason", lambda names: f"{names[0]} is not installed")
    monkeypatch.setattr(nvcc, "missing_reason", lambda: "nvcc is not installed: install the wheel")
    said = report()
    assert "Triton: triton is not installed: pip install 'kernel-contract[triton]'" in said
    assert "CUDA C++: nvcc is not installed: install the wheel" in said
    assert "refused as an engine (not installed)" in said


def test_a_fault_is_looked_for_and_not_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("no such symbol")

    found = [doctor.Fault("numpy", name, "x", shows) for name, shows in
             (("is", lambda: True), ("is not", lambda: False), ("broken", broken))]  # fmt: skip
    monkeypatch.setattr(doctor, "FAULTS", tuple(found))
    said = report()
    assert "  found: numpy: is; x" in said
    assert "  not found: numpy: is not; x" in said
    assert "  not told (RuntimeError: no such symbol): numpy: broken; x" in said


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_driver", lambda: False)
    assert devices.missing_device() == "there is no GPU (no driver is loaded)"
    assert "gpu does not run: there is no GPU (no driver is loaded)" in report()


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_the_interpreter_cuts_off_what_compiled_code_rounds() -> None:
    assert interpreter_check.verdict() == (
        "it stores fp32 as bf16 cut off (64 of 64 values; 43 as rounded to nearest)"
    )
