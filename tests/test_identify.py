"""`contract identify` finds what a black box rounds, without a hint, and says so when nothing explains it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract import registry, suites
from contract.cli import main
from contract.config import read_config
from contract.errors import UsageError
from contract.identify.binding import candidates
from contract.identify.every_step import every_step
from contract.identify.expressions import evaluate, rewritten
from contract.identify.hypotheses import first_round, second_round, signatures
from contract.orders import Tree

BOXES = Path(__file__).with_name("black_boxes.py")
TWO_STEP = {"normed": "bf16", "out": "bf16"}


@pytest.fixture(autouse=True)
def catalogue() -> None:
    suites.load(read_config())


def identified(tmp_path: Path, target: str, kernel: str, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and what is said of the first operands that the target takes."""
    file = tmp_path / "found.json"
    code = main(["identify", target, "--as", kernel, "--json", str(file), *more])
    found = json.loads(file.read_text())
    taken = [one for one in found["signatures"] if not one["not_taken"]]
    return code, taken[0] if taken else found["signatures"][0]


def test_truncating_cast_is_found_and_its_code_is_judged_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--given", "source=fp32", "--given", "to=bf16")
    code, found = identified(tmp_path, f"{BOXES}:truncating_cast", "cast", *given)
    assert code == 0
    assert found["best"]["modes"] == {"out": "toward_zero"}
    assert found["share_confirmed"] >= 0.999
    assert found["runner_up"]["changes"][-1].startswith("the profile is only for to = ")
    (tmp_path / "black_boxes.py").write_text(BOXES.read_text())
    (tmp_path / "mine.py").write_text(found["code"])
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--effort", "quick", "-j", "1", "mine.py"]) == 0, capsys.readouterr().out


def test_noise_is_not_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--given", "source=fp32", "--given", "to=bf16")
    code, found = identified(tmp_path, f"{BOXES}:noise", "cast", *given)
    assert (code, found["explained"]) == (1, False)
    said = capsys.readouterr().out
    assert "no explanation" in said
    assert " outputs are refused, the first: " in said
    assert not found["code"]


def test_one_wrong_element_of_each_call_is_named_and_no_clean_explanation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--given", "x=bf16", "--given", "gain=w")
    code, found = identified(tmp_path, f"{BOXES}:one_wrong", "rms_norm", *given)
    assert (code, found["explained"], found["best"]["profile"]) == (1, True, "two_step")
    assert found["share_confirmed"] > 0.999
    assert f"# {found['refused']} of {found['compared']:,} outputs were refused" in found["code"]
    last = capsys.readouterr().out.splitlines()[-1]
    counts = f"but {found['refused']} of {found['compared']:,} outputs are refused"
    assert f"two_step, gain=w, {counts}, the first: exact d=64: out[0, 0]: got 0x0000" in last


def test_another_formula_is_far_and_has_no_runner_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--given", "x=bf16", "--given", "gain=w")
    code, found = identified(tmp_path, f"{BOXES}:layer_norm", "rms_norm", *given)
    assert (code, found["far"], found["runner_up"], found["apart"]) == (1, True, None, None)
    said = capsys.readouterr().out
    assert "far from every hypothesis of this contract, probably another formula" in said
    assert "nearest" not in said
    assert "told apart" not in said


def test_runner_up_has_its_shares_of_the_same_halves_as_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--given", "x=bf16", "--given", "gain=w")
    _, found = identified(tmp_path, f"{BOXES}:llama_like", "rms_norm", *given)
    halves = found["runner_up_share_confirmed"], found["runner_up"]["share"]
    shown = "{:.3f} % ({:.3f} %)".format(*(100 * share for share in halves))
    runner = next(x for x in capsys.readouterr().out.splitlines() if "runner-up: " in x)
    assert runner.endswith(f": {shown}")


@pytest.mark.parametrize(
    ("name", "kernel", "given"),
    [("every_step", "rms_norm", ("gain=w",)), ("every_step_softmax", "softmax", ())],
)
def test_formula_that_rounds_every_step_is_found(
    tmp_path: Path, name: str, kernel: str, given: tuple[str, ...]
) -> None:
    options = [part for one in ("x=bf16", *given) for part in ("--given", one)]
    code, found = identified(tmp_path, f"{BOXES}:{name}", kernel, *options)
    assert (code, found["best"]["every_step"], found["refused"]) == (0, "bf16", 0)
    assert found["best"]["changes"][-1] == "every step rounded to bf16"
    # a profile that rounds at its points leaves a good part of the outputs
    assert found["runner_up"]["share"] < 0.995
    assert not found["code"]


