"""The registry: every name once, and no target that no contract has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from contract import registry
from contract.declare import Contract, Profile, output, tensor
from contract.errors import DeclarationError


def make(name: str = "double") -> Contract:
    return Contract(
        name=name,
        family="sums",
        reference=lambda r, x: r.round("out", x + x),
        operands=(tensor("x", "rows d"), output("out", "rows d")),
        parameters={"gain": ("one", "two")},
        profiles=(Profile("once", {"out": "bf16"}), Profile("wide", {"out": None})),
        row_dims=("rows",),
        shapes=({"rows": 2, "d": 4},),
        not_applicable={"exact": "a test"},
    )


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_contracts", "_implementations", "_controls", "_origins"):
        monkeypatch.setattr(registry, name, {})


def kernel(x: float) -> float:
    return x + x


def test_a_contract_is_found_by_its_name_and_knows_its_module() -> None:
    contract = registry.register(make())
    assert registry.get("double") is contract
    assert registry.origin("double") == __name__


def test_getters_return_copies_sorted_by_name() -> None:
    registry.register(make("b"))
    registry.register(make("a"))
    assert list(registry.contracts()) == ["a", "b"]
    registry.contracts().clear()
    registry.implementations().clear()
    assert list(registry.contracts()) == ["a", "b"]


def test_a_name_that_is_not_there_is_refused_with_the_nearest() -> None:
    registry.register(make())
    with pytest.raises(DeclarationError, match="no contract 'doubel'; did you mean double"):
        registry.get("doubel")
    registry.clear()
    with pytest.raises(DeclarationError, match="load a suite first"):
        registry.get("double")


TWICE: list[tuple[Callable[[], object], str]] = [
    (lambda: registry.register(make()), "contract 'double' is registered twice"),
    (lambda: registry.implementation("double", profile="once")(kernel), "double/once/kernel"),
    (
        lambda: registry.red("double", profile="once", gate="exact")(kernel),
        "control double/once/red.kernel",
    ),
    (lambda: registry.green("double", profile="once")(kernel), "control double/once/green.kernel"),
]


@pytest.mark.parametrize(("add", "said"), TWICE, ids=["contract", "implementation", "red", "green"])
def test_a_name_registered_twice_is_refused(add: Callable[[], object], said: str) -> None:
    add()
    with pytest.raises(DeclarationError, match=r"registered twice.*rename one") as caught:
        add()
    assert said in str(caught.value)
    # a contract has no place but its reference's module
    place = "again in" if said.startswith("contract") else "before in tests/test_registry.py:"
    assert place in str(caught.value)


def test_one_name_may_serve_several_profiles_parameters_and_colours() -> None:
    registry.register(make())
    registry.implementation("double", profile=("once", "wide"))(kernel)
    registry.implementation("double", profile="once", name="other", gain="two")(kernel)
    registry.red("double", profile="once", gate="exact")(kernel)
    registry.green("double", profile="once")(kernel)
    found = [(i.profile, i.name, dict(i.parameters)) for i in registry.implementations("double")]
    assert found == [
        ("once", "kernel", {}),
        ("once", "other", {"gain": ("two",)}),
        ("wide", "kernel", {}),
    ]
    assert [c.colour for c in registry.controls("double")] == ["green", "red"]
    registry.check()


def test_two_that_would_answer_to_one_id_are_refused() -> None:
    registry.register(make())
    registry.implementation("double", profile="once", name="mine")(kernel)
    registry.implementation("double", name="mine", gain="two")(kernel)
    with pytest.raises(
        DeclarationError, match=r"double/once/mine is registered twice .*; rename one"
    ):
        registry.check()


@pytest.mark.parametrize("add", [registry.implementation, registry.green])
def test_an_order_that_the_contract_does_not_have_is_refused(add: Callable[..., Any]) -> None:
    registry.register(make())
    add("double", name="mine", profile="once", order={"totl": 3})(kernel)
    with pytest.raises(DeclarationError, match=r"order of 'totl'; freedoms of double are"):
        registry.check()


@pytest.mark.parametrize("depth", [None, 0, -3, True, 3.0, "3", [3], np.int64(3)])
@pytest.mark.parametrize("add", [registry.implementation, registry.green])
def test_a_depth_that_is_none_is_refused(add: Callable[..., Any], depth: Any) -> None:
    registry.register(replace(make(), freedoms={"total": "any order"}))
    add("double", name="mine", profile="once", order={"total": depth})(kernel)
    with pytest.raises(DeclarationError, match=r"order total=.*; give a depth >= 1"):
        registry.check()


@pytest.mark.parametrize("add", [registry.implementation, registry.green])
def test_requires_is_no_single_string(add: Callable[..., Any]) -> None:
    with pytest.raises(DeclarationError, match=r"requires='json' is one string; give a tuple"):
        add("double", profile="once", requires="json")(kernel)


def test_an_implementation_without_a_profile_takes_the_first() -> None:
    registry.implementation("double")(kernel)
    registry.register(make())
    assert [item.profile for item in registry.implementations()] == ["once"]


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: registry.implementation("doubel")(kernel), "no contract 'doubel'"),
    (lambda: registry.implementation("double", profile="twice")(kernel), "no profile 'twice'"),
    (lambda: registry.implementation("double", gain="three")(kernel), "no gain='three'"),
    (lambda: registry.implementation("double", shape="two")(kernel), "no shape='two'"),
    (
        lambda: registry.red("double", profile="once", gate="exakt")(kernel),
        "gate 'exakt'; gates are shapes, stress, exact",
    ),
    (lambda: registry.green("double", profile="twice")(kernel), "no profile 'twice'"),
]


@pytest.mark.parametrize(("add", "said"), WRONG, ids=range(len(WRONG)))
def test_a_target_that_no_contract_has_is_refused(add: Callable[[], object], said: str) -> None:
    registry.register(make())
    registry.check()
    add()
    with pytest.raises(DeclarationError) as caught:
        registry.check()
    assert said in str(caught.value)


@pytest.mark.parametrize("values", [128, (128, 32), "128"])
def test_a_number_is_the_parameter_that_it_is_written_as(values: Any) -> None:
    registry.register(replace(make(), parameters={"block": ("128", "32")}))
    registry.implementation("double", block=values)(kernel)
    registry.red("double", profile="once", gate="shapes", block=values)(kernel)
    registry.check()
    want = tuple(map(str, values)) if isinstance(values, tuple) else ("128",)
    (item,), (control,) = registry.implementations(), registry.controls()
    assert item.parameters == control.parameters == {"block": want}


def test_a_profile_that_is_not_for_the_stated_parameters_is_refused() -> None:
    profiles = (
        Profile("once", {"out": "bf16"}),
        Profile("wide", {"out": None}, when={"gain": ("two",)}),
    )
    registry.register(replace(make(), profiles=profiles))
    registry.implementation("double", profile="wide", name="all")(kernel)
    registry.check()
    registry.implementation("double", profile="wide", gain="one")(kernel)
    with pytest.raises(
        DeclarationError, match="profile wide of double is for gain = two only, not for gain=one"
    ):
        registry.check()
