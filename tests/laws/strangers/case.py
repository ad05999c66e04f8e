"""A planted fault beside its lawful twin: what every file of this folder lists in `CASES`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

Built = nn.Module | tuple[nn.Module, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A fault in somebody's model, the same model without it, and what a checker should say.

    Both factories return a module, or a module and example keyword arguments. Finding any one of
    `laws` broken counts as caught. `module` is a pattern, or several, over the names of modules
    where the fault sits: "" is the root's own forward, None says that no module is to blame.
    """

    name: str
    faulty: Callable[[], Built]
    lawful: Callable[[], Built]
    laws: tuple[str, ...]
    module: str | tuple[str, ...] | None
