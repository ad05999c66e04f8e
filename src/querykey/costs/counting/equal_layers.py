"""Equal layers in a row: two of them run, and the others cost what the second one did.

Only where a layer has the same classes, shapes and settings as the one before it, and gets the same
kind of input; its own number (`layer_idx`) may differ. It is a shortcut of the symbolic pass alone:
counts at concrete sizes, which run every layer, are held against it, module by module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from querykey.costs.counting.trace import FORWARD, Tally
from querykey.costs.private import size_of, storage_key

LEAST = 4  # equal layers, for the shortcut to be worth its while
PLAIN = (bool, float, complex, str, type(None), torch.dtype, torch.device)


@contextmanager
def repeated(model: nn.Module, tally: Tally) -> Iterator[None]:
    """Let equal layers of the model run twice only; the tally is completed at the end."""
    groups = [_Group(tally, layers) for layers in equal_layers(model)]
    replaced: list[nn.Module] = []
    try:
        for group in groups:
            group.replace(replaced)
        yield
    finally:
        for layer in replaced:
            del layer.forward
    for group in reversed(groups):  # those within a layer before the layers
        tally.repeat(group.model_path, group.copies)


def equal_layers(model: nn.Module) -> list[dict[str, nn.Module]]:
    """Numbered siblings that are made alike, by path."""
    found: list[dict[str, nn.Module]] = []
    for path, parent in model.named_modules():
        kinds: list[tuple[int, Any, dict[str, nn.Module]]] = []
        for name, layer in parent.named_children():
            if name.isdigit() and "forward" not in vars(layer):
                number, looks = int(name), _looks(layer)
                same = (kind for n, other, kind in kinds if _alike(n, other, number, looks))
                layers = next(same, None)
                if layers is None:
                    layers = {}
                    kinds.append((number, looks, layers))
                layers[f"{path}.{name}" if path else name] = layer
        found += [layers for _, _, layers in kinds if len(layers) >= LEAST]
    shared = _shared(model)
    return [g for g in found if not any(shared & {*map(id, m.parameters())} for m in g.values())]


class _Group:
    """Layers that are made alike, while one pass runs over them."""

    def __init__(self, tally: Tally, layers: dict[str, nn.Module]):
        self.tally, self.layers = tally, layers
        self.calls = 0
        self.model_path = ""  # the layer that the others copy
        self.given: Any = None  # what went into it
        self.made: list[tuple[Any, ...]] | None = None  # what came out
        self.single = True
        self.copies: list[str] = []

    def replace(self, replaced: list[nn.Module]) -> None:
        """Put a forward of ours before each layer's own, and list the layer."""
        for path, layer in self.layers.items():
            layer.forward = self._forward(path, layer.forward)
            replaced.append(layer)

    def _forward(self, path: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.tally.phase != FORWARD:  # checkpointing runs it once more
                return (
                    self._copy(args, kwargs) if path in self.copies else original(*args, **kwargs)
                )
            self.calls += 1
            if self.calls > len(self.layers):
                raise RuntimeError("a layer that was to be counted once runs again")
            if self.made is not None and self._describe(args, kwargs) == self.given:
                self.copies.append(path)
                return self._copy(args, kwargs)
            given = self._describe(args, kwargs) if self.calls == 2 else None
            out = original(*args, **kwargs)
            if self.calls == 2:
                self.model_path, self.given = path, given
                self._keep(out, args, kwargs)
            return out

        return forward

    def _describe(self, args: Any, kwargs: Any) -> Any:
        """What goes in: shapes and kinds of tensors, and everything else as it is."""
        found = []
        for each in _leaves((args, kwargs)):
            if isinstance(each, torch.Tensor):
                known = self.tally.seen(each)
                found.append((_layout(each), each.dtype, each.device, each.requires_grad, known))
            else:
                plain = isinstance(each, (*PLAIN, int, torch.SymInt))
                found.append(size_of(each) if plain else id(each))
        return found, tuple(kwargs)

    def _keep(self, out: Any, args: Any, kwargs: Any) -> None:
        """Remember how to make such an output, where it is new memory and depends on weights."""
        outs = out if isinstance(out, tuple) else (out,)
        given = {storage_key(t) for t in _leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        plain = type(out) is tuple or isinstance(out, torch.Tensor)
        if plain and all(isinstance(t, torch.Tensor) and t.requires_grad for t in outs):
            keys = {storage_key(t) for t in outs}
            if len(keys) == len(outs) and not keys & given and all(map(_dense, outs)):
                self.single = not isinstance(out, tuple)
                self.made = [(tuple(t.shape), t.dtype, t.device) for t in outs]

    def _copy(self, args: Any, kwargs: Any) -> Any:
        tensors = [t for t in _leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        out = _Copy.apply(self.made, *tensors)
        return out[0] if self.single else tuple(out)


class _Copy(torch.autograd.Function):
    """Outputs of the right shape, and gradients for whatever needs one."""

    @staticmethod
    def forward(ctx: Any, made: list[tuple[Any, ...]], *given: torch.Tensor) -> Any:
        ctx.given = [(tuple(t.shape), t.dtype, t.device) for t in given]
        return tuple(_empty(*each) for each in made)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        needed = ctx.needs_input_grad[1:]
        made = (_empty(*g) if n else None for g, n in zip(ctx.given, needed, strict=True))
        return None, *made


def _empty(shape: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def _looks(layer: nn.Module) -> list[Any]:
    """Everything on which the work of a layer can depend, but the values of its weights."""
    found: list[Any] = []
    for path, module in layer.named_modules():
        found.append((path, type(module)))
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers"):
                found += [(name, key, *_weight(each)) for key, each in value.items()]
            elif name != "_modules":
                found.append(_plain(value))
    return found


def _alike(first: int, looks: list[Any], second: int, others: list[Any]) -> bool:
    """Whether two layers are made alike, but for each one's own number."""
    return len(looks) == len(others) and all(
        a == b or (a == first and b == second) for a, b in zip(looks, others, strict=True)
    )


def _weight(tensor: torch.Tensor | None) -> tuple[Any, ...]:
    if tensor is None:
        return (None,)
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _plain(value: Any) -> Any:
    """A setting as something to compare; what is no plain value is only equal to itself."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, int):
        return value
    if isinstance(value, tuple | list | set | frozenset):
        return type(value), tuple(_plain(each) for each in value)
    if isinstance(value, dict):
        return type(value), tuple((key, _plain(each)) for key, each in value.items())
    return object, id(value)


def _shared(model: nn.Module) -> set[int]:
    """Parameters that several modules hold: their gradients are added up."""
    modules = (module for _, module in model.named_modules(remove_duplicate=False))
    holders = Counter(id(p) for module in modules for p in module.parameters(recurse=False))
    return {each for each, times in holders.items() if times > 1}


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return tuple(size_of(size) for size in sizes)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether it fills its memory in order, found without comparing symbolic sizes."""
    *sizes, offset = _layout(tensor)
    shape, strides = sizes[: tensor.dim()], sizes[tensor.dim() :]
    step: Any = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride - step != 0:
            return False
        step = step * size
    return offset == 0
