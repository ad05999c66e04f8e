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

from querykey.laws.private import clipping, remove_global_hook
from querykey.laws.training.attention_spread import watch_attention
from querykey.laws.training.events import Rescale, Step
from querykey.laws.training.recording import Recording
from querykey.laws.training.replacement import replaced
from querykey.laws.training.site import here
from querykey.laws.training.watch_schedules import watch_loaders, watch_schedulers


@contextmanager
def watching(recording: Recording) -> Iterator[None]:
    """Note what happens inside this context; torch is as before when it ends, however it ends."""
    with ExitStack() as undone:
        _watch_modules(recording, undone)
        _watch_backward(recording, undone)
        _watch_detach(recording, undone)
        _watch_dropouts(recording, undone)
        _watch_optimizers_made(recording, undone)
        undone.callback(register_optimizer_step_pre_hook(_before_step(recording)).remove)
        _watch_clipping(recording, undone)
        _watch_scalers(recording, undone)
        watch_schedulers(recording, undone)
        watch_loaders(recording, undone)
        yield


def _watch_modules(recording: Recording, undone: ExitStack) -> None:
    """Note the calls of all modules, and how attention is spread in the first."""
    attention = watch_attention(recording)

    def enter(module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        recording.enter_module(module)
        attention.enter(module)

    def leave(module: nn.Module, args: Any, *rest: Any) -> None:
        kwargs, output = rest if len(rest) == 2 else ({}, rest[-1])  # after an exception
        if torch.compiler.is_compiling():
            return
        attention.leave(module)
        recording.leave_module(module, args, kwargs, output)

    undone.callback(attention.end)
    undone.callback(register_module_forward_pre_hook(enter).remove)
    hook = register_module_forward_hook(leave, with_kwargs=True, always_call=True)
    undone.callback(remove_global_hook, hook)


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


def _watch_detach(recording: Recording, undone: ExitStack) -> None:
    """Note what is cut off from the graph before the first backward pass."""

    def detach(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not recording.backwards and tensor.grad_fn is not None:
            recording.detached.append((tensor.grad_fn, f"detach() cuts them off ({here()})"))
        return original(tensor, *args, **kwargs)

    inherited: Any = torch.Tensor.data  # as torch declares it

    def data(tensor: Any) -> Any:
        if not recording.backwards and tensor.grad_fn is not None:
            recording.detached.append((tensor.grad_fn, f".data cuts them off ({here()})"))
        return inherited.__get__(tensor)

    replaced(undone, torch.Tensor, "detach", detach)
    undone.callback(delattr, torch.Tensor, "data")
    torch.Tensor.data = property(data, inherited.__set__)  # type: ignore[assignment]


def _watch_dropouts(recording: Recording, undone: ExitStack) -> None:
    """Note the functions that drop, where the module that calls them is in evaluation mode."""

    def dropout(original: Any, *args: Any, **kwargs: Any) -> Any:
        p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        told = args[2] if len(args) > 2 else kwargs.get("training")
        if p and told in (None, True):
            recording.drop("dropout", asked=told is True)
        return original(*args, **kwargs)

    def attention(original: Any, *args: Any, **kwargs: Any) -> Any:
        if args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0):
            recording.drop("scaled_dot_product_attention", asked=False)
        return original(*args, **kwargs)

    replaced(undone, torch.nn.functional, "dropout", dropout)
    replaced(undone, torch.nn.functional, "scaled_dot_product_attention", attention)


def _watch_optimizers_made(recording: Recording, undone: ExitStack) -> None:
    """Note the optimizers that are made: one may take no step while it is watched."""

    def make(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        recording.made.append(optimizer)
        return original(optimizer, *args, **kwargs)

    replaced(undone, torch.optim.Optimizer, "__init__", make)


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


def _watch_clipping(recording: Recording, undone: ExitStack) -> None:
    """Note when gradients are clipped by torch's functions."""

    def clip(original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = _tensors(parameters)
        recording.clip(parameters)
        try:
            return original(parameters, *args, **kwargs)
        finally:
            recording.ledger.look_again()

    for owner, name in clipping():
        replaced(undone, owner, name, clip)


def _watch_scalers(recording: Recording, undone: ExitStack) -> None:
    """Note which losses and gradients a GradScaler has scaled."""
    scaler = torch.amp.GradScaler

    def scale(original: Any, own: Any, outputs: Any) -> Any:
        scaled = original(own, outputs)
        if own.is_enabled():
            for tensor in _tensors(scaled):
                recording.scaled[id(tensor)] = tensor, own.get_scale()
        return scaled

    def unscale(original: Any, own: Any, optimizer: Any) -> Any:
        try:
            return original(own, optimizer)
        finally:
            recording.unscale(optimizer, own.get_scale())

    def step(original: Any, own: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = len(recording.of(Step))
        result = original(own, optimizer, *args, **kwargs)
        skipped = len(recording.of(Step)) == before
        recording.add(Rescale(len(recording.events), here(), optimizer, skipped))
        return result

    replaced(undone, scaler, "scale", scale)
    replaced(undone, scaler, "unscale_", unscale)
    replaced(undone, scaler, "step", step)
