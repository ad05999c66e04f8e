"""Published architectures that break a law by design: data, each with its reason."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from querykey.laws.law import Finding
    from querykey.laws.specimen import Specimen


@dataclass(frozen=True)
class Limitation:
    """Where a law does not hold by design, and why."""

    model: str  # a class name or model_type, with * as in file names
    law: str
    reason: str


TABLE: tuple[Limitation, ...] = ()


def limitation(specimen: Specimen, law: str, finding: Finding) -> str:
    """The reason, or nothing where a breach is a breach."""
    model: Any = specimen.bench.model
    names = [type(model).__name__, getattr(getattr(model, "config", None), "model_type", "")]
    for each in TABLE:
        if fnmatch.fnmatchcase(law, each.law) and any(
            fnmatch.fnmatchcase(str(name), each.model) for name in names
        ):
            return each.reason
    return ""
