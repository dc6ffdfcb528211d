"""What `cuobjdump -res-usage` says of each entry of a cubin.

Function k:
 REG:32 STACK:160 SHARED:1200 LOCAL:0 CONSTANT[0]:372 TEXTURE:0 SURFACE:0 SAMPLER:0
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from contract.compiled.faults import Unreadable

_FUNCTION = re.compile(r"^\s*Function (\S+):\s*\n(.*)$", re.MULTILINE)
_COUNT = re.compile(r"\b(REG|STACK|SHARED):(\d+)")


def usage(tool: Path, cubin: bytes) -> dict[str, dict[str, int]]:
    """Entry -> {"registers", "stack", "shared"}; shared as the ELF file has it.

    Raises:
        Unreadable: the tool does not run, or says nothing of an entry.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [tool, "-res-usage", file.name], check=False, capture_output=True, text=True
            )
        except OSError as error:
            raise Unreadable(f"{tool} does not run: {error}") from None
    return parse(done.stdout, done.stderr)


def parse(listing: str, said: str = "") -> dict[str, dict[str, int]]:
    """The listing's entries."""
    names = {"REG": "registers", "STACK": "stack", "SHARED": "shared"}
    found = {}
    for function, line in _FUNCTION.findall(listing):
        counts = {names[what]: int(number) for what, number in _COUNT.findall(line)}
        if len(counts) != len(names):
            raise Unreadable(f"cuobjdump -res-usage: {function}: {line.strip()!r} lacks a count")
        found[function] = counts
    if not found:
        raise Unreadable(f"cuobjdump -res-usage: no function ({said.strip()[:80] or 'no message'})")
    return found
