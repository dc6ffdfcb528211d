"""Known kinds of kernel fault: on each small input the right value is accepted and the faulty ones are refused.

Most are judged by this project's contracts; where the operator has none yet, by a few lines declared here. Bit-exact
values are literals, the others float64 rounded once. The last part holds three faults that checks themselves have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

import contract.kernels.add_rms_tail
import contract.kernels.cast
import contract.kernels.geglu
import contract.kernels.gelu
import contract.kernels.layer_norm
import contract.kernels.linear
import contract.kernels.quantize_int8
import contract.kernels.rms_norm
import contract.kernels.softcap
import contract.kernels.swiglu
from contract import Contract, Profile, formats, output, tensor
from contract.case import Case, Kernel, find, make_case, shape_from, take_rows
from contract.declare import Operand, Scalar
from contract.functions import erf
from contract.inputs import shape_list
from contract.judge import Bench, Subject
from contract.ranges import OutputRange, case_range, option_sets
from contract.readings.base import Quantity, Reading
from contract.worker import Worker

assert contract.kernels.rms_norm.rms_norm.name == "rms_norm"

F8 = NDArray[np.float64]
NAN, INF = np.nan, np.inf


@dataclass(frozen=True)
class Example:
    """One input with its right outputs and the faulty ones, as float64 (rounded to the output's format)."""

    kernel: Kernel
    inputs: Mapping[str, Any]
    right: Any
    faulty: Mapping[str, Any]
    scalars: Mapping[str, float] = field(default_factory=dict)

    def case(self) -> Case:
        shapes = {name: np.shape(x) for name, x in self.inputs.items()}
        sizes = shape_from(self.kernel, shapes)
        return make_case(self.kernel, sizes, self.inputs, self.scalars)

    def refused(self, outputs: Any) -> int:
        """How many outputs are not allowed, under the option that allows most."""
        names = [operand.name for operand in self.kernel.outputs()]
        given = outputs if isinstance(outputs, Mapping) else {names[0]: outputs}
        case, counts = self.case(), []
        for options in option_sets(self.kernel):
            allowed = case_range(self.kernel, case, options)
            counts.append(sum(count(allowed[name], given[name]) for name in names))
        return min(counts)


def count(allowed: OutputRange, values: ArrayLike) -> int:
    x = np.broadcast_to(np.asarray(values, np.float64), allowed.lo.shape)
    return int(allowed.refused(formats.encode(formats.round_to(x, allowed.fmt), allowed.fmt)).sum())


def local(
    reference: Callable[..., Any],
    operands: tuple[Operand, ...],
    points: Mapping[str, str],
    *,
    freedoms: tuple[str, ...] = (),
    scalars: tuple[Scalar, ...] = (),
    saturate: tuple[str, ...] = (),
    keeps_subnormals: bool = False,
) -> Kernel:
    """A contract that is declared here and registered nowhere."""
    dims = {dim for operand in operands for dim in operand.dims}
    profile = Profile(
        "stated",
        points,
        overflow=dict.fromkeys(saturate, "saturate"),
        keeps_subnormals=keeps_subnormals,
    )
    declared = Contract(
        name=reference.__name__,
        family="cases",
        reference=reference,
        operands=operands,
        profiles=(profile,),
        row_dims=("rows",),
        shapes=(dict.fromkeys(dims, 1),),
        scalars=scalars,
        freedoms=dict.fromkeys(freedoms, "stated here"),
        not_applicable={"exact": "judged on literal rows"},
    )
    return Kernel(declared, {}, profile)


EXAMPLES: dict[str, Callable[[], Example]] = {}


def example(make: Callable[[], Example]) -> Callable[[], Example]:
    EXAMPLES[make.__name__] = make
    return make


def f32(x: ArrayLike) -> F8:
    """fp32 values, as float64."""
    return np.asarray(x, np.float32).astype(np.float64)


def bf16(x: ArrayLike, mode: Any = "nearest_even") -> F8:
    return formats.round_to(np.asarray(x, np.float64), "bf16", mode)


def normed(x: F8, eps: float) -> F8:
    return np.asarray(x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + eps))


# ---- norms


@example
def the_variance_of_a_constant_row_is_zero() -> Example:
    """mean(x^2) - mean(x)^2 is negative in fp32 at 3001.5, and its root NaN."""
    bias = f32(np.linspace(-1.0, 1.0, 64))
    row = {"x": np.full((1, 64), 3001.5), "weight": np.full(64, 1.25), "bias": bias}
    kernel = find("layer_norm", "float32")
    return Example(kernel, row, bias[None], {"one_pass": np.full((1, 64), NAN)}, {"eps": 1e-5})


@example
def squares_do_not_overflow() -> Example:
    """300^2 and 4096^2 are infinities in fp16, and 1 / sqrt(inf) is 0."""
    row = {"x": np.repeat([[300.0], [4096.0]], 64, -1), "weight": np.full(64, 0.75)}
    kernel = find("rms_norm", "once")
    return Example(kernel, row, 0.75, {"squares_in_fp16": 0.0}, {"eps": 1e-6})


