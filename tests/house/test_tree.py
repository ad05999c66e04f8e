"""The trees of README.md and CONTRIBUTING.md are what the files themselves say."""

import os
import re
from pathlib import Path

import pytest
from tests.house.source import ROOT
from tools import tree

import querykey

SHOWN = [(ROOT / "README.md", False)]


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
    rooms = set(re.findall(r"^  ([a-z]+)(?:/|\.py) ", tree.tree(), flags=re.MULTILINE))
    assert rooms == set(querykey._ROOMS)


def test_the_tree_names_every_folder_of_the_project():
    folders = {f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."}
    assert folders - {"src/"} >= set(tree.AROUND)
