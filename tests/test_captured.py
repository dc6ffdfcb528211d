"""Captured rows: kept from calls, written to the store, judged by the gate shapes."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import contract.kernels.gemm_i8
import contract.kernels.kv_append
import contract.kernels.quantize_int8
import contract.kernels.rms_norm
import contract.kernels.w4_gemv  # noqa: F401 - they register
from contract import captured
from contract.calls import Call
from contract.case import Case, Kernel, find
from contract.cli import main
from contract.engines.placement import from_bits
from contract.errors import CaseError, StoreError, UsageError
from contract.inputs import typical_case
from contract.verify import implementation_of, verified

pytest.importorskip("safetensors", reason="captured rows are files of safetensors: [models]")
from contract.pipelines.capture import MOST_FORMS, ROWS_OF_A_CALL, Capture, outliers

Run = Callable[..., tuple[int, str, str]]
#: Wrong where a magnitude is beyond 1000, which no input of its own shows in the gate shapes.
CLAMPED = """
import contract

@contract.implementation("scaled", name="clamped", sign="plus")
def clamped(x, y, scale):
    return (x.clamp(-1000, 1000) * scale) + y
"""


def norm() -> Call:
    kernel = find("rms_norm", "two_step", {"gain": "w"})
    return Call(kernel, implementation_of(kernel, "torch"))


def call_norm(call: Call, x: torch.Tensor) -> None:
    call(x=x, weight=torch.ones(x.shape[-1]).bfloat16(), eps=1e-5)


def rows_with_outliers(count: int, at: int, d: int = 64) -> torch.Tensor:
    x = torch.randn(count, d, generator=torch.Generator().manual_seed(0))
    x[at, 3] = 500.0
    return x.bfloat16()


def cases_of(capture: Capture, root: Path, call: Call) -> list[Case]:
    capture.write(root)
    return captured.read(root, call.kernel)


def test_the_rows_with_the_largest_outliers_are_kept(tmp_path: Path) -> None:
    call = norm()
    with Capture("a model") as capture:
        call_norm(call, rows_with_outliers(40, 17))
    (case,) = cases_of(capture, tmp_path, call)
    assert case.rows(call.kernel) == ROWS_OF_A_CALL
    assert case.scalars == {"eps": 1e-5}
    assert case.label == "captured from a model, case 0"
    found = outliers(call.kernel, case)
    # |x| / rms of a row of d whose only large value is one: sqrt(d)
    assert found.max() == pytest.approx(8.0, rel=0.01)
    assert (found > 2).all()


def test_every_form_has_its_share_and_nothing_is_over_the_limit(tmp_path: Path) -> None:
    call = norm()
    with Capture("a model") as capture:
        for turn in range(200):
            for d in (64, 32):
                call_norm(call, rows_with_outliers(2, 0, d) + turn)
    cases = cases_of(capture, tmp_path, call)
    shares = {d: sum(c.rows(call.kernel) for c in cases if c.shape["d"] == d) for d in (64, 32)}
    assert shares == {64: captured.MOST_ROWS // 2, 32: captured.MOST_ROWS // 2}


def test_forms_that_never_end_count_as_one(tmp_path: Path) -> None:
    call = norm()
    with Capture("a model") as capture:
        for d in range(1, 60):
            call_norm(call, torch.ones(1, d).bfloat16())
    assert len(capture._calls[call.kernel.id].forms) == MOST_FORMS + 1
    assert len(cases_of(capture, tmp_path, call)) == 59


def test_kept_rows_do_not_follow_their_memory(tmp_path: Path) -> None:
    call, x = norm(), torch.ones(1, 8).bfloat16()
    with Capture("a model") as capture:
        call_norm(call, x)
        x.zero_()
    (case,) = cases_of(capture, tmp_path, call)
    assert (case.operands["x"] == 0x3F80).all()


def test_held_operands_are_captured_as_they_were_taken_in(tmp_path: Path) -> None:
    kernel = find("w4_gemv", "kept", {"block": "32", "offsets": "yes"})
    call = Call(kernel, implementation_of(kernel, "torch"))
    made = torch.Generator().manual_seed(3)
    given = {
        "words": torch.randint(-(2**31), 2**31, (5, 16), generator=made).int(),
        "scales": torch.rand(5, 4, generator=made).bfloat16(),
        "offset": torch.randn(5, 4, generator=made).bfloat16(),
    }
    before = call.hold(**given)
    x = torch.ones(1, 128).bfloat16()
    with Capture("a model") as capture:
        held = call.hold(**given)
        words = given["words"].clone()
        given["words"].zero_()
        held(x=x)
        with pytest.raises(
            CaseError, match=r"took in .*words.* before anybody looked on; hold\(\)"
        ):
            before(x=x)
    (case,) = cases_of(capture, tmp_path, call)
    assert np.array_equal(case.operands["words"].view(np.int32), words.numpy())
    before(x=x)


def test_a_call_too_large_for_the_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured, "MOST_BYTES", 100)
    call = norm()
    with Capture("a model") as capture:
        call_norm(call, torch.ones(1, 64).bfloat16())
    (line,) = capture.write(tmp_path)
    assert line == (
        "rms_norm/two_step: 0 rows of 1 calls, 1 not taken (1 rows of 256 bytes are more than a file holds)"
    )
    assert not list(tmp_path.iterdir())


def test_threads_that_call_at_once_lose_nothing(tmp_path: Path) -> None:
    call = norm()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with Capture("a model") as capture:

        def work() -> None:
            for _ in range(20):
                call_norm(call, torch.ones(1, 8).bfloat16())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.setswitchinterval(before)
    assert len(cases_of(capture, tmp_path, call)) == 80


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_the_largest_outlier(value: float) -> None:
    kernel = norm().kernel
    case = typical_case(kernel, {"rows": 2, "d": 8}, 0)
    x = case.operands["x"].copy()
    x[1, 2] = 0x7F80 if value == float("inf") else 0x7FC0
    found = outliers(kernel, Case(case.shape, {**case.operands, "x": x}, case.scalars))
    assert found[1] == np.inf
    assert np.isfinite(found[0])
    zero = Case(case.shape, {**case.operands, "x": np.zeros_like(x)}, case.scalars)
    assert (outliers(kernel, zero) == 0).all()


# ---- the file


def written(root: Path) -> tuple[Kernel, Path]:
    kernel = norm().kernel
    return kernel, captured.write(root, kernel, [typical_case(kernel, {"rows": 2, "d": 8}, 0)], "m")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    kernel, path = written(tmp_path)
    (case,) = captured.read(tmp_path, kernel)
    expected = typical_case(kernel, {"rows": 2, "d": 8}, 0)
    assert dict(case.shape) == dict(expected.shape)
    assert dict(case.scalars) == dict(expected.scalars)
    assert all(np.array_equal(case.operands[n], x) for n, x in expected.operands.items())
    assert path == tmp_path / "captured" / "rms_norm.two_step.safetensors"
    assert (tmp_path / ".gitignore").read_text() == "*\n"
    assert captured.read(tmp_path, find("rms_norm", "once")) == []


def test_an_operand_without_dims_and_one_turned_are_read_as_they_were(tmp_path: Path) -> None:
    kernel = find("gemm_i8", "float32", {"granularity": "tensor"})
    case = typical_case(kernel, {"rows": 2, "k": 4, "n": 3}, 0)
    turned = {**case.operands, "weight": np.asfortranarray(case.operands["weight"])}
    captured.write(tmp_path, kernel, [Case(case.shape, turned, case.scalars)], "m")
    (again,) = captured.read(tmp_path, kernel)
    assert again.operands["x_scale"].shape == ()
    assert all(np.array_equal(again.operands[n], x) for n, x in case.operands.items())


def test_more_than_the_most_rows_are_not_written(tmp_path: Path) -> None:
    kernel = norm().kernel
    many = [typical_case(kernel, {"rows": 129, "d": 8}, 0)] * 2
    with pytest.raises(StoreError, match=r"258 rows of .* bytes; keep at most 256 rows"):
        captured.write(tmp_path, kernel, many, "m")


def again(path: Path, change: Callable[[dict[str, Any], dict[str, str]], None]) -> None:
    """Write the file anew with other tensors or metadata."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(path, framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    change(tensors, metadata)
    save_file(tensors, path, metadata)


