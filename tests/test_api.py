"""assert_allowed and allowed in a test that exists already: what they judge, refuse and say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import contract
from contract.errors import CaseError, DeclarationError, NotAllowed

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _in_a_project(project: Path) -> None:
    """The suite `scaled` is loaded by the first call."""


def operands(rows: int = 6, d: int = 8) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn((2, rows, d), generator=generator).bfloat16()
    return {"x": x, "y": y}


def right(x: Tensor, y: Tensor) -> Tensor:
    return x * 1.25 + y


def test_a_right_output_is_counted() -> None:
    given = operands()
    judged = contract.assert_allowed("scaled", right(**given), scale=1.25, **given)
    assert (judged.compared, judged.one_value_share) == (48, 1.0)
    minus = given["y"] - given["x"] * 1.25
    contract.assert_allowed("scaled", minus, scale=1.25, sign="minus", profile="two_step", **given)


def test_one_wrong_element_is_named_with_its_bits() -> None:
    given = operands()
    out = right(**given)
    out.view(torch.int16)[3, 5] += 1
    got = int(out.view(torch.int16)[3, 5].item()) & 0xFFFF
    with pytest.raises(NotAllowed) as caught:
        contract.assert_allowed("scaled", out, scale=1.25, **given)
    first, element, operand_line, scalars, assumed = str(caught.value).splitlines()
    assert first == "scaled/two_step: 1 of 48 outputs are not allowed"
    assert element.startswith(f"operands given: out[3, 5]: got 0x{got:04x} (")
    assert re.search(rf"allowed 0x{got - 1:04x} \(.*\) only, 1 ulp too (high|low)$", element)
    assert operand_line.startswith("operands: x bf16[6, 8] = ")
    assert scalars == "scalars: scale=1.25"
    assert assumed == "sign=plus was assumed (plus | minus)"
    # an AssertionError, so that pytest reports a failure and no error
    assert isinstance(caught.value, AssertionError)


def test_the_dropped_point_is_named() -> None:
    given = operands(64, 64)
    out = (given["x"].float() * 1.25 + given["y"].float()).bfloat16()
    with pytest.raises(NotAllowed, match="reproduces all observed bits: dropped point `product`"):
        contract.assert_allowed("scaled", out, scale=1.25, **given)


def test_sampled_rows_are_named_as_the_caller_counts_them() -> None:
    given = operands(40, 8)
    out = right(**given)
    out[39] = 0
    judged = contract.assert_allowed("scaled", out[:39], scale=1.25, rows=5, seed=3,
                                     x=given["x"][:39], y=given["y"][:39])  # fmt: skip
    assert judged.compared == 5 * 8
    with pytest.raises(NotAllowed, match=r"4 rows of 40: out\[39, 0\]: got 0x0000"):
        contract.assert_allowed("scaled", out, scale=1.25, rows=4, **given)
    assert (
        contract.assert_allowed("scaled", right(**given), scale=1.25, rows=99, **given).compared
        == 320
    )


@pytest.mark.parametrize("layout", ["transposed", "every second row", "expanded", "grad", "numpy"])
def test_any_tensor_is_judged_by_its_values(layout: str) -> None:
    given = operands(8, 8)
    if layout == "transposed":
        given = {name: x.T for name, x in given.items()}
    elif layout == "every second row":
        given = {name: x[::2] for name, x in given.items()}
    elif layout == "expanded":
        given["y"] = given["y"][:1].expand(8, 8)
    elif layout == "grad":
        given["x"] = given["x"].requires_grad_()
    out = right(**given)
    if layout == "numpy":
        ml_dtypes = pytest.importorskip("ml_dtypes")
        arrays = [
            x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for x in (*given.values(), out)
        ]
        given, out = {"x": arrays[0], "y": arrays[1]}, arrays[2]
    contract.assert_allowed("scaled", out, scale=1.25, **given)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"y": None}, "operand y= is not given; it takes x, y"),
    ({"scale": None}, "give the scalar scale="),
    ({"scale": "1.25"}, "scale='1.25' is a scalar; give the number"),
    ({"scale": b"1.25"}, "scale=b'1.25' is a scalar; give the number"),
    ({"scale": "large"}, "scale='large' is a scalar; give the number"),
    ({"z": 1}, "no operand z; it has x, y, scale, sign"),
    ({"x": torch.zeros(6, 8)}, "x has dtype float32, profile two_step needs bfloat16"),
    ({"x": [1.0]}, "x is list, not a tensor; profile two_step needs bfloat16"),
    ({"y": torch.zeros(6, 7).bfloat16()}, "y has d = 7, x has 8; they must agree"),
    ({"x": torch.zeros(8).bfloat16()}, "it needs 2 dims ('rows', 'd')"),
    ({"rows": 0}, "rows=0; judge at least one row"),
    ({"rows": -1}, "rows=-1; judge at least one row"),
    ({"rows": "2"}, "rows='2'; judge at least one row"),
    ({"rows": True}, "rows=True; judge at least one row"),
    ({"rows": 2.0}, "rows=2.0; judge at least one row, as a whole number"),
    ({"seed": -1}, "seed=-1; give a whole number >= 0"),
    ({"seed": "x", "rows": 2}, "seed='x'; give a whole number >= 0"),
    ({"seed": 0.5}, "seed=0.5; give a whole number >= 0"),
    ({"scale": 10**400}, " is a scalar; give the number"),
    ({"scale": torch.ones((), device="meta")}, "scale=tensor(..., device='meta', size=()) is a"),
    ({"scale": torch.ones(2)}, "scale=tensor([1., 1.]) is a scalar; give the number"),
    ({"out": (torch.zeros(6, 8).bfloat16(),) * 2}, "2 outputs given; the contract's are out"),
    ({"out": {"result": torch.zeros(6, 8).bfloat16()}}, "outputs are out; got result"),
    ({"out": torch.zeros(6, 8)}, "out has dtype float32"),
    ({"out": None}, "out is NoneType, not a tensor; profile two_step needs bfloat16"),
    ({"out": [[1.0] * 8] * 6}, "6 outputs given; the contract's are out"),
    ({"out": [[1.0]]}, "out is list, not a tensor; profile two_step needs bfloat16"),
    ({"out": np.zeros((6, 8), object)}, "out has dtype object, profile two_step needs bfloat16"),
    ({"x": np.zeros((6, 8), object)}, "x has dtype object, profile two_step needs bfloat16"),
]


@pytest.mark.parametrize(("change", "said"), WRONG, ids=range(len(WRONG)))
def test_operands_that_do_not_fit_are_refused(change: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {**operands(), "scale": 1.25, "out": right(**operands()), **change}
    given = {k: v for k, v in given.items() if v is not None or k == "out"}
    with pytest.raises(CaseError) as caught:
        contract.assert_allowed("scaled", given.pop("out"), **given)
    assert said in str(caught.value)


class Strange:
    dtype = "bfloat16"


@pytest.mark.parametrize("name", ["x", "out"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda x: x.to("meta"), "a Tensor (torch.strided, meta)"),
        (lambda x: x.to_sparse(), "a Tensor (torch.sparse_coo, cpu)"),
        (lambda x: Strange(), "a Strange (no tensor)"),
    ],
)
def test_a_tensor_without_values_to_read_is_refused(name: str, make: Any, kind: str) -> None:
    given = {**operands(), "out": right(**operands())}
    given[name] = make(given[name])
    with pytest.raises(CaseError) as caught:
        contract.assert_allowed("scaled", given.pop("out"), scale=1.25, **given)
    assert str(caught.value) == (
        f"scaled/two_step: {name} is {kind} whose values cannot be read; give a dense tensor that"
        " holds them, as x.to_dense() or x.cpu()"
    )


def test_a_list_of_one_tensor_is_that_output_and_a_whole_number_of_numpy_is_one() -> None:
    given: dict[str, Any] = {**operands(), "rows": np.int64(2), "seed": np.int32(1)}
    out = right(given["x"], given["y"])
    assert contract.assert_allowed("scaled", [out], scale=1.25, **given).compared == 16


@pytest.mark.parametrize("kernel", [None, 3, ["scaled"], right])
def test_a_kernel_that_is_no_name_is_refused(kernel: Any) -> None:
    given = operands()
    with pytest.raises(
        CaseError, match=r"^kernel is a \w+; give a contract's name, as `contract list`"
    ):
        contract.assert_allowed(kernel, right(**given), scale=1.25, **given)
    with pytest.raises(CaseError, match=r"^kernel is a \w+; give a contract's name"):
        contract.allowed(kernel, scale=1.25, **given)


def test_a_name_and_an_output_that_are_swapped_are_told() -> None:
    given = operands()
    with pytest.raises(CaseError) as caught:
        contract.assert_allowed(right(**given), "scaled", scale=1.25, **given)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "kernel is a Tensor and out is 'scaled': the name comes first, assert_allowed('scaled', out, ...)"
    )


def test_operands_in_order_are_told_to_go_by_keyword() -> None:
    given = operands()
    said = "^scaled: operands and scalars go by keyword: x=, y=, scale=$"
    with pytest.raises(CaseError, match=said):
        contract.assert_allowed("scaled", right(**given), *given.values(), scale=1.25)
    with pytest.raises(CaseError, match=said):
        contract.allowed("scaled", given["x"])


def test_a_result_with_the_neg_bit_is_judged_by_its_values() -> None:
    given = operands()
    out = torch._neg_view(-right(**given))
    assert out.is_neg()
    contract.assert_allowed("scaled", out, scale=1.25, **given)
    with pytest.raises(NotAllowed):
        contract.assert_allowed("scaled", -right(**given), scale=1.25, **given)


def test_an_output_of_another_shape_is_not_allowed() -> None:
    given = operands()
    with pytest.raises(NotAllowed, match=r"shape \(48,\), the contract needs \(6, 8\)"):
        contract.assert_allowed("scaled", right(**given).flatten(), scale=1.25, **given)


def test_an_empty_output_is_no_pass() -> None:
    given = operands(0, 8)
    with pytest.raises(CaseError, match="nothing was compared"):
        contract.assert_allowed("scaled", right(**given), scale=1.25, **given)


def test_names_that_do_not_exist_are_refused() -> None:
    given = operands()
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("scalde", {}, "did you mean scaled"),
        ("scaled/two_step", {}, "which is an id: give 'scaled' and profile='two_step'"),
        ("scaled,sign=minus", {}, "which is an id: give 'scaled' and sign='minus'"),
        ("scaled", {"profile": "once"}, "profiles are two_step"),
        ("scaled", {"profile": ""}, "no profile ''; profiles are two_step"),
        ("scaled", {"profile": 3}, "no profile 3; profiles are two_step"),
        ("scaled", {"sign": "times"}, "values are"),
    ]
    for kernel, more, said in cases:
        with pytest.raises(DeclarationError, match=said):
            contract.assert_allowed(kernel, right(**given), scale=1.25, **given, **more)


def test_allowed_returns_the_range() -> None:
    given = operands()
    found = contract.allowed("scaled", scale=1.25, **given)
    np.testing.assert_array_equal(found.lower, right(**given).double().numpy())
    np.testing.assert_array_equal(found.upper, found.lower)
    assert not found.nan.any()
    given["x"][2, 3] = float("nan")
    found = contract.allowed("scaled", scale=1.25, **given)
    assert np.argwhere(found.nan == 2).tolist() == [[2, 3]]


def test_a_contract_of_ones_own_does_not_hide_the_suites(project: Path) -> None:
    """Registered before the first call, as by a decorator in the test's own file."""
    contract.register(
        contract.Contract(
            name="own", family="sums", reference=lambda r, x: r.round("out", x + x),
            operands=(contract.tensor("x", "rows d"), contract.output("out", "rows d")),
            profiles=(contract.Profile("once", {"out": "bf16"}),), row_dims=("rows",),
            shapes=({"rows": 1, "d": 1},), not_applicable={"exact": "a test"},
        )
    )  # fmt: skip
    given = operands()
    assert contract.assert_allowed("own", given["x"] * 2, x=given["x"]).compared == 48
    assert contract.assert_allowed("scaled", right(**given), scale=1.25, **given).compared == 48


