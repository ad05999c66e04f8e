"""Two models that are meant to be one: what ports get wrong is told, and right ports are not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.laws import ports
from tests.laws.planted.caches import Tuples
from torch import nn

from querykey import cli
from querykey.errors import WrongTypeError
from querykey.laws import Subject, check

WORDS, WIDTH, HEADS, GROUPS = 41, 24, 4, 2
SIZE = WIDTH // HEADS


class Attention(nn.Module):
    """Grouped heads with ALiBi; `port` is what somebody's port does otherwise."""

    def __init__(self, port=""):
        super().__init__()
        self.port = port
        self.q, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * GROUPS * SIZE)

    def forward(self, x, real=None):
        return self.out(self.mixed(self.q(x), self.kv(x), real))

    def mixed(self, q, kv, real=None):
        B, T, _ = q.shape
        q = q.view(B, T, HEADS, SIZE).transpose(1, 2)
        k, v = (part.view(B, T, GROUPS, SIZE).transpose(1, 2) for part in kv.chunk(2, -1))
        if self.port == "heads in another order":
            k, v = (t.repeat(1, HEADS // GROUPS, 1, 1) for t in (k, v))
        else:
            k, v = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (k, v))
        far = torch.arange(T)[None] - torch.arange(T)[:, None]
        slopes = 2.0 ** -torch.arange(1, HEADS + 1)[:, None, None]
        bias = slopes * far * (-1 if self.port == "another sign of the bias" else 1)
        scale = WIDTH if self.port == "another scale" else SIZE
        seen = (far <= 0)[None, None]
        if real is not None and self.port != "no mask":
            seen = seen & real.bool()[:, None, None]
        scores = (q @ k.mT * scale**-0.5 + bias).masked_fill(~seen, -1e30)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self, port=""):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList([Attention(), Attention(port)])

    def forward(self, ids, attention_mask=None):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x, attention_mask)
        return self.head(x)


class Renamed(nn.Module):
    """The same under other names, and other names of arguments."""

    def __init__(self, port=""):
        super().__init__()
        self.model = Model(port)

    def forward(self, tokens, attention_mask=None):
        return self.model(tokens, attention_mask)


class Fused(nn.Module):
    """The same with one matrix for queries, keys and values: a function must say how."""

    def __init__(self, port=""):
        super().__init__()
        self.port = port
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.qkv = nn.ModuleList([nn.Linear(WIDTH, 2 * WIDTH) for _ in "ab"])
        self.out = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in "ab"])

    def forward(self, ids):
        x = self.embed(ids)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, kv = qkv(x).chunk(2, -1)
            x = x + out(Attention(self.port).mixed(q, kv))
        return self.head(x)


def fused(state):
    new = {name: state[name] for name in state if name.startswith(("embed", "head"))}
    for i in (0, 1):
        for kind in ("weight", "bias"):
            parts = [state[f"layers.{i}.{part}.{kind}"] for part in ("q", "kv")]
            new[f"qkv.{i}.{kind}"] = torch.cat(parts)
            new[f"out.{i}.{kind}"] = state[f"layers.{i}.out.{kind}"]
    return new


def agreement(model, like):
    return check(model, laws=["agreement"], like=like).law("agreement")


PORTS = ["heads in another order", "another sign of the bias", "another scale", "no mask"]


@pytest.mark.parametrize("other", [Model, Renamed])
@pytest.mark.parametrize("port", PORTS)
def test_what_a_port_does_otherwise_is_told_and_the_module_named(port, other):
    finding = agreement(Model(), other(port))
    assert finding.verdict == "violated"
    assert finding.module == ("layers.1" if other is Model else "(model)")
    assert ("with right padding" in finding.note or "with left padding" in finding.note) == (
        port == "no mask"
    )


@pytest.mark.parametrize("other", [Model, Renamed])
def test_a_right_port_agrees(other):
    assert agreement(Model(), other()).verdict == "holds"


IMAGES = {"images": torch.randn(2, 3, 8, 8)}
OTHERS = {  # by what a port does otherwise: the model, its port, and an example
    "neighbours in place of halves": (ports.Rotary, ports.Rotary, None),
    "turned the other way for keys": (ports.Rotary, ports.Rotary, None),
    "another epsilon": (ports.Library, ports.ByHand, None),
    "an approximate gelu": (ports.Library, ports.ByHand, None),
    "the first norm twice": (ports.Library, ports.ByHand, None),
    "gates in another order": (ports.Recurrent, ports.Gates, None),
    "the forget gate opens by one": (ports.Recurrent, ports.Gates, None),
    "columns first": (ports.Patches, lambda port="": ports.Patches(True, port), IMAGES),
}


