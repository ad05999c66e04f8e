"""Files of every reader, spoiled in every way: a refusal in a sentence, or an answer."""

import gzip
import hashlib
import json
import shutil
import struct

import pytest
from tests.train.small import small_config

import querykey as qk
from querykey import models
from querykey.lab.store import read_record
from querykey.laws.running.command import read_baseline
from querykey.laws.running.store import Store
from querykey.train import DataConfig, load_mnist, read_config, run, write_report
from querykey.train.checkpoints import verified
from querykey.train.data.source import DataError
from querykey.train.data.tokenizers import load_tokenizer
from querykey.train.folder import RunFolder

# What may stand in a file that should hold JSON or TOML.
CONTENTS = {
    "nothing": b"",
    "zeros": bytes(64),
    "bytes": b"\xff\xfe\xe4",
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "a mark first": b"\xef\xbb\xbf{}",
    "deep lists": b"[" * 99_999,
    "deep objects": b'{"a":' * 99_999,
    "a list": b"[1]",
    "a number": b"5",
    "a text": b'"x"',
    "null": b"null",
    "an empty object": b"{}",
    "NaN": b'{"a": NaN}',
    "5000 digits": b'{"a": ' + b"9" * 5000 + b"}",
    "1e999": b"1e999",
    "half an object": b'{"schema": 1, "laws": [{"verdict": "vio',
    "names of a schema": b'{"schema": 1, "step": 1, "files": [1], "record": {}, "laws": 3}',
    "lists of a schema": b'[{"schema": 1, "target": "a", "laws": [{"law": 3}]}]',
    "a path outside": b'{"schema": 1, "step": 1, "files": {"../x": "y"}, "record": {}}',
    "a null in a name": b'{"schema": 1, "step": 1, "files": {"a\\u0000": "y"}, "record": {}}',
    "a record of text": b'{"schema": 1, "step": "x", "files": {}, "record": {}}',
    "a measurement": b'{"schema": 1, "measurement": [], "depth": 5}',
    "a model": b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
    "a config": b'{"model_type": [], "architectures": 5}',
    "another config": b'{"model_type": "gpt2", "architectures": [{}], "n_layer": 1e30}',
}


def config_json(file):
    shutil.move(file, file.with_name("config.json"))
    models.load(file.parent)


def target(file):
    shutil.move(file, file.with_name("config.json"))
    (file.parent / "model.safetensors").write_bytes(b"")
    qk.targets.build(str(file.parent))


def outline(file):
    shutil.move(file, file.with_suffix(".json"))
    qk.targets.outline(str(file.with_suffix(".json")))


def tensors(file):
    (file.parent / "config.json").write_text('{"model_type": "gpt2"}')
    shutil.move(file, file.with_name("model.safetensors"))
    models.load(file.parent)


def index(file):
    (file.parent / "config.json").write_text('{"model_type": "gpt2"}')
    shutil.move(file, file.with_name("model.safetensors.index.json"))
    models.load(file.parent)


def tokenizer(file):
    shutil.move(file, file.with_name("tokenizer.json"))
    RunFolder(file.parent).read_tokenizer()


def manifest(file):
    shutil.move(file, file.with_name("manifest.json"))
    verified(file.parent)


def log(file):
    shutil.move(file, file.with_name("log.jsonl"))
    folder = file.parent
    folder.joinpath("config.toml").write_text("")
    folder.joinpath("environment.json").write_bytes(folder.joinpath("log.jsonl").read_bytes())
    write_report(folder)
    RunFolder(folder).cut_log(3)


def measurement(file):
    shutil.move(file, file.with_name("measurement.json"))
    read_record(file.parent)


READERS = {
    "config.json": config_json,
    "a folder as a target": target,
    "a configuration as a target": outline,
    "safetensors": tensors,
    "an index of shards": index,
    "tokenizer.json": tokenizer,
    "a text as a tokenizer": lambda file: load_tokenizer(file.read_text(encoding="latin-1")),
    "a TOML file": read_config,
    "a manifest": manifest,
    "a log": log,
    "measurement.json": measurement,
    "--baseline": read_baseline,
    "--store": Store,
}
ANSWERS = {  # what is no refusal, and should be none
    "a TOML file": {"nothing"},
    "--store": {"nothing"},
    "--baseline": set(),
    "a log": set(CONTENTS),
}


def refusal(reader, file):
    """The sentence in which a reader refuses a file, None where it takes it."""
    try:
        READERS[reader](file)
    except qk.QuerykeyError as error:
        return str(error)
    return None


@pytest.mark.parametrize("reader", READERS)
def test_a_malformed_file_is_refused_in_a_sentence(reader, tmp_path):
    said = {}
    for number, (what, content) in enumerate(CONTENTS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "file").write_bytes(content)
        said[what] = refusal(reader, folder / "file")
    assert {what for what in said if said[what] is None} == ANSWERS.get(reader, set())
    sentences = [words for words in said.values() if words is not None]
    assert all(words.strip() and words.isprintable() for words in sentences)
    assert not any("Traceback" in words for words in sentences)


