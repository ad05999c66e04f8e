"""`qk check --training file.py:run`: what it prints, the files it writes, and how it leaves."""

import json

import pytest
from tests.test_json import validate

from querykey import cli

LOOPS = """
import torch
from torch import nn

def run(clear=False):
    print("an epoch begins")
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(3):
        if clear:
            optimizer.zero_grad()
        model(torch.randn(7, 5)).square().mean().backward()
        optimizer.step()

def lawful(): run(clear=True)
def raises(): raise ValueError("no data")
def needs(model): pass
number = 3
"""


@pytest.fixture(autouse=True)
def _loops(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loops.py").write_text(LOOPS)


def run(capfd, *words):
    code = cli.run(["check", *words])
    out, err = capfd.readouterr()
    return code, out, err


def test_a_breach_is_printed_without_what_the_loop_prints(capfd):
    code, out, err = run(capfd, "--training", "loops.py:run")
    assert code == 1
    assert out.startswith("loops.py:run (training)\n")
    assert "BROKEN training.zero-grad" in out
    assert "loops.py:13" in out
    assert "an epoch begins" in err
    assert "an epoch begins" not in out


def test_a_lawful_loop_leaves_with_0(capfd):
    assert run(capfd, "--training", "loops.py:lawful")[0] == 0


def test_json_fits_the_schema_and_makes_a_baseline(capfd, tmp_path):
    code, out, _ = run(capfd, "--training", "loops.py:run", "--json")
    assert code == 1
    reports = json.loads(out)
    validate("check", reports)
    assert reports[0]["kind"] == "training"
    (tmp_path / "known.json").write_text(out)
    assert run(capfd, "--training", "loops.py:run", "--baseline", "known.json")[0] == 0


def test_the_line_is_written_as_sarif_and_the_law_as_junit(capfd, tmp_path):
    files = ("--sarif", "found.sarif", "--junit", "found.xml", "--html", "found.html")
    assert run(capfd, "--training", "loops.py:run", *files)[0] == 1
    result = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"][0]
    assert result["ruleId"] == "training.zero-grad"
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("loops.py", 13)
    assert 'name="training.zero-grad"' in (tmp_path / "found.xml").read_text()
    assert "training.zero-grad" in (tmp_path / "found.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--training", "loops.py:raises"],
         "the training loop raised ValueError: no data (loops.py:16, raises)"),
        (["--training", "loops.py:needs"],
         "`loops.py:needs`: `needs` needs `model`; it is to take no arguments"),
        (["--training", "loops.py:number"],
         "`loops.py:number`: `number` is an int, not a function"),
        (["--training", "loops.py"],
         "`loops.py` names no function; write file.py:run or package.module:run"),
        (["--training", "loops.py:rum"], "`loops.py:rum`: `loops.py` has no `rum`; did you mean "
         "`run`?"),
        (["--training", "loops.py:run", "--kind", "decoder"], "--training is watched by itself; "
         "leave out TARGET, --law, --kind, --like, --input and --store"),
        (["--resume", "loops.py:run"],
         "--resume goes with --training, which names the function without a stop"),
        (["hf:gpt2", "--law", "training.zero-grad"], "`training.zero-grad` names laws of training "
         "loops; querykey.check_training(run) tries them, or `qk check --training file.py:run`"),
    ],
)  # fmt: skip
def test_a_bad_call_is_refused_in_one_sentence(capfd, words, message):
    code, out, err = run(capfd, *words)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"qk: {message}"
