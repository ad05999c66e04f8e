"""Every command that docs/cost.md prints is run; its Python is, with that of the other pages."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from torch import nn

import querykey as qk
from querykey import cli
from querykey.costs.command import write_page

PAGE = (Path(__file__).parent.parent.parent / "docs" / "cost.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
MODEL = (EXAMPLES / "leak.py").read_text()


@pytest.mark.slow
def test_every_command_works_as_printed(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "examples").mkdir()
    shutil.copy(EXAMPLES / "what_documents_cost.py", tmp_path / "examples")
    commands = [text for language, text in BLOCKS if language == "bash"]
    lines = [line for text in commands for line in text.splitlines() if line.startswith("qk ")]
    assert lines
    for line in lines:
        assert cli.run(shlex.split(line)[1:]) == 0, line
    assert capsys.readouterr().err == ""
    assert "What hf:gpt2 costs" in (tmp_path / "cost.html").read_text()


def test_a_file_whose_name_is_no_text_has_its_page(tmp_path):
    report = qk.cost(nn.Linear(3, 2), qk.array("n", 3))
    write_page(report, "\udcff.py:make", str(tmp_path / "page.html"))
    assert "\\udcff.py:make" in (tmp_path / "page.html").read_text()


def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch, capsys):
    def work(*_):
        raise AssertionError("the work was done first")

    monkeypatch.setattr("querykey.costs.cost_of_target", work)
    for file, reason in (
        (tmp_path / "none" / "page.html", f"there is no folder `{tmp_path / 'none'}`"),
        (tmp_path, "it is a folder"),
    ):
        assert cli.run(["cost", "decoder", "--html", str(file)]) == 2
        assert capsys.readouterr().err == f"qk: nothing can be written to `{file}`: {reason}\n"