@pytest.mark.parametrize("port", OTHERS)
def test_ports_of_other_kinds_are_told_from_right_ones(port):
    make, make_port, example = OTHERS[port]
    for name, verdict in ((port, "violated"), ("", "holds")):
        other = make_port(name)
        like = (other, ports.by_hand) if isinstance(other, ports.ByHand) else other
        if example:
            like = Subject(other, example)
        report = check(make(), example, laws=["agreement"], like=like)
        assert report.law("agreement").verdict == verdict, report


def test_a_function_says_where_weights_come_from():
    assert agreement(Model(), (Fused(), fused)).verdict == "holds"
    finding = agreement(Model(), Fused())
    assert finding.verdict == "not-applicable"
    assert "no weight was found for `qkv.0.weight`" in finding.note


def test_where_no_other_model_is_given_nothing_is_compared():
    assert "check(model, like=other)" in check(Model(), laws=["agreement"]).laws[0].note


def test_what_is_no_model_is_refused_in_one_sentence():
    with pytest.raises(WrongTypeError, match="a pair of one and a function of state dicts"):
        check(Model(), like=(Model(), 3))
    with pytest.raises(WrongTypeError, match="not a dict"):
        check(Model(), like={})


def test_weights_paired_by_order_alone_only_give_advice():
    class Named(Tuples):
        def __init__(self):
            super().__init__()
            self.first, self.second = self.layers
            del self.layers

        @property
        def layers(self):
            return [self.second, self.first]

        @layers.setter
        def layers(self, layers):
            self._modules["layers"] = layers

        @layers.deleter
        def layers(self):
            self._modules.pop("layers", None)

    finding = agreement(Tuples(), Named())
    assert finding.verdict == "advice"
    assert "paired by order alone" in finding.note


SAME = "from tests.laws.test_agreement import Model\n\ndef make():\n    return Model()\n"
PORT = SAME.replace("Model()", "Model('another scale')")


@pytest.mark.slow
def test_the_command_compares_two_targets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "same.py").write_text(SAME)
    (tmp_path / "port.py").write_text(PORT)
    words = ["check", "same.py:make", "--law", "agreement", "--json", "--like"]
    for other, verdict, code in (("same.py", "holds", 0), ("port.py", "violated", 1)):
        assert cli.run([*words, f"{other}:make"]) == code
        [report] = json.loads(capsys.readouterr().out)
        assert [law["verdict"] for law in report["laws"]] == [verdict]


@pytest.mark.slow
@pytest.mark.parametrize(
    "port", [PORTS[3], *(pytest.param(port, marks=pytest.mark.full) for port in PORTS[:3])]
)
def test_a_script_shows_where_two_models_differ_and_none_where_they_agree(port, tmp_path):
    mine, other = tmp_path / "same.py", tmp_path / "port.py"
    mine.write_text(SAME)
    other.write_text(SAME.replace("Model()", f"Model({port!r})"))
    finding = check(f"{mine}:make", laws=["agreement"], like=f"{other}:make").law("agreement")
    _shows_the_breach_alone(finding.repro, other, tmp_path)


@pytest.mark.slow
def test_a_script_maps_weights_by_the_users_function(tmp_path):
    mine, other = tmp_path / "same.py", tmp_path / "fused.py"
    mine.write_text(SAME)
    other.write_text(SAME.replace("Model()", f"Fused({PORTS[2]!r})").replace("Model", "Fused"))
    pair = (f"{other}:make", fused)
    finding = check(f"{mine}:make", laws=["agreement"], like=pair).law("agreement")
    assert "import fused as weights_of" in finding.repro
    _shows_the_breach_alone(finding.repro, other, tmp_path)


def _shows_the_breach_alone(repro, other, folder):
    """Run a script where another model differs, and again where it agrees."""
    script = folder / "show.py"
    script.write_text(repro)
    assert "querykey" not in repro
    world = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    ran = [sys.executable, script.name]
    done = subprocess.run(ran, cwd=folder, env=world, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "the answers of two models with the same weights differ" in done.stdout
    other.write_text(re.sub(r"\('.*'\)", "()", other.read_text()))
    done = subprocess.run(ran, cwd=folder, env=world, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