@example
def one_plus_w_is_not_rounded() -> Example:
    """1 + 0.0107421875 is 1.0078125 in bf16."""
    row = {"x": [[1.0, 2.0, 3.0, 4.0]], "weight": [0.0107421875] * 4}
    right = [[0.369140625, 0.73828125, 1.109375, 1.4765625]]
    x = normed(np.array([[1.0, 2.0, 3.0, 4.0]]), 1e-6)
    faulty = {"sum_in_bf16": bf16(x * 1.0078125), "gain_w": bf16(x * 0.0107421875)}
    return Example(find("rms_norm", "once", {"gain": "1+w"}), row, right, faulty, {"eps": 1e-6})


@example
def the_normed_row_is_not_rounded_before_the_gain() -> Example:
    row = {"x": [[1.0, -0.5, -3.5, -1.0]], "weight": [1.8046875, 1.8125, 1.96875, 1.1796875]}
    right = [[0.94921875, -0.4765625, -3.625, -0.62109375]]
    twice = bf16(bf16(normed(np.array(row["x"]), 1e-6)) * np.array(row["weight"]))
    return Example(find("rms_norm", "once"), row, right, {"two_roundings": twice}, {"eps": 1e-6})


@example
def eps_keeps_small_rows_small() -> Example:
    """A row of zeros gives zeros; 1e-7 stays far below 1 where eps is 1e-5."""
    x = f32([[0.0] * 4, [1e-4, 1e-4, -1e-4, 1e-4], [1e-7, -1e-7, 1e-7, -1e-7]])
    without = np.concatenate([np.full((1, 4), NAN), np.sign(x[1:])])
    faulty = {"no_eps": without, "zero_row_mended": np.nan_to_num(without)}
    row = {"x": x, "weight": np.ones(4)}
    return Example(find("rms_norm", "float32"), row, normed(x, 1e-5), faulty, {"eps": 1e-5})


@example
def the_norm_reads_the_sum_that_is_named() -> Example:
    """The stream is stored as bf16(x + h); a fused tail takes its statistics from x + h itself."""
    x = np.array([[0.011474609375, 0.0062255859375, 0.00299072265625, -0.00872802734375]])
    h = np.array([[2.828125, 1.9921875, 2.015625, 2.875]])
    stored = np.array([[2.84375, 2.0, 2.015625, 2.859375]])
    right = np.array([[1.1484375, 0.80859375, 0.81640625, 1.1640625]])
    kernel = find("add_rms_tail", "fused", {"branch_norm": "no"})
    faulty = {
        "reads_the_stored": {"total": stored, "out": bf16(normed(stored, 1e-6))},
        "stream_truncated": {"total": bf16(x + h, "toward_zero"), "out": right},
        "branch_alone": {"total": stored, "out": bf16(normed(x, 1e-6))},
    }
    row = {"x": x, "residual": h, "weight": np.ones(4)}
    return Example(kernel, row, {"total": stored, "out": right}, faulty, {"eps": 1e-6})


@example
def a_row_of_odd_width_keeps_to_itself() -> Example:
    """Stores in pairs write over the next row's first column, or leave the last one out."""
    x = np.arange(3 * 517, dtype=np.float64).reshape(3, 517) * 7 % 17 - 8.0
    right = normed(x, 1e-6)
    spill, short = right.copy(), right.copy()
    spill[1:, 0] = 0.0
    short[:, -1] = 0.0
    row = {"x": x, "weight": np.ones(517)}
    faulty = {"spill": spill, "tail_dropped": short}
    return Example(find("rms_norm", "float32"), row, right, faulty, {"eps": 1e-6})


@example
def eps_stands_under_the_root_of_a_length() -> Example:
    """x / sqrt(sum x^2 + eps)."""

    def l2norm(r: Reading, x: Quantity) -> Quantity:
        return r.round("out", x * r.rsqrt(r.sum(r.square(x)) + 1e-6, ulps=2))

    operands = (tensor("x", "rows d", "fp32"), output("out", "rows d", "fp32"))
    kernel = local(l2norm, operands, {"out": "fp32"}, freedoms=("sum", "rsqrt"))
    x = f32([[0.0, 0.0], [1e-4, 0.0], [6e-4, 8e-4], [3.0, 4.0]])
    square = np.square(x).sum(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        none = x / np.sqrt(square)
    faulty = {
        "no_eps": none,
        "zero_row_mended": np.nan_to_num(none),
        "outside_the_root": x / (np.sqrt(square) + 1e-6),
        "length_clamped": x / np.maximum(np.sqrt(square), 1e-6),
    }
    return Example(kernel, {"x": x}, x / np.sqrt(square + 1e-6), faulty)


# ---- activations


def gelu_tanh(x: F8) -> F8:
    """x / (1 + exp(-2u)), which keeps the digits of the negative tail."""
    u = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
    e = np.exp(-2.0 * np.abs(u))
    return np.asarray(np.where(u >= 0, x, x * e) / (1.0 + e))


@example
def tanh_of_large_arguments_is_one() -> Example:
    """(exp(2u) - 1) / (exp(2u) + 1) is inf / inf."""
    x = np.array([[-1e4, -100.0, -13.5, -10.5, 0.0, 10.5, 13.5, 100.0, 1e4]])
    right = gelu_tanh(x)
    both = np.where(np.abs(x) > 10, NAN, right)
    faulty = {"inf_over_inf": both, "positive_side": np.where(x > 10, NAN, right)}
    return Example(find("gelu", "float32"), {"x": x}, right, faulty)


def two_forms(form: str, other: str) -> Example:
    x = np.array([[-3.0, -2.5, -2.25, 2.25, 2.5, 3.0]])
    values = {"tanh": gelu_tanh(x), "erf": 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))}
    kernel = find("gelu", "float32", {"form": form})
    return Example(kernel, {"x": x}, values[form], {other: values[other]})


