"""Planted draws: keys and seeds left out, other generators, noises and temperatures, and legal variants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract import green, red
from contract.kernels.keyed_draw import gumbel, keyed_draw_torch, philox
from contract.lazy import lazy

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

BOTH = ("bf16_logits", "float32_logits")


def drawn(logits: torch.Tensor, noise: torch.Tensor, temperature: float) -> torch.Tensor:
    """The largest of logits / T plus this noise; without noise where T is 0."""
    if temperature == 0.0:
        return logits.argmax(-1).to(torch.int32)
    return (logits.float() / temperature + noise).argmax(-1).to(torch.int32)


def words_of(logits: torch.Tensor, key: torch.Tensor, seed: float) -> torch.Tensor:
    """The right words of the generator."""
    return philox(int(seed), key, logits.shape[-1])


# -- key and seed


@red("keyed_draw", profile=BOTH, gate="exact")
def key_ignored(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """All rows are drawn with the same noise."""
    return keyed_draw_torch(logits, torch.zeros_like(key), temperature=temperature, seed=seed)


@red("keyed_draw", profile=BOTH, gate="exact")
def keyed_by_the_place_in_the_batch(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """The row's number is its key."""
    place = torch.arange(len(key), dtype=torch.int32)
    return keyed_draw_torch(logits, place, temperature=temperature, seed=seed)


