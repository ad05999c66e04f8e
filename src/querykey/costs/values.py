"""The values of a cost report: FLOPs, parameters and bytes, of a module or of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy

from querykey.costs.formulas.validity import Validity
from querykey.costs.inputs import CostError


class NotComputed(str):
    """Stands in place of a value, and says why there is none."""


@dataclass(frozen=True)
class Flops:
    """FLOPs, where a multiply-add counts 2: matrix products, and pointwise work apart."""

    forward: Any
    backward: Any
    pointwise: Any  # of the forward pass
    pointwise_backward: Any
    visible: Any  # `forward` without the pairs that a causal flag hides
    recomputed: Any  # the part of `backward` that fused attention computes a second time


@dataclass(frozen=True)
class ModuleCost:
    """What one module costs, its children included."""

    flops: Flops
    params: Any
    saved_bytes: Any
    kind: str = ""  # the name of its class, or of all classes of modules that count together
    moved: Callable[[], Any] | None = field(default=None, compare=False, repr=False)

    @property
    def bytes_moved(self) -> Any:
        """Return the bytes that its operations read and write, no two of them fused."""
        return self.moved() if self.moved else NotComputed("the bytes moved are not known here")


# The names of the values, in the order in which they are shown; modules have the first nine.
VALUES = (
    "flops.forward", "flops.backward", "flops.pointwise", "flops.pointwise_backward",
    "flops.visible", "flops.recomputed", "params", "saved_bytes", "bytes_moved", "peak_bytes",
    "inference_bytes", "span", "state_bytes",
)  # fmt: skip
PER_MODULE = VALUES[:9]


def value_of(owner: Any, name: str) -> Any:
    """Return a value by its name, such as `flops.forward`."""
    for part in name.split("."):
        owner = getattr(owner, part)
    return owner


@dataclass(frozen=True)
class CostValues:
    """The values of a whole model and of its modules, the range in which they hold, and notes."""

    modules: dict[str, ModuleCost]  # by path; the whole model's path is empty
    symbols: dict[str, sympy.Symbol]  # the sizes that are free
    valid: Validity
    unknown: dict[str, dict[str, int]]  # operations without a formula: how often, by module
    notes: list[str]
    engine: str
    settings: dict[str, Any]
    sizes: dict[str, int] = field(default_factory=dict)  # the sizes that were put in
    picked: dict[str, str] = field(default_factory=dict)  # sizes that values decide: the module
    below: CostValues | None = None

    @property
    def peak_bytes(self) -> Any:
        """Return the most memory of a training step, or of inference without a backward pass."""
        return NotComputed("the peak of memory is not known here")

    @property
    def inference_bytes(self) -> Any:
        """Return the most memory of a forward pass without gradients."""
        return NotComputed("the peak of memory is not known here")

    @property
    def span(self) -> Any:
        """Return the parallel depth of the forward pass."""
        return NotComputed("the parallel depth is not known here")

    @property
    def bytes_moved(self) -> Any:
        """Return the bytes that all operations read and write, no two of them fused."""
        return self.modules[""].bytes_moved

    @property
    def state_bytes(self) -> Any:
        """Return the bytes of the cache or state after the tokens, in a phase of generation."""
        return NotComputed("only the phases prefill and decode have a state")

    @property
    def flops(self) -> Flops:
        """Return the FLOPs of the whole model."""
        return self.modules[""].flops

    @property
    def params(self) -> Any:
        """Return the parameters of the whole model, a shared one counted once."""
        return self.modules[""].params

    @property
    def saved_bytes(self) -> Any:
        """Return the bytes that autograd saves between forward and backward."""
        return self.modules[""].saved_bytes

    def __getitem__(self, name: str) -> Any:
        """Return a value by its name, such as `flops.forward`."""
        if name not in VALUES:
            raise CostError(f"there is no `{name}` in the report; there are {', '.join(VALUES)}")
        return value_of(self, name)

    @property
    def complete(self) -> bool:
        """Return whether every operation had a formula; `unknown` ones are not in the FLOPs."""
        return not self.unknown
