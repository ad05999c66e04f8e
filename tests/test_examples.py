"""Every example runs and prints something, and so does a benchmark that lacks its device."""

import ast
import importlib.util
import json
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


@pytest.mark.slow
def test_the_long_run_in_equal_time_at_a_tiny_size(monkeypatch, capsys):
    sizes = {"width": 16, "layers": 2, "heads": 2, "tokens": 32, "bytes": 4000, "steps": 2}
    options = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    options += ["--device", "cpu", "--equal-time", "600", "--rates", "1e-9", "3e-3"]
    monkeypatch.setattr(sys, "argv", ["longrun", *options, "--only", "decay-conv"])
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    runpy.run_path(str(ROOT / "benchmarks" / "longrun.py"), run_name="__main__")
    run = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]["decay-conv"]
    assert run["steps"] == len(run["losses"]) == 2
    assert run["rate"] == 3e-3  # the other changes nothing
    (_, _, first), (_, steps, last) = run["validation (seconds, steps, loss)"]
    assert steps == 2
    assert last < first


def test_a_package_is_trained_on_or_validated_on_whole(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    names = [f"package{i}" for i in range(60)]
    for name in names:
        (tmp_path / name).mkdir()
        for part in ("one", "two"):
            (tmp_path / name / f"{part}.py").write_text(f"<{name}>")
    text = importlib.import_module("longrun_text").packages(100_000, [tmp_path])
    sides = [bytes(side.tolist()).decode() for side in text]
    assert all([side.count(f"<{name}>") for side in sides] in ([2, 0], [0, 2]) for name in names)
    assert 0 < len(sides[1]) < len(sides[0]) / 4
