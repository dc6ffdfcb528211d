"""Two stretches of rows as one sequence: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def concat_rows(r: Reading, first: Quantity, second: Quantity) -> Quantity:
    """out[b] = first[b] followed by second[b].

    A move: no bit changes.

    Args:
        first: (batch, head, d) bf16, such as projected image rows.
        second: (batch, tail, d) bf16, such as the embedded rows of a prompt.

    Returns:
        (batch, rows, d), rows = head + tail.

    Specials: NaN stays NaN, subnormals and the sign of zero are kept.
    """
    return r.concat([first, second], axis=1)
