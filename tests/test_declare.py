"""A wrong declaration is refused where it is written, with the value and the repair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contract.declare import (
    Contract,
    Control,
    Implementation,
    Launch,
    Operand,
    Profile,
    Scalar,
    exists,
    output,
    scope,
    tensor,
)
from contract.errors import DeclarationError
from contract.orders import Tree

X, OUT = tensor("x", "rows d"), output("out", "rows d")
ONCE = Profile("once", {"out": "bf16"})


def make(**changed: Any) -> Contract:
    """A right contract with something changed."""
    given: dict[str, Any] = {
        "name": "double",
        "family": "sums",
        "reference": lambda r, x: r.round("out", x + x),
        "operands": (X, OUT),
        "profiles": (ONCE,),
        "row_dims": ("rows",),
        "shapes": ({"rows": 2, "d": 4},),
        "not_applicable": {"exact": "a test"},
    }
    return Contract(**{**given, **changed})


def test_the_contract_that_the_others_change_is_right() -> None:
    assert make().profile("once").rounded_points() == ("out",)


WRONG_CONTRACTS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"name": "2x"}, ("'2x'", "letters, digits and underscores")),
    ({"family": "a b"}, ("'a b'", "letters")),
    ({"reference": "double"}, ("reference must be a function",)),
    ({"operands": (X, X, OUT)}, ("'x' is declared 2 times", "every name once")),
    (
        {
            "operands": (
                X,
                OUT,
                *(tensor("w", d, when={"bits": ("4", b)}) for d, b in (("d", "8"), ("rows", "4"))),
            ),
            "parameters": {"bits": ("4", "8")},
        },
        ("'w' is declared 2 times",),
    ),
    ({"operands": (X,)}, ("no output", "output(name, dims, format)")),
    ({"operands": (X, output("out", "rows d", in_place_of="y"))}, ("'y'", "no input")),
    (
        {"operands": (X, tensor("w", "d", when={"gain": ("w",)}), OUT)},
        ("operand w", "gain", "no such parameter value"),
    ),
    (
        {"profiles": (Profile("once", {"out": "bf16"}, unless={"gain": ("w",)}),)},
        ("profile once", "gain", "no such parameter value"),
    ),
    ({"parameters": {"gain": ()}}, ("parameter gain", "distinct values")),
    ({"parameters": {"gain": ("w", "w")}}, ("parameter gain", "('w', 'w')")),
    ({"parameters": {"gain": ("1/w",)}}, ("gain='1/w'", "cannot stand in an id")),
    (
        {"rules": {"d is a multiple of 32": lambda s: s["d"] % 32 == 0}},
        ("'d': 4", "d is a multiple of 32"),
    ),
    (
        {"rules": {"k is even": lambda s: s["k"] % 2 == 0}},
        ("rule 'k is even'", "'k', no dim", "['d', 'rows']"),
    ),
    (
        {"operands": (X, tensor("ids", "rows", "int32", below="vocab"), OUT)},
        ("operand ids", "'vocab'", "['d', 'rows']"),
    ),
    ({"not_applicable": {"exakt": "typo"}}, ("'exakt'", "a gate of shapes")),
    ({"not_applicable": {"exact": ""}}, ("'exact'", "a reason")),
    ({"shapes": ()}, ("no shape", "compares nothing")),
    ({"shapes": ({"rows": 2},)}, ("{'rows': 2}", "['d', 'rows']")),
    ({"shapes": ({"rows": 2, "d": 0},)}, ("'d': 0", "size >= 1")),
    ({"row_dims": ("batch",)}, ("row dim 'batch'", "['d', 'rows']")),
    ({"stress": ({"rows": 2},)}, ("{'rows': 2}", "every dim but ('rows',)")),
    ({"not_applicable": {}}, ("no exact rows", "give exact=")),
    ({"profiles": ()}, ("no profile", "declare at least one")),
    ({"profiles": (ONCE, ONCE)}, ("['once', 'once']", "not distinct")),
    (
        {"profiles": (ONCE, Profile("two", {"inner": "bf16"}))},
        ("profile two lists points ['inner']", "a format or None"),
    ),
    ({"profiles": (Profile("once", {"out": "bf16"}, {"y": "fp32"}),)}, ("'y'", "no operand")),
    ({"options": {"form": ("a", "b")}}, ("fixes options []", "['form']")),
    (
        {
            "options": {"form": ("a",)},
            "profiles": (Profile("p", {"out": None}, {}, {"form": "c"}),),
        },
        ("form='c'", "values are ('a',)"),
    ),
    (
        {"profiles": (Profile("once", {"out": "bf16"}, vacuous={"inner": "why"}),)},
        ("vacuous 'inner'", "drop-POINT"),
    ),
]


@pytest.mark.parametrize(("changed", "parts"), WRONG_CONTRACTS, ids=range(len(WRONG_CONTRACTS)))
def test_a_wrong_contract_is_refused(changed: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(DeclarationError) as caught:
        make(**changed)
    for part in parts:
        assert part in str(caught.value)


def nothing() -> None:
    """Stands for a kernel."""


WRONG_PARTS: list[tuple[Callable[[], object], tuple[str, ...]]] = [
    (lambda: tensor("x y", "rows"), ("'x y'",)),
    (lambda: tensor("ids", "rows", "int32", least=-1), ("operand ids", "least=-1", "below")),
    (lambda: tensor("x", "rows d*2"), ("operand x: dim", "'d*2'")),
    (lambda: tensor("x", "rows", "bf17"), ("bf17",)),
    (lambda: Operand("x", ("rows",), role="both"), ("'both'", "'in', 'out' or 'inout'")),
    (lambda: tensor("x", "rows", stage=True), ("a stage is an output", "role='out'")),
    (lambda: Scalar("eps", ()), ("scalar eps", "at least the default")),
    (lambda: Scalar("1eps", (1.0,)), ("'1eps'",)),
    (lambda: Profile("a-b", {}), ("'a-b'",)),
    (lambda: Profile("a", {"in ner": "bf16"}), ("rounding point", "'in ner'")),
    (lambda: Profile("a", {"out": "bf17"}), ("bf17",)),
    (lambda: Profile("a", {"out": "e4m3fn"}, overflow={"out": "wrap"}), ("'wrap'", "'saturate'")),
    (lambda: Launch("a b"), ("'a b'",)),
    (lambda: Launch("a", layout="column"), ("'column'", "contiguous, strided or offset")),
    (lambda: Launch("a", batch=-1), ("batch >= 0",)),
    (lambda: Launch("a", threads=0), ("threads >= 1",)),
    (lambda: Implementation("k", "p", "a/b", nothing), ("'a/b'",)),
    (lambda: Implementation("k", "p", "a", None), ("k/p/a: not callable",)),  # type: ignore[arg-type]
    (lambda: Control("k", "p", "a", "blue", ("exact",), nothing), ("'blue'", "'red' or 'green'")),
    (lambda: Control("k", "p", "a", "red", (), nothing), ("name the gate that must catch it",)),
    (lambda: Control("k", "p", "[a]", "red", ("exact",), nothing), ("'[a]'",)),
]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"modes": {"out": "downward"}}, "out rounds 'downward'"),
        ({"modes": {"inner": "toward_zero"}}, "name a point that it rounds"),
        ({"orders": {"sum": 8}}, "give a contract.orders.Tree"),
    ],
)
def test_a_profile_that_rounds_or_sums_in_no_known_way_is_refused(
    more: dict[str, object], words: str
) -> None:
    with pytest.raises(DeclarationError, match=words):
        Profile("once", {"inner": None, "out": "bf16"}, **more)  # type: ignore[arg-type]


def test_a_profile_orders_only_freedoms_of_its_contract() -> None:
    ordered = Profile("once", {"out": "bf16"}, orders={"total": Tree("sequential")})
    with pytest.raises(DeclarationError, match="profile once orders 'total'; freedoms are"):
        make(profiles=(ordered,))


@pytest.mark.parametrize(("build", "parts"), WRONG_PARTS, ids=range(len(WRONG_PARTS)))
def test_a_wrong_part_is_refused(build: Callable[[], object], parts: tuple[str, ...]) -> None:
    with pytest.raises(DeclarationError) as caught:
        build()
    for part in parts:
        assert part in str(caught.value)


def test_parameters_and_profiles_are_looked_up_by_name() -> None:
    contract = make(parameters={"gain": ("w", "none")})
    assert contract.full_parameters({}) == {"gain": "w"}
    with pytest.raises(DeclarationError, match="gain='v'; values are"):
        contract.full_parameters({"gain": "v"})
    with pytest.raises(DeclarationError, match="no parameter 'gian'"):
        contract.full_parameters({"gian": "w"})
    with pytest.raises(DeclarationError, match="no profile 'twice'; profiles are once"):
        contract.profile("twice")


def test_a_declaration_cannot_be_changed_later() -> None:
    with pytest.raises(TypeError, match="item assignment"):
        ONCE.points["out"] = "fp32"  # type: ignore[index]


def test_an_operand_may_have_other_dims_under_another_parameter() -> None:
    narrow = tensor("w", "d", when={"bits": ("4",)})
    wide = tensor("w", "rows d", when={"bits": ("8",)})
    contract = make(
        operands=(X, narrow, wide, OUT),
        parameters={"bits": ("4", "8")},
        reference=lambda r, x, w: r.round("out", x + w),
    )
    assert contract.inputs({"bits": "4"}) == (X, narrow)
    assert contract.inputs({"bits": "8"}) == (X, wide)


def test_a_rule_says_nothing_of_a_dim_that_a_case_does_not_have() -> None:
    contract = make(rules={"d is even": lambda s: s["d"] % 2 == 0})
    assert contract.broken_rule({"rows": 2}) == ""
    assert contract.broken_rule({"d": 3}) == "d is even"


def test_a_profile_is_not_for_values_that_together_it_excludes() -> None:
    profile = Profile("once", {"out": "bf16"}, unless={"block": ("128",), "offsets": ("yes",)})
    assert exists(profile, {"block": "128", "offsets": "no"})
    assert exists(profile, {"block": "32", "offsets": "yes"})
    assert not exists(profile, {"block": "128", "offsets": "yes"})
    assert scope(profile) == "not for block = 128 and offsets = yes"
