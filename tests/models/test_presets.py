"""Every preset is a target, builds, runs and can be described."""

import pytest
import torch

from querykey.models import PRESETS
from querykey.targets import PRESETS as TARGETS
from querykey.targets import build


def test_every_preset_is_a_target():
    ours = {name for name, where in TARGETS.items() if where.startswith("querykey.models")}
    assert ours == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_it_builds_and_runs(name):
    target = build(name)
    out = target.run(target.example(batch=2, length=7))
    assert isinstance(out, torch.Tensor)
    assert torch.isfinite(out).all()
    assert len(out) == 2


def test_a_wrong_name_is_refused():
    from querykey.models import preset

    with pytest.raises(ValueError, match="there is no preset 'gtp'"):
        preset("gtp")
