"""One step: how long a gradient may be, and how weights are drawn before the first one."""

import copy

import pytest
import torch
from tests.train.small import small_config
from torch import nn

from querykey.train import ConfigError
from querykey.train.ranks import Ranks
from querykey.train.run import make_trainer

PLAIN = {"dropout": 0, "precision": "float64", "optimizer-name": "sgd", "decay": 0, "warmup": 0}


@pytest.mark.parametrize("times", [0.5, 2.0, 0.0])
def test_a_gradient_is_shortened_to_the_largest_norm_and_never_lengthened(tmp_path, times):
    whole = make_trainer(small_config(tmp_path / "whole", **PLAIN, clip=0), Ranks())
    norm = whole.advance().norm
    trainer = make_trainer(small_config(tmp_path / "clip", **PLAIN, clip=times * norm), Ranks())
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    progress = trainer.advance()
    assert progress.norm == pytest.approx(norm, rel=1e-12)  # as it was before
    moved = [p.detach() - before[name] for name, p in trainer.model.named_parameters()]
    length = float(torch.cat([part.flatten() for part in moved]).norm())
    wanted = norm * (min(times, 1) if times else 1)
    assert length / progress.rate == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(("precision", "apart"), [("float32", 1e-5), ("float64", 1e-6)])
def test_adam_moves_as_one_whose_gradients_were_shortened_before_it(tmp_path, precision, apart):
    flags = PLAIN | {"optimizer-name": "adamw", "pieces": 1, "precision": precision}
    free = make_trainer(small_config(tmp_path / "free", **flags, clip=0), Ranks())
    norms = [free.advance().norm for _ in range(4)]
    clip = sum(sorted(norms)[1:3]) / 2  # below some of them, above others
    trainer = make_trainer(small_config(tmp_path / "clip", **flags, clip=clip), Ranks())
    twin = copy.deepcopy(trainer.model)
    plain = torch.optim.AdamW(twin.parameters(), betas=(0.9, 0.99), weight_decay=0.0)
    shortened = []
    for step in range(8):
        (batch,) = trainer.pieces(step)
        loss = trainer.objective.sums(twin, batch)["loss"] / batch.terms["loss"]
        loss.backward()
        shortened.append(bool(nn.utils.clip_grad_norm_(twin.parameters(), clip) > clip))
        plain.param_groups[0]["lr"] = trainer.advance().rate
        plain.step()
        plain.zero_grad()
    assert set(shortened) == {True, False}
    for name, parameter in trainer.model.named_parameters():  # a key's bias moves by noise alone
        wanted = plain.state[twin.get_parameter(name)]["exp_avg"]
        found = trainer.optimizer.state[parameter]["exp_avg"]
        assert (found - wanted).abs().max() < apart * clip, name


def test_weights_are_drawn_by_their_inputs_where_the_config_says_so(tmp_path):
    narrow, wide = (
        make_trainer(small_config(tmp_path / kind, weights=kind, width=64), Ranks()).model
        for kind in ("paper", "inputs")
    )
    for name, inputs in (("attention.q", 64), ("mlp.down", 256)):
        for model, spread in ((narrow, 0.02), (wide, inputs**-0.5)):
            weight = model.get_parameter(f"stack.blocks.0.{name}.weight")
            assert float(weight.detach().std()) == pytest.approx(spread, rel=0.05)
    assert float(wide.embed.positions.weight.detach().std()) == pytest.approx(1 / 8, rel=0.1)
    foreign = small_config(tmp_path / "hf", weights="inputs", **{"model-name": "hf:gpt2"})
    with pytest.raises(
        ConfigError, match=r"model\.weights is for presets; `hf:gpt2` draws its own"
    ):
        make_trainer(foreign, Ranks())
