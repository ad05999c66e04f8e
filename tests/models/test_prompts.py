"""`qk generate`: text in, text out, and one sentence where that cannot be."""

import json

import pytest
import torch

import querykey as qk
from querykey.cli import run
from querykey.models import Decoder, build, preset, presets


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    qk.models.save(Decoder(presets.gpt(vocabulary=256)), tmp_path)
    return tmp_path


def test_bytes_are_streamed(folder, capsys):
    assert run(["generate", str(folder), "--prompt", "Hi", "--tokens", "9"]) == 0
    said = capsys.readouterr().out
    ids = qk.generate(qk.models.load(folder), torch.tensor([list(b"Hi")]), max_new_tokens=9)
    assert said == bytes(ids[0, 2:].tolist()).decode(errors="replace") + "\n"


def test_seeds_and_stops(folder, capsys):
    words = ["generate", str(folder), "--prompt", "Hi", "--temperature", "1.5", "--seed", "1"]
    said = []
    for _ in range(2):
        assert run(words) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    model = qk.models.load(folder)
    first = qk.generate(model, torch.tensor([list(b"Hi")]), max_new_tokens=1)[0, -1].item()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [first, 999]}))
    assert run(["generate", str(folder), "--prompt", "Hi"]) == 0
    assert capsys.readouterr().out == "\n"


def test_a_refusal_stands_on_a_line_of_its_own(folder, capsys):
    assert run(["generate", str(folder), "--prompt", "Hi", "--tokens", "1000"]) == 2
    out, err = capsys.readouterr()
    assert len(out) > 1
    assert out.endswith("\n")
    assert err.startswith("qk: ")
    assert run(["generate", str(folder), "--prompt", "Hi", "--temperature", "-1"]) == 2
    assert capsys.readouterr().out == ""


def test_a_tokenizer_is_used(folder, capsys):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizer.json takes its package")
    words = {"hello": 0, "world": 1, "[UNK]": 2}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    assert run(["generate", str(folder), "--prompt", "hello world", "--tokens", "3"]) == 0
    capsys.readouterr()
    large = {str(i): i for i in range(300)} | {"[UNK]": 300}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(large, unk_token="[UNK]"))
    made.save(str(folder / "tokenizer.json"))
    assert run(["generate", str(folder), "--prompt", "hello"]) == 2
    wanted = "tokenizer.json: it has 301 tokens, and the vocabulary of config.json has 256"
    assert wanted in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("quadratic", "a vocabulary of 128 is too small for the 256 bytes; such a model takes ids"),
        ("bert", "generate wants a Decoder or an EncoderDecoder; Encoder has no state"),
    ],
)
def test_what_cannot_speak_is_refused(name, words, tmp_path, capsys):
    qk.models.save(build(preset(name)), tmp_path)
    assert run(["generate", str(tmp_path), "--prompt", "Hi"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_no_folder(tmp_path, capsys):
    assert run(["generate", str(tmp_path / "x"), "--prompt", "Hi"]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert run(["generate", str(tmp_path / "x"), "--prompt", ""]) == 2
