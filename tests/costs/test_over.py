"""Arguments with defaults, and fields of a configuration, kept as names."""

import pytest
from torch import nn

import querykey as qk
from querykey.errors import QuerykeyError


def maps(width=8, hidden=16, layers=2):
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, hidden), nn.Linear(hidden, width)) for _ in range(layers))
    )


def test_arguments_with_defaults_stay_free_where_they_are_asked_for():
    report = qk.cost(maps, qk.array("n", 8), over=["hidden", "layers"])
    assert str(report.flops.forward) == "32*hidden*layers*n"
    assert str(report.params) == "17*hidden*layers + 8*layers"
    assert report.at(n=7, hidden=5, layers=1).flops.forward == 32 * 5 * 7
    assert set(report.symbols) == {"n", "hidden", "layers"}


@pytest.mark.parametrize(
    ("model", "over", "said"),
    [
        (maps, ["hiden"], "the builder has no argument `hiden`; did you mean `hidden`?"),
        (maps, ["width", "width"], "each once"),
        (nn.Linear(2, 2), ["width"], "has no configuration whose fields could be set"),
    ],
)
def test_wrong_fields_are_refused(model, over, said):
    with pytest.raises(QuerykeyError) as caught:
        qk.cost(model, qk.array("n", 8), over=over)
    assert said in str(caught.value)
