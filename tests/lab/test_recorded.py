"""The recorded times of a GPU are those of the page that says how they were measured."""

from tests.house.source import ROOT

from querykey.lab.recorded import H200, Timing


def rows_of_the_page() -> list[list[str]]:
    """The cells of every line of a table, up to the section on where it loses."""
    page = (ROOT / "docs" / "dev" / "performance.md").read_text()
    lines = page.partition("## Where it loses")[0].splitlines()
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if "|" in line]


def forward(cell: str) -> float:
    """The first of two times in a cell: forward / with backward."""
    return float(cell.partition("/")[0])


def on_the_page() -> set[Timing]:
    """Every pair of times of the page's three tables; heads of 128 by what is faster."""
    timings = set()
    for cells in rows_of_the_page():
        if not cells[0].isdigit():
            continue
        if len(cells) == 10:  # tokens, triton, cuDNN, ...
            timings.add(Timing(64, int(cells[0]), forward(cells[1]), forward(cells[2])))
        elif len(cells) == 5 and cells[1].isdigit():  # head size, tokens, triton, cuDNN, ratio
            width, tokens = int(cells[0]), int(cells[1])
            timings.add(Timing(width, tokens, forward(cells[2]), forward(cells[3])))
        elif len(cells) == 5:  # tokens, by pairs, by sums, cuDNN, ratio
            kernel = min(forward(cell) for cell in cells[1:3] if cell != "-")
            timings.add(Timing(128, int(cells[0]), kernel, forward(cells[3])))
    return timings


def test_recorded_times_are_those_of_the_page():
    assert set(H200) == on_the_page()
    assert len(H200) == 20
