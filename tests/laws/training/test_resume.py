"""A run that is stopped and resumed: what it forgets is named."""

import random

import numpy as np
import pytest
import torch
from tests.laws.training.models import Decoder, loss_of, texts
from torch.optim.lr_scheduler import StepLR

import querykey as qk

STATES = ("model", "optimizer", "schedule", "random")
SAYS = {
    "model": "the weights or statistics of the model are others",
    "optimizer": "the state of AdamW is forgotten",
    "schedule": "the schedule is forgotten: the rate is",
    "random": "the random state is forgotten",
}


class Training:
    """A model, its optimizer and schedule, and what a checkpoint may hold of them."""

    def __init__(self, dropout: float = 0.1):
        self.model = Decoder(dropout=dropout)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = StepLR(self.optimizer, 2)
        self.step = 0

    def go(self, last: int, shuffled: bool = False) -> None:
        batches = texts(6)
        while self.step < last:
            place = int(np.random.permutation(6)[0]) if shuffled else self.step
            ids, labels = batches[place]
            self.optimizer.zero_grad()
            loss_of(self.model(ids), labels).backward()
            self.optimizer.step()
            self.schedule.step()
            self.step += 1

    def save(self, file) -> None:
        states = {name: getattr(self, name).state_dict() for name in STATES[:3]}
        generators = (torch.get_rng_state(), np.random.get_state(), random.getstate())
        torch.save({**states, "step": self.step, "random": generators}, file)

    def load(self, file, forgotten: str = "") -> None:
        saved = torch.load(file, weights_only=False)
        self.step = saved["step"]
        for name in STATES[:3]:
            if name != forgotten:
                getattr(self, name).load_state_dict(saved[name])
        if forgotten != "random":
            torch.set_rng_state(saved["random"][0])
            np.random.set_state(saved["random"][1])
            random.setstate(saved["random"][2])


def found(tmp_path, forgotten="", steps=5, **options):
    def run():
        Training(**options).go(5)

    def resume():
        training = Training(**options)
        training.go(3)
        training.save(tmp_path / "saved")
        training = Training(**options)
        training.load(tmp_path / "saved", forgotten)
        training.go(steps)

    return qk.check_training(run, resume=resume).law("training.resume")


def test_a_run_that_keeps_all_goes_on(tmp_path):
    assert found(tmp_path).verdict == "holds"


@pytest.mark.parametrize("forgotten", STATES)
def test_what_is_forgotten_is_named(tmp_path, forgotten):
    finding = found(tmp_path, forgotten)
    assert finding.verdict == "violated"
    step = 5 if forgotten == "schedule" else 4  # when the rate would have changed
    beginning = f"from step {step} on the resumed run is not that without a stop: "
    assert finding.note.startswith(beginning)
    named = [name for name, words in SAYS.items() if words in finding.note]
    # The optimizer's state holds its rates: without it the schedule does not reach them either.
    assert named == [forgotten] or (forgotten, named) == ("optimizer", ["optimizer", "schedule"])


def test_a_random_state_that_nothing_draws_from_may_be_forgotten(tmp_path):
    assert found(tmp_path, "random", dropout=0.0).verdict == "holds"


def test_another_order_of_the_data_is_named(tmp_path):
    def run():
        Training(0.0).go(5, shuffled=True)

    def resume():
        training = Training(0.0)
        training.go(3, shuffled=True)
        training.save(tmp_path / "saved")
        training.load(tmp_path / "saved", "random")
        training.go(5, shuffled=True)

    finding = qk.check_training(run, resume=resume).law("training.resume")
    assert finding.verdict == "violated"
    assert "the order of the data is forgotten" in finding.note


@pytest.mark.parametrize("seed", [0, 7])  # 0 makes the same weights, and leaves another state
def test_runs_that_do_not_begin_alike_are_not_compared(seed):
    torch.manual_seed(seed)
    training = Training()
    finding = qk.check_training(lambda: training.go(2), resume=lambda: Training().go(2)).law(
        "training.resume"
    )
    assert finding.verdict == "not-applicable"
    assert finding.note.startswith("run() and resume() do not begin alike")


def test_a_resumed_run_takes_as_many_steps(tmp_path):
    finding = found(tmp_path, steps=4)
    assert finding.verdict == "not-applicable"
    assert finding.note == "resume() takes 4 steps and run() 5; it is to go on to as many"


def test_generators_go_on_as_if_nothing_was_watched(tmp_path):
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    found(tmp_path)
    assert torch.equal(torch.rand(3), expected)
