"""One training run from its config: data, model and objective are made, then the loop goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from querykey.errors import QuerykeyError
from querykey.models import TokenizerError
from querykey.train.config import TrainConfig
from querykey.train.data.source import Data, DataError, fingerprint
from querykey.train.data.tokenizers import Tokenizer
from querykey.train.export import export
from querykey.train.failures import cause_outside
from querykey.train.fitting import rehearse
from querykey.train.folder import RunFolder
from querykey.train.loop import Progress, Result, Trainer, TrainError
from querykey.train.model import make_model
from querykey.train.order import generators_restored
from querykey.train.parts import load_data, objective_kind
from querykey.train.ranks import Ranks, device_for, joined
from querykey.words import checked


@checked
def run(config: TrainConfig, tell: Callable[[Progress], None] = lambda progress: None) -> Result:
    """Train as the config says, from the newest checkpoint of its folder where there is one.

    `tell` is called with every step's progress, on the first rank. Under torchrun every process
    calls this, and they train together.
    """
    with prepared(config) as trainer:
        return carry_out(trainer, tell)


def carry_out(trainer: Trainer, tell: Callable[[Progress], None]) -> Result:
    """Train, and leave the model in the folder of the run, as `querykey.models.load` reads it."""
    try:
        result = trainer.run(tell)
    except (Exception, SystemExit) as error:
        cause = "" if isinstance(error, QuerykeyError) else cause_outside(error)
        if not cause:
            raise
        raise TrainError(
            f"step {trainer.step + 1} failed: {cause}; the same command goes on from the last "
            f"checkpoint, or from the first step if there is none"
        ) from error
    export(trainer.model, trainer.folder.path, trainer.ranks)
    return result


@contextmanager
def prepared(config: TrainConfig) -> Iterator[Trainer]:
    """Yield the run of a config, ready to go, on the ranks that there are.

    Training wants gradients, also where the caller has turned them off.
    """
    gradients = torch.inference_mode(False), torch.enable_grad()
    with (
        gradients[0],
        gradients[1],
        generators_restored(),
        joined(device_for(config.loop.device)) as ranks,
        ExitStack() as stack,
    ):
        held = RunFolder(Path(config.folder)).held()
        on_first(ranks, lambda: stack.enter_context(held), "begin in the folder of the run")
        yield make_trainer(config, ranks)


def make_trainer(config: TrainConfig, ranks: Ranks) -> Trainer:
    """Return the run of a config, ready to go."""
    device, folder = device_for(config.loop.device), RunFolder(Path(config.folder))
    kind = objective_kind(config)
    folder.refuse_another_run(config)
    folder.refuse_files_of_others()
    on_first(ranks, lambda: folder.begin(config), "write to the folder of the run")
    data = shared_data(config, folder, ranks)
    if not ranks.agree(fingerprint(data), device):
        raise DataError(
            "the ranks have read different data; give all of them the same files at data.path"
        )
    model = make_model(config, data.facts)
    objective = kind.make(config.objective, data.facts, model)
    rehearse(model, objective, data, config)
    return Trainer(config, model, objective, data, folder, ranks, device)


def shared_data(config: TrainConfig, folder: RunFolder, ranks: Ranks) -> Data:
    """Load the data on the first rank, then on the others with the tokenizer that it has made."""

    def prepare() -> Data:
        # A folder without checkpoints may have the tokenizer of a config that failed.
        known = folder.read_tokenizer() if any(folder.checkpoints.glob("step-*")) else None
        data = _load(config, folder, known)
        folder.write_tokenizer(data.facts.tokenizer)
        return data

    data = on_first(ranks, prepare, "load the data")
    return data or _load(config, folder, folder.read_tokenizer())


Done = TypeVar("Done")


def on_first(ranks: Ranks, action: Callable[[], Done], name: str) -> Done | None:
    """Do something on the first rank alone; if it is refused there, an error ends every rank."""
    error: QuerykeyError | None = None
    done: Done | None = None
    if ranks.first:
        try:
            done = action()
        except QuerykeyError as problem:
            error = problem
    if not ranks.all_well(error is None):
        raise error or TrainError(f"the first rank could not {name}; its message says why")
    return done


def _load(config: TrainConfig, folder: RunFolder, tokenizer: Tokenizer | None) -> Data:
    try:
        return load_data(config, folder.path / "data", tokenizer)
    except OSError as error:
        raise DataError(f"`{error.filename}`: {error.strerror}") from error
    except TokenizerError as error:
        if tokenizer is None:
            raise
        raise DataError(
            f"the data are no longer those that `{folder.tokenizer}` was made from: {error}"
        ) from error
