"""The engine that executes what a launcher launches: what it says of right code, of wrong code, and of none."""

from __future__ import annotations

import importlib
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ptx_kernel import source

from contract import registry
from contract.case import Case, find
from contract.declare import Contract, Profile, Scalar, output, tensor
from contract.engines import executed
from contract.engines.capture import CapturedLaunch, MissingCompiler, active
from contract.inputs import typical_case
from contract.judge import ENDS, PLAIN, TURNS, Bench, Subject

Tensor = torch.Tensor
SHAPE = {"rows": 4, "d": 8}
# x * scale + w: an element a thread
RIGHT = """
ld.global.f32 %f0, [%e0]; ld.global.f32 %f1, [%e1]; mov.f32 %f2, 0f40000000;
mul.rn.f32 %f0, %f0, %f2; add.rn.f32 %f0, %f0, %f1; st.global.f32 [%e2], %f0;
"""


def reference(r: Any, x: Any, w: Any, scale: float) -> Any:
    return r.round("out", x * scale + w)


@pytest.fixture(autouse=True)
def _registered(project: Path) -> None:
    """The contract `line`: out = x * scale + w in fp32."""
    registry.register(
        Contract(
            name="line", family="sums", reference=reference, scalars=(Scalar("scale", (2.0,)),),
            operands=(tensor("x", "rows d", "fp32"), tensor("w", "rows d", "fp32"),
                      output("out", "rows d", "fp32")),
            profiles=(Profile("once", {"out": "fp32"}),), row_dims=("rows",),
            shapes=(SHAPE,), not_applicable={"exact": "a test"},
        )
    )  # fmt: skip


def launched(body: str, *tensors: Tensor, **more: Any) -> None:
    """One launch of a body in PTX, a thread for each element, as a launcher would make it."""
    capture = active()
    assert capture is not None
    addresses = [t.data_ptr() for t in tensors]
    facts: dict[str, Any] = {
        "language": "cuda", "function": "k", "entry": "k", "ptx": source(body, len(tensors)),
        "grid": (1, 1, 1), "block": (SHAPE["rows"] * SHAPE["d"], 1, 1), "shared": 0,
        "parameters": struct.pack(f"<{len(tensors)}Q", *addresses),
        "tensors": {f"t{i}": t for i, t in enumerate(tensors)}, "target": "sm_80", "fusion": False,
        "compiler": "hand", "ptxas": "none",
    }  # fmt: skip
    capture.hand(CapturedLaunch(**{**facts, **more}))


def kernel(body: str) -> Callable[..., Tensor]:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        x, w = x.contiguous(), w.contiguous()
        out = torch.empty_like(x)
        launched(body, x, w, out)
        return out

    return call


def run(
    call: Callable[..., Any], skew: int = 0, name: str = "mine", configuration: int = 0
) -> tuple[dict[str, Any], Mapping[str, Any], Case]:
    """(report, output bits, case) of one call."""
    registry.implementation("line", name=name, engine="ptx")(call)
    threads = torch.get_num_threads()
    case = typical_case(find("line"), SHAPE, 0)
    subject = Subject(find("line"), {"kind": "implementation", "name": name}, None)
    payload = subject.payload(case, PLAIN, "finite")
    payload["launch"] |= {"skew": skew, "configuration": configuration}
    try:
        report, outputs = executed.run(payload, dict(case.operands))
    finally:
        torch.set_num_threads(threads)
    return report, outputs, case


def expected(case: Case) -> Any:
    x, w = (case.operands[name].view(np.float32) for name in ("x", "w"))
    return (x * np.float32(2) + w).view(np.uint32)


def test_what_is_launched_is_executed_on_the_tensors() -> None:
    report, outputs, case = run(kernel(RIGHT))
    assert report["bad"] == ""
    assert report["compiled"] == ["hand, sm_80, fusion off"]
    assert not report["approximate"]
    assert np.array_equal(outputs["out"], expected(case))


