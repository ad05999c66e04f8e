"""Parts side by side give what they give one after the other, in their order."""

import json
import operator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from querykey.lab import Depth
from querykey.lab.workers import side_by_side

PARTS = [(7, 2), (1, 10), (3, 3)]


@pytest.mark.slow
def test_parts_in_worker_processes_come_back_in_their_order():
    heard = []
    assert side_by_side(Depth("full", heard.append), operator.sub, PARTS) == [5, -9, 0]
    assert heard[-1] == "3 of 3 parts"


def test_at_quick_depth_nothing_is_started():
    heard = []
    parts = [(part,) for part in PARTS]  # what is made here could not be sent to another process
    assert side_by_side(Depth("quick", heard.append), lambda part: part[0], parts) == [7, 1, 3]
    assert heard == ["1 of 3 parts", "2 of 3 parts", "3 of 3 parts"]


@pytest.mark.slow
def test_an_error_of_a_part_is_the_error_of_all():
    with pytest.raises(ZeroDivisionError):
        side_by_side(Depth("full"), operator.truediv, [(1, 1), (1, 0)])


@dataclass(frozen=True)
class Half:
    """What a part may return."""

    number: float


def half(number: float, log: str) -> Half:
    """Write into a file that it was called, and return half of a number, but of 0."""
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    return Half(number / 2 if number else 1 / number)


def test_an_experiment_that_was_stopped_goes_on_with_the_parts_that_are_missing(tmp_path):
    depth, log = Depth("quick", keep=tmp_path / "parts"), str(tmp_path / "log")
    with pytest.raises(ZeroDivisionError):
        side_by_side(depth, half, [(3, log), (0, log), (8, log)])
    assert side_by_side(depth, half, [(3, log), (8, log)]) == [Half(1.5), Half(4)]
    assert Path(log).read_text().split() == ["3", "0", "8"]
    assert side_by_side(depth, half, [(8, log), (4, log)]) == [Half(4), Half(2)]
    assert Path(log).read_text().split() == ["3", "0", "8", "4"]


def test_a_part_is_told_of_with_the_machine_that_computed_it(tmp_path):
    heard: list[str] = []
    depth = Depth("quick", keep=tmp_path / "parts", ran_on=heard.append)
    log = str(tmp_path / "log")
    side_by_side(depth, half, [(3, log)])
    (file,) = (tmp_path / "parts").iterdir()
    plain = json.loads(file.read_text())
    assert heard == [plain["machine"]]
    assert plain["machine"].startswith(f"torch {torch.__version__}, ")
    file.write_text(json.dumps({**plain, "machine": "another one"}))
    assert side_by_side(depth, half, [(3, log), (8, log)]) == [Half(1.5), Half(4)]
    assert heard[1:] == ["another one", plain["machine"]]