@pytest.mark.parametrize("what", ["a folder", "a link to nothing", "a link to itself"])
@pytest.mark.parametrize("reader", sorted(set(READERS) - {"a text as a tokenizer", "a log"}))
def test_what_is_no_file_is_refused_or_not_there(reader, what, tmp_path):
    file = tmp_path / "file"
    if what == "a folder":
        file.mkdir()
    else:
        file.symlink_to("nowhere" if what == "a link to nothing" else "file")
    said = refusal(reader, file)
    if said is None:  # as if there were none
        assert reader in ("tokenizer.json", "measurement.json", "--store")
    else:
        assert said.isprintable()


def idx(magic, *sizes, data=b""):
    return struct.pack(">I", magic) + struct.pack(f">{len(sizes)}I", *sizes) + data


IMAGES, LABELS = idx(2051, 4, 5, 3, data=bytes(60)), idx(2049, 4, data=bytes([1, 2, 3, 4]))
SPOILED = {
    "empty": (b"", LABELS),
    "a header cut": (IMAGES[:10], LABELS),
    "pixels cut": (IMAGES[:-5], LABELS),
    "bytes behind": (IMAGES + b"x", LABELS),
    "swapped": (LABELS, IMAGES),
    "the other byte order": (struct.pack("<IIII", 2051, 4, 5, 3) + bytes(60), LABELS),
    "floats": (idx(0x0D03, 4, 5, 3, data=bytes(240)), LABELS),
    "2^96 pixels": (idx(2051, 2**32 - 1, 2**32 - 1, 2**32 - 1), LABELS),
    "255 axes": (b"\0\0\x08\xff" + b"\xff" * 1020, LABELS),
    "other labels": (IMAGES, idx(2049, 5, data=bytes(5))),
    "packed and cut": (gzip.compress(IMAGES)[:-9], LABELS),
    "packed and spoiled": (gzip.compress(IMAGES)[:20] + b"\xff" * 30, LABELS),
    "no labels": (IMAGES, None),
}


@pytest.mark.parametrize("what", SPOILED)
@pytest.mark.parametrize("split", ["train", "t10k"])
def test_a_malformed_idx_file_is_refused(what, split, tmp_path):
    for name in ("train", "t10k"):
        (tmp_path / f"{name}-images-idx3-ubyte").write_bytes(IMAGES)
        (tmp_path / f"{name}-labels-idx1-ubyte").write_bytes(LABELS)
    assert len(load_mnist(DataConfig("mnist", path=str(tmp_path))).train) == 4
    for kind, content in zip(("images-idx3", "labels-idx1"), SPOILED[what], strict=True):
        file = tmp_path / f"{split}-{kind}-ubyte"
        file.unlink()
        if content is not None:
            file.write_bytes(content)
    with pytest.raises(DataError):
        load_mnist(DataConfig("mnist", path=str(tmp_path)))


def rehashed(folder):
    """Checkpoints whose files hold something else, with the right hashes."""
    for file in folder.glob("checkpoints/*/manifest.json"):
        content = json.loads(file.read_text())
        for name in content["files"]:
            wrong = struct.pack("<Q", 7) + b'{"a":1}' + bytes(9)
            (file.parent / name).write_bytes(wrong)
            content["files"][name] = hashlib.sha256(wrong).hexdigest()
        file.write_text(json.dumps(content))


def a_folder_for_a_log(folder):
    (folder / "log.jsonl").unlink()
    (folder / "log.jsonl").mkdir()


def a_file_for_checkpoints(folder):
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").write_text("")


RUNS = {
    "checkpoints of no tensors": (rehashed, "holds no tensors: SafetensorError"),
    "a folder for a log": (a_folder_for_a_log, "log.jsonl` cannot be written: it is no file"),
    "a file for checkpoints": (a_file_for_checkpoints, "checkpoints` cannot be made: File exists"),
    "a config of bytes": (lambda f: (f / "config.toml").write_bytes(b"\xff"), "is no TOML"),
}


@pytest.mark.parametrize("what", RUNS)
def test_a_malformed_run_is_not_resumed(what, tmp_path):
    spoil, words = RUNS[what]
    config = small_config(tmp_path, steps=2)
    run(config, lambda progress: None)
    spoil(tmp_path / "run")
    with pytest.raises(qk.QuerykeyError, match=words):
        run(small_config(tmp_path, steps=3), lambda progress: None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('folder = ""', "folder names where the run is written; got ''"),
        ('folder = "a\\u0000"', "folder names where the run is written"),
        ("[model]\nlayers = 1000000000000", "layers is at most 10000; got 1000000000000"),
        ("[loop]\nsteps = " + "9" * 4400, "is no TOML"),
        ("[loop]\nsteps = 99999999999999999999", r"steps is at most 2\^62"),
        ("[optimizer]\nrate = nan", "rate"),
        ("[optimizer]\nbetas = [1]", "betas"),
        ("loop = [1]", "loop"),
        ("folder = 2020-01-01", "folder"),
    ],
)
def test_a_config_of_hostile_values_is_refused(content, words, tmp_path):
    (tmp_path / "a.toml").write_text(content)
    with pytest.raises(qk.QuerykeyError, match=words):
        read_config(tmp_path / "a.toml")
