"""docs/cost.md is run: its Python in order, and every command it prints."""

import re
import shlex
from pathlib import Path

import pytest

from querykey import cli

PAGE = (Path(__file__).parent.parent.parent / "docs" / "cost.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
MODEL = """
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40))

    def forward(self, ids):
        return self.inner(ids)

def make():
    return Model()
"""


@pytest.mark.slow
def test_every_block_of_python_runs():
    blocks = [text for language, text in BLOCKS if language == "python"]
    assert len(blocks) > 1
    names = {}
    for block in blocks:  # a later one may use what an earlier one made
        exec(block, names)


@pytest.mark.slow
def test_every_command_works_as_printed(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    commands = [text for language, text in BLOCKS if language == "bash"]
    lines = [line for text in commands for line in text.splitlines() if line.startswith("qk ")]
    assert lines
    for line in lines:
        assert cli.run(shlex.split(line)[1:]) == 0, line
    assert capsys.readouterr().err == ""
    assert "What hf:gpt2 costs" in (tmp_path / "cost.html").read_text()
