"""Checking a training loop: it runs for a few steps, is watched, and every law is judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from querykey.errors import WrongTypeError
from querykey.laws.finding import Finding
from querykey.laws.report import Report, versions
from querykey.laws.training.recording import Recording
from querykey.laws.training.resuming import as_in_a_new_process
from querykey.laws.training.table import TRAINING_LAWS
from querykey.laws.training.watch import watching
from querykey.targets import seeded
from querykey.words import raised, traceback_of

KIND, SEED = "training", 0


def check_training(
    run: Callable[[], Any],
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    resume: Callable[[], Any] | None = None,
) -> Report:
    """Watch `run()` train for a few steps, and return what the laws of training say of it.

    Models and optimizers are found from what was watched; give them where only one of several is
    to be judged. What `run` trains is trained, and torch itself is as before afterwards.

    `resume()` does what `run()` does and takes as many steps, but stops on the way, saves, makes
    everything anew, loads, and goes on; both begin with the same random numbers.
    """
    _refuse(run, model, optimizer, resume)
    began = time.perf_counter()
    recording = Recording(_listed(model), _listed(optimizer), resume is not None)
    report = Report(_name_of(run), KIND, [], weights="own", versions=versions())
    try:
        with seeded(SEED), watching(recording):
            run()
        if resume is not None:
            other = recording.resumed = Recording(compared=True)
            with seeded(SEED), watching(other), as_in_a_new_process(other):
                resume()
    except Exception as error:
        note = f"the training loop raised {raised(error)}"
        report = replace(report, built=False, note=note, traceback=traceback_of(error))
    else:
        report = replace(report, laws=_findings(recording), about=_about(recording))
    return replace(report, seconds=time.perf_counter() - began)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else [value]


def _refuse(run: Any, model: Any, optimizer: Any, resume: Any) -> None:
    """Raise a WrongTypeError for an argument that is not what it must be."""
    for name, value, kind, words in (
        ("model", model, nn.Module, "a torch.nn.Module"),
        ("optimizer", optimizer, torch.optim.Optimizer, "a torch.optim.Optimizer"),
    ):
        if value is not None and not isinstance(value, kind):
            raise WrongTypeError(f"{name} is {words}; got {type(value).__name__}")
    for name, value in (("run", run), ("resume", resume)):
        if isinstance(value, type) or not (callable(value) or (name == "resume" and value is None)):
            raise WrongTypeError(
                f"{name} is a function without arguments that trains a few steps; "
                f"got {_kind_of(value)}"
            )


def _kind_of(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _name_of(run: Any) -> str:
    return getattr(run, "__qualname__", type(run).__name__).rpartition("<locals>.")[2]


def _findings(recording: Recording) -> list[Finding]:
    """Return the finding of every law."""
    if not recording.backwards:
        note = (
            "backward() was never called: nothing was trained, or gradients came from torch.func "
            "or torch.autograd.grad, which are not watched"
        )
        return [Finding(law.name, "not-applicable", note=note) for law in TRAINING_LAWS]
    findings = []
    for law in TRAINING_LAWS:
        try:
            findings.append(law.judge(recording))
        except Exception as error:
            note, trace = raised(error), traceback_of(error)
            findings.append(Finding(law.name, "error", note=note, traceback=trace))
    return findings


def _about(recording: Recording) -> dict[str, str]:
    """Return what was watched, in words."""
    steps, passes = len(recording.steps), len(recording.backwards)
    return {
        "model": _kinds(recording.roots()),
        "optimizer": _kinds(recording.optimizers),
        "watched": f"{_count(passes, 'backward pass', 'es')}, {_count(steps, 'step')}",
    }


def _kinds(values: Iterable[Any]) -> str:
    return ", ".join(type(value).__name__ for value in values) or "none"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural * (number != 1)}"
