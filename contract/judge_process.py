"""The judge process: reads kernels to judge as JSON lines, writes finished checks as JSON lines.

It computes inputs and ranges and owns the worker that runs the implementations. The parent (contract.runner) starts
it, stores what it finishes, and restarts it if it dies.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract import gates, recordbook, registry, sketch, suites, worker_server
from contract.allocator import keep_freed_memory
from contract.autocontrols import ANY_GATE
from contract.availability import missing_reason, modules
from contract.case import Case, Kernel, find
from contract.declare import Control, Implementation
from contract.diagnose import explain
from contract.engines import ENGINES, GPU, HOST, devices, host
from contract.errors import ContractError
from contract.gates import reference
from contract.judge import GRAPH, PLAIN, Bench, Subject, Tally
from contract.results import CheckResult
from contract.worker import Worker, warm_up

# Workers that a judge keeps: a contract's implementations, and the planted controls of both colours.
WORKERS = 6
# How many times the time of a call one may take that compiles first.
COMPILING = 5
FAULTS = ("crash", "timeout", "out_of_memory")


def worker_setup(payload: dict[str, Any]) -> None:
    """In the worker: load the same suites as the parent."""
    suites.reload(payload)


def server_setup(payload: dict[str, Any]) -> None:
    """In the worker server, before it forks: what every worker needs."""
    from contract import autocontrols

    del autocontrols
    suites.reload(payload)


class Judge:
    """Judges the checks of one kernel after the other."""

    def __init__(self, options: Mapping[str, Any], emit: Any):
        self.options, self.emit = options, emit
        # a judge without a store has no captured rows
        root = options.get("store_root")
        self._store_root = None if root is None else Path(root)
        self.last: tuple[str, Bench | None] = ("", None)
        self.workers: dict[tuple[Any, ...], Worker] = {}
        # files that code was made from: for the check that is judged, and for each target so far, which may keep code
        self.used: set[str] = set()
        self._used_by: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
        # implementation -> the first gate of this job, which told that it does not take the contract's arguments
        self.misfits: dict[str, str] = {}

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers.values():
            worker.close()
        self.workers.clear()

    def judge(self, job: Mapping[str, Any]) -> None:
        """Judge all checks of a job (one kernel) and emit each when it is finished."""
        spec = job["kernel"]
        kernel = find(spec["name"], spec["profile"], spec["parameters"])
        bench = self.bench(kernel, job)
        self.misfits.clear()
        for check in job["checks"]:
            start = time.monotonic()
            bench.sketches = bool(self.options.get("sketches")) and check["gate"] in sketch.GATES
            self.used = set()
            result, row = self._one(kernel, bench, check)
            result = replace(
                result, seconds=time.monotonic() - start, reproduce=f"contract run {check['id']}"
            )
            self.emit({"result": vars(result), "row": row, "used": sorted(self.used)})

    def _note_used(self, contract: str, check: Mapping[str, Any], files: set[str]) -> None:
        """Files that code of the check's target was made from, now or for an earlier check of it."""
        used = self._used_by[contract, check["target"], check["name"], check["module"]]
        used |= files
        self.used |= used

    def _worker_for(self, kernel: Kernel, item: Implementation | Control, engine: str) -> Worker:
        """The worker of an implementation, or of the planted controls of one colour.

        What one target does to the process (a default dtype, flushed subnormals, a patched module) must neither save nor
        spoil another. A function that serves several kernels (parameters, profiles) is one target; controls share a
        worker while none of them changes what they share (contract.engines.state). Of the workers on a GPU one is kept:
        each takes some 500 MiB of its memory before it does anything.
        """
        key: tuple[Any, ...] = (
            (item.colour,) if isinstance(item, Control) else (kernel.contract.name, id(item.call))
        )
        key = (*key, item.requires, engine)
        worker = self.workers.pop(key, None)
        if worker is None:
            for other in [k for k in self.workers if k[-1] == engine == GPU]:
                self.workers.pop(other).close()
            while len(self.workers) >= WORKERS:
                # the one that was used longest ago
                self.workers.pop(next(iter(self.workers))).close()
            worker = self.new_worker(item.requires, engine)
        self.workers[key] = worker
        return worker

    def new_worker(
        self,
        requires: Sequence[str],
        engine: str,
        setup: str = "contract.judge_process:worker_setup",
        payload: Mapping[str, Any] | None = None,
    ) -> Worker:
        """A worker that no other target has; `payload`: what its setup is called with, the suites where absent."""
        worker = Worker(
            setup=setup,
            setup_payload=self.options["suites"] if payload is None else payload,
            # a compiler has no progress to report
            timeout=self.options["timeout"] * (1 if engine == HOST else COMPILING),
            memory=self.options["memory"],
            sys_path=list(sys.path),
            # CUDA reserves far more addresses than it uses memory
            resident=engine == GPU,
        )
        worker.imports = modules(requires, engine)
        return worker

    def bench(self, kernel: Kernel, job: Mapping[str, Any]) -> Bench:
        """The input sets of a job; those of the last job where it is about the same kernel and rows."""
        rows = list(job.get("rows", ()))
        key = json.dumps([job["kernel"], rows], sort_keys=True)
        known, bench = self.last
        if bench is None or known != key:
            stored = [stored_case(kernel, row) for row in rows if same_kernel(kernel, row["id"])]
            bench = Bench(
                kernel,
                self.options["effort"],
                self.options["seed"],
                [case for case in stored if case is not None],
                self._store_root,
            )
            self.last = key, bench
        return bench

    def _one(
        self, kernel: Kernel, bench: Bench, check: Mapping[str, Any]
    ) -> tuple[CheckResult, dict[str, Any] | None]:
        base = CheckResult(
            id=check["id"],
            kernel=kernel.name,
            profile=kernel.profile.name,
            outcome="crash",
            implementation=check["implementation"],
            engine=check["engine"],
            gate=check["gate"],
            control=check["control"],
            required=check["required"],
        )
        try:
            if check["kind"] == "reference":
                return _with_tally(base, reference.run(bench)), None
            subject, missing = self.subject(kernel, check)
            if missing:
                return replace(base, outcome="not_run", detail=missing), None
            if check["kind"] == "gate" and (unfit := self._unfit(base, kernel, check["name"])):
                return unfit, None
            try:
                if check["kind"] == "gate":
                    return self._gate(base, bench, subject, check["gate"])
                return self._control(base, bench, subject, check), None
            finally:
                if subject.touched:
                    # the next target must not find what this one left
                    subject.close()
                if subject.worker is not None:
                    self._note_used(kernel.contract.name, check, subject.worker.take_used())
        except ContractError as error:
            return replace(base, outcome="fail", detail=str(error)), None
        except MemoryError:
            return replace(
                base, outcome="out_of_memory", detail="the judge ran out of memory"
            ), None
        except Exception as error:  # noqa: BLE001 - a fault of a reference or of the judge is a red check, not the end
            where = _last_line(error)
            return replace(base, detail=f"{type(error).__name__}: {error} ({where})"), None

    def _unfit(self, base: CheckResult, kernel: Kernel, name: str) -> CheckResult | None:
        """The result of a gate where the implementation cannot be called as the contract says: told once, at the first."""
        items = registry.implementations(kernel.contract.name)
        said = host.misfit(host.registered(kernel, name, items).call, kernel)
        if not said:
            return None
        first = self.misfits.setdefault(name, str(base.gate))
        if base.gate == first:
            return replace(base, outcome="fail", detail=said)
        return replace(base, outcome="not_run", required=False, detail=f"see {first}: {said}")

    def subject(
        self, kernel: Kernel, check: Mapping[str, Any], made: type[Subject] = Subject
    ) -> tuple[Subject, str]:
        """The target with its worker, or why it cannot run here."""
        target = {
            "kind": check["target"],
            "name": check["name"],
            "profile": kernel.profile.name,
            "module": check["module"],
        }
        launches = kernel.contract.launches
        extra: dict[str, Any] = {}
        item: Implementation | Control | None = None
        if check["target"] == "implementation":
            item = host.registered(
                kernel, check["name"], registry.implementations(kernel.contract.name)
            )
            launches = (*launches, *item.launches)
            extra = {
                "depths": item.order,
                "repeatable": item.repeatable,
                "invariant": item.invariant,
                "in_place": item.in_place,
                "nominal": item.nominal,
            }
        elif check["target"] == "control":
            item = host.registered(kernel, check["name"], registry.controls(kernel.contract.name))
            extra = {"depths": item.order, "nominal": item.nominal}
        if kernel.shares:
            launches = tuple(launch for launch in launches if not launch.batch)
        if check["target"] == "auto" or (
            check["colour"] == "green" and self.options["effort"] != "nightly"
        ):
            # layouts and threads mean nothing to a reading of the reference; what a legal variant shows is its values
            launches = (PLAIN,)
        worker = None if item is None else self._worker_for(kernel, item, check["engine"])
        if check["engine"] != HOST:
            # threads of the host are nothing to a device
            launches = tuple(launch for launch in launches if launch.threads == 1)
        if check["engine"] == GPU:
            launches = (*launches, GRAPH)
        subject = made(
            kernel,
            target,
            worker,
            launches=launches,
            seed=self.options["seed"],
            engine=check["engine"],
            **extra,
        )
        if check["engine"] not in ENGINES:
            return subject, f"there is no engine {check['engine']}"
        if check["engine"] == GPU and (why := devices.missing_device()):
            return subject, why
        return subject, missing_reason(item.requires if item is not None else ())

    def _gate(
        self, base: CheckResult, bench: Bench, subject: Subject, gate: str
    ) -> tuple[CheckResult, dict[str, Any] | None]:
        tally = gates.run(gate, bench, subject)
        if (
            gate == "limits"
            and (tally.measured or tally.recorded)
            and self.options.get("update_records")
            # without a folder for it nothing is recorded, and the gate did not run
            and recordbook.folder_of(str(subject.target["module"])) is not None
        ):
            tally.stop("pass", "recorded")
        tally.notes += [note for note in subject.notes if note not in tally.notes]
        result = replace(_with_tally(base, tally), compiled=subject.evidence())
        row = None
        if tally.outcome == "fail" and tally.failure is not None:
            finding = explain(bench, subject, tally.failure)
            if finding.detail:
                result = replace(result, detail=f"{tally.detail}\n{finding.detail}")
                # captured rows are in the store already, and nobody's to commit
                if tally.failure.gate != "captured":
                    row = row_of(base.id, finding.case, tally.detail)
        if not result.good:
            # what it did to torch or to this package must not meet the next target
            subject.close()
        return result, row

    def _control(
        self, base: CheckResult, bench: Bench, subject: Subject, check: Mapping[str, Any]
    ) -> CheckResult:
        if check["colour"] == "green":
            return self._green(base, bench, subject)
        named = tuple(check["gates"])
        order = [
            *named,
            *(g for g in gates.GATES if g not in named and g != "limits" and not subject.automatic),
        ]
        compared = 0
        for gate in order:
            tally = gates.run(gate, bench, subject)
            compared += tally.compared
            planted = check["expect"]
            if tally.outcome == "not_run":
                return replace(base, outcome="not_run", gate=gate, detail=tally.detail)
            if tally.outcome in FAULTS:
                if planted == tally.outcome:
                    return replace(
                        base,
                        outcome="red_as_planted",
                        gate=gate,
                        detail=f"{gate}: {tally.detail}",
                        outputs_compared=compared,
                    )
                return replace(
                    base,
                    outcome=tally.outcome,
                    gate=gate,
                    outputs_compared=compared,
                    detail=f"a planted fault of values must not end as {tally.outcome}: {tally.detail}",
                )
            if tally.outcome == "fail" and not tally.empty:
                planted_here = gate in named and not planted
                outcome = "red_as_planted" if planted_here else "red_elsewhere"
                aim = f"to end as {planted}" if planted else f"for {', '.join(named)}"
                said = f"{gate}: " if planted_here else f"planted {aim}, caught by {gate}: "
                return replace(
                    base,
                    outcome=outcome,
                    gate=gate,
                    detail=said + tally.detail,
                    outputs_compared=compared,
                )
        return replace(
            base,
            outcome="missed",
            gate=None,
            outputs_compared=compared,
            detail=f"green at every gate ({', '.join(order)}): the fault is gone, or no input shows it",
        )

    def _green(self, base: CheckResult, bench: Bench, subject: Subject) -> CheckResult:
        compared, share, widest = 0, [], 0.0
        quick = self.options["effort"] == "quick"
        chosen = [gate for gate in gates.GATES if gate != "limits"]
        if subject.automatic or self.options["effort"] != "nightly":
            chosen = ["shapes"] if subject.automatic and quick else list(ANY_GATE)
        for gate in chosen:
            tally = gates.run(gate, bench, subject)
            compared += tally.compared
            widest = max(widest, tally.widest)
            if tally.outcome == "not_run":
                return replace(base, outcome="not_run", gate=gate, detail=tally.detail)
            if tally.outcome not in ("pass", "not_applicable"):
                outcome = tally.outcome if tally.outcome in FAULTS else "missed"
                detail = f"a legal variant was refused by {gate}: {tally.detail}"
                if tally.failure is not None:
                    detail += "\n" + explain(bench, subject, tally.failure).detail
                return replace(
                    base, outcome=outcome, gate=gate, detail=detail, outputs_compared=compared
                )
            if tally.compared:
                share.append(gate)
        if not compared:
            # all of them declared not applicable: nothing was seen to be allowed
            return replace(
                base, outcome="missed", detail=f"no gate compared an output ({', '.join(chosen)})"
            )
        return replace(
            base,
            outcome="green_as_planted",
            detail=f"passed {', '.join(share)}",
            outputs_compared=compared,
            widest_ulp=widest,
        )


