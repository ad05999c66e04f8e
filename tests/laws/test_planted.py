"""Faults planted for one law each, in several styles: all are told, and lawful twins are not."""

import importlib
import os
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from tests.laws.test_agreement import OTHERS, Model
from tests.laws.test_agreement import PORTS as MORE_PORTS
from tests.laws.training.test_faults import STYLES
from tests.laws.training.test_resume import STATES
from tests.laws.training.test_resume_elsewhere import LIBRARIES

from querykey.laws import check

FOLDER = Path(__file__).parent / "planted"
PAGE = FOLDER.parent.parent.parent / "docs" / "dev" / "laws-faults.md"
FILES = sorted(file.stem for file in FOLDER.glob("*.py"))
CASES = [
    case for file in FILES for case in importlib.import_module(f"tests.laws.planted.{file}").CASES
]


def checked(make, laws=None):
    torch.manual_seed(0)
    built = make()
    model, example = built if isinstance(built, tuple) else (built, None)
    return check(model, example, laws=laws)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_planted_fault_is_told_and_its_twin_holds(case):
    [law] = case.laws
    finding = checked(case.faulty, [law]).law(law)
    assert finding.verdict == "violated", finding
    if case.module is not None:
        assert finding.module == (case.module or "(model)"), finding
    twin = checked(case.lawful, [law]).law(law)
    assert twin.verdict == "holds", twin


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_lawful_twin_breaks_no_law_at_all(case):
    report = checked(case.lawful)
    assert [f for f in report.laws if f.verdict in ("violated", "error", "tie")] == []


def kinds(case):
    """Return the class of the model that a fault is planted in."""
    built = case.lawful()
    return type(built[0] if isinstance(built, tuple) else built)


TABLE = defaultdict(list)  # by law, its faults and the classes of the models
for case in CASES:
    TABLE[case.laws[0]].append((case.name, kinds(case)))
PORTS = {port: model for port, (model, _, _) in OTHERS.items()} | dict.fromkeys(MORE_PORTS, Model)


def test_every_law_here_has_faults_in_four_kinds_of_models():
    counts = {law: len({kind for _, kind in faults}) for law, faults in TABLE.items()}
    assert {law: count for law, count in counts.items() if count < 4} == {}
    assert len(set(PORTS.values())) >= 4
    assert len({case.name for case in CASES}) == len(CASES)


def page():
    """Return the page of all planted faults: by law, how many, in which models and loops."""
    lines = [
        "# Faults planted for the newer laws",
        "",
        "`UPDATE_SNAPSHOTS=1 pytest tests/laws/test_planted.py` writes this page. Every fault is "
        "told by its law, and the same model without it, its lawful twin, is not "
        "(`tests/laws/test_planted.py`, `test_agreement.py`, `training/test_faults.py`, "
        "`training/test_resume.py`).",
        "",
        "| law | faults | kinds of models | which |",
        "|---|---|---|---|",
    ]
    rows = {law: [(name, kind.__name__) for name, kind in faults] for law, faults in TABLE.items()}
    rows["agreement"] = [(name, model.__name__) for name, model in PORTS.items()]
    for law, faults in sorted(rows.items()):
        names = ", ".join(name.replace("-", " ") for name, _ in faults)
        lines.append(f"| {law} | {len(faults)} | {len({k for _, k in faults})} | {names} |")
    lines += ["", "In training loops:", "", "| law | faults | kinds of loops | which |",
              "|---|---|---|---|"]  # fmt: skip
    loops = defaultdict(list)
    for style, module in STYLES.items():
        for name, (loop, law) in module.FAULTS.items():
            loops[law].append((name, f"{style}: {loop.__name__}"))
    resumed = [(f"{name} is forgotten", "plain") for name in STATES]
    resumed += [("optimizer is forgotten", train.__name__) for train in LIBRARIES]
    loops["training.resume"] = resumed
    for law, faults in sorted(loops.items()):
        names = ", ".join(name for name, _ in faults)
        lines.append(f"| {law} | {len(faults)} | {len({k for _, k in faults})} | {names} |")
    return "\n".join(lines) + "\n"


def test_the_page_names_every_planted_fault():
    if os.environ.get("UPDATE_SNAPSHOTS"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()
