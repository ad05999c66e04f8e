"""`qk check` as a person meets it: what it prints, where, and how it leaves."""

import json
import os
import textwrap

import pytest
from tests.leaky_layer import LAYER

from querykey import cli
from querykey.laws import Limits, check_all
from querykey.laws.finding import Finding
from querykey.laws.report import Report
from querykey.laws.running.command import _print as printed
from querykey.laws.running.command import _Said, as_page, exit_code, expand
from querykey.laws.running.store import Question
from querykey.show import write_file

MODELS = LAYER + textwrap.dedent(
    """
    import itertools, os, time

    CALLS = itertools.count(1)  # not the model's own: that is put back before every run

    def decoder(*layers):
        return nn.Sequential(nn.Embedding(40, 16), *layers, nn.Linear(16, 40))

    def lawful():
        return decoder(Layer(0), Layer(0))

    def leaky():
        return decoder(Layer(0), Layer(1))

    class Trouble(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.kind, self.embed, self.held = kind, nn.Embedding(40, 16), []

        def forward(self, ids):
            calls = next(CALLS)
            if self.kind == "hangs" and calls > 2:
                time.sleep(600)
            if self.kind == "eats":
                self.held += [torch.ones(64, 1024, 1024) for _ in range(16)]
            if self.kind == "dies":
                os._exit(7)
            if self.kind == "leaves" or (self.kind == "tires" and calls > 2):
                raise SystemExit("enough")
            if self.kind == "raises":
                raise RuntimeError("not today")
            return self.embed(ids)

    def hangs(): return Trouble("hangs")
    def eats(): return Trouble("eats")
    def dies(): return Trouble("dies")
    def leaves(): return Trouble("leaves")
    def tires(): return Trouble("tires")
    def never(): raise SystemExit("no time")
    def raises(): return Trouble("raises")
    """
)


@pytest.fixture
def models(tmp_path):
    file = tmp_path / "models.py"
    file.write_text(MODELS)
    return file