def test_every_step_is_no_hypothesis_where_formats_are_wide_or_no_step_is_seen() -> None:
    def offered(kernel: str, **given: str) -> list[str]:
        signature = signatures(registry.get(kernel), given)[0]
        return [h.changes[-1] for h in every_step(signature, [{}])]

    assert offered("rms_norm", x="bf16", gain="w") == ["every step rounded to bf16"]
    assert offered("rms_norm", x="fp32") == []
    assert offered("cast", source="fp32", to="bf16") == []
    # nothing is computed; a variance is composed
    assert offered("concat_rows") == []
    assert offered("layer_norm", x="bf16") == []


def test_target_that_raises_is_not_said_to_be_no_kernel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--given", "x=bf16")
    code, found = identified(tmp_path, f"{BOXES}:raises", "rms_norm", *given)
    assert (code, found["raised"]) == (1, True)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("no answer: ")
    assert "raised an exception with 1 of 2 sets of operands, and takes none of the others" in last
    assert "RuntimeError: no kernel image for this device" in last


@pytest.mark.parametrize(
    ("name", "words", "more"),
    [
        ("dies", "crash: killed by signal 6", ()),
        ("hangs", "timeout: no call finished for 3 s", ("--timeout", "3")),
        ("hoards", "allocate", ("--memory", "2G")),
    ],
)
def test_target_that_ends_its_process_is_told_and_never_green(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str, more: tuple[str, ...]
) -> None:
    given = ("--given", "source=fp32", "--given", "to=bf16", *more)
    code, _ = identified(tmp_path, f"{BOXES}:{name}", "cast", *given)
    assert code == 1
    assert words in capsys.readouterr().out


def test_module_whose_eps_is_its_own_is_found_with_its_value(tmp_path: Path) -> None:
    code, found = identified(tmp_path, f"{BOXES}:Norm", "rms_norm", "--given", "x=bf16")
    assert code == 0
    assert found["best"]["points"] == TWO_STEP
    assert found["best"]["scalars"] == {"eps": 1e-5}
    assert found["binding"]["constructor"] == {"width": "d"}
    assert found["binding"]["state"] == {"weight": "weight"}


