"""What runs an implementation. Engines know no kernel.

Each is a module with two functions that a worker calls (see contract.worker), JSON and arrays in, JSON and arrays out:
`run` gives the outputs of one launch, `measure` its resources.
"""

from __future__ import annotations

#: Calls a Python callable in the worker itself.
HOST = "host"
#: Executes compiled GPU code on the CPU.
PTX = "ptx"
#: Launches compiled GPU code on the GPU of this machine.
GPU = "gpu"
#: Engine -> the module that it is.
ENGINES = {
    HOST: "contract.engines.host",
    PTX: "contract.engines.executed",
    GPU: "contract.engines.gpu",
}
#: Those that ids do not name: what runs an implementation that says nothing else, on any machine.
UNNAMED = (HOST, PTX)
