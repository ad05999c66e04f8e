"""What went in and out of every module during a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from querykey.laws.private import version_of
from querykey.laws.understanding.outputs import tensors


@dataclass
class ModuleCall:
    """One call of one module: the tensors that went in, and those that came out."""

    path: str
    module: nn.Module
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor] = field(default_factory=list)
    parent: int | None = None  # the index of its caller in the recorder's `begun`
    arguments: tuple[tuple, dict[str, Any]] = ((), {})
    differentiable: bool = True  # gradients were enabled when it was entered


@dataclass
class Recorder:
    """Records the calls of every submodule; `done` is in order of completion: deepest first."""

    keep_arguments: bool = False
    live: bool = False  # keep the tensors themselves, to differentiate by them
    begun: list[ModuleCall] = field(default_factory=list)
    done: list[ModuleCall] = field(default_factory=list)
    stack: list[int] = field(default_factory=list)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Record the calls that are made inside this context, but for those in TorchScript."""
        handles = []
        for path, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # it takes no hooks
            handles.append(module.register_forward_pre_hook(self._before(path), with_kwargs=True))
            handles.append(module.register_forward_hook(self._after, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, path: str):
        """Return the hook that notes a call when its module is entered."""

        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            inputs = [self._kept(t) for _, t in tensors((args, kwargs))]
            call = ModuleCall(path, module, inputs, differentiable=torch.is_grad_enabled())
            call.parent = self.stack[-1] if self.stack else None
            if self.keep_arguments:
                call.arguments = (args, dict(kwargs))
            self.stack.append(len(self.begun))
            self.begun.append(call)
            self.entered(call)

        return hook

    def _after(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        call = self.begun[self.stack.pop()]
        call.outputs = [self._kept(t) for _, t in tensors(output)]
        self.done.append(call)
        self.left(call)

    def entered(self, call: ModuleCall) -> None:
        """Do nothing more when a module is entered; a kind of recorder may."""

    def left(self, call: ModuleCall) -> None:
        """Do nothing more when a module is left; a kind of recorder may."""

    def _kept(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.live else tensor.detach().to("cpu", copy=True)

    @property
    def unfinished(self) -> ModuleCall | None:
        """The deepest module that was entered and not left: where an exception was raised."""
        return self.begun[self.stack[-1]] if self.stack else None


@dataclass
class WriteRecorder(Recorder):
    """Also finds the first, deepest module that changes one of these tensors in place."""

    watched: list[torch.Tensor] = field(default_factory=list)
    writer: ModuleCall | None = None
    versions: dict[int, list[int]] = field(default_factory=dict)  # by call, when it began

    def entered(self, call: ModuleCall) -> None:
        """Note the versions of the watched tensors before the module runs."""
        self.versions[id(call)] = [version_of(tensor) for tensor in self.watched]

    def left(self, call: ModuleCall) -> None:
        """Compare the versions of the watched tensors after the module has run."""
        now = [version_of(tensor) for tensor in self.watched]
        if self.writer is None and self.versions[id(call)] != now:
            self.writer = call
