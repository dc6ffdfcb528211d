"""PTX text: what is read, and that what is no PTX is said to be none, with its line."""

from __future__ import annotations

import contextlib
import random

import pytest
from ptx_kernel import HEAD, source

from contract.engines.ptx.faults import Malformed, Unsupported
from contract.engines.ptx.lexer import integer
from contract.engines.ptx.program import decode
from contract.engines.ptx.syntax import Address, Float, Group, Integer, Name, Not, Pair, Statement
from contract.engines.ptx.text import parse

WHOLE = (
    HEAD
    + r"""
.file 1 "a \" b.cu"
// a comment
.extern .func  (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b) ;
.const .align 4 .b8 tab[8] = {0, 0x10, 020, 0b11, -1, 4U};
.global .align 8 .f64 nested[2][2] = {{1.5, 0d3FF0000000000000}, {2, -0.5}};
.global .u64 pointer = generic(tab)+4;
.visible .global .u32 counter = (3 + 4 * 2) << 1;
.extern .shared .align 16 .b8 dyn[];
.weak .func (.param .b32 out) helper (.param .b32 in, .reg .f32 x) { ret; }
.visible .entry k(
    .param .u64 .ptr .global .align 16 k_0,
    .param .align 8 .b8 k_1[24],
    .param .u32 k_2
)
.maxntid 128, 1, 1
.minnctapersm 2
.pragma "nounroll";
{
    .reg .b32 %r<12>;
    .reg .pred %p<3>, q;
    .reg .v4 .f32 %v;
    .shared .align 4 .b8 s[128];
    .loc 1 12 0, function_name $L__info_string0, inlined_at 1 2 3
$L__tmp0:
    @%p1 bra $L__tmp0;
    @!q ld.global.L1::evict_last.v2.b32 { %r1, %r2 }, [ %r3 + 0 ];
    { .reg .b32 t; .reg .pred q; L1: mov.b32 t, 7; bra L1; }
    { .reg .b32 t; L1: mov.b32 t, 0f3F800000; bra L1; }
    shfl.sync.bfly.b32 %r1|%p2, %r2, WARP_SZ, 0x1f, -1;
    selp.b32 %r1, 1, 2, !%p1;
    ld.shared.b32 %r1, [s+-4]; ld.shared.b32 %r1, [16];
    /* over
       lines */ mov.u32 %r1, %tid.x;
targets: .branchtargets $L__tmp0, done;
    brx.idx %r1, targets;
done:
    ret;
}
.section .debug_str { $L__info: .b8 1 .b8 2 { } }
"""
)


def statements(text: str = WHOLE, name: str = "k") -> list[Statement]:
    return [s for s in parse(text).entries[name].body or () if isinstance(s, Statement)]


def test_what_compilers_emit_is_read() -> None:
    module = parse(WHOLE)
    entry = module.entries["k"]
    assert module.target == ("sm_80",)
    assert entry.offsets() == {"k_0": (0, 8), "k_1": (8, 24), "k_2": (32, 4)}
    assert entry.parameter_bytes == 36
    assert entry.directives == {"maxntid": (128, 1, 1), "minnctapersm": (2,)}
    assert module.variables["tab"].initial == (0, 16, 16, 3, -1, 4)
    assert module.variables["nested"].count == 4
    assert module.variables["counter"].initial == (22,)
    assert module.variables["pointer"].initial == (("tab", 4),)
    assert module.variables["dyn"].count is None
    assert module.functions["vprintf"].body is None
    assert [p.space for p in module.functions["helper"].params] == ["param", "reg"]


def test_operands_are_told_apart() -> None:
    found = statements()
    assert (found[0].opcode, found[0].guard, found[0].negated) == ("bra", "%p1", False)
    load = found[1]
    assert load.opcode == "ld.global.L1::evict_last.v2.b32"
    assert (load.guard, load.negated) == ("q", True)
    assert load.operands == (Group((Name("%r1"), Name("%r2"))), Address(Name("%r3"), 0))
    assert found[4].operands[1] == Float(0x3F800000, 32)
    assert found[6].operands[0] == Pair(Name("%r1"), Name("%p2"))
    assert found[6].operands[2:] == (Integer(32), Integer(31), Integer(-1))
    assert found[7].operands[3] == Not(Name("%p1"))
    assert found[8].operands[1] == Address(Name("s"), -4)
    assert found[9].operands[1] == Address(None, 16)
    assert found[10].operands[1] == Name("%tid.x")


def test_a_statement_knows_its_line_and_text() -> None:
    load = statements()[1]
    assert WHOLE.splitlines()[load.line - 1].strip().startswith("@!q ld.global")
    assert load.text == "@!q ld.global.L1::evict_last.v2.b32 { %r1, %r2 }, [ %r3 + 0 ]"


def test_braces_have_names_of_their_own() -> None:
    found = statements()
    first, second = found[2], found[4]
    assert first.scope.find("t") != second.scope.find("t")
    assert first.scope.find("q") != found[0].scope.find("q")
    assert first.scope.find("%r11") == found[0].scope.find("%r11") is not None
    assert first.scope.find("%r12") is None
    assert first.scope.find("%r01") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("10", 10), ("0x1F", 31), ("017", 15), ("0b101", 5), ("7U", 7), ("0", 0), ("0xFFU", 255)],
)
def test_integers_have_the_radix_they_are_written_in(text: str, value: int) -> None:
    assert integer(text) == value


