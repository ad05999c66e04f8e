"""What a report says of small loops: what was watched, which module it means, and why."""

import pytest
import torch
from torch import nn

import querykey as qk


class Drops(nn.Module):
    """A layer behind a dropout by a function that gets `training` by its place."""

    def __init__(self, told: bool | None):
        super().__init__()
        self.layer, self.told = nn.Linear(5, 3), told

    def forward(self, x):
        on = self.training if self.told is None else self.told
        return self.layer(nn.functional.dropout(x, 0.5, on))


class Looks(nn.Module):
    """Attention of tokens to themselves, with scores that leave hardly more than a key."""

    def forward(self, x):
        return (40 * x @ x.transpose(1, 2)).softmax(-1) @ x


def report(model: nn.Module, steps: int = 3, rate: float = 0.1):
    def run():
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(steps):
            optimizer.zero_grad()
            model.train()(torch.randn(4, 7, 5)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                model.eval()(torch.randn(4, 7, 5))

    torch.manual_seed(0)
    return qk.check_training(run)


def test_what_was_watched_is_named():
    about = report(nn.Linear(5, 3)).about
    assert about == {
        "model": "Linear", "optimizer": "SGD", "watched": "3 backward passes, 3 steps"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("told", "verdict"), [(None, "not-applicable"), (False, "not-applicable"), (True, "advice")]
)
def test_a_dropout_by_a_function_is_told_of_training_by_place_too(told, verdict):
    finding = report(Drops(told)).law("training.mode")
    assert finding.verdict == verdict, finding.note
    assert ("pass it training=self.training" in finding.note) == bool(told)


@pytest.mark.parametrize("steps", [2, 3])
def test_two_steps_at_a_rate_of_0_are_enough_to_say_so(steps):
    finding = report(nn.Linear(5, 3), steps, rate=0.0).law("training.update")
    assert finding.verdict == "violated"
    assert finding.note.endswith("do not move in any step: their learning rate is 0")


def test_attention_that_looks_at_one_key_is_named_by_its_module():
    model = nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.Identity(), Looks()), nn.Linear(5, 3))
    finding = report(model).law("training.saturation")
    assert finding.verdict == "advice"
    assert finding.module == "1.1"