def coded(r: Any, x: Any, one: Any, z: Any = None, form: str = "", bias: str = "") -> Any:
    return r.round("out", r.round("twice", x + x) + (x if z is None else z))


@pytest.fixture
def codes() -> dict[str, Any]:
    """A contract with packed codes, two profiles, a parameter that decides on an operand, and an option."""
    contract.register(
        contract.Contract(
            name="coded", family="sums", reference=coded,
            operands=(contract.tensor("x", "rows d"), contract.output("out", "rows d"),
                      contract.tensor("z", "rows d", "uint4", when={"bias": ("yes",)}),
                      contract.tensor("one", "", "fp32")),
            parameters={"bias": ("no", "yes")}, options={"form": ("a", "b")},
            profiles=(contract.Profile("kept", {"twice": None, "out": "bf16"}, options={"form": "a"}),
                      contract.Profile("narrow", {"twice": "e4m3fn", "out": "bf16"}, options={"form": "a"}),
                      contract.Profile("wide", {"twice": None, "out": "fp32"}, {"x": "fp32", "out": "fp32"},
                                       options={"form": "b"})),
            row_dims=("rows",), shapes=({"rows": 1, "d": 1},), not_applicable={"exact": "a test"},
        )
    )  # fmt: skip
    x = torch.arange(1, 49).reshape(6, 8).bfloat16()
    return {"x": x, "z": torch.full((6, 8), 3, dtype=torch.uint8), "one": torch.ones(())}