EXAMPLES["the_tanh_form_is_not_erf"] = lambda: two_forms("tanh", "erf")
EXAMPLES["the_erf_form_is_not_tanh"] = lambda: two_forms("erf", "tanh")


def silu(x: F8) -> F8:
    return np.asarray(x / (1.0 + np.exp(-x)))


@example
def silu_is_not_rounded_before_the_product() -> Example:
    gate = np.array([[2.390625, 2.84375, -0.90625, 2.296875, -1.15625, 1.890625]])
    up = np.array([[1.90625, -1.7421875, -3.625, 3.546875, -3.875, 0.451171875]])
    right = [[4.1875, -4.6875, 0.9453125, 7.40625, 1.0703125, 0.7421875]]
    twice = {"two_roundings": bf16(bf16(silu(gate)) * up)}
    return Example(find("swiglu", "once"), {"gate": gate, "up": up}, right, twice)


@example
def the_first_half_is_the_gate() -> Example:
    """A fused row holds gate and up; silu acts on the gate."""
    row = np.array([[1.0, -1.0, 2.0, 10.0, 20.0, 30.0]])
    gate, up = row[:, :3], row[:, 3:]
    faulty = {"up_first": silu(up) * gate, "interleaved": silu(row[:, 0::2]) * row[:, 1::2]}
    kernel = find("swiglu", "float32")
    return Example(kernel, {"gate": gate, "up": up}, silu(gate) * up, faulty)


@example
def silu_keeps_its_size_far_below_zero() -> Example:
    """A fast divide gives 0 from a divisor of 2^126 on, that is below -87.34."""
    x = np.array([[-80.0, -87.0, -87.5, -88.0, -88.5]])
    zeroed = np.where(1.0 + np.exp(-x) > 2.0**126, -0.0, silu(x))
    inputs = {"gate": x, "up": np.ones((1, 5))}
    return Example(find("swiglu", "float32"), inputs, silu(x), {"zeroed": zeroed})


@example
def the_cap_bounds_what_it_divides() -> Example:
    x = np.array([[-100.0, -60.0, -15.0, 0.0, 1.0, 15.0, 30.0, 60.0, 100.0]])
    faulty = {
        "times_x": x * np.tanh(x / 30.0),
        "not_capped": x,
        "not_divided": 30.0 * np.tanh(x),
    }
    right = 30.0 * np.tanh(x / 30.0)
    return Example(find("softcap", "float32"), {"x": x}, right, faulty, {"cap": 30.0})


@example
def the_cap_is_applied_once() -> Example:
    """The largest logit is the same one after no cap and after two."""
    x = np.array([[29.0, 45.0, 60.0, -90.0]])
    once = 30.0 * np.tanh(x / 30.0)
    faulty = {"none": x, "twice": 30.0 * np.tanh(once / 30.0)}
    return Example(find("softcap", "float32"), {"x": x}, once, faulty, {"cap": 30.0})


# ---- narrow floats


def overflow(profile: str) -> Example:
    x = f32([[448, 464, 464.00003, 480, 1e4, -1e4, INF, -INF, NAN, -0.0]])
    saturated = np.array([[448, 448, 448, 448, 448, -448, 448, -448, NAN, -0.0]])
    to_nan = np.array([[448, 448, NAN, NAN, NAN, NAN, NAN, NAN, NAN, -0.0]])
    right, other = (saturated, to_nan) if profile == "saturate" else (to_nan, saturated)
    faulty = {
        "the_other_policy": other,
        "nan_eaten": np.where(np.isnan(x), -448.0, right),
        "wraps": np.where(np.abs(x) > 464, 0.0, right),
        "zero_sign_lost": right + 0.0,
    }
    return Example(find("cast", profile, {"to": "e4m3fn"}), {"x": x}, right, faulty)


EXAMPLES["what_overflows_saturates"] = lambda: overflow("saturate")
EXAMPLES["what_overflows_is_nan"] = lambda: overflow("nan")


@example
def the_top_binades_are_used() -> Example:
    """e4m3fn has seven values from 256 up."""
    x = np.array([[240.0, 256.0, 264.0, 272.0, 288.0, 304.0, 416.0, 432.0, 448.0]])
    right = [[240.0, 256.0, 256.0, 256.0, 288.0, 320.0, 416.0, 448.0, 448.0]]
    faulty = {
        "saturates_early": np.where(x >= 256, 448.0, right),
        "half_up": formats.round_to(x, "e4m3fn", "half_away"),
    }
    return Example(find("cast", "nan", {"to": "e4m3fn"}), {"x": x}, right, faulty)


