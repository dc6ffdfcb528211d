"""[tool.contract] is read strictly: every refusal names file, key and repair in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.config import Config, RunOptions, read_config
from contract.errors import UsageError


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_every_key_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[tool.contract]\nsuites = ["contracts/", "mine"]\npythonpath = ["src"]\n'
        'require = ["torch"]\n'
        'pytest = true\nseed = 7\neffort = "quick"\ntimeout = 5\n',
    )
    assert read_config(tmp_path) == Config(
        path, tmp_path, ("contracts/", "mine"), ("src",), ("torch",), True, 7, "quick", 5.0
    )


def test_without_a_file_the_defaults_hold_and_the_store_is_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = read_config(tmp_path)
    assert config.path is None
    assert (config.suites, config.pythonpath, config.require) == ((), (".",), ())
    assert (config.seed, config.effort, config.timeout, config.pytest) == (
        0,
        "default",
        60.0,
        False,
    )
    assert config.store_root == tmp_path / "cache" / "kernel-contract"


def test_the_nearest_file_with_the_table_counts(tmp_path: Path) -> None:
    write(tmp_path, "[tool.contract]\nseed = 1\n")
    write(tmp_path / "a", "[project]\nname = 'a'\n")
    write(tmp_path / "a" / "b", "[tool.contract]\nseed = 2\n")
    assert read_config(tmp_path / "a").seed == 1
    assert read_config(tmp_path / "a" / "b").seed == 2
    assert read_config(tmp_path / "a" / "b").store_root == tmp_path / "a" / "b" / ".contract"


def test_a_file_without_the_table_still_places_the_store(tmp_path: Path) -> None:
    path = write(tmp_path, "[project]\nname = 'a'\n")
    config = read_config(tmp_path)
    assert (config.path, config.store_root) == (path, tmp_path / ".contract")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("suite = ['a']", ["no key 'suite'", "did you mean 'suites'?"]),
        ("zzz = 1", ["no key 'zzz'", "keys are suites, pythonpath, require, pytest, seed"]),
        (
            "suites = 'contracts/'",
            ["suites = 'contracts/'", "it must be a list of paths or modules"],
        ),
        ("suites = [1]", ["suites = [1]", "it must be a list of paths"]),
        ("require = [['torch']]", ["require", "a list of implementations or engines"]),
        ("pytest = 1", ["pytest = 1", "it must be true or false"]),
        # TOML's true is Python's 1 to isinstance.
        ("seed = true", ["seed = True", "it must be a whole number >= 0"]),
        ("seed = -1", ["seed = -1", "it must be a whole number >= 0"]),
        ("seed = 1.0", ["seed = 1.0", "a whole number"]),
        ("effort = 'exhaustive'", ["effort = 'exhaustive'", '"quick", "default", "nightly"']),
        ("timeout = 0", ["timeout = 0", "a number of seconds > 0"]),
        ("timeout = nan", ["timeout = nan", "a number of seconds > 0"]),
    ],
)
def test_a_wrong_key_or_value_names_file_key_and_repair(
    tmp_path: Path, line: str, parts: list[str]
) -> None:
    path = write(tmp_path, f"[tool.contract]\n{line}\n")
    with pytest.raises(UsageError) as caught:
        read_config(tmp_path)
    for part in [f"{path}: [tool.contract]", *parts]:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "[tool]\ncontract = 3\n")
    with pytest.raises(UsageError, match=r"tool.contract is 3; make it a table") as caught:
        read_config(tmp_path)
    assert str(path) in str(caught.value)


def test_broken_toml_is_one_line_with_file_and_place(tmp_path: Path) -> None:
    path = write(tmp_path, "[tool.contract\n")
    with pytest.raises(UsageError) as caught:
        read_config(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{path}: not valid TOML: ")
    assert "line 1" in message
    assert "\n" not in message


def test_the_defaults_of_a_run() -> None:
    options = RunOptions()
    assert (options.timeout, options.memory) == (60.0, 8 * 1024**3)
    assert 1 <= options.jobs <= 2
