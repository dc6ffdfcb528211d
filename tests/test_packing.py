"""Packed codes: literal words, every width there and back, and what is refused with which words."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from contract.kernels import packing
from contract.kernels.w4_gemm import dequantised
from contract.references.packing import nibbles

# 32 codes (11 i + 1) mod 2^b of b bits, as one little-endian stream
WORDS = {
    3: [0xE1CC55E1, 0x55E1CC55, 0xCC55E1CC],
    5: [0xF0D15D81, 0x5D3C9970, 0x1F9136E0, 0x89F4D1D9, 0xB2C1557E],
    6: [0x2D897301, 0xF919383E, 0x99B405EA, 0x1D487F31, 0xF509FB3A, 0x58B035A9],
}


def words_of(bits: int) -> Any:
    return np.array(WORDS[bits], np.uint32).view(np.int32)


def codes_of(bits: int, count: int = 32) -> Any:
    return (np.arange(count) * 11 + 1) % (1 << bits)


@pytest.mark.parametrize("bits", [3, 5, 6])
def test_codes_cross_words(bits: int) -> None:
    assert packing.unpack(words_of(bits), bits, 32).tolist() == codes_of(bits).tolist()
    assert packing.pack(codes_of(bits), bits).tolist() == words_of(bits).tolist()
    # 32 // bits whole codes a word: another reading
    whole = [int(WORDS[bits][i // (32 // bits)]) >> bits * (i % (32 // bits)) for i in range(16)]
    assert [w & (1 << bits) - 1 for w in whole] != codes_of(bits, 16).tolist()


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("count", [1, 7, 31, 32, 33, 96, 160])
def test_every_width_comes_back(bits: int, count: int) -> None:
    rng = np.random.default_rng(bits * 1000 + count)
    codes = rng.integers(0, 1 << bits, (3, 2, count))
    codes[..., 0], codes[..., -1] = (1 << bits) - 1, 0
    words = packing.pack(codes, bits)
    assert words.dtype == np.int32
    assert words.shape == (3, 2, -(-count * bits // 32))
    assert np.array_equal(packing.unpack(words, bits, count), codes)
    # the same stream, as one large number
    stream = sum(int(q) << (bits * i) for i, q in enumerate(codes[1, 1]))
    assert [int(w) & 0xFFFFFFFF for w in words[1, 1]] == [
        stream >> (32 * j) & 0xFFFFFFFF for j in range(words.shape[-1])
    ]


def test_three_ways_to_read_nibbles_agree() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(-(2**31), 2**31, (5, 6)).astype(np.int32)
    expected = packing.unpack(words, 4, 48)
    assert np.array_equal(nibbles(words.astype(np.int64)), expected)
    assert np.array_equal(packing.nibbles_of(torch.from_numpy(words)).numpy(), expected)
    assert packing.unpack(torch.from_numpy(words), 4, 48).tolist() == expected.tolist()


def test_interleaved_nibbles_come_into_the_order_of_the_columns() -> None:
    words = np.array([[0x2741F0E9], [0xBAC36583]], np.uint32).view(np.int32)
    columns = [[9, 1, 14, 4, 0, 7, 15, 2], [3, 3, 8, 12, 5, 10, 6, 11]]
    slots = packing.unpack(words, 4, 8)
    assert packing.in_column_order(slots).tolist() == columns
    linear, inverse = slots, slots[:, list(packing.AWQ_ORDER)]
    for faulty in (linear, inverse, slots[:, ::-1]):
        assert faulty.tolist() != columns


def test_a_zero_point_is_stored_as_itself_or_less_one() -> None:
    q, s = np.arange(16), 0.125
    right = (q - 8.0) * s
    assert ((q - float(packing.gptq_zero_points([7])[0])) * s).tolist() == right.tolist()
    # every zero point comes back; 0 is stored as 15
    stored = np.array([15, *range(15)])
    assert packing.gptq_zero_points(stored).tolist() == list(range(16))


def test_signed_codes_and_zero_points_as_in_compressed_tensors() -> None:
    codes = np.array([[-8, -1, 0, 7, 3, -4, 5, -6]])
    words = packing.pack_signed(codes, 4)
    assert [int(w) & 0xFFFFFFFF for w in words[0]] == [0x2D4BF870]
    assert packing.unpack_signed(words, 4, 8).tolist() == codes.tolist()
    zeros = np.arange(20).reshape(10, 2) % 16
    packed = packing.pack_zero_points(zeros, 4)
    # along the outputs: ten of them fill two words, in each of two groups
    assert packed.shape == (2, 2)
    assert int(packed[0, 0]) & 0xFFFFFFFF == 0xECA86420
    assert packing.unpack_zero_points(packed, 4, 10).tolist() == zeros.tolist()


def compressed_tensors(name: str) -> Any:
    """A module of the library that defines the packed form."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is an extra: [formats]")
    return importlib.import_module(f"compressed_tensors.{name}")


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_library_packs_alike(bits: int) -> None:
    helpers = compressed_tensors("compressors.pack_quantized.helpers")
    # 70 codes end inside a word
    codes = np.random.default_rng(bits).integers(-(1 << bits - 1), 1 << bits - 1, (6, 70))
    signed = torch.from_numpy(codes.astype(np.int8))
    words = packing.pack_signed(codes, bits)
    assert helpers.pack_to_int32(signed, bits).tolist() == words.tolist()
    back = helpers.unpack_from_int32(torch.from_numpy(words), bits, signed.shape)
    assert torch.equal(back, signed)
    assert packing.unpack_signed(words, bits, 70).tolist() == codes.tolist()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_library_reads_the_same_weights(bits: int, dtype: torch.dtype) -> None:
    """(q - z) s in the format of the scales, zero points packed along the outputs."""
    quantization = compressed_tensors("quantization")
    packed = compressed_tensors("compressors.pack_quantized.base")
    rng = np.random.default_rng(bits)
    (n, k, group), half = (10, 96, 32), 1 << bits - 1
    codes = rng.integers(-half, half, (n, k))
    zeros = rng.integers(0, 2 * half, (n, k // group))
    scales = torch.from_numpy(rng.uniform(0.002, 0.02, zeros.shape)).to(dtype)
    theirs = packed.PackedQuantizationCompressor.decompress(
        {
            "weight_packed": torch.from_numpy(packing.pack_signed(codes, bits)),
            "weight_scale": scales,
            "weight_shape": torch.tensor([n, k]),
            "weight_zero_point": torch.from_numpy(packing.pack_zero_points(zeros, bits)),
        },
        quantization.QuantizationScheme(
            targets=["Linear"],
            weights=quantization.QuantizationArgs(
                num_bits=bits, symmetric=False, strategy="group", group_size=group
            ),
        ),
    )["weight"]
    ours = (codes + half - np.repeat(zeros, group, -1)) * np.repeat(
        scales.double().numpy(), group, -1
    )
    assert theirs.dtype == dtype
    # 8 bits and a sign times 11: the product is exact before it is stored
    assert torch.equal(theirs, torch.from_numpy(ours).float().to(dtype))
    if bits == 4:
        words = torch.from_numpy(packing.pack_signed(codes, bits))
        assert torch.equal(theirs, dequantised(words, scales, torch.from_numpy(zeros)).to(dtype))


def test_the_library_reads_the_nibbles_of_an_awq_checkpoint_in_this_order() -> None:
    """AutoAWQ packs columns of (in, out) weights and (groups, out) zero points, eight to a word in its own order."""
    awq = compressed_tensors("entrypoints.convert.converters.autoawq")
    rng = np.random.default_rng(0)
    weights, zeros = (
        torch.from_numpy(rng.integers(-(2**31), 2**31, shape).astype(np.int32))
        for shape in ((64, 3), (2, 3))
    )
    converter = awq.AutoAWQConverter(bits=4, group_size=32)
    theirs = converter.process(
        {"layer.qweight": weights, "layer.qzeros": zeros, "layer.scales": torch.ones(2, 24)}
    )
    codes, points = (
        packing.in_column_order(packing.unpack(words, 4, 24)).T for words in (weights, zeros)
    )
    assert theirs["layer.weight_packed"].tolist() == packing.pack(codes, 4).tolist()
    assert (
        theirs["layer.weight_zero_point"].tolist() == packing.pack_zero_points(points, 4).tolist()
    )


def test_inputs_of_a_reordered_checkpoint_are_brought_together() -> None:
    x = np.array([1, 2, 3, 4, 5, 6, 7, 8])
    q = np.array([1, -2, 3, -4, 5, -6, 7, -8])
    s, group_of = np.array([1, 16]), np.array([0, 1, 0, 1, 1, 0, 1, 0])
    order = packing.by_group(group_of, 4)
    y = (x * q)[order].reshape(2, 4).sum(1) @ s
    assert y == 774
    by_place = (x * q).reshape(2, 4).sum(1) @ s
    assert by_place != 774
    # half a layer: three inputs of one group
    with pytest.raises(ValueError, match=r"group 0 has 2 inputs, a group has 4"):
        packing.by_group(group_of[:4], 4)


BAD: list[tuple[Any, str]] = [
    (lambda: packing.pack([[0, 16]], 4), r"code 16 at \[0, 1\]; codes of 4 bits are 0 to 15"),
    (lambda: packing.pack_signed([[-9]], 4), r"code -1 at \[0, 0\]"),
    (lambda: packing.pack([0], 9), "9 bits; packed codes have 2 to 8"),
    (lambda: packing.unpack(np.zeros((2, 3), np.int32), 4, 32), "3 words for 32 codes of 4 bits; they take 4 words"),
    (lambda: packing.checked_scales(torch.ones(2, 3), 100, 32), "100 inputs are no whole number of blocks of 32"),
    (lambda: packing.checked_scales(torch.ones(2, 3), 128, 32), "3 scales a row for 128 inputs in blocks of 32; there are 4"),
    (lambda: packing.checked_scales(torch.tensor([[1.0], [torch.nan]]), 32, 32), r"scale nan at \[1, 0\]"),
    (lambda: packing.checked_scales(torch.tensor([[torch.inf]]), 32, 32), r"scale inf at \[0, 0\]"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_with_a_weight_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
