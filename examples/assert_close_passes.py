"""One dropped rounding: torch.testing.assert_close passes it, contract refuses it.

python examples/assert_close_passes.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

import contract

torch.manual_seed(0)
x = torch.randn(128, 3840).bfloat16()
w = (1 + 0.25 * torch.randn(3840)).bfloat16()

qwen3 = Qwen3RMSNorm(3840, eps=1e-6).bfloat16()
qwen3.weight.data.copy_(w)
want = qwen3(x).detach()  # rounds the normalised row to bf16 before the gain
got = F.rms_norm(x, (3840,), w, eps=1e-6)  # does not

torch.testing.assert_close(got, want)
print(f"assert_close: passes ({100 * (got != want).float().mean():.1f} % of the outputs differ)")

contract.assert_allowed("rms_norm", want, x=x, weight=w, eps=1e-6, profile="two_step")
print("contract, Qwen3RMSNorm: allowed")
try:
    contract.assert_allowed("rms_norm", got, x=x, weight=w, eps=1e-6, profile="two_step")
except contract.NotAllowed as refusal:
    print(f"contract, F.rms_norm: refused\n{refusal}")
