"""Faults planted for one law each, in several styles: all are told, and lawful twins are not."""

import importlib
from collections import Counter
from pathlib import Path

import pytest
import torch

from querykey.laws import check

FOLDER = Path(__file__).parent / "planted"
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


def test_every_law_here_has_faults_in_four_styles():
    count = Counter(case.laws[0] for case in CASES)
    assert {law: number for law, number in count.items() if number < 4} == {}
    assert len({case.name for case in CASES}) == len(CASES)
