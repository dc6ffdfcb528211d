"""Resource records of compiled kernels: reading, judging against them, updating.

records/NAME.json has them beside those of the host, as a list `compiled` that a file without any lacks:

    {"kernel": "softcap/each_op", "implementation": "triton", "launch": "plain", "shape": {"n": 262144, "rows": 1},
     "function": "softcap_kernel", "place": 0, "configuration": [0, 1], "compiler": "triton 3.9.0", "source": SHA-256,
     "architectures": {
      "sm_80": {"ptxas": "12.9.86", "code": SHA-256, "code_bytes": 7040, "resources": {"registers": 32, ...}},
      ...}}

The two-way ratchet and the waivers are those of the host (contract.recordbook): worse fails, better fails until the
record is updated, what is missing on either side fails. Counts of another compiler or ptxas are not compared. Code that
moved and takes the same is named and passes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contract.compiled import occupancy
from contract.compiled.architectures import ARCHITECTURES, Amd, Cuda
from contract.compiled.read import AMD_RESOURCES, CUDA_RESOURCES
from contract.errors import StoreError

#: Waived where a kernel need not compile for an architecture, whatever the limit says.
COMPILE = "compile"
#: Resources that a waiver may name.
RESOURCES = tuple(dict.fromkeys((*CUDA_RESOURCES, *AMD_RESOURCES, COMPILE)))
_ENTRY = {
    "kernel": str,
    "implementation": str,
    "launch": str,
    "function": str,
    "place": int,
    "configuration": list,
    "compiler": str,
    "source": str,
    "shape": dict,
    "architectures": dict,
}
_CODE = {"ptxas": str, "code": str, "code_bytes": int, "resources": dict}

# (function, architecture, what is said of it)
_Finding = tuple[str, str, str]
Entry = Mapping[str, Any]


class Verdict(NamedTuple):
    """An outcome with its detail; `fits`: it compiles for every architecture, and a device takes it: it may be recorded."""

    outcome: str
    detail: str
    fits: bool


def check(path: Path, entries: Any) -> None:
    """Refuse a list that is not as above.

    Raises:
        StoreError: naming file and field.
    """
    if not isinstance(entries, list):
        raise StoreError(f"record {path}: compiled is {type(entries).__name__}, not a list")
    places: dict[tuple[Any, ...], int] = {}
    for i, entry in enumerate(entries):
        where = f"record {path}: compiled[{i}]"
        _fields(where, entry, _ENTRY)
        numbers = entry["configuration"]
        if len(numbers) != 2 or not all(type(n) is int and n >= 0 for n in numbers):
            raise StoreError(f"{where}.configuration is {numbers!r}, not which one and of how many")
        for name, code in entry["architectures"].items():
            if name not in ARCHITECTURES:
                raise StoreError(
                    f"{where}: architecture {name!r} is none of {', '.join(ARCHITECTURES)}"
                )
            _fields(f"{where}.{name}", code, _CODE)
            wanted = resources_on(name)
            counts = code["resources"]
            if set(counts) != set(wanted) or not all(
                type(v) is int and v >= 0 for v in counts.values()
            ):
                raise StoreError(
                    f"{where}.{name}.resources needs counts >= 0 of {', '.join(wanted)}"
                )
        if (first := places.setdefault(_key(entry), i)) != i:
            raise StoreError(f"{where} is for the same function as compiled[{first}]")


def _fields(where: str, entry: Any, fields: Mapping[str, type]) -> None:
    if not isinstance(entry, dict) or set(entry) != set(fields):
        raise StoreError(f"{where} needs exactly the fields {', '.join(fields)}")
    for name, kind in fields.items():
        if type(entry[name]) is not kind:
            raise StoreError(f"{where}.{name} is {entry[name]!r}, not {kind.__name__}")


def resources_on(architecture: str) -> tuple[str, ...]:
    """What is counted there."""
    return AMD_RESOURCES if isinstance(ARCHITECTURES[architecture], Amd) else CUDA_RESOURCES


def launch_of(entry: Entry) -> tuple[str, str, str]:
    """(kernel, implementation, launch) that an entry is for."""
    return entry["kernel"], entry["implementation"], entry["launch"]


def _function(entry: Entry) -> tuple[Any, ...]:
    return entry["function"], tuple(entry["configuration"]), entry["place"]


def _key(entry: Entry) -> tuple[Any, ...]:
    return (*launch_of(entry), *_function(entry))


def name_of(entry: Entry) -> str:
    """The function as messages have it, with its configuration and place where there are several."""
    name: str = entry["function"]
    which, count = entry["configuration"]
    name += f" configuration {which}" if count > 1 else ""
    return name + (f" #{entry['place'] + 1}" if entry["place"] else "")


def judge(
    data: Mapping[str, Any],
    launch: tuple[str, str, str],
    shape: Mapping[str, int],
    measured: Sequence[Entry],
) -> Verdict:
    """What was measured for one launch against a record file's contents."""
    recorded = {_function(e): e for e in data.get("compiled", ()) if launch_of(e) == launch}
    waived = {
        (w["architecture"], w["resource"]): w["limit"]
        for w in data["waivers"]
        if (w["kernel"], w["implementation"], w["launch"]) == launch
    }
    if stale := [e for e in recorded.values() if e["shape"] != dict(shape)]:
        recorded = {}
    found = _Findings()
    for entry in measured:
        found.compare(entry, recorded.pop(_function(entry), None), waived)
    for gone in recorded.values():
        found.gone += [(name_of(gone), name, "recorded, not launched") for name in gone["architectures"]]  # fmt: skip
    outcome, detail = found.verdict(measured)
    if stale and not found.broken:
        outcome, detail = (
            "fail",
            (
                f"stale: recorded at {stale[0]['shape']}, the contract's first shape is {dict(shape)}; run with"
                " --update-records"
            ),
        )
    return Verdict(outcome, detail, not found.broken)


