"""A law, and what came of it on one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querykey.laws.runner import Specimen
    from querykey.laws.trial import Outcome, Trial
    from querykey.laws.understanding.copies import Setting

VERDICTS = (
    "holds", "violated", "limitation", "advice", "tie", "vacuous", "not-applicable", "error",
    "timeout",
)  # fmt: skip


@dataclass(frozen=True)
class Law:
    """What must hold of a model: the change, what it must leave alone, and when that is asked.

    `applies` returns why the law does not concern a model, or nothing. `trials` yields experiments
    for one setting; `sweep` says which settings to try.
    """

    name: str
    says: str  # the relation, in one sentence
    change: str  # what is done to the input
    protects: str  # the part of the output that must not notice
    applies: Callable[[Specimen], str]
    trials: Callable[[Specimen, Setting], Iterable[Trial | Outcome]]
    sweep: Callable[[Specimen], Iterable[Setting]]


@dataclass(frozen=True)
class Finding:
    """The verdict of one law on one model, and the evidence."""

    law: str
    verdict: str
    deviation: float | None = None
    floor: float | None = None
    where: dict[str, int] = field(default_factory=dict)
    module: str | None = None  # the path of the guilty module
    source: str | None = None  # its class, file and line
    setting: dict[str, Any] = field(default_factory=dict)
    repro: str | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values; a number that is not finite is null with a note."""
        note = self.note
        if self.deviation is not None and not math.isfinite(self.deviation):
            note = "; ".join(part for part in (note, f"deviation is {self.deviation}") if part)
        return {
            "law": self.law,
            "verdict": self.verdict,
            "deviation": _finite(self.deviation),
            "floor": _finite(self.floor),
            "where": self.where,
            "module": self.module,
            "source": self.source,
            "setting": self.setting,
            "repro": self.repro,
            "note": note,
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
