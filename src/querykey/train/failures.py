"""Which module is to blame when a loss is not finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from querykey.train.ranks import whole


def first_bad_module(model: nn.Module, passes: Sequence[Callable[[], Any]]) -> str:
    """Say which module is the first to return a number that is not finite, in passes done again."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(whole(parameter.detach())).all():
            return f"the parameter `{name}` is not finite"
    bad: list[str] = []

    def watch(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            parts = output if isinstance(output, tuple | list) else [output]
            for part in parts:
                if isinstance(part, Tensor) and not torch.isfinite(part).all():
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
            if bad:
                return f"`{bad[0]}` is the first module to return a number that is not finite"
    finally:
        for hook in hooks:
            hook.remove()
    return "every module returns finite numbers, so the loss itself is to blame"
