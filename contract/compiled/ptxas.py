"""What `ptxas -v` says of each entry: the only source of spilled bytes and of barriers.

ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    160 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 160 bytes cumulative stack size, 1200 bytes smem, 372 bytes cmem[0]
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.compiled.faults import Unreadable

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(.*)")


@dataclass(frozen=True)
class Usage:
    """One entry; bytes but for registers and barriers."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    barriers: int


def assembled(
    tool: Path, ptx: str, architecture: str, options: Sequence[str] = ()
) -> tuple[bytes, str]:
    """The cubin of a PTX text and what ptxas said.

    Raises:
        Unreadable: ptxas is not there, or refuses the text; its first message.
    """
    with tempfile.TemporaryDirectory(prefix="ptxas-") as name:
        source, out = Path(name) / "k.ptx", Path(name) / "k.cubin"
        source.write_text(ptx)
        command = [
            str(tool),
            "-v",
            *options,
            f"--gpu-name={architecture}",
            source.name,
            "-o",
            out.name,
        ]
        try:
            done = subprocess.run(command, check=False, cwd=name, capture_output=True, text=True)
        except OSError as error:
            raise Unreadable(f"{tool} does not run: {error}") from None
        if done.returncode or not out.is_file():
            said = (done.stderr + done.stdout).strip().splitlines()
            raise Unreadable(f"{tool.name} for {architecture}: {said[0] if said else 'failed'}")
        return out.read_bytes(), done.stderr + done.stdout


def parse(log: str) -> dict[str, Usage]:
    """Entry -> what it uses.

    Raises:
        Unreadable: an entry of which a line is missing; no entry at all.
    """
    found: dict[str, Usage] = {}
    entry = properties = ""
    spills: dict[str, tuple[int, ...]] = {}
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
        elif match := _PROPERTIES.search(line):
            properties = match[1]
        elif match := _SPILLS.search(line):
            spills[properties] = tuple(map(int, match.groups()))
        elif match := _USED.search(line):
            if entry not in spills:
                raise Unreadable(
                    f"ptxas -v: registers of {entry or 'no entry'} before its stack and spills"
                )
            stack, stores, loads = spills[entry]
            found[entry] = Usage(
                int(match[1]), stack, stores, loads,
                _number(match[2], r"(\d+) bytes smem"), _number(match[2], r"used (\d+) barriers"),
            )  # fmt: skip
            entry = ""
    if not found or entry:
        raise Unreadable(f"ptxas -v: no line of registers for {entry or 'any entry'}")
    return found


def _number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0