@example
def eight_bits_are_rounded_to_once() -> Example:
    """fp16 on the way makes a tie of what lies beside one."""
    x = f32([[1.3125 + 2**-18, 1.4375 - 2**-18, -1.3125 - 2**-18, 18.5 * 2**-9 + 2**-24, 1.3125]])
    right = [[1.375, 1.375, -1.375, 0.03515625, 1.25]]
    faulty = {
        "through_fp16": formats.round_to(formats.round_to(x, "fp16"), "e4m3fn"),
        "ties_away": formats.round_to(x, "e4m3fn", "half_away"),
    }
    return Example(find("cast", "nan", {"to": "e4m3fn"}), {"x": x}, right, faulty)


@example
def bf16_is_nearest_even_on_the_word() -> Example:
    """Also where the carry reaches the exponent or infinity; a NaN stays one, whatever its payload."""
    words = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x3FFF8000, 0x7F7F7FFF, 0x7F7F8000,
             0x7F800001, 0xFF800001, 0x7F800000, 0x80000000, 0x00008000, 0x00008001, 0x00018000,
             0x80000001, 0x80018000, 0x007F8000, 0x3EAAAAAB]  # fmt: skip
    halves = [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x4000, 0x7F7F, 0x7F80,
              0x7FC0, 0xFFC0, 0x7F80, 0x8000, 0x0000, 0x0001, 0x0002,
              0x8000, 0x8002, 0x0080, 0x3EAB]  # fmt: skip
    x = np.array([words], np.uint32)
    right = formats.decode(np.array([halves], np.uint16), "bf16")
    cut = formats.decode((x >> 16).astype(np.uint16), "bf16")
    away = formats.decode(((x + 0x8000) >> 16).astype(np.uint16), "bf16")
    tiny = np.abs(right) < 2.0**-126
    faulty = {
        "truncated": np.where(np.isnan(right), right, cut),
        "ties_away": np.where(np.isnan(right), right, away),
        "nan_to_infinity": np.where(np.isnan(right), cut, right),
        "flushed": np.where(tiny, np.copysign(0.0, right), right),
        "zero_sign_lost": right + 0.0,
    }
    return Example(find("cast", "inf", {"to": "bf16"}), {"x": x}, right, faulty)


@example
def codes_below_the_normal_ones_have_no_hidden_bit() -> Example:
    """e4m3fn codes 1 to 7 are that many 2^-9; 0x80 is -0, 0x7f and 0xff are NaN."""

    def decode_e4m3fn(r: Reading, code: Quantity) -> Quantity:
        return r.round("out", code)

    operands = (tensor("code", "rows n", "e4m3fn"), output("out", "rows n", "fp32"))
    kernel = local(decode_e4m3fn, operands, {"out": "fp32"})
    codes = [0x00, 0x01, 0x03, 0x07, 0x08, 0x7E, 0x7F, 0x80, 0x81, 0x87, 0xFE, 0xFF]
    unit = 2.0**-9
    values = [0.0, 1.0, 3.0, 7.0, 8.0, 448 / unit, NAN, -0.0, -1.0, -7.0, -448 / unit, NAN]
    right = np.array([values]) * unit
    hidden = right.copy()
    # (1 + m / 8) 2^-7 in place of m 2^-9
    hidden[0, [1, 2, 3, 8, 9]] = [9 / 1024, 11 / 1024, 15 / 1024, -9 / 1024, -15 / 1024]
    faulty = {
        "hidden_bit": hidden,
        "zero_sign_lost": right + 0.0,
        "top_code_finite": np.where(np.isnan(right), 480.0, right),
    }
    return Example(kernel, {"code": np.array([codes], np.uint8)}, right, faulty)


@example
def fn_codes_become_fnuz_codes_of_half_the_value() -> Example:
    """The same bytes, the scale doubled; 0x80, the -0 of the one, is the NaN of the other."""

    def fn_to_fnuz(r: Reading, code: Quantity, scale: Quantity) -> dict[str, Quantity]:
        return {"halved": r.round("halved", code * 0.5), "doubled": r.round("doubled", scale * 2.0)}

    operands = (
        tensor("code", "rows n", "e4m3fn"),
        tensor("scale", "", "fp32"),
        output("halved", "rows n", "e4m3fnuz"),
        output("doubled", "", "fp32"),
    )
    kernel = local(fn_to_fnuz, operands, {"halved": "e4m3fnuz", "doubled": "fp32"})
    codes = np.array([[0x00, 0x01, 0x08, 0x38, 0x7E, 0x80, 0x81, 0xB8]], np.uint8)
    halved = np.array([[0.0, 2**-10, 2**-7, 0.5, 224.0, 0.0, -(2**-10), -0.5]])
    faulty = {
        "scale_not_doubled": {"halved": halved, "doubled": 0.5},
        "byte_kept": {"halved": np.where(codes == 0x80, NAN, halved), "doubled": 1.0},
        "read_as_fn": {"halved": halved * 2.0, "doubled": 1.0},
    }
    right = {"halved": halved, "doubled": 1.0}
    return Example(kernel, {"code": codes, "scale": np.array(0.5)}, right, faulty)


