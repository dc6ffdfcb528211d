"""Resource records: reading, judging against them, updating.

records/NAME.json:

    {"schema": 1, "kernel": "rms_norm",
     "entries": [{"kernel": "rms_norm,gain=1+w/once", "implementation": "torch", "launch": "plain",
                  "architecture": "x86_64", "torch": "2.13.0", "shape": {"d": 1152, "rows": 1},
                  "resources": {"bytes_read": 1, "bytes_written": 1, "workspace_bytes": 0, "threads": 0}}],
     "waivers": [{"kernel": ..., "implementation": ..., "launch": ..., "architecture": ..., "resource": "threads",
                  "limit": 2, "reason": "..."}]}

A file may have a list `compiled` and an object `mutants` beside them: see contract.compiledbook and contract.mutantbook.

A two-way ratchet: worse fails, better fails as improved until the record is updated. An architecture that a file does
not list at all is not_run, a launch missing in a listed one fails, entries that nothing uses are limit problems.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from contract import compiledbook, mutantbook
from contract.case import Kernel
from contract.compiled.architectures import ARCHITECTURES
from contract.errors import StoreError
from contract.suites import is_test_file

RESOURCES = ("bytes_read", "bytes_written", "workspace_bytes", "threads")
_ENTRY = {
    "kernel": str,
    "implementation": str,
    "launch": str,
    "architecture": str,
    "torch": str,
    "shape": dict,
    "resources": dict,
}
_WAIVER = {
    "kernel": str,
    "implementation": str,
    "launch": str,
    "architecture": str,
    "resource": str,
    "limit": int,
    "reason": str,
}


def architecture() -> str:
    """The host architecture of records: x86_64, aarch64; with the instruction set where a variable takes another for
    torch than the processor has, which may be another path with other buffers."""
    machine = platform.machine().lower()
    known = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    other = os.environ.get("ATEN_CPU_CAPABILITY", "")
    return f"{known}.{other}" if other else known


def torch_version() -> str:
    """The installed torch without its build suffix, or 'absent'."""
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return "absent"


def folder_of(module: str) -> Path | None:
    """The records folder of the suite that a module belongs to: what its package names in SUITE_RECORDS, else a folder
    `records` beside the file; None where there is neither."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        package = sys.modules.get(".".join(parts[:end]))
        named = getattr(package, "SUITE_RECORDS", None)
        if named:
            import importlib

            home = importlib.import_module(named)
            return Path(next(iter(home.__path__)))
    beside = _beside(module)
    return beside if beside is not None and beside.is_dir() else None


