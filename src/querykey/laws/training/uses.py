"""Which modules ran, inside of which model, and whether their gradients could be asked for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass
class Use:
    """How one module was called."""

    module: nn.Module
    order: int  # of its first call among all modules
    roots: dict[int, nn.Module]  # the outermost modules that it ran in
    with_graph: int = 0  # calls where gradients were enabled
    without_graph: int = 0


class ModuleUses:
    """The uses of all modules, by id."""

    def __init__(self) -> None:
        self.all: dict[int, Use] = {}

    def enter(self, module: nn.Module, root: nn.Module | None, graph: bool) -> None:
        """Note a call of a module."""
        use = self.all.setdefault(id(module), Use(module, len(self.all), {}))
        if root is not None:
            use.roots[id(root)] = root
        use.with_graph += graph
        use.without_graph += not graph

    def owner(self, key: int) -> Use | None:
        """Return the use of the module that holds the parameter with this id as its own."""
        for use in self.all.values():
            if any(id(p) == key for p in use.module.parameters(recurse=False)):
                return use
        return None