def drop(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    del tensors["0.weight"]


def other_kernel(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata["kernel"] = "rms_norm/once"


def other_type(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    tensors["0.x"] = tensors["0.x"].astype(np.uint32)


def other_shape(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata["cases"] = metadata["cases"].replace('"rows": 2', '"rows": 3')


def no_metadata(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata.clear()


def no_json(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata["cases"] = "[" * 100_000


def odd_scalar(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    facts = json.loads(metadata["cases"])
    facts[0]["scalars"]["eps"] = "nan"
    metadata["cases"] = json.dumps(facts)


def huge_scalar(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    facts = json.loads(metadata["cases"])
    facts[0]["scalars"]["eps"] = "0x1p9999999"
    metadata["cases"] = json.dumps(facts)


def huge_shape(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata["cases"] = metadata["cases"].replace('"rows": 2', '"rows": 1e400')


def half_a_row(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata["cases"] = metadata["cases"].replace('"rows": 2', '"rows": 2.5')


def no_cases(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata["cases"] = "[]"


def surplus(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    tensors["1.x"] = tensors["0.x"].copy()


def long_source(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata["source"] = "a" * 81


def odd_source(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata["source"] = "\x1b[2J\nSUMMARY 1 kernel: 1 pass"


def long_kernel(tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    metadata["kernel"] = "b" * 100_000 + "\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop, "'0.weight' is missing"),
        (other_kernel, "it is of rms_norm/once"),
        (other_type, "0.x holds uint32, the contract uint16"),
        (other_shape, "case 0 says shape"),
        (no_metadata, "'cases' is missing"),
        (no_json, ""),
        (odd_scalar, "scalar eps is nan"),
        (huge_scalar, ""),
        (huge_shape, ""),
        (half_a_row, "case 0 says shape"),
        (no_cases, "is of no case"),
        (surplus, "1.x is of no case"),
        (long_source, "source 'aaaa"),
        (odd_source, "is no name"),
        (long_kernel, "it is of bbbb"),
    ],
)
def test_a_wrong_file_is_named(change: Any, said: str, tmp_path: Path) -> None:
    kernel, path = written(tmp_path)
    again(path, change)
    with pytest.raises(
        StoreError, match=f"{path.name}: .*{said}.*; capture the rows again, or delete"
    ) as caught:
        captured.read(tmp_path, kernel)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("size", [0, 5, 60, -1])
def test_a_file_that_is_cut_short_is_named(size: int, tmp_path: Path) -> None:
    kernel, path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreError, match="capture the rows again, or delete the file"):
        captured.read(tmp_path, kernel)


def test_what_is_no_file_is_not_taken_for_none(tmp_path: Path) -> None:
    kernel = norm().kernel
    path = captured.path_of(tmp_path, kernel.id)
    path.parent.mkdir(parents=True)
    loop = path.with_name("loop")
    loop.symlink_to(loop)
    found = {captured.fingerprint(tmp_path, kernel.id)}
    made: list[Callable[[], object]] = [
        path.mkdir,
        lambda: path.symlink_to(tmp_path / "nowhere"),
        lambda: path.symlink_to(loop),
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
    ]
    for make in made:
        make()
        with pytest.raises(StoreError, match="it is there, and no file; capture the rows again"):
            captured.read(tmp_path, kernel)
        found.add(captured.fingerprint(tmp_path, kernel.id))
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    assert len(found) == 2


def test_a_file_too_large_to_be_one_is_not_read(tmp_path: Path) -> None:
    kernel, path = written(tmp_path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(StoreError, match="1099511627776 bytes; captured rows of a kernel have"):
        captured.read(tmp_path, kernel)
    assert "bytes; captured rows" in captured.fingerprint(tmp_path, kernel.id)


def test_without_the_library_nothing_is_taken_for_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, _ = written(tmp_path)
    monkeypatch.setattr(captured, "missing_reason", lambda names: "safetensors is not installed")
    with pytest.raises(StoreError, match="which is not installed here; pip install safetensors"):
        captured.read(tmp_path, kernel)


# ---- the gate


def capture_scaled(project: Path, sign: str, value: float) -> None:
    kernel = find("scaled", "two_step", {"sign": sign})
    case = typical_case(kernel, {"rows": 3, "d": 4}, 0)
    x = case.operands["x"].copy()
    x[1, 2] = np.float32(value).view(np.uint32) >> 16
    captured.write(
        project / ".contract", kernel, [Case(case.shape, {**case.operands, "x": x}, {"scale": 1.25})], "a model"
    )  # fmt: skip


def test_captured_rows_are_judged_and_told(project: Path, contract_run: Run) -> None:
    (project / "contracts" / "clamped.py").write_text(CLAMPED)
    words = ("scaled", "--gate", "shapes", "-v")
    code, out, _ = contract_run(*words)
    assert code == 0
    assert "captured" not in out
    capture_scaled(project, "plus", 2000.0)
    code, out, _ = contract_run(*words)
    assert code == 1
    assert "FAIL scaled/two_step/clamped/shapes" in out
    assert "of 12 outputs are not allowed (captured from a model, case 0, launch plain)" in out
    assert "scaled/two_step/torch: shapes pass (3 captured)" in out
    assert "; 3 rows captured" in out
    # those of one kernel are none of another's
    assert "scaled,sign=minus/two_step/torch: shapes pass (" in out
    assert "scaled,sign=minus/two_step/torch: shapes pass (3" not in out
    # what a model gave stays in the store
    assert not list(project.rglob("rows/*.json"))
    # and what is captured anew is judged anew
    capture_scaled(project, "plus", 2.0)
    assert contract_run(*words)[0] == 0


def test_controls_do_not_see_captured_rows(project: Path, contract_run: Run) -> None:
    assert contract_run("scaled", "--gate", "shapes")[0] == 0
    capture_scaled(project, "plus", 2000.0)
    path = captured.path_of(project / ".contract", "scaled/two_step")
    path.write_bytes(b"damaged")
    code, out, _ = contract_run("scaled", "--gate", "shapes")
    assert code == 1
    assert "FAIL scaled/two_step/torch/shapes" in out
    assert "capture the rows again, or delete the file" in out
    assert "Traceback" not in out
    code, out, _ = contract_run("scaled", "-k", "control")
    assert code == 0


def test_rows_are_captured_also_where_a_pipeline_fails(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(rest: list[str]) -> int:
        call = verified("scaled", sign="plus")
        x = torch.ones(3, 4).bfloat16()
        call(x=x, y=x, scale=1.25)
        if rest:
            raise UsageError(f"no {rest[0]}")
        return 0

    one = SimpleNamespace(name="small", load=lambda: run)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [one])
    path = project / ".contract" / "captured" / "scaled.two_step.safetensors"
    assert main(["pipeline", "small"]) == 0
    assert not path.exists()
    for words, code in (((), 0), (("that",), 4)):
        assert main(["pipeline", "--capture", "small", *words]) == code
        assert f"scaled/two_step: 3 rows of 1 calls captured in {path}" in capsys.readouterr().err
        path.unlink()
    assert main(["pipeline", "--capture"]) == 0
    assert "[--capture] NAME" in capsys.readouterr().out
    assert main(["pipeline", "--capture", "gpt5"]) == 4


def test_what_no_kernel_owns_is_told(project: Path, contract_run: Run) -> None:
    folder = project / ".contract" / "captured"
    folder.mkdir(parents=True)
    (folder / "scaled.gone.safetensors").write_bytes(b"x")
    (folder / ".scaled.two_step.safetensors.1.0").write_bytes(b"cut off")
    code, out, _ = contract_run("scaled", "--gate", "shapes")
    assert code == 0
    (line,) = [one for one in out.splitlines() if "captured" in one]
    assert (
        line
        == f"note: captured rows of no kernel that is here: scaled.gone.safetensors, in {folder}"
    )


# ---- a model is not disturbed


def test_what_the_contract_says_nothing_of_is_not_taken(tmp_path: Path) -> None:
    kernel = find("quantize_int8", "divide", {"granularity": "tensor"})
    call = Call(kernel, implementation_of(kernel, "torch"))
    rms = norm()
    with Capture("a model") as capture:
        call(x=torch.tensor([[float("nan"), 1.0]]))
        call(x=torch.tensor([[2.0, 1.0]]))
        rms(x=torch.ones(2, 8).bfloat16(), weight=torch.ones(8).bfloat16(), eps=float("inf"))
        rms(x=torch.ones(0, 8).bfloat16(), weight=torch.ones(8).bfloat16(), eps=1e-5)
    lines = capture.write(tmp_path)
    assert "2 calls, 1 not taken (quantize_int8/divide: x[0, 0] is nan" in lines[0]
    assert "0 rows of 2 calls, 2 not taken (rms_norm/two_step: scalar eps is inf)" in lines[1]
    assert len(captured.read(tmp_path, kernel)) == 1
    assert captured.read(tmp_path, rms.kernel) == []


def test_a_call_that_fails_is_not_taken(tmp_path: Path) -> None:
    call = norm()
    with Capture("a model") as capture:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(call, "item", SimpleNamespace(call=fails, name="torch"))
            with pytest.raises(ValueError, match="not today"):
                call_norm(call, torch.ones(1, 8).bfloat16())
        call_norm(call, torch.ones(1, 8).bfloat16())
    assert len(cases_of(capture, tmp_path, call)) == 1


def fails(**operands: Any) -> Any:
    raise ValueError("not today")


def test_what_is_written_to_is_kept_as_it_was(tmp_path: Path) -> None:
    kernel = find("kv_append", "moved", {"store": "bf16", "ring": "no"})
    call = Call(kernel, implementation_of(kernel, "torch"))
    case = typical_case(kernel, kernel.sized(kernel.contract.shapes[-1]), 0)
    given = {
        o.name: from_bits(case.operands[o.name].copy(), kernel.format(o)) for o in kernel.inputs()
    }
    with Capture("a model") as capture:
        call(**given, **case.scalars)
    (kept,) = cases_of(capture, tmp_path, call)
    assert all(np.array_equal(kept.operands[n], x) for n, x in case.operands.items())


def test_a_capture_that_is_entered_twice_looks_on_until_the_end(tmp_path: Path) -> None:
    call = norm()
    with Capture("a model") as capture:
        with capture:
            call_norm(call, torch.ones(1, 8).bfloat16())
        call_norm(call, torch.ones(1, 8).bfloat16())
    call_norm(call, torch.ones(1, 8).bfloat16())
    assert len(cases_of(capture, tmp_path, call)) == 2


def test_one_file_that_cannot_be_written_does_not_lose_the_others(tmp_path: Path) -> None:
    kernel = find("quantize_int8", "divide", {"granularity": "tensor"})
    first, second = Call(kernel, implementation_of(kernel, "torch")), norm()
    with Capture("a model") as capture:
        first(x=torch.ones(1, 8))
        call_norm(second, torch.ones(1, 8).bfloat16())
    captured.path_of(tmp_path, kernel.id).mkdir(parents=True)
    with pytest.raises(StoreError, match="quantize_int8"):
        capture.write(tmp_path)
    assert len(captured.read(tmp_path, second.kernel)) == 1


def test_a_source_is_a_name() -> None:
    for name in ("", "a" * 81, "a\nb"):
        with pytest.raises(CaseError, match="give a name of at most 80 letters"):
            Capture(name)
