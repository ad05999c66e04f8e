"""The options of `qk check` that say more about a model, and what names a user's own bug."""

import json

import pytest
import torch

from querykey import cli
from querykey.laws import check
from querykey.targets import TargetError, build, stated_inputs

MODELS = """
import torch
from torch import nn
import querykey as qk

class Scaled(nn.Module):
    def __init__(self, bug=False):
        super().__init__()
        self.bug, self.table, self.mix = bug, nn.Embedding(30, 8), nn.Linear(8, 30)

    def forward(self, ids, scale):
        rows = self.table(ids) * scale[..., None]
        if self.bug:
            rows = rows.missing
        return self.mix(rows)

class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.mix = nn.Embedding(30, 8), nn.Linear(8, 30)

    def forward(self, ids):
        return self.mix(self.table(ids) + self.table(ids).mean(1, keepdim=True))

class Slow(Mean):
    def forward(self, ids):
        import time
        time.sleep(0.5)
        return super().forward(ids)

def scaled(): return Scaled()
def buggy(): return Scaled(bug=True)
def mean(): return Mean()
def slow(): return Slow()
def told(): return qk.Subject(Mean(), causal=True, breaks={"causality.prefix": "it is a mean"})
def empty(): return qk.Subject(print)
def no_factory(): return 3
def clumsy():
    size = "3"
    return nn.Linear(size, 2)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODELS)
    return "mine.py"


def run(capsys, *words):
    code = cli.run(["check", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def checked(capsys, *words) -> dict:
    """The one report that the command prints as JSON."""
    out = run(capsys, *words, "--json")[1]
    return json.loads(out)[0]


def test_kind_makes_a_mean_over_all_tokens_a_breach(file, capsys):
    law = ("--law", "causality.perturb")
    assert checked(capsys, f"{file}:mean", *law)["kind"] == "encoder"
    told = checked(capsys, f"{file}:mean", *law, "--kind", "decoder")
    assert (told["kind"], told["laws"][0]["verdict"]) == ("decoder", "violated")
    code, out, err = run(capsys, f"{file}:mean", "--kind", "decodr")
    assert (code, out) == (2, "")
    assert err.startswith("qk: kind is one of decoder, encoder, ")
    assert "did you mean `decoder`?" in err


def test_a_factory_may_return_a_subject(file, capsys):
    report = checked(capsys, f"{file}:told", "--law", "causality")
    verdicts = {finding["law"]: finding["verdict"] for finding in report["laws"]}
    assert report["target"] == f"{file}:told"
    assert verdicts["causality.perturb"] == "violated"
    assert verdicts["causality.prefix"] == "not-applicable"
    assert check(f"{file}:told", laws=["purity"]).target == f"{file}:told"
    code, _, err = run(capsys, f"{file}:empty")
    assert code == 2
    assert "no torch.nn.Module is found" in err
    code, _, err = run(capsys, f"{file}:no_factory")
    assert (code, err.count("\n")) == (2, 1)
    assert "returned an int; a factory returns a torch.nn.Module, or a querykey.Subject" in err


def test_inputs_that_cannot_be_found_out_are_stated(file, capsys):
    law, ids = ("--law", "batch.others"), ("--input", "ids=tokens(batch,seq)")
    scale = "scale=array(batch,seq)"
    report = checked(capsys, f"{file}:scaled", *law, *ids, "--input", scale)
    assert report["laws"][0]["verdict"] == "holds"
    assert report["about"]["input"] == "ids (batch, seq) token ids 0 to 29"
    code, out, err = run(capsys, f"{file}:scaled", "--input", "ids=words(batch)")
    assert (code, out) == (2, "")
    assert "`ids=words(batch)` is no input; write NAME=KIND(AXIS, ...)" in err


def test_stated_inputs_are_read_by_name_and_by_place():
    stated = stated_inputs(
        ["tokens(n,t)", "y = array(n,s,64)", "image=images(n,3,8,8)", "at=positions(t)"],
        ["ids"],
        50,
    )
    assert list(stated) == ["ids", "y", "image", "at"]
    assert [entry.axes for entry in stated.values()] == [
        ("batch", "seq"), ("batch", "target_seq", 64), ("batch", 3, 8, 8), ("seq",),
    ]  # fmt: skip
    assert [entry.kind for entry in stated.values()] == ["tokens", "features", "image", "positions"]
    assert (stated["ids"].low, stated["ids"].high) == (0, 50)
    assert stated_inputs(["tokens(seq,batch)"], ["x"])["x"].axes == ("seq", "batch")
    with pytest.raises(TargetError, match="has no free axis"):
        stated_inputs(["array(3,4)"], ["x"])


def test_the_bug_of_a_user_shows_its_own_file_and_line(file, capsys):
    line = MODELS.split("\n").index("            rows = rows.missing") + 1
    inputs = ("--input", "ids=tokens(batch,seq)", "--input", "scale=array(batch,seq)")
    place = f"AttributeError: 'Tensor' object has no attribute 'missing' (mine.py:{line}, forward)"
    report = checked(capsys, f"{file}:buggy", *inputs)
    assert report["laws"][0]["note"] == f"forward raised {place}"
    code, out, err = run(capsys, f"{file}:buggy", *inputs)
    assert (code, err) == (3, "")
    code, out, err = run(capsys, f"{file}:buggy", *inputs, "--traceback")
    assert code == 3
    assert err.count("Traceback (most recent call last)") == 1
    assert f'mine.py", line {line}, in forward' in err
    line = MODELS.split("\n").index("    return nn.Linear(size, 2)") + 1
    code, out, err = run(capsys, f"{file}:clumsy")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"(mine.py:{line}, clumsy)" in err


def test_a_message_names_the_flag_that_helps(file, capsys):
    report = checked(capsys, f"{file}:buggy")
    assert "with --input NAME=KIND(AXIS, ...), or an example in Python" in report["note"] + str(
        report["laws"][0]["note"]
    )
    report = checked(capsys, f"{file}:slow", "--timeout", "1")
    assert report["note"] == "stopped after 1 s; --timeout S allows more"
    code, _, err = run(capsys, f"{file}:slow", "--timeout", "0")
    assert (code, err) == (2, "qk: --timeout is a number of seconds above 0, not 0\n")


def test_an_unseeded_factory_draws_the_same_weights_for_the_same_seed(file):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    weights = [build(f"{file}:mean", seed=seed).model.mix.weight for seed in (0, 0, 1)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(torch.get_rng_state(), before)
