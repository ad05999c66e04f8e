"""A formula ends where a model has no more positions, which a pass without values cannot see."""

import pytest
import torch
from torch import nn

import querykey as qk

ROWS = 24
COUNTED = {
    "counted out": lambda ids: torch.arange(ids.size(1)),
    "from 2 on": lambda ids: torch.arange(2, 2 + ids.size(1)).unsqueeze(0).expand_as(ids),
    "shifted": lambda ids: torch.arange(ids.size(1))[None] + 2,
    "cut in front": lambda ids: torch.arange(ids.size(1))[1:],
    "ones added up": lambda ids: torch.ones_like(ids).cumsum(1) - 1,
    "real ones added up": lambda ids: (ids.ne(0).int().cumsum(1) * ids.ne(0).int()).long() + 1,
    "at least 0": lambda ids: (torch.ones_like(ids).cumsum(1) - 1).clamp(min=0),
}
LONGEST = {"from 2 on": ROWS - 2, "shifted": ROWS - 2, "real ones added up": ROWS - 2}
UNBOUNDED = {
    "none further than the last": lambda ids: torch.arange(ids.size(1)).clamp(0, ROWS - 1),
    "every other": lambda ids: torch.arange(ids.size(1)) % 2,
}


class Model(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.tokens, self.rows = nn.Embedding(9, 6), nn.Embedding(ROWS, 6)
        self.positions = positions

    def forward(self, ids):
        where = self.rows(self.positions(ids))
        return self.tokens(ids)[:, -where.size(-2) :] + where


@pytest.mark.parametrize("engine", ["symbolic", "interpolation"])
@pytest.mark.parametrize("how", COUNTED)
def test_the_range_ends_with_the_positions(how, engine):
    model = Model(COUNTED[how])
    longest = LONGEST.get(how, ROWS)
    report = qk.cost(model, qk.tokens("n", "t"), engine=engine)
    assert report.valid.holds(n=2, t=12)
    assert not report.valid.holds(n=2, t=longest + 1)
    if engine == "symbolic":
        assert report.valid.holds(n=2, t=longest)
    ids = torch.ones(2, longest, dtype=torch.long)
    model(ids)
    with pytest.raises(IndexError):
        model(torch.ones(2, longest + 1, dtype=torch.long))


@pytest.mark.parametrize("how", UNBOUNDED)
def test_positions_that_stay_in_the_table_end_nothing(how):
    report = qk.cost(Model(UNBOUNDED[how]), qk.tokens("n", "t"))
    assert report.valid.holds(n=2, t=1000)


def test_the_first_of_many_positions_may_be_taken():
    class First(Model):
        def __init__(self):
            super().__init__(lambda ids: torch.arange(100)[: ids.size(1)])

    report = qk.cost(First(), qk.tokens("n", "t"))
    assert report.valid.holds(n=2, t=12)
    assert report.engine == "symbolic"  # and not a real run, after a pass without values failed


class Windowed(nn.Module):
    """A window of 16, whose last size before the branch is compared apart and costs the same."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(6, 6)

    def forward(self, x):
        if x.shape[1] >= 16:
            return self.map(x) @ x.mT
        if x.shape[1] == 15:
            x = x.view_as(x)
        return self.map(x)


def test_the_ranges_on_both_sides_of_a_window_meet():
    both = qk.cost(Windowed(), qk.array("n", "t", 6))
    assert (str(both.valid), str(both.below.valid)) == ("t >= 16", "t <= 15")
    below = qk.cost(Windowed(), qk.array("n", "t", 6), near={"t": 5})
    beyond = qk.cost(Windowed(), qk.array("n", "t", 6), near={"t": 40})
    assert (str(below.valid), str(beyond.valid)) == ("t <= 15", "t >= 16")
