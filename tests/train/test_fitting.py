"""What does not fit each other is one sentence before the first step; what fits is trained."""

import re

import pytest
import torch

from querykey.cli import run as qk
from querykey.train import ConfigError, read_config, run
from querykey.train.objectives.objective import scores_of
from querykey.train.ranks import Ranks
from querykey.train.run import make_trainer

OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, ids=256, scores=256, positions=99):
        super().__init__()
        self.table, self.places = nn.Embedding(ids, 8), nn.Embedding(positions, 8)
        self.out, self.drop = nn.Linear(8, scores), nn.Dropout(0.5)
    def hidden(self, x):
        return self.drop(self.table(x) + self.places(torch.arange(x.shape[1])))
    def forward(self, x):
        return self.out(self.hidden(x))

class Pair(Own):
    def forward(self, x):
        return torch.zeros(len(x), 2, x.shape[1], x.shape[1]), self.out(self.hidden(x))
class LastOnly(Own):
    def forward(self, x):
        return self.out(self.hidden(x))[:, -1:]
class TokensFirst(Own):
    def forward(self, x):
        return self.out(self.hidden(x)).transpose(0, 1)
class Peeking(Own):
    def forward(self, x):
        return self.out(self.hidden(x) + 0.01 * self.table(x).flip(1))
class Odd(Own):
    def forward(self, x):
        return {"answers": x}
class Complex(Own):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.ones(8, dtype=torch.complex64))
    def forward(self, x):
        return self.out((self.hidden(x) * self.turn).real)
class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(100, 1)
    def forward(self, x):
        return self.layer(x)
class Frozen(nn.Module):
    def forward(self, x):
        return torch.zeros(*x.shape, 256)

class Detached(Own):
    def forward(self, x):
        return super().forward(x).detach()
class WithoutGradientsInEvaluation(Own):
    def forward(self, x):
        with torch.set_grad_enabled(self.training):
            return super().forward(x)
class Sparse(Own):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 8, sparse=True)
class TwiceInPlace(Own):
    def forward(self, x):
        y = self.out(self.hidden(x)).exp()
        y += y.square().detach()
        return y
class Extra(Own):
    def get_extra_state(self):
        return {"calls": 3}
    def set_extra_state(self, state):
        pass
class Late(Own):
    calls = 0
    def forward(self, x):
        Late.calls += self.training
        if Late.calls == 2:
            raise SystemExit(3) if self.leaves else KeyError("late")
        return super().forward(x)
    leaves = False

def leaving():
    Late.leaves = True
    return Late()
def nowhere():
    with torch.device("meta"):
        return Own()

few_ids = lambda: Own(ids=200)
few_scores = lambda: Own(scores=200)
short = lambda: Own(positions=8)
off = lambda: Own().eval()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("to be, or not to be, that is the question. " * 60)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "folder").mkdir()
    return tmp_path


def words(objective: str, data: str, model: str) -> list[str]:
    names = ["--objective-name", objective, "--data-name", data, "--model-name", model]
    length = 128 if data == "inverted" else 40
    sizes = f"--samples 20 --length {length} --width 16 --heads 2 --layers 1 --patch 2 --steps 2"
    path = ["--path", "text.txt"] if data in ("text", "adjacent") else []
    return ["train", *names, *sizes.split(), *path]