def judge_loaded(
    data: Mapping[str, Any],
    launch: tuple[str, str, str],
    shape: Mapping[str, int],
    loaded: Sequence[Entry],
) -> tuple[int, str, str]:
    """What a driver says of the functions of one launch against a record file's contents.

    Args:
        data, launch, shape: as of `judge`.
        loaded: contract.engines.gpu:measure.

    Returns:
        (how many counts were compared, outcome, detail): a count that is another one fails, whichever is less: the code is
        not the recorded one. Not run: what has no record for this architecture, or one of other tools.
    """
    recorded = {
        _function(e): e
        for e in data.get("compiled", ())
        if launch_of(e) == launch and e["shape"] == dict(shape)
    }
    compared = 0
    other: list[_Finding] = []
    unknown: list[_Finding] = []
    same: list[_Finding] = []
    for entry in loaded:
        name, architecture = name_of(entry), entry["architecture"]
        old = recorded.get(_function(entry))
        before = old["architectures"].get(architecture) if old else None
        if old is None or before is None:
            unknown.append((name, architecture, "no record; run with --update-records"))
            continue
        was, here = (old["compiler"], before["ptxas"]), (entry["compiler"], entry["ptxas"])
        if was != here:
            text = f"recorded with {_tools(*was)}, this is {_tools(*here)}"
            unknown.append((name, architecture, text))
            continue
        found = _loaded_counts(architecture, before["resources"], entry["resources"])
        compared += len(found)
        wrong = [(r, a, b) for r, (a, b, right) in found.items() if not right]
        other += [(name, architecture, f"{r} {a:,} recorded, {b:,} loaded") for r, a, b in wrong]
        registers = entry["resources"].get("registers", 0)
        same.append((name, architecture, f"{registers} registers, as recorded"))
    if other:
        return compared, "fail", f"not as recorded: {grouped([*other, *unknown])}"
    if unknown:
        return compared, "not_run", grouped(unknown)
    return compared, "pass", grouped(same)


def _loaded_counts(
    architecture: str, recorded: Mapping[str, int], loaded: Mapping[str, int]
) -> dict[str, tuple[int, int, bool]]:
    """Resource -> what is recorded, what the driver says, whether these agree."""
    limits = ARCHITECTURES[architecture]
    # a driver may count the bytes of a block that CUDA takes for itself
    reserved = limits.shared_reserved if isinstance(limits, Cuda) else 0
    found = {}
    for name in ("registers", "static_shared_bytes", "dynamic_shared_bytes", "threads"):
        if name in loaded:
            a, b = recorded[name], loaded[name]
            spare = (0, reserved) if name == "static_shared_bytes" else (0,)
            found[name] = a, b, b - a in spare
    return found