@example
def a_block_scale_is_the_next_power_of_two() -> Example:
    """amax / scale <= 448, and no smaller power would do."""

    def e8m0_scale(r: Reading, amax: Quantity) -> Quantity:
        # stored as fp32, which holds every power but the lowest as a normal number
        return r.round("out", r.round("power", amax / 448.0, mode="up"))

    operands = (tensor("amax", "rows n", "fp32"), output("out", "rows n", "fp32"))
    amax = f32([[448.0, 449.0, 1000.0, 600.0, 3.5, 3.51, 896.0, 0.0017]])
    exponents = np.array([[0.0, 1.0, 2.0, 1.0, -7.0, -6.0, 1.0, -18.0]])
    needed = np.log2(amax / 448.0)
    faulty = {
        "nearest": np.exp2(np.rint(needed)),
        "floor": np.exp2(np.floor(needed)),
        "powers_doubled": np.exp2(np.floor(needed) + 1.0),
    }
    kernel = local(e8m0_scale, operands, {"power": "e8m0", "out": "fp32"})
    return Example(kernel, {"amax": amax}, np.exp2(exponents), faulty)


@example
def a_block_of_zeros_has_a_scale() -> Example:
    """0 / 0 where the scale is max / 448."""

    def quantize_block_e4m3(r: Reading, x: Quantity) -> dict[str, Quantity]:
        largest = r.max(r.abs(x))
        ones = largest * 0.0 + 1.0
        scale = r.where(r.less(largest * 0.0, largest), r.round("scale", largest / 448.0), ones)
        return {"codes": r.round("code", x / scale), "scale": r.round("scale", scale.reshape(-1))}

    operands = (
        tensor("x", "rows d", "fp32", finite=True),
        output("codes", "rows d", "e4m3fn"),
        output("scale", "rows", "fp32"),
    )
    points = {"scale": "fp32", "code": "e4m3fn"}
    kernel = local(quantize_block_e4m3, operands, points, saturate=("code",))
    x = np.array([[0.0, 0.0, 0.0, 0.0], [-448.0, 0.0, 1.0, 224.0], [0.0, -0.0, 0.0, 0.0]])
    zeros = np.array([[True], [False], [True]])
    right = {"codes": x, "scale": [1.0, 1.0, 1.0]}
    faulty = {
        "nan_codes": {"codes": np.where(zeros, NAN, x), "scale": [1.0, 1.0, 1.0]},
        "zero_scale": {"codes": x, "scale": [0.0, 1.0, 0.0]},
        "saturated": {"codes": np.where(zeros, 448.0, x), "scale": [1.0, 1.0, 1.0]},
    }
    return Example(kernel, {"x": x}, right, faulty)


@example
def a_scale_is_rounded_before_it_is_used() -> Example:
    """sqrt(3584) is 59.75 in bf16, and 59.867 not rounded."""
    root = math.sqrt(3584.0)

    def embed_scale(r: Reading, row: Quantity) -> Quantity:
        return r.round("out", row * r.round("scale", row * 0.0 + root))

    operands = (tensor("row", "rows d"), output("out", "rows d"))
    kernel = local(embed_scale, operands, {"scale": "bf16", "out": "bf16"})
    row = np.array([[1.0, 0.7109375, -2.65625, 0.005706787109375, 3.453125]])
    right = [[59.75, 42.5, -159.0, 0.341796875, 206.0]]
    return Example(kernel, {"row": row}, right, {"not_rounded": bf16(row * root)})


# ---- integers


@example
def halves_of_a_code_go_to_the_even_one() -> Example:
    """254 makes the scale 2."""
    x = np.array([[-5.0, -3.0, -1.0, 1.0, 3.0, 5.0, 7.0, -7.0, 2.0, 0.0, 254.0]])
    right = {"codes": [[-2, -2, 0, 0, 2, 2, 4, -4, 1, 0, 127]], "scale": 2.0}
    away = [[-3, -2, -1, 1, 2, 3, 4, -4, 1, 0, 127]]
    floor_half = [[-2, -1, 0, 1, 2, 3, 4, -3, 1, 0, 127]]
    faulty = {
        "away": {"codes": away, "scale": 2.0},
        "floor_of_x_plus_half": {"codes": floor_half, "scale": 2.0},
        "codes_to_128": {"codes": right["codes"], "scale": 254 / 128},
    }
    return Example(find("quantize_int8", "divide"), {"x": x}, right, faulty)


@example
def the_zero_point_is_added_before_the_clamp() -> Example:
    def requantize_int8(r: Reading, acc: Quantity, zero_point: float) -> Quantity:
        return r.round("code", acc + zero_point)

    operands = (tensor("acc", "rows n", "int32"), output("code", "rows n", "int8"))
    kernel = local(
        requantize_int8, operands, {"code": "int8"}, scalars=(Scalar("zero_point", (10.0,)),)
    )
    acc = np.array([[120, 117, 118, 127, 200, -128, -300, 0]])
    right = [[127, 127, 127, 127, 127, -118, -128, 10]]
    faulty = {
        "added_after": [[-126, 127, -128, -119, -119, -118, -118, 10]],
        "no_clamp": [[-126, 127, -128, -119, -46, -118, -34, 10]],
    }
    return Example(kernel, {"acc": acc}, right, faulty)