def refusal(out: Any, **given: Any) -> str:
    with pytest.raises((CaseError, NotAllowed)) as caught:
        contract.assert_allowed("coded", out, **given)
    assert [e.ishidden(caught) for e in caught.traceback if e.name == "assert_allowed"] == [True]
    return str(caught.value)


def test_a_refusal_says_what_was_assumed_and_what_a_name_is_for(codes: dict[str, Any]) -> None:
    x, z, one = codes["x"], codes["z"], codes["one"]
    out = x * 3
    given = {"x": x, "one": one, "profile": "kept"}
    assumed = "bias=no was assumed (no | yes)"
    assert (
        refusal(out, z=z, **given)
        == f"coded/kept: z= is for bias = yes; it has x, one, bias; {assumed}"
    )
    assert "operand x= is not given (z= is for bias = yes); it takes x, one; bias=no" in refusal(
        out, z=z, one=one, profile="kept"
    )
    assert refusal(out + 1, **given).endswith(assumed)
    assert "assumed" not in refusal(out + 1, bias="no", **given)
    assert (
        "form= is an option, which the profile fixes: kept has a, narrow has a, wide has b"
        in refusal(out, form="a", **given)
    )
    assert refusal(out, **{**given, "x": x.float()}).endswith(
        "x has dtype float32, profile kept needs bfloat16; profile wide takes float32"
    )
    assert refusal(out, **{**given, "x": x.half()}).endswith("; no profile takes float16")
    assert (
        "one is float, not a tensor; profile kept needs float32, as a tensor of shape ()"
        in refusal(out, **{**given, "one": 1.0})
    )


