"""A module of transformers: its normed row is rounded before the gain, and it is refused where it is not.

contract run examples/adapter_transformers.py
"""

import torch

import contract

NEEDS = ("transformers.models.llama.modeling_llama",)


@contract.red("rms_norm", profile="once", gate="exact", gain="w", requires=NEEDS)
@contract.implementation("rms_norm", profile="two_step", gain="w", requires=NEEDS)
def llama_rms_norm(x, weight, *, eps):
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(x.shape[-1], eps)
    norm.weight = torch.nn.Parameter(weight, requires_grad=False)
    return norm(x)
