"""Every fault is caught by its law, nearly all are blamed rightly, harmless changes pass."""

import importlib.util
import sys
from pathlib import Path

import pytest

from querykey.laws import check

FILE = Path(__file__).with_name("mutants.py")
spec = importlib.util.spec_from_file_location("mutants", FILE)
assert spec is not None
assert spec.loader is not None
mutants = importlib.util.module_from_spec(spec)
sys.modules["mutants"] = mutants
spec.loader.exec_module(mutants)

blamed: dict[str, bool] = {}


@pytest.mark.parametrize("fault", mutants.FAULTS, ids=lambda fault: fault.id)
def test_a_fault_is_caught_by_its_law(fault, tmp_path):
    model = mutants.build(fault.style, tmp_path, fault.old, fault.new, fault.name)
    finding = check(model, laws=[fault.law]).law(fault.law)
    loud = fault.law == "saturation" or "cast to" in finding.note
    assert finding.verdict == ("advice" if loud else "violated"), finding
    if fault.module:
        blamed[fault.id] = finding.module == fault.module


def test_blame_is_right_in_nine_of_ten():
    if len(blamed) < 40:
        pytest.skip("needs the faults above")
    wrong = [name for name, right in blamed.items() if not right]
    assert len(wrong) <= 0.1 * len(blamed), wrong


@pytest.mark.parametrize("style", ["nanogpt", "transformer", "library", "recurrent"])
def test_a_style_as_it_is_breaks_no_law(style, tmp_path):
    report = check(mutants.build(style, tmp_path))
    assert [f for f in report.laws if f.verdict in ("violated", "error", "advice", "tie")] == []


@pytest.mark.parametrize(
    ("law", "style", "old", "new"), mutants.HARMLESS, ids=lambda each: str(each)[:24]
)
def test_a_harmless_change_raises_no_alarm(law, style, old, new, tmp_path):
    model = mutants.build(style, tmp_path, old, new, f"harmless {law}")
    report = check(model)
    assert report.violations == []
    assert report.law(law).verdict == "holds"


def test_there_are_at_least_forty_faults_in_four_styles():
    assert len(mutants.FAULTS) >= 40
    assert len({fault.style for fault in mutants.FAULTS}) == 4
    assert len({fault.id for fault in mutants.FAULTS}) == len(mutants.FAULTS)
