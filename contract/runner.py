"""Running checks: the store is asked first, the rest is judged by judge processes, each finished check is stored.

A rerun finds what is done; that is resuming, there is no option for it. A judge process that dies turns the check it
was at red with its reason, and a new one takes the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract import receipts, recordbook, sketch, verify, worker_server
from contract.availability import missing_reason, modules
from contract.checks import Check, collect_checks
from contract.config import Config, RunOptions
from contract.environment import environment
from contract.errors import ContractError, SuiteError, UsageError
from contract.jobs import Jobs
from contract.results import CheckResult, Report
from contract.rowbook import RowBook
from contract.store import Store
from contract.worker_child import PRELOAD

# Judge processes in a row that end before they finish a check, after which a kernel's checks are given up.
BARREN = 2

# The judges have loaded their sources when the run begins; an edit is found out this late.
LOOK_SECONDS = 0.2

OnResult = Callable[[CheckResult], None]


def collect(config: Config, asked: Iterable[str] = ()) -> list[Check]:
    """Every check of the loaded suites, in a fixed order; `asked`: names that are asked for beside the project's."""
    return collect_checks(asked=(*config.require, *asked))


def start_server() -> worker_server.Shared:
    """The server of the workers, for `run`: it imports torch while the caller loads the suites. To be closed."""
    return worker_server.Shared(_child_environment())


def run(
    checks: list[Check],
    options: RunOptions,
    on_result: OnResult,
    server: worker_server.Shared | None = None,
) -> Report:
    """Judge the checks; never raises for a red kernel, an interrupt is noted in the report."""
    start = time.monotonic()
    report = Report(environment=environment(), seed=options.seed, effort=options.effort)
    store = Store(options.store_root)
    # before anything runs: one that cannot be made is told before the time is spent
    made = _make_record_folders(checks) if options.update_records else []
    # taken now: what is edited meanwhile is not what was judged
    pairs = verify.gate_pairs(checks)
    keys = receipts.Keys(options)
    run_ = _Run(checks, options, store, keys, on_result, RowBook(options.store_root))
    run_.server = server
    try:
        run_.go()
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        run_.stop()
    report.notes += made
    order = {check.id: i for i, check in enumerate(checks)}
    report.checks = sorted(run_.results.values(), key=lambda r: order[r.id])
    with contextlib.suppress(ContractError):
        receipts.note_last(store, run_.results)
    if options.update_records:
        report.notes += _update_records(report.checks, checks)
    report.limit_problems += _record_problems(checks)
    report.notes += [
        f"unreadable store entry counts as absent: {name}" for name in store.unreadable
    ]
    report.notes += run_.notes
    unsure = run_.unsure()
    report.problems += [
        f"{path} was edited during the run: run again" for path in sorted(run_.edited)
    ]
    report.problems += _required_problems(report.checks, options.required)
    with contextlib.suppress(ContractError):
        sure = [result for result in report.checks if not (result.good and result.id in unsure)]
        verify.note_verified(store, pairs.values(), sure)
    report.seconds = time.monotonic() - start
    return report


def _required_problems(results: list[CheckResult], required: Iterable[str]) -> list[str]:
    """A required implementation or engine of which no check ran."""
    problems = []
    for name in required:
        mine = [
            r
            for r in results
            if r.implementation is not None
            and name in (r.implementation, r.engine, f"{r.implementation}+{r.engine}")
        ]
        if mine and all(r.outcome in ("not_run", "not_applicable") for r in mine):
            problems.append(
                f"required {name!r}: none of its {len(mine)} checks ran ({mine[0].detail})"
            )
    return problems


