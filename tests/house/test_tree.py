"""The trees of README.md and CONTRIBUTING.md are what the files themselves say."""

import os
import re
from pathlib import Path

import pytest
from tests.house.source import ROOT, SOURCE
from tools import tree

import querykey

SHOWN = [(ROOT / "README.md", False), (ROOT / "CONTRIBUTING.md", True)]


def shown(page: Path, now: str) -> str:
    """The tree that a page shows; written anew when asked, so that a change is a reviewed line."""
    block = re.compile(r"(?<=^```\n)src/querykey/\n.*?(?=^```$)", flags=re.MULTILINE | re.DOTALL)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        page.write_text(block.sub(lambda _: now, page.read_text()))
    found = block.search(page.read_text())
    return found.group() if found else ""


@pytest.mark.parametrize(("page", "floors"), SHOWN)
def test_a_tree_is_what_the_files_say(page, floors):
    now = tree.tree(floors)
    assert shown(page, now) == now


def test_the_tree_names_every_room_and_no_other():
    pattern = re.compile(r"^  ([a-z]+)(?:/|\.py) ", flags=re.MULTILINE)
    assert set(pattern.findall(tree.tree(floors=True))) == set(querykey._ROOMS)
    small = {"errors", "words", "shapes"}  # modules that the README's tree leaves out
    assert set(pattern.findall(tree.tree())) == set(querykey._ROOMS) - small


def test_the_tree_names_every_folder_of_the_project():
    visible = {f"{path.name}/" for path in ROOT.glob("[a-z]*") if path.is_dir()}
    assert visible - {"src/", "build/", "dist/", "out/"} == set(tree.AROUND)


def test_tests_stand_in_the_folder_of_their_room():
    files = (file.relative_to(ROOT / "tests") for file in ROOT.glob("tests/**/test_*.py"))
    folders = {file.parts[:-1][:1] for file in files}
    assert folders <= {(room,) for room in querykey._ROOMS} | {(), ("house",)}


def paths_named(text: str) -> list[str]:
    """Every path in a text: between backticks, with a slash or the ending of a file."""
    named = re.findall(r"`([\w./-]+)`", text)
    return [name for name in named if "/" in name or re.search(r"\.(json|md|py|toml|txt)$", name)]


def missing(names: list[str]) -> list[str]:
    """The paths that are neither below the project nor below src/querykey."""
    return [name for name in names if not any((root / name).exists() for root in (ROOT, SOURCE))]


def test_every_path_named_for_contributors_exists():
    names = paths_named((ROOT / "CONTRIBUTING.md").read_text())
    assert len(names) > 40
    assert missing(names) == []


def test_the_test_of_paths_can_fail():
    names = paths_named("see `laws/law.py`, `laws/lore.py`, `docs/` and `docs/no.md`, not `qk`")
    assert names == ["laws/law.py", "laws/lore.py", "docs/", "docs/no.md"]
    assert missing(names) == ["laws/lore.py", "docs/no.md"]