@pytest.mark.parametrize(
    ("body", "below", "said"),
    [
        ("mov.u32 %r1, ;", 0, "expected a number, found ';'"),
        ("mov.u32 %r1 %r2;", 0, "expected ';', found '%r2'"),
        # `ret` stands on the next line
        ("mov.u32 %r1, %r2", 1, "expected ';', found 'ret'"),
        ("mov.u32 %r1, nothing;", 0, "expected a declared name, found 'nothing'"),
        ("bra nowhere;", 0, "expected a label, found 'nowhere'"),
        ("mov.u32 %r1, 089;", 0, "expected a number, found '089'"),
        ("ld.global.u32 %r1, [%d0;", 0, "expected ']', found ';'"),
        (".reg .b33 x;", 0, "expected a type, found '.b33'"),
        ("@%r1 mov.u32 %r1, 0;", 0, "expected a predicate, found '%r1'"),
        ("L: L: ret;", 0, "expected a new name, found L, which is declared already"),
        ("mov.u32 %r1, `;", 0, "'`;' begins no word, number or sign of PTX"),
        ("add.u32 %r1, %r2;", 0, "expected 2 sources, found 'add.u32 %r1, %r2'"),
        ("add.u32 %d1, %h2, %r2;", 0, "expected a register of 32 bits"),
        ("ld.global.v2.u32 %r1, [%d0];", 0, "expected 2 destinations"),
        ("st.global.u32 [%h1], %r1;", 0, "expected an address of 32 or 64 bits"),
        ("add.u32 [%d0], %r1, %r2;", 0, "expected a register to write"),
        ("mov.u32 %r1, 1 / 0;", 0, "expected a divisor other than 0"),
    ],
)
def test_what_is_malformed_is_said_with_its_line(body: str, below: int, said: str) -> None:
    text = source(body, 1)
    line = text[: text.index(body)].count("\n") + 1 + below
    with pytest.raises(Malformed) as caught:
        decode(parse(text))
    assert str(caught.value).startswith(f"line {line}: {said}")


@pytest.mark.parametrize(
    "body",
    [
        "wgmma.fence.sync.aligned;",
        "mbarrier.init.shared.b64 [%d0], 1;",
        "setmaxnreg.inc.sync.aligned.u32 64;",
        "cp.async.bulk.commit_group;",
        "barrier.cluster.arrive;",
        "mov.u32 %r1, %clock;",
        "mov.u32 %r1, %smid;",
        "add.nonsense.u32 %r1, %r2, %r3;",
        "ld.global.b128 %r1, [%d0];",
        "tex.1d.v4.f32.s32 {%f0,%f1,%f2,%f3}, [%d0, {%r1}];",
        "call %r1, (%r2), proto;",
    ],
)
def test_what_is_not_known_is_unsupported_with_opcode_and_line(body: str) -> None:
    with pytest.raises(Unsupported, match="line"):
        decode(parse(source(body, 1)))


def test_recursion_is_unsupported() -> None:
    head = ".func f() { call f; ret; }"
    with pytest.raises(Unsupported, match="recursive"):
        decode(parse(source("call f;", 1, head)))


@pytest.mark.parametrize("seed", range(4))
def test_broken_text_raises_nothing_else(seed: int) -> None:
    """Characters cut, deleted, doubled, exchanged: 150 texts a seed."""
    draw = random.Random(seed)
    for _ in range(150):
        text = list(WHOLE)
        for _ in range(draw.randint(1, 3)):
            at, n = draw.randrange(len(text)), draw.randint(1, 20)
            kind = draw.randrange(5)
            if kind == 0:
                del text[at:]
            elif kind == 1:
                del text[at : at + n]
            elif kind == 2:
                text[at:at] = text[at : at + n]
            elif kind == 3:
                text[at] = draw.choice('{}[]();:.,@!%|<>0x9-"\n')
            else:
                other = draw.randrange(len(text))
                text[at : at + n] = text[other : other + n]
            if not text:
                break
        with contextlib.suppress(Malformed, Unsupported):
            decode(parse("".join(text)))


def test_deep_nesting_is_malformed() -> None:
    for text in ("(" * 5000, "-" * 5000 + "1", "{" * 5000):
        with pytest.raises(Malformed):
            parse(HEAD + f".global .u32 x = {text};")
    with pytest.raises(Malformed):
        parse(source("{" * 5000, 1))


def test_lines_that_inline_assembly_counts_on_are_none_of_the_source() -> None:
    found = parse(
        """.version 8.0
        .target sm_80
        .address_size 64
        .file 1 "k.py"
        .entry k() {
            .reg .b32 %r<3>;
            .loc 1 14 3
            // begin inline asm
            mov.u32 %r1, 0x0;
            .loc 1 15 3
            mov.u32 %r2, 0x0;
            // end inline asm
            add.u32 %r1, %r1, %r2;
            .loc 1 16 3
            ret;
        }
        """
    )
    assert [(file, line) for _, file, line in found.locations] == [(1, 14), (1, 16)]