class _Findings:
    """What differs from a record, by what it means."""

    def __init__(self) -> None:
        self.broken: list[_Finding] = []
        self.worse: list[_Finding] = []
        self.better: list[_Finding] = []
        self.new: list[_Finding] = []
        self.gone: list[_Finding] = []
        self.other: list[_Finding] = []
        self.moved: list[_Finding] = []

    def compare(
        self, entry: Entry, old: Entry | None, waived: Mapping[tuple[str, str], int]
    ) -> None:
        """Sort one function's architectures."""
        function = name_of(entry)
        before = old["architectures"] if old else {}
        for name, now in entry["architectures"].items():
            if "error" in now:
                if (name, COMPILE) in waived:
                    continue
                self.broken.append((function, name, now["error"]))
                continue
            beyond = _beyond(ARCHITECTURES[name], now["resources"], waived)
            self.broken += [(function, name, text) for text in beyond]
            if name not in before:
                counts = now["resources"]
                shown = ", ".join(f"{r} {counts[r]:,}" for r in resources_on(name) if counts[r])
                self.new.append((function, name, shown))
                continue
            self._against(function, name, entry, now, old or {}, before[name], waived)
        compiled = {name for name, now in entry["architectures"].items() if "error" not in now}
        missing = before.keys() - compiled - {name for _, name, _ in self.broken}
        self.gone += [(function, name, "recorded, not compiled for") for name in sorted(missing)]

    def _against(
        self, function: str, name: str, entry: Entry, now: Entry, old: Entry, before: Entry,
        waived: Mapping[tuple[str, str], int],
    ) -> None:  # fmt: skip
        was, here = (old["compiler"], before["ptxas"]), (entry["compiler"], now["ptxas"])
        if was != here:
            text = f"recorded with {_tools(*was)}, this is {_tools(*here)}"
            self.other.append((function, name, text))
            return
        changes = 0
        for resource in resources_on(name):
            a, b = before["resources"][resource], now["resources"][resource]
            change = (function, name, f"{resource} {a:,} -> {b:,}")
            if b > max(a, waived.get((name, resource), a)):
                self.worse.append(change)
            elif b < a:
                self.better.append(change)
            changes += a != b
        if not changes and before["code"] != now["code"]:
            sizes = f"code of {before['code_bytes']:,} -> {now['code_bytes']:,} bytes"
            self.moved.append((function, name, sizes))

    def verdict(self, measured: Sequence[Entry]) -> tuple[str, str]:
        """The outcome, and every set by its functions and architectures."""
        update = "run with --update-records"
        parts = [
            ("does not fit or compile", self.broken, ""),
            ("above the record", self.worse, ""),
            ("improved", self.better, update),
            ("no record", self.new, update),
            ("no longer there", self.gone, update),
        ]
        said = [
            f"{head}: {grouped(found)}" + (f"; {repair}" if repair else "")
            for head, found, repair in parts
            if found
        ]
        moved = [f"moved: {grouped(self.moved)}"] if self.moved else []
        other = [grouped(self.other)] if self.other else []
        if said:
            return "fail", "\n".join([*said, *other, *moved])
        if other:
            return "not_run", "\n".join([*other, *moved])
        return "pass", "\n".join([_summary(measured, self.moved), *moved])


def _tools(compiler: str, ptxas: str) -> str:
    return compiler if ptxas == "none" else f"{compiler} and ptxas {ptxas}"


def _beyond(
    limits: Cuda | Amd, counts: Mapping[str, int], waived: Mapping[tuple[str, str], int]
) -> list[str]:
    """What no device of the architecture takes."""
    if isinstance(limits, Amd):
        most = {"vgprs": limits.vgprs, "sgprs": limits.sgprs, "lds_bytes": limits.lds}
    else:
        most = {
            "registers": limits.registers_per_thread,
            "threads": limits.threads_per_block,
            # what one block may have of both kinds
            "dynamic_shared_bytes": limits.shared_opt_in - counts["static_shared_bytes"],
        }
    said = [
        f"{name} {counts[name]:,}, the architecture has {limit:,}"
        for name, limit in most.items()
        if counts[name] > max(limit, waived.get((limits.name, name), limit))
    ]
    if not said and isinstance(limits, Cuda) and not _resident(limits, counts):
        said = [f"{counts['threads']:,} threads of {counts['registers']} registers do not fit"]
    return said