@example
def pairs_of_byte_products_do_not_fit_16_bits() -> Example:
    def dot_u8s8(r: Reading, a: Quantity, b: Quantity) -> Quantity:
        return r.round("out", r.sum(a * b).reshape(-1))

    operands = (
        tensor("a", "rows k", "uint8"),
        tensor("b", "rows k", "int8"),
        output("out", "rows", "int32"),
    )
    kernel = local(dot_u8s8, operands, {"out": "int32"}, freedoms=("sum",))
    a = np.array([[255.0, 255.0], [255.0, 255.0], [1.0, 2.0]])
    b = np.array([[127.0, 127.0], [-128.0, -128.0], [3.0, -4.0]])
    faulty = {"saturated": [32767, -32768, -5], "wrapped": [-766, 256, -5]}
    return Example(kernel, {"a": a, "b": b}, [64770, -65280, -5], faulty)


# ---- what compilers do


ABC = ("a", "b", "c", "d")
FOUR = (*(tensor(name, "rows n", "fp32") for name in ABC), output("out", "rows n", "fp32"))
PRODUCTS = {"product": "fp32", "other": "fp32", "out": "fp32"}


def cancelling() -> tuple[dict[str, F8], F8]:
    """a b + c d with c = -a, d = b; and a b - fl(a b), which a fused multiply-add gives."""
    a, b = f32([[1 + 2**-12, 3.1415927, 1e-3]]), f32([[1 + 2**-12, 2.7182817, 1e6]])
    # 48 bits: exact in float64, and so is the difference
    return {"a": a, "b": b, "c": -a, "d": b}, a * b - f32(a * b)


@example
def equal_products_cancel_where_none_is_fused() -> Example:
    def mul_add(r: Reading, a: Quantity, b: Quantity, c: Quantity, d: Quantity) -> Quantity:
        return r.round("out", r.round("product", a * b) + r.round("other", c * d))

    inputs, residue = cancelling()
    assert np.abs(residue).min() > 0
    return Example(local(mul_add, FOUR, PRODUCTS), inputs, np.zeros((1, 3)), {"fused": residue})


@example
def a_fused_product_leaves_its_rounding_error() -> Example:
    def fused_mul_add(r: Reading, a: Quantity, b: Quantity, c: Quantity, d: Quantity) -> Quantity:
        return r.round("out", r.fma(a, b, r.round("other", c * d), fused="yes"))

    inputs, residue = cancelling()
    kernel = local(fused_mul_add, FOUR, {"other": "fp32", "out": "fp32"})
    return Example(kernel, inputs, residue, {"separate": np.zeros((1, 3))})


def power_of_two(keeps: bool) -> Kernel:
    def power(r: Reading, high: Quantity, low: Quantity) -> Quantity:
        return r.round("out", high * low)

    operands = (
        tensor("high", "rows n", "fp32"),
        tensor("low", "rows n", "fp32"),
        output("out", "rows n", "fp32"),
    )
    return local(power, operands, {"out": "fp32"}, keeps_subnormals=keeps)


def down_to_nothing() -> tuple[dict[str, F8], F8, F8]:
    """2^x from 2^-75 2^(x + 75); kept, 2^-149 is the last, and the tie 2^-150 rounds to 0; flushed, 2^-126 is."""
    x = np.array([[-125.0, -126.0, -127.0, -140.0, -149.0, -150.0]])
    kept = np.where(x < -149, 0.0, np.exp2(x))
    inputs = {"high": np.exp2(x + 75.0), "low": np.full((1, 6), 2.0**-75)}
    return inputs, kept, np.where(x < -126, 0.0, kept)


@example
def subnormal_results_are_kept_where_the_contract_says_so() -> Example:
    inputs, kept, flushed = down_to_nothing()
    return Example(power_of_two(True), inputs, kept, {"flushed": flushed})


@example
def subnormal_results_may_be_flushed_where_it_does_not() -> Example:
    inputs, _, flushed = down_to_nothing()
    normal = np.where(flushed == 0, 2.0**-126, flushed)
    return Example(power_of_two(False), inputs, flushed, {"normal": normal})


@example
def a_pair_of_casts_is_not_removed() -> Example:
    """fp32 to bf16 and back, then an addition."""

    def round_trip_add(r: Reading, x: Quantity, b: Quantity) -> Quantity:
        return r.round("out", r.round("narrow", x) + b)

    operands = (
        tensor("x", "rows n", "fp32"),
        tensor("b", "rows n", "fp32"),
        output("out", "rows n", "fp32"),
    )
    kernel = local(round_trip_add, operands, {"narrow": "bf16", "out": "fp32"})
    x, b = f32([[1.00390625, 1.0087890625, -3.14159, 257.0]]), f32([[0.5, 2**-9, 1.0, 1.0]])
    right = [[1.5, 1.009765625, -2.140625, 257.0]]
    faulty = {"removed": f32(x + b), "rounded_after": bf16(x + b)}
    return Example(kernel, {"x": x, "b": b}, right, faulty)


