"""The reference page says of every public name what the code says of it."""

import os
import re

from tests.house.source import ROOT
from tools import reference

import querykey

PAGE = ROOT / "docs" / "reference.md"


def test_the_page_is_what_the_code_says():
    now = reference.page()
    if os.environ.get("UPDATE_SNAPSHOTS"):
        PAGE.write_text(now)
    assert PAGE.read_text() == now


def test_the_page_has_every_public_name_with_a_sentence():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    named = {match for row in rows for match in re.findall(r"^\| `qk\.(\w+)", row)}
    assert named == set(querykey._HOME)
    for row in rows:
        assert row.endswith(". |"), row
