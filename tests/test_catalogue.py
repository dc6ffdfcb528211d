"""The catalogue is whole: one name in every folder, and a page that lists what is registered."""

from __future__ import annotations

import json
import runpy
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import contract
from contract import listing, registry, suites
from contract.case import kernels_of
from contract.compiled.architectures import AMD_NAMES, CUDA_NAMES
from contract.config import Config
from contract.declare import served
from contract.formats import FORMATS

ROOT = Path(__file__).parent.parent


def _modules() -> dict[str, list[str]]:
    """Module of kernels/ -> the contracts that it registers."""
    suites.load(Config(None, Path.cwd(), pythonpath=()))
    found: dict[str, list[str]] = {}
    for name in registry.contracts():
        package, _, module = registry.origin(name).rpartition(".")
        if package == "contract.kernels":
            found.setdefault(module, []).append(name)
    return found


MODULES = _modules()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_kernel_has_its_name_in_every_folder(module: str) -> None:
    missing = [
        path
        for path in (
            f"references/{module}.py",
            f"kernels/{module}.py",
            f"controls/{module}.py",
            f"tests/test_{module}.py",
            *(f"records/{name}.json" for name in MODULES[module]),
        )
        if not (ROOT / path).is_file()
    ]
    assert not missing, f"missing: {', '.join(missing)}"
    # kernels that share a file: it is called after one of them
    assert module in MODULES[module]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_kernel_is_implemented_and_controlled(module: str) -> None:
    for name in MODULES[module]:
        names = [i.name for i in registry.implementations(name)]
        assert "torch" in names, f"{name}: one implementation is called torch; there are {names}"
        planted = registry.controls(name)
        assert any(control.colour == "red" for control in planted), name
        assert any(control.colour == "green" for control in planted), name
        assert registry.get(name).summary, name


def test_records_are_of_kernels_that_exist() -> None:
    named = {path.stem for path in (ROOT / "records").glob("*.json")}
    assert named == {name for names in MODULES.values() for name in names}
    for path in (ROOT / "records").glob("*.json"):
        assert json.loads(path.read_text())


def test_records_are_of_the_first_shape() -> None:
    """Also those of libraries that are not installed here, whose gate does not run."""
    stale = []
    for path in sorted((ROOT / "records").glob("*.json")):
        for entry in json.loads(path.read_text())["entries"]:
            name, *stated = entry["kernel"].partition("/")[0].split(",")
            contract = registry.get(name)
            values = contract.full_parameters(dict(one.split("=", 1) for one in stated))
            if entry["shape"] != contract.sized(contract.shapes[0], values):
                stale.append(f"{entry['kernel']}/{entry['implementation']}")
    assert not stale, f"run with --gate limits --update-records: {', '.join(stale)}"


def test_the_words_name_every_format() -> None:
    line = next(
        x for x in (ROOT / "docs" / "words.md").read_text().splitlines() if "| format |" in x
    )
    assert line.split(": ")[1].split(";")[0].split(", ") == list(FORMATS)


@pytest.fixture
def run_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], str]:
    """Runs a file that the guide shows, between these words, beside the catalogue; returns its name."""
    for table in ("_contracts", "_implementations", "_controls", "_origins"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))

    def run(start: str, end: str) -> str:
        page = (ROOT / "docs" / "first-contract.md").read_text()
        name, _, code = page.partition(start)[2].partition(end)[0].partition("\n")
        (tmp_path / name).write_text(textwrap.dedent(code))
        runpy.run_path(str(tmp_path / name), run_name="first")
        registry.check()
        return name

    return run


def test_the_first_contract_can_be_registered_beside_the_catalogue(
    run_block: Callable[[str, str], str],
) -> None:
    name = run_block("    # contracts/", "\nRun `contract run")
    assert registry.origin(name.removesuffix(".py")) == "first"


def test_the_first_kernel_is_right_for_all_that_it_claims(
    run_block: Callable[[str, str], str],
) -> None:
    assert run_block("controls):\n\n    # ", "\nand run `contract run") == "mine.py"
    (item,) = (i for i in registry.implementations("rms_norm") if i.module == "first")
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator).bfloat16() for size in ((8, 64), (64,)))
    for gain in item.parameters.get("gain", registry.get("rms_norm").parameters["gain"]):
        given: dict[str, Any] = {"x": x, "weight": weight, "eps": 1e-6}
        out = item.call(**given)
        contract.assert_allowed("rms_norm", out, profile=item.profile, gain=gain, **given)


def test_the_page_of_kernels_is_the_one_that_the_command_writes() -> None:
    page = (ROOT / "docs" / "kernels.md").read_text()
    assert page == "\n".join(listing.markdown_lines()) + "\n", (
        "run `contract list --markdown > docs/kernels.md`"
    )


def test_the_guide_shows_files_as_they_are() -> None:
    page = (ROOT / "docs" / "adding-a-kernel.md").read_text()
    shown = page.split("```diff\n")[1:]
    assert len(shown) == 4
    for part in shown:
        head, *lines = part.partition("```")[0].splitlines()[1:]
        path = ROOT / head.removeprefix("+++ b/")
        pieces = "\n".join(lines).split("\n@@\n")
        text = path.read_text()
        for piece in pieces:
            body = "\n".join(line.removeprefix("+") for line in piece.splitlines())
            assert body in text, f"{path.name} has no longer what the guide shows"
            text = text[text.index(body) + len(body) :]


def _compiled() -> dict[tuple[str, str], list[str]]:
    """(kernel, implementation) of our own GPU code -> the modules that register it."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in registry.contracts():
        for item in registry.implementations(name):
            if item.module.startswith(("contract.kernels.triton.", "contract.kernels.cuda.")):
                found.setdefault((name, item.name), []).append(item.module)
    return found


COMPILED = _compiled()


@pytest.mark.parametrize(("kernel", "name"), sorted(COMPILED))
def test_a_gpu_kernel_has_its_name_its_planted_faults_and_its_record(
    kernel: str, name: str
) -> None:
    assert set(COMPILED[kernel, name]) == {f"contract.kernels.{name}.{kernel}"}
    planted = [c for c in registry.controls(kernel) if c.engine == "ptx" and name in c.module]
    assert any(control.colour == "red" for control in planted), kernel
    book = json.loads((ROOT / "records" / f"{kernel}.json").read_text())
    entries = book.get("compiled", [])
    recorded = {entry["kernel"] for entry in entries if entry["implementation"] == name}
    kernels = {
        k.id
        for k in kernels_of(registry.get(kernel))
        for i in registry.implementations(kernel)
        if i.name == name and i.profile == k.profile.name and served(i.parameters, k.parameters)
    }
    assert recorded == kernels
    wanted = {"cuda": CUDA_NAMES, "triton": (*CUDA_NAMES, *AMD_NAMES)}[name]
    excused = {
        (w["kernel"], w["architecture"]) for w in book["waivers"] if w["resource"] == "compile"
    }
    for entry in entries:
        if entry["implementation"] == name:
            missing = set(wanted) - set(entry["architectures"])
            assert all((entry["kernel"], arch) in excused for arch in missing), entry["function"]
