"""The page of a run: what stands on it, while it goes and after, and what is no run."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.train.small import small_config

from querykey.cli import run as qk
from querykey.errors import QuerykeyError
from querykey.show import WriteError
from querykey.train import run, write_report


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    config = small_config(tmp_path_factory.mktemp("runs"))
    return run(config, lambda progress: None)


@pytest.fixture
def folder(tmp_path):
    """The folder of a run that has done nothing yet."""
    (tmp_path / "config.toml").write_text('folder = "x"\n[loop]\nsteps = 9\n')
    (tmp_path / "environment.json").write_text('{"torch": "2"}')
    return tmp_path


def step(number, **entries):
    return {
        "step": number,
        "loss": 2.0,
        "rate": 0.1,
        "norm": 1.0,
        "tokens": 8,
        "seconds": 2.0,
    } | entries


def log(folder, *entries, end=""):
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    (folder / "log.jsonl").write_text("".join(f"{line}\n" for line in lines) + end)


def figures(page):
    """The points of every chart on a page, by its caption."""
    found = {}
    for svg, caption in re.findall(r"(<svg.*?</svg>)\s*<figcaption>(.*?)<", page, re.DOTALL):
        found[caption] = sum(
            part.tag.endswith("circle") for part in ElementTree.fromstring(svg).iter()
        )
    return found


def test_the_page_shows_curves_checkpoints_and_what_was_run(finished, capsys):
    folder = Path(finished.folder)
    assert qk(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    page = (folder / "report.html").read_text()
    assert figures(page) == {
        "Loss": 12 + 3,
        "Share right in evaluations": 3,
        "Learning rate": 12,
        "Gradient norm": 12,
        "Tokens per second": 12,
    }
    assert "Step 12 of 12, loss " in page
    assert "Evaluation at step 12" in page
    assert f"<td>{finished.evaluation['loss']:.6g}</td>" in page
    for path in (folder / "checkpoints").glob("step-*"):
        size = sum(file.stat().st_size for file in path.iterdir())
        assert f"<tr><td>{path.name}</td><td>{size:,}</td><td>yes</td></tr>" in page
    assert "<td>loop.seed</td><td>3</td>" in page
    assert "<td>torch</td>" in page
    assert "Warnings" not in page
    assert not re.findall(r'(?:src|href)="', page)


def test_a_run_that_is_still_going_has_its_page(folder):
    assert "No step is done yet." in write_report(folder).read_text()
    log(folder, step(1), step(2), end='{"step": 3, "lo')
    page = write_report(folder).read_text()
    assert "Step 2 of 9, loss 2, after 4.0 seconds in steps." in page
    assert figures(page)["Tokens per second"] == 2
    assert "Warnings" not in page
    assert "There is none yet." in page


def test_curves_of_long_runs_are_means(folder):
    log(folder, *(step(i, loss=float(i % 2)) for i in range(1, 1001)))
    assert figures(write_report(folder).read_text())["Loss"] == 200


def test_what_is_odd_is_said_on_top(folder):
    log(
        folder, step(1), step(2, loss=None), "no JSON", "[1]", '{"step": true}', "[" * 99999,
        step(4, norm=None), step(9, warning="it is late\x1b"), {"step": 9, "evaluation": 5},
    )  # fmt: skip
    (folder / "environment.json").write_text("[]")
    checkpoint = folder / "checkpoints" / "step-00000009"
    checkpoint.mkdir(parents=True)
    manifest = '{"files": {"a.safetensors": "x"}}'
    (checkpoint / "manifest.json").write_text(manifest)
    page = write_report(folder).read_text()
    assert re.findall(r"<p>(.*?)</p>", page) == [
        "Step 9 of 9, loss 2, after 8.0 seconds in steps.",
        "environment.json holds no JSON object.",
        "4 of 9 lines of log.jsonl could not be read.",
        r"it is late\x1b",
        "At step 2 the loss was not finite (1 in all).",
        "At step 4 the norm was not finite (1 in all).",
        "The log goes on elsewhere after step 2 (2 such places).",
    ]
    assert f"<td>step-00000009</td><td>{len(manifest)}</td><td>no</td>" in page


def test_names_and_texts_of_a_run_are_no_markup(folder):
    (folder / "config.toml").write_text('folder = "<script>alert(1)</script>"\n')
    log(folder, step(1, warning="<img src=x>"))
    page = write_report(folder).read_text()
    assert "<script>" not in page
    assert "<img" not in page


@pytest.mark.parametrize("config", ["", "loop = 5\n", "a = [[1], {b = nan}]\n"])
def test_any_config_that_is_toml_has_its_page(folder, config):
    (folder / "config.toml").write_text(config)
    log(folder, step(1))
    assert "Step 1, loss 2" in write_report(folder).read_text()


def test_what_is_no_run_is_refused_in_a_sentence(folder, tmp_path, capsys):
    words = "is no folder of a training run, which has a config.toml and a log.jsonl; `qk train`"
    for path in (tmp_path / "none", folder / "config.toml", tmp_path / "x\0"):
        with pytest.raises(
            QuerykeyError, match=words if "\0" not in str(path) else "cannot be|is no"
        ):
            write_report(path)
    assert qk(["report", str(tmp_path / "none")]) == 2
    assert words in capsys.readouterr().err
    with pytest.raises(WriteError, match="cannot be written: No such file or directory"):
        write_report(folder, tmp_path / "none" / "page.html")
    (folder / "config.toml").write_text("a =")
    with pytest.raises(QuerykeyError, match="is no TOML"):
        write_report(folder)
