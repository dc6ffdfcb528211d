"""Four-bit codes in 32-bit words, as references read them."""

from __future__ import annotations

from typing import Any

import numpy as np

#: Codes in one word.
PER_WORD = 8


def nibbles(words: Any) -> Any:
    """(..., w) int64 words of 32 bits -> (..., 8 w) codes 0 .. 15: code i of a word is its bits 4 i .. 4 i + 3."""
    shifts = 4 * np.arange(PER_WORD)
    codes = (words[..., None] >> shifts) & 15
    return codes.reshape(*words.shape[:-1], -1)
