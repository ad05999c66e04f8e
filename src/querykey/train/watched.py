"""The first steps of a run under the watch of the laws of training, in a folder of their own."""

from __future__ import annotations

import signal
import tempfile
from dataclasses import replace
from pathlib import Path

from querykey.laws import Report, check_training
from querykey.train.config import TrainConfig
from querykey.train.loop import Progress
from querykey.train.run import prepared

STEPS, STOP = 4, 2  # steps that are watched, and after how many the resumed run is stopped


def check_run(config: TrainConfig) -> Report:
    """Return what the laws of training say of the first steps of a run, and of their resumption.

    Nothing is left of these steps: they are written to a folder that goes away.
    """
    with tempfile.TemporaryDirectory() as folder:
        steps = min(STEPS, config.loop.steps)
        loop = replace(config.loop, steps=steps, evaluate_every=0, save_every=0)

        def train(name: str, stop: int = 0) -> None:
            short = replace(config, folder=str(Path(folder, name)), loop=loop)
            with prepared(short) as trainer:
                trainer.run(lambda progress: _stop_at(stop, progress))

        def resume() -> None:
            train("resumed", STOP)
            train("resumed")

        if steps <= STOP:
            return check_training(lambda: train("straight"))
        return check_training(lambda: train("straight"), resume=resume)


def _stop_at(stop: int, progress: Progress) -> None:
    """Stop a run as Ctrl-C does: the step ends, and is saved."""
    if progress.step == stop:
        signal.raise_signal(signal.SIGINT)