def test_a_byte_that_is_no_code_is_refused(codes: dict[str, Any]) -> None:
    codes["z"][2, 3] = 0x73
    assert refusal(codes["x"], profile="kept", bias="yes", **codes) == (
        "coded,bias=yes/kept: z holds 115; uint4 is one code of 0 to 15 in each element; the first is [2, 3]"
    )


def test_what_the_contract_does_not_take_is_no_fault_of_the_kernel() -> None:
    contract.register(
        contract.Contract(
            name="limited", family="sums", reference=lambda r, x, cap, ids: r.round("out", x + cap),
            operands=(contract.tensor("x", "rows d", finite=True), contract.tensor("cap", "", "fp32", positive=True),
                      contract.tensor("ids", "rows", "int32", below="d"), contract.output("out", "rows d")),
            profiles=(contract.Profile("once", {"out": "bf16"}),), row_dims=("rows",),
            shapes=({"rows": 1, "d": 1},), not_applicable={"exact": "a test"},
        )
    )  # fmt: skip
    given: dict[str, Any] = {
        "x": torch.ones(4, 8).bfloat16(), "cap": torch.ones(()), "ids": torch.zeros(4, dtype=torch.int32),
    }  # fmt: skip
    out = given["x"] * 2
    assert contract.assert_allowed("limited", out, **given).compared == 32
    given["x"][2, 5] = torch.inf
    for call in (contract.allowed, lambda name, **more: contract.assert_allowed(name, out, **more)):
        with pytest.raises(
            CaseError, match=r"x\[2, 5\] is inf; the contract takes finite values only"
        ):
            call("limited", **given)
    given["x"][2, 5] = 1
    with pytest.raises(CaseError, match=r"cap holds inf; it must be positive and finite$"):
        contract.assert_allowed("limited", out, **{**given, "cap": torch.tensor(torch.inf)})
    given["ids"][3] = 8
    with pytest.raises(
        CaseError, match=r"ids holds 8; values are 0 to 7 \(d - 1\); the first is \[3\]"
    ):
        contract.assert_allowed("limited", out, **given)


def test_operands_are_shown_as_what_they_are(codes: dict[str, Any]) -> None:
    codes["x"] = torch.full((6, 8), -torch.inf).bfloat16()
    codes["x"][1, 2], codes["x"][5, 0] = 2.5, torch.nan
    codes["z"][:] = 0
    codes["z"][4, 7] = 9
    said = refusal(torch.zeros(6, 8).bfloat16(), profile="kept", bias="yes", **codes)
    assert (
        "x bf16[6, 8] -inf but [1, 2]=2.5, [5, 0]=nan; z uint4[6, 8] zero but [4, 7]=9; one" in said
    )
    codes["z"][:] = torch.arange(8)
    said = refusal(torch.zeros(6, 8).bfloat16(), profile="kept", bias="yes", **codes)
    assert "z uint4[6, 8] = 0, 1, 2, 3, 4, 5, ..." in said


def test_another_profile_that_allows_the_bits_is_named(codes: dict[str, Any]) -> None:
    x = codes["x"]
    narrow = (x * 2).to(torch.float8_e4m3fn).bfloat16() + x
    said = refusal(narrow, x=x, one=codes["one"], profile="kept", bias="no")
    assert said.endswith("reproduces all observed bits: profile `narrow`")
    # a single change says more
    said = refusal(x * 3, x=x, one=codes["one"], profile="narrow", bias="no")
    assert said.endswith("reproduces all observed bits: dropped point `twice`")
