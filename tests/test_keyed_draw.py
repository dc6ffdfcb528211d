"""Keyed draws: the generator's known answers, draws that depend on keys alone, shares, and refused arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from literal import kernel_and_case, refused

from contract.kernels.keyed_draw import close_rows, gumbel, keyed_draw_torch, philox
from contract.references.keyed_draw import philox as reference_philox
from contract.references.keyed_draw import philox4x32

#: Known answers of Random123 (kat_vectors): counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
SEED = float((0x12345 << 32) + 0x9ABCDEF1)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers_of_the_generator(counter: Any, key: Any, words: Any) -> None:
    got = philox4x32(tuple(np.array([c], np.uint64) for c in counter), key)
    assert tuple(int(w[0]) for w in got) == words


def test_both_generators_give_the_same_words() -> None:
    assert philox(0, torch.tensor([0]), 4)[0].tolist() == list(KNOWN[0][2])
    keys = np.array([0, 1, -1, 2**31 - 1, -(2**31), 70_000])
    for seed in (0, 1, int(SEED), 2**53):
        words = philox(seed, torch.from_numpy(keys), 11).numpy()
        assert np.array_equal(words, reference_philox(seed, keys, 11).astype(np.int64))
        assert len(np.unique(words)) == words.size
    assert not np.array_equal(philox(0, torch.from_numpy(keys), 11, rounds=9).numpy(), words)


def judged(logits: Any, key: Any, token: Any, temperature: float, seed: float = SEED) -> int:
    scalars = {"temperature": temperature, "seed": seed}
    rows = {"logits": logits, "key": key}
    return refused("keyed_draw", rows, token, profile="float32_logits", scalars=scalars)["token"]


def draws(rows: int, n: int, temperature: float) -> tuple[Any, Any, Any]:
    """Logits, keys and right tokens, in float64."""
    rng = np.random.default_rng(5)
    logits = np.float32(rng.standard_normal((rows, n))).astype(np.float64)
    key = rng.integers(-(2**31), 2**31, rows)
    u = ((reference_philox(int(SEED), key, n) >> np.uint64(9)).astype(np.float64) + 0.5) * 2.0**-23
    return logits, key, np.argmax(logits / temperature - np.log(-np.log(u)), -1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_largest_noisy_score_is_drawn(temperature: float) -> None:
    logits, key, token = draws(400, 33, temperature)
    assert judged(logits, key, token, temperature) == 0
    out = keyed_draw_torch(
        torch.from_numpy(logits).float(), torch.from_numpy(key), temperature=temperature, seed=SEED
    )
    assert judged(logits, key, out.numpy(), temperature) == 0
    assert judged(logits, key, (token + 1) % 33, temperature) > 390
    assert judged(logits, key, np.argmax(logits, -1), temperature) > 200
    assert judged(logits, np.zeros_like(key), token, temperature) > 200
    assert judged(logits, key, token, temperature, seed=1.0) > 200


def test_temperature_zero_is_greedy() -> None:
    logits = [[0.0, 2.0, 2.0], [math.nan, 1.0, math.inf], [-math.inf, -1.0, 0.0]]
    assert judged(logits, [1, 2, 3], [1, 0, 2], 0.0) == 0
    assert judged(logits, [1, 2, 3], [2, 2, 1], 0.0) == 3
    x, key = torch.tensor(logits), torch.tensor([1, 2, 3])
    assert keyed_draw_torch(x, key, temperature=0.0, seed=SEED).tolist() == [1, 0, 2]


def test_a_draw_depends_on_its_key_and_not_on_the_batch() -> None:
    logits, key, _ = draws(20, 9, 1.0)
    x, k = torch.from_numpy(logits).float(), torch.from_numpy(key)

    def drawn(rows: Any) -> list[int]:
        return keyed_draw_torch(x[rows], k[rows], temperature=1.0, seed=SEED).tolist()

    whole = drawn(torch.arange(20))
    order = torch.tensor([7, 3, 19, 0])
    assert drawn(order) == [whole[i] for i in order.tolist()]
    assert [drawn(torch.tensor([i]))[0] for i in range(20)] == whole


def test_tokens_come_out_in_the_shares_of_the_softmax() -> None:
    p = np.array([0.5, 0.25, 0.125, 0.125, 0.0])
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(p)).float().expand(10_000, -1)
    token = keyed_draw_torch(logits, torch.arange(10_000), temperature=1.0, seed=3.0)
    share = np.bincount(token.numpy(), minlength=5) / 10_000
    # five standard deviations of a share of p among 40,000
    assert (np.abs(share - p) <= 5 * np.sqrt(p * (1 - p) / 10_000)).all()


def test_noise_is_finite_at_both_ends() -> None:
    noise = gumbel(torch.tensor([0, 2**32 - 1]))
    # -log(-log 2^-24) and -log(-log(1 - 2^-24)), within 2 fp32 ulps of each log: 4 times 2^-23
    assert noise.tolist() == pytest.approx(
        [-math.log(24 * math.log(2)), 24 * math.log(2)], rel=1e-6
    )


@pytest.mark.parametrize(
    ("temperature", "seed", "match"),
    [(-0.5, 0.0, "temperature -0.5; use 0"), (math.nan, 0.0, "temperature nan"),
     (1.0, -1.0, "seed -1.0; use a whole number"), (1.0, 0.5, "seed 0.5"), (1.0, 2.0**60, "seed")],
)  # fmt: skip
def test_other_arguments_are_refused(temperature: float, seed: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        keyed_draw_torch(torch.zeros(1, 2), torch.zeros(1), temperature=temperature, seed=seed)


def test_a_close_pair_may_be_drawn_either_way() -> None:
    _, key, _ = draws(1, 2, 1.0)
    u = ((reference_philox(int(SEED), key, 2) >> np.uint64(9)).astype(np.float64) + 0.5) * 2.0**-23
    noise = -np.log(-np.log(u))[0]
    # logits that make both scores equal but for the errors of the logs
    logits = [[0.0, float(np.float32(noise[0] - noise[1]))]]
    assert judged(logits, key, [0], 1.0) == judged(logits, key, [1], 1.0) == 0
    far = [[0.0, logits[0][1] + 1e-4]]
    assert (judged(far, key, [0], 1.0), judged(far, key, [1], 1.0)) == (1, 0)
    assert kernel_and_case("keyed_draw", {"logits": logits, "key": key})[0].contract.invariant


def test_close_rows_are_decided_in_the_last_bits_of_u() -> None:
    """Planted draws with u of 16 and of 24 bits went unseen while all exact rows were decided by a hundredth or more."""
    logits, key = close_rows(np.random.default_rng(1), 16, 9, 0.7, SEED)
    words = reference_philox(int(SEED), key, 9).astype(np.int64)

    def drawn(u: Any) -> Any:
        # all ones in fp32: the noise is infinite
        with np.errstate(divide="ignore"):
            return np.argmax(np.float32(logits).astype(np.float64) / 0.7 - np.log(-np.log(u)), -1)

    assert judged(logits, key, drawn(((words >> 9) + 0.5) * 2.0**-23), 0.7) == 0
    assert judged(logits, key, drawn(((words >> 16) + 0.5) * 2.0**-16), 0.7) >= 4
    assert judged(logits, key, drawn(np.float32((words >> 8) + 0.5) * 2.0**-24), 0.7) >= 4
