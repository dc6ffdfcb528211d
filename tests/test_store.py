"""Digests, atomic files, finished checks and failing rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract.environment import environment, environment_key
from contract.errors import StoreError
from contract.store import (
    MAX_ROWS,
    Store,
    StoredRow,
    atomic_write_text,
    digest,
    find_root,
    read_rows,
    write_rows,
)

KEY = "ab" + 62 * "0"


def test_the_digest_of_known_text() -> None:
    # printf '{"a":[1,0x1.8000000000000p+0,null,true],"b":"\\u00e9"}' | sha256sum
    expected = "509569203c39b2c3a8627a30b37b1ce4"
    value = {"b": "é", "a": (1, 1.5, None, True)}
    assert digest(value)[:32] == expected


def test_equal_values_have_one_digest() -> None:
    assert digest({"a": 1, "b": [2, 3]}) == digest({"b": (2, 3), "a": 1})
    assert digest(float("nan")) == digest(float("nan"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0), (1, True), (0, None), (0.0, -0.0), (1.0, "0x1.0000000000000p+0"), ("1", 1),
        ([], {}), ([1, 2], [2, 1]), ([[1], 2], [1, [2]]), ({"a": 1}, {"a": 2}), ("null", None),
        (float("inf"), "inf"), (5e-324, 0.0), (['a","b'], ["a", "b"]),
    ],
)  # fmt: skip
def test_different_values_have_different_digests(one: object, other: object) -> None:
    assert digest(one) != digest(other)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1: 2}, "value: key 1 is not a string"),
        ({"a": [0, {2}]}, r"value\['a'\]\[1\]: no digest of a set"),
        (np.float32(1), "value: no digest of a float32"),
        (b"x", "value: no digest of a bytes"),
    ],
)
def test_a_digest_of_anything_else_is_refused(value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        digest(value)


def test_records_come_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / ".contract")
    assert store.get(KEY) is None
    assert store.keys() == []
    record = {"outcome": "pass", "share": 0.1, "infinite": float("inf"), "n": [1, None]}
    store.put(KEY, record)
    store.put("cd" * 4, {"outcome": "fail"})
    assert Store(store.root).get(KEY) == record
    assert store.keys() == [KEY, "cd" * 4]
    assert list(store.query(lambda r: r["outcome"] == "fail")) == [{"outcome": "fail"}]
    assert (store.root / "checks" / "ab" / f"{KEY}.json").is_file()
    assert (store.root / ".gitignore").read_text() == "*\n"
    store.put(KEY, {"outcome": "crash"})
    assert store.get(KEY) == {"outcome": "crash"}
    assert store.unreadable == []
    # Nothing temporary is left.
    assert sum(len(files) for _, _, files in os.walk(store.root)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"schema": 1, "key"',
        "[]",
        "null",
        "[" * 100_000,
        "\xff",
        json.dumps({"schema": 2, "key": KEY, "record": {}}),
        json.dumps({"schema": 1, "key": "cd" * 4, "record": {}}),
        json.dumps({"schema": 1, "key": KEY, "record": 1}),
        json.dumps({"schema": 1, "key": KEY}),
    ],
)
def test_an_entry_that_cannot_be_used_is_absent_and_named(tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    store.put(KEY, {"outcome": "pass"})
    path = tmp_path / "checks" / "ab" / f"{KEY}.json"
    path.write_bytes(text.encode("latin-1"))
    assert store.get(KEY) is None
    assert list(store.query(lambda r: True)) == []
    assert store.unreadable == [str(path)]
    store.put(KEY, {"outcome": "pass"})
    assert store.get(KEY) == {"outcome": "pass"}


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "AB" * 8, "ab", "g" * 8])
def test_a_key_is_a_digest(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="is not a digest"):
        Store(tmp_path).get(key)


def test_a_folder_that_cannot_be_written_names_the_repair(tmp_path: Path) -> None:
    # A file in the place of a folder: permissions mean nothing to root.
    (tmp_path / ".contract").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written \(.*\); make .* writable or run"):
        Store(tmp_path / ".contract").put(KEY, {})
    assert Store(tmp_path / ".contract").get(KEY) is None


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    atomic_write_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        atomic_write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_file_is_as_public_as_any_other(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        atomic_write_text(tmp_path / "x", "")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


def test_the_root_is_beside_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert find_root(inner) == tmp_path / "cache" / "kernel-contract"
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'inner'\n")
    assert find_root(inner) == tmp_path / "a" / ".contract"
    (tmp_path / "pyproject.toml").write_text("[tool.contract]\n")
    assert find_root(inner) == tmp_path / ".contract"
    monkeypatch.chdir(inner)
    assert find_root() == tmp_path / ".contract"
    assert not (tmp_path / ".contract").exists()


def rows() -> list[StoredRow]:
    x = np.array([[0x3F80, 0xFFFF]], np.uint16)
    codes = np.array([-8, 7], np.int8)
    first = StoredRow(
        "rms_norm/once/torch/stress", {"rows": 1, "d": 2}, {"x": x, "codes": codes}, {"eps": 1e-6}
    )
    empty = StoredRow("x", {"d": 0}, {"x": np.zeros((0,), np.uint64)}, {"c": float("inf")}, "why")
    return [first, empty]


def test_failing_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rows" / "rms_norm.json"
    assert read_rows(path) == []
    write_rows(path, rows())
    text = path.read_text()
    assert '"eps": "0x1.0c6f7a0b5ed8dp-20"' in text
    for got, expected in zip(read_rows(path), rows(), strict=True):
        assert (got.id, got.shape, got.scalars, got.note) == (
            expected.id, expected.shape, expected.scalars, expected.note,
        )  # fmt: skip
        assert list(got.operands) == sorted(expected.operands)
        for name, array in expected.operands.items():
            assert got.operands[name].dtype == array.dtype
            np.testing.assert_array_equal(got.operands[name], array)
    write_rows(path, read_rows(path))
    assert path.read_text() == text
    write_rows(path, [])
    assert read_rows(path) == []


def test_rows_are_few(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_rows(path, rows()[:1] * MAX_ROWS)
    assert len(read_rows(path)) == MAX_ROWS
    with pytest.raises(StoreError, match="33 rows; keep at most 32"):
        write_rows(path, rows()[:1] * (MAX_ROWS + 1))


ROW: dict[str, Any] = {
    "id": "x", "shape": {"d": 1}, "scalars": {}, "note": "",
    "operands": {"x": {"dtype": "uint16", "shape": [1], "bits": [1]}},
}  # fmt: skip
OPERAND = ROW["operands"]["x"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (1, r"rows\[0\]: int in the place of an object"),
        ({**ROW, "extra": 1}, r"rows\[0\]\.extra: unknown field"),
        ({k: v for k, v in ROW.items() if k != "id"}, r"rows\[0\]\.id: missing"),
        ({**ROW, "id": 1}, r"rows\[0\]\.id: int in the place of str"),
        ({**ROW, "shape": {"d": True}}, r"rows\[0\]\.shape\.d: True is no size"),
        ({**ROW, "shape": {"d": -1}}, r"rows\[0\]\.shape\.d: -1 is no size"),
        ({**ROW, "scalars": {"eps": 1.0}}, r"rows\[0\]\.scalars\.eps: float in the place of a"),
        ({**ROW, "scalars": {"eps": "x"}}, r"rows\[0\]\.scalars\.eps: 'x' is no float in hex"),
        ({**ROW, "operands": {"x": [1]}}, r"rows\[0\]\.operands\.x: list in the place of an obj"),
        ({**ROW, "operands": {"x": {**OPERAND, "dtype": "float32"}}}, r"\.x\.dtype: 'float32' is"),
        ({**ROW, "operands": {"x": {**OPERAND, "dtype": "object"}}}, r"\.x\.dtype: 'object' is"),
        ({**ROW, "operands": {"x": {**OPERAND, "shape": ["1"]}}}, r"\.x\.shape: \['1'\] is no sh"),
        ({**ROW, "operands": {"x": {**OPERAND, "bits": [1.0]}}}, r"bits\[0\]: 1\.0 is no uint16"),
        (
            {**ROW, "operands": {"x": {**OPERAND, "bits": [65536]}}},
            r"bits\[0\]: 65536 is no uint16",
        ),
        ({**ROW, "operands": {"x": {**OPERAND, "bits": [-1]}}}, r"bits\[0\]: -1 is no uint16"),
        ({**ROW, "operands": {"x": {**OPERAND, "bits": []}}}, r"bits: 0 values for shape \[1\]"),
    ],
)
def test_a_wrong_row_names_file_and_field(tmp_path: Path, row: Any, message: str) -> None:
    path = tmp_path / "softcap.json"
    path.write_text(json.dumps({"schema": 1, "rows": [ROW]}))
    assert len(read_rows(path)) == 1
    path.write_text(json.dumps({"schema": 1, "rows": [row]}))
    with pytest.raises(StoreError, match=message) as caught:
        read_rows(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith("; correct or delete the entry")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a file of rows"),
        ("[]", "file: list in the place of an object"),
        ('{"schema": 1}', "file.rows: missing"),
        ('{"schema": 2, "rows": []}', "schema: 2, this version reads 1"),
        ('{"schema": 1, "rows": [], "more": 0}', "file.more: unknown field"),
        ('{"schema": true, "rows": []}', "file.schema: bool in the place of int"),
        (json.dumps({"schema": 1, "rows": [ROW] * 33}), "rows: 33 of them, at most 32"),
    ],
)
def test_a_wrong_file_of_rows_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=message):
        read_rows(path)


def test_the_environment_is_json_and_imports_no_torch() -> None:
    code = (
        "import json, sys; from contract.environment import environment;"
        "print(json.dumps(environment())); assert 'torch' not in sys.modules"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == environment()
    assert environment()["libraries"]["numpy"] == np.__version__


@pytest.mark.parametrize(
    "name", ["ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "OPENBLAS_CORETYPE",
             "DNNL_MAX_CPU_ISA", "NPY_DISABLE_CPU_FEATURES", "OMP_NUM_THREADS"],
)  # fmt: skip
def test_a_variable_that_moves_bits_changes_the_key(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.delenv(name, raising=False)
    before = environment_key()
    monkeypatch.setenv(name, "3")
    assert environment_key() != before
    monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_HOME", "/elsewhere")
    monkeypatch.setenv("EDITOR", "vi")
    assert environment_key() == before
