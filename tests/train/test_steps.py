"""One step: how long a gradient may be, and how weights are drawn before the first one."""

import pytest
import torch
from tests.train.small import small_config

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