class _Run:
    """One run in progress."""

    def __init__(
        self,
        checks: list[Check],
        options: RunOptions,
        store: Store,
        keys: receipts.Keys,
        on_result: OnResult,
        rows: RowBook,
    ):
        self.checks, self.options, self.store, self.keys, self.on_result, self.rows = (
            checks,
            options,
            store,
            keys,
            on_result,
            rows,
        )
        # Taken before anything runs: a row found meanwhile is one that this run did not replay everywhere.
        self.key_of = {check.id: keys.key(check) for check in checks}
        self.by_id = {check.id: check for check in checks}
        files = {path for check in checks for path in receipts.files_of(check)}
        self.stamps = {path: _stamp(path) for path in files}
        self.looked: dict[tuple[Path, ...], tuple[float, set[Path]]] = {}
        self.edited: set[Path] = set()
        self.results: dict[str, CheckResult] = {}
        self.notes: list[str] = []
        self.processes: list[_JudgeProcess] = []
        self.threads: list[threading.Thread] = []
        self.server: worker_server.Shared | None = None
        self.halted = False

    def go(self) -> None:
        todo = self._present(self._from_store())
        if not todo or self.halted:
            return
        # one for all judges: torch, the suites and their libraries are imported once
        if self.server is None or not self.server.fits():
            if self.server is not None:
                self.server.close()
            self.server = start_server()
        self.server.preload(*_preload(self.options))
        # short ones first: what begins with the same modules goes on from there
        wanted = {modules(*pair) for pair in {(check.requires, check.engine) for check in todo}}
        for imports in sorted(wanted, key=lambda names: (len(names), names)):
            if imports:
                self.server.prepare(imports)
        jobs = Jobs(todo)
        done: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        count = max(1, min(self.options.jobs, len(jobs)))
        for _ in range(count):
            process = _JudgeProcess(self.options, done, self.server)
            self.processes.append(process)
            thread = threading.Thread(
                target=process.work, args=(jobs, self.rows.rows_for), daemon=True
            )
            thread.start()
            self.threads.append(thread)
        finished = 0
        while finished < count:
            kind, value = done.get()
            if kind == "thread":
                finished += 1
            elif kind == "fault":
                raise value
            else:
                self._finish(value["result"], value.get("row"), value.get("used", ()))
                if self.halted:
                    return

    def _from_store(self) -> list[Check]:
        """Take what is done; returns the rest."""
        if self.options.last_failed:
            failed = receipts.last_failed(self.store)
            chosen = [check for check in self.checks if check.id in failed]
            if chosen:
                self.notes.append(f"{len(chosen)} of {len(self.checks)} checks failed last time")
                return chosen
            self.notes.append("nothing failed last time: all checks are run")
        if self.options.fresh or self.options.update_records:
            return list(self.checks)
        todo = []
        for check in self.checks:
            result = self._stored(check)
            if result is None:
                todo.append(check)
                continue
            self.results[check.id] = result
            self.on_result(result)
        return todo

    def _present(self, todo: list[Check]) -> list[Check]:
        """Those whose libraries are there; the others are said not to run, without a judge: a rerun has them again."""
        reasons = {requires: missing_reason(requires) for requires in {c.requires for c in todo}}
        for check in todo:
            if reasons[check.requires]:
                result = _unjudged(check, "not_run", reasons[check.requires], self.options)
                self.results[check.id] = result
                self.on_result(result)
                self.halted = self.halted or (self.options.exitfirst and not result.good)
        return [check for check in todo if check.id not in self.results]

    def _stored(self, check: Check) -> CheckResult | None:
        """The finished check of the store; None where there is none, or one that is no result of this check."""
        key = self.key_of[check.id]
        record = self.store.get(key)
        if record is None or (
            isinstance(record.get("outcome"), str) and not receipts.usable(record)
        ):
            return None
        try:
            # another command line may have judged it first
            again = replay(check.id, self.options)
            result = replace(result_of(record), from_receipt=True, reproduce=again)
        except (TypeError, ValueError):
            result = None
        if result is None or not _is_result_of(result, check):
            self.store.distrust(key)
            return None
        if self.options.sketches and check.gate in sketch.GATES and not result.sketch:
            # judged before anybody asked for a plot
            return None
        return result

    def _finish(
        self, raw: dict[str, Any], row: dict[str, Any] | None, used: Iterable[str] = ()
    ) -> None:
        result = result_of({**raw, "reproduce": replay(raw["id"], self.options)})
        self.results[result.id] = result
        check = self.by_id[result.id]
        if row is not None:
            try:
                self.rows.add(check.module, row)
            except ContractError as error:
                self.notes.append(str(error))
        files = receipts.files_of(check)
        edited = self._edited_of(files)
        self.edited |= edited
        # a resource that was recorded was not compared; a source edited meanwhile is not the one that was judged
        recorded = self.options.update_records and result.gate == "limits"
        # nor can a receipt stand for a file that it does not know
        unknown = set(used) - set(map(str, files))
        if unknown:
            note = (
                f"{min(unknown)}: what is judged of it is not kept, as its kernel is made in a function and no import shows"
                " the file; make it where its module is imported"
            )
            self.notes += [] if note in self.notes else [note]
        if not (edited or recorded or unknown):
            receipts.remember(self.store, self.key_of[check.id], result)
        self.on_result(result)
        if self.options.exitfirst and not result.good:
            self.halted = True

    def _edited_of(self, files: tuple[Path, ...]) -> set[Path]:
        """Those that are no longer as they were when the run began; looked at a few times a second."""
        now = time.monotonic()
        at, edited = self.looked.get(files, (-1.0, set()))
        if now - at > LOOK_SECONDS:
            edited = edited | {path for path in files if _stamp(path) != self.stamps.get(path)}
            self.looked[files] = now, edited
        return edited

    def unsure(self) -> set[str]:
        """Ids of results whose sources were edited before the run ended; every file is looked at once more."""
        self.edited |= {path for path, stamp in self.stamps.items() if _stamp(path) != stamp}
        if not self.edited:
            return set()
        found = {id for id in self.results if self.edited & set(receipts.files_of(self.by_id[id]))}
        for id in found:
            if not self.results[id].from_receipt:
                # stored since the last look, perhaps
                with contextlib.suppress(OSError):
                    self.store.remove(self.key_of[id])
        return found

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
        for thread in self.threads:
            # it sees its process end; a moment at most
            thread.join(5.0)
        if self.server is not None:
            self.server.close()