def run(capsys, *words):
    code = cli.run([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_exit_codes(models, capsys):
    code, out, err = run(capsys, "check", f"{models}:lawful", "--law", "causality")
    assert (code, err) == (0, "")
    assert "3 of 3 laws tried, none broken" in out
    code, out, err = run(capsys, "check", f"{models}:leaky", "--law", "causality")
    assert (code, err) == (1, "")
    assert "first module to blame: 2" in " ".join(out.split())
    assert run(capsys, "check", f"{models}:raises", "--law", "causality")[0] == 3
    code, out, err = run(capsys, "check", f"{models}:missing")
    assert code == 2
    assert "has no `missing`" in err


BASELINE = "is no baseline, which is what `qk check --json` printed"


def test_a_bad_call_is_one_sentence(models, capsys, tmp_path):
    wrong, deep = tmp_path / "wrong.json", tmp_path / "deep.json"
    numbers, bare = tmp_path / "numbers.json", tmp_path / "bare.json"
    numbers.write_text("[1, 2]")
    bare.write_text('[{"schema": 1, "target": "decoder"}]')
    wrong.write_text("{}")
    deep.write_text(100_000 * "[")
    os.mkfifo(tmp_path / "pipe")
    for words, sentence in [
        (["check"], "qk: name at least one TARGET"),
        (["check", "decoder", "--law", "casuality"], "qk: no law is called `casuality`"),
        (["check", "decoder", "--law", "nosuch"], "`nosuch` (`qk laws` lists them)"),
        (["check", "decoder", "--baseline", wrong.with_name("no.json")], "No such file or dir"),
        (["check", "decoder", "--baseline", wrong], f"{BASELINE}: it holds no list"),
        (["check", "decoder", "--baseline", deep], f"{BASELINE}: this is no JSON (RecursionErr"),
        (["check", "decoder", "--baseline", numbers], f"{BASELINE}: an entry is no report"),
        (["check", "decoder", "--baseline", bare], f"{BASELINE}: an entry has no field 'laws'"),
        (["check", "decoder", "--baseline", "/dev/zero"], "it is no regular file"),
        (["check", "decoder", "--baseline", tmp_path / "pipe"], "it is no regular file"),
        (["check", "decoder", "--store", "/dev/full"], "it is no regular file"),
        (["check", "decoder", "--store", tmp_path / "pipe"], "it is no regular file"),
        (["check", "decoder", "--store", deep], "holds no report"),
        (["check", "decoder", "--store", tmp_path / (300 * "a")], "File name too long"),
        (["check", "decoder", "--html", tmp_path / (300 * "a")], "File name too long"),
        (["check", 300 * "a"], "qk: no preset is called `aaa"),
        (["check", 300 * "a" + ".py:make"], "importing `aaa"),
        (["check", 300 * "a", "--store", tmp_path / "run.jsonl"], "qk: no preset is called `aaa"),
        (["check", "decodr"], "qk: no preset is called `decodr`; did you mean `decoder`?"),
        (["check", "hf:zzz*"], "qk: no Hugging Face architecture with a text head matches"),
    ]:
        code, out, err = run(capsys, *words)
        assert (code, out) == (2, "")
        assert sentence in err
        assert err.count("\n") == 1


@pytest.mark.slow
def test_json_baseline_and_page(models, capsys, tmp_path):
    target, page, known = f"{models}:leaky", tmp_path / "page.html", tmp_path / "known.json"
    code, out, _ = run(capsys, "check", target, "--json", "--html", page, "--law", "causality")
    made = json.loads(out)
    assert code == 1
    assert made[0]["target"] == target
    assert made[0]["laws"][0]["verdict"] == "violated"
    assert made[0]["laws"][0]["module"] == "2"
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "causality.perturb" in text
    assert "http" not in text
    known.write_text(out)
    assert run(capsys, "check", target, "--baseline", known, "--law", "causality")[0] == 0
    made[0]["laws"][0]["verdict"] = "holds"
    known.write_text(json.dumps(made))
    assert run(capsys, "check", target, "--baseline", known, "--law", "causality")[0] == 1


@pytest.mark.slow
def test_a_target_that_hangs_eats_or_dies_costs_itself_alone(models):
    names = [f"{models}:{name}" for name in ("hangs", "eats", "dies", "raises", "lawful")]
    reports = check_all(names, laws=["causality"], limits=Limits(seconds=12, mebibytes=2000))
    verdicts = [{f.verdict for f in report.laws} for report in reports]
    assert "timeout" in verdicts[0]
    assert "stopped when it held" in reports[1].note
    assert "exit code 7" in reports[2].note
    assert "not today" in reports[3].laws[0].note
    assert verdicts[4] == {"holds"}
    assert [report.target for report in reports] == names


@pytest.mark.parametrize("name", ["leaves", "tires"])
def test_what_was_built_and_then_left_is_no_bad_call(models, capsys, name):
    code, out, err = run(capsys, "check", f"{models}:{name}", "--law", "purity", "--json")
    made = json.loads(out)[0]
    assert (code, err) == (3, "")
    assert made["built"]
    assert [(f["law"], f["verdict"]) for f in made["laws"]] == [("purity", "error")]
    assert "SystemExit: enough" in made["laws"][0]["note"]


def test_what_leaves_while_it_is_built_is_not_built(models, capsys):
    code, out, err = run(capsys, "check", f"{models}:never", "--law", "purity", "--json")
    assert (code, json.loads(out)[0]["built"]) == (2, False)
    assert "never() raised SystemExit: no time" in err


def test_a_stored_run_goes_on_where_it_ended(models, tmp_path):
    store = tmp_path / "run.jsonl"
    name = f"{models}:lawful"
    first = check_all([name], laws=["purity"], store=store)
    with store.open("a") as file:
        file.write('{"cut short')
    again = check_all([name], laws=["purity"], store=store)
    assert again[0].as_json() == first[0].as_json()  # its seconds too: it was not run again
    assert check_all([name], laws=["determinism"], store=store)[0].laws[0].law == "determinism"
    lines = store.read_text().splitlines()
    assert [json.loads(line)["laws"][0]["law"] for line in (lines[0], lines[2])] == [
        "purity", "determinism",
    ]  # fmt: skip
    assert len(lines) == 3


def test_a_stored_report_does_not_vouch_for_another_question(models, tmp_path):
    store, name = tmp_path / "run.jsonl", f"{models}:lawful"
    asked = {"laws": ["causality.perturb"], "store": store}
    assert check_all([name], laws=["purity"], store=store)[0].violations == []
    assert check_all([name], **asked)[0].laws[0].verdict == "holds"
    assert check_all([name], seed=1, **asked)[0].seed == 1
    models.write_text(MODELS.replace("decoder(Layer(0), Layer(0))", "decoder(Layer(0), Layer(1))"))
    assert check_all([name], **asked)[0].laws[0].verdict == "violated"


def test_an_edited_file_beside_the_target_is_another_question(tmp_path, monkeypatch):
    parts, whole = tmp_path / "parts_of_a_model.py", tmp_path / "whole_model.py"
    whole.write_text("from parts_of_a_model import make")
    parts.write_text("def make(): pass")
    monkeypatch.syspath_prepend(tmp_path)
    for target in (f"{whole}:make", "whole_model:make"):
        before = Question(()).of(target)
        assert Question(()).of(target) == before
        parts.write_text(parts.read_text() + "  # edited")
        assert Question(()).of(target) != before


def test_an_edited_file_below_the_target_is_another_question_unless_it_was_installed(tmp_path):
    (tmp_path / "model.py").write_text("from parts.deep.layers import make")
    for folder, counts in [("parts/deep", True), (".venv/lib", False), ("env/lib", False)]:
        file = tmp_path / folder / "layers.py"
        file.parent.mkdir(parents=True)
        file.write_text("def make(): pass")
        (tmp_path / "env").mkdir(exist_ok=True)
        (tmp_path / "env" / "pyvenv.cfg").touch()
        before = Question(()).of(f"{tmp_path}/model.py:make")
        file.write_text("def make(): return 1")
        assert (Question(()).of(f"{tmp_path}/model.py:make") != before) is counts


def test_a_store_that_cannot_be_one_is_refused_and_left_alone(models, capsys, tmp_path):
    latin, source = tmp_path / "latin.jsonl", tmp_path / "source.py"
    latin.write_bytes("Schlüssel".encode("latin-1"))
    source.write_text("print(1)\n3\n")
    for file, sentence in [
        (tmp_path, "it is a folder"),
        (tmp_path / "none" / "run.jsonl", "there is no folder"),
        (latin, "not text in UTF-8"),
        (source, "holds no report"),
    ]:
        before = file.read_bytes() if file.is_file() else b""
        code, out, err = run(capsys, "check", f"{models}:lawful", "--store", file)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert sentence in err
        assert before == (file.read_bytes() if file.is_file() else b"")


def test_a_page_that_cannot_be_written_is_refused_before_anything_runs(capsys, tmp_path):
    for page, sentence in [
        (tmp_path, "it is a folder"),
        (tmp_path / "none" / "page.html", "there is no folder"),
    ]:
        code, out, err = run(capsys, "check", "decoder", "--html", page)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert sentence in err


BREACH = Finding("purity", "violated", 0.5, 1e-7, note="not pure", repro="x = 1")


@pytest.mark.parametrize(
    "others", [[], [Report("b", "unknown", [], built=False, note="no such thing")]]
)
def test_a_known_breach_is_marked(capsys, monkeypatch, others):
    monkeypatch.setenv("COLUMNS", "60")
    printed([Report("a", "decoder", [BREACH]), *others], _Said({("a", "purity")}))
    assert "BROKEN purity (known)\n  not pure\n" in capsys.readouterr().out
    printed([Report("a", "decoder", [BREACH]), *others], _Said({("b", "purity")}))
    assert "(known)" not in capsys.readouterr().out


def test_why_a_target_was_not_built_is_told_in_full(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    reason = "a reason " * 30
    reports = [Report(name, "unknown", [], built=False, note=reason) for name in "ab"]
    printed(reports, _Said())
    assert capsys.readouterr().out.count(reason.strip()) == 2


def test_why_laws_could_not_be_tried_is_told_beside_other_targets(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    untried = Report("a", "unknown", [Finding(law, "error", note="no input") for law in "xy"])
    some = Report("b", "decoder", [Finding("x", "holds"), Finding("y", "error", note="no copy")])
    printed([untried, some], _Said())
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["a", "unknown", "error", "0.0", "no", "input"] in rows
    assert ["b", "decoder", "error", "0.0", "y:", "no", "copy"] in rows


def test_a_file_whose_name_is_no_text_has_its_page(tmp_path):
    page = tmp_path / "page.html"
    write_file(page, as_page([Report("\udcff.py:make", "decoder", [])]))
    assert "\\udcff.py:make" in page.read_text()


def test_broken_comes_before_failed():
    lawful = Report("a", "decoder", [Finding("purity", "holds")])
    broken = Report("b", "decoder", [Finding("purity", "violated")])
    failed = Report("c", "decoder", [Finding("purity", "timeout")])
    unbuilt = Report("d", "unknown", [], built=False, note="no such thing")
    assert exit_code([lawful], set()) == 0
    assert exit_code([lawful, failed, broken], set()) == 1
    assert exit_code([lawful, failed, broken], {("b", "purity")}) == 3
    assert exit_code([lawful, unbuilt], set()) == 3
    assert exit_code([unbuilt], set()) == 2


@pytest.mark.slow
def test_a_pattern_is_every_architecture_that_matches():
    names = expand(["hf:*"])
    assert len(names) > 250
    assert "hf:gpt2:causal" in names
    assert expand(["hf:gpt2*", "decoder"])[-1] == "decoder"
    assert all(name.endswith(":masked") for name in expand(["hf:*:masked"]))


@pytest.mark.parametrize("schema", [2, "1", None])
def test_a_report_of_another_schema_is_refused_in_one_sentence(schema, models, capsys, tmp_path):
    file, target = tmp_path / "known.json", f"{models}:lawful"
    code, out, _ = run(capsys, "check", target, "--json", "--law", "purity")
    assert code == 0
    report = {**json.loads(out)[0], "schema": schema}
    words = (
        f"a report of schema {schema!r} was found, and this version of querykey reads schema 1; "
        "write it anew with `qk check`"
    )
    file.write_text(json.dumps([report]))
    code, out, err = run(capsys, "check", target, "--baseline", file)
    assert (code, out) == (2, "")
    assert err == f"qk: `{file}` cannot be the baseline: {words}\n"
    file.write_text(json.dumps(report) + "\n")
    code, out, err = run(capsys, "check", target, "--store", file)
    assert (code, out) == (2, "")
    assert err == f"qk: `{file}` cannot be the store: {words}\n"
    with pytest.raises(ValueError, match="reads schema 1"):
        Report.from_json(report)
