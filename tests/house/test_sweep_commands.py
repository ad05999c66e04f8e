"""Every option of every command, and every field of a training run, with every kind of bad text."""

from pathlib import Path

import pytest

from querykey.cli import run as qk
from querykey.errors import QuerykeyError
from querykey.train import read_config
from querykey.train.config import flag_names

SNAPSHOT = Path(__file__).parent.parent / "snapshots" / "command_line.txt"
TEXTS = (
    "", " ", "nosuch", "x" * 5000, "\x1b[31m\x07", "ä\u202e😀", "\udcff", "../..", "=", ",", "[",
    "{}", "-1", "0", "nan", "-inf", "1e999", "9" * 30, "1.5", "None", "/dev/null/x", "--",
    "a=1,a=1", "%s{0}",
)  # fmt: skip
# The rest of a call in which one option has a text, and the texts that would begin real work.
MODEL = "from torch import nn\ndef make(): return nn.Linear(3, 2)\n"
COST = ("cost", "{model}", "--input", "input=array(n,3)")
CALLS = {
    "check": ("check", "nosuch-target"),
    "cost": COST,
    "generate": ("generate", "nosuch-folder", "--prompt", "a"),
    "lab": ("lab", "nosuch-experiment"),
    "report": ("report", "nosuch-run"),
    "train": ("train", "nosuch.toml"),
}
POSITIONS = {  # what stands without a name
    "check": ("check", "{}"), "cost": ("cost", "{}"),
    "generate": ("generate", "{}", "--prompt", "a"), "lab": ("lab", "{}"),
    "laws": ("laws", "{}"), "report": ("report", "{}"),
    "targets": ("targets", "{}"), "train": ("train", "{}"), "demo": ("demo", "{}"),
}  # fmt: skip
WITHOUT_A_VALUE = {
    "--json", "--traceback", "--again", "--all", "--quick", "--list", "--calibrate", "--full",
    "--modules",
}  # fmt: skip


def options():
    """The commands with their options, as the snapshot of the command line has them."""
    found = {}
    for line in SNAPSHOT.read_text().splitlines():
        _, command, *words = line.split()
        found[command] = [word for word in words if word.startswith("--") and "[" not in word]
    return found


CASES = [(c, o) for c, names in options().items() for o in names if o not in WITHOUT_A_VALUE]


def ends_well(capsys, words):
    """Run a call; it ends with an exit code and prints no traceback and no control character."""
    code = qk(words)
    out, err = capsys.readouterr()
    assert code in (0, 1, 2, 3), words
    assert code == 0 or out + err, words
    for text in (out, err):
        assert "Traceback" not in text, words
        assert all(letter.isprintable() or letter in "\n\t" for letter in text), words


def test_every_command_has_a_case():
    assert set(options()) == set(POSITIONS)
    assert {command for command, _ in CASES} <= set(CALLS)


@pytest.mark.slow
@pytest.mark.parametrize("command", POSITIONS)
def test_what_a_command_is_given_is_served_or_refused(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in TEXTS:
        if (command, text) in (("demo", "--"), ("train", "--")):  # as if nothing stood there
            continue
        ends_well(capsys, [word.replace("{}", text) for word in POSITIONS[command]])


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option"), CASES)
def test_what_an_option_is_given_is_served_or_refused(
    command, option, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    words = [word.replace("{model}", "model.py:make") for word in CALLS[command]]
    for text in TEXTS:
        ends_well(capsys, [*words, option, text])
        ends_well(capsys, [*words, f"{option}={text}"])


@pytest.mark.parametrize("flag", flag_names())
def test_every_field_of_a_run_is_read_or_refused(flag):
    for text in TEXTS:
        try:
            config = read_config(None, {flag: text})
        except QuerykeyError as error:
            words = str(error)
            assert words.strip()
            assert all(letter.isprintable() or letter == "\n" for letter in words), text
        else:
            assert config.as_dict()
