"""Watching schedulers of the learning rate, and loaders, which tell where an epoch begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from querykey.laws.training.events import Epoch, Schedule
from querykey.laws.training.recording import Recording
from querykey.laws.training.replacement import replaced
from querykey.laws.training.site import here


def watch_schedulers(recording: Recording, undone: ExitStack) -> None:
    """Note every step of a scheduler, but for those that it or another one takes inside."""
    inside = [0]

    def quietly(original: Any, *args: Any, **kwargs: Any) -> Any:
        inside[0] += 1
        try:
            return original(*args, **kwargs)
        finally:
            inside[0] -= 1

    def make(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(value is scheduler for value in recording.made):
            recording.made.append(scheduler)
        return quietly(original, scheduler, *args, **kwargs)

    def step(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        if inside[0]:
            return quietly(original, scheduler, *args, **kwargs)
        event = Schedule(len(recording.events), here(), scheduler)
        recording.add(event)
        try:
            return quietly(original, scheduler, *args, **kwargs)
        finally:
            event.epoch = getattr(scheduler, "last_epoch", None)

    for kind in _kinds(lr_scheduler.LRScheduler):
        if "step" in vars(kind):
            replaced(undone, kind, "step", step)
        if "__init__" in vars(kind):  # which takes the first step
            replaced(undone, kind, "__init__", make)


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def watch_loaders(recording: Recording, undone: ExitStack) -> None:
    """Note whenever a loader begins to hand out its batches."""

    def begin(original: Any, loader: Any) -> Any:
        try:
            length = len(loader)
        except (TypeError, NotImplementedError):
            length = 0
        recording.add(Epoch(len(recording.events), here(), loader, length))
        return original(loader)

    replaced(undone, DataLoader, "__iter__", begin)
