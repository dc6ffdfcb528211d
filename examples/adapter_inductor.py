"""torch.compile: the fused loop keeps silu(gate) in fp32, the same line without it rounds it.

contract run examples/adapter_inductor.py --timeout 600

The first call of every worker compiles, which may take longer than the minute that a call has by default.
"""

import torch
import torch.nn.functional as F

import contract


def eager_swiglu(gate, up):
    return F.silu(gate) * up


compiled_swiglu = torch.compile(eager_swiglu, dynamic=True)


@contract.implementation("swiglu", profile="once", requires=("torch._inductor.compile_fx",))
def inductor_swiglu(gate, up):
    return compiled_swiglu(gate, up)


contract.red("swiglu", profile="once", gate="exact")(eager_swiglu)
