"""Ranges of whole cases: the widest element against brute force, rows taken out, and pieces put together."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from contract import formats, ranges
from contract.case import Case, Kernel, make_case, take_rows
from contract.declare import Contract, Profile, output, tensor
from contract.inputs import typical_case
from contract.interval import Array
from contract.kernels.add_rms_tail import add_rms_tail
from contract.kernels.group_sums import group_sums
from contract.kernels.quantize_int8 import quantize_int8
from contract.kernels.rms_norm import rms_norm
from contract.kernels.softcap import softcap
from contract.ranges import OutputRange, case_range, rows_of
from contract.sets import OutputSet

BF16, FP32 = formats.get("bf16"), formats.get("fp32")


def kernel_of(contract: Contract, profile: str, **parameters: str) -> Kernel:
    return Kernel(contract, contract.full_parameters(parameters), contract.profile(profile))


# The widest element


def step(size: float, fmt: formats.Format) -> float:
    """The spacing of the format at a size, by its definition."""
    return 2.0 ** (max(math.frexp(size)[1] - 1, fmt.emin) - fmt.mantissa_bits)


def widest(lo: Array, hi: Array, fmt: formats.Format) -> float:
    """The same element by element; a row's rms is that of its finite elements' lower ends, over all places."""
    found = 0.0
    for low, high in zip(lo.tolist(), hi.tolist(), strict=True):
        pairs = [(a, b) if math.isfinite(a) and math.isfinite(b) else (0.0, 0.0)
                 for a, b in zip(low, high, strict=True)]  # fmt: skip
        rms = math.sqrt(math.fsum(a * a for a, _ in pairs) / len(pairs))
        for a, b in pairs:
            size = min(max(abs(a), abs(b), rms), fmt.max)
            found = max(found, (b - a) / step(size, fmt))
    return found


def random_rows(fmt: formats.Format, seed: int, rows: int = 40, columns: int = 12) -> Any:
    """Ends of rows of one magnitude each, zeros, subnormals, huge values, infinities and points among them."""
    rng = np.random.default_rng(seed)
    scale = np.exp2(rng.choice([fmt.emin - 5, -20, 0, 30, 125], (rows, 1)).astype(float))
    lo = rng.standard_normal((rows, columns)) * scale * rng.choice([0.0, 2.0**-9, 1.0], (rows, columns))  # fmt: skip
    hi = lo + np.abs(rng.standard_normal(lo.shape)) * scale * np.exp2(
        -rng.integers(1, 24, lo.shape)
    )
    # rows of which nothing differs, and single points elsewhere
    same = (rng.random((rows, 1)) < 0.3) | (rng.random(lo.shape) < 0.3)
    lo, hi = (np.asarray(formats.round_to(x, fmt)) for x in (lo, np.where(same, lo, hi)))
    lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
    end = rng.random(lo.shape)
    lo = np.where(end < 0.03, -np.inf, lo)
    hi = np.where((end > 0.97) | (end < 0.01), np.inf, hi)
    both = (end > 0.5) & (end < 0.52)
    return np.where(both, np.inf, lo), np.where(both, np.inf, hi)


@pytest.mark.parametrize("fmt", [BF16, FP32], ids=["bf16", "fp32"])
def test_the_widest_element_is_that_of_brute_force(fmt: formats.Format) -> None:
    some = 0.0
    for seed in range(30):
        lo, hi = random_rows(fmt, seed)
        want = widest(lo, hi, fmt)
        assert ranges._widest(lo, hi, fmt, 0.0) == pytest.approx(want, rel=1e-12)
        some = max(some, want)
        for row in range(len(lo)):
            a, b = lo[row : row + 1], hi[row : row + 1]
            assert ranges._widest(a, b, fmt, 0.0) == pytest.approx(widest(a, b, fmt), rel=1e-12)
    assert some > 100


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_the_widest_element_is_a_running_maximum(pieces: int) -> None:
    for seed in range(10):
        lo, hi = random_rows(FP32, seed)
        known = 0.0
        for low, high in zip(np.array_split(lo, pieces), np.array_split(hi, pieces), strict=True):
            before, known = known, ranges._widest(low, high, FP32, known)
            assert known >= before
        assert known == pytest.approx(widest(lo, hi, FP32), rel=1e-12)
        assert ranges._widest(lo, hi, FP32, 1e9) == 1e9


def test_the_widest_of_nothing_or_of_points_is_what_was_known() -> None:
    x = np.array([[1.0, 0.0, -0.0, 2.0**-140, 3e38, np.inf, -np.inf]])
    for known in (0.0, 2.5):
        assert ranges._widest(x, x, FP32, known) == known
        assert ranges._widest(x[:0], x[:0], FP32, known) == known
        assert ranges._widest(x[:, :0], x[:, :0], FP32, known) == known
    # no dims, and a row of zeros beside a range of subnormals
    assert ranges._widest(np.array(1.0), np.array(1.0 + 2.0**-22), FP32, 0.0) == 2.0
    tiny = 2.0**-149
    assert ranges._widest(np.array([[0.0, tiny]]), np.array([[0.0, 4 * tiny]]), FP32, 0.0) == 3.0


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_pieces_of_a_case_give_the_same_range_and_width(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    kernel = kernel_of(rms_norm, "float32")
    case = typical_case(kernel, {"rows": 10, "d": 64}, 0)
    whole = case_range(kernel, case)["out"]
    monkeypatch.setattr(ranges, "CHUNK", rows * 64)
    pieces = case_range(kernel, case)["out"]
    same(pieces, whole)
    lo, hi = (formats.decode(formats.from_ordered(x.astype(np.int64), FP32), FP32)
              for x in (whole.lo, whole.hi))  # fmt: skip
    assert pieces.widest == whole.widest == pytest.approx(widest(lo, hi, FP32), rel=1e-12)
    assert whole.widest > 1


# Rows of a range


def state(nan: Array | None, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape, np.uint8) if nan is None else nan


def same(a: Any, b: Any) -> None:
    """Bit for bit."""
    assert type(a) is type(b)
    assert a.fmt is b.fmt
    for name in ("lo", "hi") if isinstance(a, OutputRange) else ("lo", "hi", "allowed"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), strict=True)
    np.testing.assert_array_equal(state(a.nan, a.lo.shape), state(b.nan, b.lo.shape), strict=True)
    assert (a.size, a.singles) == (b.size, b.singles)


def pick(r: Any, x: Any) -> Any:
    return r.pick_max(r.square(x))


def either(r: Any, x: Any) -> Any:
    return r.one_of(r.round("a", r.sum(x)), r.round("b", r.sum(x) * 2.0))


def of_reference(reference: Any, points: dict[str, str], fmt: str) -> Kernel:
    contract = Contract(
        name=reference.__name__, family="test", reference=reference,
        operands=(tensor("x", "rows d"), output("out", "rows one" if points else "rows", fmt)),
        profiles=(Profile("plain", points),), row_dims=("rows",),
        shapes=({"rows": 1, "d": 8, **({"one": 1} if points else {})},),
        freedoms={"sum": "a test"}, not_applicable={"exact": "a test"},
    )  # fmt: skip
    return Kernel(contract, {}, contract.profiles[0])


KERNELS = {
    kernel.id: kernel
    for kernel in (
        kernel_of(rms_norm, "two_step"),
        kernel_of(rms_norm, "float32"),
        kernel_of(softcap, "once"),
        kernel_of(quantize_int8, "divide", granularity="channel"),
        kernel_of(group_sums, "float32"),
        kernel_of(add_rms_tail, "each", scale="yes"),
        of_reference(pick, {}, "int32"),
        of_reference(either, {"a": "bf16", "b": "bf16"}, "bf16"),
    )
}
ROWS: dict[str, Any] = {
    "first": slice(0, 1),
    "some": slice(2, 7),
    "every third": slice(None, None, 3),
    "array": np.array([8, 0, 3, 3]),
}


def with_specials(kernel: Kernel) -> Case:
    """Nine typical rows; one of NaN, one of infinities, one of zeros and one of equal magnitudes among them."""
    shape = {**dict(kernel.contract.shapes[0]), "rows": 9}
    case = typical_case(kernel, shape, 0)
    values = {o.name: case.value(kernel, o).copy() for o in kernel.inputs()}
    first = kernel.inputs()[0]
    x = values[first.name]
    x[2:5] = np.array([0.0, 1.0, 1.0])[:, None]
    x[4, ::2] = -1.0
    if not first.finite:
        x[1, 0], x[6, -1] = np.nan, np.inf
    return make_case(kernel, shape, values, case.scalars)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_rows_of_a_range_are_the_range_of_the_rows(kernel: Kernel) -> None:
    case = with_specials(kernel)
    whole = case_range(kernel, case)
    for rows in ROWS.values():
        taken = rows_of(kernel, whole, rows)
        alone = case_range(kernel, take_rows(kernel, case, rows))
        assert list(taken) == list(alone)
        for name, out in taken.items():
            same(out, alone[name])
            assert out.widest == whole[name].widest
    first = next(iter(whole.values()))
    assert isinstance(first, OutputSet) == (kernel.contract.family == "test")
    # what was taken is judged like the rest: a count taken before is not kept
    assert first.singles >= next(iter(rows_of(kernel, whole, slice(0, 2)).values())).singles


def test_a_case_of_one_piece_is_decoded_once_for_all_its_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = kernel_of(softcap, "each_op")
    case = typical_case(kernel, {"rows": 4, "n": 32}, 0)
    case_range(kernel, case)
    decoded: list[Any] = []
    monkeypatch.setattr(formats, "decode", lambda *a: decoded.append(a))
    first = case_range(kernel, case)
    assert not decoded
    monkeypatch.undo()
    again = case_range(kernel, typical_case(kernel, {"rows": 4, "n": 32}, 0))
    same(first["out"], again["out"])


def test_an_output_that_rows_share_stays_whole() -> None:
    kernel = kernel_of(quantize_int8, "divide")
    whole = case_range(kernel, typical_case(kernel, {"rows": 6, "d": 8}, 0))
    taken = rows_of(kernel, whole, slice(0, 2))
    assert taken["codes"].lo.shape == (2, 8)
    assert taken["scale"] is whole["scale"]


# An order of one's own


def deep(r: Any, x: Any, depth: int | None) -> Any:
    return r.round("out", r.sum(x, -1, depth=depth))


@pytest.mark.parametrize(("contracts", "own", "judged"),
                         [(8, 4, 4), (8, 8, 8), (8, 60, 8), (None, 8, 8), (None, 600, None)])  # fmt: skip
def test_an_order_is_judged_by_the_tighter_of_two_declarations(
    contracts: int | None, own: int, judged: int | None
) -> None:
    def kernel(depth: int | None) -> Kernel:
        contract = Contract(
            name="deep", family="sums", reference=partial(deep, depth=depth),
            operands=(tensor("x", "rows d", "fp32"), output("out", "rows one", "fp32")),
            profiles=(Profile("float32", {"out": "fp32"}),), row_dims=("rows",),
            shapes=({"rows": 3, "d": 128, "one": 1},), freedoms={"sum": "a test"},
            not_applicable={"exact": "a test"},
        )  # fmt: skip
        return Kernel(contract, {}, contract.profiles[0])

    case = typical_case(kernel(None), kernel(None).contract.shapes[0], 0)
    same(
        case_range(kernel(contracts), case, None, {"sum": own})["out"],
        case_range(kernel(judged), case)["out"],
    )
    # and the widths do tell depths apart
    assert case_range(kernel(4), case)["out"].widest < case_range(kernel(8), case)["out"].widest
