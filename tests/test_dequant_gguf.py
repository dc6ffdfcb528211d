"""GGUF blocks: literal bytes, integers beside them, the gguf package where it is there, and what is refused."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import torch

import contract
from contract.autocontrols import nominal
from contract.case import find
from contract.errors import CaseError, NotAllowed
from contract.inputs import stress_cases
from contract.kernels.dequant_gguf import check_gguf, dequant_gguf_torch
from contract.ranges import case_range
from contract.readings.base import Change

#: d = 0.5, m = -1.25; bytes 0x10, 0x32, ...: low halves 0 2 4 .. 14 0 .., high halves 1 3 5 .. 15 1 ..
Q4_1 = struct.pack("<ee", 0.5, -1.25) + bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2)
LOW = [0, 2, 4, 6, 8, 10, 12, 14] * 2
HIGH = [1, 3, 5, 7, 9, 11, 13, 15] * 2
#: d = -0.25; codes 0, 1, .., 127, -128, -127, .. of bytes
Q8_0 = struct.pack("<e", -0.25) + bytes([*range(112, 144)])
SIGNED = [*range(112, 128), *range(-128, -112)]


def judge(out: Any, block: bytes, kind: str, profile: str = "float32") -> None:
    given = torch.tensor([list(block)], dtype=torch.uint8)
    contract.assert_allowed(
        "dequant_gguf", torch.as_tensor(out)[None], blocks=given, kind=kind, profile=profile
    )


def test_a_q4_1_block_holds_its_low_halves_first() -> None:
    right = torch.tensor([0.5 * q - 1.25 for q in LOW + HIGH])
    judge(right, Q4_1, "q4_1")
    judge(right.bfloat16(), Q4_1, "q4_1", "once")
    in_turn = torch.stack([right[:16], right[16:]], -1).flatten()
    for wrong in (right.roll(16), in_turn, right + 1.25, right - 4.0, right * 2.0):
        with pytest.raises(NotAllowed):
            judge(wrong, Q4_1, "q4_1")


def test_a_q8_0_block_holds_signed_bytes() -> None:
    right = torch.tensor([-0.25 * q for q in SIGNED])
    judge(right, Q8_0, "q8_0")
    unsigned = torch.tensor([-0.25 * (q % 256) for q in SIGNED])
    for wrong in (unsigned, right.roll(2), -right):
        with pytest.raises(NotAllowed):
            judge(wrong, Q8_0, "q8_0")


@pytest.mark.parametrize(("kind", "size"), [("q4_1", 20), ("q8_0", 34)])
def test_torch_reads_any_bytes(kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    data = rng.integers(0, 256, (7, 5 * size), dtype=np.uint8)
    blocks = data.reshape(-1, size)
    d = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        if kind == "q4_1":
            m = blocks[:, 2:4].copy().view(np.float16).astype(np.float64)
            q = np.concatenate([blocks[:, 4:] % 16, blocks[:, 4:] // 16], -1)
            values = (d * q + m).astype(np.float32)
        else:
            values = (d * blocks[:, 2:].view(np.int8)).astype(np.float32)
    out = dequant_gguf_torch(torch.from_numpy(data), kind=kind, profile="float32")
    np.testing.assert_array_equal(out.numpy(), values.reshape(7, -1))


def test_19_bits_fit_fp32() -> None:
    """The vacuous point: d q of Q8_0 is its own fp32 rounding."""
    kernel = find("dequant_gguf", "float32", {"kind": "q8_0"})
    for case in stress_cases(kernel, "default", 0):
        out = nominal(kernel, case, change=Change(modes={"out": "toward_zero"}))["out"]
        assert not case_range(kernel, case)["out"].refused(out).any()


def test_what_is_no_row_of_blocks_is_refused() -> None:
    blocks = torch.tensor([list(Q4_1) * 2], dtype=torch.uint8)
    check_gguf(blocks, "q4_1")
    with pytest.raises(ValueError, match="40 bytes a row; q8_0 blocks have 34"):
        dequant_gguf_torch(blocks, kind="q8_0", profile="float32")
    with pytest.raises(ValueError, match="of 40 a row; q8_0 blocks have 34 bytes"):
        check_gguf(blocks, "q8_0")
    for at, said in ((21, "scale of row 0, block 1"), (3, "minimum of row 0, block 0")):
        broken = blocks.clone()
        broken[0, at] = 0x7C
        with pytest.raises(ValueError, match=f"{said} is not finite"):
            check_gguf(broken, "q4_1")
    with pytest.raises(CaseError, match=r"bytes = 19, sizes .* need 0"):
        judge(torch.zeros(32), Q4_1[:19], "q4_1")


def test_the_gguf_package_reads_the_same_values() -> None:
    quants = pytest.importorskip("gguf.quants", reason="gguf is an extra: [formats]")
    types = pytest.importorskip("gguf").GGMLQuantizationType
    rng = np.random.default_rng(0)
    for kind, size in (("q4_1", 20), ("q8_0", 34)):
        data = rng.integers(0, 256, (4, 3 * size), dtype=np.uint8)
        # exponents of ordinary scales
        data.reshape(-1, size)[:, (1, 3)] = 0x2C
        theirs = quants.dequantize(data, types[kind.upper()])
        ours = dequant_gguf_torch(torch.from_numpy(data), kind=kind, profile="float32")
        np.testing.assert_array_equal(ours.numpy(), theirs)
