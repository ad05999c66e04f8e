"""The script that shows a breach with plain torch: the plainest one that does, as was tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import nn

from querykey.laws.blaming.script import Preparation, shows, whole_script
from querykey.laws.blaming.templates import bodies
from querykey.laws.catalogue.agreement import AGREEMENT
from querykey.laws.catalogue.reload import made_anew
from querykey.laws.finding import Finding
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome
from querykey.laws.understanding.float64 import duplicate


def reproduction(runner: Runner, finding: Finding, outcome: Outcome) -> str | None:
    """Return a script that was seen to show the breach; None where none does."""
    title = f"{finding.law} is broken by {runner.subject.name}: {finding.note}."
    tried = bodies(runner, outcome, finding)
    while True:
        try:
            body = next(tried)
        except StopIteration:
            return None
        except Exception:  # what cannot be traced or written down
            return None
        for preparation in _preparations(runner, outcome):
            text = whole_script(title, runner.subject, preparation, body, finding.law == AGREEMENT)
            if shows(runner.subject, _makes(runner, finding), text):
                return text


def _makes(runner: Runner, finding: Finding) -> Callable[[], nn.Module]:
    """Return what stands for the script's `make`: it gives copies; for reloading, a new model
    after the first copy."""
    if finding.law != "paths.reload":
        return lambda: duplicate(runner.copies.model, wide=False)
    own = runner.copies.model
    made = iter([own, made_anew(runner)[0] or own])
    return lambda: duplicate(next(made), wide=False)


def _preparations(runner: Runner, outcome: Outcome) -> Iterator[Preparation]:
    """Yield ways to prepare the model: as it is, with weights drawn anew, and in float64."""
    setting = outcome.setting
    plain = Preparation(train=setting.train, seed=runner.copies.recipe.seed)
    ways = [plain, replace(plain, random=True)]
    ways += [replace(way, dtype=torch.float64) for way in ways]
    yield from ways
    if setting.train:
        yield from (replace(way, rates=True) for way in ways)
