"""The next token of each row, with a fallback: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from contract import Contract, Profile, implementation, output, register, tensor
from contract.kernels.logit_rows import AWKWARD, EXACT, STRESS, logits_with_ties, untrusted
from contract.lazy import lazy
from contract.references.pick_ids import pick_ids as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact; the fallback is neither the first nor the last id where there are more."""
    n = shape["n"]
    return {"logits": logits_with_ties(rng, shape["rows"], n), "fallback": min(n // 2, n - 1)}


pick_ids = register(
    Contract(
        name="pick_ids",
        family="sampling",
        summary="the next token, or the fallback id and a flag where the logits hold NaN or infinities",
        reference=reference,
        operands=(
            tensor("logits", "rows n"),
            tensor("fallback", "", "int32", below="n"),
            output("token", "rows", "int32"),
            output("flags", "rows", "uint8"),
        ),
        profiles=(
            Profile("bf16_logits", {}, users="Gemma 4 decoding", keeps_subnormals=True),
            Profile(
                "float32_logits",
                {},
                {"logits": "fp32"},
                users="decoding of fp32 logits",
                keeps_subnormals=True,
            ),
        ),
        row_dims=("rows",),
        # Gemma 4's vocabulary; 16 rows of a draft over a part of it
        shapes=({"rows": 1, "n": 262_144}, {"rows": 16, "n": 8_192}),
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        # a fallback beyond 16 bits, too
        exact_shapes=(*EXACT, {"n": 98_304, "rows": 8}),
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("pick_ids", name="torch", profile=("bf16_logits", "float32_logits"))
def pick_ids_torch(
    logits: torch.Tensor, fallback: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """torch.argmax where the row can be trusted."""
    flags = untrusted(logits)
    token = torch.where(flags, fallback.long(), logits.argmax(-1))
    return token.to(torch.int32), flags.to(torch.uint8)
