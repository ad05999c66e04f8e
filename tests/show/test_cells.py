"""Grids of cells: as many as there are numbers, darker where larger, with numbers in small ones."""

import xml.etree.ElementTree as ET

import pytest

from querykey.show import cell_chart

SVG = "{http://www.w3.org/2000/svg}"


def cells(svg: str) -> list[ET.Element]:
    """Every rectangle but the ground."""
    return ET.fromstring(svg).findall(f"{SVG}rect")[1:]


def texts(svg: str) -> list[str]:
    return [text.text for text in ET.fromstring(svg).findall(f"{SVG}text")]


def test_a_cell_is_darker_the_larger_its_number_and_orange_below_zero():
    svg = cell_chart([[0, 1, 2], [-2, -1, 0.5]], ("first", "second"), ("a", "b", "<c>"), "T & U")
    drawn = cells(svg)
    assert [float(cell.get("fill-opacity")) for cell in drawn] == [0, 0.5, 1, 1, 0.5, 0.25]
    assert [cell.get("fill") for cell in drawn] == ["#0072B2"] * 3 + ["#D55E00"] * 2 + ["#0072B2"]
    assert [float(cell.get("x")) for cell in drawn[:3]] == [
        float(cell.get("x")) for cell in drawn[3:]
    ]
    assert float(drawn[3].get("y")) > float(drawn[0].get("y"))
    found = texts(svg)
    assert {"T & U", "first", "second", "a", "b", "<c>"} <= set(found)
    assert {"0", "1", "2", "-2", "-1", "0.5"} <= set(found)


def test_all_cells_lie_within_the_drawing():
    svg = cell_chart([[1.0] * 5] * 4, ["a long name of a row"] * 4, ["x"] * 5, "a title " * 9)
    root = ET.fromstring(svg)
    for cell in cells(svg):
        assert float(cell.get("x")) + float(cell.get("width")) <= float(root.get("width"))
        assert float(cell.get("y")) + float(cell.get("height")) <= float(root.get("height"))


def test_a_large_grid_has_no_numbers_in_it():
    svg = cell_chart([[1.0] * 40] * 3, title="many")
    assert [cell.get("width") for cell in cells(svg)] == ["560"] * 3
    assert texts(svg) == ["many"]


def scale_of(svg: str) -> tuple[list[float], list[str]]:
    """The shades of a large grid's scale, below 0 as negative ones, and the numbers at its ends."""
    group = ET.fromstring(svg).find(f"{SVG}g")
    sign = {"#0072B2": 1, "#D55E00": -1}
    shades = [sign[c.get("fill")] * float(c.get("fill-opacity")) for c in group.iter(f"{SVG}rect")]
    return shades, [text.text for text in group.iter(f"{SVG}text")]


def test_a_large_grid_has_a_scale_that_tells_which_number_is_how_dark():
    up, both = cell_chart([[0.5, *[0.25] * 20]]), cell_chart([[-3.0, *[1.0] * 20]])
    assert scale_of(up) == ([0, 0.25, 0.5, 0.75, 1], ["0", "0.5"])
    assert scale_of(both) == (
        [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1], ["-3", "3"],
    )  # fmt: skip
    assert ET.fromstring(cell_chart([[0.5, 0.25]])).find(f"{SVG}g") is None


def test_numbers_stay_within_their_cells():
    drawn = cells(cell_chart([[-1.234e-100, 1.0]]))
    assert int(drawn[0].get("width")) >= 7 * len("-1.23e-100")


def luminance(colour: str) -> float:
    """The relative luminance of a colour, as the accessibility guidelines of the web define it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("sign", [1, -1])
def test_every_number_stands_out_from_its_cell(sign):
    values = [sign * i / 11 for i in range(1, 12)]
    svg = cell_chart([values])
    labels = ET.fromstring(svg).findall(f"{SVG}text")
    for cell, label in zip(cells(svg), labels, strict=True):
        share, full = float(cell.get("fill-opacity")), cell.get("fill")
        mixed = [round(255 + share * (int(full[i : i + 2], 16) - 255)) for i in (1, 3, 5)]
        ground = luminance("#" + "".join(f"{part:02x}" for part in mixed))
        text = luminance(label.get("fill"))
        light, dark = max(ground, text), min(ground, text)
        assert (light + 0.05) / (dark + 0.05) > 4


def test_numbers_that_are_not_finite_are_dashed_and_leave_the_others_their_colour():
    drawn = cells(cell_chart([[float("nan"), 4.0, float("inf")]]))
    assert [cell.get("stroke-dasharray") for cell in drawn] == ["2 2", None, "2 2"]
    assert drawn[1].get("fill-opacity") == "1.000"


def test_a_grid_of_zeros_is_white_and_an_empty_one_is_refused():
    assert cells(cell_chart([[0.0]]))[0].get("fill-opacity") == "0.000"
    with pytest.raises(ValueError, match="at least one cell"):
        cell_chart([[]])


def test_a_large_grid_joins_equal_neighbours_and_leaves_zeros_blank():
    row = [1.0, 1.0, 0.0, 0.5, -0.5, *[0.0] * 11, 2.0]
    drawn = cells(cell_chart([row]))
    places = [(cell.get("x"), cell.get("width"), cell.get("fill-opacity")) for cell in drawn]
    left, side = 24, 560 // 17
    assert places == [
        (f"{left}", f"{2 * side}", "0.500"),
        (f"{left + 3 * side}", f"{side}", "0.250"),
        (f"{left + 4 * side}", f"{side}", "0.250"),
        (f"{left + 16 * side}", f"{side}", "1.000"),
    ]


def test_names_of_columns_do_not_touch_each_other():
    name = "seventeen letters"
    drawn = cells(cell_chart([[1.0, 2.0, 3.0]], (), (name, name, name)))
    assert {int(cell.get("width")) for cell in drawn} == {7 * len(name) + 8}
