"""What a run leaves in its folder: a model that anyone can load, and its tokenizer."""

import json

import pytest
import torch
from safetensors.torch import load_file
from tests.train.small import small_config

import querykey as qk
from querykey.cli import run as command
from querykey.train import run
from querykey.train.config import ConfigError
from querykey.train.data.source import DataError
from querykey.train.data.tokenizers import make_tokenizer
from querykey.train.folder import RunFolder
from querykey.train.ranks import Ranks
from querykey.train.run import make_trainer, shared_data

SIZES = {"steps": 3, "layers": 1, "heads": 2, "width": 16, "batch": 4, "samples": 40}
TINY = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]


@pytest.fixture
def place(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog; " * 60)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_text_is_generated_from_the_folder_of_a_run(place, capsys, tokenizer):
    if tokenizer == "bpe":
        pytest.importorskip("tokenizers", reason="BPE is trained by the package tokenizers")
    words = ["train", "--data-name", "text", "--path", "text.txt", "--folder", "run", *TINY]
    assert command([*words, "--tokenizer", tokenizer, "--vocabulary", "270"]) == 0
    capsys.readouterr()
    assert command(["generate", "run", "--prompt", "the quick", "--tokens", "7"]) == 0
    said = capsys.readouterr().out
    made = make_tokenizer(tokenizer, [(place / "text.txt").read_text()], 270)
    ids = torch.from_numpy(made.encode("the quick").astype("int64"))[None]
    new = qk.generate(qk.models.load("run"), ids, max_new_tokens=7)[0, ids.shape[1] :]
    assert said == made.decode(new.tolist()) + "\n"


def test_a_letter_that_the_run_never_saw_is_one_sentence(place, capsys):
    words = ["train", "--data-name", "text", "--path", "text.txt", "--folder", "run", *TINY]
    assert command([*words, "--tokenizer", "characters"]) == 0
    assert command(["generate", "run", "--prompt", "Ω"]) == 2
    assert "the character 'Ω' is not among the 28 that this tokenizer" in capsys.readouterr().err


def test_a_translation_begins_and_ends_with_the_tokens_of_its_run(place, capsys):
    assert command(["train", "dates", "--folder", "run", *TINY]) == 0
    config = qk.models.load("run").config
    special = json.loads((place / "run/tokenizer.json").read_text())["added_tokens"]
    numbers = {token["content"]: token["id"] for token in special}
    assert config.start == numbers["<|begin|>"]
    assert config.decoder.embedding.special.eos == (numbers["<|end|>"],)
    assert command(["generate", "run", "--prompt", "May 5, 1999", "--tokens", "3"]) == 0


def test_the_model_in_the_folder_is_the_one_that_was_trained(tmp_path):
    config = small_config(tmp_path, steps=3)
    run(config)
    trainer = make_trainer(config, Ranks())
    trainer.resume()
    model = qk.models.load(config.folder)
    ids = torch.arange(12)[None] % 9
    with torch.no_grad():
        assert torch.equal(model(ids), trainer.model.eval()(ids))


def test_models_of_others_are_written_too(place):
    pytest.importorskip("transformers", reason="hf:gpt2 is built by transformers")
    (place / "own.py").write_text(
        "from torch import nn\n"
        "make = lambda: nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))\n"
    )
    words = ["train", "--data-name", "text", "--path", "text.txt", "--length", "9", *TINY]
    assert command([*words, "--model-name", "hf:gpt2:causal", "--folder", "hf"]) == 0
    assert type(qk.models.load("hf")) is qk.models.Decoder
    assert command([*words, "--model-name", "own.py:make", "--folder", "own"]) == 0
    assert set(load_file("own/model.safetensors")) == {"0.weight", "1.weight", "1.bias"}


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
def test_transformers_reads_the_tokenizer_of_a_run(tmp_path, kind):
    transformers = pytest.importorskip("transformers", reason="it is the reader asked here")
    text = "Straße, naïve — 漢字\n\tif x:\r\n" * 5
    ours = make_tokenizer(kind, [text], 300, ("mask", "end"))
    (tmp_path / "tokenizer.json").write_text(ours.as_json())
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    ids = theirs(text).input_ids
    assert ids == ours.encode(text).tolist()
    assert theirs.decode(ids) == text
    assert len(theirs) == ours.size
    assert theirs.convert_tokens_to_ids("<|end|>") == ours.special["end"]


def refuse_to_make(*_):
    raise AssertionError("a tokenizer is made again")


class Waiting(Ranks):
    """A rank that waits for no other."""

    def all_well(self, well):
        return well


def test_a_tokenizer_is_made_once_for_all_ranks_and_for_the_run_that_goes_on(tmp_path, monkeypatch):
    config = small_config(tmp_path, steps=3)
    run(config)
    tokens = tmp_path / "run/data/tokens.bin"
    written = tokens.stat().st_mtime_ns
    monkeypatch.setattr("querykey.train.parts.make_tokenizer", refuse_to_make)
    assert run(small_config(tmp_path, steps=4)).step == 4
    second = shared_data(config, RunFolder(tmp_path / "run"), Waiting(1, 2))
    assert second.facts.tokenizer.letters == "".join(
        sorted(set((tmp_path / "text.txt").read_text()))
    )
    assert tokens.stat().st_mtime_ns == written
    (tmp_path / "text.txt").write_text("Quite another text. " * 200)
    with pytest.raises(DataError, match=r"the data are no longer those that .* was made from"):
        run(small_config(tmp_path, steps=5))


def test_a_tokenizer_of_a_config_that_failed_is_not_used(place):
    words = ["train", "--data-name", "text", "--path", "text.txt", "--folder", "run", *TINY]
    assert command([*words, "--tokenizer", "bytes", "--heads", "3"]) == 2
    assert command([*words, "--tokenizer", "characters"]) == 0
    assert len(json.loads((place / "run/tokenizer.json").read_text())["model"]["vocab"]) == 28


def test_a_tokenizer_file_that_is_none_is_one_sentence(tmp_path):
    config = small_config(tmp_path, steps=3)
    run(config)
    (tmp_path / "run/tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"this is no tokenizer\.json: "):
        run(small_config(tmp_path, steps=4))
