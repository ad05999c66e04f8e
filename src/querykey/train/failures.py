"""Which module is to blame when a loss is not finite."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from querykey.targets import floating
from querykey.train.ranks import whole
from querykey.words import NO_ROOM, is_own, raised


def cause_outside(error: BaseException) -> str:
    """Say what went wrong in a step if it lies in the model's code or in the machine, not in ours.

    The model's code is what a module of torch has called, and what torch differentiates; a caller's
    own `tell` is neither.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        words in str(error) for words in NO_ROOM
    ):
        return "it takes more memory than there is; give a smaller loop.batch or more loop.pieces"
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if torch.autograd.graph.__file__ in files:
        return f"the model's loss cannot be differentiated: {raised(error, 300)}"
    if nn.modules.module.__file__ not in files:
        return ""
    below = files[files.index(nn.modules.module.__file__) :]
    return f"the model raised {raised(error, 300)}" if any(map(is_own, below)) else ""


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
