"""What one kernel may take on each architecture, and what fits on one multiprocessor.

Sources:
    NVIDIA: CUDA Programming Guide, appendix Compute Capabilities, tables of technical specifications and of shared
        memory capacity (12.1 stands in the columns of 12.x). Registers are given to warps in units of 256, shared memory
        to blocks in units of 128 bytes, one KiB of which CUDA itself takes for each block: the occupancy calculator
        (cuda_occupancy.h) of the toolkit.
    AMD: LLVM, User Guide for AMDGPU Backend (target properties, kernel descriptor: granule of VGPRs); the ISA documents
        of CDNA2, CDNA3, CDNA4, RDNA3 and RDNA4 (VGPRs of a SIMD, waves of a SIMD, LDS); reserved SGPRs: LLVM's
        SIRegisterInfo (review D27225).
    `processors` is a property of a product, named beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.errors import UsageError

KIB = 1024


@dataclass(frozen=True)
class Cuda:
    """Limits of one compute capability; bytes, 32-bit registers, threads.

    Attributes:
        capability: 80 for 8.0.
        shared: of one multiprocessor.
        shared_opt_in: of one block that asks for more than `shared_default`.
        threads, blocks: resident on one multiprocessor.
        processors: multiprocessors of `product`.
    """

    capability: int
    shared: int
    shared_opt_in: int
    threads: int
    blocks: int
    product: str
    processors: int
    registers: int = 65_536
    registers_per_thread: int = 255
    threads_per_block: int = 1_024
    shared_default: int = 48 * KIB
    shared_reserved: int = 1 * KIB
    shared_unit: int = 128
    register_unit: int = 256
    warp_unit: int = 4

    @property
    def name(self) -> str:
        """`sm_80`."""
        return f"sm_{self.capability}"


@dataclass(frozen=True)
class Amd:
    """Limits of one AMD processor.

    Attributes:
        wave: lanes of a wavefront.
        vgprs: vector registers that one lane may take, accumulation registers among them.
        vgprs_of_simd: those that the resident waves of a SIMD share, for each lane.
        vgpr_unit: they are given to a wave in units of that.
        sgprs: scalar registers of a wave as LLVM counts them: 102 (gfx9) and 6 for VCC, FLAT_SCRATCH and XNACK_MASK, or
            106 (gfx10 on) and 2 for VCC.
        waves: resident on a SIMD.
        simds: of one compute unit (of one half of a work-group processor on RDNA).
        lds: bytes of one work group.
        lds_of_unit: bytes that the work groups of `simds` share.
    """

    name: str
    wave: int
    vgprs: int
    vgprs_of_simd: int
    vgpr_unit: int
    sgprs: int
    waves: int
    simds: int
    lds: int
    lds_of_unit: int


_CUDA = (
    Cuda(80, 164 * KIB, 163 * KIB, 2_048, 32, "A100", 108),
    Cuda(86, 100 * KIB, 99 * KIB, 1_536, 16, "A40", 84),
    Cuda(89, 100 * KIB, 99 * KIB, 1_536, 24, "L40S", 142),
    Cuda(90, 228 * KIB, 227 * KIB, 2_048, 32, "H100 SXM", 132),
    Cuda(100, 228 * KIB, 227 * KIB, 2_048, 32, "B200", 148),
    Cuda(120, 100 * KIB, 99 * KIB, 1_536, 24, "RTX 5090", 170),
    Cuda(121, 100 * KIB, 99 * KIB, 1_536, 24, "GB10", 48),
)
_AMD = (
    Amd("gfx90a", 64, 512, 512, 8, 108, 8, 4, 64 * KIB, 64 * KIB),
    Amd("gfx942", 64, 512, 512, 8, 108, 8, 4, 64 * KIB, 64 * KIB),
    Amd("gfx950", 64, 512, 512, 8, 108, 8, 4, 160 * KIB, 160 * KIB),
    Amd("gfx1100", 32, 256, 1_536, 24, 108, 16, 2, 64 * KIB, 64 * KIB),
    Amd("gfx1201", 32, 256, 1_536, 24, 108, 16, 2, 64 * KIB, 64 * KIB),
)

ARCHITECTURES: dict[str, Cuda | Amd] = {a.name: a for a in (*_CUDA, *_AMD)}
#: Those that a record of a CUDA C++ kernel holds; one of a Triton kernel holds all.
CUDA_NAMES = tuple(a.name for a in _CUDA)
AMD_NAMES = tuple(a.name for a in _AMD)


def find(name: str) -> Cuda | Amd:
    """The architecture of that name: sm_80, gfx942."""
    if name not in ARCHITECTURES:
        raise UsageError(
            f"architecture {name!r} is not listed; it is one of {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def cuda(capability: int) -> Cuda:
    """The limits of a compute capability: 80."""
    found = find(f"sm_{capability}")
    assert isinstance(found, Cuda)
    return found
