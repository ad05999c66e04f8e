"""Compiled and exported models: tried on request alone, with faults that only they show."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from querykey.laws import check


class Decoder(nn.Module):
    """A causal mean; compiled code takes another branch, and exporting freezes a number."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.score = nn.Embedding(40, 12), nn.Linear(12, 40)

    def forward(self, ids):
        x = self.embed(ids)
        if self.fault == "compiled" and torch.compiler.is_compiling():
            x = x.flip(1)
        if self.fault == "exported" and torch.compiler.is_exporting():
            x = x * 1.5
        return self.score(x.cumsum(1) / torch.arange(1, ids.size(1) + 1)[:, None])


def test_without_a_request_nothing_is_compiled_or_exported():
    names = {finding.law for finding in check(Decoder("compiled"), weights="random").laws}
    assert not {"paths.compile", "paths.export"} & names


def verdict(law, fault, tmp_path):
    """Return the verdict of a law, and the exit code of its script where it has one."""
    (tmp_path / "mine.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path.cwd())!r})\n"
        "from tests.laws.test_graphs import Decoder\n\n\n"
        f"def make():\n    return Decoder({fault!r})\n"
    )
    finding = check(f"{tmp_path / 'mine.py'}:make", laws=[law]).law(law)
    if not finding.repro:
        return finding.verdict, None
    (tmp_path / "show.py").write_text(finding.repro)
    done = subprocess.run([sys.executable, "show.py"], cwd=tmp_path, capture_output=True)
    return finding.verdict, done.returncode


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_a_compiled_model_that_answers_otherwise_is_told(tmp_path):
    assert verdict("paths.compile", "compiled", tmp_path) == ("violated", 1)
    assert verdict("paths.compile", "", tmp_path) == ("holds", None)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_an_exported_model_that_answers_otherwise_is_told(tmp_path):
    assert verdict("paths.export", "exported", tmp_path) == ("violated", 1)
    assert verdict("paths.export", "", tmp_path) == ("holds", None)
