"""Objectives: what is hidden and judged, and that every one of them trains."""

from functools import partial

import numpy as np
import pytest
import torch

from querykey.models import load
from querykey.train import ConfigError, read_config, run
from querykey.train.objectives.images import HiddenPatches, Reconstruction
from querykey.train.objectives.objective import IGNORED, cross_entropy_sum
from querykey.train.objectives.text import HiddenTokens, NextToken, Translation
from querykey.train.order import sample_generator
from querykey.train.ranks import Ranks
from querykey.train.run import make_trainer

MIXED = {
    "causal": ("copy", "gpt"),
    "masked": ("text", "bert"),
    "words-and-pairs": ("inverted", "bert"),
    "classes": ("inverted", "bert"),
    "translation": ("dates", "transformer"),
    "images": ("digits", "vit"),
    "autoencoding": ("vectors", "autoencoder"),
    "denoising": ("digits", "denoising-autoencoder"),
    "hidden-features": ("vectors", "masked-autoencoder"),
    "hidden-patches": ("digits", "masked-patches"),
}


def config(tmp_path, objective, data, model, **loop):
    (tmp_path / "text.txt").write_text("to be, or not to be, that is the question. " * 60)
    return read_config(
        {
            "folder": str(tmp_path / "run"),
            "data": {"name": data, "length": 128 if data == "inverted" else 40, "samples": 8},
            "model": {"name": model, "width": 16, "heads": 2, "layers": 1, "patch": 2},
            "objective": {"name": objective},
            "optimizer": {"rate": 4e-3, "schedule": "constant"},
            "loop": {"steps": 60, "batch": 8, "evaluate_every": 0, **loop},
        }
        | (
            {"data": {"name": "text", "length": 40, "path": str(tmp_path / "text.txt")}}
            if data == "text"
            else {}
        )
    )


@pytest.mark.parametrize("objective", MIXED)
def test_every_objective_learns_something(tmp_path, objective):
    if MIXED[objective][0] == "digits":
        pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    more = {"steps": 150, "batch": 32} if objective == "images" else {}
    trainer = make_trainer(config(tmp_path, objective, *MIXED[objective], **more), Ranks())
    seen = trainer.batch_at(range(8))
    before = loss_of(trainer, seen)
    assert np.isfinite(trainer.run().evaluation["loss"])
    assert loss_of(trainer, seen) < 0.9 * before


def loss_of(trainer, batch) -> float:
    sums = trainer.sums(batch)
    return sum(float(sums[name].detach()) for name in trainer.objective.losses)


def test_words_and_pairs_are_judged_at_once(tmp_path):
    made = config(tmp_path, "words-and-pairs", "inverted", "bert", batch=6, pieces=3)
    made = read_config(made.as_dict(), {"precision": "float64"})
    trainer = make_trainer(made, Ranks())
    special = trainer.data.facts.tokenizer.special
    batch = trainer.batch_at(range(6))
    ids, hidden, labels = (batch.tensors[name] for name in ("ids", "hidden", "labels"))
    judged = hidden != IGNORED
    assert (ids == special["mask"]).sum() > 0.6 * judged.sum() > 0
    assert not torch.isin(hidden[judged], torch.tensor(list(special.values()))).any()
    assert (ids[:, 0] == special["begin"]).all()
    # Both means, from the model's own scores.
    with torch.no_grad():
        words, pairs = trainer.model(ids, batch.tensors.get("real"), batch.tensors["types"])
    word_loss = -words.log_softmax(-1)[judged].gather(1, hidden[judged][:, None]).mean()
    pair_loss = -pairs.log_softmax(-1).gather(1, labels[:, None]).mean()
    with torch.no_grad():
        pieces = trainer.pieces(0)
    assert len(pieces) == 3
    trainer.model.eval()
    assert trainer.gradients(pieces) == pytest.approx(float(word_loss + pair_loss), abs=1e-9)
    result = trainer.evaluate()
    assert result["loss"] == pytest.approx(result["words"] + result["pairs"])
    assert 0 <= result["pairs_correct"] <= 1


def test_a_model_without_two_heads_is_refused_for_words_and_pairs(tmp_path):
    with pytest.raises(ConfigError, match="`words-and-pairs` trains an encoder, such as `bert`"):
        make_trainer(config(tmp_path, "words-and-pairs", "inverted", "gpt"), Ranks())


