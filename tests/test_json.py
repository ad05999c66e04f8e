"""The JSON of `qk check` and `qk cost`: real output fits its schema, and docs/json.md lists it."""

import json
import re
from pathlib import Path

import pytest
import torch
from jsonschema import Draft202012Validator, ValidationError
from tests.leaky_layer import LAYER
from torch import nn

import querykey as qk
from querykey import cli
from querykey.laws.finding import VERDICTS, Finding
from querykey.laws.report import Report

DOCS = Path(__file__).parent.parent / "docs"
SCHEMAS = {
    name: json.loads((DOCS / f"schema/{name}.json").read_text()) for name in ("check", "cost")
}
MODELS = (
    LAYER
    + """
def leaky():
    return nn.Sequential(nn.Embedding(40, 16), Layer(0), Layer(1), nn.Linear(16, 40))

class Inverse(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvalsh(x @ x.mT)

def inverse():
    return nn.Sequential(nn.Linear(6, 6), Inverse())
"""
)


def validate(name: str, values: object) -> None:
    """Raise unless values fit a schema, which is itself checked."""
    Draft202012Validator.check_schema(SCHEMAS[name])
    Draft202012Validator(SCHEMAS[name]).validate(values)


@pytest.fixture
def models(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODELS)


def printed(capsys, *words: str) -> tuple[int, object]:
    """The exit code of a command, and the JSON that it prints."""
    code = cli.run([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.usefixtures("models")
def test_what_check_prints_fits_its_schema(capsys):
    laws = ("--law", "causality", "--law", "purity", "--law", "cache")
    code, reports = printed(capsys, "check", "model.py:leaky", "decoder", "no-such", *laws)
    assert code == 1
    validate("check", reports)
    assert [report["built"] for report in reports] == [True, True, False]
    broken = [law for law in reports[0]["laws"] if law["verdict"] == "violated"]
    assert broken
    assert broken[0]["where"]
    assert broken[0]["repro"]
    validate("check", [report.as_json() for report in qk.check_all(["encoder-decoder"])])


def test_what_is_not_finite_fits_the_schema():
    finding = Finding(
        "purity", "violated", float("nan"), 1e-9, {"sample": 1}, "a", "b.py:3", {"train": True}
    )
    validate("check", [Report("a", "vision", [finding]).as_json()])


@pytest.mark.slow
@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    "words",
    [
        ["decoder"],
        ["decoder", "--at", "batch=8,seq=16"],
        ["decoder", "--at", "seq=16", "--attention", "math"],
        ["model.py:inverse", "--input", "array(n, 6, 6)"],
    ],
)
def test_what_cost_prints_fits_its_schema(words, capsys):
    code, report = printed(capsys, "cost", *words)
    assert code == 0
    validate("cost", report)
    assert bool(report["unknown"]) == words[0].endswith("inverse")


class Chosen(nn.Module):
    """An expert of a size that depends on values."""

    def __init__(self):
        super().__init__()
        self.gate, self.expert = nn.Linear(6, 2), nn.Linear(6, 24)

    def forward(self, x):
        rows = (self.gate(x).argmax(-1) == 1).nonzero()[:, 0]
        return self.expert(x[rows])


class Blocks(nn.Module):
    """Tokens in blocks of 64, each of which sees the one before it: small sizes cost otherwise."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(6, 6)

    def forward(self, x):
        x = nn.functional.pad(x, (0, 0, 0, -int(x.size(1)) % 64))
        blocks = [self.map(block) for block in x.split(64, 1)]
        seen = [(a @ b.mT) @ b for a, b in zip(blocks[1:], blocks, strict=False)]
        return torch.cat([blocks[0], *seen], 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "axes", "field"), [(Chosen(), ("n", 6), "picked"), (Blocks(), ("n", "t", 6), "below")]
)
def test_a_report_with_rarer_fields_fits_the_schema(model, axes, field):
    values = json.loads(qk.cost(model, qk.array(*axes)).to_json())
    assert values[field]
    validate("cost", values)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("check", {"schema": 2}),
        ("check", {"kind": "house"}),
        ("check", {"seconds": "3"}),
        ("check", {"laws": [{"law": "purity"}]}),
        ("check", {"extra": 1}),
        ("cost", {"schema": 2}),
        ("cost", {"params": None}),
        ("cost", {"flops.forward": "64 batch; seq"}),
        ("cost", {"modules": {"": {}}}),
        ("cost", {"below": {}}),
    ],
)
def test_a_schema_refuses_what_does_not_fit(name, change):
    if name == "check":
        values = Report("a", "vision", []).as_json()
    else:
        values = qk.cost(nn.Linear(3, 2), qk.array("n", 3)).to_dict()
    wrap = (lambda one: [one]) if name == "check" else (lambda one: one)
    validate(name, wrap(values))
    with pytest.raises(ValidationError):
        validate(name, wrap(values | change))


def test_a_schema_lists_every_verdict_there_is():
    finding = SCHEMAS["check"]["$defs"]["finding"]["properties"]
    assert finding["verdict"]["enum"] == list(VERDICTS)


def fields_of_page() -> list[set[str]]:
    """The fields that each table of docs/json.md names in its first column."""
    tables = re.split(r"^\|---\|---\|---\|$", (DOCS / "json.md").read_text(), flags=re.MULTILINE)[
        1:
    ]
    names = []
    for table in tables:
        rows = re.match(r"\n(\|.*\n)+", table)
        assert rows
        firsts = [row.split("|")[1] for row in rows[0].strip().splitlines()]
        names.append({name for first in firsts for name in re.findall(r"`([^`]+)`", first)})
    return names


def test_the_page_lists_every_field_of_the_schemas():
    report, finding = (
        set(SCHEMAS["check"]["$defs"][n]["properties"]) for n in ("report", "finding")
    )
    assert fields_of_page() == [
        report,
        finding,
        set(SCHEMAS["cost"]["$defs"]["report"]["properties"]),
    ]
