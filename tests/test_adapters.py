"""The examples of docs/adapters.md: each is short, and is judged green with its control red."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
#: Example -> packages and programs that it needs beside torch.
NEEDS = {
    "torch": (),
    "transformers": ("transformers",),
    "inductor": ("g++",),
    "onnxruntime": ("onnx", "onnxruntime"),
    "mlx": ("mlx",),
    "liger": ("triton", "liger_kernel"),
    "cuda": ("nvcc", "nvidia"),
}
#: Lines of code, without imports, that a reader has to write for one kernel.
MOST_LINES = 15
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in NEEDS if name != "torch"]


def missing(name: str) -> str:
    """What is not here of what an example needs; a compiler is a program, or comes with its package."""
    if name == "cuda":
        found = shutil.which("nvcc") or importlib.util.find_spec("nvidia")
        return "" if found else "nvcc"
    for need in NEEDS[name]:
        if not (shutil.which(need) if need == "g++" else importlib.util.find_spec(need)):
            return need
    return ""


def test_every_example_has_a_test_and_a_place_in_the_docs() -> None:
    files = {path.stem.removeprefix("adapter_") for path in EXAMPLES.glob("adapter_*.py")}
    assert files == set(NEEDS)
    docs = (ROOT / "docs" / "adapters.md").read_text()
    assert {name for name in NEEDS if f"examples/adapter_{name}.py" in docs} == files


@pytest.mark.parametrize("name", NEEDS)
def test_an_adapter_is_short_and_stands_in_the_docs_as_it_is_run(name: str) -> None:
    source = (EXAMPLES / f"adapter_{name}.py").read_text()
    code = [
        node
        for node in ast.parse(source).body
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    ]
    lines = source.splitlines()
    first = [min([n.lineno, *(d.lineno for d in getattr(n, "decorator_list", []))]) for n in code]
    written = [
        line
        for node, start in zip(code, first, strict=True)
        for line in lines[start - 1 : node.end_lineno]
        if line.strip() and not line.strip().startswith(("import ", "from "))
    ]
    assert 0 < len(written) <= MOST_LINES
    docs = (ROOT / "docs" / "adapters.md").read_text()
    for node, start in zip(code, first, strict=True):
        for line in lines[start - 1 : node.end_lineno]:
            assert f"    {line}".rstrip() in docs.splitlines()


@pytest.mark.parametrize("name", ["torch", *SLOW])
def test_an_adapter_is_judged_green(name: str, tmp_path: Path) -> None:
    if absent := missing(name):
        pytest.skip(f"{absent} is not installed")
    report = tmp_path / "report.json"
    options = ["--effort", "quick", "--fresh", "--timeout", "900", "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "contract", "run", f"examples/adapter_{name}.py", *options, "--json", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(report.read_text())
    assert told["summary"]["controls"]["red_as_planted"] == 1
    ran = {one["gate"]: one["outcome"] for one in told["checks"] if one["implementation"]}
    # without a folder of records there is nothing to compare resources with
    assert ran.pop("limits") == "not_run"
    assert set(ran.values()) == {"pass"}
    assert set(ran) == {"shapes", "stress", "exact", "invariance", "bounds"}
    assert re.search(r"\n7 passed, 0 failed, 1 skipped$", done.stdout.rstrip())
