"""MLX's gated delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from contract import implementation
from contract.kernels.clients.mlx_arrays import NEEDS, on_cpu
from contract.lazy import lazy

if TYPE_CHECKING:
    import mlx.core as mx
    import torch
else:
    mx = lazy("mlx.core")


@implementation("delta_step", name="mlx.fast.gated_delta_update", profile="float32", requires=NEEDS)
def gated_delta_update(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    state: torch.Tensor,
) -> Any:
    """A sequence of one token. Scale and decay are its caller's, and so ours; its state holds values along rows."""
    heads, group, dv = v.shape
    out, new_state = on_cpu(
        mx.fast.gated_delta_update,
        (q / float(q.shape[-1]) ** 0.5)[None, None],
        k[None, None],
        v.reshape(1, 1, heads * group, dv),
        g.exp().reshape(1, 1, -1),
        beta.reshape(1, 1, -1),
        state.reshape(1, heads * group, -1, dv).mT,
    )
    return out.reshape(v.shape), new_state.mT.reshape(state.shape)
