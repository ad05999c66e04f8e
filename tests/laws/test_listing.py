"""The laws in words: `qk laws`, and the table of docs/laws.md, which is made from them."""

import os
import re
from pathlib import Path

import pytest

from querykey import cli
from querykey.laws import LAWS, TRAINING_LAWS, markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "laws.md"
TABLE = re.compile(r"(?<=test_listing.py -->\n).*?(?=<!-- end -->)", re.DOTALL)
EVERY = (*LAWS, *TRAINING_LAWS)


def run(capsys, *words):
    code = cli.run(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_the_table_of_the_documentation_is_that_of_the_laws():
    now, page = [markdown_table(LAWS), markdown_table(TRAINING_LAWS)], PAGE.read_text()
    if os.environ.get("UPDATE_SNAPSHOTS"):
        tables = iter(now)
        page = TABLE.sub(lambda _: next(tables), page)
        PAGE.write_text(page)
    assert TABLE.findall(page) == now


@pytest.mark.parametrize("law", EVERY, ids=lambda law: law.name)
def test_a_law_says_what_why_and_how_in_full_sentences(law):
    for words in (law.says, law.why, law.how):
        assert re.fullmatch(r"[A-Z][^|\n]{20,}\.", words)
    assert law.why.startswith("Otherwise ")
    assert len({law.says, law.why, law.how}) == 3


def test_the_names_of_laws_are_distinct():
    assert len({law.name for law in EVERY}) == len(EVERY)


def test_every_law_is_listed(capsys):
    code, out, err = run(capsys, "laws")
    assert (code, err) == (0, "")
    assert [law.name for law in EVERY if f" {law.name} " not in out] == []
    assert "why it matters" in out


def test_laws_that_begin_so_are_shown_in_full(capsys):
    code, out, err = run(capsys, "laws", "causality")
    assert (code, err) == (0, "")
    shown = [law for law in LAWS if law.name.startswith("causality.")]
    assert out.split("\n\n") == [
        f"{law.name}\n  says: {law.says}\n  why:  {law.why}\n  how:  {law.how}"
        + "\n" * (law is shown[-1])
        for law in shown
    ]


def test_an_unknown_law_gets_one_sentence_with_the_nearest_name(capsys):
    code, out, err = run(capsys, "laws", "causality.pertub")
    assert (code, out) == (2, "")
    assert err == (
        "qk: no law is called `causality.pertub`; did you mean `causality.perturb`? "
        "(`qk laws` lists them)\n"
    )
