"""fp8 products: the format's literal values, scales, and what exact rows cover."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from contract import formats
from contract.case import find, make_case
from contract.engines.placement import place, to_bits
from contract.inputs import exact_cases
from contract.kernels.gemm_f143 import exponent_of, gemm_f143_torch
from contract.kernels.products import CHUNK
from contract.orders import Chunks
from contract.ranges import case_range

F143 = formats.get("e4m3fnuz")


def judged(
    x: ArrayLike,
    weight: ArrayLike,
    out: ArrayLike,
    k_a: int = 0,
    k_w: int = 0,
    profile: str = "once",
) -> int:
    """How many outputs are not allowed."""
    kernel = find("gemm_f143", profile)
    a, w = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    shape = {"rows": a.shape[0], "k": a.shape[1], "n": w.shape[0]}
    case = make_case(kernel, shape, {"x": a, "weight": w}, {"k_a": k_a, "k_w": k_w})
    fmt = kernel.format(kernel.outputs()[0])
    bits = formats.encode(formats.round_to(np.asarray(out, np.float64), fmt), fmt)
    return int(case_range(kernel, case)["out"].refused(bits).sum())


#: byte -> value of e4m3fnuz; the same byte of e4m3fn is twice as much, or its NaN or -0
BYTES = {0x00: 0.0, 0x01: 2.0**-10, 0x07: 7 * 2.0**-10, 0x08: 2.0**-7, 0x38: 0.5, 0x7E: 224.0,
         0x7F: 240.0, 0x80: np.nan, 0x81: -(2.0**-10), 0xB8: -0.5, 0xFF: -240.0}  # fmt: skip


def test_the_bytes_are_those_of_f143_and_not_of_e4m3fn() -> None:
    codes = torch.tensor(list(BYTES), dtype=torch.uint8)
    x = codes.view(torch.float8_e4m3fnuz)[:, None]
    one = torch.tensor([[0x40]], dtype=torch.uint8).view(torch.float8_e4m3fnuz)
    out = gemm_f143_torch(x, one, k_a=0.0, k_w=0.0, profile="once").float().numpy()[:, 0]
    np.testing.assert_array_equal(out, np.array(list(BYTES.values()), np.float32))
    right = [[v] for v in BYTES.values()]
    assert judged(right, [[1.0]], right) == 0
    fn = codes.view(torch.float8_e4m3fn).float().numpy()[:, None]
    # only the zero byte is the same, and 0x7F and 0xFF are NaN even where the scale is halved
    assert judged(right, [[1.0]], fn) == 10
    assert judged(right, [[1.0]], fn / 2) == 3


def test_the_scales_are_powers_of_two_whose_exponents_add() -> None:
    x, w = [[240.0, 3.0]], [[1.0, -2.0]]
    assert judged(x, w, [[234.0]]) == 0
    assert judged(x, w, [[234.0 * 2.0**-6]], -2, -4) == 0
    for k in (-7, -5, -2, -4):
        assert judged(x, w, [[234.0 * 2.0**k]], -2, -4) == 1, k


@pytest.mark.parametrize(("k_a", "k_w"), [(-32, -32), (31, 31), (-32, 31)])
def test_the_ends_of_the_exponents(k_a: int, k_w: int) -> None:
    assert judged([[1.125]], [[1.0]], [[1.125 * 2.0 ** (k_a + k_w)]], k_a, k_w) == 0
    assert judged([[1.125]], [[1.0]], [[1.125 * 2.0 ** (k_a + k_w + 1)]], k_a, k_w) == 1
    x = torch.tensor([[1.125]]).to(torch.float8_e4m3fnuz)
    out = gemm_f143_torch(x, x, k_a=float(k_a), k_w=float(k_w), profile="once")
    assert float(out) == float(torch.tensor(1.265625).bfloat16()) * 2.0 ** (k_a + k_w)


def test_fp16_overflows_only_behind_the_scale() -> None:
    # 2 * 240 * 240 = 115200 is no fp16 number, a quarter of it is
    x = [[240.0, 240.0]]
    assert judged(x, x, [[28800.0]], -1, -1, "float16") == 0
    assert judged(x, x, [[np.inf]], -1, -1, "float16") == 1
    assert judged(x, x, [[np.inf]], 0, 0, "float16") == 0


@pytest.mark.parametrize("k", [-33.0, 32.0, 0.5])
def test_an_exponent_beyond_six_bits_is_refused(k: float) -> None:
    with pytest.raises(ValueError, match=r"an integer in -32 \.\. 31"):
        exponent_of(k)


def test_exact_rows_meet_subnormal_codes_the_largest_one_and_sums_of_20_bits() -> None:
    kernel = find("gemm_f143", "once")
    found, candidates = exact_cases(kernel, 0)
    assert sum(case.rows(kernel) for case, _ in found) > 0.9 * candidates
    case = next(case for case, _ in found if case.shape["k"] == 225)
    x, w = (case.value(kernel, o) for o in kernel.inputs())
    assert ((np.abs(x) < F143.tiny) & (x != 0)).sum() > 100
    assert np.abs(x).max() == 240.0
    unit = np.abs(x[1][x[1] != 0]).min() * np.abs(w[0][w[0] != 0]).min()
    assert np.abs(np.cumsum(x[1] * w[0])).max() / unit > 2.0**18


@pytest.mark.parametrize("profile", ["float16", "once"])
@pytest.mark.parametrize("k", [1, 256, 300])
def test_the_torch_kernel_is_allowed(profile: str, k: int) -> None:
    kernel = find("gemm_f143", profile)
    rng = np.random.default_rng(k)
    values = {"x": rng.uniform(-99, 99, (9, k)), "weight": rng.uniform(-99, 99, (7, k))}
    case = make_case(kernel, {"rows": 9, "k": k, "n": 7}, values, {"k_a": -3.0, "k_w": -5.0})
    placed: dict[str, Any] = {
        o.name: place(o.name, case.operands[o.name], F143, "strided", "nan").tensor
        for o in kernel.inputs()
    }
    out = gemm_f143_torch(**placed, k_a=-3.0, k_w=-5.0, profile=profile)
    bits = to_bits(out, kernel.format(kernel.outputs()[0]))
    allowed = case_range(kernel, case, depths={"dot": Chunks(CHUNK)})["out"]
    assert not allowed.refused(bits).any()


@pytest.mark.skipif(importlib.util.find_spec("ml_dtypes") is None, reason="ml_dtypes is not there")
def test_ml_dtypes_decodes_every_byte_alike() -> None:
    import ml_dtypes

    codes = np.arange(256, dtype=np.uint8)
    theirs = codes.view(ml_dtypes.float8_e4m3fnuz).astype(np.float64)
    np.testing.assert_array_equal(formats.decode(codes, F143), theirs)
