"""One cost of two models, and where they are equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from querykey.costs.formulas.comparison import CostComparison
from querykey.costs.written import written


@dataclass(frozen=True)
class Compared:
    """One cost of two models, and for every size where they are equal: a sentence each."""

    of: str
    first: Any
    second: Any
    comparisons: tuple[CostComparison, ...]
    unsolved: tuple[str, ...]

    @property
    def equal(self) -> str:
        """Return where both cost the same, in words."""
        if self.first == self.second:
            return "the same at every size"
        crossings = [
            f"equal at {c.size} = {', '.join(written(root) for root in c.crossings)}"
            for c in self.comparisons
            if c.crossings
        ]
        never = "" if self.unsolved else "equal nowhere in their range"
        return "; ".join([*crossings, *self.unsolved]) or never
