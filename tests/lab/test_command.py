"""The verb `qk lab`, its folders and its ledger; and the ledger of the documentation."""

import ast
import json
import os
from functools import cache

import pytest
from tests.house.source import ROOT

from querykey.cli import run
from querykey.lab import (
    EXPERIMENTS,
    ROWS,
    Depth,
    Experiment,
    Measurement,
    exact,
    ledger_json,
    ledger_page,
    measurements_below,
)
from querykey.lab.store import source_hash

DOCS = ROOT / "docs"


def test_without_a_name_the_experiments_are_listed(capsys):
    assert run(["lab"]) == 0
    printed = capsys.readouterr().out
    assert [name for name in EXPERIMENTS if name not in printed] == []


def test_a_wrong_name_is_refused_before_anything_is_measured(capsys, tmp_path):
    assert run(["lab", "argmax", "saturatoin", "--quick", "--out", str(tmp_path)]) == 2
    assert "there is no experiment `saturatoin`; did you mean" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_experiment_writes_its_folder_and_is_not_measured_twice(capsys, tmp_path):
    command = ["lab", "argmax", "--quick", "--out", str(tmp_path)]
    assert run(command) == 0
    folder = tmp_path / "lab" / "argmax"
    assert {file.name for file in folder.iterdir()} == {
        "measurement.json", "page.md", "gradients.svg",
    }  # fmt: skip
    assert "argmax (quick" in capsys.readouterr().out
    page = (folder / "page.md").read_text()
    assert "**corrected**: Most of a block's parameters, a share of 0.5 or more" in page
    record = json.loads((folder / "measurement.json").read_text())
    record["seconds"] = 1234.0  # which a new measurement would overwrite
    (folder / "measurement.json").write_text(json.dumps(record))
    assert run(command) == 0
    assert "argmax (quick, 1234 s): E6 corrected" in capsys.readouterr().out
    assert run([*command, "--again"]) == 0
    assert "1234" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "source"), [("quick", "other"), ("other", None)])
def test_what_other_code_or_less_depth_measured_is_measured_again(tmp_path, capsys, depth, source):
    command = ["lab", "argmax", "--quick", "--out", str(tmp_path)]
    assert run(command) == 0
    file = tmp_path / "lab" / "argmax" / "measurement.json"
    record = json.loads(file.read_text())
    file.write_text(
        json.dumps(
            {**record, "seconds": 1234.0, "depth": depth, "source": source or record["source"]}
        )
    )
    assert run(command) == 0
    assert "1234" not in capsys.readouterr().out


def test_the_code_of_an_experiment_is_known_again_by_newer_versions_of_python(monkeypatch):
    before, parse = source_hash("argmax"), ast.parse

    def newer(text: str) -> ast.AST:
        tree = parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                node.type_params = []  # as 3.12 has it
                node._fields = (*node._fields, "type_params")
        return tree

    monkeypatch.setattr(ast, "parse", newer)
    assert source_hash("argmax") == before
    monkeypatch.setattr(ast, "parse", lambda text: parse(text + "\nX = 1"))
    assert source_hash("argmax") != before


def test_a_file_that_is_no_measurement_is_refused_in_a_sentence(tmp_path, capsys):
    folder = tmp_path / "lab" / "argmax"
    folder.mkdir(parents=True)
    (folder / "measurement.json").write_text("{}")
    assert run(["lab", "argmax", "--quick", "--out", str(tmp_path)]) == 2
    assert "is no measurement of ours" in capsys.readouterr().err


def two_parts(depth: Depth) -> Measurement:
    """Count to two, on two machines."""
    depth.ran_on("the first machine")
    depth.ran_on("the second machine")
    return Measurement({"count": exact(2)}, {})


def test_a_page_says_on_which_machines_the_parts_of_an_experiment_ran(monkeypatch, tmp_path):
    counting = Experiment("argmax", "How many?", (), two_parts)
    monkeypatch.setattr("querykey.lab.command.experiment", lambda name: counting)
    assert run(["lab", "argmax", "--quick", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "lab" / "argmax" / "page.md").read_text()
    assert "1 parts on the first machine; 1 parts on the second machine." in page


def test_the_ledger_without_measurements_has_every_row_open_with_a_reason():
    plain = ledger_json({})
    assert list(plain) == list(ROWS)
    assert {row["verdict"] for row in plain.values()} == {"open"}
    assert all(row["reason"] for row in plain.values())


@cache
def documented() -> dict[str, Measurement]:
    """The measurements that the documentation is made of."""
    return measurements_below(DOCS)


def kept(name: str, now: str) -> str:
    if os.environ.get("UPDATE_SNAPSHOTS"):
        (DOCS / name).write_text(now)
    return (DOCS / name).read_text()


def test_the_ledger_of_the_documentation_is_what_its_measurements_say():
    now = json.dumps(ledger_json(documented()), indent=1, ensure_ascii=False) + "\n"
    assert kept("claims.json", now) == now
    assert kept("claims.md", ledger_page(documented())) == ledger_page(documented())


def test_the_documentation_is_measured_in_full():
    files = [DOCS / "lab" / name / "measurement.json" for name in EXPERIMENTS]
    missing = [str(file) for file in files if not file.exists()]
    assert missing == []
    assert {json.loads(file.read_text())["depth"] for file in files} == {"full"}


def test_every_open_part_of_the_documentation_has_a_reason():
    for row in ledger_json(documented()).values():
        parts = [part for part in row["parts"] if part["verdict"] == "open"]
        assert all(part["reason"] for part in parts)
