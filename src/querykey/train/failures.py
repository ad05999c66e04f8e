"""Which module is to blame when a loss is not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from querykey.targets import floating
from querykey.train.ranks import whole


def first_bad_module(model: nn.Module, passes: Sequence[Callable[[], Any]]) -> str:
    """Say which module is the first to return a number that is not finite, in passes done again.

    All passes are done, for the ranks of a sharded model do them together.
    """
    for name, parameter in model.named_parameters():
        if not torch.isfinite(whole(parameter.detach())).all():
            return f"the parameter `{name}` is not finite"
    bad: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not all(torch.isfinite(tensor).all() for tensor in floating(output)):
                bad.append(name)

        return hook

    hooks = [
        module.register_forward_hook(watch(name or type(module).__name__))
        for name, module in model.named_modules()
    ]
    try:
        for again in passes:
            with torch.no_grad():
                again()
    finally:
        for hook in hooks:
            hook.remove()
    if bad:
        return f"`{bad[0]}` is the first module to return a number that is not finite"
    return "every module returns finite numbers, so the loss itself is to blame"


def bad_gradients(model: nn.Module) -> str:
    """Name the first parameters whose gradient is not finite, and how many there are."""
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not torch.isfinite(whole(parameter.grad)).all()
    ]
    if not names:  # each is finite, and the sum of their squares is not
        return "all parameters together"
    others = f" and {len(names) - 1} other parameters" if len(names) > 1 else ""
    return f"`{names[0]}`{others}"
