"""The packages of pyproject.toml, the folders on disk, the links and the built wheel agree."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
# Package -> its folder at the root, for those that do not lie in contract/.
FOLDERS = {name: folder for name, folder in SETUPTOOLS["package-dir"].items() if name != "contract"}
NOT_PACKAGED = {"build", "dist", "docs", "examples", "shared", "tests"}
DATA = {".css", ".cu", ".cuh", ".html", ".json", ".toml"}


def source_folders() -> list[Path]:
    """The folders at the root whose files belong to the package: all but tests and the like."""
    return [
        folder
        for folder in sorted(ROOT.iterdir())
        if folder.is_dir()
        and folder.name not in NOT_PACKAGED
        and not folder.name.startswith(".")
        and folder.suffix != ".egg-info"
    ]


def source_files() -> Iterator[Path]:
    """The files of those folders, relative to the root, without following links."""
    for folder in source_folders():
        # pathlib's rglob follows no links to folders; contract/kernels is seen as kernels only.
        for file in folder.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(ROOT)


def installed_path(file: Path) -> Path:
    """Where a file of the checkout lies once installed: kernels/x.py at contract/kernels/x.py."""
    return file if file.parts[0] == "contract" else "contract" / file


def test_every_pattern_of_the_frameworks_data_means_a_file() -> None:
    patterns = SETUPTOOLS["package-data"]["contract"]
    assert [p for p in patterns if not list((ROOT / "contract").glob(p))] == []


def test_every_python_folder_is_a_listed_package() -> None:
    on_disk = {
        ".".join(installed_path(file.parent).parts)
        for file in source_files()
        if file.suffix == ".py"
    }
    assert on_disk == set(SETUPTOOLS["packages"])


def test_links_show_type_checkers_the_installed_layout() -> None:
    for name, folder in FOLDERS.items():
        link = ROOT / name.replace(".", "/")
        assert link.is_symlink(), link
        assert link.resolve() == (ROOT / folder).resolve(), link
    links = {"contract." + link.name for link in (ROOT / "contract").iterdir() if link.is_symlink()}
    assert links == FOLDERS.keys()


def test_wheel_has_every_source_and_data_file(tmp_path: Path) -> None:
    on_disk = {
        installed_path(file).as_posix()
        for file in source_files()
        if file.suffix in DATA | {".py"} or file.name == "py.typed"
    }
    assert on_disk - wheel_names(tmp_path) == set()


def wheel_names(tmp_path: Path) -> set[str]:
    """The names in the wheel that is built from the sdist, as released.

    Built from a copy: an old egg-info or build folder in the checkout brings back files that
    pyproject.toml no longer asks for, and two processes of pytest-xdist would share them.
    """
    copy, out = tmp_path / "checkout", tmp_path / "dist"
    copy.mkdir()
    for folder in source_folders():
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder, copy / folder.name, symlinks=True, ignore=ignore)
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, copy)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())