@red("keyed_draw", profile=BOTH, gate="exact")
def one_stream_for_the_batch(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """Words are handed out row by row: a row's draw depends on how many stand before it."""
    words = philox(int(seed), key[:1], logits.numel()).reshape(logits.shape)
    return drawn(logits, gumbel(words), temperature)


@red("keyed_draw", profile=BOTH, gate="exact")
def next_key(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """The counter is advanced before the draw."""
    return keyed_draw_torch(logits, key + 1, temperature=temperature, seed=seed)


@red("keyed_draw", profile=BOTH, gate="exact")
def key_in_16_bits(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """The key's upper half is lost: positions 65,536 apart share their noise."""
    return keyed_draw_torch(logits, key & 0xFFFF, temperature=temperature, seed=seed)


@red("keyed_draw", profile=BOTH, gate="exact")
def negative_key_by_magnitude(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """|key|: a key and its opposite share their noise."""
    return keyed_draw_torch(logits, key.abs(), temperature=temperature, seed=seed)


@red("keyed_draw", profile=BOTH, gate="exact")
def seed_ignored(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """The seed is always 0."""
    return keyed_draw_torch(logits, key, temperature=temperature, seed=0.0)


@red("keyed_draw", profile=BOTH, gate="exact")
def seed_in_32_bits(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """The seed's upper word is lost."""
    return keyed_draw_torch(
        logits, key, temperature=temperature, seed=float(int(seed) & 0xFFFFFFFF)
    )


# -- the generator


@red("keyed_draw", profile="float32_logits", gate="exact")
def seven_rounds(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """Philox4x32-7, which passes the same statistical tests."""
    words = philox(int(seed), key, logits.shape[-1], rounds=7)
    return drawn(logits, gumbel(words), temperature)


@red("keyed_draw", profile="float32_logits", gate="exact")
def words_turned(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """The four words of a block in reverse order."""
    n = logits.shape[-1]
    words = philox(int(seed), key, n + -n % 4).unflatten(-1, (-1, 4)).flip(-1).flatten(-2)
    return drawn(logits, gumbel(words[:, :n]), temperature)


@red("keyed_draw", profile="float32_logits", gate="exact")
def a_block_for_each_token(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """Token j takes the first word of block j."""
    words = philox(int(seed), key, 4 * logits.shape[-1])[:, ::4]
    return drawn(logits, gumbel(words), temperature)


@red("keyed_draw", profile="float32_logits", gate="exact")
def key_and_seed_exchanged(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """The seed stands in the counter, the key in the generator's key."""
    counter = torch.tensor([int(seed) & 0xFFFFFFFF])
    words = [philox(int(k) & 0xFFFFFFFF, counter, logits.shape[-1]) for k in key]
    return drawn(logits, gumbel(torch.cat(words)), temperature)


# -- the noise


@red("keyed_draw", profile="float32_logits", gate="exact")
def lower_bits(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """The lower 23 bits of each word."""
    words = (words_of(logits, key, seed) & 0x7FFFFF) << 9
    return drawn(logits, gumbel(words), temperature)


@red("keyed_draw", profile="float32_logits", gate="exact")
def sixteen_bits(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """u of the upper 16 bits: the noise of a likely token moves little."""
    u = ((words_of(logits, key, seed) >> 16).float() + 0.5) * 2.0**-16
    return drawn(logits, -(-u.log()).log(), temperature)


@red("keyed_draw", profile="float32_logits", gate="exact")
def one_bit_more(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """u of the upper 24 bits, which fp32 rounds: the largest is 1."""
    u = ((words_of(logits, key, seed) >> 8).float() + 0.5) * 2.0**-24
    return drawn(logits, -(-u.log()).log(), temperature)


@red("keyed_draw", profile="float32_logits", gate="exact")
def one_log(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """Exponential noise, -log u."""
    u = ((words_of(logits, key, seed) >> 9).float() + 0.5) * 2.0**-23
    return drawn(logits, -u.log(), temperature)


@red("keyed_draw", profile="float32_logits", gate="exact")
def turned_noise(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """log(-log u): the sign is lost."""
    return drawn(logits, -gumbel(words_of(logits, key, seed)), temperature)


@red("keyed_draw", profile="float32_logits", gate="exact")
def uniform_noise(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """u itself is added."""
    return drawn(logits, words_of(logits, key, seed) * 2.0**-32, temperature)


@red("keyed_draw", profile="float32_logits", gate="exact")
def noise_in_bf16(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """Scores are rounded to bf16: close ones become equal, and the lower index wins."""
    if temperature == 0.0:
        return logits.argmax(-1).to(torch.int32)
    noise = gumbel(words_of(logits, key, seed))
    return (logits.float() / temperature + noise).bfloat16().argmax(-1).to(torch.int32)


# -- the temperature


@red("keyed_draw", profile=BOTH, gate="exact")
def temperature_ignored(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """T is 1 wherever it is not 0; so is (logits + g) / T."""
    return keyed_draw_torch(logits, key, temperature=float(temperature > 0), seed=seed)


@red("keyed_draw", profile=BOTH, gate="exact")
def temperature_multiplied(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """logits T."""
    inverse = 1.0 / temperature if temperature else 0.0
    return keyed_draw_torch(logits, key, temperature=inverse, seed=seed)


@red("keyed_draw", profile=BOTH, gate="exact")
def noise_at_zero(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """T = 0 is taken for 1."""
    return keyed_draw_torch(logits, key, temperature=temperature or 1.0, seed=seed)


@red("keyed_draw", profile=BOTH, gate="exact")
def always_greedy(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """No noise."""
    return logits.argmax(-1).to(torch.int32)


# -- legal variants


@green("keyed_draw", profile=BOTH)
def in_float64(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """Every step is kept wider."""
    if temperature == 0.0:
        return logits.double().argmax(-1).to(torch.int32)
    u = ((words_of(logits, key, seed) >> 9).double() + 0.5) * 2.0**-23
    return (logits.double() / temperature - (-u.log()).log()).argmax(-1).to(torch.int32)


@green("keyed_draw", profile=BOTH)
def reciprocal_temperature(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """A product with 1 / T."""
    if temperature == 0.0:
        return logits.argmax(-1).to(torch.int32)
    noise = gumbel(words_of(logits, key, seed))
    return (logits.float() * (1.0 / temperature) + noise).argmax(-1).to(torch.int32)


@green("keyed_draw", profile=BOTH)
def row_by_row(
    logits: torch.Tensor, key: torch.Tensor, *, temperature: float, seed: float
) -> torch.Tensor:
    """One row after the other, from the last one on."""
    rows = [
        keyed_draw_torch(a[None], k[None], temperature=temperature, seed=seed)
        for a, k in zip(logits.flip(0), key.flip(0), strict=True)
    ]
    return torch.cat(rows).flip(0)
