"""Documents packed into one row are read, and judged, as if each stood alone."""

from functools import partial

import numpy as np
import pytest
import torch

from querykey.models import build, preset
from querykey.train import ConfigError, read_config, run
from querykey.train.objectives.objective import IGNORED
from querykey.train.objectives.text import HiddenTokens, NextToken
from querykey.train.order import sample_generator
from querykey.train.parts import load_data
from querykey.train.ranks import Ranks
from querykey.train.run import make_trainer

SIZES = {"width": 16, "heads": 2, "layers": 2, "vocabulary": 31}
LENGTHS = (5, 1, 9, 2)  # of the documents in one row


def packed_row() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, 31, (2, sum(LENGTHS)), generator=torch.Generator().manual_seed(1))
    numbers = torch.repeat_interleave(torch.tensor([4, 0, 7, 3]), torch.tensor(LENGTHS))
    return ids, numbers.expand(2, -1)


@pytest.mark.parametrize(
    "name", ["gpt", "llama", "mistral", "alibi", "elu", "quadratic-decay", "bert"]
)
def test_a_document_in_a_row_is_read_as_if_it_stood_alone(name):
    torch.manual_seed(0)
    model = build(preset(name, SIZES)).double().eval()
    for parameter in model.parameters():  # so large that order and neighbours matter
        torch.nn.init.normal_(parameter, std=0.3)
    ids, documents = packed_row()
    together = model(ids, documents=documents)
    alone = torch.cat([model(part) for part in ids.split(LENGTHS, 1)], 1)
    assert (together - alone).abs().max() < 1e-10
    assert (model(ids) - alone).abs().max() > 1e-2
    weight = next(model.parameters())
    gradients = [torch.autograd.grad(out.square().sum(), weight)[0] for out in (together, alone)]
    assert (gradients[0] - gradients[1]).abs().max() < 1e-10 * gradients[1].abs().max()


def test_padding_and_documents_together():
    torch.manual_seed(0)
    model = build(preset("bert", SIZES)).double().eval()
    ids, documents = packed_row()
    real = torch.arange(ids.shape[1]) < torch.tensor([[17], [14]])
    whole = model(ids, real, documents=documents)
    alone = model(ids[1:, 6:14])
    assert (whole[1, 6:14] - alone[0]).abs().max() < 1e-10


def test_documents_of_another_shape_or_with_a_state_are_refused():
    model = build(preset("gpt", SIZES))
    ids, documents = packed_row()
    with pytest.raises(
        ValueError, match=r"documents are \(2, 17\) on cpu, as the token ids are; got"
    ):
        model(ids, documents=documents[:, 1:])
    layer = model.stack.layers[0].attention
    with pytest.raises(ValueError, match="with a state every row is one document"):
        layer(torch.zeros(2, 17, 16), state=layer.empty_state(2), documents=documents)


@pytest.fixture
def place(tmp_path):
    """A folder of files whose every letter says in which file, and where in it, it stands."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, length in enumerate((30, 3, 70, 1, 41, 300)):
        text = "".join(chr(0x4E00 + 400 * number + i) for i in range(length))
        (folder / f"{number}.txt").write_text(text)
    return tmp_path


def config(place, objective="causal", model="gpt", **data):
    sections = {
        "folder": str(place / "run"),
        "data": {"name": "text", "path": str(place / "texts"), "tokenizer": "characters"}
        | {"length": 20, "documents": True, **data},
        "model": {"name": model, "layers": 1, "heads": 2, "width": 16},
        "objective": {"name": objective},
        "loop": {"steps": 3, "batch": 4, "precision": "float64"},
    }
    return read_config(sections)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_samples_say_which_tokens_are_of_one_file(place, split):
    data = load_data(config(place), place / "run" / "data")
    source, decode = getattr(data, split), data.facts.tokenizer.decode
    several = 0
    for epoch in range(2):
        for index in range(len(source)):
            sample = source.sample(index, epoch)
            files = [(ord(letter) - 0x4E00) // 400 for letter in decode(sample["tokens"])]
            changes = [a != b for a, b in zip(files[1:], files[:-1], strict=True)]
            told = sample["documents"]
            assert (np.diff(told) > 0).tolist() == changes
            several += any(changes)
    assert (several > 0) == (split == "train")  # the last tenth is within the last file


def test_the_first_token_of_a_document_is_not_predicted_from_another():
    sample = {"tokens": [5, 6, 7, 8, 9], "documents": [0, 0, 1, 2, 2]}
    example = NextToken().example(sample, partial(sample_generator, 0))
    assert example["labels"].tolist() == [6, IGNORED, IGNORED, 9]
    assert example["documents"].tolist() == [0, 0, 1, 2]
    hidden = HiddenTokens(0.5, 40, 40, length=4).example(sample, partial(sample_generator, 0))
    assert hidden["documents"].tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(("objective", "model"), [("causal", "gpt"), ("masked", "bert")])
def test_packed_rows_are_trained_on(place, objective, model):
    made = config(place, objective, model)
    trainer = make_trainer(made, Ranks())
    batch = trainer.batch_at(range(16))
    assert batch.tensors["documents"].shape == batch.tensors["ids"].shape
    with torch.no_grad():
        told = trainer.sums(batch)["loss"]
        del batch.tensors["documents"]
        assert trainer.sums(batch)["loss"] != told  # the model was told
    assert run(made).finished


def test_what_cannot_tell_documents_apart_is_refused(place):
    with pytest.raises(ConfigError, match="and the data `copy` are none; leave it out"):
        load_data(config(place, name="copy", path=""), place)
    (place / "own.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table, self.out = nn.Embedding(500, 8), nn.Linear(8, 500)\n"
        "    def forward(self, x, **more):\n"
        "        return self.out(self.table(x).cumsum(1))\n"
    )
    made = config(place, model=f"{place / 'own.py'}:Own")
    with pytest.raises(ConfigError, match="move when only tokens of another document change"):
        make_trainer(made, Ranks())
