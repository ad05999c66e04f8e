"""`qk train --check`: our own loop under the laws of training, and a fault in it that is told."""

import pytest

from querykey import cli
from querykey.train import Trainer, read_config
from querykey.train.watched import check_run

SMALL = {
    "data": {"name": "copy", "length": 9, "samples": 60},
    "model": {"width": 16, "layers": 2, "heads": 2, "dropout": 0.1},
    "loop": {"batch": 8, "pieces": 2, "steps": 12},
}


def test_our_own_loop_keeps_every_law(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = check_run(read_config(SMALL, {}))
    assert report.built, report.note
    assert not [f for f in report.laws if f.verdict in ("violated", "advice", "error")], str(report)
    tried = ("zero-grad", "accumulation", "terms", "optimizer", "mode", "update", "resume")
    assert {report.law(f"training.{name}").verdict for name in tried} == {"holds"}
    assert list(tmp_path.iterdir()) == []  # nothing is left of it


def test_a_fault_in_our_loop_is_told(monkeypatch, capsys):
    own = Trainer.tensors
    monkeypatch.setattr(  # a checkpoint that holds the model alone
        Trainer, "tensors", lambda self: {n: t for n, t in own(self).items() if "model." in n}
    )
    words = ["--check", "--samples", "60", "--batch", "8", "--width", "16", "--layers", "1"]
    assert cli.run(["train", "copy", *words]) == 1
    out = capsys.readouterr().out
    assert out.startswith("copy (training)\n")
    assert "BROKEN training.resume" in out
    assert "the state of AdamW is forgotten" in " ".join(out.split())


@pytest.mark.parametrize("flag", [["--no-such-field", "3"], ["--steps", "many"]])
def test_a_bad_flag_is_refused_as_without_check(flag, capsys):
    assert cli.run(["train", "copy", "--check", *flag]) == 2
    assert capsys.readouterr().err.startswith("qk: ")
