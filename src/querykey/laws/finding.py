"""What one law found on one model: the verdict and its evidence, as plain values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from querykey.words import check_fields

VERDICTS = (
    "holds", "violated", "limitation", "advice", "tie", "vacuous", "not-applicable", "error",
    "timeout",
)  # fmt: skip
UNTRIED = ("vacuous", "not-applicable", "error", "timeout")  # verdicts that say nothing of the law


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
    traceback: str | None = None  # of what the model raised

    def __post_init__(self):
        check_fields(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> Finding:
        """Return the finding that `as_json` wrote, without fields that this version lacks."""
        known = {f.name for f in fields(Finding)}
        return Finding(**{name: value for name, value in values.items() if name in known})

    def as_json(self) -> dict[str, Any]:
        """Return plain values; a number that is not finite becomes null, and the note says so."""
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
            "traceback": self.traceback,
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
