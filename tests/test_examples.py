"""Every example runs and prints something, and so does a benchmark that lacks its device."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs(file, tmp_path):
    done = subprocess.run([sys.executable, file], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", ["decode", "documents", "gpu", "longrun"])
def test_a_benchmark_without_a_gpu_says_so_and_is_no_failure(name, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out == "nothing was timed: this needs a CUDA device\n"
