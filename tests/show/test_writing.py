"""What was there before is there after a full disk, a refusal or a kill in the middle."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from querykey import models
from querykey.errors import QuerykeyError
from querykey.laws.running.scripts import write_scripts
from querykey.show import WriteError, make_folder, write_file

# Forks a process that saves over and over, kills it in the middle, and looks at what it left.
KILLS = """
import json, os, random, signal, sys, time
import torch
from querykey import models
from querykey.show import write_file

target, count, tags = sys.argv[1], int(sys.argv[2]), 30_000
page, folder = f"{target}/page.html", f"{target}/model"
model = models.build(models.preset("gpt"))


def save(value):
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.fill_(value)
    models.save(model, folder)
    write_file(page, f"<{value:09.1f}>" * tags)


save(0.0)
chance, seen = random.Random(0), []
for kill in range(count):
    child = os.fork()
    if child == 0:
        for step in range(1, 10**6):
            save(float(1000 * kill + step))
    time.sleep(0.01 + 0.6 * chance.random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    text = open(page).read()
    whole = text == text[: len(text) // tags] * tags
    read = {float(v) for t in models.load(folder).parameters() for v in t.detach().unique()}
    json.load(open(f"{folder}/config.json"))
    seen.append({"page": whole, "weights": sorted(read)})
print(json.dumps(seen))
"""


def test_twenty_kills_leave_nothing_half_written(tmp_path):
    command = [sys.executable, "-c", KILLS, str(tmp_path), "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert [kill["page"] for kill in seen] == [True] * 20
    assert [len(kill["weights"]) for kill in seen] == [1] * 20
    assert len({kill["weights"][0] for kill in seen}) > 1  # some saves had ended before the kill


def test_a_full_disk_leaves_the_old_file(tmp_path):
    file, folder = tmp_path / "page.html", tmp_path / "model"
    write_file(file, "old")
    model = models.build(models.preset("gpt"))
    models.save(model, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(WriteError, match=r"page\.html` cannot be written"):
            write_file(file, "new" * 1000)
        with pytest.raises(QuerykeyError, match="cannot be written"):
            models.save(model, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, kept)
    assert file.read_text() == "old"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "page.html"]


def test_links_rights_and_devices_stay_what_they_are(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    write_file(real, "a")
    real.chmod(0o640)
    link.symlink_to(real)
    write_file(link, "b")
    assert link.is_symlink()
    assert real.read_text() == "b"
    assert real.stat().st_mode & 0o777 == 0o640
    write_file(os.devnull, "c")
    with pytest.raises(WriteError, match="cannot be written: Is a directory"):
        write_file(tmp_path, "d")
    with pytest.raises(WriteError, match="cannot be written: No such file or directory"):
        write_file(tmp_path / "no" / "file", "d")
    with pytest.raises(WriteError, match="no null character"):
        write_file("a\0b", "d")


def test_a_file_with_a_long_name_is_written(tmp_path):
    name = "ä" * 120
    write_file(tmp_path / name, "text")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    make_folder(tmp_path / "one/two")
    assert (tmp_path / "one/two").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match=r"^`.*/file/below` cannot be made: Not a directory$"):
        make_folder(tmp_path / "file/below")


def test_scripts_go_into_a_folder_that_is_made_or_refused(tmp_path):
    """An earlier version showed a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError):
        write_scripts(tmp_path / "file/below", [])


# The same for a store of reports, which grows, and for the folder of an experiment.
KILLS_OF_RECORDS = """
import dataclasses, json, os, random, signal, sys, time
from pathlib import Path
from querykey import lab, laws
from querykey.lab.store import Record, read_record, write_record
from querykey.laws.running.store import Question, Store

folder, question = Path(sys.argv[1]), Question(("purity",), 0).of("gpt")
experiment = lab.experiment("argmax")
others = [field.name for field in dataclasses.fields(Record) if field.name != "measurement"]
plain = dict.fromkeys(others, "x") | {"seconds": 1}
record = Record(experiment.measure(lab.Depth("quick")), **plain)
findings = [laws.Finding(f"law {i}", "holds", 0.1, note="x" * 200) for i in range(400)]
report = laws.Report("gpt", "decoder", findings)


def save():
    Store(folder / "store").keep(question, report)
    write_record(folder / "record", experiment, record)


save()
whole, chance, seen = read_record(folder / "record"), random.Random(0), []
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        while True:
            save()
    time.sleep(0.01 + 0.3 * chance.random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    kept = Store(folder / "store").find(question)
    seen.append([len(kept.laws), read_record(folder / "record") == whole])
print(json.dumps(seen))
"""


def test_twenty_kills_leave_whole_stores_and_records(tmp_path):
    command = [sys.executable, "-c", KILLS_OF_RECORDS, str(tmp_path), "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[400, True]] * 20
    assert len((tmp_path / "store").read_text().splitlines()) > 1  # some had saved before


# The same for everything that `qk check`, `qk cost`, `qk lab` and `qk report` write beside.
KILLS_OF_PAGES = """
import ast, json, os, random, re, signal, sys, time
from pathlib import Path
from xml.etree import ElementTree
import torch
import querykey as qk
from querykey import costs, lab, laws, train
from querykey.laws.running.command import _write

folder = Path(sys.argv[1])
os.chdir(folder)
outputs = laws.Outputs(
    html=Path("c.html"), junit=Path("c.xml"), sarif=Path("c.sarif"), scripts=Path("scripts")
)
cost = qk.cost(torch.nn.Linear(3, 2), qk.array("n", 3))
chart = costs.plotted(cost, None, ["a", "b"], "n=1:8")
experiment = lab.experiment("argmax")
run = Path("run")
run.mkdir()
(run / "config.toml").write_text("")
tags = 4000


def report(mark):
    text = f"<{mark:08d}>" * tags
    script = "a = '''" + text + "'''"
    finding = laws.Finding("purity", "violated", 1.0, 0.0, note=text, repro=script)
    return laws.Report("a.py:b", "decoder", [finding], seconds=1.0)


def save(mark):
    _write([report(mark)], set(), outputs)
    costs.write_page(cost, f"<{mark:08d}>" * tags, "cost.html", None, [chart])
    lab.write_ledger(Path("."))
    (run / "log.jsonl").write_text("")
    train.write_report(run, "report.html")


def marks(text):
    return set(re.findall(r"(?:<|&lt;|\\\\\\\\u003c)([0-9]{8})", text))


ends = {"c.html": "</html>", "cost.html": "</html>", "report.html": "</html>", "c.xml": ">"}
save(0)
chance, seen = random.Random(0), []
for kill in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        for step in range(1, 10**6):
            save(1000 * kill + step)
    time.sleep(0.02 + 0.5 * chance.random())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    names = (*ends, "c.sarif", "claims.md", "claims.json")
    texts = {name: Path(name).read_text() for name in names}
    texts |= {file.name: file.read_text() for file in Path("scripts").glob("[!.]*")}
    ElementTree.fromstring(texts["c.xml"])
    json.loads(texts["c.sarif"]), json.loads(texts["claims.json"])
    [ast.parse(text) for name, text in texts.items() if name.endswith(".py")]
    torn = [name for name, text in texts.items() if len(marks(text)) > 1]
    torn += [name for name, end in ends.items() if not texts[name].rstrip().endswith(end)]
    marked = sorted(name for name, text in texts.items() if marks(text))
    seen.append([torn, marked, min(marks(texts["c.sarif"]))])
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_twenty_kills_leave_whole_pages_and_exports(tmp_path):
    command = [sys.executable, "-c", KILLS_OF_PAGES, str(tmp_path), "20"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    torn, marked, marks = zip(*json.loads(done.stdout), strict=True)
    assert torn == ([],) * 20
    assert marked[0] == ["a_b.purity.py", "c.html", "c.sarif", "c.xml", "cost.html"]
    assert len(set(marks)) > 1  # some saves had ended before the kill
