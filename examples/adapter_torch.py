"""A torch operator: one rounding, and refused where two are named.

contract run examples/adapter_torch.py
"""

import torch.nn.functional as F

import contract


@contract.red("rms_norm", profile="two_step", gate="exact", gain="w")
@contract.implementation("rms_norm", profile="once", gain="w")
def functional_rms_norm(x, weight, *, eps):
    return F.rms_norm(x, x.shape[-1:], weight, eps)