def test_a_model_with_two_heads_is_written_and_read_again(tmp_path):
    made = config(tmp_path, "words-and-pairs", "inverted", "bert", steps=1)
    trainer = make_trainer(made, Ranks())
    run(made)
    trainer.resume()
    ids = torch.arange(12)[None]
    for mine, theirs in zip(trainer.model.eval()(ids), load(made.folder)(ids), strict=True):
        assert torch.equal(mine, theirs)


def test_the_share_of_hidden_patches_is_that_of_the_config(tmp_path):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    for share, visible in ((0, 4), (0.5, 8), (0.9, 2)):  # of 16 patches
        made = config(tmp_path, "hidden-patches", "digits", "masked-patches")
        made = read_config(made.as_dict(), {"share": str(share)})
        trainer = make_trainer(made, Ranks())
        assert trainer.objective.visible == visible
        assert trainer.model.config.visible == visible
        trainer.advance()
    with pytest.raises(ConfigError, match=r"a share of 0\.99 leaves 0 visible"):
        make_trainer(read_config(made.as_dict(), {"share": "0.99"}), Ranks())


def test_next_tokens_are_those_one_place_further():
    sample = {"tokens": [5, 6, 7, 8], "judged": np.array([False, False, True, True])}
    example = NextToken().example(sample, partial(sample_generator, 0))
    assert example["ids"].tolist() == [5, 6, 7]
    assert example["labels"].tolist() == [IGNORED, 7, 8]
    batch = NextToken().batch(
        [example, NextToken().example({"tokens": [1, 2]}, partial(sample_generator, 0))]
    )
    assert batch.tensors["ids"].tolist() == [[5, 6, 7], [1, 0, 0]]
    assert batch.tensors["labels"].tolist() == [[IGNORED, 7, 8], [2, IGNORED, IGNORED]]
    assert batch.terms == {"loss": 3, "correct": 3}


def test_tokens_are_hidden_as_bert_hides_them():
    objective, tokens = HiddenTokens(0.15, mask_token=50, vocabulary=50, length=50), np.arange(50)
    shares = np.zeros(3)
    for seed in range(800):
        example = objective.example({"tokens": tokens}, partial(sample_generator, seed))
        chosen = example["labels"] != IGNORED
        assert (example["labels"][chosen] == tokens[chosen]).all()
        assert (example["ids"][~chosen] == tokens[~chosen]).all()
        masked, kept = (example["ids"] == x for x in (50, tokens))
        shares += [chosen.mean(), (chosen & masked).mean(), (chosen & kept).mean()]
    chosen, masked, kept = shares / 800
    assert abs(chosen - 0.15) < 0.01
    assert abs(masked / chosen - 0.8) < 0.02
    assert abs(kept / chosen - 0.1) < 0.02  # a tenth, and what was replaced by itself


def test_a_target_is_shifted_behind_its_start_and_ends():
    example = Translation(start=9, end=8).example(
        {"source": [1, 2, 3], "target": [4, 5]}, partial(sample_generator, 0)
    )
    assert example["target"].tolist() == [9, 4, 5]
    assert example["labels"].tolist() == [4, 5, 8]


def test_only_hidden_features_are_judged():
    x = np.arange(1, 101, dtype=np.float32)
    example = Reconstruction(share=0.3).example({"vector": x}, partial(sample_generator, 0))
    assert ((example["seen"] == 0) == example["judged"]).all()
    assert 15 < example["judged"].sum() < 45
    noisy = Reconstruction(noise=0.5).example({"vector": x}, partial(sample_generator, 0))
    assert 0.3 < (noisy["seen"] - x).std() < 0.7
    assert noisy["judged"].all()