@pytest.mark.parametrize(
    "asks",
    [
        lambda: torch.cuda.get_device_properties(0),
        lambda: torch.cuda.current_stream(),
        lambda: torch.cuda.Stream(),
        lambda: torch.cuda.Event(),
    ],
    ids=["properties", "current stream", "stream", "event"],
)
def test_a_launcher_that_asks_torch_for_a_device_is_told_what_to_ask(
    asks: Callable[[], Any],
) -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        asks()
        return x

    report, _, _ = run(call)
    assert "asks torch for a CUDA device" in report["bad"]


def test_a_launcher_that_refuses_operands_on_the_cpu_is_told_so() -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        assert x.is_cuda, "on a GPU alone"
        return x

    report, _, _ = run(call)
    assert report["bad"].startswith('`assert x.is_cuda, "on a GPU alone"`: the launcher refuses')

    def other(x: Tensor, w: Tensor, scale: float) -> Tensor:
        assert x.shape[0] < 0, "another reason"
        return x

    with pytest.raises(AssertionError, match="another reason"):
        run(other, name="other")


def test_a_launcher_may_choose_the_device_of_its_operands() -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        with torch.cuda.device(x.device):
            return kernel(RIGHT)(x, w, scale)

    real = torch.cuda.device
    report, outputs, case = run(call)
    assert report["bad"] == ""
    assert np.array_equal(outputs["out"], expected(case))
    assert torch.cuda.device is real


AUTOTUNED = """
import torch
import triton
import triton.language as tl


def made(**named):
    @triton.autotune(
        configs=[triton.Config({"BLOCK": 32}, num_warps=1), triton.Config({"BLOCK": 32}, num_warps=2)], key=["n"], **named
    )
    @triton.jit
    def adds(x, w, out, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(out + at) + tl.load(x + at) * 2 + tl.load(w + at))

    return adds


plain, reset, kept = made(), made(reset_to_zero=["out"]), made(restore_value=["out"])
"""


