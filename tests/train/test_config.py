"""Configurations: TOML and flags in, one sentence where something is wrong."""

import json
import re
from pathlib import Path

import pytest

from querykey.cli import run as qk
from querykey.errors import QuerykeyError
from querykey.train import ConfigError, read_config
from querykey.train.config import DataConfig, OptimizerConfig, flag_names, meanings
from querykey.train.folder import RunFolder, as_toml
from querykey.train.optimizers import rate_at
from querykey.train.recipes import RECIPES


def test_a_config_is_written_as_toml_and_read_again(tmp_path):
    config = read_config({"data": {"path": 'a "b" \\c ü'}}, {"betas": "0.8,0.9", "compile": "true"})
    file = tmp_path / "config.toml"
    file.write_text(as_toml(config.as_dict()), encoding="utf-8")
    assert read_config(file) == config
    assert (config.optimizer.betas, config.loop.compile) == ((0.8, 0.9), True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("stdlb", "; did you mean the recipe `stdlib`?"),
        ("none.toml", ""),
        ("run", "run/config.toml"),
    ],
)
def test_what_is_neither_a_file_nor_a_recipe_is_refused(tmp_path, monkeypatch, capsys, name, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    assert qk(["train", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"qk: `{name}` cannot be read: ")
    assert hint in error


def test_flags_win_over_the_file(tmp_path):
    (tmp_path / "a.toml").write_text("[loop]\nsteps = 7\nbatch = 3\n")
    config = read_config(tmp_path / "a.toml", {"steps": "9", "optimizer-rate": "1e-4"})
    assert (config.loop.steps, config.loop.batch, config.optimizer.rate) == (9, 3, 1e-4)


def test_every_field_is_a_flag():
    names = flag_names()
    assert names["save-every"] == ("loop", "save_every")
    assert names["data-name"] == ("data", "name")
    assert "name" not in names
    for section, value in read_config().as_dict().items():
        for field in value if isinstance(value, dict) else []:
            assert names[f"{section}-{field}".replace("_", "-")] == (section, field)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("steps = 3", "`config.toml` has no field `steps`; it belongs to [loop]"),
        ("[model]\nname = 'gpt'\nlength = 3", "has no field `length`; it belongs to [data]"),
        (
            "learning_rate = 3",
            "no field `learning_rate` (there is folder, [data], [model], [objective], [optimizer], "
            "[loop])",
        ),
        ("[objective]\nweights = 3", "it belongs to [model]"),
        ("[objective]\nmargin = 3", "no field `margin` (there is name, share, noise)"),
        ("name = 'gpt'", "it belongs to [data] or [model] or [objective] or [optimizer]"),
        (
            "[loop]\nstesp = 3",
            "[loop] of `config.toml` has no field `stesp`; did you mean `steps`?",
        ),
        ("[lop]\nsteps = 3", "`config.toml` has no field `lop`; did you mean `loop`?"),
        ("loop = 3", "`loop` in `config.toml` is a section, written [loop]"),
        ("[loop]\nsteps = 1.5", "`steps` in [loop] of `config.toml` is a whole number; got 1.5"),
        ("[loop]\nsteps = 0", "[loop] of `config.toml`: steps is at least 1; got 0"),
        ("[loop]\ncompile = 3", "`compile` in [loop] of `config.toml` is true or false; got 3"),
        (
            "[optimizer]\nrate = true",
            "`rate` in [optimizer] of `config.toml` is a number; got True",
        ),
        ("[optimizer]\nrate = nan", "`config.toml`: rate is a finite number, at least 0; got nan"),
        ("[optimizer]\nclip = inf", "`config.toml`: clip is a finite number, at least 0; got inf"),
        ("[objective]\nnoise = -1", "noise is a finite number, at least 0; got -1"),
        ("[optimizer]\nmomentum = 1", "momentum is a share, from 0 to below 1; got 1"),
        ("[optimizer]\nbetas = [0.9, 2]", "each of betas is a share, from 0 to below 1; got 2"),
        ("[loop]\nsteps = inf", "`steps` in [loop] of `config.toml` is a whole number; got inf"),
        (f"[optimizer]\nrate = 1{'0' * 400}", "`rate` in [optimizer] of `config.toml` is a number"),
        (f"[loop]\nseed = {'9' * 5000}", "`config.toml` is no TOML: "),
        (f"x = {'[' * 5000}", "`config.toml` is no TOML: "),
        ("[optimizer]\nname = 'adam'", "is one of adamw, sgd; did you mean `adamw`?; got 'adam'"),
        ("[optimizer]\nbetas = [0.9]", "`betas` in [optimizer] of `config.toml` is 2 numbers"),
        ("[model]\ndropout = 1", "[model] of `config.toml`: dropout is a share, from 0 to below 1"),
        ("[loop", "`config.toml` is no TOML: "),
        ("[data]\nname = 'minst'", "data.name: there is no `minst`; did you mean `mnist`?"),
        ("[model]\nname = 'gtp'", "model.name: there is no `gtp`; did you mean `gpt`?"),
        (
            "[objective]\nname = 'casual'",
            "objective.name: there is no `casual`; did you mean `causal`?",
        ),
        ("[data]\nname = 'text'\npath = 'none.txt'", "there is no text at `none.txt`"),
        (
            "[data]\nname = 'mnist'\n[objective]\nname = 'images'",
            "data.path is empty: it names the folder with train-images-idx3-ubyte; or set",
        ),
    ],
)
def test_a_bad_config_is_one_sentence(tmp_path, monkeypatch, capsys, text, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUERYKEY_DATA", raising=False)
    (tmp_path / "config.toml").write_text(text)
    assert qk(["train", "config.toml"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("qk: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("folder", ["file/run", "file"])
def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path, monkeypatch, capsys, folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert qk(["train", "--data-name", "copy", "--folder", folder]) == 2
    assert capsys.readouterr().err.startswith(f"qk: `{folder}` cannot be made: ")


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_one_sentence(tmp_path, monkeypatch, capsys, device):
    monkeypatch.chdir(tmp_path)
    assert qk(["train", "--data-name", "copy", "--device", device]) == 2
    assert f"qk: loop.device: `{device}` cannot be used here: " in capsys.readouterr().err


def test_the_log_is_json_even_where_a_number_is_not_finite(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write({"step": 1, "evaluation": {"loss": float("nan"), "correct": 0.5}})
    line = json.loads(folder.log.read_text(), parse_constant=pytest.fail)
    assert line == {"step": 1, "evaluation": {"loss": None, "correct": 0.5}}


def test_a_config_that_is_only_half_written_leaves_the_old_one(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    folder.begin(read_config(None, {"seed": "1"}))

    def die(path, text):
        Path(path).write_text(text[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr("querykey.train.folder.write_file", die)
    with pytest.raises(KeyboardInterrupt):
        folder.begin(read_config(None, {"seed": "1"}))
    assert read_config(tmp_path / "config.toml").loop.seed == 1


def test_a_config_that_failed_does_not_take_the_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    small = ["train", "--data-name", "copy", "--width", "16", "--steps", "1", "--length"]
    assert qk([*small, "2"]) == 2
    assert "copying needs data.length of at least 3" in capsys.readouterr().err
    assert qk([*small, "9"]) == 0


def test_a_folder_with_another_run_is_refused(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin(read_config(None, {"seed": "1"}))
    another = read_config(None, {"seed": "2"})
    folder.refuse_another_run(another)  # no step was done, so there is no run yet
    folder.write({"step": 1})
    folder.refuse_another_run(read_config(None, {"seed": "1", "steps": "9000"}))  # only longer
    with pytest.raises(ConfigError, match=r"holds a run with loop.seed = 1, and now it is 2; give"):
        folder.refuse_another_run(another)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_files_that_no_run_has_written_are_not_replaced(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / name).write_text("precious")
    assert qk(["train", "copy", "--steps", "1", "--folder", "weights"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"qk: `weights` holds {name}, which no run has written and this one")
    assert [file.read_text() for file in (tmp_path / "weights").iterdir()] == ["precious"]


def test_a_config_in_its_own_folder_keeps_its_comments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = 'folder = "."  # here\n[loop]\nsteps = 3\n'
    Path("config.toml").write_text(written)
    folder = RunFolder(Path("."))
    folder.begin(read_config("config.toml"))
    assert Path("config.toml").read_text() == written
    folder.begin(read_config("config.toml", {"steps": "4"}))
    assert read_config("config.toml").loop.steps == 4


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_configurations(name):
    assert read_config(RECIPES[name].config).folder == f"runs/{name}"


@pytest.mark.parametrize(
    ("schedule", "middle", "end"),
    [("constant", 1, 1), ("linear", 0.55, 0.1), ("cosine", 0.55, 0.1)],
)
def test_rates_rise_and_fall_as_scheduled(schedule, middle, end):
    config = read_config(None, {"rate": "2", "warmup": "10", "schedule": schedule}).optimizer
    assert rate_at(0, 110, config) == pytest.approx(2 / 11)
    assert rate_at(10, 110, config) == pytest.approx(2)
    assert rate_at(60, 110, config) == pytest.approx(2 * middle)
    assert rate_at(110, 110, config) == pytest.approx(2 * end)


def test_the_command_trains_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        "--data-name",
        "copy",
        "--samples",
        "40",
        "--width",
        "16",
        "--heads",
        "2",
        "--layers",
        "1",
        "--steps",
    ]
    assert qk([*words, "2"]) == 0
    assert capsys.readouterr().out.startswith("runs/run: step 2, done; validation loss ")
    assert qk([*words, "4"]) == 0
    assert capsys.readouterr().out.startswith("runs/run: step 4, done; validation loss ")
    lines = (tmp_path / "runs/run/log.jsonl").read_text().splitlines()
    assert len(lines) == 6  # four steps, two evaluations


def test_the_config_in_the_folder_of_a_run_is_for_that_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = ["--width", "8", "--heads", "2", "--layers", "1", "--length", "9", "--samples", "40"]
    assert qk(["train", "--data-name", "copy", *sizes, "--steps", "2", "--folder", "old"]) == 0
    (tmp_path / "old").rename(tmp_path / "new")
    for folder, config in (("new", "new/config.toml"), ("new", str(tmp_path / "new/config.toml"))):
        capsys.readouterr()
        assert qk(["train", config, "--steps", "4"]) == 0
        assert f"{folder}: step 4, done" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path / "new")
    assert qk(["train", "config.toml", "--steps", "6"]) == 0
    assert not (tmp_path / "old").exists()
    steps = [json.loads(line)["step"] for line in Path("log.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [1, 2, 3, 4, 5, 6]
    assert qk(["train", "config.toml", "--folder", "another", "--steps", "2"]) == 0
    assert Path("another/log.jsonl").exists()  # a folder that is named is taken
    (tmp_path / "plain.toml").write_text(
        'folder = "plain"\n[loop]\nsteps = 1\n[data]\nname = "copy"'
    )
    assert qk(["train", str(tmp_path / "plain.toml"), *sizes]) == 0
    assert Path("plain/log.jsonl").exists()


def test_the_list_names_recipes_objectives_and_data(capsys):
    assert qk(["train", "--list"]) == 0
    shown = capsys.readouterr().out
    for name in ("stdlib", "translation", "recall", "--save-every"):
        assert name in shown
    [line] = [line for line in shown.splitlines() if "--betas" in line]
    assert line.split() == ["--betas", "0.9,0.99", "AdamW:", "its", "two", "betas"]
    assert "--optimizer-betas" not in shown  # the shorter flag says the same
    [line] = [line for line in shown.splitlines() if "--schedule" in line]
    assert line.rstrip().endswith(": cosine, constant, linear")


def test_every_field_of_a_config_says_what_it_means():
    assert meanings().keys() == set(flag_names().values())


def test_a_value_of_another_type_is_refused_with_the_type_alone():
    with pytest.raises(
        QuerykeyError, match=re.escape("`betas` of OptimizerConfig is tuple[float, ")
    ):
        OptimizerConfig(betas=3)  # type: ignore[arg-type]
    with pytest.raises(QuerykeyError, match="`length` of DataConfig is int; got 'x'"):
        DataConfig(length="x")  # type: ignore[arg-type]


def test_a_mark_of_byte_order_before_a_config_is_read_over(tmp_path):
    file = tmp_path / "notepad.toml"
    file.write_bytes(b"\xef\xbb\xbf[loop]\r\nsteps = 7\r\n")
    assert read_config(file).loop.steps == 7
