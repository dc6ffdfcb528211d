"""The catalogue is whole: one name in every folder, and a page that lists what is registered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract import listing, registry, suites
from contract.config import Config

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
    assert missing == []
    # kernels that share a file: it is called after one of them
    assert module in MODULES[module]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_kernel_is_implemented_and_controlled(module: str) -> None:
    for name in MODULES[module]:
        assert "torch" in [i.name for i in registry.implementations(name)]
        planted = registry.controls(name)
        assert any(control.colour == "red" for control in planted), name
        assert any(control.colour == "green" for control in planted), name
        assert registry.get(name).summary, name


def test_records_are_of_kernels_that_exist() -> None:
    named = {path.stem for path in (ROOT / "records").glob("*.json")}
    assert named == {name for names in MODULES.values() for name in names}
    for path in (ROOT / "records").glob("*.json"):
        assert json.loads(path.read_text())


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
