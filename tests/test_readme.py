"""The README and every page under docs are run: their commands, their Python, and what they show.

In a block of `console`, a line that begins with `$` is a command, and the lines below it are among
those that it prints, in this order. Three dots stand for lines that are left out.
"""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+\.\d+(e[+-]\d\d)?[,;]?")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = PAGES[0].read_text()


def blocks(page: Path, language: str) -> list[str]:
    """The texts of a page's blocks of a language."""
    return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


def commands() -> list:
    """Every block of commands that use `qk`, with the output that the page shows for it."""
    found = []
    for page in PAGES:
        if page.name == "cost.md":  # tests/costs/test_page.py runs its commands
            continue
        bash = [(text, "") for text in blocks(page, "bash") if "\nqk " in f"\n{text}"]
        console = [
            (
                "\n".join(re.findall(r"^\$ (.*)$", text, flags=re.MULTILINE)),
                re.sub(r"^\$ .*\n", "", text, flags=re.MULTILINE),
            )
            for text in blocks(page, "console")
        ]
        found += [pytest.param(*pair, id=pair[0].splitlines()[0]) for pair in bash + console]
    return found


def same(word: str, other: str) -> bool:
    """Whether two words are equal, rules of a table, or numbers within a tenth or near zero."""
    if NUMBER.fullmatch(word) and NUMBER.fullmatch(other):
        numbers = (float(text.rstrip(",;")) for text in (word, other))
        return math.isclose(*numbers, rel_tol=0.1, abs_tol=1e-13)
    return word == other or set(word) == set(other) == {"─"}


def missing(expected: str, printed: str) -> list[str]:
    """The lines that a page shows and that the command does not print, in this order."""
    lines = iter([line.split() for line in printed.splitlines()])
    return [
        line
        for line in expected.splitlines()
        if line.strip() not in ("", "...")
        if not any(
            len(words) == len(line.split()) and all(map(same, words, line.split()))
            for words in lines
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "output"), commands())
def test_every_command_prints_what_is_shown(command, output, tmp_path):
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    home = {"HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    done = subprocess.run(
        ["bash", "-uo", "pipefail", "-c", command],
        cwd=tmp_path, env={"PATH": path, **home}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout
    assert missing(output, done.stdout) == [], done.stdout


def test_the_comparison_of_outputs_can_fail():
    printed = "a  1.5e+00\n\n b c\n d 3.1e-16; e\n"
    assert missing("a 1.5e+00\n...\nd 8.0e-16; e\n", printed) == []
    assert missing("a 1.8e+00\n", printed) == ["a 1.8e+00"]
    assert missing("b c\na 1.5e+00\n", printed) == ["a 1.5e+00"]
    assert missing("b\n", printed) == ["b"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_the_python_of_every_page_runs(page, tmp_path):
    text = "\n".join(blocks(page, "python"))  # a later block may use what an earlier one made
    run = [sys.executable, "-c", text]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_make_target_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE))
    assert named
    assert named <= targets


def test_the_smoke_test_names_files_that_exist():
    files = re.findall(r"tests/[\w/.]+", (ROOT / "Makefile").read_text())
    assert len(files) > 10
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_readme_leads_to_every_page_for_users():
    assert {page.name for page in PAGES[1:] if f"(docs/{page.name}" not in README} == set()


def links() -> list[tuple[Path, str]]:
    """Every link from a page to a file of ours."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    found = [
        (page, link) for page in pages for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    ]
    return [(page, link) for page, link in found if not link.startswith(("http:", "https:"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_somewhere():
    broken = []
    for page, link in links():
        name, _, anchor = link.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert links()
    assert broken == []