@pytest.mark.parametrize(
    ("objective", "data", "model", "sentence"),
    [
        ("causal", "vectors", "gpt", "needs samples with tokens, and those of the data `vectors`"),
        ("causal", "dates", "gpt", "data.name for it is stdlib or text or copy or recall"),
        ("masked", "copy", "bert", "the objective `masked` needs samples with tokens, tokenizer"),
        ("classes", "text", "bert", "the objective `classes` needs samples with tokens, label"),
        ("translation", "copy", "transformer", "needs samples with source, target"),
        ("images", "text", "vit", "needs samples with image, label"),
        ("autoencoding", "text", "autoencoder", "data.name for it is mnist or digits or vectors"),
        ("hidden-patches", "vectors", "masked-patches", "needs samples with image"),
        ("causal", "text", "bert", "its scores move when only later tokens change"),
        ("causal", "text", "transformer", "missing 1 required positional argument: 'target'"),
        ("classes", "inverted", "gpt", "the objective `classes` trains an encoder, such as `bert`"),
        ("translation", "dates", "gpt", "with the objective `translation` on the data `dates`"),
        ("autoencoding", "vectors", "gpt", "on the data `vectors` (100 features, 2 classes): "),
        ("autoencoding", "vectors", "own.py:Narrow", "returned (2, 1) for vectors of (2, 100)"),
        ("causal", "text", "own.py:few_ids", "`text` (256 tokens, rows of 40), its last token"),
        (
            "causal",
            "text",
            "own.py:few_ids",
            "; its tables: `table` of 200 rows, `places` of 99 rows",
        ),
        ("causal", "text", "own.py:few_scores", "Target 255 is out of bounds"),
        ("causal", "text", "own.py:short", "(256 tokens, rows of 40): "),
        ("causal", "text", "own.py:LastOnly", "(2, 1, 256), where scores are (2, 40, any number)"),
        ("causal", "text", "own.py:TokensFirst", "(40, 2, 256), where scores are (2, 40, any"),
        ("causal", "text", "own.py:Peeking", "so it sees the tokens that it is to predict"),
        ("causal", "text", "own.py:Odd", "a dict of `answers` without scores; a model"),
        (
            "causal",
            "text",
            "own.py:Detached",
            "step 1 failed: the model's loss cannot be differentiated: Ru",
        ),
        (
            "causal",
            "text",
            "own.py:Sparse",
            "the gradient of `table` is sparse, and the optimizers",
        ),
        (
            "causal",
            "text",
            "own.py:TwiceInPlace",
            "cannot be differentiated: RuntimeError: one of the",
        ),
        ("causal", "text", "own.py:Extra", "its state dict holds a dict as `_extra_state`, and"),
        ("causal", "text", "own.py:nowhere", "`table.weight` is on the device `meta`, where it"),
        ("causal", "text", "own.py:Late", "step 2 failed: the model raised KeyError: 'late' (own"),
        ("causal", "text", "own.py:leaving", "step 2 failed: the model raised SystemExit: 3 (own"),
        ("causal", "text", "own.py", "`own.py` names a file but no factory; write `own.py:FACTO"),
        ("causal", "text", "folder", "folder `folder` has no config.json"),
        ("causal", "text", "own.py:Frozen", "a Frozen, has no parameters to train"),
        ("causal", "text", "own.py:Complex", "its parameter `turn` is complex, and training is of"),
        ("images", "digits", "hf:vit", "on the data `digits` (64 features, 10 classes): "),
    ],
)
def test_what_does_not_fit_is_one_sentence(place, capsys, objective, data, model, sentence):
    assert qk(words(objective, data, model)) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("qk: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("model", "sizes", "sentence"),
    [
        ("vit", {"patch": 3}, "a height of 8 pixels is not cut evenly into patches of 3"),
        ("vit", {"patch": 2, "heads": 3}, "the model `vit` cannot be built: "),
        ("vit", {"patch": 2, "width": 0}, "width is at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_one_sentence(place, model, sizes, sentence):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    sections = {"data": {"name": "digits"}, "objective": {"name": "images"}}
    with pytest.raises(ConfigError) as error:
        run(read_config(sections | {"model": {"name": model, "width": 16, **sizes}}))
    assert sentence in str(error.value)


def test_gradients_are_asked_in_training_mode_alone(place):
    assert qk(words("causal", "text", "own.py:WithoutGradientsInEvaluation")) == 0


def test_a_batch_beyond_memory_is_one_sentence(place, capsys):
    given = [*words("causal", "text", "gpt"), "--batch"]
    assert qk([*given, str(10**14)]) == 2
    sentence = r"qk: loop.batch counts samples, and the 10{14} of a step take 64 PB before any"
    assert re.match(sentence, capsys.readouterr().err)
    assert qk([*given, "200"]) == 0  # more than there are


def test_objectives_of_tokens_take_pairs_and_snippets_too(place):
    for number, (objective, model) in enumerate((("causal", "gpt"), ("masked", "bert"))):
        flags = words(objective, "inverted", model)[1:]
        pairs = dict(zip([flag[2:] for flag in flags[::2]], flags[1::2], strict=True))
        assert run(read_config(None, pairs | {"folder": f"run{number}"})).finished


def test_scores_are_the_part_of_a_tuple_that_has_their_shape(place):
    assert qk([*words("causal", "text", "own.py:Pair"), "--folder", "pair"]) == 0
    maps, scores = torch.zeros(2, 3, 5, 5), torch.zeros(2, 5, 7)
    assert scores_of((None, maps, scores), torch.Size([2, 5])) is scores
    assert scores_of({"logits": scores}, torch.Size([2, 5])) is scores


def test_a_target_is_trained_in_training_mode(place):
    flags = {"data-name": "text", "path": "text.txt", "model-name": "own.py:off", "length": "9"}
    trainer = make_trainer(read_config(None, flags), Ranks())
    assert trainer.model.training
    assert trainer.model.drop.training


def test_a_hugging_face_architecture_gets_the_vocabulary_of_the_data(place):
    pytest.importorskip("transformers", reason="hf:gpt2 is built by transformers")
    flags = {"data-name": "text", "path": "text.txt", "model-name": "hf:gpt2:causal", "length": "9"}
    trainer = make_trainer(read_config(None, flags), Ranks())
    assert trainer.model.get_input_embeddings().num_embeddings == 256
