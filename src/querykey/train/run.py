"""One training run from its config: data, model and objective are made, then the loop goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from querykey.train.config import TrainConfig
from querykey.train.data.source import DataError
from querykey.train.fitting import rehearse
from querykey.train.folder import RunFolder
from querykey.train.loop import Progress, Result, Trainer
from querykey.train.order import generators_restored, seed_generators
from querykey.train.parts import load_data, make_model, objective_kind
from querykey.train.ranks import Ranks, device_for, joined


def run(config: TrainConfig, tell: Callable[[Progress], None] = lambda progress: None) -> Result:
    """Train as the config says, from the newest checkpoint of its folder where there is one.

    `tell` is called with every step's progress, on the first rank. Under torchrun every process
    calls this, and they train together.
    """
    with prepared(config) as trainer:
        return trainer.run(tell)


@contextmanager
def prepared(config: TrainConfig) -> Iterator[Trainer]:
    """Yield the run of a config, ready to go, on the ranks that there are."""
    with generators_restored(), joined(device_for(config.loop.device)) as ranks:
        yield make_trainer(config, ranks)


def make_trainer(config: TrainConfig, ranks: Ranks) -> Trainer:
    """Return the run of a config, ready to go."""
    device, folder = device_for(config.loop.device), RunFolder(Path(config.folder))
    kind = objective_kind(config)
    folder.refuse_another_run(config)
    if ranks.first:
        folder.begin(config)
    ranks.wait()
    try:
        data = load_data(config, folder.path / "data")
    except OSError as error:
        raise DataError(f"`{error.filename}`: {error.strerror}") from error
    seed_generators(config.loop.seed, "weights")
    model = make_model(config.model, config.objective.name, data.facts)
    objective = kind.make(config.objective, data.facts, model)
    rehearse(model, objective, data, config)
    return Trainer(config, model, objective, data, folder, ranks, device)
