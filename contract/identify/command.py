"""`contract identify TARGET --as KERNEL`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from contract import registry, suites
from contract.case import Case, Kernel
from contract.config import Config
from contract.declare import Contract
from contract.engines import GPU, HOST, devices
from contract.errors import ContractError, UsageError
from contract.identify import words
from contract.identify.binding import absent
from contract.identify.found import FAULTS, Asked, look
from contract.identify.hypotheses import signatures
from contract.judge_process import COMPILING, settle
from contract.store import atomic_write_json
from contract.worker import Worker


def identify(arguments: argparse.Namespace, config: Config) -> int:
    """Print what a black box computes; returns the exit code: 0 explained, 1 not."""
    loaded = suites.load(config, arguments.files)
    contract = registry.get(arguments.kernel)
    asked = Asked(
        arguments.target,
        _pairs("--arg", arguments.arg),
        _numbers(contract, _pairs("--scalar", arguments.scalar)),
        arguments.engine,
        config.seed if arguments.seed is None else arguments.seed,
    )
    chosen = signatures(contract, _stated(contract, _pairs("--given", arguments.given)))
    if arguments.engine == GPU and (why := devices.missing_device()):
        raise UsageError(f"--engine gpu: {why}")
    settle()
    results = []
    with _worker(arguments, config, contract, loaded.payload(), asked) as worker:
        for signature in chosen:
            found = look(signature, asked, worker, _asking(worker, asked))
            results.append(found)
            print("\n".join(words.lines(found, asked.target, asked.engine)), flush=True)
    print(words.summary(results, asked.target, contract.name))
    if arguments.json:
        said = words.as_json(results, asked.target, contract.name, asked.engine, asked.seed)
        atomic_write_json(arguments.json, said)
    return words.exit_code(results)


def _worker(
    arguments: argparse.Namespace,
    config: Config,
    contract: Contract,
    payload: dict[str, Any],
    asked: Asked,
) -> Worker:
    timeout = arguments.timeout or config.timeout
    return Worker(
        setup="contract.identify.target:worker_setup",
        setup_payload={
            "suites": payload, "kernel": contract.name, "target": asked.target, "engine": asked.engine,
        },
        timeout=timeout * (1 if asked.engine == HOST else COMPILING),
        memory=arguments.memory,
        sys_path=["", *sys.path],
        resident=asked.engine == GPU,
    )  # fmt: skip


def _asking(worker: Worker, asked: Asked) -> Any:
    def facts_of(kernel: Kernel, case: Case) -> dict[str, Any]:
        payload = {
            "target": asked.target,
            "arguments": dict(asked.arguments),
            "scalars": dict(case.scalars),
            "sizes": dict(case.shape),
            "shapes": {o.name: list(np.shape(case.operands[o.name])) for o in kernel.inputs()},
            "absent": absent(kernel),
        }
        reply = worker.call("contract.identify.target:describe", payload, {})
        if reply.outcome in FAULTS:
            return {
                "fault": f"{reply.outcome.replace('_', ' ')} while it was loaded: {reply.detail}"
            }
        if reply.outcome != "ok":
            raise UsageError(f"target {asked.target!r} cannot be loaded: {reply.detail}")
        if reply.payload["refused"].startswith("target"):
            raise UsageError(reply.payload["refused"])
        return reply.payload

    return facts_of


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier() or not value:
            raise UsageError(f"{option} {one!r}: write NAME=VALUE")
        found[name] = value
    return found


def _numbers(contract: Contract, given: dict[str, str]) -> dict[str, float]:
    known = [s.name for s in contract.scalars]
    found = {}
    for name, text in given.items():
        if name not in known:
            raise UsageError(
                f"--scalar {name}: scalars of {contract.name} are {', '.join(known) or 'none'}"
            )
        try:
            found[name] = float(text)
        except ValueError:
            raise UsageError(f"--scalar {name}={text}: not a number") from None
    return found


def _stated(contract: Contract, given: dict[str, str]) -> dict[str, str]:
    """Parameters and operands' formats, each of which some kernel of the contract has."""
    formats = {o.name for o in contract.operands}
    for name in given:
        if name not in contract.parameters and name not in formats:
            known = [*contract.parameters, *sorted(formats)]
            raise UsageError(f"--given {name}: {contract.name} has {', '.join(known)}")
    if not signatures(contract, given):
        stated = ", ".join(f"{k}={v}" for k, v in given.items())
        there = "; ".join(f"{name} is {' or '.join(_values(contract, name))}" for name in given)
        raise UsageError(f"--given {stated}: no kernel of {contract.name} is like that; {there}")
    return given


def _values(contract: Contract, name: str) -> list[str]:
    """Of a parameter or of an operand's format, over all kernels of the contract."""
    kernels = [kernel for signature in signatures(contract, {}) for kernel in signature.kernels]
    if name in contract.parameters:
        return list(dict.fromkeys(kernel.parameters[name] for kernel in kernels))
    operand = next(o for o in contract.operands if o.name == name)
    return list(
        dict.fromkeys(
            kernel.format(operand).name
            for kernel in kernels
            if operand in (*kernel.inputs(), *kernel.outputs())
        )
    )


__all__ = ["ContractError", "identify"]
