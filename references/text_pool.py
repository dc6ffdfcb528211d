"""The row that stands for a text: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading


def text_pool(r: Reading, x: Quantity) -> Quantity:
    """out[b] = x[b, -1], the last row of a sequence that is padded to its full length.

    A move: no bit changes. The projection that follows it is a product of its own.

    Args:
        x: (rows, tokens, d) bf16, the text tower's normed rows; SigLIP pads every text to 64 tokens.

    Specials: NaN stays NaN, subnormals and the sign of zero are kept.

    Source: Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023; SiglipTextTransformer of transformers
    ("sticky" end of sequence: the last token, whatever it is).
    """
    return x[:, -1]