def _stamp(path: Path) -> tuple[int, int]:
    """What changes when a file is edited."""
    try:
        status = path.stat()
    except OSError:
        return 0, -1
    return status.st_mtime_ns, status.st_size


def _is_result_of(result: CheckResult, check: Check) -> bool:
    """Whether a stored record can be what judging this check gave."""
    same = (result.id, result.kernel, result.profile, result.implementation, result.control) == (
        check.id, check.kernel, check.profile, check.implementation, check.control)  # fmt: skip
    counted = type(result.outputs_compared) is int and result.outputs_compared >= 0
    if not same or not counted or not isinstance(result.detail, str):
        return False
    outcomes = {"red": ("red_as_planted",), "green": ("green_as_planted",)}
    if result.outcome not in outcomes.get(check.colour, ("pass", "not_applicable")):
        return False
    if check.kind != "control" and result.gate != check.gate:
        return False
    # a planted crash, or a wrong dtype, is red before an output can be compared
    return bool(result.outputs_compared) or result.outcome in ("not_applicable", "red_as_planted")


def _unjudged(check: Check, outcome: str, detail: str, options: RunOptions) -> CheckResult:
    """The result of a check that no judge finished."""
    return CheckResult(
        id=check.id,
        kernel=check.kernel,
        profile=check.profile,
        outcome=outcome,
        detail=detail,
        implementation=check.implementation,
        engine=check.engine,
        gate=check.gate,
        control=check.control,
        required=check.required,
        reproduce=replay(check.id, options),
    )


def refuse_failures_elsewhere(
    options: RunOptions, checks: Sequence[Check], chosen: Sequence[Check]
) -> None:
    """With --lf, everything would be run where all that failed is of files that are not here.

    Args:
        checks, chosen: what is here, and what of it is selected.

    Raises:
        UsageError: naming one of what failed.
    """
    failed = receipts.last_failed(Store(options.store_root))
    elsewhere = sorted(failed - {check.id for check in checks})
    if elsewhere and failed.isdisjoint(check.id for check in chosen):
        raise UsageError(
            f"--lf: {elsewhere[0]} failed last time ({len(elsewhere)} in all), and no file that is here declares it; name the"
            " file, or leave --lf out"
        )


def replay(check_id: str, options: RunOptions) -> str:
    """The command that runs one check again as it was run."""
    words = ["contract run", *options.files, check_id]
    if options.effort != "default":
        words.append(f"--effort {options.effort}")
    if options.seed:
        words.append(f"--seed {options.seed}")
    return " ".join(words)


def result_of(raw: Mapping[str, Any]) -> CheckResult:
    """A check result from its JSON form.

    Raises:
        TypeError: a field that is missing, unknown or of another type.
        ValueError: no outcome.
    """
    fields = dict(raw)
    for name, kinds in FIELDS.items():
        value = fields.get(name)
        right = type(value) in kinds
        if kinds[0] is dict:
            right = isinstance(value, dict) and all(type(x) in kinds[1:] for x in value.values())
        if name in fields and not right:
            raise TypeError(f"{name}: {type(value).__name__}")
    for name in ("notes", "compiled", "recorded"):
        texts = fields.get(name, ())
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"{name}: not a list of strings")
        fields[name] = tuple(texts)
    return CheckResult(**fields)


