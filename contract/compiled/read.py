"""The resources of a captured launch on an architecture: compiled again for it, read several ways, and refused unless
all of them agree.

Triton: the launch's own arguments are specialised and compiled for the other target; what only `ptxas -v` says is what
the ptxas that Triton uses there (12.9 below sm_90, ptxas-blackwell from it) said when Triton ran it.
CUDA C++: nvcc for each architecture.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract.compiled import amdgcn, cuobjdump, elf, ptxas
from contract.compiled.architectures import Amd, Cuda, find
from contract.compiled.faults import Disagreement, Refused, Unreadable
from contract.engines.capture import CapturedLaunch, MissingCompiler
from contract.engines.tools import of_triton, tool_version
from contract.engines.triton_cache import ptxas_log
from contract.store import atomic_write_text, digest

#: What records hold for NVIDIA and for AMD, and of which more is worse.
CUDA_RESOURCES = (
    "registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes", "static_shared_bytes", "dynamic_shared_bytes",
    "barriers", "threads",
)  # fmt: skip
AMD_RESOURCES = (
    "vgprs", "sgprs", "vgpr_spills", "sgpr_spills", "lds_bytes", "private_bytes", "threads",
)  # fmt: skip
_SCHEMA = 2
# What Triton's AMD backend says of assembly that LLVM wrote and does not take, as of instructions of another vendor.
_REJECTED = "assembler rejected"


def resources_of(
    launch: CapturedLaunch, architecture: str, cache: Path, source: str = ""
) -> dict[str, Any]:
    """What one launch takes on an architecture, and what that was read from.

    Args:
        launch: as captured.
        architecture: 'sm_90', 'gfx942'; AMD's for Triton alone.
        cache: folder of what was compiled and read, named by all that it depends on.
        source: `source_of` the launch, where the caller has it.

    Returns:
        {"function", "architecture", "configuration", "compiler", "ptxas", "source", "code", "code_bytes", "resources"}:
        source and code are SHA-256 of what was compiled and of its machine code.

    Raises:
        Disagreement: two readings differ.
        Unreadable: a tool is missing, refuses the code, or writes what is not understood.
        Refused: the assembler does not take the code; that is kept, too.
    """
    limits = find(architecture)
    identity = _identity(launch, limits, source or source_of(launch))
    key = digest({"schema": _SCHEMA, "launch": _key(launch), **identity})
    place = cache / "resources" / key[:2] / f"{key}.json"
    try:
        kept = json.loads(place.read_text())
        found = dict(kept["found"]) if kept["digest"] == digest(kept["found"]) else {}
        found = found if _is_found(found, identity, limits) else {}
    except (OSError, ValueError, TypeError, KeyError):
        # absent, or damaged: it is made again
        found = {}
    if not found:
        found = {**identity, **_counts(launch, limits, cache)}
        text = json.dumps({"found": found, "digest": digest(found)}, sort_keys=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(place, text)
    if "refused" in found:
        raise Refused(found["refused"])
    return found


def _is_found(found: Mapping[str, Any], identity: Mapping[str, Any], limits: Cuda | Amd) -> bool:
    """Whether a kept entry is of what is asked, and is one: a reason of refusal, or code and every resource."""
    if any(name not in found or found[name] != value for name, value in identity.items()):
        return False
    rest = {name: value for name, value in found.items() if name not in identity}
    if "refused" in rest:
        return set(rest) == {"refused"} and isinstance(rest["refused"], str)
    if set(rest) != {"code", "code_bytes", "resources"} or not isinstance(rest["code"], str):
        return False
    resources = rest["resources"]
    names = AMD_RESOURCES if isinstance(limits, Amd) else CUDA_RESOURCES
    if not isinstance(resources, dict) or set(resources) != set(names):
        return False
    counts = [rest["code_bytes"], *resources.values()]
    return all(type(count) is int and count >= 0 for count in counts) and resources["threads"] > 0


def _counts(launch: CapturedLaunch, limits: Cuda | Amd, cache: Path) -> dict[str, Any]:
    """What is counted, or {"refused": why there is nothing to count}."""
    try:
        if isinstance(limits, Amd):
            return _amd(launch, limits, cache)
        if launch.language == "triton":
            return _triton(launch, limits, cache)
        return _cuda(launch, limits, cache)
    except Refused as error:
        return {"refused": str(error)}


def _identity(launch: CapturedLaunch, limits: Cuda | Amd, source: str) -> dict[str, Any]:
    if isinstance(limits, Amd):
        assembler = "none"
    elif launch.language == "triton":
        assembler = tool_version(_triton_tool(limits))
    else:
        assembler = launch.ptxas
    return {
        "function": launch.function,
        "architecture": limits.name,
        "configuration": list(launch.configuration),
        "compiler": launch.compiler,
        "ptxas": assembler,
        "source": source,
    }


def source_of(launch: CapturedLaunch) -> str:
    """SHA-256 of what was compiled, with what the launch fixed in it; moving lines does not change it."""
    if launch.language == "cuda":
        from contract.engines.nvcc import source_hash

        kernel = launch.source
        text = source_hash(kernel.source, kernel.headers)
        return digest({"files": text, "options": list(kernel.options)})
    src = launch.source.compiled.src
    return digest(
        {
            "text": src.fn.src,
            "signature": {name: str(kind) for name, kind in src.signature.items()},
            "constants": {str(path): str(value) for path, value in src.constants.items()},
            "attributes": {str(path): str(value) for path, value in src.attrs.items()},
            "options": {name: str(value) for name, value in launch.options.items()},
        }
    )


def _key(launch: CapturedLaunch) -> list[Any]:
    """What else decides: helpers and the environment (in Triton's own hash), and the launch."""
    if launch.language == "cuda":
        return [launch.entry, list(launch.block), launch.shared]
    # AMD specialises on tensors below 2 GiB
    small = [t.untyped_storage().nbytes() < 2**31 for t in launch.tensors.values()]
    return [launch.source.compiled.hash, small]


def _triton_tool(limits: Cuda) -> Path:
    from triton.backends.nvidia.compiler import get_ptxas

    return Path(get_ptxas(limits.capability).path)


def _triton(launch: CapturedLaunch, limits: Cuda, cache: Path) -> dict[str, Any]:
    compiled = launch.source.compiled_for(limits.name, cache)
    metadata, cubin = compiled.metadata, compiled.asm["cubin"]
    # a cache that others filled holds no log
    log = ptxas_log(compiled) or _assembled(launch.function, compiled, limits)
    counts = read_cubin(launch.function, limits, cubin, log, metadata.name)
    block = 32 * metadata.num_warps
    return _counted(counts, elf.read(cubin)[metadata.name], metadata.shared, block)


def _assembled(name: str, compiled: Any, limits: Cuda) -> str:
    """What ptxas says of a compiled kernel when it is run again as Triton runs it.

    Raises:
        Disagreement: it gives other code, so that what it says is not about the kernel.
    """
    from triton import knobs
    from triton.backends.nvidia.compiler import sm_arch_from_capability

    metadata, entry = compiled.metadata, compiled.metadata.name
    options = [
        *([] if knobs.compilation.disable_line_info else ["-lineinfo"]),
        *([] if metadata.enable_fp_fusion else ["--fmad=false"]),
        "--regAllocOptLevel=2",
        *((metadata.ptx_options or "").split()),
    ]
    tool = _triton_tool(limits)
    cubin, log = ptxas.assembled(
        tool, compiled.asm["ptx"], sm_arch_from_capability(limits.capability), options
    )
    own = elf.read(compiled.asm["cubin"])[entry]
    again = elf.read(cubin)[entry]
    if own != again:
        raise Disagreement(
            f"{name} on {limits.name}: {tool.name} run as Triton runs it gives other code: {own} and {again}"
        )
    return log


def _cuda(launch: CapturedLaunch, limits: Cuda, cache: Path) -> dict[str, Any]:
    cubin, log = launch.source.compiled(limits.name, "cubin", cache)
    counts = read_cubin(launch.function, limits, cubin, log, launch.entry)
    x, y, z = launch.block
    return _counted(counts, elf.read(cubin)[launch.entry], launch.shared, x * y * z)


def _counted(
    counts: Mapping[str, int], function: elf.Function, dynamic: int, threads: int
) -> dict[str, Any]:
    resources = {**counts, "dynamic_shared_bytes": dynamic, "threads": threads}
    return {
        "code": function.code,
        "code_bytes": function.code_bytes,
        "resources": {name: int(resources[name]) for name in CUDA_RESOURCES},
    }


def read_cubin(name: str, limits: Cuda, cubin: bytes, log: str, entry: str) -> dict[str, int]:
    """The counts of one entry of a cubin, the same in every reading.

    Args:
        name: of the kernel, for messages.
        log: what `ptxas -v` said.
    """
    usage, function = ptxas.parse(log), elf.read(cubin)
    for what, found in (("ptxas -v", usage), ("the ELF file", function)):
        if entry not in found:
            raise Unreadable(f"{name} on {limits.name}: {what} has no {entry}")
    said, held = usage[entry], function[entry]
    readings = {
        "ptxas -v": {"registers": said.registers, "stack": said.stack, "shared": said.shared},
        "ELF": {"registers": held.registers, "stack": held.stack, "shared": _own_shared(limits, held.shared)},
    }  # fmt: skip
    if tool := _cuobjdump():
        listed = cuobjdump.usage(tool, cubin).get(entry, {})
        shared = _own_shared(limits, listed.get("shared", 0))
        readings["cuobjdump"] = {**listed, "shared": shared}
    agreed(name, limits.name, readings)
    return {
        "registers": said.registers,
        "stack_bytes": said.stack,
        "spill_store_bytes": said.spill_stores,
        "spill_load_bytes": said.spill_loads,
        "static_shared_bytes": said.shared,
        "barriers": said.barriers,
    }


def _own_shared(limits: Cuda, shared: int) -> int:
    """Without the bytes that CUDA takes of every block, which sm_90 and later count among the static ones."""
    return max(0, shared - limits.shared_reserved) if limits.capability >= 90 else shared


def _cuobjdump() -> Path | None:
    """The cuobjdump beside nvcc, else the one that Triton brings; None where there is neither."""
    from contract.engines import nvcc

    places = []
    with contextlib.suppress(MissingCompiler):
        places.append(nvcc.find().with_name("cuobjdump"))
    if own := of_triton("cuobjdump"):
        places.append(own)
    return next((place for place in places if place.is_file()), None)


def _amd(launch: CapturedLaunch, limits: Amd, cache: Path) -> dict[str, Any]:
    if launch.language != "triton":
        raise Unreadable(f"{launch.function}: CUDA C++ is not compiled for {limits.name}")
    try:
        compiled = launch.source.compiled_for(limits.name, cache)
    except RuntimeError as error:
        if _REJECTED in str(error):
            raise Refused(f"does not compile: {error}"[:300]) from None
        raise
    readings = amdgcn.readings(compiled.asm["amdgcn"])
    agreed(launch.function, limits.name, readings)
    code, size = elf.code(compiled.asm["hsaco"])
    counts = dict(readings["metadata"])
    # LDS that the launch sizes shows as 0 in the code
    counts["lds_bytes"] = max(counts["lds_bytes"], compiled.metadata.shared)
    counts["threads"] = limits.wave * compiled.metadata.num_warps
    return {
        "code": code,
        "code_bytes": size,
        "resources": {name: int(counts[name]) for name in AMD_RESOURCES},
    }


def agreed(name: str, architecture: str, readings: Mapping[str, Mapping[str, int]]) -> None:
    """Refuse counts of which two readings say different numbers.

    Raises:
        Disagreement: with every value of every count that differs.
    """
    counts = dict.fromkeys(count for found in readings.values() for count in found)
    for count in counts:
        said = {way: found[count] for way, found in readings.items() if count in found}
        if len(set(said.values())) > 1:
            values = ", ".join(f"{way} {number:,}" for way, number in said.items())
            raise Disagreement(f"{name} on {architecture}: {count} is not one number: {values}")
