"""A small model of Llama's kind with random packed weights, through the whole path."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract import captured
from contract.calls import Call
from contract.config import Config
from contract.errors import CaseError, CheckpointError, NotVerified
from contract.pipelines import llama_check
from contract.pipelines.capture import Capture
from contract.pipelines.compare import compare_logits
from contract.pipelines.decoding import generate, greedy
from contract.pipelines.guard import KernelsOnly
from contract.pipelines.llama import Kernels, Llama, LlamaConfig
from contract.pipelines.llama_weights import (
    config_of,
    dequantised,
    expected,
    load,
    resident_bytes,
)
from contract.verify import verified

SIZES = LlamaConfig(
    layers=2, width=64, heads=4, kv_heads=2, d=16, mlp=96, vocab=128, theta=1e4, eps=1e-5, context=64
)  # fmt: skip
METADATA = {
    "general.architecture": "llama",
    **{
        f"llama.{name}": value
        for name, value in {
            "block_count": 2, "embedding_length": 64, "attention.head_count": 4,
            "attention.head_count_kv": 2, "rope.dimension_count": 16, "feed_forward_length": 96,
            "vocab_size": 128, "rope.freq_base": 1e4,
            "attention.layer_norm_rms_epsilon": float(np.float32(1e-5)), "context_length": 64,
        }.items()
    },
}  # fmt: skip
PROMPT = [5, 77, 31, 2, 99, 64, 13]
PRECISIONS = ("fp32", "bf16")


class Stored:
    """A checkpoint in memory, as `contract.pipelines.checkpoints.Checkpoint` is one of a file."""

    metadata: Mapping[str, Any] = METADATA

    def __init__(self) -> None:
        rng = np.random.default_rng(7)
        self.tensors: dict[str, torch.Tensor] = {}
        for name, shape in expected(SIZES).items():
            self.tensors[name] = torch.from_numpy(_values(rng, name, shape))

    def require(self, wanted: Mapping[str, Sequence[int]]) -> None:
        assert wanted.keys() == self.tensors.keys()

    def kind(self, name: str) -> str:
        if self.tensors[name].dtype == torch.float32:
            return "F32"
        return "Q8_0" if name.startswith("token_embd") else "Q4_1"

    def tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Any:
    """A gain around 1, or blocks of Q4_1 or Q8_0."""
    if len(shape) == 1:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    rows, blocks = shape[0], shape[1] // 32
    d = rng.uniform(0.01, 0.04, (rows, blocks, 1)).astype(np.float16)
    if name.startswith("token_embd"):
        # small, so that a token does not only repeat itself
        d = (d / 16).astype(np.float16)
        codes = rng.integers(-127, 128, (rows, blocks, 32)).astype(np.int8)
        return np.concatenate((d.view(np.uint8), codes.view(np.uint8)), -1).reshape(rows, -1)
    m = (-8 * d + rng.normal(0, 0.01, d.shape)).astype(np.float16)
    codes = rng.integers(0, 256, (rows, blocks, 16)).astype(np.uint8)
    return np.concatenate((d.view(np.uint8), m.view(np.uint8), codes), -1).reshape(rows, -1)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Weights, and kernels that are verified: in a store of these tests where the project's is of other sources."""
    made = Stored()
    with pytest.MonkeyPatch.context() as patched:
        try:
            for precision in PRECISIONS:
                load(made, precision)  # type: ignore[arg-type]
                Kernels(precision)
        except NotVerified:
            folder = tmp_path_factory.mktemp("verified")
            patched.setattr(Config, "store_root", property(lambda _: folder))
        yield made


@pytest.fixture(scope="module")
def theirs(stored: Any) -> llama_check.Expected:
    pytest.importorskip("transformers", reason="transformers is an extra: [transformers]")
    return llama_check.expected_of(SIZES, dequantised(stored, SIZES), PROMPT, 12, frozenset())


def model(stored: Any, precision: str, **more: Any) -> Llama:
    return Llama(*load(stored, precision), Kernels(precision), **more)


def test_the_sizes_are_read_from_the_file() -> None:
    assert config_of(METADATA) == SIZES
    for name, value, said in (
        ("general.architecture", "gemma", "architecture 'gemma'"),
        ("llama.block_count", "2", "llama.block_count is '2'"),
        ("llama.vocab_size", None, "llama.vocab_size is None"),
        ("llama.block_count", 1 << 23, "llama.block_count is 8388608; at most 1024 layers"),
        ("llama.block_count", float("inf"), "llama.block_count is inf"),
        ("llama.attention.head_count", float("nan"), "llama.attention.head_count is nan"),
        ("llama.attention.head_count", 2.9, "head_count is 2.9; .* a whole number of 1 to"),
        ("llama.rope.dimension_count", 1 << 31, "dimension_count is 2147483648; .* a whole number"),
        ("llama.rope.freq_base", float("inf"), "llama.rope.freq_base is inf"),
    ):
        with pytest.raises(CheckpointError, match=said):
            config_of({**METADATA, name: value})
    with pytest.raises(CaseError, match="heads are a multiple of key heads"):
        config_of({**METADATA, "llama.attention.head_count_kv": 3})


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_computes_in_verified_kernels_alone(stored: Any, precision: str) -> None:
    run = model(stored, precision)
    with KernelsOnly():
        whole = run.step(PROMPT, 0)
        following = run.step([3], len(PROMPT))
    assert whole.shape == following.shape == (1, SIZES.vocab)
    assert whole.dtype == run.kernels.dtype


