"""Registers, spills, LDS and private memory of an AMD kernel, from the assembly that LLVM wrote.

Three places of the text say them: the metadata at its end (LLVM, AMDGPU Backend, "Code Object V5 Metadata"), the kernel
descriptor (`.amdhsa_...`), and the comments of "Kernel info". Spills stand in the metadata alone.
"""

from __future__ import annotations

import re

from contract.compiled.faults import Unreadable

_METADATA = {
    "vgprs": ".vgpr_count",
    "sgprs": ".sgpr_count",
    "vgpr_spills": ".vgpr_spill_count",
    "sgpr_spills": ".sgpr_spill_count",
    "lds_bytes": ".group_segment_fixed_size",
    "private_bytes": ".private_segment_fixed_size",
}
_DESCRIPTOR = {
    "lds_bytes": ".amdhsa_group_segment_fixed_size",
    "private_bytes": ".amdhsa_private_segment_fixed_size",
}
_COMMENTS = {
    # the first that is there: with accumulation registers the total is what is allocated
    "vgprs": ("TotalNumVgprs", "NumVgprs"),
    "sgprs": ("TotalNumSgprs",),
    "lds_bytes": ("LDSByteSize",),
    "private_bytes": ("ScratchSize",),
}


def readings(text: str) -> dict[str, dict[str, int]]:
    """Place -> counts, as far as that place has them; the metadata has all.

    Raises:
        Unreadable: no metadata, not of one kernel, or a count that is missing there.
    """
    _, _, metadata = text.partition(".amdgpu_metadata")
    if metadata.count(".vgpr_count:") != 1:
        raise Unreadable("amdgcn: no metadata of exactly one kernel at the end of the assembly")
    return {
        "metadata": {n: _one("metadata", metadata, rf"^\s*(?:- )?{re.escape(k)}:\s*(\d+)\s*$", k) for n, k in _METADATA.items()},
        "descriptor": {n: _one("descriptor", text, rf"^\s*{re.escape(k)}\s+(\d+)\s*$", k) for n, k in _DESCRIPTOR.items()},
        "comments": {n: _comment(text, names) for n, names in _COMMENTS.items()},
    }  # fmt: skip


def _one(where: str, text: str, pattern: str, key: str) -> int:
    found = re.findall(pattern, text, re.MULTILINE)
    if len(found) != 1:
        raise Unreadable(f"amdgcn {where}: {key} stands there {len(found)} times, not once")
    return int(found[0])


def _comment(text: str, names: tuple[str, ...]) -> int:
    for name in names:
        if found := re.search(rf"^; {name}: (\d+)", text, re.MULTILINE):
            return int(found[1])
    raise Unreadable(f"amdgcn comments: no {names[-1]}")