def _beside(module: str) -> Path | None:
    """The folder beside a module's file that would be its records folder; None where it has no file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).parent / "records" if file else None


def where_to_record(module: str) -> str:
    """The repair where a suite has no records folder."""
    beside = _beside(module)
    if beside is None:
        return "what no file declares has no folder of records"
    return f"no folder {beside}; --update-records makes it and measures"


def make_folder(module: str) -> Path | None:
    """Make the records folder of a suite that has none, and return it; None where there is one, or no file to lie beside.

    Raises:
        StoreError: it cannot be made.
    """
    beside = _beside(module)
    if beside is None or folder_of(module) is not None:
        return None
    try:
        beside.mkdir()
    except OSError as error:
        raise StoreError(f"{beside}: cannot be made: {error.strerror}") from error
    return beside


def wholly_loaded(folder: Path) -> bool:
    """Whether every suite file beside a records folder is loaded: only then is an entry that nothing uses a leftover."""
    # not getattr: other people's modules may import, or raise, when asked for an attribute
    spaces = {name: getattr(module, "__dict__", {}) for name, module in list(sys.modules.items())}
    suites = [name for name, space in spaces.items() if "SUITE_RECORDS" in space]
    if folder in {folder_of(name) for name in suites}:
        return True
    loaded = {
        Path(file).resolve()
        for space in spaces.values()
        if isinstance(file := space.get("__file__"), str)
    }
    files = (path for path in folder.parent.glob("*.py") if not is_test_file(path))
    return all(path.resolve() in loaded for path in files)


def read(path: Path) -> dict[str, Any]:
    """A record file, strictly: unknown or missing fields and wrong types are errors that name file and field."""
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return {"schema": 1, "kernel": path.stem, "entries": [], "waivers": []}
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(
            f"record {path}: {error}; repair it, or delete it and run with --update-records"
        ) from error
    if (
        not isinstance(data, dict)
        or data.keys() - {"compiled", "mutants"} != {"schema", "kernel", "entries", "waivers"}
        or data["schema"] != 1
    ):
        raise StoreError(
            f"record {path}: needs exactly schema (1), kernel, entries and waivers, and may have compiled and"
            " mutants"
        )
    if data["kernel"] != path.stem:
        raise StoreError(
            f"record {path}: kernel is {data['kernel']!r}, the file's is {path.stem!r}"
        )
    for name, fields in (("entries", _ENTRY), ("waivers", _WAIVER)):
        if not isinstance(data[name], list):
            raise StoreError(f"record {path}: {name} is {type(data[name]).__name__}, not a list")
        for i, entry in enumerate(data[name]):
            _check(path, f"{name}[{i}]", entry, fields)
    places: dict[str, int] = {}
    for i, entry in enumerate(data["entries"]):
        # of two for one launch the second would never be looked at
        what = json.dumps({k: v for k, v in entry.items() if k != "resources"}, sort_keys=True)
        if (first := places.setdefault(what, i)) != i:
            raise StoreError(
                f"record {path}: entries[{i}] is for the same launch as entries[{first}]"
            )
        resources = entry["resources"]
        if set(resources) != set(RESOURCES) or not all(
            type(v) is int and v >= 0 for v in resources.values()
        ):
            raise StoreError(
                f"record {path}: entries[{i}].resources needs counts >= 0 of {', '.join(RESOURCES)}"
            )
    for i, waiver in enumerate(data["waivers"]):
        if wrong := _wrong_in(waiver):
            raise StoreError(f"record {path}: waivers[{i}]{wrong}")
    compiledbook.check(path, data.get("compiled", []))
    if "mutants" in data:
        mutantbook.check(path, data["mutants"])
    return data


def _wrong_in(waiver: Mapping[str, Any]) -> str:
    """What is wrong with the values of a waiver: it would waive nothing, or says no reason; '' where nothing is."""
    known = tuple(dict.fromkeys((*RESOURCES, *compiledbook.RESOURCES)))
    if waiver["resource"] not in known:
        return f".resource is {waiver['resource']!r}, none of {', '.join(known)}"
    # what this machine measures has its own name
    compiled = waiver["resource"] not in RESOURCES
    if compiled and waiver["architecture"] not in ARCHITECTURES:
        return f".architecture is {waiver['architecture']!r}; a waiver is for one of {', '.join(ARCHITECTURES)}"
    return "" if waiver["reason"].strip() else ".reason is empty; say why it may be so"


def _check(path: Path, where: str, entry: Any, fields: Mapping[str, type]) -> None:
    if not isinstance(entry, dict) or set(entry) != set(fields):
        raise StoreError(f"record {path}: {where} needs exactly the fields {', '.join(fields)}")
    for name, kind in fields.items():
        if type(entry[name]) is not kind:
            raise StoreError(
                f"record {path}: {where}.{name} is {entry[name]!r}, not {kind.__name__}"
            )


def book_of(kernel: Kernel, target: Mapping[str, Any]) -> tuple[Path | None, dict[str, Any]]:
    """The record file that lists a target, and its contents."""
    folder = folder_of(str(target.get("module", "")))
    if folder is None:
        return None, {"absent": where_to_record(str(target.get("module", "")))}
    path = folder / f"{kernel.contract.name}.json"
    return path, read(path)


def key_of(entry: Mapping[str, Any]) -> tuple[str, str, str, str]:
    return entry["kernel"], entry["implementation"], entry["launch"], entry["architecture"]


def judge_entry(
    book: tuple[Path | None, dict[str, Any]],
    kernel: Kernel,
    implementation: str,
    launch: str,
    measured: Mapping[str, int],
) -> tuple[str, str]:
    """(outcome, detail) of measured resources against the record."""
    path, data = book
    if path is None:
        return "not_run", data["absent"]
    here = architecture()
    if data["entries"] and all(entry["architecture"] != here for entry in data["entries"]):
        return "not_run", f"{path.name} lists no {here}; run with --update-records on one"
    key = (kernel.id, implementation, launch, here)
    found = [entry for entry in data["entries"] if key_of(entry) == key]
    shown = ", ".join(f"{name} {measured[name]:,}" for name in RESOURCES)
    if not found:
        return (
            "fail",
            f"no record for {'/'.join(key)} ({shown}); run with --update-records",
        )
    entry = found[0]
    shape = shape_of(kernel)
    if entry["shape"] != shape:
        return (
            "fail",
            f"stale: recorded at {entry['shape']}, the contract's first shape is {shape}; run with --update-records",
        )
    worse, better = [], []
    waived = {w["resource"]: w["limit"] for w in data["waivers"] if key_of(w) == key}
    for name in RESOURCES:
        old, new = entry["resources"][name], measured[name]
        if new > max(old, waived.get(name, old)):
            worse.append(f"{name} {old:,} -> {new:,}")
        elif new < old:
            better.append(f"{name} {old:,} -> {new:,}")
    if (worse or better) and entry["torch"] != torch_version():
        return (
            "not_run",
            f"recorded with torch {entry['torch']}, this is {torch_version()} ({'; '.join(worse + better)})",
        )
    if worse:
        return "fail", f"above the record: {'; '.join(worse)}"
    if better:
        return "fail", f"improved, run --update-records: {'; '.join(better)}"
    return "pass", shown


def shape_of(kernel: Kernel) -> dict[str, int]:
    """The shape at which resources are counted."""
    shape = kernel.sized(kernel.contract.shapes[0])
    return {dim: int(size) for dim, size in sorted(shape.items())}


def update(
    path: Path, kernel: Kernel, implementation: str, launch: str, measured: Mapping[str, int]
) -> None:
    """Write one measured entry into a record file (atomically), keeping the others and the waivers."""
    from contract.store import atomic_write_text

    data = read(path)
    entry = {
        "kernel": kernel.id,
        "implementation": implementation,
        "launch": launch,
        "architecture": architecture(),
        "torch": torch_version(),
        "shape": shape_of(kernel),
        "resources": {name: int(measured[name]) for name in RESOURCES},
    }
    others = [e for e in data["entries"] if key_of(e) != key_of(entry)]
    data["entries"] = sorted([*others, entry], key=key_of)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, compiledbook.dumped(data))


def update_compiled(path: Path, new: Sequence[Mapping[str, Any]]) -> None:
    """Write the entries of one launch's compiled kernels into a record file (atomically), in place of its old ones."""
    from contract.store import atomic_write_text

    data = read(path)
    data["compiled"] = compiledbook.replaced(data, new)
    compiledbook.check(path, data["compiled"])
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, compiledbook.dumped(data))


