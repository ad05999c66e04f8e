"""Arguments with defaults, and fields of a configuration, kept as names."""

import pytest
from torch import nn

import querykey as qk
from querykey.costs import cost_of_target
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


FACTORY = """
from torch import nn

def make(width, hidden=16, layers=2):
    there, back = (width, hidden), (hidden, width)
    return nn.Sequential(*(nn.Linear(*sizes) for _ in range(layers) for sizes in (there, back)))

model = nn.Linear(3, 3)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(FACTORY)
    return path


def test_the_arguments_of_a_factory_are_kept_free_by_name(file):
    target = f"{file}:make"
    report = cost_of_target(target, inputs=["array(n,width)"], over="hidden,layers,width")
    assert str(report.flops.forward) == "4*hidden*layers*n*width"
    assert str(report.valid) == "every size"
    report = cost_of_target(target, ["width=6"], ["array(n,6)"], over="hidden", at="n=3")
    assert str(report.flops.forward) == "144*hidden"
    assert "the model's own hidden=16" in " ".join(report.notes)
    assert report.settings["target"] == f"{target} width=6"


@pytest.mark.parametrize(
    ("target", "fields", "over", "said"),
    [
        ("FILE:make", ["width=6"], "width", "`width` is set and kept free too; leave out width=6"),
        ("FILE:make", ["wide=6"], "hidden", "has no argument `wide`; did you mean `width`?"),
        ("FILE:make", [], "hiden", "the builder has no argument `hiden`; did you mean `hidden`?"),
        ("FILE:model", [], "width", "is a model, which takes no arguments"),
        ("FILE:make", [], "5x", "`5x` is no field; write FIELD,FIELD"),
        ("gpt", [], "wide", "the builder has no argument `wide`; did you mean `width`?"),
        ("encoder", [], "x", "the preset `encoder` has no size that can be set"),
    ],
)
def test_wrong_names_of_fields_are_refused_in_one_sentence(file, target, fields, over, said):
    with pytest.raises(QuerykeyError) as caught:
        cost_of_target(target.replace("FILE", str(file)), fields, over=over)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


class Tied(nn.Module):
    """Rows of 3 heads' features each, whose heads must divide the width into even parts."""

    def __init__(self, width, heads):
        super().__init__()
        if width % (2 * heads):
            raise ValueError("an even number of features per head")
        self.heads, self.maps = heads, nn.Linear(width, width)

    def forward(self, x):
        parts = self.maps(x).unflatten(-1, (self.heads, -1))
        return parts @ parts.mT


def test_what_must_divide_what_is_found_and_stated():
    report = qk.cost(
        lambda width, heads: Tied(width, heads), qk.array("n", "width"), over=["heads"]
    )
    assert str(report.flops.forward) == "2*heads*n*width + 2*n*width**2"
    assert "width % (2*heads) == 0" in str(report.valid)
    assert report.at(n=5, width=14, heads=7).flops.forward == 2 * 5 * 14 * 21
    with pytest.raises(QuerykeyError, match=r"outside the range .*width % \(2\*heads\) == 0"):
        report.at(n=5, width=15, heads=5)


def test_one_field_is_a_multiple_of_what_is_fixed():
    report = qk.cost(lambda width: Tied(width, 3), qk.array("n", "width"), over=["width"])
    assert "width % 6 == 0" in str(report.valid)
    assert report.at(n=5, width=18).flops.forward == 2 * 5 * 18 * 21