#: Field of a stored result -> its types; of a mapping first dict, then its values' types.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("id", "kernel", "profile", "outcome", "engine", "detail", "reproduce", "planted", "sketch"), (str,)),
    **dict.fromkeys(("implementation", "gate", "control"), (str, type(None))),
    "outputs_compared": (int,),
    **dict.fromkeys(("one_value_share", "widest_ulp"), (float, int, type(None))),
    "seconds": (float, int),
    **dict.fromkeys(("from_receipt", "required"), (bool,)),
    "power": (dict, float, int),
    "measured": (dict, int, float),
    "bits": (dict, str),
}  # fmt: skip


class Session:
    """One judge process that judges checks one at a time (the pytest plugin's items)."""

    def __init__(self, options: RunOptions):
        self.options, self.store, self.keys = (
            options,
            Store(options.store_root),
            receipts.Keys(options),
        )
        self.done: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.process = _JudgeProcess(options, self.done)
        self.rows = RowBook(options.store_root)

    def run_one(self, check: Check) -> CheckResult:
        """The check's result, from the store where it is done."""
        run_ = _Run([check], self.options, self.store, self.keys, lambda _: None, self.rows)
        if run_._from_store():
            self.process.judge([check], self.rows.rows_for(check))
            while check.id not in run_.results:
                kind, value = self.done.get()
                if kind == "result":
                    run_._finish(value["result"], value.get("row"), value.get("used", ()))
        return run_.results[check.id]

    def close(self) -> None:
        self.process.close()


class _JudgeProcess:
    """A judge process and the thread that feeds it."""

    def __init__(
        self,
        options: RunOptions,
        done: queue.SimpleQueue[tuple[str, Any]],
        server: worker_server.Shared | None = None,
    ):
        self.options, self.done, self.server = options, done, server
        self.process: subprocess.Popen[str] | None = None
        self.stopped = False
        self.barren = 0

    def _start(self) -> subprocess.Popen[str]:
        environment_ = {**_child_environment(), PRELOAD: json.dumps(_preload(self.options))}
        shared = () if self.server is None else (self.server.descriptor,)
        if shared:
            environment_[worker_server.SHARED] = str(shared[0])
        process = subprocess.Popen(
            [sys.executable, "-m", "contract.judge_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment_,
            start_new_session=True,
            pass_fds=shared,
        )
        settings = {
            "effort": self.options.effort,
            "seed": self.options.seed,
            "timeout": self.options.timeout,
            "memory": self.options.memory,
            "device": self.options.device,
            "suites": dict(self.options.suites),
            "update_records": self.options.update_records,
            "store_root": str(self.options.store_root),
            "sketches": self.options.sketches,
            "parent": os.getpid(),
        }
        assert process.stdin is not None
        # one that ends at once says so at its first job
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(settings) + "\n")
            process.stdin.flush()
        return process

    def work(self, jobs: Jobs, rows_for: Callable[[Check], list[Any]]) -> None:
        """Take jobs until none is left."""
        last = ""
        try:
            while not self.stopped and (group := jobs.take(last)):
                last = group[0].spec["name"]
                self.judge(group, rows_for(group[0]))
        except Exception as error:  # noqa: BLE001 - the main thread raises it; here it would be lost
            self.done.put(("fault", error))
        finally:
            self.close()
            self.done.put(("thread", None))

    def judge(self, group: list[Check], rows: list[Any]) -> None:
        """Judge all checks of one kernel; those that end a judge process are red, and a new one takes the rest."""
        left = {check.id: check for check in group}
        while left and not self.stopped:
            if self.process is None or self.process.poll() is not None:
                self._close_pipes()
                self.process = self._start()
                if self.stopped:
                    # between the question above and the start
                    self.kill()
                    return
            before = len(left)
            job = {
                "kernel": group[0].spec,
                "checks": [c.as_json() for c in left.values()],
                "rows": rows,
            }
            problem = self._one_job(job, left)
            if not left or not problem or self.stopped:
                continue
            # a process that finished nothing, twice over, will not finish the rest either
            self.barren = self.barren + 1 if len(left) == before else 0
            for name in list(left)[: 1 if self.barren < BARREN else None]:
                self._give(left.pop(name), problem)

    def _one_job(self, job: Mapping[str, Any], left: dict[str, Check]) -> str:
        process = self.process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        except OSError:
            pass
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                return "the judge process wrote a malformed line"
            if "fatal" in message:
                # the next process would end like it, for every check that is left
                raise SuiteError(message["fatal"])
            if "result" in message:
                left.pop(message["result"]["id"], None)
                self.done.put(("result", message))
            if "done" in message:
                return str(message.get("error", "")) or (
                    "the judge left the check out" if left else ""
                )
        code = process.wait()
        return f"the judge process ended ({'signal ' + str(-code) if code < 0 else 'code ' + str(code)}) before the check was finished"

    def _give(self, check: Check, problem: str) -> None:
        result = _unjudged(check, "crash", problem, self.options)
        self.done.put(("result", {"result": dict(vars(result))}))

    def kill(self) -> None:
        self.stopped = True
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, 9)
            process.wait()

    def close(self) -> None:
        """Kill the process, from the thread that reads what it says."""
        self.kill()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout) if self.process else ():
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _child_environment() -> dict[str, str]:
    return {
        **os.environ,
        # The checkout's folder must not come first on the path: its kernels/ would hide other people's packages.
        "PYTHONSAFEPATH": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(_framework_path()),
    }


