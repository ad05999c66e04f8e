"""An experiment: a question, the claims it meets, and the function that measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from querykey.lab.claim import Claim
from querykey.lab.measurement import Measurement
from querykey.words import check_fields

T = TypeVar("T")
Name = Literal["quick", "full"]


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Depth:
    """How much to measure: `quick` for a look and for tests, `full` for the numbers of the ledger.

    `tell` is called with a few words whenever there is news of the progress. `keep` is the folder
    for parts of a measurement that have ended while others have not; `ran_on` is called with the
    machine of each part.
    """

    name: Name = "full"
    tell: Callable[[str], None] = _silent
    keep: Path | None = None
    ran_on: Callable[[str], None] = _silent

    def __post_init__(self):
        check_fields(self)

    def pick(self, *, quick: T, full: T) -> T:
        """Return the one of two values that this depth asks for."""
        return full if self.name == "full" else quick

    def seeds(self, *, quick: int, full: int) -> Iterator[int]:
        """Yield the numbers of the seeds, and tell how far they are."""
        count = self.pick(quick=quick, full=full)
        for seed in range(count):
            self.tell(f"seed {seed + 1} of {count}")
            yield seed


@dataclass(frozen=True)
class Experiment:
    """What is asked, what the documents claim, and how it is measured."""

    name: str
    asks: str
    claims: tuple[Claim, ...]
    measure: Callable[[Depth], Measurement]

    def __post_init__(self):
        check_fields(self)

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows of the ledger that the claims belong to."""
        return tuple(dict.fromkeys(claim.row for claim in self.claims))
