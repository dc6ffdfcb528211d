"""A token drawn by a key: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import activations
from contract.lazy import lazy
from contract.references.keyed_draw import keyed_draw as reference
from contract.references.keyed_draw import philox as words_of

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

LOG = "CUDA C++ Programming Guide, single-precision functions: logf at most 1 ulp; SLEEF logf_u10 (torch CPU): 1.0 ulp"
WORD = 0xFFFFFFFF
#: Keys among which those with the largest words are looked for.
POOL = 1 << 14
#: How far ahead the drawn token of a close row is: some times what both logs and their sum may err.
AHEAD = 2.0**-14


def close_rows(rng: Any, rows: int, n: int, temperature: float, seed: float) -> tuple[Any, Any]:
    """Logits (rows, n) and keys of draws that are decided in the last bits of u.

    One token's u is as near to 1 as a few thousand keys have it, where log u changes most; another one's logit makes up
    for the noise between them, all but a little, in favour of either.
    """
    pool = rng.integers(-(2**31), 2**31, POOL)
    top = np.argsort(words_of(int(seed), pool, min(n, 4)).max(-1))[-rows:]
    u = ((words_of(int(seed), pool[top], n) >> np.uint64(9)).astype(np.float64) + 0.5) * 2.0**-23
    noise, every = -np.log(-np.log(u)), np.arange(rows)
    first = noise[:, :4].argmax(-1)
    second = (first + rng.integers(1, n, rows)) % n
    ahead = rng.choice([AHEAD, -AHEAD], rows)
    logits = np.full((rows, n), -64.0)
    logits[every, first] = 0.0
    logits[every, second] = (noise[every, first] - noise[every, second] + ahead) * temperature
    return logits, pool[top]


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: those whose first and second scores are further apart than the errors of both logs.

    A third of the rows has equal logits, so that the noise alone decides; keys are dense, negative and large ones, some
    of them twice. Masked tokens, NaN and +inf are among the others; a sixth is decided in the last bits of u.
    """
    rows, n = shape["rows"], shape["n"]
    logits = rng.integers(-24, 25, (rows, n)) / 8.0
    logits[::3] = 0.25
    logits[1::6] = np.where(rng.random(logits[1::6].shape) < 0.5, -np.inf, logits[1::6])
    logits[4::24, n // 2] = np.nan
    logits[10::24, n // 3] = np.inf
    key = rng.integers(-(2**31), 2**31, rows)
    key[: rows // 2] = np.arange(rows // 2)
    if scalars["temperature"] and n > 1:
        close = slice(5, None, 6)
        logits[close], key[close] = close_rows(
            rng, len(key[close]), n, scalars["temperature"], scalars["seed"]
        )
    key[-2:] = key[0]
    return {"logits": logits, "key": key}


keyed_draw = register(
    Contract(
        name="keyed_draw",
        family="sampling",
        summary="a token drawn with noise that seed, key and token alone decide",
        reference=reference,
        operands=(
            tensor("logits", "rows n", typical=activations),
            tensor("key", "rows", "int32"),
            output("token", "rows", "int32"),
        ),
        scalars=(
            Scalar("temperature", (1.0, 0.7, 0.0)),
            # the second fills both words of the generator's key
            Scalar("seed", (0.0, float((0x12345 << 32) + 0x9ABCDEF1))),
        ),
        profiles=(
            Profile("bf16_logits", {}, users="seeded decoding in bf16"),
            Profile(
                "float32_logits", {}, {"logits": "fp32"}, users="seeded decoding of fp32 logits"
            ),
        ),
        row_dims=("rows",),
        # parts of a vocabulary: no step but the comparison depends on its size
        shapes=({"rows": 1, "n": 16_384}, {"rows": 16, "n": 2_048}, {"rows": 4, "n": 8_192}),
        awkward=({"rows": 3, "n": 1}, {"rows": 5, "n": 517}, {"rows": 17, "n": 33}),
        stress=({"n": 32}, {"n": 5}, {"n": 9}),
        exact=exact_rows,
        exact_shapes=(
            {"n": 16, "rows": 256},
            {"n": 7, "rows": 256},
            {"n": 64},
            {"n": 129},
        ),
        freedoms={"log": LOG},
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("keyed_draw", name="torch", profile=("bf16_logits", "float32_logits"))
def keyed_draw_torch(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """The largest of logits / T plus noise.

    Raises:
        ValueError: a temperature below 0, or a seed that is no whole number from 0 to 2^53.
    """
    if not 0.0 <= temperature < float("inf"):
        raise ValueError(f"temperature {temperature!r}; use 0 (greedy) or a positive number")
    if not 0 <= seed <= 2**53 or seed != int(seed):
        raise ValueError(f"seed {seed!r}; use a whole number from 0 to 2^53")
    if temperature == 0.0:
        return logits.argmax(-1).to(torch.int32)
    noise = gumbel(philox(int(seed), key, logits.shape[-1]))
    return (logits.float() / temperature + noise).argmax(-1).to(torch.int32)


def gumbel(words: torch.Tensor) -> torch.Tensor:
    """-log(-log u) of 32-bit words, u = (2 b + 1) 2^-24 with their upper 23 bits: neither 0 nor 1, and exact in fp32."""
    u = ((words >> 9).float() + 0.5) * 2.0**-23
    return -(-u.log()).log()


def philox(seed: int, key: torch.Tensor, n: int, rounds: int = 10) -> torch.Tensor:
    """n words of Philox4x32-10 for each key, as int64: (rows, n).

    Products of two 32-bit words wrap in int64; its bits are still those of the product.
    """
    block = torch.arange((n + 3) // 4).expand(len(key), -1)
    c = [block, (key.long() & WORD)[:, None].expand_as(block)]
    c += [torch.zeros_like(block), torch.zeros_like(block)]
    k = [seed & WORD, seed >> 32]
    for _ in range(rounds):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [
            ((second >> 32) & WORD) ^ c[1] ^ k[0],
            second & WORD,
            ((first >> 32) & WORD) ^ c[3] ^ k[1],
            first & WORD,
        ]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return torch.stack(c, -1).flatten(-2)[:, :n]
