"""GELU by a table: contract and torch implementation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.formats import decode, get, round_to
from contract.functions import erf
from contract.kernels.moved_values import any_values
from contract.lazy import lazy
from contract.references.gelu_table import gelu_table as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

CODES, WORDS = 256, 65_536
INT8, BF16 = {"index": ("int8",)}, {"index": ("bf16",)}
TABLES = {"codes": CODES, "words": WORDS}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is exact: all codes, ends and middle of the long table, entries of all kinds."""
    size = (shape["rows"], shape["n"])
    words = rng.integers(0, WORDS, size)
    words.reshape(-1)[:6] = 0, WORDS - 1, WORDS // 2, WORDS // 2 - 1, WORDS // 2 + 1, 1
    return {
        "codes": np.arange(size[0] * size[1]).reshape(size) % CODES - 128,
        "words": words,
        "code_table": any_values(rng, (CODES,)),
        "word_table": any_values(rng, (WORDS,)),
    }


gelu_table = register(
    Contract(
        name="gelu_table",
        family="activations",
        summary="an activation looked up by an int8 code, or by the bits of a bf16 value",
        reference=reference,
        operands=(
            tensor("codes", "rows n", "int8", when=INT8),
            tensor("code_table", "codes", when=INT8),
            tensor("words", "rows n", "int32", below=WORDS, when=BF16),
            tensor("word_table", "words", when=BF16),
            output("out", "rows n"),
        ),
        parameters={"index": ("int8", "bf16")},
        profiles=(
            Profile("moved", {}, users="NPUs that look activations up", keeps_subnormals=True),
        ),
        row_dims=("rows",),
        rules={
            "the tables hold 256 and 65,536 entries": lambda s: all(
                s.get(dim, size) == size for dim, size in TABLES.items()
            )
        },
        # SigLIP's MLP of 4,304
        shapes=({"rows": 1, "n": 4_304, **TABLES}, {"rows": 16, "n": 4_304, **TABLES}),
        awkward=({"rows": 1, "n": 1, **TABLES}, {"rows": 3, "n": 257, **TABLES}),
        stress=({"n": 64, **TABLES}, {"n": 5, **TABLES}),
        exact=exact_rows,
        exact_shapes=({"n": 64, **TABLES}, {"n": 16, **TABLES}),
        invariant=("batch", "position", "launch", "layout"),
    )
)


@implementation("gelu_table", name="torch", index="int8")
def gelu_of_codes(codes: torch.Tensor, code_table: torch.Tensor) -> torch.Tensor:
    """The table begins with code -128."""
    return code_table[codes.long() + 128]


@implementation("gelu_table", name="torch", index="bf16")
def gelu_of_words(words: torch.Tensor, word_table: torch.Tensor) -> torch.Tensor:
    """The table begins with the word of +0."""
    return word_table[words.long()]


def gelu_values(x: Any, form: str) -> Any:
    """GELU in float64; -inf gives NaN, as infinity times zero does."""
    with np.errstate(invalid="ignore", over="ignore"):
        if form == "tanh":
            squashed = np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x))
        else:
            squashed = erf(x * math.sqrt(0.5))
        return 0.5 * x * (1.0 + squashed)


def code_entries(scale: float, form: str) -> Any:
    """The table for codes c of x = c s: GELU of each, rounded to bf16 once.

    Raises:
        ValueError: a scale that is not a positive finite number, or another form than 'tanh' and 'erf'.
    """
    _check(form)
    if not 0.0 < scale < math.inf:
        raise ValueError(f"scale {scale!r}; codes stand for multiples of a positive finite number")
    return round_to(gelu_values(np.arange(-128.0, 128.0) * scale, form), "bf16")


def word_entries(form: str) -> Any:
    """The table for the bits of bf16 values: GELU of each, rounded to bf16 once.

    Raises:
        ValueError: another form than 'tanh' and 'erf'.
    """
    _check(form)
    x = decode(np.arange(WORDS, dtype=np.uint16), get("bf16"))
    return round_to(gelu_values(x, form), "bf16")


def _check(form: str) -> None:
    if form not in ("tanh", "erf"):
        raise ValueError(f"form {form!r}; use 'tanh' or 'erf'")
