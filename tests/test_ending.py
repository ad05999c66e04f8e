"""The process of `qk` ends with its own exit code and after its answer, whatever its models do."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.test_signals import VERBS

from querykey import cli

LEAVES = """
import atexit, multiprocessing, os, threading, time
from torch import nn
def sleep(): time.sleep(1000)
def fails(): raise RuntimeError("nothing to upload")
def prints(): print("printed at exit")
def make(leave):
    leave()
    return nn.Linear(3, 2)
def thread(): return make(threading.Thread(target=sleep, name="poll").start)
def process(): return make(multiprocessing.get_context("fork").Process(target=sleep).start)
def atexit_sleep(): return make(lambda: atexit.register(sleep))
def atexit_noise(): return make(lambda: [*map(atexit.register, (prints, fails))])
def atexit_ends(): return make(lambda: atexit.register(os._exit, 7))
"""
MAIN = "import querykey.cli.ending as e; e.SECONDS = 0.2; from querykey.cli import main; main()"
LATE = "which did not end in 0.2 s; it was stopped"
ENDINGS = {
    "thread": f"qk: the code that was run left the thread `poll`, {LATE}\n",
    "process": f"qk: the code that was run left the process `ForkProcess-1`, {LATE}\n",
    "atexit_sleep": f"qk: the code that was run left a function at exit, {LATE}\n",
    "atexit_noise": "qk: while the process ended, the code that was run raised RuntimeError: "
    "nothing to upload (model.py:5, fails)\nprinted at exit\n",
    "atexit_ends": "qk: while the process ended, the code that was run raised SystemExit: "
    "os._exit(7)\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("factory", ENDINGS)
def test_what_a_model_leaves_neither_holds_the_command_nor_enters_its_answer(factory, tmp_path):
    (tmp_path / "model.py").write_text(LEAVES)
    words = ["cost", f"model.py:{factory}", "--input", "input=array(n,3)", "--json"]
    # Into a file: a child process would keep a pipe open.
    with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *words], cwd=tmp_path, stdout=out, stderr=err, timeout=60
        )
    assert json.loads((tmp_path / "out").read_text())["params"] == 8
    assert (tmp_path / "err").read_text() == ENDINGS[factory]
    assert done.returncode == 0


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_passes_where_its_process_is_ended_without_an_answer(verb, monkeypatch, capsys):
    rest, called = VERBS[verb]
    ends, before = (lambda *args, **kwargs: os._exit(0)), os._exit
    monkeypatch.setattr(called, ends)
    assert cli.run([verb, *rest]) == 2
    out, err = capsys.readouterr()
    place = f"tests/{Path(__file__).name}:{ends.__code__.co_firstlineno}, <lambda>"
    assert err == f"qk: the code that was run raised SystemExit: os._exit(0) ({place})\n"
    assert "Traceback" not in out
    assert os._exit is before


def test_a_factory_that_ends_the_process_is_named(tmp_path, capsys):
    (tmp_path / "model.py").write_text("import os\ndef make(): os._exit(0)\n")
    assert cli.run(["targets", f"{tmp_path}/model.py:make"]) == 2
    assert "make() raised SystemExit: os._exit(0) (model.py:2, make)" in capsys.readouterr().err


def test_children_and_threads_may_still_end_themselves_at_once(monkeypatch, capsys):
    from querykey.cli import ending

    codes = []
    with ending.no_exit():
        if (child := os.fork()) == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        monkeypatch.setattr(ending, "_exit", codes.append)
        monkeypatch.setattr(threading, "excepthook", lambda args: None)
        thread = threading.Thread(target=lambda: os._exit(0))
        thread.start()
        thread.join()
    assert codes == [2]
    assert (
        "a thread of the code that was run ended this process: os._exit(0)"
        in capsys.readouterr().err
    )
