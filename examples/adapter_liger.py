"""A Triton kernel of Liger, called as its modules call it: compiled, and its code executed without a GPU.

contract run examples/adapter_liger.py
"""

import contract

NEEDS = ("triton", "liger_kernel.ops.rms_norm")


@contract.red("rms_norm", profile="once", gate="exact", gain="w", requires=NEEDS, engine="ptx")
@contract.implementation("rms_norm", profile="two_step", gain="w", requires=NEEDS, engine="ptx")
def liger_rms_norm(x, weight, *, eps):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama")