def unused(folder: Path, known: set[tuple[str, str, str]]) -> list[str]:
    """Problems of a records folder: entries and waivers that no registered (kernel, implementation, launch) uses."""
    problems = []
    for path in sorted(folder.glob("*.json")):
        data = read(path)
        compiled = data.get("compiled", [])
        listed = {key_of(e) for e in data["entries"]} | {
            (*compiledbook.launch_of(e), name) for e in compiled for name in e["architectures"]
        }
        problems += [
            f"unused record {'/'.join(launch)} of compiled kernels in {path.name}; remove it (--update-records does)"
            for launch in dict.fromkeys(map(compiledbook.launch_of, compiled))
            if launch not in known
        ]
        for entry in data["entries"]:
            if key_of(entry)[:3] not in known:
                problems.append(
                    f"unused record {'/'.join(key_of(entry))} in {path.name}; remove it (--update-records does)"
                )
        launches = {key[:3] for key in listed}
        for waiver in data["waivers"]:
            key = key_of(waiver)
            # what need not compile is not listed
            waived = (
                key[:3] in launches if waiver["resource"] == compiledbook.COMPILE else key in listed
            )
            if not waived:
                problems.append(
                    f"unused waiver {'/'.join(key_of(waiver))} in {path.name}; remove it"
                )
    return problems


def drop_unused(folder: Path, known: set[tuple[str, str, str]]) -> None:
    """Remove entries that nothing uses (part of --update-records)."""
    from contract.store import atomic_write_text

    for path in sorted(folder.glob("*.json")):
        data = read(path)
        before = data["entries"], data.get("compiled", [])
        kept = [e for e in before[0] if key_of(e)[:3] in known]
        compiled = [e for e in before[1] if compiledbook.launch_of(e) in known]
        if (kept, compiled) != before:
            data |= {"entries": kept, "compiled": compiled}
            atomic_write_text(path, compiledbook.dumped(data))
