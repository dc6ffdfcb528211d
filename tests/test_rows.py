"""Rows: what they describe, that they stand alone, and that the patterns find what they are for."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from contract import formats, row_words, rows, strategies
from contract.declare import Contract, Profile, Scalar, output, tensor
from contract.errors import DeclarationError, UsageError
from contract.rows import PATTERNS, SPECIALS, Row, decode_block, expand

FORMATS = ("bf16", "fp32", "fp16", "tf32", "e4m3fn", "e4m3fnuz", "e2m1", "e8m0", "fp64", "int8")
WINDOWS = ((0, 0), (-300, -280), (-8, 8), (60, 127))


def _rows(pattern: str) -> list[Row]:
    return [Row(pattern, lo, hi, seed) for lo, hi in WINDOWS for seed in (0, 1, 2**32 - 1)]


def _same(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    return np.array_equal(a.view(np.int64), b.view(np.int64))


# ---- descriptions


@given(strategies.rows())
@settings(max_examples=300, deadline=None)
def test_parse_reads_what_describe_writes(row: Row) -> None:
    assert Row.parse(row.describe()) == row
    assert set(row.describe()) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.,=+@-")


def test_every_position_survives_the_text() -> None:
    for start in range(0, 65536, 8):
        row = Row(specials=tuple((start + i, SPECIALS[i]) for i in range(8)))
        assert Row.parse(row.describe()) == row


def test_describe_is_short_and_literal() -> None:
    row = Row("outlier", -3, 4, 17, ((16384, "nan"), (0, "-0")))
    assert row.describe() == "outlier,e-3..4,seed=17,nan@0.25,-0@0.0"


@pytest.mark.parametrize(
    ("text", "named", "repair"),
    [
        ("outlier", "'outlier'", "outlier,e-3..4,seed=17,nan@0.25"),
        ("normal,e0..0,seed=0 ", "seed=0 '", "write it as"),
        ("nothing,e0..0,seed=0", "'nothing'", "use one of normal, zeros"),
        ("normal,e3..1,seed=0", "e3..1", "lo <= hi"),
        ("normal,e0..0,seed=4294967296", "4294967296", "2**32 - 1"),
        ("normal,e0..0,seed=0,pi@0.5", "'pi'", "use one of 0, -0"),
        ("normal,e0..0,seed=0,nan@1.0", "65536/65536", "0 to 65535"),
        ("normal,e0..0,seed=0" + 9 * ",nan@0.5", "9 specials", "at most 8"),
    ],
)
def test_bad_text_is_named_with_its_repair(text: str, named: str, repair: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Row.parse(text)
    assert named in str(caught.value)
    assert repair in str(caught.value)


def test_zero_bytes_are_the_simplest_row() -> None:
    assert decode_block(bytes(2 * rows.BYTES_PER_ROW), 2) == (Row(), Row())
    assert Row().describe() == "normal,e0..0,seed=0"
    with pytest.raises(UsageError, match="use 12"):
        decode_block(b"", 2)


def test_bytes_reach_every_pattern_special_and_count() -> None:
    drawn = [row for block in strategies.draw_blocks(5, 32) for row in block]
    assert {row.pattern for row in drawn} == set(PATTERNS)
    assert {len(row.specials) for row in drawn} == set(range(9))
    assert {special for row in drawn for _, special in row.specials} == set(SPECIALS)
    assert min(row.lo for row in drawn) < -130
    assert max(row.hi for row in drawn) > 127


def test_without_specials_every_value_is_finite() -> None:
    for block in strategies.draw_blocks(6, 4, allow_specials=False):
        assert all(row.specials == () and row.pattern != "raw_bits" for row in block)
        assert np.isfinite(expand(block, 128, "bf16")).all()


# ---- values


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_values_are_values_of_the_format(pattern: str, fmt: str) -> None:
    for n in (1, 2, 7, 64):
        x = expand(_rows(pattern), n, fmt)
        assert x.shape == (len(_rows(pattern)), n)
        # encode refuses a value that the format does not have.
        formats.encode(x, fmt)
        assert pattern == "raw_bits" or np.isfinite(x).all()


@pytest.mark.parametrize("fmt", ["bf16", "fp32", "int8"])
def test_a_row_does_not_depend_on_the_rows_beside_it(fmt: str) -> None:
    block = [row for pattern in PATTERNS for row in _rows(pattern)]
    x = expand(block, 33, fmt)
    order = np.random.default_rng(0).permutation(len(block))
    assert _same(expand([block[i] for i in order], 33, fmt), x[order])
    for index in range(0, len(block), 7):
        assert _same(expand(block[index : index + 1], 33, fmt)[0], x[index])


def test_values_are_the_same_in_every_pass_size(monkeypatch: pytest.MonkeyPatch) -> None:
    block = [row for pattern in PATTERNS for row in _rows(pattern)]
    x = expand(block, 100, "bf16")
    monkeypatch.setattr(rows, "_CHUNK", 1)
    assert _same(expand(block, 100, "bf16"), x)


def test_first_values_are_literally_these() -> None:
    # Written down from the first release: a change here makes stored rows mean something else.
    window = expand([Row("window", -2, 3, 5)], 4, "bf16")[0]
    assert window.tolist() == [3.40625, -4.8125, 0.458984375, -0.28515625]
    normal = expand([Row("normal", -2, -2, 5)], 4, "bf16")[0]
    assert normal.tolist() == [0.1337890625, -0.205078125, 0.2421875, -0.271484375]


def test_words_are_splitmix64() -> None:
    # The known first outputs for the seed 1234567 (Rosetta Code, Pseudo-random numbers/Splitmix64).
    golden = int(row_words._GOLDEN)
    state = np.array([(1234567 + k * golden) % 2**64 for k in (1, 2, 3)], np.uint64)
    assert row_words._mix(state).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_specials_stand_at_their_positions() -> None:
    specials = tuple((i << 13, name) for i, name in enumerate(SPECIALS[2:]))
    x = expand([Row("zeros", specials=specials)], 8, "bf16")[0]
    top = float.fromhex("0x1.fep127")
    expected = [1.0, np.nan, np.inf, -np.inf, top, -top, 2.0**-126, 2.0**-133]
    np.testing.assert_array_equal(x, expected)
    last = expand([Row("constant", specials=((65535, "-0"), (0, "0")))], 4096, "bf16")[0]
    assert np.flatnonzero(last == 0).tolist() == [0, 4095]
    assert np.signbit(last[4095])


def test_a_format_without_a_special_takes_its_extreme() -> None:
    row = Row("zeros", specials=((0, "nan"), (16384, "inf"), (32768, "-inf"), (49152, "-0")))
    int8 = expand([row], 4, "int8")[0]
    assert int8.tolist() == [127, 127, -128, 0]
    assert not np.signbit(int8[3])
    assert expand([row], 4, "e4m3fn")[0].tolist()[1:] == [448, -448, 0]
    assert expand([row], 4, "uint4")[0].tolist() == [15, 15, 0, 0]


def test_normal_has_the_moments_of_the_normal_distribution() -> None:
    x = expand([Row(seed=seed) for seed in range(64)], 4096, "fp32")
    # 2**18 samples: standard errors 0.002, 0.0028 and 0.0096; five of each.
    assert abs(x.mean()) < 0.01
    assert abs(x.var() - 1) < 0.014
    # The last cell, 1/4096 on each side, is uniform up to 4.25: that adds 0.02 to the fourth moment.
    assert abs((x**4).mean() - 3) < 0.07
    assert abs(np.corrcoef(x[0], x[1])[0, 1]) < 5 / 64


@pytest.mark.parametrize("n", [2, 3, 64, 4097])
def test_cancel_sums_to_its_small_rest(n: int) -> None:
    # Multiples of 2**-10 below 2**4, at most 4097 of them: every float64 sum is exact.
    x = expand([Row("cancel", 0, 3, seed) for seed in range(32)], n, "bf16")
    assert (x.sum(axis=1) == 2.0**-8).all()
    assert n < 64 or (np.abs(x).sum(axis=1) > n).all()


@pytest.mark.parametrize(("fmt", "narrower"), [("fp32", "bf16"), ("bf16", "e4m3fn")])
def test_ties_are_halfway_or_one_beside(fmt: str, narrower: str) -> None:
    x = expand([Row("ties", 0, 3, seed) for seed in range(512)], 64, fmt)
    down = formats.round_to(x, narrower, mode="down")
    half = (down + formats.round_to(x, narrower, mode="up")) / 2
    tie = (x == half) & (x != down)
    beside = (x == formats.next_up(half, fmt)) | (x == formats.next_down(half, fmt))
    # A third of the rows is made for this format, a third of their values are ties, 1/9 = 0.11;
    # two thirds are one beside. 512 rows leave a standard error of 0.007 and 0.014.
    assert 0.08 < tie.mean() < 0.15
    assert (beside & ~tie).mean() > 0.15


def test_integers_draw_every_code_and_more_extremes() -> None:
    x = expand([Row("bits", seed=seed) for seed in range(64)], 256, "int8")
    values, counts = np.unique(x, return_counts=True)
    assert values.tolist() == list(range(-128, 128))
    assert counts[[0, -1]].min() > 4 * np.median(counts)
    x = expand([Row("subnormal", seed=1)], 64, "int8")
    assert set(x.flat) == {-1, 0, 1}


# ---- power: this row is found


WANTED = (
    "tie",
    "subnormal",
    "overflow of the squares",
    "squares below fp32",
    "outlier",
    "all zeros",
    "negative zero",
    "constant",
    "exact cancellation",
    "NaN",
    "infinity",
)


def _found(x: NDArray[np.float64]) -> set[str]:
    """What some row of x shows; all but the last two among the finite rows."""
    finite = np.asarray(np.isfinite(x).all(axis=1))
    clean = x[finite]
    size = np.abs(clean)
    with np.errstate(all="ignore"):
        squares = np.square(clean.astype(np.float32)).sum(axis=1)
        median = np.median(size, axis=1)
    found = {
        "tie": (
            formats.round_to(clean, "e4m3fn", "half_away") != formats.round_to(clean, "e4m3fn")
        ),
        "subnormal": (size > 0) & (size < 2.0**-126),
        "overflow of the squares": np.isinf(squares),
        "squares below fp32": (squares == 0) & (size.max(axis=1) > 0),
        "outlier": (size.max(axis=1) > 30 * median) & (median > 0.25) & (median < 16),
        "all zeros": size.max(axis=1) == 0,
        "negative zero": (clean == 0) & np.signbit(clean),
        "constant": clean.min(axis=1) == clean.max(axis=1),
        "exact cancellation": (clean.sum(axis=1) == 0) & (size.min(axis=1) > 0),
        "NaN": np.isnan(x),
        "infinity": np.isinf(x),
    }
    return {what for what, where in found.items() if where.any()}


def test_drawn_rows_hold_what_kernels_get_wrong() -> None:
    drawn = [row for block in strategies.draw_blocks(0, 16) for row in block]
    x = expand(drawn, 64, "bf16")
    assert x.shape == (1024, 64)
    assert _found(x) == set(WANTED)
    assert np.isfinite(x).all(axis=1).mean() > 0.6


def test_ordinary_rows_hold_nothing_of_it_but_ties() -> None:
    ordinary = expand([Row(seed=seed) for seed in range(1024)], 64, "bf16")
    assert _found(ordinary) <= {"tie"}


# ---- drawing


def test_one_seed_draws_the_same_blocks_and_another_others() -> None:
    a, b, c = (strategies.draw_blocks(seed, 3, 8) for seed in (1, 1, 2))
    assert a == b
    assert [len(block) for block in a] == [8, 8, 8]
    assert all(x != y for x, y in zip(a, c, strict=True))
    assert all(x != y for x, y in pairwise(a))


def test_blocks_do_not_depend_on_profile_or_loaded_modules() -> None:
    program = (
        "import hypothesis, sys; {extra}; from contract.strategies import draw_blocks;"
        "print([r.describe() for b in draw_blocks(3, 12, 16) for r in b])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program.format(extra=extra)],
            capture_output=True, text=True, check=True,
        ).stdout
        for extra in ("pass", "hypothesis.settings.load_profile('ci'); import contract.shrink")
    ]  # fmt: skip
    assert outputs[0] == outputs[1]
    here = [row.describe() for block in strategies.draw_blocks(3, 12, 16) for row in block]
    assert outputs[0].strip() == str(here)


def test_blocks_are_filled_up_where_hypothesis_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    full = strategies.draw_blocks(4, 6, 2)
    settings_of = hypothesis.settings

    def stop_early(**options: Any) -> hypothesis.settings:
        return settings_of(**(options | {"max_examples": 3}))

    monkeypatch.setattr(hypothesis, "settings", stop_early)
    short = strategies.draw_blocks(4, 6, 2)
    assert len(short) == len(full) == 6
    assert short == strategies.draw_blocks(4, 6, 2)
    assert len(set(short)) == 6


def _contract() -> Contract:
    ids = tensor("ids", "rows", "int32", typical=lambda rng, shape: rng.integers(0, 9, shape))
    return Contract(
        "gather_norm", "test", reference=lambda r, **operands: None,
        operands=(tensor("x", "rows d"), tensor("weight", "d"), ids, output("y", "rows d")),
        profiles=(Profile("once", {"out": "bf16"}), Profile("float32", {"out": None}, {"x": "fp32"})),
        row_dims=("rows",), shapes=({"rows": 3, "d": 5},), stress=({"d": 16},),
        scalars=(Scalar("eps", (1e-6, 1e-5)),), not_applicable={"exact": "a test"},
    )  # fmt: skip


@given(strategies.operands(_contract()))
@settings(max_examples=30, deadline=None)
def test_operands_have_the_shapes_and_formats_of_the_contract(case: dict[str, object]) -> None:
    assert list(case) == ["x", "weight", "ids", "eps"]
    x, weight, ids = (np.asarray(case[name]) for name in ("x", "weight", "ids"))
    assert (x.shape, weight.shape, ids.shape) == ((4, 16), (16,), (4,))
    formats.encode(x, "bf16")
    assert set(ids.flat) <= set(range(9))
    assert case["eps"] in (1e-6, 1e-5)


def test_operands_refuse_a_shape_that_leaves_a_dim_open() -> None:
    with pytest.raises(UsageError, match=r"gather_norm: shape .* give a size >= 1"):
        strategies.operands(_contract(), shape={"rows": 3})
