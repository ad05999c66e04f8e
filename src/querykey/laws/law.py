"""A law: what must hold of a model, why it matters, and how it is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from querykey.laws.run import PLAIN, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome, Trial
from querykey.words import check_fields


class RefusalError(Exception):
    """One sentence: why a model cannot be tried; the verdict is then not-applicable."""


def every_model(runner: Runner) -> str:
    """Return no reason: this law applies to every model."""
    return ""


def plain_settings(runner: Runner) -> Iterator[Setting]:
    """Try the plain call, and once more with the model's own weights."""
    yield PLAIN
    yield Setting(weights="own")


@dataclass(frozen=True)
class Law:
    """What must hold of a model, in words and as experiments.

    `trials` yields experiments for one setting. `applies` returns why the law does not concern a
    model, or the empty string. `sweep` yields the settings to try.
    """

    name: str
    says: str  # what must hold
    why: str  # what goes wrong where it does not hold
    how: str  # what is done to the model, and what is compared
    trials: Callable[[Runner, Setting], Iterable[Trial | Outcome]]
    applies: Callable[[Runner], str] = every_model
    sweep: Callable[[Runner], Iterable[Setting]] = plain_settings
    on_request: bool = False  # it takes long, and is tried only where its name is given

    def __post_init__(self):
        check_fields(self)
