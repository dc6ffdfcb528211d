"""The next token of each row, with a fallback: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.argmax_rows import untrusted


def pick_ids(r: Reading, logits: Quantity, fallback: Quantity) -> dict[str, Quantity]:
    """token[i] = the lowest index of row i's largest logit, or the fallback id where flags[i] is 1.

    Nothing is rounded: both outputs are exact.

    Args:
        logits: (rows, n) bf16 (fp32 under float32_logits); -inf where a token is masked.
        fallback: () int32, the id that stands for "no token" (end of sequence, unknown).

    Returns:
        token: (rows,) int32.
        flags: (rows,) uint8, 1 where the row holds a NaN or +inf, or is -inf everywhere; else 0.

    Specials: -0 and +0 are equal; subnormals are told apart.
    """
    flags = untrusted(r, logits)
    return {
        "token": r.where(r.less(flags, 0.5), r.pick_max(logits), fallback),
        "flags": flags,
    }