@example
def fp32_factors_keep_their_24_bits() -> Example:
    """12-bit integers do not fit tf32's 11 bits; their products and sums are exact in fp32."""

    def matmul(r: Reading, a: Quantity, b: Quantity) -> Quantity:
        return r.round("out", r.sum(a * b).reshape(-1))

    operands = (
        tensor("a", "rows k", "fp32"),
        tensor("b", "k", "fp32"),
        output("out", "rows", "fp32"),
    )
    kernel = local(matmul, operands, {"out": "fp32"}, freedoms=("sum",))
    a, b = np.array([[2049.0, 4095.0, 1025.0, 3001.0]]), np.array([1.0, 1.0, 2.0, -1.0])
    faulty = {fmt: formats.round_to(a, fmt) @ b for fmt in ("tf32", "bf16")}
    return Example(kernel, {"a": a, "b": b}, [5193.0], faulty)


def merge_states(
    r: Reading, out_a: Quantity, lse_a: Quantity, out_b: Quantity, lse_b: Quantity
) -> dict[str, Quantity]:
    """Two softmax-weighted means with their log-sum-exps become that of both."""
    top = r.maximum(lse_a, lse_b)
    base = r.where(r.less(top, -3e38), r.exactly(np.zeros(top.shape)), top)
    a, b = r.exp(lse_a - base), r.exp(lse_b - base)
    total = a + b
    # above its maximum a sum of two weights is 1 at least
    none = r.less(total, 0.5)
    safe = r.where(none, r.exactly(np.ones(total.shape)), total)
    lse = r.where(none, r.exactly(np.full(total.shape, -np.inf)), base + r.log(safe))
    return {"out": r.round("out", (out_a * a + out_b * b) / safe), "lse": r.round("lse", lse)}


def merging() -> Kernel:
    out = [tensor(f"out_{x}", "rows d", "fp32") for x in "ab"]
    lse = [tensor(f"lse_{x}", "rows one", "fp32") for x in "ab"]
    operands = (out[0], lse[0], out[1], lse[1],
                output("out", "rows d", "fp32"), output("lse", "rows one", "fp32"))  # fmt: skip
    points = {"out": "fp32", "lse": "fp32"}
    return local(merge_states, operands, points, freedoms=("exp", "log"))


@example
def an_empty_state_leaves_the_other_one_and_two_stay_empty() -> Example:
    """-inf - -inf is NaN."""
    inputs = {
        "out_a": [[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]],
        "lse_a": [[-INF], [-INF], [1.5]],
        "out_b": [[0.0, 0.0], [5.0, 6.0], [0.0, 0.0]],
        "lse_b": [[-INF], [0.25], [-INF]],
    }
    out, lse = np.array([[0.0, 0.0], [5.0, 6.0], [3.0, 4.0]]), np.array([[-INF], [0.25], [1.5]])
    nan = np.array([[NAN], [0.0], [0.0]])
    faulty = {
        "nan": {"out": out + nan, "lse": lse + nan},
        "empty_has_a_log_sum": {"out": out, "lse": np.array([[0.0], [0.25], [1.5]])},
    }
    return Example(merging(), inputs, {"out": out, "lse": lse}, faulty)


@example
def log_sum_exps_are_merged_in_the_base_they_are_in() -> Example:
    """Scores 0.5, 3 | -1, 6 with values 1, 10 | 100, 1000: the parts give what one pass over all four gives."""
    scores, v = np.array([[0.5, 3.0], [-1.0, 6.0]]), np.array([[1.0, 10.0], [100.0, 1000.0]])
    parts = np.exp(scores)
    means, logs = (parts * v).sum(-1) / parts.sum(-1), np.log(parts.sum(-1))
    inputs = {
        "out_a": means[:1, None],
        "lse_a": logs[:1, None],
        "out_b": means[1:, None],
        "lse_b": logs[1:, None],
    }
    out, lse = (parts * v).sum() / parts.sum(), np.log(parts.sum())
    assert abs(out - 948.622194) < 1e-6
    w = np.exp(logs / math.log(2.0))
    faulty = {
        "base_two": {"out": w @ means / w.sum(), "lse": np.log(w.sum())},
        "units": {"out": out, "lse": lse / math.log(2.0)},
    }
    return Example(merging(), inputs, {"out": out, "lse": lse}, faulty)


@pytest.mark.parametrize("make", EXAMPLES.values(), ids=EXAMPLES)
def test_right_values_are_accepted_and_faulty_ones_refused(make: Callable[[], Example]) -> None:
    one = make()
    assert one.faulty
    assert one.refused(one.right) == 0
    for name, outputs in one.faulty.items():
        assert one.refused(outputs) > 0, name


def test_kept_subnormals_are_allowed_where_flushing_is() -> None:
    inputs, kept, _ = down_to_nothing()
    assert Example(power_of_two(False), inputs, kept, {}).refused(kept) == 0


# ---- faults that checks have had


