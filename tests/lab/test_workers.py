"""Parts side by side give what they give one after the other, in their order."""

import operator

import pytest

from querykey.lab import Depth
from querykey.lab.workers import cores, side_by_side

PARTS = [(7, 2), (1, 10), (3, 3)]


@pytest.mark.slow
def test_parts_in_worker_processes_come_back_in_their_order():
    heard = []
    assert side_by_side(Depth("full", heard.append), operator.sub, PARTS) == [5, -9, 0]
    assert heard[-1].startswith("3 of 3" if cores() > 1 else "part 3 of 3")


def test_at_quick_depth_nothing_is_started():
    heard = []
    parts = [(part,) for part in PARTS]  # what is made here could not be sent to another process
    assert side_by_side(Depth("quick", heard.append), lambda part: part[0], parts) == [7, 1, 3]
    assert heard == ["part 1 of 3", "part 2 of 3", "part 3 of 3"]


@pytest.mark.slow
def test_an_error_of_a_part_is_the_error_of_all():
    with pytest.raises(ZeroDivisionError):
        side_by_side(Depth("full"), operator.truediv, [(1, 1), (1, 0)])