def _with_tally(base: CheckResult, tally: Tally) -> CheckResult:
    share = tally.one_value / tally.compared if tally.one_value else None
    return replace(
        base,
        outcome=tally.outcome,
        detail=tally.detail,
        outputs_compared=tally.compared,
        one_value_share=share,
        widest_ulp=tally.widest if share is not None else None,
        power=dict(tally.power),
        measured=dict(tally.measured),
        notes=tuple(tally.notes),
        recorded=tuple(json.dumps(entry, sort_keys=True) for entry in tally.recorded),
        captured=tally.captured,
        bits=tally.digests.as_json(),
        sketch=tally.sketch.text() if tally.sketch else "",
    )


def _last_line(error: BaseException) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"


def row_of(check_id: str, case: Case, note: str) -> dict[str, Any]:
    """A failing case as JSON: operands as bits."""
    operands = {
        name: {"dtype": x.dtype.name, "shape": list(x.shape), "bits": x.reshape(-1).tolist()}
        for name, x in case.operands.items()
    }
    return {
        "id": check_id,
        "shape": dict(case.shape),
        "operands": operands,
        "scalars": dict(case.scalars),
        "note": note,
    }


def same_kernel(kernel: Kernel, check_id: str) -> bool:
    return check_id.startswith(f"{kernel.id}/")


