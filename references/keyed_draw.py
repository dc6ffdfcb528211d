"""A token drawn by a key: what the kernel must compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from contract.readings.base import Quantity, Reading

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)


def keyed_draw(
    r: Reading, logits: Quantity, key: Quantity, temperature: float, seed: float
) -> Quantity:
    """token[i] = argmax over j of logits[i, j] / T + g(seed, key[i], j), the lowest index of equal ones: a draw from
    softmax(logits / T). With T = 0 it is the argmax of the logits.

    g = -log(-log u), u = (2 b + 1) 2^-24, b the upper 23 bits of word j mod 4 of Philox4x32-10 at the counter
    (j div 4, key, 0, 0) under the key (seed mod 2^32, seed div 2^32). It depends on seed, key and token alone, so a row's
    draw is the same in every batch and at every place in it.

    Args:
        logits: (rows, n) bf16 (fp32 under float32_logits); -inf where a token is masked.
        key: (rows,) int32, a number that no two draws of one seed share (position, or request and position mixed); a
            negative one counts modulo 2^32.
        temperature: T >= 0.
        seed: a whole number from 0 to 2^53.

    Rounding points: none; the token is an exact index.

    Freedoms: each log within 2 fp32 ulps; logits / T as a quotient or a product with 1 / T; where two tokens are as close
    as these errors either may be drawn.

    Specials: a NaN counts as the largest value, the first one is picked; +inf is picked, -inf is not.

    Source: Gumbel, 1954, and Maddison, Tarlow and Minka, A* Sampling, 2014, section 2, for the maximum; Salmon et al.,
    Parallel random numbers: as easy as 1, 2, 3, 2011, section 3.3 and Random123, for the generator.
    """
    if temperature == 0.0:
        return r.pick_max(logits)
    upper = philox(int(seed), r.integers(key), logits.shape[-1]) >> np.uint64(9)
    u = r.exactly((2 * upper.astype(np.int64) + 1) * 2.0**-24)
    noise = -r.log(-r.log(u, ulps=2), ulps=2)
    scaled = r.union(logits / temperature, logits * (1.0 / temperature))
    return r.pick_max(scaled + noise)


def philox(seed: int, keys: Any, n: int) -> Any:
    """n 32-bit words for each key, as uint64: (keys, n)."""
    blocks = -(-n // 4)
    c0 = np.broadcast_to(np.arange(blocks, dtype=np.uint64), (len(keys), blocks))
    c1 = np.broadcast_to((keys & 0xFFFFFFFF).astype(np.uint64)[:, None], c0.shape)
    words = philox4x32(
        (c0, c1, np.zeros_like(c0), np.zeros_like(c0)), (seed & 0xFFFFFFFF, seed >> 32)
    )
    return np.stack(words, -1).reshape(len(keys), -1)[:, :n]


def philox4x32(counter: Any, key: tuple[int, int]) -> Any:
    """Philox4x32-10 of four arrays of 32-bit words (as uint64) under one key: four such arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # both factors lie below 2^32: 64 bits hold the product
        p0, p1 = c0 * np.uint64(MULTIPLIERS[0]), c2 * np.uint64(MULTIPLIERS[1])
        high0, high1 = p0 >> np.uint64(32), p1 >> np.uint64(32)
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(k0), p1 & LOW, high0 ^ c3 ^ np.uint64(k1), p0 & LOW
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3
