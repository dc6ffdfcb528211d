"""Generation: which ids a step is given, how it ends, and that only kernels compute."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from contract.calls import Call
from contract.case import find
from contract.errors import CaseError
from contract.pipelines.decoding import (
    DecodingError,
    Generation,
    Token,
    generate,
    greedy,
    seeded,
)
from contract.pipelines.guard import KernelsOnly, OutsideKernel
from contract.verify import implementation_of, load_suites

VOCAB = 11
#: Row i has its largest logit at i + 1, half above the next one.
TABLE = torch.zeros(VOCAB, VOCAB)
for _i in range(VOCAB):
    TABLE[_i, (_i + 1) % VOCAB], TABLE[_i, (_i + 2) % VOCAB] = 2.0, 1.5


@functools.cache
def kernel_of(name: str) -> Call:
    """As contract.verified() gives it, without its verification."""
    load_suites()
    kernel = find(name, "float32_logits", {})
    return Call(kernel, implementation_of(kernel, "torch"))


class Model:
    """The next token is the last one plus 1; remembers what it was asked."""

    def __init__(self, table: torch.Tensor = TABLE) -> None:
        self.table, self.asked = table, list[tuple[list[int], int]]()

    def step(self, ids: Sequence[int], position: int) -> torch.Tensor:
        self.asked.append((list(ids), position))
        return self.table[torch.tensor(ids)]


def run(model: Model, tokens: int, **more: Any) -> Generation:
    return generate(model.step, [7, 5, 3], tokens, greedy(kernel_of("argmax_rows")), **more)


def test_a_prompt_is_one_step_and_each_token_one_more() -> None:
    model, seen = Model(), list[Token]()
    found = run(model, 4, on_token=seen.append)
    assert found.ids == [4, 5, 6, 7]
    assert found.ended == "length"
    # the last token is given to no step
    assert model.asked == [([7, 5, 3], 0), ([4], 3), ([5], 4), ([6], 5)]
    assert tuple(seen) == found.tokens
    assert [(t.index, t.position, t.margin) for t in seen] == [(i, 3 + i, 0.5) for i in range(4)]
    assert all(0.0 < t.seconds < 60.0 for t in seen)


def test_logits_of_one_row_or_of_all() -> None:
    pick = greedy(kernel_of("argmax_rows"))
    for step in (lambda ids, p: TABLE[ids[-1]], lambda ids, p: TABLE[ids[-1]][None]):
        assert generate(step, [7, 3], 2, pick).ids == [4, 5]
    for shape in ((1, 1, VOCAB), (0, VOCAB), (0,)):
        with pytest.raises(DecodingError, match="it has to give"):
            generate(lambda ids, p, shape=shape: torch.zeros(shape), [1], 1, pick)  # type: ignore[misc]


def test_a_stop_id_is_the_last_token() -> None:
    model = Model()
    found = run(model, 100, stop_ids={9, 6})
    assert (found.ids, found.ended) == ([4, 5, 6], "stop")
    assert len(model.asked) == 3
    # of the maximum's last token too
    assert run(Model(), 3, stop_ids={6}).ended == "stop"
    assert run(Model(), 2, stop_ids={6}).ended == "length"


@pytest.mark.parametrize("where", ["step", "callback"])
def test_an_interrupt_leaves_what_is_finished(where: str) -> None:
    model, seen = Model(), list[int]()

    def step(ids: Sequence[int], position: int) -> torch.Tensor:
        if where == "step" and position == 5:
            raise KeyboardInterrupt
        return model.step(ids, position)

    def on_token(token: Token) -> None:
        seen.append(token.id)
        if where == "callback" and len(seen) == 2:
            raise KeyboardInterrupt

    found = generate(step, [7, 5, 3], 9, greedy(kernel_of("argmax_rows")), on_token=on_token)
    # position 5 is asked for after tokens 4, 5 and 6
    assert found.ids == seen == ([4, 5, 6] if where == "step" else [4, 5])
    assert found.ended == "interrupted"


def test_other_errors_are_the_callers() -> None:
    seen: list[Token] = []

    def step(ids: Sequence[int], position: int) -> torch.Tensor:
        if position == 4:
            raise RuntimeError("no memory")
        return Model().step(ids, position)

    with pytest.raises(RuntimeError, match="no memory"):
        generate(step, [7, 5, 3], 9, greedy(kernel_of("argmax_rows")), on_token=seen.append)
    assert [token.id for token in seen] == [4, 5]


def test_seeded_draws_come_again_and_depend_on_seed_and_position() -> None:
    flat = torch.zeros(VOCAB, VOCAB)

    def ids(seed: int, temperature: float = 1.0, table: torch.Tensor = flat) -> list[int]:
        pick = seeded(kernel_of("keyed_draw"), temperature, seed)
        return generate(Model(table).step, [7, 5, 3], 40, pick).ids

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)
    assert len(set(ids(1))) > 5
    # a prompt cut elsewhere: the same position draws the same token
    pick = seeded(kernel_of("keyed_draw"), 1.0, 1)
    assert generate(Model(flat).step, [7, 5, 3, *ids(1)[:4]], 36, pick).ids == ids(1)[4:]
    assert ids(1, temperature=0.0, table=TABLE)[:4] == [4, 5, 6, 7]
    assert ids(2**53, temperature=0.01, table=TABLE)[:4] == [4, 5, 6, 7]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_cannot_be_trusted_are_refused(bad: float) -> None:
    table = TABLE.clone()
    table[5, 0] = bad
    for pick in (greedy(kernel_of("argmax_rows")), seeded(kernel_of("keyed_draw"), 1.0, 0)):
        seen: list[Token] = []
        with pytest.raises(DecodingError, match=r"position \d+: the logits hold NaN or \+inf"):
            generate(Model(table).step, [7, 5], 9, pick, on_token=seen.append)
        assert seen == []
    masked = torch.full((VOCAB, VOCAB), -math.inf)
    with pytest.raises(DecodingError, match="fewer than one token"):
        run(Model(masked), 1)


def test_the_flag_of_the_kernel_counts() -> None:
    def flagged(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([1]), torch.tensor([1])

    with pytest.raises(DecodingError, match="position 2"):
        generate(Model().step, [7, 5], 9, greedy(flagged))
    with pytest.raises(DecodingError, match=f"token {VOCAB} was picked of {VOCAB}"):
        generate(Model().step, [7, 5], 9, lambda logits, position: VOCAB)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: generate(Model().step, [], 1, greedy(max)), "the prompt has no tokens"),
        (lambda: generate(Model().step, [1], 0, greedy(max)), "tokens=0; ask for 1 or more"),
        (lambda: seeded(max, -1.0, 0), "temperature -1.0"),
        (lambda: seeded(max, math.nan, 0), "temperature nan"),
        (lambda: seeded(max, 1.0, 2**53 + 1), "seed 9007199254740993"),
        (lambda: seeded(max, 1.0, 0.5), "seed 0.5"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(CaseError, match=said):
        call()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_only_kernels_compute(mode: Callable[[], Any]) -> None:
    seen: list[float] = []

    def look(token: Token) -> None:
        # what looks on may compute
        seen.append(float(TABLE.sum()) + token.margin)

    picks = greedy(kernel_of("argmax_rows")), seeded(kernel_of("keyed_draw"), 0.5, 3)
    with mode(), KernelsOnly():
        for pick in picks:
            generate(Model().step, [7, 5, 3], 3, pick, on_token=look)
        with pytest.raises(OutsideKernel, match=r"aten\.argmax"):
            generate(Model().step, [1], 1, lambda logits, position: int(logits.argmax()))
        with pytest.raises(OutsideKernel, match=r"aten\.mul"):
            generate(lambda ids, p: Model().step(ids, p) * 2, [1], 1, picks[0])
    assert len(seen) == 6
