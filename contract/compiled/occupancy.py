"""How many blocks of a kernel fit on one multiprocessor: derived from its resources, for reading beside them."""

from __future__ import annotations

from contract.compiled.architectures import Amd, Cuda


def blocks(limits: Cuda, *, threads: int, registers: int, shared: int) -> int:
    """Resident blocks on one multiprocessor; 0 where not even one fits.

    Registers are given to warps in units, warps to the four schedulers in equal numbers (cuda_occupancy.h of the toolkit).

    Args:
        threads: of a block.
        registers: of a thread.
        shared: bytes of a block, static and dynamic.
    """
    warps = _up(-(-threads // 32), 1)
    if threads > limits.threads_per_block or registers > limits.registers_per_thread:
        return 0
    if shared > limits.shared_opt_in:
        return 0
    by_threads = limits.threads // (32 * warps)
    taken = _up(max(registers, 1) * 32, limits.register_unit)
    # each scheduler has its part of the registers
    each = limits.registers // limits.warp_unit // taken * limits.warp_unit
    by_shared = limits.shared // (_up(shared, limits.shared_unit) + limits.shared_reserved)
    return max(0, min(by_threads, limits.blocks, each // warps, by_shared))


def share(limits: Cuda, resident: int, threads: int) -> float:
    """Part of the warps that a multiprocessor can hold."""
    return resident * -(-threads // 32) * 32 / limits.threads


def waves(limits: Amd, *, vgprs: int, lds: int, threads: int) -> int:
    """Resident waves on one SIMD; 0 where a work group does not fit."""
    if vgprs > limits.vgprs or lds > limits.lds:
        return 0
    by_registers = limits.vgprs_of_simd // _up(max(vgprs, 1), limits.vgpr_unit)
    group = -(-threads // limits.wave)
    groups = limits.lds_of_unit // lds if lds else limits.waves * limits.simds
    by_lds = -(-groups * group // limits.simds)
    return min(limits.waves, by_registers, by_lds)


def _up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
