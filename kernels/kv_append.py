"""One new row for each sequence's cache: contracts and torch implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Operand, Profile, Scalar, implementation, register, tensor
from contract.kernels.data import full_significands
from contract.lazy import lazy
from contract.references.kv_append import kv_append as reference
from contract.references.kv_append import kv_append_int8 as reference_int8

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")

#: More rows than a cache here has slots, so that a ring has gone round several times.
ROWS_BEFORE = 5000


def places(rng: Any, shape: Mapping[str, int]) -> dict[str, Any]:
    """Slots, both ends among them, and positions that lie on them after up to four rounds."""
    slot = rng.integers(0, shape["slots"], shape["rows"])
    slot[:2] = (0, shape["slots"] - 1)[: len(slot)]
    rounds = rng.integers(0, 5, len(slot))
    return {"slot": slot, "position": np.minimum(slot + shape["slots"] * rounds, ROWS_BEFORE - 1)}


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Every row is one value: full significands over all of fp16's exponents and beyond both of its ends."""
    cache = tuple(shape[n] for n in ("rows", "slots", "kv", "d"))
    bits = 24 if parameters["store"] == "fp32" else 8
    new = full_significands(rng, (cache[0], *cache[2:]), bits) * 2.0 ** (8 - bits)
    held = rng.integers(-2047, 2048, cache) * np.exp2(rng.integers(-24, 7, cache))
    return {
        "new": new * np.exp2(rng.integers(-34, 10, new.shape)),
        "cache": np.where(rng.random(cache) < 0.1, -0.0, held),
        **places(rng, shape),
    }


def exact_codes(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Halves of codes, which are ties where bf16 holds them times the scale, and values beyond both ends."""
    cache = tuple(shape[n] for n in ("rows", "slots", "kv", "d"))
    halves = rng.integers(-40, 41, (cache[0], *cache[2:])) / 2.0
    far = rng.random(halves.shape) < 0.2
    return {
        "new": np.where(far, halves * 16.0, halves) * scalars["scale"],
        "cache": rng.integers(-127, 128, cache),
        **places(rng, shape),
    }


def operands(cache: str, *new: Operand) -> tuple[Operand, ...]:
    return (
        Operand("cache", ("rows", "slots", "kv", "d"), cache, role="inout"),
        *new,
        tensor("slot", "rows", "int32", below="slots", when={"ring": ("no",)}),
        tensor("position", "rows", "int32", below=ROWS_BEFORE, when={"ring": ("yes",)}),
    )


def sizes(rows: int, slots: int, kv: int, d: int) -> dict[str, int]:
    return {"rows": rows, "slots": slots, "kv": kv, "d": d}


RING = ("no", "yes")
# PaliGemma's cache of 1028 slots of one head of 256; two heads of a window of 64
SHAPES = (sizes(2, 1028, 1, 256), sizes(4, 64, 2, 128))
AWKWARD = (sizes(1, 1, 1, 8), sizes(3, 7, 2, 72), sizes(5, 33, 1, 17))
STRESS = (sizes(32, 5, 2, 8), sizes(16, 17, 1, 16))
EXACT = (sizes(64, 6, 2, 8), sizes(16, 33, 1, 64))

kv_append = register(
    Contract(
        name="kv_append",
        family="attention",
        summary="one new row for each sequence's bf16, fp16 or fp32 cache, plain or a ring",
        reference=reference,
        operands=operands(
            "{store}",
            tensor("new", "rows kv d", when={"store": ("bf16", "fp16")}),
            tensor("new", "rows kv d", "fp32", when={"store": ("fp32",)}),
        ),
        parameters={"store": ("bf16", "fp16", "fp32"), "ring": RING},
        profiles=(
            Profile(
                "moved",
                {"stored": "{store}"},
                keeps_subnormals=True,
                users="every decoder with a cache",
                vacuous={
                    "truncate-stored,store=bf16": "bf16 rows are moved, not rounded",
                    "truncate-stored,store=fp32": "fp32 rows are moved, not rounded",
                },
                # an fp32 ring differs from an fp32 cache as a bf16 ring does from a bf16 one
                unless={"store": ("fp32",), "ring": ("yes",)},
            ),
        ),
        row_dims=("rows",),
        shapes=SHAPES,
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_rows,
        exact_shapes=EXACT,
        invariant=("batch", "layout", "launch", "position"),
    )
)

kv_append_int8 = register(
    Contract(
        name="kv_append_int8",
        family="attention",
        summary="one new row, quantised, for each sequence's int8 cache, plain or a ring",
        reference=reference_int8,
        operands=operands("int8", tensor("new", "rows kv d", finite=True)),
        # 7 / 256: ties are met exactly, and multiplied by a rounded reciprocal some of them are not
        scalars=(Scalar("scale", (0.02734375, 0.02)),),
        parameters={"ring": RING},
        options={"division": ("true", "reciprocal")},
        profiles=(
            Profile(
                "divide",
                {"stored": "int8"},
                options={"division": "true"},
                keeps_subnormals=True,
                users="PaliGemma INT8",
            ),
        ),
        row_dims=("rows",),
        shapes=SHAPES,
        awkward=AWKWARD,
        stress=STRESS,
        exact=exact_codes,
        exact_shapes=EXACT,
    )
)


def append(
    cache: torch.Tensor,
    stored: torch.Tensor,
    slot: torch.Tensor | None,
    position: torch.Tensor | None,
) -> None:
    """Write one slot of every sequence, in place; what is written is converted to the cache's dtype."""
    place = position % cache.shape[1] if slot is None and position is not None else slot
    assert place is not None
    if len(cache) == 1:
        cache[:, int(place)] = stored
    else:
        cache[torch.arange(cache.shape[0]), place.long()] = stored.to(cache.dtype)


@implementation("kv_append", name="torch")
def kv_append_torch(
    cache: torch.Tensor,
    new: torch.Tensor,
    slot: torch.Tensor | None = None,
    position: torch.Tensor | None = None,
) -> None:
    """One indexed store."""
    append(cache, new, slot, position)


@implementation("kv_append_int8", name="torch")
def kv_append_int8_torch(
    cache: torch.Tensor,
    new: torch.Tensor,
    slot: torch.Tensor | None = None,
    position: torch.Tensor | None = None,
    *,
    scale: float,
) -> None:
    """Half-even codes of x / s, and one indexed store.

    Raises:
        ValueError: a scale that is not positive and finite.
    """
    if not 0 < scale < float("inf"):
        raise ValueError(
            f"kv_append_int8: scale {scale!r}; give the cache's positive, finite scale"
        )
    codes = (new.float() / scale).clamp(-127.0, 127.0).round()
    append(cache, codes.to(torch.int8), slot, position)
