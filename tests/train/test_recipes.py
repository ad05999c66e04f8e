"""Every ready recipe in a short form: small, on files that are made here, and it learns."""

import gzip
import struct

import numpy as np
import pytest

from querykey.train import read_config
from querykey.train.data.source import Data, Listed
from querykey.train.order import SampleOrder
from querykey.train.ranks import Ranks
from querykey.train.recipes import RECIPES
from querykey.train.run import make_trainer

SMALL = {
    "width": 16, "layers": 1, "heads": 2, "dropout": 0, "samples": 40, "vocabulary": 300,
    "steps": 40, "batch": 8, "warmup": 0, "rate": 5e-3, "schedule": "constant",
    "evaluate_every": 0,
}  # fmt: skip
LENGTHS = {"recall": 64, "copy": 9, "dates": 40, "inverted": 128, "entailed": 128}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with a text, MNIST's four files and parallel lines, all of them tiny."""
    place = tmp_path_factory.mktemp("texts")
    lines = [f"The {word} number {i} is here. It is a {word} again." for i in range(60)
             for word in ("cat", "dog")]  # fmt: skip
    (place / "text.txt").write_text("\n".join(lines))
    for split in ("train", "val"):
        (place / f"{split}.de").write_text("ein Hund\neine Katze\n" * 20)
        (place / f"{split}.en").write_text("a dog\na cat\n" * 20)
    chance = np.random.default_rng(0)
    for name, count in (("train", 40), ("t10k", 8)):
        labels = np.arange(count) % 10
        images = chance.integers(0, 60, (count, 28, 28)) + 19 * labels[:, None, None]
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = (
                b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            )
            content = gzip.compress(header + array.astype(np.uint8).tobytes())
            (place / f"{name}-{kind}-ubyte.gz").write_bytes(content)
    return place


def short(name, texts, folder):
    """Return the short form of a recipe: its own data, objective and model, all small."""
    recipe = RECIPES[name].config
    flags = {"folder": str(folder), **{key: str(value) for key, value in SMALL.items()}}
    data, patch = recipe["data"]["name"], recipe["model"].get("patch")
    flags["length"] = str(LENGTHS.get(data, 16))
    if data in ("stdlib", "text", "adjacent"):
        flags["path"] = str(texts / "text.txt")
    if data in ("mnist", "parallel"):
        flags["path"] = str(texts)
    if data == "snippets":
        flags["tokenizer"] = "bytes"  # of megabytes of source
    if patch:
        flags["patch"] = str(4 * patch if data == "mnist" else patch).replace("16", "14")
    if recipe.get("optimizer", {}).get("name") == "sgd":
        flags["rate"] = "0.05"
    return read_config(recipe, flags)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_learns_in_its_short_form(tmp_path, texts, name):
    if RECIPES[name].config["data"]["name"] == "digits":
        pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    if RECIPES[name].config["data"].get("tokenizer") == "bpe":
        pytest.importorskip("tokenizers", reason="BPE is trained by the package tokenizers")
    trainer = make_trainer(short(name, texts, tmp_path / "run"), Ranks())
    train, valid = (Listed([s.sample(i) for i in range(min(8, len(s)))])
                    for s in (trainer.data.train, trainer.data.valid))  # fmt: skip
    trainer.data = Data(train, valid, trainer.data.facts)  # few enough to be learned by heart
    trainer.order = SampleOrder(len(train))
    seen = trainer.batch_at(range(8))
    before = loss_of(trainer, seen)
    result = trainer.run()
    assert result.finished
    assert np.isfinite(result.evaluation["loss"])
    assert loss_of(trainer, seen) < 0.9 * before


def test_sentences_are_told_from_those_with_the_same_words_in_another_order(tmp_path):
    pytest.importorskip("tokenizers", reason="BPE is trained by the package tokenizers")
    flags = {"folder": str(tmp_path / "run"), "samples": "10000", "steps": "350", "save_every": "0"}
    flags |= {"evaluate_every": "0"}
    result = make_trainer(read_config(RECIPES["inverted"].config, flags), Ranks()).run()
    assert result.evaluation["correct"] > 0.9  # 0.5 by chance, and by counting words


def loss_of(trainer, batch) -> float:
    trainer.model.eval()
    sums = trainer.sums(batch)
    return sum(float(sums[name].detach()) for name in trainer.objective.losses)


def test_there_is_a_recipe_for_every_task_that_is_measured():
    named = {
        "characters", "snippets", "dates", "mnist", "german-english", "masked-words", "adjacent",
        "words-and-pairs", "recall", "recall-quadratic", "recall-elu", "recall-quadratic-decay",
        "inverted", "entailed",
    }  # fmt: skip
    assert named <= set(RECIPES)
