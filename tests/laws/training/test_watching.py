"""Watching changes nothing: torch is as before afterwards, and so is what a loop computes."""

import pytest
import torch
from torch import nn

import querykey as qk
from querykey import QuerykeyError


def state_of_torch() -> list:
    """Every function and hook of torch that watching replaces or adds."""
    from torch.nn.modules import module
    from torch.nn.utils import clip_grad
    from torch.optim import lr_scheduler, optimizer

    classes = [nn.Module, torch.Tensor, torch.optim.Optimizer, torch.amp.GradScaler]
    classes += [torch.utils.data.DataLoader]
    classes += [c for c in vars(lr_scheduler).values() if isinstance(c, type)]
    modules = [torch.autograd, clip_grad, torch.nn.utils]
    hooks = [
        module._global_forward_hooks,
        module._global_forward_hooks_with_kwargs,
        module._global_forward_pre_hooks,
        optimizer._global_optimizer_pre_hooks,
        optimizer._global_optimizer_post_hooks,
    ]
    functions = {f"{m.__name__}.{n}": f for m in modules for n, f in vars(m).items() if callable(f)}
    methods = [dict(vars(kind)) for kind in classes]
    return [torch.load, torch.save, functions, *methods, *map(dict, hooks)]


def train(steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Dropout(0.3), nn.ReLU(), nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(steps):
        optimizer.zero_grad()
        inputs, labels = torch.randn(11, 5), torch.randint(3, (11,))
        nn.functional.cross_entropy(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return [parameter.detach() for parameter in model.parameters()]


def test_torch_is_as_before():
    before = state_of_torch()
    qk.check_training(train)
    assert state_of_torch() == before


@pytest.mark.parametrize("error", [ValueError("no more"), KeyboardInterrupt()])
def test_torch_is_as_before_a_loop_that_raises(error):
    def run():
        train(1)
        nn.Sequential(nn.Linear(5, 5), Raises(error))(torch.ones(2, 5))

    before = state_of_torch()
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            qk.check_training(run)
    else:
        report = qk.check_training(run)
        assert not report.built
        assert report.note.startswith("the training loop raised ValueError: no more (")
        assert "no more" in (report.traceback or "")
    assert state_of_torch() == before


class Raises(nn.Module):
    def __init__(self, error: BaseException):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


def test_what_is_trained_is_the_same_watched_or_not():
    weights: list[torch.Tensor] = []
    qk.check_training(lambda: weights.extend(train()))
    assert all(torch.equal(a, b) for a, b in zip(weights, train(), strict=True))


def by_hand():
    """Train as functional code does, without backward()."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(2, 3)).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, grad in zip(model.parameters(), grads, strict=True):
            parameter.grad = grad
        optimizer.step()


@pytest.mark.parametrize("run", [lambda: None, by_hand])
def test_a_loop_without_backward_is_said_in_one_sentence(run):
    report = qk.check_training(run)
    assert {finding.verdict for finding in report.laws} == {"not-applicable"}
    assert "no law could be tried\nbackward() was never called: nothing was trained" in str(report)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"run": 3}, "run is a function without arguments that trains a few steps; got int"),
        ({"run": dict}, "run is a function without arguments that trains a few steps; "
         "got the class dict"),
        ({"run": train, "model": "gpt"}, "model is a torch.nn.Module; got str"),
        ({"run": train, "optimizer": 3}, "optimizer is a torch.optim.Optimizer; got int"),
        ({"run": train, "resume": 3}, "resume is a function without arguments that trains a few "
         "steps; got int"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_refused_in_one_sentence(arguments, message):
    with pytest.raises(QuerykeyError) as refusal:
        qk.check_training(**arguments)
    assert str(refusal.value) == message
