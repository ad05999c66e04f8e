"""What went in and out of every module during a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from querykey.laws.understanding.outputs import tensors


@dataclass
class Call:
    """One call of one module."""

    path: str
    module: nn.Module
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor] = field(default_factory=list)
    depth: int = 0
    parent: int | None = None  # index in `begun`
    arguments: tuple[tuple, dict[str, Any]] = ((), {})
    versions: list[int] = field(default_factory=list)


@dataclass
class Recorder:
    """Calls of every submodule; `done` is in order of completion, so the deepest come first."""

    keep_arguments: bool = False
    live: bool = False  # keep tensors themselves, to differentiate by
    versions: list[torch.Tensor] = field(default_factory=list)  # tensors whose writer is sought
    writer: Call | None = None  # the first, deepest module that changed one of them
    begun: list[Call] = field(default_factory=list)
    done: list[Call] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Record while inside."""
        handles = []
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._before(path), with_kwargs=True))
            handles.append(module.register_forward_hook(self._after, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, path: str):
        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            inputs = [self._kept(t) for _, t in tensors((args, kwargs))]
            call = Call(path, module, inputs, depth=len(self.stack))
            call.parent = self.stack[-1] if self.stack else None
            if self.keep_arguments:
                call.arguments = (args, dict(kwargs))
            call.versions = [tensor._version for tensor in self.versions]
            self.stack.append(len(self.begun))
            self.begun.append(call)

        return hook

    def _after(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        call = self.begun[self.stack.pop()]
        call.outputs = [self._kept(t) for _, t in tensors(output)]
        self.done.append(call)
        if self.writer is None and call.versions != [t._version for t in self.versions]:
            self.writer = call

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.live else tensor.detach().to("cpu", copy=True)

    @property
    def unfinished(self) -> Call | None:
        """The deepest module that was entered and not left: where an exception was raised."""
        return self.begun[self.stack[-1]] if self.stack else None
