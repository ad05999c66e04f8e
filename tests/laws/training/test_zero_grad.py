"""No gradient is applied twice: every way of clearing is accepted, and none at all is told."""

import pytest
import torch
from torch import nn

import querykey as qk

CLEARING = {
    "zero_grad": lambda model, optimizer: optimizer.zero_grad(),
    "to zeros": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "of the model": lambda model, optimizer: model.zero_grad(),
    "by hand": lambda model, optimizer: [setattr(p, "grad", None) for p in model.parameters()],
    "in data": lambda model, optimizer: [
        p.grad.data.zero_() for p in model.parameters() if p.grad is not None
    ],
}
OPTIMIZERS = {
    "SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW, "LBFGS": torch.optim.LBFGS,
}  # fmt: skip


def loop(clear, kind="SGD", closure=False, pieces=1, steps=3):
    def run():
        model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
        optimizer = OPTIMIZERS[kind](model.parameters(), lr=0.01)

        def evaluate():
            clear(model, optimizer)
            for _ in range(pieces):
                inputs, labels = torch.randn(11, 5), torch.randint(3, (11,))
                loss = nn.functional.cross_entropy(model(inputs), labels) / pieces
                loss.backward()
            return loss

        for _ in range(steps):
            if closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()

    return run


def finding(run, **given):
    return qk.check_training(run, **given).law("training.zero-grad")


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_loop_that_never_clears_is_found(kind, closure, pieces):
    if kind == "LBFGS" and not closure:  # which it refuses
        with pytest.raises(TypeError, match="closure"):
            loop(CLEARING["zero_grad"], kind)()
        return
    broken = finding(loop(lambda *_: None, kind, closure, pieces))
    assert broken.verdict == "violated"
    assert f"step 2 of {kind} applies again what an earlier step applied" in broken.note
    assert "test_zero_grad.py" in (broken.source or "")
    assert finding(loop(CLEARING["zero_grad"], kind, closure, pieces)).verdict == "holds"


@pytest.mark.parametrize("name", CLEARING)
def test_every_way_of_clearing_is_accepted(name):
    assert finding(loop(CLEARING[name])).verdict == "holds"


def test_a_second_step_on_the_same_gradient_is_found():
    def run():
        model = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        model(torch.randn(7, 5)).square().mean().backward()
        optimizer.step()
        optimizer.step()

    broken = finding(run)
    assert broken.verdict == "violated"
    assert "no backward pass came between" in broken.note


def test_a_gradient_that_the_loop_lets_decay_is_left_alone():
    def decay(model, optimizer):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.9)

    assert finding(loop(decay)).verdict == "holds"


def adversaries(clear_critic=True):
    """A generator and its critic: each one's loss leaves gradients on the other."""

    def run():
        maker, critic = nn.Linear(4, 5), nn.Linear(5, 1)
        first = torch.optim.Adam(maker.parameters())
        second = torch.optim.Adam(critic.parameters())
        for _ in range(3):
            made = maker(torch.randn(7, 4))
            if clear_critic:
                second.zero_grad()
            real = critic(torch.randn(7, 5)).mean()
            (critic(made.detach()).mean() - real).backward()
            second.step()
            first.zero_grad()
            (-critic(made).mean()).backward()
            first.step()

    return run


def test_each_of_two_optimizers_is_judged_by_its_own_gradients():
    assert finding(adversaries()).verdict == "holds"
    broken = finding(adversaries(clear_critic=False))
    assert broken.verdict == "violated"


def test_the_optimizer_that_is_named_is_the_one_judged():
    model, other = nn.Linear(5, 3), nn.Linear(5, 3)
    kept = torch.optim.SGD(model.parameters(), lr=0.01)
    cleared = torch.optim.SGD(other.parameters(), lr=0.01)

    def run():
        for _ in range(3):
            cleared.zero_grad()
            (model(torch.ones(2, 5)) - other(torch.ones(2, 5))).square().mean().backward()
            kept.step()
            cleared.step()

    assert finding(run).verdict == "violated"
    assert finding(run, optimizer=cleared).verdict == "holds"
    assert finding(run, optimizer=kept).verdict == "violated"
