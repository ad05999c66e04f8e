"""Which parameters the operations of a forward pass read, and which of them nobody registered."""

from __future__ import annotations

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from querykey.laws.understanding.outputs import tensors
from querykey.laws.understanding.reachable import hidden_modules, walk
from querykey.words import a_type

LOOKS_UP = {"embedding", "__getitem__", "index_select", "gather", "take_along_dim"}
VALUES = {"data", "T", "mT", "H", "mH", "real", "imag"}  # attributes that give a tensor's numbers


class Uses(TorchFunctionMode):
    """Notes the ids of all tensors that operations read inside this context."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[int] = set()
        self.looked_up: set[int] = set()  # of those, tables whose rows are chosen by number

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if name != "__get__" or attribute in VALUES:
            read = {id(tensor) for _, tensor in tensors((args, kwargs or {}))}
            self.ids |= read
            if name in LOOKS_UP:
                self.looked_up |= read
        return func(*args, **(kwargs or {}))


def hidden_parameters(model: nn.Module) -> dict[str, tuple[str, torch.Tensor]]:
    """Return, by path, trained tensors that are not registered, each with what it belongs to."""
    hidden: dict[str, tuple[str, torch.Tensor]] = {}
    known = {id(p) for p in model.parameters()}
    for path, module in hidden_modules(model).items():
        count = sum(p.numel() for p in module.parameters())
        what = f"`{path}`, {a_type(module)} of {count:,} parameters,"
        for name, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                known.add(id(parameter))
                hidden[f"{path}.{name}"] = what, parameter
    for path, value in walk(model):
        leaf = isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
        if leaf and id(value) not in known:
            known.add(id(value))
            hidden[path] = f"`{path}`, a tensor that requires a gradient,", value
    return hidden