def _preload(options: RunOptions) -> tuple[str, dict[str, Any]]:
    # a worker that starts with the suites loaded costs a tenth of one that loads them
    return "contract.judge_process:server_setup", dict(options.suites)


def _framework_path() -> list[str]:
    import contract

    given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    root = str(Path(next(iter(contract.__path__))).parent)
    # an installed framework is found anyway; a checkout that is not installed needs its root
    return (
        given
        if "site-packages" in root or root in given
        else [*given, *([root] if _is_path_import(root) else [])]
    )


def _is_path_import(root: str) -> bool:
    return any(Path(p or ".").resolve() == Path(root) for p in sys.path)


def _known(checks: list[Check]) -> dict[Path, set[tuple[str, str, str]]]:
    """Record folders of the collected suites, with every (kernel, implementation, launch) that is measured."""
    known: dict[Path, set[tuple[str, str, str]]] = defaultdict(set)
    for check in collect_checks(automatic=False):
        if check.gate == "limits" and check.implementation is not None:
            folder = recordbook.folder_of(check.module)
            if folder is not None:
                known[folder].add(
                    (f"{check.kernel}/{check.profile}", check.implementation, "plain")
                )
    return known


def _record_problems(checks: list[Check]) -> list[str]:
    if not any(check.gate == "limits" for check in checks):
        return []
    problems = []
    for folder, known in _known(checks).items():
        if not recordbook.wholly_loaded(folder):
            continue
        try:
            problems += recordbook.unused(folder, known)
        except ContractError as error:
            problems.append(str(error))
    return problems


def _make_record_folders(checks: list[Check]) -> list[str]:
    modules = dict.fromkeys(c.module for c in checks if c.gate == "limits" and c.implementation)
    folders = (recordbook.make_folder(module) for module in modules)
    return [f"made {folder}" for folder in folders if folder is not None]


def _update_records(results: list[CheckResult], checks: list[Check]) -> list[str]:
    from contract.case import find

    modules = {c.id: c for c in checks}
    notes = []
    for result in results:
        check = modules[result.id]
        if result.gate != "limits" or check.implementation is None:
            continue
        if not (result.measured or result.recorded):
            continue
        folder = recordbook.folder_of(check.module)
        if folder is None:
            notes.append(f"not recorded: {result.id}: {recordbook.where_to_record(check.module)}")
            continue
        kernel = find(check.spec["name"], check.spec["profile"], check.spec["parameters"])
        path = folder / f"{kernel.contract.name}.json"
        if result.measured:
            recordbook.update(path, kernel, check.implementation, "plain", result.measured)
        if result.recorded:
            recordbook.update_compiled(path, [json.loads(entry) for entry in result.recorded])
        notes.append(f"recorded {result.id}")
    for folder, known in _known(checks).items():
        if recordbook.wholly_loaded(folder):
            recordbook.drop_unused(folder, known)
    return notes
