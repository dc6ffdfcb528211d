"""Names, ids, files and -k select what they say; a name that means nothing is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from contract import registry
from contract.declare import Contract, Profile, output, tensor
from contract.errors import UsageError
from contract.select import Selection, parse_keyword, select, unregistered
from contract.suites import Registered, Target


@dataclass(frozen=True)
class Check:
    id: str
    kernel: str
    profile: str
    implementation: str | None = None
    engine: str = "host"
    gate: str | None = None
    control: str | None = None
    kind: str = "gate"
    keywords: frozenset[str] = field(default_factory=frozenset)
    requires: tuple[str, ...] = ()


def check(name: str, engine: str = "host", gate: str | None = None, *words: str) -> Check:
    kernel, profile, *rest = name.split("/")
    if rest == ["reference"]:
        return Check(name, kernel, profile, kind="reference")
    if len(rest) == 1:
        return Check(name, kernel, profile, gate=gate, control=rest[0], kind="control")
    implementation = rest[0].split("+")[0]
    return Check(
        name, kernel, profile, implementation, engine, rest[1], None, "gate", frozenset(words)
    )


CHECKS = [
    check("rms_norm/once/reference"),
    check("rms_norm/once/torch/stress", "host", None, "Norms"),
    check("rms_norm/once/torch/exact"),
    check("rms_norm/once/torch+cuda/exact", "cuda"),
    check("rms_norm/once/red.zeros", gate="exact"),
    check("rms_norm/once_more/torch/stress"),
    check("rms_norm,gain=1+w/once/torch/stress"),
    check("rms_norm_gated/once/mine/stress"),
]


def ids(selection: Selection, **more: Registered) -> list[str]:
    return [
        c.id
        for c in select(CHECKS, selection, {k.replace("_py", ".py"): v for k, v in more.items()})
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rms_norm", [c.id for c in CHECKS[:7]]),
        ("rms_norm,gain=1+w", ["rms_norm,gain=1+w/once/torch/stress"]),
        # By parts: neither once_more nor the other parameters begin with rms_norm/once.
        ("rms_norm/once", [c.id for c in CHECKS[:5]]),
        ("rms_norm/once/", [c.id for c in CHECKS[:5]]),
        ("rms_norm/once/torch", ["rms_norm/once/torch/stress", "rms_norm/once/torch/exact"]),
        ("rms_norm/once/red.zeros", ["rms_norm/once/red.zeros"]),
        ("rms_norm_gated", ["rms_norm_gated/once/mine/stress"]),
    ],
)
def test_a_name_selects_by_whole_parts(name: str, expected: list[str]) -> None:
    assert ids(Selection((name,))) == expected


def test_several_names_join_and_keep_the_order_of_the_checks() -> None:
    names = ("rms_norm_gated", "rms_norm/once/reference")
    assert ids(Selection(names)) == ["rms_norm/once/reference", "rms_norm_gated/once/mine/stress"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("rms_nrom", "did you mean rms_norm"),
        ("rms_norm/onec", "did you mean rms_norm/once"),
        ("rms_norm/once/torch/stres", "did you mean rms_norm/once/torch/stress"),
        ("zzzzzzzz", "there are rms_norm, rms_norm,gain=1+w, rms_norm_gated"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        ids(Selection((name,)))
    assert f"no check {name!r}, and no file or folder of that name; {near}" in str(caught.value)


def test_implementation_engine_and_gate_narrow() -> None:
    assert ids(Selection(impls=("mine",))) == ["rms_norm_gated/once/mine/stress"]
    assert ids(Selection(engines=("cuda",))) == ["rms_norm/once/torch+cuda/exact"]
    assert ids(Selection(impls=("torch+cuda",))) == ["rms_norm/once/torch+cuda/exact"]
    assert ids(Selection(gates=("reference",))) == ["rms_norm/once/reference"]
    exact = [
        "rms_norm/once/torch/exact",
        "rms_norm/once/torch+cuda/exact",
        "rms_norm/once/red.zeros",
    ]
    assert ids(Selection(gates=("exact",))) == exact
    assert ids(Selection(("rms_norm_gated",), gates=("exact",))) == []


def test_an_engine_that_is_not_the_host_has_its_planted_kernels() -> None:
    checks = [
        check("softcap/once/triton/exact", "ptx"),
        replace(check("softcap/once/red.cut"), engine="ptx"),
        check("softcap/once/red.drop-out"),
        check("softcap/once/torch/exact"),
    ]
    found = [[c.id for c in select(checks, Selection(engines=(name,)))] for name in ("ptx", "host")]
    assert found == [
        ["softcap/once/triton/exact", "softcap/once/red.cut"],
        ["softcap/once/torch/exact"],
    ]


def test_an_implementation_of_gpu_code_has_what_is_planted_for_it() -> None:
    """Of its engine and libraries, its kernels and profiles: neither CUDA's for Triton's nor the contract's own."""

    def of(name: str, library: str) -> Check:
        return replace(check(name, gate="exact"), engine="ptx", requires=(library,))

    checks = [
        of("softcap/once/triton/exact", "triton"),
        of("softcap/once/cuda/exact", "nvcc"),
        of("softcap/once/red.cut", "triton"),
        of("softcap/once/red.cuda-cut", "nvcc"),
        of("softcap/other/red.cut", "triton"),
        check("softcap/once/red.drop-out"),
        check("softcap/once/torch/exact"),
    ]

    def found(selection: Selection) -> list[str]:
        return [c.id.split("/", 1)[1] for c in select(checks, selection)]

    assert found(Selection(impls=("triton",))) == ["once/triton/exact", "once/red.cut"]
    assert found(Selection(impls=("cuda",))) == ["once/cuda/exact", "once/red.cuda-cut"]
    assert found(Selection(impls=("torch",))) == ["once/torch/exact"]
    assert found(Selection(impls=("triton",), gates=("stress",))) == []
    both = Selection(impls=("triton",), engines=("ptx",))
    assert found(both) == ["once/triton/exact", "once/red.cut"]