TORCH = [
    ("torch.nn.functional:rms_norm", "rms_norm", "once", ("x=bf16", "weight=bf16")),
    ("gelu_tanh_times_up", "geglu", "two_step", ()),
    ("int4_rounded", "w4_gemv", "dequantised", ()),
    ("int4_kept", "w4_gemv", "kept", ()),
]  # fmt: skip
TRANSFORMERS = [
    ("transformers.models.qwen3.modeling_qwen3:Qwen3RMSNorm", "rms_norm", "two_step", "gain=w"),
    ("transformers.models.llama.modeling_llama:LlamaRMSNorm", "rms_norm", "two_step", "gain=w"),
    ("transformers.models.gemma.modeling_gemma:GemmaRMSNorm", "rms_norm", "once", "gain=1+w"),
    ("transformers.models.gemma4.modeling_gemma4:Gemma4RMSNorm", "rms_norm", "once", "gain=w"),
    ("llama_rope", "rope", "each_op", "pairing=halves"),
    ("gptj_rope", "rope", "each_op", "pairing=interleaved"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kernel", "profile", "given"), TORCH, ids=[t[0].rpartition(":")[2] for t in TORCH]
)
def test_torch_is_found(
    tmp_path: Path, target: str, kernel: str, profile: str, given: tuple[str, ...]
) -> None:
    options = [part for one in given for part in ("--given", one)]
    target = target if ":" in target else f"{BOXES}:{target}"
    code, found = identified(tmp_path, target, kernel, *options)
    assert code == 0
    assert (found["best"]["profile"], found["best"]["changes"]) == (profile, [])
    assert found["share_confirmed"] >= 0.999
    assert found["runner_up"]["share"] < found["best"]["share"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kernel", "profile", "parameter"),
    TRANSFORMERS,
    ids=[t[0].rpartition(":")[2] for t in TRANSFORMERS],
)
def test_transformers_is_found(
    tmp_path: Path, target: str, kernel: str, profile: str, parameter: str
) -> None:
    pytest.importorskip("transformers")
    target = target if ":" in target else f"{BOXES}:{target}"
    code, found = identified(tmp_path, target, kernel, "--given", "x=bf16")
    assert code == 0
    assert (found["best"]["profile"], found["best"]["changes"]) == (profile, [])
    name, _, value = parameter.partition("=")
    assert found["best"]["parameters"][name] == value
    assert found["share_confirmed"] >= 0.999


@pytest.mark.slow
def test_bf16_accumulating_dot_is_found(tmp_path: Path) -> None:
    given = ("--given", "bias_term=no", "--given", "x=bf16")
    code, found = identified(tmp_path, f"{BOXES}:narrow_dot", "linear", *given)
    assert code == 0
    tree = Tree("sequential", accumulator="bf16", products="bf16")
    assert found["best"]["orders"] == {"dot": str(tree)}
    assert found["runner_up"]["share"] < 0.9


@pytest.mark.slow
def test_profile_under_a_parameter_that_it_is_not_declared_for_is_found(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    code, found = identified(tmp_path, f"{BOXES}:gptj_rope", "rope", "--given", "x=fp32")
    assert code == 0
    assert found["best"]["parameters"] == {"pairing": "interleaved"}
    assert found["best"]["changes"] == ["the profile is only for pairing = halves"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["nowhere:f", "--as", "cast"], "no module 'nowhere'"),
        (["math:nothing", "--as", "cast"], "has no 'nothing'"),
        (["math:pi", "--as", "cast"], "cannot be called"),
        (["math", "--as", "cast"], "give package.module:name"),
        (["nowhere.py:f", "--as", "cast"], "no file nowhere.py"),
        (["math:sin", "--as", "cats"], "no contract 'cats'"),
        (["math:sin", "--as", "cast", "--given", "from=fp32"], "--given from: cast has"),
        (["math:sin", "--as", "cast", "--given", "to=int8"], "is like that; to is bf16 or "),
        (["math:sin", "--as", "rms_norm", "--given", "gain=v"], "gain is w or 1+w or none"),
        (["math:sin", "--as", "rms_norm", "--given", "x=int8"], "x is bf16 or fp32"),
        (["math:sin", "--as", "zzzz"], "more: contract list"),
        (["math:sin", "--as", "cast", "--scalar", "eps=1"], "scalars of cast are none"),
        (["math:sin", "--as", "cast", "--arg", "x"], "write NAME=VALUE"),
        (["math:sin"], "required: --as"),
    ],
)
def test_wrong_use_is_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["identify", *options]) == 4
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1
    assert words in error[0]


def test_first_round_has_every_subset_once_and_the_second_narrow_sums() -> None:
    contract = registry.get("rms_norm")
    signature = signatures(contract, {"x": "bf16", "gain": "w"})[0]
    listed = first_round(signature, [{}]).hypotheses
    points = [dict(h.kernel.profile.points) for h in listed if h.kernel.parameters["gain"] == "w"]
    assert points == [{"normed": None, "out": "bf16"}, TWO_STEP]
    varied = list(second_round(listed[0]))
    assert {"`mean` summed one after the other in bf16", "`out` rounded toward zero (truncated)"} <= {
        change for h in varied for change in h.changes
    }  # fmt: skip


def facts(*parameters: tuple[str, bool], **more: Any) -> dict[str, Any]:
    said = [
        {"name": n, "required": needed, "kind": "POSITIONAL_OR_KEYWORD"} for n, needed in parameters
    ]
    base = {"state": {}, "unbound": [], "constructor": {}, "parameters": said}
    return {**base, **more}