def _resident(limits: Cuda, counts: Mapping[str, int]) -> int:
    return occupancy.blocks(
        limits,
        threads=counts["threads"],
        registers=counts["registers"],
        # what is waived is not what occupancy is about
        shared=min(limits.shared_opt_in, counts["static_shared_bytes"] + counts["dynamic_shared_bytes"]),
    )  # fmt: skip


def grouped(findings: Iterable[_Finding]) -> str:
    """'softcap_kernel on sm_80, sm_86: registers 32 -> 40; ...': architectures of which the same is said, together."""
    texts: dict[tuple[str, str], list[str]] = {}
    for function, architecture, text in findings:
        texts.setdefault((function, architecture), []).append(text)
    same: dict[tuple[str, str], list[str]] = {}
    for (function, architecture), said in texts.items():
        same.setdefault((function, ", ".join(said)), []).append(architecture)
    return "; ".join(f"{f} on {', '.join(names)}: {text}" for (f, text), names in same.items())


def _summary(measured: Sequence[Entry], moved: Sequence[_Finding]) -> str:
    """What passed, in one line: functions, architectures, the largest counts, whose code is as recorded."""
    architectures = dict.fromkeys(name for entry in measured for name in entry["architectures"])
    named = ", ".join(dict.fromkeys(name_of(entry) for entry in measured))
    every = [
        c["resources"] for e in measured for c in e["architectures"].values() if "error" not in c
    ]
    most = {name: max((c.get(name, 0) for c in every), default=0) for name in RESOURCES}
    spilled = sum(most[n] for n in RESOURCES if "spill" in n)
    shares = [
        occupancy.share(limits, _resident(limits, code["resources"]), code["resources"]["threads"])
        for entry in measured
        for name, code in entry["architectures"].items()
        if isinstance(limits := ARCHITECTURES[name], Cuda) and "error" not in code
    ]
    fewest = f", occupancy from {min(shares):.0%}" if shares else ""
    others = "no other kernel's code changed" if moved else "no kernel's code changed"
    return (
        f"{named}: at most {most['registers']} registers{'' if spilled else ', no spills'}{fewest};"
        f" {others} on {len(architectures)} architectures"
    )


def entries(
    launch: tuple[str, str, str], shape: Mapping[str, int], measured: Sequence[Entry]
) -> list[dict[str, Any]]:
    """What was measured, as a record holds it; architectures that have no counts are left out."""
    kernel, implementation, name = launch
    return [
        {
            "kernel": kernel,
            "implementation": implementation,
            "launch": name,
            "shape": dict(shape),
            **entry,
            "architectures": {a: c for a, c in entry["architectures"].items() if "error" not in c},
        }
        for entry in measured
    ]


def replaced(data: Mapping[str, Any], new: Sequence[Entry]) -> list[Entry]:
    """A file's entries with those of the new ones' launch in place of the old."""
    launches = {launch_of(entry) for entry in new}
    others = [e for e in data.get("compiled", ()) if launch_of(e) not in launches]
    return sorted([*others, *new], key=_key)


def dumped(data: Mapping[str, Any]) -> str:
    """A record file as text: an architecture of a compiled kernel takes one line, and so does what is kept of mutants."""
    lines: list[str] = []

    def line(code: Any) -> str:
        lines.append(json.dumps(code, sort_keys=True))
        return f"@{len(lines) - 1}@"

    held = [
        {**e, "architectures": {a: line(c) for a, c in e["architectures"].items()}}
        for e in data.get("compiled", ())
    ]
    shown = {**data, **({"compiled": held} if held else {})}
    if not held:
        shown.pop("compiled", None)
    if "mutants" in data:
        shown["mutants"] = {name: list(map(line, ones)) for name, ones in data["mutants"].items()}
    text = json.dumps(shown, indent=1, sort_keys=True)
    return re.sub(r'"@(\d+)@"', lambda found: lines[int(found[1])], text) + "\n"
