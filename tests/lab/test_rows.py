"""Every row of the ledger is measured at quick depth, and corrects a number that is wrong."""

from dataclasses import replace
from functools import cache

import pytest
from tests.lab.falsified import FALSIFIED, PARTS

from querykey.lab import EXPERIMENTS, ROWS, Depth, Measurement, experiment, judge

WRITTEN = [row for row, place in ROWS.items() if place.experiment in EXPERIMENTS]


@cache
def measured(name: str) -> Measurement:
    return experiment(name).measure(Depth("quick"))


def claims_of(row: str):
    return [c for c in experiment(ROWS[row].experiment).claims if c.row == row]


def verdicts(row: str, of: str, value) -> set[str]:
    """The verdicts of a row's claims about one measured value, if they stated that number."""
    measurement = measured(ROWS[row].experiment)
    return {
        judge(replace(claim, value=value), measurement).verdict
        for claim in claims_of(row)
        if claim.of == of
    }


def test_every_written_row_has_a_wrong_number():
    assert set(FALSIFIED) == set(WRITTEN)


@pytest.mark.slow
@pytest.mark.parametrize("row", WRITTEN)
def test_a_row_is_measured_and_corrects_a_wrong_number(row):
    measurement = measured(ROWS[row].experiment)
    parts = [judge(claim, measurement) for claim in claims_of(row)]
    assert parts
    assert all(part.reason for part in parts)
    of, right, wrong = FALSIFIED[row]
    assert verdicts(row, of, right) == {"confirmed"}
    assert verdicts(row, of, wrong) == {"corrected"}


@pytest.mark.slow
@pytest.mark.parametrize(("row", "of", "right", "wrong"), PARTS)
def test_a_part_of_a_row_corrects_a_wrong_number(row, of, right, wrong):
    assert verdicts(row, of, right) == {"confirmed"}
    assert verdicts(row, of, wrong) == {"corrected"}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_measurement_goes_to_json_and_back(name):
    import json

    measurement = measured(name)
    again = Measurement.from_json(json.loads(json.dumps(measurement.as_json())))
    for claim in experiment(name).claims:
        assert judge(claim, again) == judge(claim, measurement)
    assert measurement.figures
    for title, figure in measurement.figures.items():
        assert again.figures[title].svg() == figure.svg()


def test_every_experiment_measures_rows_of_its_own():
    for name in EXPERIMENTS:
        assert experiment(name).name == name
        rows = {row for row, place in ROWS.items() if place.experiment == name}
        assert set(experiment(name).rows) == rows
        assert experiment(name).asks.endswith("?")


def test_every_claim_states_its_number():
    for name in EXPERIMENTS:
        assert [c for c in experiment(name).claims if "{value}" not in c.says] == []
