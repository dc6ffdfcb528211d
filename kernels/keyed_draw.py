"""A token drawn by a key: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, Scalar, implementation, output, register, tensor
from contract.kernels.data import activations
from contract.lazy import lazy
from contract.references.keyed_draw import keyed_draw as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

LOG = "CUDA C++ Programming Guide, single-precision functions: logf at most 1 ulp; SLEEF logf_u10 (torch CPU): 1.0 ulp"
WORD = 0xFFFFFFFF


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Candidates: those whose first and second scores are further apart than the errors of both logs.

    A third of the rows has equal logits, so that the noise alone decides; keys are dense, negative and large ones, some
    of them twice. Masked tokens, NaN and +inf are among the others.
    """
    rows, n = shape["rows"], shape["n"]
    logits = rng.integers(-24, 25, (rows, n)) / 8.0
    logits[::3] = 0.25
    logits[1::6] = np.where(rng.random(logits[1::6].shape) < 0.5, -np.inf, logits[1::6])
    logits[4::24, n // 2] = np.nan
    logits[10::24, n // 3] = np.inf
    key = rng.integers(-(2**31), 2**31, rows)
    key[: rows // 2] = np.arange(rows // 2)
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
