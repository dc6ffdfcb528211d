"""Products with four-bit weights: literal values, the faults that the contracts refuse, torch's int4 product."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from contract import formats
from contract.case import Case, Kernel, find, kernels_of, make_case, shape_from
from contract.errors import CaseError, DeclarationError
from contract.held import TwoStep
from contract.inputs import generator
from contract.judge import Bench
from contract.kernels import packing
from contract.kernels.w4_gemv import Int4Weight, W4Gemv, exact_rows, sized
from contract.ranges import OutputRange, case_range

SYMMETRIC = {"block": "32"}
ASYMMETRIC = {"block": "128"}
AFFINE = {"block": "32", "offsets": "yes"}
w4_gemv_torch = TwoStep(W4Gemv)


def case_of(kernel: Kernel, values: Mapping[str, Any]) -> Case:
    sizes = shape_from(kernel, {name: np.shape(x) for name, x in values.items()})
    return make_case(kernel, sizes, values)


def allowed(kernel: Kernel, values: Mapping[str, Any]) -> OutputRange:
    """The range of `out`; codes and zero points may stand in the place of words."""
    found = case_range(kernel, case_of(kernel, packed(values)))["out"]
    assert isinstance(found, OutputRange)
    return found


def packed(values: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(values)
    if "codes" in given:
        given["words"] = packing.pack(given.pop("codes"), 4).astype(np.float64)
    return {name: np.asarray(x, np.float64) for name, x in given.items()}


def refused(out: OutputRange, y: Any) -> int:
    bits = formats.encode(formats.round_to(np.asarray(y, np.float64), out.fmt), out.fmt)
    return int(out.refused(bits).sum())


def tensors(values: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    types = {"words": torch.int32, "zeros": torch.uint8}
    return {
        name: torch.from_numpy(x).to(types.get(name, torch.bfloat16)) for name, x in values.items()
    }


# ---- literal values


def test_eight_codes_a_word_the_first_in_the_low_bits() -> None:
    # word 0x76543210 holds q = 0 .. 7, stored with 8 added; all other words are eights, which are zero
    words = np.full((1, 16), 0x88888888 - 2**32, np.float64)
    words[0, 0] = 0x76543210
    x = np.zeros((1, 128))
    x[0, :8] = [1, 2, 4, 8, 16, 32, 64, 128]
    values = {"x": x, "words": words, "scales": np.full((1, 4), 0.5)}
    right = 0.5 * sum(2**i * (i - 8) for i in range(8))
    assert right == -251.0
    out = allowed(find("w4_gemv", "kept", SYMMETRIC), values)
    assert out.one_value().all()
    assert not refused(out, [[right]])
    assert refused(out, [[0.5 * sum(2**i * (7 - i - 8) for i in range(8))]])
    assert w4_gemv_torch(**tensors(values), block="32", profile="kept").tolist() == [[right]]


@pytest.mark.parametrize("profile", ["kept", "offset"])
def test_zero_points_are_taken_from_the_codes(profile: str) -> None:
    # rows of codes 6 with zero points 0 .. 15: w = (6 - z) / 2, x one at one place
    x = np.zeros((1, 128))
    x[0, 77] = 1.0
    zeros = np.arange(16.0)[:, None]
    values = {
        "x": x,
        "codes": np.full((16, 128), 6),
        "scales": np.full((16, 1), 0.5),
        "zeros": zeros,
    }
    right = [[3, 2.5, 2, 1.5, 1, 0.5, 0, -0.5, -1, -1.5, -2, -2.5, -3, -3.5, -4, -4.5]]
    out = allowed(find("w4_gemv", profile, ASYMMETRIC), values)
    assert not refused(out, right)
    stored = (zeros[:, 0] - 1) % 16
    assert refused(out, [(6 - (stored + 1)) * 0.5]) == 1
    assert refused(out, [(6 - np.where(zeros[:, 0] == 0, 15, zeros[:, 0])) * 0.5]) == 1
    assert refused(out, [(6 - stored) * 0.5]) == 16


def test_the_scale_is_that_of_the_input_whatever_the_tile() -> None:
    # 256 ones, scales of 1, 10, 100, 1000 over 64 inputs each: 71104, in bf16 71168
    group = np.repeat([1.0, 10.0, 100.0, 1000.0], 2)
    values = {"x": np.ones((1, 256)), "codes": np.full((1, 256), 9), "scales": group[None]}
    out = allowed(find("w4_gemv", "kept", SYMMETRIC), values)
    assert not refused(out, [[71104.0]])
    tile = np.arange(256) // 16 * (16 // 32)
    assert refused(out, [[group[tile].sum()]])
    assert refused(out, [[sum(32 * group[min(i, 7)] for i in range(8)) * 2]])


def test_profiles_differ_where_they_round() -> None:
    # (9 - 2) * 1.3671875 = 9.5703125 needs 11 bits; bf16 has 9.5625
    x = np.zeros((1, 128))
    x[0, 0], x[0, 1] = 256.0, 1.0
    codes = np.full((1, 128), 8)
    codes[0, 0] = 15
    values = {"x": x, "codes": codes, "scales": np.full((1, 4), 1.3671875)}
    kept = allowed(find("w4_gemv", "kept", SYMMETRIC), values)
    rounded = allowed(find("w4_gemv", "dequantised", SYMMETRIC), values)
    assert 7 * 1.3671875 == 9.5703125
    assert not refused(kept, [[256 * 9.5703125]])
    assert not refused(rounded, [[256 * 9.5625]])
    # both results are bf16: 2448 and 2450 -> 2448; a sum that tells them apart has a second term
    x[0, 1], codes[0, 1] = -1792.0, 9
    values["x"], values["codes"] = x, codes
    kept = allowed(find("w4_gemv", "kept", SYMMETRIC), values)
    rounded = allowed(find("w4_gemv", "dequantised", SYMMETRIC), values)
    exact = 256 * 9.5703125 - 1792 * 1.3671875
    other = 256 * 9.5625 - 1792 * 1.3671875
    assert not refused(kept, [[exact]])
    assert not refused(rounded, [[other]])
    assert refused(kept, [[other]])
    assert refused(rounded, [[exact]])


def test_an_offset_is_added_to_the_code_less_8() -> None:
    # d = 0.5, m = -3 (Q4_1): w = 0.5 q - 3, o = m + 8 d = 1; the group after it has m = 2, o = 6
    x = np.zeros((16, 128))
    x[np.arange(16), np.arange(16)] = 1.0
    x[8:, 40] = 1.0
    codes = np.full((1, 128), 15)
    codes[0, :16] = range(16)
    values = {
        "x": x,
        "codes": codes,
        "scales": np.full((1, 4), 0.5),
        "offset": np.array([[1.0, 6.0, 0.0, 0.0]]),
    }
    q = np.arange(16.0)
    right = 0.5 * q - 3 + np.where(q < 8, 0.0, 0.5 * 15 + 2)
    out = allowed(find("w4_gemv", "kept", AFFINE), values)
    # but for the zero, whose sign is free
    assert out.one_value()[:, 0].tolist() == (q != 6).tolist()
    assert not refused(out, right[:, None])
    assert refused(out, (right + 4)[:, None]) == 16
    assert refused(out, (right - np.where(q < 8, 2.0, 14.0))[:, None]) == 16
    y = w4_gemv_torch(**tensors(packed(values)), block="32", profile="kept")
    assert y[:, 0].tolist() == right.tolist()


@pytest.mark.parametrize("k", [128, 384, 640])
def test_torchs_product_keeps_a_weight_with_offsets(k: int) -> None:
    values = drawn(AFFINE, k)
    del values["zeros"]
    given = tensors(values)
    y = Int4Weight.prepare(given["words"], given["scales"], offset=given["offset"])(given["x"])
    out = allowed(find("w4_gemv", "kept", AFFINE), values)
    assert out.one_value().mean() > 0.99
    assert not refused(out, y.double().numpy())


def test_zero_points_and_offsets_exclude_each_other() -> None:
    with pytest.raises(DeclarationError, match="not for block = 128 and offsets = yes"):
        find("w4_gemv", "kept", {"block": "128", "offsets": "yes"})
    kernels = kernels_of(find("w4_gemv", "kept", SYMMETRIC).contract)
    assert [kernel.id for kernel in kernels] == [
        "w4_gemv/kept",
        "w4_gemv/dequantised",
        "w4_gemv,offsets=yes/kept",
        "w4_gemv,block=128/kept",
        "w4_gemv,block=128/offset",
    ]


# ---- torch's int4 product


def drawn(parameters: Mapping[str, str], k: int) -> dict[str, Any]:
    rng = generator("test", k, sorted(parameters.items()))
    values = exact_rows(rng, sized(rows=4, n=33, k=k), {}, parameters)
    return {name: np.asarray(x, np.float64) for name, x in values.items()}


@pytest.mark.parametrize("k", [128, 384, 1024])
def test_torchs_product_keeps_a_symmetric_weight(k: int) -> None:
    values = drawn(SYMMETRIC, k)
    del values["zeros"], values["offset"]
    given = tensors(values)
    y = Int4Weight.prepare(given["words"], given["scales"])(given["x"])
    out = allowed(find("w4_gemv", "kept", SYMMETRIC), values)
    assert out.one_value().mean() > 0.99
    assert not refused(out, y.double().numpy())
    # scales of the long rows are powers of two, with which no weight is rounded
    other = allowed(find("w4_gemv", "dequantised", SYMMETRIC), values)
    assert bool(refused(other, y.double().numpy())) == (k < 1024)


def test_torchs_product_rounds_the_offset_of_zero_points() -> None:
    values = drawn(ASYMMETRIC, 384)
    del values["offset"]
    given = tensors(values)
    y = Int4Weight.prepare(given["words"], given["scales"], given["zeros"])(given["x"])
    assert not refused(allowed(find("w4_gemv", "offset", ASYMMETRIC), values), y.double().numpy())
    assert refused(allowed(find("w4_gemv", "kept", ASYMMETRIC), values), y.double().numpy())


def test_packed_weights_stay_packed() -> None:
    words = torch.zeros(64, 32, dtype=torch.int32)
    weight = Int4Weight.prepare(words, torch.ones(64, 8).bfloat16())
    assert weight.table.numel() * weight.table.element_size() == 4 * words.numel()


def test_a_huge_scale_is_no_infinity() -> None:
    # 2^126: torch's AVX2 product would form -8 * 2^126
    values = {"x": np.zeros((1, 128)), "codes": np.full((17, 128), 9), "scales": np.ones((17, 4))}
    values["x"][0, 0] = 1.0
    values["scales"][3] = 2.0**126
    y = w4_gemv_torch(**tensors(packed(values)), block="32", profile="kept")
    assert y[0, 3].item() == 2.0**126
    assert (y[0, :3] == 1).all()
    # an offset from which 8 s may not be taken
    values["scales"][3], offset = 2.0**119, np.zeros((17, 4))
    offset[3] = -float.fromhex("0x1.fep127")
    given = packed({**values, "codes": np.full((17, 128), 10), "offset": offset})
    y = w4_gemv_torch(**tensors(given), block="32", profile="kept")
    assert y[0, 3].item() == -float.fromhex("0x1.fcp127")


# ---- sizes and errors


def test_sizes_that_do_not_fit_are_named() -> None:
    kernel = find("w4_gemv", "kept", SYMMETRIC)
    with pytest.raises(CaseError, match="groups = k / 32"):
        shape_from(kernel, {"x": (1, 128), "words": (4, 16), "scales": (4, 1), "out": (1, 4)})
    wide = find("w4_gemv", "kept", ASYMMETRIC)
    sizes = {"x": (1, 128), "words": (4, 16), "scales": (4, 1), "zeros": (4, 1), "out": (1, 4)}
    assert shape_from(wide, sizes)["blocks"] == 1


def test_a_nan_scale_is_refused_where_the_weight_is_loaded() -> None:
    words, x = torch.zeros(2, 16, dtype=torch.int32), torch.ones(1, 128).bfloat16()
    scales = torch.full((2, 4), torch.nan).bfloat16()
    with pytest.raises(ValueError, match=r"scale nan at \[0, 0\]"):
        w4_gemv_torch(x=x, words=words, scales=scales, block="32", profile="kept")
    with pytest.raises(ValueError, match=r"offset nan at \[0, 0\]"):
        w4_gemv_torch(
            x=x,
            words=words,
            scales=torch.ones(2, 4).bfloat16(),
            offset=scales,
            block="32",
            profile="kept",
        )
    with pytest.raises(ValueError, match="1 scales a row for 128 inputs in blocks of 32"):
        w4_gemv_torch(
            x=x, words=words, scales=torch.ones(2, 1).bfloat16(), block="32", profile="kept"
        )


def test_exact_rows_are_proven_at_every_output() -> None:
    for parameters in (SYMMETRIC, ASYMMETRIC, AFFINE):
        bench = Bench(find("w4_gemv", "kept", parameters), "quick", 0)
        cases = bench.cases("exact")
        assert len(cases) == 2
        assert sum(case.shape["rows"] for case in cases) == bench.exact_candidates