def gelu_in_fp32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The tanh form, each step an fp32 one."""
    inner = np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)
    squashed = np.tanh(inner.astype(np.float64)).astype(np.float32)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + squashed), np.float32)


def test_a_right_fp32_kernel_is_accepted_across_a_cancellation() -> None:
    """1 + tanh(u) cancels below -2: float64's value is thousands of ulps from fp32's, and only fp32's was asked for."""
    x = np.linspace(-5.0, -3.0, 257, dtype=np.float32)[None]
    got = gelu_in_fp32(x)
    wide = gelu_tanh(x.astype(np.float64))
    bits = formats.encode(f32(got), "fp32"), formats.encode(f32(wide), "fp32")
    assert np.median(formats.ulp_distance(*bits, "fp32")) > 64
    one = Example(find("gelu", "float32"), {"x": x}, got, {})
    assert one.refused(got) == 0
    assert one.refused(wide) == 0
    assert one.refused(f32(got) - 1e-5) == got.size
    # the same under a gate, in bf16: the sum decides the outputs there as well
    gated = {"gate": bf16(x), "up": np.ones_like(x)}
    rounded = bf16(gelu_in_fp32(bf16(x).astype(np.float32)))
    kernel = find("geglu", "once")
    assert (rounded != bf16(gelu_tanh(bf16(x)))).any()
    assert Example(kernel, gated, rounded, {}).refused(rounded) == 0
    assert Example(kernel, gated, rounded, {}).refused(rounded - 1e-4) == got.size


def test_two_orders_of_a_row_are_right_and_are_not_the_same_bits() -> None:
    """A row's sum in one piece or in four: each is allowed, so that only a comparison of batches shows a kernel that
    takes the one beside few rows and the other beside many (gate `invariance`, where batch is declared invariant)."""
    i = np.arange(4096)
    row = ((i * 7919) % 2003 - 1001) * np.exp2((i * 31) % 12 - 6)
    weight = ((i * 104_729) % 1009 - 504) / 64.0

    def total(pieces: int) -> float:
        parts = f32(row * weight).astype(np.float32).reshape(pieces, -1)
        # accumulate adds in order
        sums = np.add.accumulate(parts, axis=1, dtype=np.float32)[:, -1]
        return float(np.add.accumulate(sums, dtype=np.float32)[-1])

    one, four = total(1), total(4)
    assert one != four
    inputs = {"x": row[None], "weight": weight[None], "bias": [0.0]}
    kernel = find("linear", "float32")
    assert Example(kernel, inputs, one, {}).refused(one) == 0
    assert Example(kernel, inputs, one, {}).refused(four) == 0
    # every second term, and half of the weight; the bound of 4096 terms in any order is 0.024 % of their magnitudes
    for faulty in (float(row[::2] @ weight[::2]), one / 2.0):
        assert Example(kernel, inputs, one, {}).refused(faulty) == 1


def pooled(r: Reading, x: Quantity) -> Quantity:
    total = r.sum(x, axis=1)
    return r.round("out", (total * 0.25).reshape(-1, x.shape[2]))


def test_every_declared_row_of_every_shape_is_judged() -> None:
    """A clamp on the rows of one operand would hide shapes, or leave operands that no longer fit each other."""
    shapes = tuple({"rows": rows, "window": 4, "d": 3} for rows in (1, 5, 700, 4099))
    profile = Profile("once", {"out": "bf16"})
    declared = Contract(
        name="pooled",
        family="cases",
        reference=pooled,
        operands=(tensor("x", "rows window d"), output("out", "rows d")),
        profiles=(profile,),
        row_dims=("rows",),
        shapes=shapes,
        freedoms={"sum": "stated here"},
        not_applicable={"exact": "judged on its shapes"},
    )
    kernel = Kernel(declared, {}, profile)
    assert shape_list(kernel, "default") == [dict(shape) for shape in shapes]
    bench = Bench(kernel, "default", 0)
    cases = bench.cases("shapes")
    assert [case.operands["x"].shape for case in cases] == [(n, 4, 3) for n in (1, 5, 700, 4099)]
    subject = Subject(kernel, {"kind": "implementation"}, Worker.__new__(Worker))
    assert [case for _, case in subject.chosen(bench, "shapes")] == cases
    right = bf16(cases[-1].value(kernel, kernel.inputs()[0]).mean(1))
    allowed = bench.range("shapes", 3)["out"]
    assert allowed.lo.shape == (4099, 3)
    assert count(allowed, right) == 0
    # the last row alone is wrong
    right[-1] += 1.0
    assert count(allowed, right) == 3
    # fewer rows, where they are asked for, are fewer of every operand
    part = take_rows(kernel, cases[-1], slice(4090, None))
    assert dict(part.shape) == {"rows": 9, "window": 4, "d": 3}
    assert count(case_range(kernel, part)["out"], right[4090:]) == 3


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_range_with_an_infinite_end_holds_both_of_its_ends_alone(sign: float) -> None:
    """exp within 200 ulps around the value from which bf16 rounds to infinity: the largest bf16, or infinity."""

    def near_overflow(r: Reading, x: Quantity) -> Quantity:
        return r.round("out", r.exp(x, ulps=200) * sign)

    operands = (tensor("x", "rows n", "fp32"), output("out", "rows n"))
    kernel = local(near_overflow, operands, {"out": "bf16"}, freedoms=("exp",))
    x = f32([[math.log(2.0**128 * (1 - 2.0**-9))]])
    top = formats.FORMATS["bf16"].max
    one = Example(kernel, {"x": x}, None, {})
    assert one.refused([[sign * top]]) == 0
    assert one.refused([[sign * INF]]) == 0
    below = float(formats.next_down(np.array(top), "bf16"))
    for wrong in (0.0, -0.0, 1.0, NAN, -sign * INF, -sign * top, sign * below):
        assert one.refused([[wrong]]) == 1, wrong