def test_operands_go_by_name_then_by_position_and_the_rest_is_guessed() -> None:
    kernel = signatures(registry.get("rms_norm"), {"x": "bf16", "gain": "w"})[0].first
    said = facts(("input", True), ("shape", True), ("weight", False), ("eps", False))
    ways, why = candidates(kernel, said, {}, {"rows": 2, "d": 8})
    assert not why
    assert [dict(way.keywords)["shape"] for way in ways[:2]] == ["rows", "(rows,)"]
    assert dict(ways[4].keywords) == {
        "input": "x",
        "shape": "(d,)",
        "weight": "weight",
        "eps": "eps",
    }
    assert (ways[0].by_position, ways[0].guessed, ways[0].fixed) == (("input",), ("shape",), ())


def test_operand_without_a_place_is_said() -> None:
    kernel = signatures(registry.get("rms_norm"), {"x": "bf16", "gain": "w"})[0].first
    assert candidates(kernel, facts(("x", True)), {}, {"d": 8}) == ([], "takes no weight")
    unbound = facts(("x", True), unbound=["bias"])
    assert candidates(kernel, unbound, {}, {"d": 8}) == ([], "its bias is no operand")


def test_name_of_an_operand_that_is_absent_is_never_guessed() -> None:
    kernel = signatures(registry.get("rms_norm"), {"x": "bf16", "gain": "none"})[0].first
    sizes = {"rows": 2, "d": 8}
    said = facts(("x", True), ("weight", True), ("eps", True))
    assert candidates(kernel, said, {}, sizes) == ([], "its `weight` is no operand here")
    stated, why = candidates(kernel, said, {"weight": "1.0"}, sizes)
    assert (dict(stated[0].keywords)["weight"], why) == ("1.0", "")
    # nor does it take the operand that is there by its place
    assert candidates(kernel, facts(("weight", False)), {}, sizes) == ([], "takes no x")


@pytest.mark.parametrize("name", ["llama_like", "Weighted"])
def test_set_without_an_operand_that_the_target_names_is_not_taken(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--given", "x=bf16", "--given", "gain=none")
    code, found = identified(tmp_path, f"{BOXES}:{name}", "rms_norm", *given)
    assert (code, found["not_taken"]) == (1, "its `weight` is no operand here")
    assert "no explanation" not in capsys.readouterr().out


def test_expressions_are_numbers_words_and_names_of_the_call() -> None:
    names = {"x": np.zeros(3), "d": 8}
    assert evaluate("(d,)", names) == (8,)
    assert evaluate("[d, 2]", names) == [8, 2]
    assert evaluate("-1e-6", names) == -1e-6
    assert evaluate("tanh", names) == "tanh"
    assert evaluate("1+w", names) == "1+w"
    assert evaluate("x", names) is names["x"]
    with pytest.raises(UsageError, match="give a number"):
        evaluate("os.environ", names)
    assert rewritten("(d,)", lambda name: f"x.shape[{len(name)}]") == "(x.shape[1],)"


def test_onnx_node_is_found(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    make, types = onnx.helper, onnx.TensorProto
    node = make.make_node("Cast", ["x"], ["out"], to=types.BFLOAT16)
    ends = [
        [make.make_tensor_value_info(name, kind, ["rows", "d"])]
        for name, kind in (("x", types.FLOAT), ("out", types.BFLOAT16))
    ]
    graph = make.make_graph([node], "one", *ends)
    opset = [make.make_opsetid("", 17)]
    model = tmp_path / "cast.onnx"
    onnx.save(make.make_model(graph, opset_imports=opset, ir_version=8), str(model))
    given = ("--given", "source=fp32", "--given", "to=bf16")
    code, found = identified(tmp_path, str(model), "cast", *given)
    assert code == 0
    assert (found["best"]["profile"], found["best"]["changes"]) == ("inf", [])


@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime") is not None, reason="onnxruntime is installed"
)
def test_onnx_model_without_onnxruntime_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", "model.onnx", "--as", "cast"]) == 4
    assert "onnxruntime is not installed" in capsys.readouterr().err


@pytest.mark.slow
def test_triton_launcher_is_found_in_its_ptx(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    target = "contract.kernels.triton.rms_norm:rms_norm_triton"
    options = ("--engine", "ptx", "--arg", "profile=once", "--given", "x=bf16", "--given", "gain=w")
    code, found = identified(tmp_path, target, "rms_norm", *options)
    assert code == 0
    assert found["best"]["changes"] == []
    assert 'engine="ptx"' in found["code"]