def stored_case(kernel: Kernel, row: Mapping[str, Any]) -> Case | None:
    """A stored failing case, or None where it no longer fits the contract."""
    import numpy as np

    dims = {dim for operand in (*kernel.inputs(), *kernel.outputs()) for dim in operand.dims}
    if not dims <= set(row["shape"]) or any(size < 1 for size in row["shape"].values()):
        return None
    operands = {}
    for operand in kernel.inputs():
        raw = row["operands"].get(operand.name)
        want = tuple(row["shape"][d] for d in operand.dims)
        kind = np.dtype(kernel.format(operand).storage).name
        if raw is None or tuple(raw["shape"]) != want or raw["dtype"] != kind:
            return None
        operands[operand.name] = np.array(raw["bits"], kernel.format(operand).storage).reshape(want)
    scalars = {
        s.name: float(row["scalars"].get(s.name, s.default)) for s in kernel.contract.scalars
    }
    kept = f", kept in {_short(row['path'])}" if "path" in row else ""
    return Case(
        dict(row["shape"]),
        operands,
        scalars,
        f"a row that failed before ({row['id']}{kept})",
    )


def _short(path: str) -> str:
    """The path relative to the working folder where it lies below it."""
    return path.removeprefix(os.getcwd() + os.sep)


def _end_with(parent: int) -> None:
    """End when the parent does, also in the middle of a check: nobody would store its result."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def settle() -> None:
    """What a process that judges sets for itself."""
    keep_freed_memory()
    # hypothesis keeps a cache of constants: not in the folder that happens to be the user's
    os.environ.setdefault(
        "HYPOTHESIS_STORAGE_DIRECTORY",
        str(Path(tempfile.gettempdir()) / "kernel-contract-hypothesis"),
    )


def main() -> int:
    """Serve jobs until standard input ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def emit(message: Mapping[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    settle()
    options = json.loads(sys.stdin.readline())
    worker_server.adopt()
    # without a shared one, the worker server imports torch while the suites are loaded and the first ranges are computed
    warm_up()
    threading.Thread(target=_end_with, args=(options["parent"],), daemon=True).start()
    try:
        suites.reload(options["suites"])
    except ContractError as error:
        emit({"fatal": f"the judge process cannot load the suites: {error}"})
        return 1
    judge = Judge(options, emit)
    # what is loaded stays: no collection need look at it again
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            judge.judge(job)
            emit({"done": job["kernel"]})
        except BaseException as error:
            emit({"error": f"{type(error).__name__}: {error}", "done": job["kernel"]})
            if not isinstance(error, Exception):
                raise
    judge.close()
    return 0


__all__ = ["Judge", "main", "row_of"]

if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
