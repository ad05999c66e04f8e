"""The printed report: what stands in it, in which order, how wide, and in which colours."""

import os
import re
import subprocess
import sys
import textwrap

import pytest

from querykey.laws import Finding, Report
from querykey.laws.printed import Marks, causes

ABOUT = {
    "input": "ids (batch, seq) token ids 0 to 39",
    "causal": "yes: it sees 78 of 78 earlier but only 12 later pairs, which is told at length here",
    "cache": "none found",
}
LAYER = {"module": "layers.1", "source": "Layer, examples/leak.py:18"}
ROOT = {"module": "(model)", "source": "Model, examples/leak.py:40"}


def broken(law: str, note: str = "the answer moved by 2.4", **fields) -> Finding:
    return Finding(law, "violated", 2.4, 1e-15, note=note, **fields)


FINDINGS = [
    Finding("purity", "holds", 0.0, 1e-15),
    Finding("determinism", "holds", 0.0, 1e-15),
    broken("causality.perturb", **LAYER),
    broken("causality.gradient", **LAYER),
    Finding("padding.right", "not-applicable", note="it takes no padding mask"),
    Finding("padding.left", "not-applicable", note="it takes no padding mask"),
    Finding("cache.step", "vacuous", note="what was changed had no effect"),
    Finding("masked-row", "error", note="RuntimeError: no"),
    Finding("tying", "not-applicable", note="nothing says that weights are tied"),
    Finding("saturation", "advice", 1.0, 0.0, note="attention is sharp"),
]


def test_a_report_is_printed_line_by_line():
    text = str(Report("leak.py:make", "decoder", FINDINGS, about=ABOUT))
    assert text.splitlines() == [
        "leak.py:make (decoder)",
        "  input   ids (batch, seq) token ids 0 to 39",
        "  causal  yes: it sees 78 of 78 earlier but only 12 later pairs, which is told",
        "          at length here",
        "  cache   none found",
        "5 of 10 laws tried, 2 broken, 1 failed to run",
        "BROKEN causality.perturb, causality.gradient",
        "  the answer moved by 2.4",
        "  relative difference 2.4e+00; rounding alone makes 1.0e-15",
        "  first module to blame: layers.1 (Layer, examples/leak.py:18)",
        "ADVICE saturation: attention is sharp",
        "holds: purity, determinism",
        "NOTHING SHOWN cache.step: what was changed had no effect",
        "FAILED masked-row: RuntimeError: no",
        "not tried: padding (2), tying (--json says why)",
    ]


def test_no_line_is_longer_than_asked_and_no_reproduction_is_printed():
    long = broken("purity", note="words " * 60, repro="x = torch.tensor([1, 2])\n" * 50, **LAYER)
    report = Report("leak.py:make", "decoder", [long, *FINDINGS], about=ABOUT)
    for width, widest in ((200, 80), (80, 80), (50, 50)):
        text = "\n".join(part.plain for part in report.paragraphs(width=width))
        assert max(map(len, text.splitlines())) <= widest
        assert text.count("words") == 60
        assert "torch.tensor" not in text


def test_breaches_of_one_module_are_one_cause():
    leak = [broken(f"causality.{name}", **LAYER) for name in ("perturb", "gradient", "prefix")]
    other = broken("batch.others", module="layers.2", source="MLP, examples/leak.py:30")
    assert causes([leak[0], other, leak[1], leak[2]]) == [leak, [other]]


def test_breaches_of_the_whole_model_are_one_cause_if_their_laws_are_of_one_subject():
    laws = ("causality.perturb", "padding.right", "causality.prefix", "masked-row", "cache.step")
    groups = causes([broken(law, **ROOT) for law in laws])
    assert [[f.law for f in group] for group in groups] == [
        ["causality.perturb", "causality.prefix"],
        ["padding.right", "masked-row"],
        ["cache.step"],
    ]
    unblamed = causes([broken("tying"), broken("purity")])
    assert [[f.law for f in group] for group in unblamed] == [["tying"], ["purity"]]


def test_a_breach_says_its_setting_its_script_and_that_it_is_known():
    finding = broken("purity", setting={"train": True, "batch": 1}, **LAYER)
    report = Report("leak.py:make", "decoder", [finding])
    marks = Marks({"purity"}, {"purity": "here/leak.purity.py"})
    text = [part.plain for part in report.paragraphs(marks)]
    assert "BROKEN purity (known)" in text
    assert "  called with train=True, batch=1" in text
    assert "  to reproduce: python here/leak.purity.py" in text


@pytest.mark.parametrize(
    ("report", "lines"),
    [
        (
            Report("d", "unknown", [], built=False, note="no such thing"),
            ["d (unknown)", "not built", "no such thing"],
        ),
        (
            Report("d", "unknown", [Finding(law, "error", note="no input") for law in "xy"]),
            ["d (unknown)", "no law could be tried", "no input"],
        ),
        (
            Report("d", "encoder", [Finding("purity", "holds")]),
            ["d (encoder)", "1 of 1 law tried, none broken", "holds: purity"],
        ),
    ],
)
def test_what_was_not_run_is_said_to_be_so_and_to_break_nothing(report, lines):
    assert str(report).splitlines() == lines


SHOW = """
from querykey.laws import Finding, Report
from rich.console import Console
report = Report("m", "decoder", [Finding("purity", "violated", 1.0, 0.0), Finding("x", "holds")])
console = Console(force_terminal=True)
for paragraph in report.paragraphs():
    console.print(paragraph)
"""


def test_breaches_are_red_and_colour_goes_under_no_color():
    usual = {name: os.environ[name] for name in os.environ if name != "NO_COLOR"}
    usual["TERM"] = "xterm-256color"
    plain = "m (decoder)\n2 of 2 laws tried, 1 broken\nBROKEN purity\n"
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SHOW)],
            env={**usual, **environment}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ("\x1b[1;31mBROKEN purity" in done.stdout) is coloured
        assert plain in re.sub(r"\x1b\[[\d;]*m", "", done.stdout)


def test_no_control_character_of_a_model_reaches_the_terminal():
    note = "ValueError: \x1b[31mred\x07 \u202e"
    report = Report(
        "a\x1b[2J", "decoder", [broken("purity", note)], about={"cache": note}, note=note
    )
    assert "\\x1b[31mred\\x07 \\u202e" in str(report)
    assert all(letter.isprintable() or letter == "\n" for letter in str(report))
