"""Tokens a second of SmolLM2 with packed weights, against transformers' fp32 model on the dequantised ones, eager.

Needs the package of its weights, and transformers; without them it says so and measures nothing.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from contract.errors import ContractError

STEPS, PASSES = 24, 4
PROMPT = tuple(range(100, 140))
LEAST = 2.0


def measure() -> list[tuple[str, float, float]]:
    """(name, ratio, limit)."""
    from contract.pipelines.checkpoints import open_checkpoint
    from contract.pipelines.llama import Kernels, Llama
    from contract.pipelines.llama_check import transformers_model
    from contract.pipelines.llama_weights import config_of, dequantised, load
    from contract.pipelines.packages import SMOLLM2, package_file

    try:
        checkpoint = open_checkpoint(package_file(SMOLLM2))
        config = config_of(checkpoint.metadata)
        theirs = transformers_model(config, dequantised(checkpoint, config))
    except ContractError as error:
        print(f"skipped smollm2: {error}")
        return []
    # both as users run them: on every core
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    ours = Llama(*load(checkpoint, "bf16"), Kernels("bf16"))
    ours.step(PROMPT, 0)
    with torch.no_grad():
        state: Any = theirs(torch.tensor([PROMPT]), use_cache=True).past_key_values
        at, best = len(PROMPT), [float("inf"), float("inf")]
        for _ in range(PASSES):
            start = time.perf_counter()
            for step in range(STEPS):
                ours.step([50 + step], at + step)
            best[0] = min(best[0], time.perf_counter() - start)
            start = time.perf_counter()
            for step in range(STEPS):
                state = theirs(torch.tensor([[50 + step]]), past_key_values=state, use_cache=True).past_key_values  # fmt: skip
            best[1] = min(best[1], time.perf_counter() - start)
            at += STEPS
    torch.set_num_threads(1)
    print(f"smollm2: {STEPS / best[0]:.1f} and {STEPS / best[1]:.1f} tokens a second")
    return [("smollm2 packed, tokens a second in multiples of transformers' fp32", best[1] / best[0], LEAST)]  # fmt: skip
