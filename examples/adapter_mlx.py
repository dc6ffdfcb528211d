"""An MLX operator on the CPU: tensors go in and out by their bits.

contract run examples/adapter_mlx.py
"""

import numpy as np
import torch

import contract


@contract.red("rms_norm", profile="once", gate="exact", gain="w", requires=("mlx.core",))
@contract.implementation("rms_norm", profile="two_step", gain="w", requires=("mlx.core",))
def fast_rms_norm(x, weight, *, eps):
    import mlx.core as mx

    bits = (t.contiguous().view(torch.int16).numpy() for t in (x, weight))
    with mx.stream(mx.cpu):
        out = mx.fast.rms_norm(*(mx.array(b).view(mx.bfloat16) for b in bits), eps)
        return torch.from_numpy(np.array(out.view(mx.int16))).view(torch.bfloat16)