@pytest.mark.parametrize("name", ["plain", "reset", "kept", "tuned before"])
def test_what_an_autotuner_launches_to_time_it_leaves_its_traces(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    (tmp_path / "autotuned_of_a_test.py").write_text(AUTOTUNED)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("autotuned_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    adds = getattr(module, name, module.plain)

    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        x, w, out = x.contiguous(), w.contiguous(), torch.zeros(SHAPE["rows"], SHAPE["d"])
        if name == "tuned before":
            adds[(1,)](x, w, torch.zeros_like(out), out.numel())
        adds[(1,)](x, w, out, out.numel())
        return out

    for configuration in (0, 1):
        report, outputs, case = run(call, name=f"mine{configuration}", configuration=configuration)
        assert report["bad"] == ""
        twice = name == "plain" and configuration == 1
        assert np.array_equal(outputs["out"], expected(case)) != twice
        assert ("timed first" in report["configured"]) == (configuration == 1)


def test_launches_see_what_came_before_them() -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        product, out = torch.empty_like(x), torch.empty_like(x)
        zero = torch.zeros_like(x)
        launched(RIGHT, x, zero, product)
        # half of the answer by torch, on what a launch wrote
        product += w
        launched(RIGHT, zero, product, out)
        return out

    report, outputs, case = run(call)
    assert report["bad"] == ""
    assert np.array_equal(outputs["out"], expected(case))


def test_a_launcher_that_launches_nothing_is_no_evidence() -> None:
    report, _, _ = run(lambda x, w, scale: x * scale + w)
    assert report["bad"].startswith("it launched no kernel")
    assert report["unfit"]


@pytest.mark.parametrize("own", [True, False], ids=["a copy", "operands"])
def test_what_torch_computes_beside_a_launch_is_no_evidence(own: bool) -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        launched(RIGHT, x, w, torch.empty_like(x)) if own else launched("", x, w)
        return x * scale + w

    report, _, _ = run(call)
    assert "torch computed that alone" in report["bad"]
    assert report["unfit"]


@pytest.mark.parametrize(
    "take",
    [
        lambda out, x: out.view(-1).view(out.shape),
        lambda out, x: torch.stack([out, x])[0],
        lambda out, x: torch.full_like(x, float(out.sum()) * 0),
    ],
    ids=["a view", "a copy", "a number"],
)
def test_what_torch_makes_of_what_a_launch_wrote_is_evidence(
    take: Callable[[Tensor, Tensor], Tensor],
) -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        out = torch.zeros_like(x)
        launched(RIGHT, x, w, out)
        return take(out, x)

    assert run(call)[0]["bad"] == ""


def test_a_kernel_that_has_nothing_to_write_is_evidence() -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        out = x * scale + w
        launched("", out)
        return out

    assert run(call)[0]["bad"] == ""


@pytest.mark.parametrize(
    ("static", "dynamic", "said"),
    [
        (48 * 1024, 115 * 1024, ""),
        (48 * 1024 + 4, 0, "49,156 bytes of static shared memory; ptxas takes 49,152"),
        (48 * 1024, 115 * 1024 + 16, "166,928 bytes of shared memory, static and dynamic; sm_80 has 166,912"),
    ],
)  # fmt: skip
def test_a_block_has_the_shared_memory_of_its_target(static: int, dynamic: int, said: str) -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(x)
        text = source(RIGHT, 3, head=f".shared .align 16 .b8 s[{static}];")
        text = text.replace("mov.u32 %r0", "mov.u32 %r38, s; mov.u32 %r0", 1)
        launched(RIGHT, x, w, out, ptx=text, shared=dynamic)
        return out

    report, _, _ = run(call)
    assert said in report["bad"]
    assert bool(report["bad"]) == bool(said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (RIGHT.replace("[%e2]", "[%e2+128]"), "out of bounds"),
        (RIGHT.replace("[%e0]", "[%e0+2]"), "aligned"),
        (RIGHT.replace("add.rn.f32 %f0, %f0", "add.rn.f32 %f0, %f7"), "never"),
    ],
)
def test_a_fault_of_the_code_is_why_it_is_wrong(body: str, said: str) -> None:
    report, outputs, _ = run(kernel(body))
    assert said in report["bad"]
    assert "not_run" not in report
    assert not outputs


def test_a_launcher_that_goes_on_after_a_fault_is_wrong_all_the_same() -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        try:
            launched(RIGHT.replace("[%e2]", "[%e2+128]"), x, w, torch.empty_like(x))
        except Exception:  # noqa: BLE001 - the plant
            launched(RIGHT, x, w, torch.empty_like(x))
        return x * scale + w

    report, _, _ = run(call)
    assert "out of bounds" in report["bad"]


def test_an_unknown_instruction_is_named_and_says_nothing_of_the_kernel() -> None:
    report, outputs, _ = run(kernel("wgmma.fence.sync.aligned;" + RIGHT))
    assert "wgmma.fence.sync.aligned" in report["not_run"]
    assert "bad" not in report
    assert not outputs


def test_a_missing_compiler_is_not_the_kernels_fault() -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        raise MissingCompiler("nvcc is not installed")

    assert run(call)[0]["not_run"] == "nvcc is not installed"


def test_text_that_is_no_ptx_is_wrong() -> None:
    report, _, _ = run(kernel("this is no PTX"))
    assert report["bad"]


def pieces(x: Tensor) -> Tensor:
    made = torch.empty(2 * x.numel())
    for first in (40, 0, 20):
        made[first : first + 24].zero_()
    return made[: x.numel()].view(x.shape)


def cat(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    torch.cat([x[:1] * 0, x[1:] * 0], out=made)
    return made


def strided(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made[:, ::2].zero_()
    made[:, 1::2].copy_(torch.zeros(1))
    return made


def moved(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    return made.unsqueeze_(0).squeeze_(0)


@pytest.mark.parametrize(
    ("make", "fresh"),
    [
        (torch.empty_like, True),
        (lambda x: x.new_empty(x.shape), True),
        (torch.zeros_like, False),
        (lambda x: torch.empty_like(x).fill_(0.0), False),
        (lambda x: torch.mul(x, 0.0, out=torch.empty_like(x)), False),
        (pieces, False),
        (cat, False),
        (strided, False),
        (moved, True),
    ],
    ids=[
        "empty_like",
        "new_empty",
        "zeros_like",
        "fill_",
        "out=",
        "pieces",
        "cat",
        "strided",
        "moved",
    ],
)
def test_memory_that_nobody_wrote_is_not_read(
    make: Callable[[Tensor], Tensor], fresh: bool
) -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        zero, out = make(x), torch.empty_like(x)
        launched(RIGHT, x, zero, out)
        return out + w

    report, _, _ = run(call)
    assert bool(report["bad"]) == fresh, report


@pytest.mark.parametrize("shown", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("fill", "fresh"),
    [
        (lambda s: s.view(-1)[:16].zero_(), True),
        (lambda s: s[1:].fill_(0), True),
        (lambda s: torch.zeros(31, out=s.view(-1)[1:]), True),
        (lambda s: (s[:2].zero_(), s[2:].zero_()), False),
        (lambda s: s.t().zero_(), False),
        (lambda s: s.copy_(torch.zeros(8)), False),
        (lambda s: torch.cat([torch.zeros(2, 8), torch.zeros(2, 8)], out=s), False),
        # it is not known which part
        (lambda s: s[:, ::2].zero_(), False),
    ],
    ids=["half", "rows", "out", "pieces", "transposed", "copied", "cat", "strided"],
)
def test_what_torch_wrote_a_part_of_is_known_in_that_part(
    fill: Callable[[Tensor], Any], fresh: bool, shown: bool
) -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        part, out = torch.empty_like(w), torch.empty_like(w)
        if shown:
            launched("", part)
        fill(part)
        launched(RIGHT, x, part, out)
        return out + w

    report, _, _ = run(call)
    assert ("never" in report["bad"]) == fresh, report


@pytest.mark.parametrize(
    "over",
    [
        lambda out, right: out.copy_(right),
        lambda out, right: out[:].copy_(right),
        lambda out, right: (out[:2].copy_(right[:2]), out[2:].copy_(right[2:])),
        lambda out, right: torch.add(right, 0.0, out=out),
        lambda out, right: out.zero_().add_(right),
    ],
    ids=["copy_", "a view", "pieces", "out=", "zero_"],
)
def test_what_torch_writes_over_is_no_evidence(over: Callable[[Tensor, Tensor], Any]) -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(w)
        launched(RIGHT, x, w, out)
        over(out, x * scale + w)
        return out

    report, _, _ = run(call)
    assert "torch computed that alone" in report["bad"]
    assert report["unfit"]


@pytest.mark.parametrize(
    "take",
    [
        lambda out, x: torch.empty_like(x).copy_(out),
        lambda out, x: out.to(torch.float64).to(x.dtype),
        lambda out, x: out.reshape(-1, 1).reshape(x.shape),
        lambda out, x: torch.add(out, 0.0, out=torch.empty_like(x)),
        lambda out, x: torch.add(out, 0.0, out=out),
        lambda out, x: out.add_(0.0),
        lambda out, x: out.t_().t_(),
        lambda out, x: {"out": out},
        lambda out, x: out[:, :1].fill_(0) is None or out,
        lambda out, x: out.masked_fill_(x > 3e38, 0.0),
    ],
    ids=["copied", "cast", "reshaped", "out=", "onto", "add_", "moved", "named", "part", "masked"],
)
def test_what_torch_goes_on_with_is_evidence(take: Callable[[Tensor, Tensor], Any]) -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Any:
        out = torch.empty_like(w)
        # filled before, which is nothing that torch wrote over it
        out.zero_()
        launched(RIGHT, x, w, out)
        return take(out, x)

    assert run(call)[0]["bad"] == ""


def test_a_launch_after_torch_filled_is_evidence_again() -> None:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(w)
        launched("", out)
        out.zero_()
        launched(RIGHT, x, w, out)
        return out

    assert run(call)[0]["bad"] == ""


def test_approximate_instructions_are_told_and_executed_at_their_ends() -> None:
    body = RIGHT.replace("mul.rn.f32", "ex2.approx.f32 %f3, %f0; mul.rn.f32").replace(
        "[%e2], %f0", "[%e2], %f3"
    )
    found = []
    for skew in (-1, 0, 1):
        # a name is taken once
        report, outputs, _ = run(kernel(body), skew, name=f"at{skew + 1}")
        assert report["approximate"]
        found.append(outputs["out"].view(np.float32))
    assert (found[0] < found[1]).all()
    assert (found[1] < found[2]).all()


@pytest.mark.parametrize(("nominal", "ends"), [("", list(ENDS)), ("a table", [])])
def test_the_ends_are_launches_unless_a_source_says_why_not(nominal: str, ends: list[Any]) -> None:
    contract = find("line")
    subject = Subject(
        contract, {"kind": "implementation", "name": "x"}, None, launches=(PLAIN,), nominal=nominal
    )
    bench = Bench(contract, "quick", 0)
    assert list(subject.launches_at(bench, "stress", 0)) == [PLAIN]
    subject.approximate, subject.compiled = True, {"hand, sm_80, fusion off": None}
    assert list(subject.launches_at(bench, "stress", 0)) == [PLAIN, *ends]
    (told,) = subject.evidence()
    assert (nominal or "both ends") in told


def test_blocks_that_answer_to_each_other_take_other_turns() -> None:
    """Two blocks that count up one number: no order of them is promised."""
    body = RIGHT.replace("st.global", "red.global.add.u32 [%d3], 1; st.global")
    count = SHAPE["rows"] * SHAPE["d"] // 2
    sides = {"grid": (2, 1, 1), "block": (count, 1, 1)}
    for name, text, told in (("apart", RIGHT, False), ("together", body, True)):
        report, _, _ = run(two_blocks(text, sides), name=name)
        assert report["communicates"] is told
    contract = find("line")
    subject = Subject(contract, {"kind": "implementation", "name": "x"}, None, launches=(PLAIN,))
    bench = Bench(contract, "quick", 0)
    assert list(subject.launches_at(bench, "stress", 0)) == [PLAIN]
    subject.communicates, subject.compiled = True, {"hand, sm_80, fusion off": None}
    assert list(subject.launches_at(bench, "stress", 0)) == [PLAIN, *TURNS]
    assert "one after the other, and reversed" in subject.evidence()[0]
    assert [subject.payload(typical_case(contract, SHAPE, 0), x, "nan")["launch"]["blocks"] for x in TURNS] == [
        "in_turn", "reversed"
    ]  # fmt: skip


def two_blocks(body: str, sides: Mapping[str, Any]) -> Callable[..., Tensor]:
    def call(x: Tensor, w: Tensor, scale: float) -> Tensor:
        out = torch.empty_like(x)
        count = torch.zeros(1, dtype=torch.int32)
        launched(body, x.contiguous(), w.contiguous(), out, count, **sides)
        return out

    return call


def test_every_configuration_of_an_autotuned_kernel_is_a_launch() -> None:
    contract = find("line")
    subject = Subject(contract, {"kind": "implementation", "name": "x"}, None, launches=(PLAIN,))
    subject.configurations = 3
    subject.configured = {2: "BLOCK=512 num_warps=8"}
    *_, last = subject.launches_at(Bench(contract, "quick", 0), "exact", 9)
    assert subject.told(last) == "configuration-2 (BLOCK=512 num_warps=8)"
    assert subject.told(PLAIN) == "plain"
    places = [x.configuration for x in subject.launches_at(Bench(contract, "quick", 0), "exact", 9)]
    assert places == [0, 1, 2]
