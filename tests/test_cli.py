"""The command as a person meets it: what it prints, where, and how it leaves."""

import ctypes
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from querykey import cli
from querykey.cli.command import app
from querykey.cli.examples import EXAMPLES

QK = str(Path(sys.executable).with_name("qk"))


def run(capsys, *words):
    code = cli.run(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_targets_lists_every_way_to_name_one(capsys):
    code, out, err = run(capsys, "targets")
    assert (code, err) == (0, "")
    for word in ("file.py:factory", "hf:NAME:HEAD", "a folder", "encoder-decoder"):
        assert word in out


def test_targets_describes_what_it_builds(capsys):
    code, out, _ = run(capsys, "targets", "decoder")
    assert code == 0
    for word in ("takes ids", "(batch, seq) token ids 0 to 127", "(2, 7, 128) float32"):
        assert word in out
    assert "layers.layers.0-1" in out  # equal layers share a row


def test_lazy_layers_are_described_as_far_as_they_are_known_and_cost_nothing_yet(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text(
        "from torch import nn\n"
        "def make(): return nn.Sequential(nn.LazyLinear(4), nn.LazyLinear(5), nn.Linear(5, 5))\n"
    )
    code, out, _ = run(capsys, "targets", f"{file}:make")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines() if "Linear" in line][-1] == "30"
    assert out.count("not yet known") == 4
    assert run(capsys, "cost", f"{file}:make", "--input", "array(batch,7)") == (
        2,
        "",
        "qk: the model has lazy layers, whose sizes its first run decides; "
        "run it once where it is built\n",
    )


def test_what_raises_after_it_was_built_is_said_in_its_cell(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text(
        "from torch import nn\n"
        "class Tired(nn.Linear):\n"
        "    calls = 0\n"
        "    def forward(self, x):\n"
        "        self.calls += 1\n"
        "        if self.calls > 1: raise RuntimeError('enough')\n"
        "        return super().forward(x)\n"
        "    def extra_repr(self): raise ValueError('no words')\n"
        "def make(): return nn.Sequential(Tired(3, 2))\n"
    )
    code, out, _ = run(capsys, "targets", f"{file}:make")
    assert code == 0
    assert "raised RuntimeError: enough" in out
    assert "Tired(raised ValueError: no words)" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["tragets"],
            'qk: Unknown command "tragets". Did you mean "targets"? '
            "Available commands: targets, check, laws, cost, generate, train, lab, report, ... "
            "See `qk --help`.\n",
        ),
        (["lab", "--list"], "qk: Unknown option: --list. See `qk lab --help`.\n"),
        (["demo", "now"], "qk: `qk demo` does not take now. See `qk demo --help`.\n"),
        (
            ["targets", "model.py"],
            "qk: `model.py` names a file but no factory; write `model.py:FACTORY`\n",
        ),
    ],
)
def test_a_wrong_call_is_one_sentence_and_exit_code_2(capsys, words, sentence):
    assert run(capsys, *words) == (2, "", sentence)


@pytest.mark.parametrize("verb", EXAMPLES)
def test_the_help_of_a_verb_ends_with_calls_of_it_that_are_right(capsys, verb):
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    shown = " ".join(out.replace("•", " ").split())
    for meaning, call in EXAMPLES[verb]:
        assert f"{meaning}: {call}" in shown
        words = shlex.split(call)
        assert words[:2] == ["qk", verb]
        app.parse_args(words[1:], exit_on_error=False, print_error=False)


def test_every_verb_has_examples(capsys):
    _, out, _ = run(capsys, "--help")
    assert all(f"│ {verb} " in out for verb in EXAMPLES)
    assert len(EXAMPLES) == sum(not name.startswith("-") for name in app)


def test_the_help_shows_only_defaults_that_say_something(capsys):
    _, out, _ = run(capsys, "check", "--help")
    assert "[default: 0]" in out
    assert "120.0]" in out
    assert out.count("[default:") == 2


