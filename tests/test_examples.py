"""Every example runs and prints something, and so does a benchmark that lacks its device."""

import ast
import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs(file, tmp_path):
    done = subprocess.run([sys.executable, file], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def names_imported(code: str) -> list[tuple[str, str]]:
    """Every name of ours that a script imports, with its module."""
    return [
        (node.module or "", alias.name)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("querykey")
        for alias in node.names
    ]


def is_there(module: str, name: str) -> bool:
    """Whether a module has the name, or is a package with such a file."""
    if importlib.util.find_spec(module) is None:
        return False
    found = importlib.import_module(module)
    return hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_what_a_benchmark_imports_exists(file):
    assert [pair for pair in names_imported(file.read_text()) if not is_there(*pair)] == []


def test_the_test_of_benchmarks_can_fail():
    code = "from querykey.attention import Mask, Musk\ndef f():\n    from querykey.ag import nn"
    assert [pair[1] for pair in names_imported(code) if not is_there(*pair)] == ["Musk"]


@pytest.mark.parametrize("name", ["decode", "documents", "gpu", "longrun"])
def test_a_benchmark_without_a_gpu_says_so_and_is_no_failure(name, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out == "nothing was timed: this needs a CUDA device\n"
