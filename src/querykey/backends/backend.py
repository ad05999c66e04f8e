"""One call of attend, checked: what every backend is asked to serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from querykey.attention import (
    And,
    Array,
    Bias,
    Blocks,
    Call,
    Causal,
    Dilated,
    Documents,
    Full,
    Mask,
    Mechanism,
    Or,
    Padding,
    Window,
    check_inputs,
    split,
)

REFLEXIVE = (Full, Causal, Window, Dilated, Blocks, Documents)


@dataclass(frozen=True)
class Request:
    """The arguments of attend and their sizes."""

    q: Any
    k: Any
    v: Any
    mechanism: Mechanism
    mask: Mask
    bias: Array | Bias | None
    call: Call

    @classmethod
    def of(
        cls, q: Any, k: Any, v: Any, mechanism: Mechanism, mask: Mask, bias: Any, start: Any
    ) -> Request:
        """Check the arguments, or raise the one error that says what does not fit."""
        return cls(
            q, k, v, mechanism, mask, bias, check_inputs(q, k, v, mechanism, mask, bias, start)
        )

    @property
    def starts_at_zero(self) -> bool:
        """Whether query i stands at position i, known without looking into an array."""
        return isinstance(self.call.start, int) and self.call.start == 0

    @property
    def sees_itself(self) -> bool:
        """Whether every query surely sees its own key, so that none of either is alone."""
        square = self.call.queries == self.call.keys and self.starts_at_zero
        return square and _reflexive(self.mask)

    @property
    def causal(self) -> bool:
        """Whether the mask asks for Causal(), be it with others."""
        return Causal() in split(self.mask)

    @property
    def others(self) -> tuple[Mask, ...]:
        """What must hold beside Causal() and padding."""
        return tuple(
            part for part in split(self.mask) if part != Causal() and not isinstance(part, Padding)
        )


def _reflexive(mask: Mask) -> bool:
    if isinstance(mask, Or):
        return any(_reflexive(part) for part in mask.parts)
    if isinstance(mask, And):
        return all(_reflexive(part) for part in mask.parts)
    return isinstance(mask, REFLEXIVE)
