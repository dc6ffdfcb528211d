"""Weights of GGUF blocks: contract and torch implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contract import Contract, Profile, implementation, output, register, tensor
from contract.lazy import lazy
from contract.references.dequant_gguf import BLOCK_BYTES
from contract.references.dequant_gguf import dequant_gguf as reference

if TYPE_CHECKING:
    import torch
else:
    torch = lazy("torch")


def exact_rows(
    rng: Any, shape: Mapping[str, int], scalars: Mapping[str, float], parameters: Mapping[str, str]
) -> Any:
    """Any bytes, d and m finite and at most 4 binades apart: d q + m has at most 24 bits."""
    kind = parameters["kind"]
    blocks = rng.integers(0, 256, (shape["rows"], shape["bytes"])).astype(np.float64)
    view = blocks.reshape(shape["rows"], -1, BLOCK_BYTES[kind])
    # high bytes: sign, five bits of exponent, two of the significand
    for at in (1, 3) if kind == "q4_1" else (1,):
        exponent = rng.integers(12, 16, view.shape[:2])
        view[..., at] = 128 * rng.integers(0, 2, exponent.shape) + 4 * exponent + view[..., at] % 4
    return {"blocks": blocks}


dequant_gguf = register(
    Contract(
        name="dequant_gguf",
        family="linear",
        summary="weights of GGUF blocks of 32 values: Q4_1 and Q8_0",
        reference=reference,
        operands=(
            # uniform bytes: scales of every exponent, NaN and infinities among them
            tensor("blocks", "rows bytes", "uint8"),
            output("out", "rows d", "fp32"),
        ),
        parameters={"kind": ("q4_1", "q8_0")},
        profiles=(
            Profile(
                "float32",
                {"out": "fp32"},
                users="ggml, the gguf package",
                vacuous={"out,kind=q8_0": "19 bits fit fp32"},
            ),
            Profile("once", {"out": "bf16"}, {"out": "bf16"}, users="bf16 models of GGUF files"),
        ),
        row_dims=("rows",),
        # SmolLM2's widths 576 and 1536; a part of the rows, which are independent
        shapes=({"rows": 16, "d": 576}, {"rows": 64, "d": 1536}),
        awkward=({"rows": 1, "d": 32}, {"rows": 3, "d": 96}),
        stress=({"d": 32}, {"d": 96}, {"d": 256}),
        exact=exact_rows,
        exact_shapes=({"d": 96}, {"d": 32}, {"d": 576, "rows": 16}),
        rules={"d is a multiple of 32": lambda s: s["d"] % 32 == 0},
        sizes={
            "bytes": lambda s, p: s["d"] // 32 * BLOCK_BYTES[p["kind"]],
            "d": lambda s, p: s["bytes"] // BLOCK_BYTES[p["kind"]] * 32,
        },
    )
)


@implementation("dequant_gguf", name="torch", profile=("float32", "once"))
def dequant_gguf_torch(blocks: torch.Tensor, *, kind: str, profile: str) -> torch.Tensor:
    """fp32 inside.

    Raises:
        ValueError: rows that hold no whole blocks.
    """
    size = BLOCK_BYTES[kind]
    if blocks.shape[-1] % size:
        raise ValueError(f"{blocks.shape[-1]} bytes a row; {kind} blocks have {size}")
    b = blocks.unflatten(-1, (-1, size))
    if kind == "q8_0":
        values = halves(b[..., :2]) * b[..., 2:].view(torch.int8).float()
    else:
        d, m = halves(b[..., :2]), halves(b[..., 2:4])
        q = torch.cat([b[..., 4:] & 15, b[..., 4:] >> 4], -1)
        values = d * q.float() + m
    flat = values.flatten(-2)
    result: torch.Tensor = flat if profile == "float32" else flat.bfloat16()
    return result


def halves(pairs: torch.Tensor) -> torch.Tensor:
    """Little-endian fp16 numbers (..., 1) of bytes (..., 2), as fp32."""
    # fresh strides: those of a single row may be odd, and still count as contiguous
    return pairs.clone(memory_format=torch.contiguous_format).view(torch.float16).float()


def check_gguf(blocks: torch.Tensor, kind: str) -> None:
    """Refuse blocks that are loaded.

    Raises:
        ValueError: bytes that are no whole blocks, or a scale or minimum that is not finite; names the row and block.
    """
    size = BLOCK_BYTES[kind]
    if blocks.dtype != torch.uint8 or blocks.shape[-1] % size:
        raise ValueError(
            f"{blocks.dtype} of {blocks.shape[-1]} a row; {kind} blocks have {size} bytes"
        )
    b = blocks.unflatten(-1, (-1, size))
    for name, at in (("scale", 0), ("minimum", 2))[: 2 if kind == "q4_1" else 1]:
        wrong = ~halves(b[..., at : at + 2]).squeeze(-1).isfinite()
        if bool(wrong.any()):
            row, block = (int(i) for i in wrong.nonzero()[0])
            raise ValueError(f"{name} of row {row}, block {block} is not finite")