def test_a_factory_that_raises_shows_its_last_line_and_no_traceback(tmp_path):
    file = tmp_path / "model.py"
    file.write_text("def make():\n    raise RuntimeError('the width must be even')\n")
    done = subprocess.run([QK, "targets", f"{file}:make"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"qk: `{file}:make`: make() raised RuntimeError: the width must be even "
        "(model.py:2, make)\n"
    )


@pytest.mark.parametrize(
    "words", [["targets"], ["cost", "--json"], ["check", "--law", "purity", "--json"]]
)
def test_what_a_model_prints_is_no_part_of_the_answer(tmp_path, capfd, words):
    file = tmp_path / "model.py"
    file.write_text(
        "import ctypes, os, torch\n"
        "class Loud(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        os.write(1, b'loud 1')\n"
        "        print('loud 2')\n"
        "        ctypes.CDLL(None).printf(b'loud 3')\n"
        "        return super().forward(x)\n"
        "def make():\n"
        "    os.write(1, b'loud 4')\n"
        "    return Loud(3, 2)\n"
    )
    assert cli.run([words[0], f"{file}:make", *words[1:]]) == 0
    ctypes.CDLL(None).fflush(None)
    out, err = capfd.readouterr()
    assert "loud" not in out
    assert " target " in out if words == ["targets"] else out.startswith(("{", "["))
    assert words[0] == "check" or all(f"loud {n}" in err for n in (1, 2, 3, 4))


def test_a_defect_of_ours_is_not_hidden(monkeypatch):
    monkeypatch.setattr("querykey.targets.build", lambda name: int("not a target"))
    with pytest.raises(ValueError, match="invalid literal"):
        cli.run(["targets", "decoder"])


def test_version(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("querykey 0.")


@pytest.mark.slow
def test_the_demo_ends_with_a_built_model():
    done = subprocess.run([QK, "demo"], capture_output=True, text=True, check=True)
    assert "hf:gpt2" in done.stdout
    assert "GPT2LMHeadModel" in done.stdout


def without_a_reader(*words):
    """Run the command into a pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([QK, *words], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["targets"], ["targets", "decoder"], ["cost", "decoder", "--json"]]
)
def test_a_reader_that_leaves_is_no_error(words):
    assert without_a_reader(*words) == (0, "")


def test_a_reader_that_leaves_changes_neither_the_verdict_nor_the_page(tmp_path):
    file = tmp_path / "model.py"
    file.write_text(
        "from torch import nn\n"
        "class Noisy(nn.Linear):\n"
        "    def forward(self, x): return super().forward(x) + self.weight.new_empty(1).normal_()\n"
        "def lawful(): return nn.Linear(3, 2)\n"
        "def noisy(): return Noisy(3, 2)\n"
    )
    for name, code, how in [("lawful", 0, []), ("noisy", 1, ["--json"])]:
        page = tmp_path / f"{name}.html"
        words = ["check", f"{file}:{name}", "--law", "determinism", "--html", str(page), *how]
        assert without_a_reader(*words) == (code, "")
        assert page.read_text().endswith("</html>\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
@pytest.mark.parametrize("words", [["targets"], ["targets", "decoder"]])
def test_no_room_for_the_output_is_one_sentence(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([QK, *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "qk: there is no room left where the output was to be written\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_a_refusal_that_cannot_be_printed_keeps_its_exit_code():
    with open("/dev/full", "w") as full:
        done = subprocess.run([QK, "targets", "nosuch"], stdout=subprocess.PIPE, stderr=full)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_a_refusal_needs_no_room_for_an_answer():
    with open("/dev/full", "w") as full:
        done = subprocess.run([QK, "laws", "nosuch"], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [done.stderr.decode().rstrip()]


def test_closed_streams_do_not_change_the_verdict(tmp_path):
    """An earlier version's workers wrote over their own pipes, which had the numbers 1 and 2."""
    file = tmp_path / "model.py"
    file.write_text("from torch import nn\ndef a(): return nn.Linear(3, 2)\ndef b(): return a()\n")
    words = f"{QK} check {file}:a {file}:b --law purity --store {tmp_path}/store >&- 2>&- <&-"
    assert subprocess.run(["sh", "-c", words]).returncode == 0
    stored = [json.loads(line) for line in (tmp_path / "store").read_text().splitlines()]
    assert [report["laws"][0]["verdict"] for report in stored] == ["holds"] * 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is full")
def test_no_room_for_errors_does_not_cost_the_answer():
    with open("/dev/full", "w") as full:
        done = subprocess.run([QK, "targets", "decoder"], stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == 0
    assert b"decoder" in done.stdout


def test_a_folder_that_was_deleted_is_no_place_to_run_in(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    words = f"cd {gone}; rmdir {gone}; {QK} targets decoder"
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == ("qk: the current folder has been deleted; change to one that is there\n")


def test_a_warning_is_a_sentence(tmp_path):
    (tmp_path / "model.py").write_text(
        "import warnings\n"
        "from torch import nn\n"
        "warnings.warn('a\x1b[31m word', stacklevel=1)\n"
        "def make(): return nn.Linear(3, 2)\n"
    )
    words = ["cost", f"{tmp_path}/model.py:make", "--input", "input=array(n,3)", "--json"]
    done = subprocess.run([QK, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "qk: a\\x1b[31m word\n")


def test_no_control_character_of_a_model_is_printed(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text(
        "from torch import nn\n"
        "class Loud(nn.Linear):\n"
        "    def extra_repr(self): return '\\x1b[31m\\x07'\n"
        "def make(): return nn.ModuleDict({'a\\x1b[2J': Loud(2, 3)})\n"
    )
    for words in (["targets"], ["cost", "--input", "x=array(n,2)"], ["check", "--law", "purity"]):
        _, out, err = run(capsys, words[0], f"{file}:make", *words[1:])
        assert "\x1b" not in out + err
        assert "\x07" not in out + err


def test_the_package_is_run_as_a_module_like_the_command():
    words = [sys.executable, "-m", "querykey", "laws", "tying"]
    module = subprocess.run(words, capture_output=True, text=True)
    command = subprocess.run([QK, "laws", "tying"], capture_output=True, text=True)
    assert (module.returncode, module.stdout) == (0, command.stdout)
    assert "tying" in module.stdout
