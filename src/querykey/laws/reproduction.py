"""Five lines that show a breach by hand."""

from __future__ import annotations

from querykey.laws.specimen import Specimen
from querykey.laws.trial import Trial


def reproduction(specimen: Specimen, trial: Trial) -> str | None:
    """Source code that prints the deviation."""
    return None
