"""Token after token: a prompt in one step, then one step for each token, picked by a verified kernel.

    pick = greedy(contract.verified("argmax_rows", profile="float32_logits"))
    found = generate(model.step, prompt_ids, 32, pick, stop_ids={2}, on_token=print)

Nothing is computed with logits here: the kernel picks, and the margin that a token is reported with is measured by
`contract.pipelines.compare`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from contract.errors import CaseError, ContractError
from contract.pipelines.compare import top_margin
from contract.pipelines.guard import measuring

#: pick(logits (1, vocab), position) -> id of the token at that position.
Pick = Callable[[torch.Tensor, int], int]


class DecodingError(ContractError):
    """Logits that no token can be picked from; the message names the position."""


@dataclass(frozen=True)
class Token:
    """One finished token."""

    #: From 0, the first one after the prompt.
    index: int
    #: In the whole sequence, the prompt's first token at 0.
    position: int
    id: int
    #: Of its step and its pick; the first one's has the prompt.
    seconds: float
    #: The largest logit less the second one.
    margin: float


@dataclass(frozen=True)
class Generation:
    """What was generated."""

    tokens: tuple[Token, ...]
    #: 'stop' (the last token is a stop id), 'length' or 'interrupted'.
    ended: str

    @property
    def ids(self) -> list[int]:
        """The tokens' ids, without the prompt's."""
        return [token.id for token in self.tokens]


def greedy(kernel: Callable[..., Any]) -> Pick:
    """Picks the largest logit.

    Args:
        kernel: kernel(logits=(1, vocab)) -> ids (1,) and flags (1,), as contract.verified("argmax_rows", ...).
    """

    def pick(logits: torch.Tensor, position: int) -> int:
        ids, flags = kernel(logits=logits)
        if int(flags[0]):
            raise _untrusted(position)
        return int(ids[0])

    return pick


def seeded(kernel: Callable[..., Any], temperature: float, seed: int) -> Pick:
    """Draws a token with noise that seed, position and token alone decide: the same run again draws the same tokens.

    Args:
        kernel: kernel(logits=(1, vocab), key=(1,) int32, temperature=, seed=) -> ids (1,), as
            contract.verified("keyed_draw", ...).
        temperature: 0 or more; 0 is greedy.
        seed: a whole number from 0 to 2^53.

    Raises:
        CaseError: a temperature or a seed that is none.
    """
    if not 0.0 <= temperature < math.inf:
        raise CaseError(f"temperature {temperature!r}; use 0 (greedy) or a positive number")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= 2**53:
        raise CaseError(f"seed {seed!r}; use a whole number from 0 to 2^53")

    def pick(logits: torch.Tensor, position: int) -> int:
        key = torch.tensor([position], dtype=torch.int32)
        ids = kernel(logits=logits, key=key, temperature=float(temperature), seed=float(seed))
        return int(ids[0])

    return pick


def generate(
    step: Callable[[Sequence[int], int], torch.Tensor],
    prompt_ids: Sequence[int],
    tokens: int,
    pick: Pick,
    stop_ids: Collection[int] = (),
    on_token: Callable[[Token], None] | None = None,
) -> Generation:
    """Generate up to `tokens` tokens after a prompt.

    Args:
        step: step(ids, position) -> logits (vocab,) or (rows, vocab), of which the last row counts; ids lie at
            `position` and after it, and what came before is the model's own state.
        prompt_ids: one or more.
        tokens: how many at most, 1 or more.
        pick: `greedy` or `seeded`.
        stop_ids: a token of these is the last one.
        on_token: called with each token as soon as it is finished; it looks on, so a guard lets it compute.

    An interrupt (Ctrl-C) ends the generation with the tokens that are finished; the model's state may then be in the
    middle of a step. Every other error is the caller's, who had each token by `on_token`.

    Raises:
        CaseError: no prompt, or tokens below 1.
        DecodingError: logits of another shape, with NaN or +inf, or masked all; a token that is none of the vocabulary.
        ComparisonError: a vocabulary of one token.
    """
    if not len(prompt_ids):
        raise CaseError("the prompt has no tokens; give one or more")
    if tokens < 1:
        raise CaseError(f"tokens={tokens}; ask for 1 or more")
    finished: list[Token] = []
    ids, position = list(prompt_ids), 0
    try:
        while len(finished) < tokens:
            start = time.perf_counter()
            logits = _last_row(step(ids, position))
            position += len(ids)
            # a kernel is asked for a token only where there is one
            margin = top_margin(logits)
            if math.isnan(margin):
                raise _untrusted(position)
            chosen = pick(logits, position)
            if not 0 <= chosen < logits.shape[-1]:
                raise DecodingError(
                    f"position {position}: token {chosen} was picked of {logits.shape[-1]}; use a kernel that"
                    " contract.verified() gives"
                )
            seconds = time.perf_counter() - start
            token = Token(len(finished), position, chosen, seconds, margin)
            finished.append(token)
            if on_token is not None:
                with measuring():
                    on_token(token)
            if chosen in stop_ids:
                return Generation(tuple(finished), "stop")
            ids = [chosen]
    except KeyboardInterrupt:
        return Generation(tuple(finished), "interrupted")
    return Generation(tuple(finished), "length")


def _last_row(logits: torch.Tensor) -> torch.Tensor:
    """(1, vocab)."""
    if logits.dim() not in (1, 2) or 0 in logits.shape:
        raise DecodingError(
            f"the step gave logits of shape {tuple(logits.shape)}; it has to give (vocab,) or (rows, vocab)"
        )
    return logits[None] if logits.dim() == 1 else logits[-1:]


def _untrusted(position: int) -> DecodingError:
    return DecodingError(
        f"position {position}: the logits hold NaN or +inf, or fewer than one token that is not masked; compare the model's"
        " stages with the expected ones to find the first that does"
    )