@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_with_a_cache_are_one_whole_pass(stored: Any, precision: str) -> None:
    whole = model(stored, precision).logits(PROMPT, 0)
    one = model(stored, precision, capacity=2)
    steps = torch.cat([one.step([token], at) for at, token in enumerate(PROMPT)])
    found = compare_logits(steps.float(), whole.float())
    assert found.worst_cosine > (1 - 1e-6 if precision == "fp32" else 0.999)
    assert one.cache.length() == len(PROMPT)


def test_a_step_changes_one_slot(stored: Any) -> None:
    run = model(stored, "bf16")
    run.step(PROMPT, 0)
    before = run.cache.snapshot()
    run.step([3], len(PROMPT))
    both = [(layer, part) for layer in range(SIZES.layers) for part in ("keys", "values")]
    assert run.cache.slots_changed(before) == {(0, len(PROMPT)): both}


def test_fp32_is_transformers_on_the_same_weights(
    stored: Any, theirs: llama_check.Expected
) -> None:
    run = model(stored, "fp32")
    found = generate(
        run.step, PROMPT, 12, greedy(verified("argmax_rows", profile="float32_logits"))
    )
    assert found.ids == list(theirs.text)
    logits = llama_check.forced(model(stored, "fp32"), PROMPT, theirs.text)
    assert (logits - theirs.logits).abs().max() < 2e-5 * theirs.logits.std()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_negative_control_is_seen(
    stored: Any, theirs: llama_check.Expected, precision: str
) -> None:
    def again(changed: Callable[[str, torch.Tensor], torch.Tensor] | None) -> Any:
        return load(stored, precision, changed=changed)[1]

    report = llama_check.check(
        SIZES, again, precision, PROMPT, theirs, list(llama_check.CONTROLS), "small"
    )
    outcomes = {control.name: control.outcome for control in report.controls}
    blind = {"dropped-rounding"} if precision == "fp32" else set()
    assert report.verdict.green, report.lines()
    assert outcomes == {
        name: "blind" if name in blind else "red" for name in llama_check.CONTROLS
    }, report.lines()
    assert report.exit_code == 0


@pytest.mark.parametrize("theta", [1e4, 1.01e4])
def test_a_fault_that_bf16_hides_is_seen_in_fp32(
    stored: Any, theirs: llama_check.Expected, theta: float
) -> None:
    ours = dataclasses.replace(SIZES, theta=theta)
    report = llama_check.check(
        ours, lambda changed: load(stored, "bf16", changed=changed)[1], "bf16", PROMPT, theirs, [], "small",
        exact=lambda: load(stored, "fp32")[1],
    )  # fmt: skip
    outcomes = {gate.name: gate.outcome for gate in report.verdict.gates}
    assert outcomes == {
        "logits": "green", "stages": "green", "fp32": "green" if theta == SIZES.theta else "red",
    }, report.lines()  # fmt: skip


def test_an_import_is_compared_with_another_one(stored: Any) -> None:
    tensors = dequantised(stored, SIZES)
    right = (SIZES, tensors)
    # as transformers reads it: fp32's 1e-4
    as_fp32 = dataclasses.replace(SIZES, eps=float(np.float32(SIZES.eps)))
    same = llama_check.compare_imports(right, (as_fp32, dict(tensors)))
    assert same == llama_check.Imported((), ())
    name = "model.layers.1.self_attn.q_proj.weight"
    rows = {**tensors, name: tensors[name].flip(0)}
    del rows["model.norm.weight"]
    wrong = (dataclasses.replace(SIZES, theta=1e5, eps=1e-6), rows)
    found = llama_check.compare_imports(right, wrong)
    assert found.sizes == ("theta", "eps")
    assert found.tensors == (name, "model.norm.weight")
    assert found.different == 4


def test_packed_weights_stay_packed(stored: Any) -> None:
    _, packed = load(stored, "bf16")
    _, whole = load(stored, "fp32")
    assert resident_bytes(packed) < 0.3 * resident_bytes(whole)


@pytest.mark.parametrize(
    ("ids", "position", "said"),
    [([128], 0, "token 128; ids are 0 to 127"), ([1], 3, "position 3 after 0 positions")],
)
def test_what_a_step_does_not_take_is_named(
    stored: Any, ids: list[int], position: int, said: str
) -> None:
    with pytest.raises(CaseError, match=said):
        model(stored, "bf16").step(ids, position)


def test_a_weight_of_another_kind_is_named(stored: Any) -> None:
    other = Stored()
    other.kind = lambda name: "Q6_K"  # type: ignore[method-assign]
    with pytest.raises(CheckpointError, match=r"blk.0.attn_norm.weight is stored as Q6_K"):
        load(other, "bf16")  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_it_gives_its_kernels_is_captured(stored: Any, precision: str, tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="captured rows are files of safetensors: [models]")
    with Capture("a small model") as capture:
        run = model(stored, precision)
        with KernelsOnly():
            run.step(PROMPT, 0)
            run.step([4], len(PROMPT))
    capture.write(tmp_path)
    for name, call in run.kernels.all().items():
        assert isinstance(call, Call)
        cases = captured.read(tmp_path, call.kernel)
        # two layers, a prompt and a step; in bf16 sums are fused with the norm after them
        once = name in ("tables", "norm", "decode", "prefill")
        least = 0 if name == "add" and precision == "bf16" else 2 if once else 4
        assert len(cases) >= least, name
    products = sorted(path.name for path in (tmp_path / "captured").iterdir())
    assert any(name.startswith(("w4_gemv", "linear")) for name in products), products
