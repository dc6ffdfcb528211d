"""The largest logit of each row: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.logit_rows import AWKWARD, EXACT, STRESS, logits_with_ties, untrusted
from contract.lazy import lazy
from contract.references.argmax_rows import argmax_rows as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact."""
    return {"logits": logits_with_ties(rng, shape["rows"], shape["n"])}


argmax_rows = register(
    Contract(
        name="argmax_rows",
        family="sampling",
        summary="index of each row's largest logit, and whether the row holds NaN or infinities",
        reference=reference,
        operands=(
            tensor("logits", "rows n"),
            output("ids", "rows", "int32"),
            output("flags", "rows", "uint8"),
        ),
        profiles=(
            Profile("bf16_logits", {}, users="greedy decoding in bf16", keeps_subnormals=True),
            Profile(
                "float32_logits",
                {},
                {"logits": "fp32"},
                users="greedy decoding of fp32 logits",
                keeps_subnormals=True,
            ),
        ),
        row_dims=("rows",),
        # vocabularies: PaliGemma 257,216, Qwen3-VL 151,936
        shapes=({"rows": 1, "n": 257_216}, {"rows": 4, "n": 151_936}),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=EXACT,
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("argmax_rows", name="torch", profile=("bf16_logits", "float32_logits"))
def argmax_rows_torch(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.argmax picks the first of equal values, and a NaN before all of them."""
    return logits.argmax(-1).to(torch.int32), untrusted(logits).to(torch.uint8)
