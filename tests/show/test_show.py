"""What is drawn: numbers people can read, tables that do not lie, figures that are well-formed."""

import io
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from rich.console import Console

from querykey.show import (
    Series,
    console,
    fold_numbered,
    group_name,
    line_chart,
    number,
    page,
    print_table,
    table,
)
from querykey.show.page import code, figure, grid, heading, text

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (1234567, "1,234,567"), (12_345_678, "12.3 M"), (1.5e9, "1.5 G"), (-2e12, "-2 T"),
     (0.00123, "0.00123"), (9999.4, "1e+04"), (12345.0, "12.3 k"), (float("nan"), "nan")],
)  # fmt: skip
def test_numbers(value, written):
    assert number(value) == written


def printed(columns, rows):
    console = Console(width=60, record=True, file=io.StringIO())
    print_table(columns, rows, title="", console=console)
    return console.export_text()


def test_lines_are_not_folded_in_a_pipe_unless_asked_for(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(["cost"], [["batch seq^2 " * 30]])
    assert "batch seq^2 " * 30 in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    print_table(["cost"], [["batch seq^2 " * 30]])
    assert all(len(line) <= 40 for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("columns", ["0", "wide", ""])
def test_a_width_that_is_none_is_not_obeyed(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    print_table(["cost"], [["batch seq^2 " * 30]])
    assert "batch seq^2 " * 30 in capsys.readouterr().out
    assert console().width == 80


def test_a_table_sets_numbers_to_the_right_and_takes_brackets_literally():
    lines = printed(("name", "count"), [("[bold]q", 7), ("key", 12345)]).splitlines()
    assert [line.strip() for line in lines if line.strip()] == [
        "name       count", "────────────────", "[bold]q        7", "key       12,345",
    ]  # fmt: skip


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="a row has 1 cells but the table has 2 columns"):
        table(("a", "b"), [("only",)])


def points(svg):
    root = ET.fromstring(svg)
    lines = root.findall(f"{SVG}polyline")
    return [
        [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
        for line in lines
    ]


def test_a_chart_places_points_in_order_and_scale():
    svg = line_chart([Series("a", [(1, 10), (3, 30), (2, 20)])], x="n", y="ms")
    (line,) = points(svg)
    xs, ys = zip(*line, strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys, reverse=True)  # SVG counts downwards
    assert math.isclose(xs[1] - xs[0], xs[2] - xs[1], abs_tol=0.2)


def test_a_logarithmic_chart_makes_powers_straight():
    svg = line_chart([Series("square", [(2**i, 4**i) for i in range(5)])], "n", "t", log=True)
    (line,) = points(svg)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(line)]
    assert max(slopes) - min(slopes) < 0.01


def test_points_that_are_not_joined_are_rings_without_a_line():
    points = [(1.0, 2.0), (3.0, 4.0)]
    svg = line_chart([Series("line", points), Series("theory", points, joined=False)], "x", "y")
    assert svg.count("<polyline") == 1
    assert len(re.findall(r'<circle [^>]*r="6" fill="none"', svg)) == len(points) + 1  # the legend


def test_names_are_escaped_and_points_that_are_not_finite_left_out():
    odd = Series("a < b & c", [(1, 1), (2, float("nan")), (3, float("inf")), (4, 2)])
    svg = line_chart([odd], x="<n>", y="&", title='"quoted"')
    assert len(points(svg)[0]) == 2
    assert "a < b & c" in {element.text for element in ET.fromstring(svg).iter()}


def test_a_chart_is_as_wide_as_its_longest_name_needs():
    short, long = (line_chart([Series(n * "m", [(1, 1)])], "n", "t") for n in (3, 40))
    widths = [float(re.search(r'viewBox="0 0 (\d+)', svg)[1]) for svg in (short, long)]
    assert widths[1] > widths[0]
    at = float(re.search(r'<text x="([\d.]+)"[^>]*>m{40}<', long)[1])
    assert widths[1] > at + 40 * 6


def drawn_lines(svg):
    root = ET.fromstring(svg)
    return [line.attrib for line in root.findall(f"{SVG}polyline")]


def test_lines_that_lie_on_each_other_are_all_seen():
    shared = [(1, 1), (2, 4), (3, 9)]
    lines = {"a": shared, "b": [(1, 2), (2, 3), (3, 4)], "c": shared, "d": shared}
    svg = line_chart([Series(name, line) for name, line in lines.items()], "x", "y")
    a, b, c, d = drawn_lines(svg)
    assert "stroke-dasharray" not in b
    # Each draws one dash in three, where the two others have their gaps.
    assert {line["stroke-dasharray"] for line in (a, c, d)} == {"10 20"}
    assert [int(line["stroke-dashoffset"]) for line in (a, c, d)] == [0, -10, -20]
    first = {
        name: float(re.search(rf'r="([\d.]+)"[^>]*><title>{name}: 1,', svg)[1]) for name in lines
    }
    assert first["a"] > first["c"] > first["d"]


def test_the_dots_of_many_points_are_small():
    few, many = (line_chart([Series("a", [(i, i) for i in range(n)])], "x", "y") for n in (9, 200))
    sizes = [float(re.search(r'<circle [^>]*r="([\d.]+)"', svg)[1]) for svg in (few, many)]
    assert sizes[1] < sizes[0]


def test_zeros_that_a_logarithmic_axis_does_not_have_are_told_of():
    lines = [Series("some", [(1, 0), (2, 3)]), Series("none", [(1, 2), (2, 3)])]
    on_logarithms, plain = (line_chart(lines, "x", "y", log=log) for log in (True, False))
    assert ">some (0 not drawn)<" in on_logarithms
    assert ">none<" in on_logarithms
    assert "not drawn" not in plain


def ticks(line, log=True):
    """The labels of both axes, without those of axes and legend."""
    svg = line_chart([Series("a", line)], "x", "y", log=log)
    texts = ET.fromstring(svg).findall(f"{SVG}text")
    middle, end = (
        [t.text for t in texts if t.get("text-anchor") == anchor] for anchor in ("middle", "end")
    )
    return [text for text in middle if text not in "xy"], end


def test_ticks_are_powers_of_two_where_values_are_and_otherwise_those_of_ten_or_parts():
    assert ticks([(128, 7), (8192, 7e5)]) == (
        ["128", "256", "512", "1,024", "2,048", "4,096", "8,192"],
        ["10", "100", "1,000", "10,000", "100,000"],
    )
    assert ticks([(8, 1), (4096, 9)])[0] == ["8", "32", "128", "512", "2,048"]
    assert ticks([(128, 7), (256, 9), (700, 5), (1024, 3)])[0] == ["128", "256", "512", "1,024"]
    assert ticks([(120, 1), (1400, 3)]) == (["200", "500", "1,000"], ["0.9", "1", "2", "3"])
    assert ticks([(3, 0.04), (48, 0.9)]) == (
        ["5", "10", "20", "50"],
        ["0.05", "0.1", "0.2", "0.5", "1"],
    )


def test_a_short_logarithmic_axis_has_round_numbers():
    assert ticks([(2.4, 30), (2.5, 37)])[0] == ["2.2", "2.4", "2.6", "2.8"]


def test_labels_of_ticks_are_the_numbers_at_which_they_stand():
    across, up = ticks([(2**15, 1e9), (2**20, 1e11)])
    assert [int(label.replace(",", "")) for label in across] == [2**i for i in range(15, 21)]
    assert ticks([(2**15, 1e9), (2**25, 1e11)])[0] == ["100,000", "1e6", "1e7"]
    assert up == ["1e9", "1e10", "1e11"]
    assert ticks([(1, 1e5), (2, 1e7)])[1] == ["100,000", "1e6", "1e7"]
    assert ticks([(0, 0), (1, 6e7)], log=False)[1] == [
        "0",
        "1e7",
        "2e7",
        "3e7",
        "4e7",
        "5e7",
        "6e7",
    ]
    assert "1.5e7" in ticks([(0, 0), (1, 2.9e7)], log=False)[1]


def test_a_chart_is_as_wide_as_its_title_needs():
    svg = line_chart([Series("a", [(1, 1)])], "n", "t", title="m" * 90)
    assert float(re.search(r'viewBox="0 0 (\d+)', svg)[1]) > 72 + 90 * 8


def test_a_chart_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one finite point"):
        line_chart([Series("a", [(0, 1)])], x="n", y="t", log=True)


def test_a_flat_line_can_be_drawn():
    assert len(points(line_chart([Series("a", [(1, 0), (2, 0)])], "n", "t"))[0]) == 2


class Balance(HTMLParser):
    """Counts the tags that are open, and everything a page would load from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect", "line", "circle", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()


def test_a_page_is_balanced_and_needs_nothing_but_itself():
    chart = line_chart([Series("ours", [(1, 1), (2, 3)])], x="n", y="ms")
    made = page("A <title>", heading("h"), text("1 < 2"), code("a\nb"),
                grid(("n", "who"), [(12345, "<b>")]), figure(chart, "times"))  # fmt: skip
    balance = Balance()
    balance.feed(made)
    assert balance.open == []
    assert balance.links == []
    assert "12,345" in made
    assert "&lt;b&gt;" in made


def test_numbered_neighbours_that_are_equal_share_a_group():
    names = ["embed", "0", "1", "2", "3", "head", "4"]
    groups = fold_numbered(names, lambda a, b: {a, b} != {"1", "2"})
    assert groups == [["embed"], ["0", "1"], ["2", "3"], ["head"], ["4"]]
    assert [group_name(group) for group in groups] == ["embed", "0-1", "2-3", "head", "4"]
    assert fold_numbered([], lambda a, b: True) == []
