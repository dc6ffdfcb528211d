"""A stand-in for the driver that Triton asks what it compiles for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from contract.engines.capture import LaunchError
from contract.engines.ptx.faults import Unsupported


@cache
def stand_in(architecture: str) -> Any:
    """A driver that answers for a device of that architecture, and can launch nothing."""
    from triton.backends.compiler import GPUTarget

    from contract.compiled.architectures import Amd, find

    facts = find(architecture)
    if isinstance(facts, Amd):
        target = GPUTarget("hip", facts.name, facts.wave)
        properties = {"max_shared_mem": facts.lds, "warpSize": facts.wave}
    else:
        target = GPUTarget("cuda", facts.capability, 32)
        properties = {
            "max_shared_mem": facts.shared_opt_in,
            "multiprocessor_count": facts.processors,
            "max_num_regs": facts.registers,
            "warpSize": 32,
        }
    properties |= {"sm_clock_rate": 10**6, "mem_clock_rate": 10**6, "mem_bus_width": 4_096}

    class Properties:
        def get_device_properties(self, device: Any) -> dict[str, int]:
            return properties

    class Driver:
        utils = Properties()

        def get_current_target(self) -> Any:
            return target

        def get_current_device(self) -> str:
            # JITFunction keeps what it compiled by device: never that of a real one
            return architecture

        def set_current_device(self, device: Any) -> None:
            return None

        def get_current_stream(self, device: Any = None) -> int:
            return 0

        def get_device_capability(self, device: Any = None) -> tuple[int, int]:
            return divmod(getattr(facts, "capability", 0), 10)

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cpu")

        def get_device_interface(self) -> Any:
            import torch

            return torch.cuda

        def get_benchmarker(self) -> Callable[..., list[float]]:
            raise LaunchError("nothing can be timed without a device")

        @property
        def launcher_cls(self) -> Any:
            # asked for by a CompiledKernel that is launched by itself
            raise Unsupported(
                "a compiled kernel is launched by itself, which is not captured: launch the function of triton.jit"
            )

        def is_active(self) -> bool:
            return True

    return Driver()
