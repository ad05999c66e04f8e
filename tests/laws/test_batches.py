"""Models that take all tensors of a call in one object: a dict, or one with attributes."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from querykey.laws import check
from querykey.targets import Input, takes_batch

WORDS, WIDTH = 37, 8


class Mixing(nn.Module):
    """One layer of causal attention, which sees one token too many where it is faulty."""

    def __init__(self, ahead=0):
        super().__init__()
        self.ahead = ahead
        self.embed, self.map = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.score = nn.Linear(WIDTH, WORDS)

    def mixed(self, ids, real=None):
        q, k, v = self.map(self.embed(ids)).chunk(3, -1)
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril(self.ahead)
        if real is not None:
            seen = seen & real.bool()[:, None]
        return self.score(v + (q @ k.mT).masked_fill(~seen, -1e9).softmax(-1) @ v)


class OfDict(Mixing):
    """Takes a dict; the loss and the mask are there where the dict has what they need."""

    def forward(self, batch):
        logits = self.mixed(batch["tokens"], batch.get("attention_mask"))
        if "labels" not in batch:
            return {"logits": logits}
        shifted = batch["labels"][:, 1:].flatten()
        return {"logits": logits, "loss": F.cross_entropy(logits[:, :-1].flatten(0, 1), shifted)}


class OfObject(Mixing):
    """Takes an object with attributes, as graphs and examples of datasets are."""

    def forward(self, data):
        return self.mixed(data.x, getattr(data, "mask", None))


def test_what_a_dict_must_and_may_hold_is_found():
    found, of_object = takes_batch(OfDict()), takes_batch(OfObject())
    assert found
    assert of_object
    assert [(one.name, one.kind) for one in found.inputs] == [("tokens", "tokens")]
    assert (found.argument, found.attributes) == ("batch", False)
    assert found.optional == ("attention_mask", "labels")
    assert of_object.attributes
    assert takes_batch(nn.Linear(3, 2)) is None


@pytest.mark.parametrize("kind", [OfDict, OfObject])
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_model_that_takes_one_object_is_checked_like_any_other(kind, ahead):
    report = check(kind(ahead), laws=["causality", "padding.right", "batch.others"])
    assert {f.law.partition(".")[0] for f in report.violations} == (
        {"causality"} if ahead else set()
    )
    assert report.law("padding.right").verdict == "holds"
    assert report.about["input"].endswith(("in `batch`", "in `data`"))


def test_inputs_that_are_stated_are_put_into_the_one_argument():
    stated = {"tokens": Input("tokens", "tokens", ("batch", "seq"), 0, WORDS)}
    report = check(OfDict(1), stated, laws=["causality.perturb"])
    assert [f.law for f in report.violations] == ["causality.perturb"]


@pytest.mark.parametrize("kind", ["OfDict", "OfObject"])
def test_the_script_of_a_breach_runs_by_itself(tmp_path, kind):
    file = tmp_path / "model.py"
    source = f"from tests.laws.test_batches import {kind}\n\n\ndef make():\n    return {kind}(1)\n"
    file.write_text(source)
    [finding] = check(f"{file}:make", laws=["causality.perturb"]).violations
    script = tmp_path / "shown.py"
    script.write_text(finding.repro)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1, ran.stderr


class Broken(Mixing):
    """Reads its tensors, and then does what no tensor allows."""

    def forward(self, batch):
        logits = self.mixed(batch["ids"], batch.get("mask"))
        return logits.reshape(1, 3, 5, 7, 11, 13)


def test_what_such_a_model_raises_by_itself_is_said():
    [finding] = check(Broken(), laws=["purity"]).laws
    assert finding.verdict == "error"
    assert "its `batch` is asked for `ids`; with these it raised RuntimeError" in finding.note
    assert "test_batches.py" in finding.note
