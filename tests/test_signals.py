"""What ends a call from outside, for every verb: one sentence, the right exit code, no orphan."""

import os
import signal
import subprocess
import sys
import time

import pytest

from querykey import cli

# The rest of a call of every verb, and what it calls, which here is interrupted.
VERBS = {
    "check": (["decoder"], "querykey.laws.run_command"),
    "cost": (["decoder"], "querykey.costs.cost_of_target"),
    "demo": ([], "querykey.laws.leaky_model"),
    "generate": (["folder", "--prompt", "a"], "querykey.models.Speaker.of"),
    "lab": (["argmax", "--quick"], "querykey.lab.run_experiments"),
    "laws": (["purity"], "querykey.laws.described"),
    "report": (["run"], "querykey.train.write_report"),
    "targets": (["decoder"], "querykey.targets.build"),
    "train": (["copy"], "querykey.train.train_command"),
}


NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def heard():
    """Hear all signals, which whoever runs the tests in the background has ignored."""
    kept = {number: signal.getsignal(number) for number in NUMBERS}
    for number in NUMBERS:
        plain = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, plain)
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_every_verb_is_interrupted():
    assert set(VERBS) == {name for name in cli.app if not name.startswith("-")}


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")],
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_signal_ends_a_verb_with_a_sentence(verb, number, words, swallowed, monkeypatch, capsys):
    def interrupted(*args, **kwargs):
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except KeyboardInterrupt:
            if not swallowed:
                raise
        raise ValueError("what was cut short is of no use")

    rest, called = VERBS[verb]
    monkeypatch.setattr(called, interrupted)
    before = [signal.getsignal(number) for number in NUMBERS]
    assert cli.run([verb, *rest]) == 128 + number
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == f"qk: stopped by {words}"
    assert "Traceback" not in out + err
    assert [signal.getsignal(number) for number in NUMBERS] == before


INTERRUPTS = """
import os, signal, torch
def raises():
    raise KeyboardInterrupt("of the model")
def pressed():
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interruption_by_a_models_code_is_not_the_users(tmp_path, capsys):
    file = tmp_path / "model.py"
    file.write_text(INTERRUPTS)
    assert cli.run(["targets", f"{file}:raises"]) == 2
    err = capsys.readouterr().err
    assert "KeyboardInterrupt: of the model (model.py:4, raises)" in err
    assert cli.run(["targets", f"{file}:pressed"]) == 130
    assert capsys.readouterr() == ("", "qk: stopped by Ctrl-C\n")


def test_a_signal_while_the_libraries_are_imported_shows_no_traceback():
    code = """
import sys
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "cyclopts":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from querykey.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


HANGS = """
import os
from torch import nn
class Hangs(nn.Linear):
    def forward(self, x):
        open("worker", "w").write(str(os.getpid()))
        while True: pass
def make(): return Hangs(3, 2)
"""


def waited_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a worker of its parent's end")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_model_that_hangs_does_not_outlive_the_check(number, code, tmp_path):
    (tmp_path / "model.py").write_text(HANGS)
    words = ["-c", "from querykey.cli import main; main()", "check", "model.py:make"]
    checking = subprocess.Popen([sys.executable, *words], cwd=tmp_path, stderr=subprocess.PIPE)
    file = tmp_path / "worker"
    waited_for(lambda: file.exists() and file.read_text())
    worker = int(file.read_text())
    assert worker != checking.pid
    assert is_there(worker)
    checking.send_signal(number)
    assert checking.wait(60) == code
    waited_for(lambda: not is_there(worker))
    assert b"Traceback" not in checking.stderr.read()
    checking.stderr.close()
