"""Affine weights: packed streams against big integers and literal words, what loading refuses, MLX where it is there."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch

from contract.controls.embed_affine import big_endian_fields, whole_word_fields
from contract.kernels.affine_packing import (
    WIDTHS,
    affine_values,
    check_affine,
    group_size,
    pack,
    unpack,
)
from contract.kernels.clients.mlx_affine import dequantize
from contract.references.bit_streams import bit_fields, fp16_at

#: Words of 32 codes (11 i + 1) mod 2^bits.
WORDS = {
    3: [0xE1CC55E1, 0x55E1CC55, 0xCC55E1CC],
    5: [0xF0D15D81, 0x5D3C9970, 0x1F9136E0, 0x89F4D1D9, 0xB2C1557E],
    6: [0x2D897301, 0xF919383E, 0x99B405EA, 0x1D487F31, 0xF509FB3A, 0x58B035A9],
}
CODES = {
    3: [1, 4, 7, 2, 5, 0, 3, 6] * 4,
    5: [1, 12, 23, 2, 13, 24, 3, 14, 25, 4, 15, 26, 5, 16, 27, 6,
        17, 28, 7, 18, 29, 8, 19, 30, 9, 20, 31, 10, 21, 0, 11, 22],
    6: [1, 12, 23, 34, 45, 56, 3, 14, 25, 36, 47, 58, 5, 16, 27, 38,
        49, 60, 7, 18, 29, 40, 51, 62, 9, 20, 31, 42, 53, 0, 11, 22],
}  # fmt: skip


def signed(words: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array([words], np.uint32).view(np.int32))


@pytest.mark.parametrize("bits", WORDS)
def test_codes_cross_words(bits: int) -> None:
    words = signed(WORDS[bits])
    assert unpack(words, bits).tolist() == [CODES[bits]]
    assert bit_fields(words.long().numpy(), bits).tolist() == [CODES[bits]]
    assert pack(torch.tensor([CODES[bits]]), bits).tolist() == words.tolist()
    assert whole_word_fields(words, bits).tolist() != [CODES[bits]]


def test_the_first_nibble_is_the_low_one() -> None:
    words = signed([0x76543210, 0xFEDCBA98])
    assert unpack(words, 4).tolist() == [list(range(16))]
    assert bit_fields(words.long().numpy(), 4).tolist() == [list(range(16))]
    assert big_endian_fields(words, 4).tolist() == [[*range(7, -1, -1), *range(15, 7, -1)]]


@pytest.mark.parametrize("bits", WIDTHS)
def test_every_width_is_one_stream_of_bits(bits: int) -> None:
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (3, 96))
    codes[0] = (1 << bits) - 1
    streams = [sum(int(q) << (bits * i) for i, q in enumerate(row)) for row in codes]
    words = np.array([[s >> (32 * j) & 0xFFFFFFFF for j in range(3 * bits)] for s in streams])
    packed = torch.from_numpy(words.astype(np.uint32).view(np.int32))
    assert pack(torch.from_numpy(codes), bits).equal(packed)
    assert unpack(packed, bits).tolist() == codes.tolist()
    assert bit_fields(packed.long().numpy(), bits).tolist() == codes.tolist()
    assert big_endian_fields(packed, bits).tolist() != codes.tolist()


@pytest.mark.parametrize("bits", WIDTHS)
def test_words_may_lie_apart(bits: int) -> None:
    words = torch.randint(-(2**31), 2**31, (5, 4 * bits + 3), dtype=torch.int64).int()
    part = words[:, : 4 * bits]
    assert unpack(part, bits).equal(unpack(part.contiguous(), bits))


def test_an_fp16_number_is_two_bytes_low_first() -> None:
    blocks = np.array([[7, 0x00, 0x3C], [7, 0x01, 0xC0], [7, 0x00, 0x7C]], np.int64)
    assert fp16_at(blocks, 1).tolist() == [[1.0], [-2.001953125], [np.inf]]


# ---- what is refused


@pytest.mark.parametrize(
    ("codes", "bits", "said"),
    [
        ([0] * 31 + [16], 4, "code 16 at [31]; 4-bit codes are 0 to 15"),
        ([-1] + [0] * 31, 8, "code -1 at [0]; 8-bit codes are 0 to 255"),
        ([0] * 33, 4, "33 codes a row; packed rows hold a multiple of 32"),
        ([0] * 32, 7, "7-bit codes; widths are 2, 3, 4, 5, 6, 8"),
    ],
)
def test_codes_that_cannot_be_packed_are_refused(codes: list[int], bits: int, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        pack(torch.tensor(codes), bits)


def test_a_weight_is_checked_when_it_is_loaded() -> None:
    words, scales = torch.zeros(2, 8, dtype=torch.int32), torch.ones(2, 2).bfloat16()
    assert check_affine(words, scales, scales, 4) == 32
    broken = scales.clone()
    broken[1, 0] = float("nan")
    for given, said in [
        ((words, broken, scales, 4), "scale of row 1, group 0 is nan"),
        ((words, scales, broken, 4), "bias of row 1, group 0 is nan"),
        ((words.long(), scales, scales, 4), "words are torch.int64; view uint32 words as int32"),
        ((words, scales, scales[:, :1], 4), "no weight of 4-bit codes"),
        ((words[:, :7], scales, scales, 2), "groups are of 32, 64, 128"),
        ((words, scales, scales, 1), "1-bit codes"),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)):
            check_affine(*given)


def test_groups_are_of_32_64_or_128() -> None:
    assert [group_size(384, n) for n in (12, 6, 3)] == [32, 64, 128]
    for columns, groups in ((384, 24), (384, 0), (100, 3)):
        with pytest.raises(ValueError, match="groups are of 32, 64, 128"):
            group_size(columns, groups)


# ---- MLX


def test_mlx_reads_the_same_values() -> None:
    mx = pytest.importorskip("mlx.core", reason="mlx is an extra: [formats]")
    rng = np.random.default_rng(0)
    for bits, group in itertools.product(WIDTHS, (32, 64, 128)):
        codes = torch.from_numpy(rng.integers(0, 1 << bits, (4, 256)))
        scales = torch.from_numpy(rng.standard_normal((4, 256 // group), np.float32))
        words = pack(codes, bits)
        ours = affine_values(unpack(words, bits), scales, scales)
        given = (mx.array(words.numpy().view(np.uint32)), mx.array(scales.numpy()))
        theirs = mx.dequantize(*given, given[1], group_size=group, bits=bits)
        assert np.array_equal(np.array(theirs), ours.numpy()), (bits, group)


def test_mlx_rounds_twice_in_bf16_on_the_cpu() -> None:
    pytest.importorskip("mlx.core", reason="mlx is an extra: [formats]")
    rng = np.random.default_rng(1)
    for bits, group in itertools.product(WIDTHS, (32, 64, 128)):
        words = pack(torch.from_numpy(rng.integers(0, 1 << bits, (4, 256))), bits)
        scales, biases = (
            torch.from_numpy(rng.standard_normal((4, 256 // group), np.float32)).bfloat16()
            for _ in range(2)
        )
        codes = unpack(words, bits)
        ours = affine_values(codes, scales, biases, each_op=True).bfloat16()
        assert torch.equal(dequantize(words, scales, biases, bits=str(bits)), ours), (bits, group)
        once = affine_values(codes, scales, biases).bfloat16()
        assert not torch.equal(once, ours)