def test_hidden_patches_are_judged_as_the_model_judges_them():
    from querykey.models import build, preset

    model = build(preset("masked-patches", {"image": 8, "patch": 2, "width": 16, "heads": 2}))
    objective = HiddenPatches(model.config.tokens, model.config.visible)
    image = np.random.default_rng(0).standard_normal((1, 8, 8)).astype(np.float32)
    examples = [objective.example({"image": image}, partial(sample_generator, i)) for i in range(3)]
    batch = objective.batch(examples)
    mean = objective.sums(model, batch)["loss"] / batch.terms["loss"]
    whole = torch.stack([torch.from_numpy(image)] * 3)
    errors = []
    for row, example in enumerate(examples):
        order = torch.from_numpy(example["order"])[None]
        shown = order[:, : model.config.visible]
        guess = model.decode(model.encode(whole[row : row + 1], shown), shown)
        hidden = order[0, model.config.visible :]
        truth = model.cut(whole[row : row + 1])
        errors.append((guess - truth)[0, hidden].square().mean())
    assert torch.allclose(mean, torch.stack(errors).mean(), rtol=1e-5)


def test_cross_entropy_is_summed_over_what_is_judged():
    scores = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [5.0, 5.0]]])
    labels = torch.tensor([[0, 0, IGNORED]])
    assert set(cross_entropy_sum(scores, labels)) == {"loss"}  # hits are counted in evaluations
    with torch.no_grad():
        sums = cross_entropy_sum(scores, labels)
    expected = np.log(1 + np.exp(-2)) + np.log(1 + np.exp(1))
    assert abs(float(sums["loss"]) - expected) < 1e-6
    assert int(sums["correct"]) == 1


@pytest.mark.parametrize("pieces", [1, 2, 4, 8, 16, 32])
def test_pieces_of_a_step_add_up_to_its_gradient(tmp_path, pieces):
    """Unequal lengths, float64: what the accumulation law asks of anyone's loop."""
    made = config(tmp_path, "causal", "copy", "gpt", batch=32, pieces=pieces, precision="float64")
    trainer = make_trainer(made, Ranks())
    batches = trainer.pieces(0)
    assert len(batches) == pieces
    trainer.gradients(batches)
    # The definition, one sample at a time.
    samples = [trainer.batch_at(range(i, i + 1)) for i in range(32)]
    counts = [sample.terms["loss"] for sample in samples]
    assert len(set(counts)) > 3
    losses = [trainer.objective.sums(trainer.model, sample)["loss"] for sample in samples]
    parameters = list(trainer.model.parameters())
    wanted = torch.autograd.grad(sum(losses) / sum(counts), parameters)
    for parameter, gradient in zip(parameters, wanted, strict=True):
        assert (parameter.grad - gradient).abs().max() < 1e-10


def test_a_hugging_face_model_and_anyones_are_trained(tmp_path):
    pytest.importorskip("transformers", reason="hf:gpt2 is built by transformers")
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table, self.out = nn.Embedding(27, 8), nn.Linear(8, 27)\n"
        "    def forward(self, x):\n"
        "        return None, self.out(self.table(x))\n"
        "make = Own\n"
    )
    for number, name in enumerate(("hf:gpt2:causal", f"{tmp_path / 'own.py'}:make")):
        made = config(tmp_path, "causal", "copy", name, seed=number)
        made = read_config(made.as_dict(), {"folder": str(tmp_path / f"run{number}")})
        assert run(made).finished


def test_the_weights_of_an_architecture_follow_from_the_seed(tmp_path):
    pytest.importorskip("transformers", reason="hf:gpt2 is built by transformers")
    weights = [
        next(make_trainer(config(tmp_path, "causal", "copy", "hf:gpt2", seed=seed), Ranks())
             .model.parameters())
        for seed in (1, 1, 2)
    ]  # fmt: skip
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_share_of_patches_reaches_the_model_of_a_target(tmp_path):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    (tmp_path / "own.py").write_text(
        "from querykey.models import build, preset\n"
        "make = lambda: build(preset('masked-patches', {'image': 8, 'patch': 2, 'width': 16}))\n"
    )
    target = f"{tmp_path / 'own.py'}:make"
    made = config(tmp_path, "hidden-patches", "digits", target).as_dict()
    trainer = make_trainer(read_config(made, {"share": "0.5"}), Ranks())
    assert (trainer.objective.visible, trainer.batch_at(range(2)).terms) == (8, {"loss": 2 * 32})
    with pytest.raises(ConfigError, match=r"a share of 0\.99 of 16 patches leaves 0 visible"):
        make_trainer(read_config(made, {"share": "0.99"}), Ranks())