def test_an_unknown_implementation_or_engine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no implementation 'troch'; did you mean torch"):
        ids(Selection(impls=("troch",)))
    with pytest.raises(UsageError, match=r"no engine 'ptx'; there are cuda, host"):
        ids(Selection(engines=("ptx",)))


def test_a_required_name_that_nothing_has_is_reported() -> None:
    assert unregistered(("torch", "triton", "host", "triton"), CHECKS) == ["triton"]


@pytest.fixture
def _rms_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract rms_norm with the profiles and parameters of the checks."""
    monkeypatch.setattr(registry, "_contracts", {})
    contract = Contract(
        name="rms_norm",
        family="norms",
        reference=lambda r, x: r.round("out", x),
        operands=(tensor("x", "rows d"), output("out", "rows d")),
        profiles=(Profile("once", {"out": "bf16"}), Profile("once_more", {"out": "bf16"})),
        row_dims=("rows",),
        parameters={"gain": ("w", "1+w")},
        shapes=({"rows": 1, "d": 1},),
        not_applicable={"exact": "a test"},
    )
    registry.register(contract)


ONE_PLUS_W = "rms_norm,gain=1+w/once/torch/stress"


@pytest.mark.usefixtures("_rms_norm")
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target("rms_norm", "", "torch"), [c.id for c in CHECKS[:4]] + [ONE_PLUS_W]),
        (Target("rms_norm", "once", "torch", (("gain", ("1+w",)),)), [ONE_PLUS_W]),
        (Target("rms_norm", "once_more", "torch"), ["rms_norm/once_more/torch/stress"]),
    ],
)
def test_a_file_selects_its_implementation_with_the_reference_it_is_judged_by(
    target: Target, expected: list[str]
) -> None:
    mine = Registered(implementations=frozenset({target}))
    assert ids(Selection(("mine.py",)), mine_py=mine) == expected


@pytest.mark.usefixtures("_rms_norm")
def test_a_file_selects_its_controls_and_contracts() -> None:
    control = Registered(controls=frozenset({Target("rms_norm", "once", "red.zeros")}))
    assert ids(Selection(("mine.py",)), mine_py=control) == ["rms_norm/once/red.zeros"]
    whole = Registered(contracts=frozenset({"rms_norm_gated"}))
    assert ids(Selection(("mine.py",)), mine_py=whole) == ["rms_norm_gated/once/mine/stress"]


def test_a_file_that_registers_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"mine\.py: the file registers nothing to judge; declare"):
        ids(Selection(("mine.py",)), mine_py=Registered())


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("", True),
        ("   ", True),
        ("torch", True),
        ("TORCH", True),
        ("norms", True),
        ("triton", False),
        ("not triton", True),
        ("not not torch", True),
        ("torch and triton", False),
        ("torch or triton", True),
        # and binds stronger than or, not stronger than and.
        ("torch or torch and triton", True),
        ("not torch or stress", True),
        ("not (torch or stress)", False),
        ("rms_norm/once/torch", True),
        ("notable", False),
    ],
)
def test_keywords_follow_the_grammar_of_pytest(expression: str, expected: bool) -> None:
    assert parse_keyword(expression)(CHECKS[1]) is expected


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("torch and", ["expected a word at column 10", "got the end"]),
        ("(torch", ["expected ')' at column 7"]),
        ("torch)", ["expected 'and', 'or' or the end at column 6", "got ')'"]),
        ("torch stress", ["expected 'and', 'or' or the end at column 7", "got 'stress'"]),
        ("and", ["expected a word at column 1", "got 'and'"]),
        ("torch and $", ["unexpected '$' at column 11"]),
        ("__import__('os')", ['unexpected "\'" at column 12']),
    ],
)
def test_a_keyword_expression_that_is_none_shows_the_column(
    expression: str, parts: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_keyword(expression)
    for part in [f"-k {expression!r}", *parts]:
        assert part in str(caught.value)
