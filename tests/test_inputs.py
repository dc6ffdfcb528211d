"""The input sets: typical data kept between kernels, proven rows with their ranges, and the shapes of an effort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from contract import autocontrols, inputs
from contract.case import Kernel, kernels_of, make_case, shape_from
from contract.declare import Contract, Profile, output, tensor
from contract.errors import CaseError, DeclarationError
from contract.gates import invariance
from contract.gates.invariance import _with_other_rows
from contract.inputs import exact_cases, shape_list, size_of, stress_cases, typical_case
from contract.interval import Array
from contract.kernels.add_rms_tail import add_rms_tail
from contract.kernels.embed import embed
from contract.kernels.gelu import gelu
from contract.kernels.layer_norm import layer_norm
from contract.kernels.quantize_int8 import quantize_int8
from contract.kernels.rms_norm import rms_norm
from contract.ranges import case_range, option_sets

SHAPE = {"rows": 5, "d": 24}


def kernel_of(contract: Contract, profile: str, **parameters: str) -> Kernel:
    return Kernel(contract, contract.full_parameters(parameters), contract.profile(profile))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """What typical_case and stress_cases keep, empty at first."""
    found: Kept = {}
    monkeypatch.setattr(inputs, "_kept", found)
    return found


Kept = dict[tuple[Any, ...], tuple[Any, Mapping[str, Array]]]


# Typical data


def test_typical_data_is_the_same_whether_kept_or_fresh(kept: Kept) -> None:
    for kernel in kernels_of(rms_norm):
        first = typical_case(kernel, SHAPE, 3)
        again = typical_case(kernel, dict(reversed(SHAPE.items())), 3)
        kept.clear()
        fresh = typical_case(kernel, SHAPE, 3)
        for name, bits in first.operands.items():
            assert again.operands[name] is bits
            assert fresh.operands[name] is not bits
            np.testing.assert_array_equal(fresh.operands[name], bits, strict=True)


def test_typical_data_is_read_only(kept: Kept) -> None:
    case = typical_case(kernel_of(rms_norm, "once"), SHAPE, 0)
    for bits in case.operands.values():
        with pytest.raises(ValueError, match="read-only"):
            bits[...] = 0


def test_typical_data_is_of_its_format_shape_seed_and_contract(kept: Kept) -> None:
    narrow, wide = kernel_of(rms_norm, "once"), kernel_of(rms_norm, "float32")
    shared = typical_case(narrow, SHAPE, 0).operands
    assert typical_case(kernel_of(rms_norm, "two_step"), SHAPE, 0).operands["x"] is shared["x"]
    assert shared["x"].dtype == np.uint16
    assert typical_case(wide, SHAPE, 0).operands["x"].dtype == np.uint32
    # the wide data comes first too, and nobody's format is that of the other
    assert typical_case(narrow, SHAPE, 0).operands["x"] is shared["x"]
    others = [
        typical_case(narrow, SHAPE, 1),
        typical_case(narrow, {"rows": 24, "d": 5}, 0),
        typical_case(kernel_of(layer_norm, "once"), SHAPE, 0),
    ]
    assert not any(np.array_equal(case.operands["x"], shared["x"]) for case in others)


def test_an_operand_declared_anew_is_drawn_anew(kept: Kept) -> None:
    def kernel(scale: float) -> Kernel:
        contract = Contract(
            name="same", family="sums", reference=lambda r, x: r.round("out", x + x),
            operands=(tensor("x", "rows d", typical=lambda rng, shape: np.full(shape, scale)),
                      output("out", "rows d")),
            profiles=(Profile("once", {"out": "bf16"}),), row_dims=("rows",),
            shapes=(SHAPE,), not_applicable={"exact": "a test"},
        )  # fmt: skip
        return Kernel(contract, {}, contract.profiles[0])

    one, two = (typical_case(kernel(scale), SHAPE, 0).operands["x"] for scale in (1.0, 2.0))
    assert (set(one.ravel().tolist()), set(two.ravel().tolist())) == ({0x3F80}, {0x4000})


def test_memory_of_typical_data_is_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "KEPT_BYTES", 4096)
    most = 0
    for rows in range(1, 40):
        for kernel in kernels_of(rms_norm):
            typical_case(kernel, {"rows": rows, "d": 24}, 0)
            held = sum(x.nbytes for _, made in kept.values() for x in made.values())
            assert held <= inputs.KEPT_BYTES
            most = max(most, held)
    assert most > inputs.KEPT_BYTES / 2


# Stress rows


def test_stress_rows_are_the_same_whether_kept_or_fresh(kept: Kept) -> None:
    kernels = list(kernels_of(rms_norm)) + list(kernels_of(layer_norm))
    held = {kernel.id: stress_cases(kernel, "quick", 3) for kernel in kernels}
    for kernel in kernels:
        kept.clear()
        for first, fresh in zip(held[kernel.id], stress_cases(kernel, "quick", 3), strict=True):
            assert (first.shape, first.scalars, first.label) == (
                fresh.shape,
                fresh.scalars,
                fresh.label,
            )
            assert first.operands.keys() == fresh.operands.keys()
            for name, bits in first.operands.items():
                assert not bits.flags.writeable
                np.testing.assert_array_equal(fresh.operands[name], bits, strict=True)
    once, steps = (held[f"rms_norm/{profile}"] for profile in ("once", "two_step"))
    assert once[0].operands["x"] is steps[0].operands["x"]


def test_operands_of_one_name_and_other_dims_have_their_own_stress_rows(kept: Kept) -> None:
    contract = Contract(
        name="dims", family="sums",
        reference=lambda r, x, w, kind: r.round("out", x * w),
        operands=(tensor("x", "rows d"), tensor("w", "d", when={"kind": ("row",)}),
                  tensor("w", "one", when={"kind": ("one",)}), output("out", "rows d")),
        parameters={"kind": ("row", "one")},
        profiles=(Profile("once", {"out": "bf16"}),), row_dims=("rows",),
        shapes=({**SHAPE, "one": 1},), stress=({"d": 8, "one": 1},),
        not_applicable={"exact": "a test"},
    )  # fmt: skip
    for kind, size in (("row", 8), ("one", 1)):
        (case, *_) = stress_cases(kernel_of(contract, "once", kind=kind), "quick", 0)
        assert case.operands["w"].shape == (size,)


# Proven rows

PARTLY = [
    kernel_of(layer_norm, "once"),
    kernel_of(layer_norm, "float32"),
    kernel_of(gelu, "float32"),
    kernel_of(add_rms_tail, "fused"),
]
WHOLLY = [
    kernel_of(quantize_int8, "divide"),
    kernel_of(quantize_int8, "divide", granularity="channel"),
]


@pytest.mark.parametrize("kernel", [*PARTLY, *WHOLLY], ids=lambda kernel: kernel.id)
def test_proven_rows_come_with_the_ranges_that_they_have(kernel: Kernel) -> None:
    found, candidates = exact_cases(kernel, 0)
    rows = sum(case.rows(kernel) for case, _ in found)
    assert 0 < rows < candidates if kernel in PARTLY else rows == candidates
    for case, ranges in found:
        assert len(ranges) == len(option_sets(kernel))
        for options, given in zip(option_sets(kernel), ranges, strict=True):
            for name, out in case_range(kernel, case, options).items():
                np.testing.assert_array_equal(given[name].lo, out.lo, strict=True)
                np.testing.assert_array_equal(given[name].hi, out.hi, strict=True)
                nan = given[name].nan
                assert nan is None or not nan.any()
                assert given[name].singles == out.singles == out.size
                np.testing.assert_array_equal(given[name].lo, ranges[0][name].lo)


# Shapes


def shaped(*awkward: int, declared: tuple[int, ...] = (1 << 20, 1 << 10, 1 << 16)) -> Kernel:
    """Shapes of these sizes: one dim is 8."""
    contract = Contract(
        name="shaped", family="sums", reference=lambda r, x: r.round("out", x + x),
        operands=(tensor("x", "rows d"), output("out", "rows d")),
        profiles=(Profile("once", {"out": "bf16"}),), row_dims=("rows",),
        shapes=tuple({"rows": 8, "d": n // 8} for n in declared),
        awkward=tuple({"rows": 8, "d": n // 8} for n in awkward),
        not_applicable={"exact": "a test"},
    )  # fmt: skip
    return Kernel(contract, {}, contract.profiles[0])


@pytest.mark.parametrize(
    ("awkward", "quick"),
    [
        ((64, 8, 1 << 13, 1 << 17), [1 << 13, 1 << 10]),
        ((64, 8, 72), [72, 1 << 10]),
        # none is cheap: the smallest
        ((1 << 18, 1 << 17), [1 << 17, 1 << 10]),
        # none at all: the two smallest declared
        ((), [1 << 10, 1 << 16]),
    ],
)
def test_quick_takes_the_largest_cheap_awkward_shape_and_the_smallest_declared(
    awkward: tuple[int, ...], quick: list[int]
) -> None:
    kernel = shaped(*awkward)
    assert [size_of(shape) for shape in shape_list(kernel, "quick")] == quick
    every = [*sorted(awkward), 1 << 10, 1 << 16, 1 << 20]
    assert [size_of(shape) for shape in shape_list(kernel, "default")] == every
    assert shape_list(kernel, "nightly") == shape_list(kernel, "default")


# Kernels


def test_what_a_kernel_keeps_is_its_own() -> None:
    plain = kernel_of(rms_norm, "once")
    bare = kernel_of(rms_norm, "once", gain="none")
    wide = kernel_of(rms_norm, "float32")
    tensor_, channel = (
        kernel_of(quantize_int8, "divide", granularity=g) for g in ("tensor", "channel")
    )
    # twice: the second answer is the kept one
    for _ in range(2):
        assert [o.name for o in plain.inputs()] == ["x", "weight"]
        assert [o.name for o in bare.inputs()] == ["x"]
        assert [o.name for o in tensor_.outputs()] == ["codes", "scale"]
        assert [o.name for o in channel.outputs()] == ["codes", "row_scale"]
        for kernel, name in ((plain, "bf16"), (wide, "fp32"), (bare, "bf16")):
            assert {kernel.format(o).name for o in kernel.inputs()} == {name}
            assert {kernel.format(o).name for o in kernel.outputs()} == {name}
    assert plain.inputs() is plain.inputs()
    assert plain == kernel_of(rms_norm, "once")
    assert plain != bare


def test_a_format_that_a_parameter_names_is_that_of_the_kernel() -> None:
    from contract.kernels.cast import cast

    for kernel in kernels_of(cast):
        (out,) = kernel.outputs()
        (x,) = kernel.inputs()
        assert kernel.format(out).name == kernel.parameters["to"]
        assert kernel.format(x).name == kernel.parameters["source"]


# ---- indices


def lookup(**more: Any) -> Kernel:
    contract = Contract(
        "lookup",
        "test",
        lambda r, ids, table: r.round("out", r.take(table, r.integers(ids))),
        (
            tensor("ids", "rows", "int32", below="vocab"),
            tensor("table", "vocab d"),
            output("out", "rows d"),
        ),
        (Profile("once", {"out": "bf16"}),),
        ("rows",),
        ({"rows": 3, "vocab": 5, "d": 2},),
        stress=({"vocab": 5, "d": 2}, {"vocab": 1, "d": 3}),
        exact=lambda rng, shape, scalars, parameters: {
            "ids": rng.integers(0, shape["vocab"], shape["rows"]),
            "table": rng.integers(-8, 8, (shape["vocab"], shape["d"])),
        },
        **more,
    )
    return kernels_of(contract)[0]


def test_indices_are_drawn_inside_their_table_with_both_ends() -> None:
    kernel = lookup()
    cases = [
        inputs.typical_case(kernel, kernel.contract.shapes[0], 0),
        *inputs.stress_cases(kernel, "default", 0),
        *(case for case, _ in inputs.exact_cases(kernel, 0)[0]),
        autocontrols.tiny_case(kernel),
    ]
    # the gate `invariance` changes what other rows hold
    cases += [_with_other_rows(kernel, cases[1], what) for what in ("other values", "NaN")]
    for case in cases:
        ids = case.value(kernel, kernel.inputs()[0])
        assert ids.min() >= 0
        assert ids.max() < case.shape["vocab"]
    assert {0.0, 4.0} <= set(cases[0].value(kernel, kernel.inputs()[0]))


@pytest.mark.parametrize("wrong", [5, -1])
def test_an_index_outside_is_refused(wrong: int) -> None:
    values = {"ids": np.array([0, wrong, 1]), "table": np.zeros((5, 2))}
    with pytest.raises(CaseError, match=rf"ids holds {wrong}; values are 0 to 4 \(vocab - 1\)"):
        make_case(lookup(), {"rows": 3, "vocab": 5, "d": 2}, values)


def padded() -> Kernel:
    """An index per row, -1 where there is none."""
    contract = Contract(
        "padded",
        "test",
        lambda r, ids, x: r.round("out", r.where(r.less(ids, 0.0), x * 0.0, x)),
        (
            tensor("ids", "rows", "int32", below=3, least=-1),
            tensor("x", "rows"),
            output("out", "rows"),
        ),
        (Profile("once", {"out": "bf16"}),),
        ("rows",),
        ({"rows": 64},),
        stress=({},),
        not_applicable={"exact": "a toy"},
    )
    return kernels_of(contract)[0]


def test_codes_for_what_is_none_are_drawn_and_nothing_below_them() -> None:
    kernel = padded()
    case = inputs.typical_case(kernel, {"rows": 64}, 0)
    for one in (case, *inputs.stress_cases(kernel, "default", 0)):
        assert set(one.value(kernel, kernel.inputs()[0])) == {-1.0, 0.0, 1.0, 2.0}
    with pytest.raises(CaseError, match="ids holds -2; values are -1 to 2"):
        make_case(kernel, {"rows": 1}, {"ids": np.array([-2.0]), "x": np.ones(1)})


@pytest.mark.parametrize("what", ["other values", "NaN"])
def test_other_rows_get_other_indices_and_none_outside(what: str) -> None:
    kernel = padded()
    case = inputs.typical_case(kernel, {"rows": 64}, 0)
    changed = _with_other_rows(kernel, case, what).value(kernel, kernel.inputs()[0])
    was = case.value(kernel, kernel.inputs()[0])
    assert (changed[::2] == was[::2]).all()
    assert (changed[1::2] != was[1::2]).sum() > 8
    assert set(changed) <= {-1.0, 0.0, 1.0, 2.0}


def test_a_case_that_breaks_a_rule_is_refused() -> None:
    kernel = lookup(rules={"d is even": lambda s: s["d"] % 2 == 0})
    values = {"ids": np.zeros(1), "table": np.zeros((5, 3))}
    with pytest.raises(CaseError, match="d is even"):
        make_case(kernel, {"rows": 1, "vocab": 5, "d": 3}, values)
    with pytest.raises(CaseError, match="d is even"):
        shape_from(kernel, {"ids": (1,), "table": (5, 3)})


# Dims that follow from others


def packed(**changed: Any) -> Contract:
    declared: dict[str, Any] = {
        "sizes": {
            "words": lambda s, p: s["k"] * int(p["bits"]) // 32,
            "k": lambda s, p: s["words"] * 32 // int(p["bits"]),
        },
        "rules": {"k is a multiple of 32": lambda s: s["k"] % 32 == 0},
        **changed,
    }
    return Contract(
        "packed",
        "test",
        lambda r, x, words, bits: r.round("out", x + 0.0 * r.exactly(r.integers(words)[:, :1])),
        (
            tensor("x", "rows"),
            tensor("words", "rows words", "int32"),
            output("out", "rows k"),
        ),
        (Profile("once", {"out": "bf16"}),),
        ("rows",),
        ({"rows": 2, "k": 64},),
        stress=({"k": 32},),
        parameters={"bits": ("4", "3")},
        not_applicable={"exact": "a toy"},
        **declared,
    )


def test_a_packed_dim_follows_from_the_columns_and_the_width() -> None:
    four, three = kernels_of(packed())
    assert shape_list(four, "default") == [{"rows": 2, "k": 64, "words": 8}]
    assert shape_list(three, "default") == [{"rows": 2, "k": 64, "words": 6}]
    assert inputs.stress_cases(three, "quick", 0)[0].operands["words"].shape == (64, 3)
    assert autocontrols.tiny_case(four).operands["words"].shape == (2, 4)
    # the other width has other words: such a call is refused, so there is no control for it
    assert not autocontrols.other_parameters(four)


def test_a_call_finds_the_columns_that_no_input_has() -> None:
    four, three = kernels_of(packed())
    assert shape_from(four, {"x": (2,), "words": (2, 12)})["k"] == 96
    assert shape_from(three, {"x": (2,), "words": (2, 12)})["k"] == 128
    with pytest.raises(CaseError, match="k is a multiple of 32"):
        shape_from(four, {"x": (2,), "words": (2, 2)})
    # 85 codes of 3 bits fill no 8 words
    with pytest.raises(CaseError, match=r"words = 8, sizes .* need 7 \(bits=3\)"):
        shape_from(three, {"x": (2,), "words": (2, 8)})
    with pytest.raises(CaseError, match=r"words = 9, sizes .* need 8 \(bits=4\)"):
        shape_from(four, {"x": (2,), "words": (2, 9), "out": (2, 64)})


def test_a_size_that_nothing_settles_is_refused() -> None:
    with pytest.raises(DeclarationError, match=r"size of 'blocks', which is in no operand"):
        packed(sizes={"blocks": lambda s, p: 1})
    with pytest.raises(DeclarationError, match=r"leaves \['words'\] open"):
        packed(sizes={"words": lambda s, p: s["blocks"]}, rules={})


def test_other_rows_of_an_index_are_indices() -> None:
    kernel = kernels_of(embed)[0]
    case = typical_case(kernel, {"rows": 64, "vocab": 3, "d": 4}, 0)
    ids = kernel.inputs()[0]
    for what in ("other values", "NaN"):
        changed = invariance._with_other_rows(kernel, case, what)
        values = changed.value(kernel, ids)
        assert set(values) == {0.0, 1.0, 2.0}
        assert (values[::2] == case.value(kernel, ids)[::2]).all()
        assert (values != case.value(kernel, ids)).any()


def test_positive_operands_are_drawn_above_zero() -> None:
    contract = Contract(
        "capped",
        "test",
        lambda r, x, cap: r.round("out", x / cap),
        (tensor("x", "rows d"), tensor("cap", "", "fp32", positive=True), output("out", "rows d")),
        (Profile("once", {"out": "bf16"}),),
        ("rows",),
        ({"rows": 1, "d": 2},),
        stress=({"d": 2},),
        not_applicable={"exact": "a test"},
    )
    kernel = kernels_of(contract)[0]
    assert kernel.inputs()[1].finite
    for seed in range(8):
        for case in inputs.stress_cases(kernel, "default", seed):
            assert np.isfinite(cap := case.value(kernel, kernel.inputs()[1]))
            assert cap > 0
