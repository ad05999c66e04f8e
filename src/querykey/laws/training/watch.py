"""Watching a training loop: hooks and replaced functions of torch, all undone at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_pre_hook

from querykey.laws.training.recording import Recording


@contextmanager
def watching(recording: Recording) -> Iterator[None]:
    """Note what happens inside this context; torch is as before when it ends, however it ends."""
    with ExitStack() as undone:
        _watch_modules(recording, undone)
        _watch_backward(recording, undone)
        handle = register_optimizer_step_pre_hook(_before_step(recording))
        undone.callback(handle.remove)
        yield


def replaced(undone: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by `around(original, *args, **kwargs)` until the end."""
    original = getattr(owner, name)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    own = name in vars(owner)
    stored = vars(owner).get(name)
    setattr(owner, name, replacement)
    undone.callback(setattr, owner, name, stored) if own else undone.callback(delattr, owner, name)


def _watch_modules(recording: Recording, undone: ExitStack) -> None:
    """Note the calls of all modules."""

    def enter(module: nn.Module, args: Any) -> None:
        recording.enter_module(module)

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        recording.leave_module()

    undone.callback(register_module_forward_pre_hook(enter).remove)
    undone.callback(register_module_forward_hook(leave, always_call=True).remove)


def _watch_backward(recording: Recording, undone: ExitStack) -> None:
    """Note every call of backward, of a tensor's or that of torch.autograd."""

    def backward(original: Any, *args: Any, **kwargs: Any) -> Any:
        roots, inputs = args[0] if args else kwargs.get("tensors"), kwargs.get("inputs")
        if not recording.begin_backward(_tensors(roots), _tensors(inputs)):
            return original(*args, **kwargs)
        try:
            return original(*args, **kwargs)
        finally:
            recording.end_backward()

    replaced(undone, torch.autograd, "backward", backward)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors among what backward() is given: one, several, or none."""
    values = [value] if isinstance(value, torch.Tensor) else list(value or ())
    return [value for value in values if isinstance(value, torch.Tensor)]


def _before_step(recording: Recording) -> Callable[..., Any]:
    """Return the hook that notes what an optimizer applies, once its closure has run if any."""

    def hook(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            recording.apply(optimizer)
            return None

        def evaluated() -> Any:
            with torch.enable_grad():
                loss = closure()
            recording.apply(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": evaluated}
        return (optimizer, evaluated, *args[2:]), kwargs

    return hook
