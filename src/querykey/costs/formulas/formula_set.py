"""The formulas that an engine derived, the range in which they hold, and how they were derived."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from querykey.costs.counting.trace import BACKWARD, FORWARD
from querykey.costs.formulas.validity import Validity
from querykey.costs.inputs import CostError
from querykey.costs.sums import Key, Sum, expression, fold_sums, sums_at


class RefusedError(CostError):
    """Says why one engine cannot derive formulas for this model; the other may."""


class DisagreeError(CostError):
    """Says where the two engines give different answers."""


@dataclass(frozen=True)
class Derivation:
    """How formulas were derived."""

    engine: str  # symbolic or interpolation
    operations: int = 0  # in one symbolic pass
    ran: bool = False  # whether the model had to run on values
    copied: bool = False  # whether some layers were not run, being equal to others
    loops: bool = False  # whether larger sizes take more operations, as in a loop over time
    hints: dict[str, int] = field(default_factory=dict)  # sizes of the symbolic pass


@dataclass
class FormulaSet:
    """Costs by (module, metric) without children, and parameters by module, as sums.

    `valid` and `notes` grow while the formulas are checked. `below` holds the formulas of smaller
    sizes, where these do not hold.
    """

    own: dict[Key, Sum]
    params: dict[str, Sum]
    unknown: dict[str, dict[str, int]]
    derivation: Derivation
    valid: Validity = field(default_factory=Validity)
    notes: list[str] = field(default_factory=list)
    below: FormulaSet | None = None

    def difference(
        self,
        counts: Mapping[Key, int],
        sizes: Mapping[str, int],
        without: Collection[str] = (),
    ) -> str:
        """Return a sentence that says where formulas and counts differ, empty where they agree.

        The metrics in `without`, such as those of the backward pass, are not compared.
        """
        params = {(path, "params"): total for path, total in self.params.items()}
        predicted = sums_at(self.own | params, sizes)
        keys = [k for k in {**predicted, **counts} if predicted.get(k, 0) != counts.get(k, 0)]
        keys = [key for key in keys if key[1] not in without]
        if not keys:
            return ""
        keys.sort(key=lambda key: key[1] not in (FORWARD, BACKWARD))  # matrix products first
        path, metric = keys[0]
        return (
            f"at {listed(sizes)} the formula gives {predicted.get(keys[0], 0)} and counting gives "
            f"{counts.get(keys[0], 0)} ({metric} of `{path or 'the whole model'}`)"
        )


def compare_engines(
    symbolic: FormulaSet,
    interpolated: FormulaSet,
    fold: Any,
    fixed: Mapping[str, int] | None = None,
) -> None:
    """Raise where two engines give different formulas; `fixed` sizes are put into the second's."""
    left, right = fold_sums(symbolic.own, fold), dict(interpolated.own)
    for key in {**left, **right}:
        a, b = expression(left.get(key, {})), expression(right.get(key, {}), fixed)
        if (a - b).expand() != 0:
            path, metric = key
            raise DisagreeError(
                f"the two engines disagree about {metric} of `{path or 'the whole model'}`: "
                f"{a} with symbols, {b} by interpolation; please report this model"
            )


def listed(sizes: Mapping[str, Any]) -> str:
    """Return sizes as text, such as `batch=8, seq=1024`."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
