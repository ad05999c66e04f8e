"""Run two of several equal layers, and count for the others what the second one cost.

Layers are equal where they have the same classes, shapes and settings, but for their own number
(`layer_idx`), and get the same kind of input. Only the symbolic pass takes this shortcut; counts at
concrete sizes, which run every layer, check its results module by module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from querykey.costs.counting.trace import FORWARD, Trace
from querykey.costs.inputs import leaves
from querykey.costs.private import CHILDREN, WEIGHTS, size_of, storage_key

LEAST = 4  # the number of equal layers from which on the shortcut saves time
PLAIN = (bool, float, complex, str, type(None), torch.dtype, torch.device)


@contextmanager
def two_of_equal_layers(model: nn.Module, trace: Trace) -> Iterator[None]:
    """Let only two of equal layers run; at the end the trace gets the counts of the others."""
    groups = [_Group(trace, layers) for layers in equal_layers(model)]
    replaced: list[nn.Module] = []
    try:
        for group in groups:
            group.replace(replaced)
        yield
    finally:
        for layer in replaced:
            del layer.forward
    for group in reversed(groups):  # groups within a layer come before the group of that layer
        trace.copy_module(group.second_path, group.copies)


def equal_layers(model: nn.Module) -> list[dict[str, nn.Module]]:
    """Return the groups of numbered siblings with equal settings, each group by path."""
    groups: list[dict[str, nn.Module]] = []
    for path, parent in model.named_modules():
        kinds: list[tuple[int, Any, dict[str, nn.Module]]] = []
        for name, layer in parent.named_children():
            if name.isdigit() and "forward" not in vars(layer):
                number, settings = int(name), _settings(layer)
                same = (kind for n, other, kind in kinds if _equal(n, other, number, settings))
                layers = next(same, None)
                if layers is None:
                    layers = {}
                    kinds.append((number, settings, layers))
                layers[f"{path}.{name}" if path else name] = layer
        groups += [layers for _, _, layers in kinds if len(layers) >= LEAST]
    shared = _shared(model)
    return [g for g in groups if not any(shared & {*map(id, m.parameters())} for m in g.values())]


class _Group:
    """Layers with equal settings, while one pass runs over them."""

    def __init__(self, trace: Trace, layers: dict[str, nn.Module]):
        self.trace, self.layers = trace, layers
        self.calls = 0
        self.second_path = ""  # the layer whose counts the others get
        self.second_inputs: Any = None  # a description of what went into it
        self.outputs: list[tuple[Any, ...]] | None = None  # shape, dtype and device of each output
        self.single = True
        self.copies: list[str] = []

    def replace(self, replaced: list[nn.Module]) -> None:
        """Put our forward before each layer's own, and add the layer to `replaced`."""
        for path, layer in self.layers.items():
            layer.forward = self._forward(path, layer.forward)
            replaced.append(layer)

    def _forward(self, path: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.trace.phase != FORWARD:  # checkpointing runs the layer once more
                return (
                    self._copy(args, kwargs) if path in self.copies else original(*args, **kwargs)
                )
            self.calls += 1
            if self.calls > len(self.layers):
                raise RuntimeError("a layer that was to be counted once runs again")
            if self.outputs is not None and self._describe(args, kwargs) == self.second_inputs:
                self.copies.append(path)
                return self._copy(args, kwargs)
            inputs = self._describe(args, kwargs) if self.calls == 2 else None
            out = original(*args, **kwargs)
            if self.calls == 2:
                self.second_path, self.second_inputs = path, inputs
                self._remember(out, args, kwargs)
            return out

        return forward

    def _describe(self, args: Any, kwargs: Any) -> Any:
        """Return the shapes and kinds of the tensors that go in, and other values as they are."""
        described = []
        for value in leaves((args, kwargs)):
            if isinstance(value, torch.Tensor):
                kind = value.dtype, value.device, value.requires_grad, self.trace.seen(value)
                described.append((_layout(value), *kind))
            else:
                plain = isinstance(value, (*PLAIN, int, torch.SymInt))
                described.append(size_of(value) if plain else id(value))
        return described, tuple(kwargs)

    def _remember(self, out: Any, args: Any, kwargs: Any) -> None:
        """Remember the output's shapes, where it is new memory and depends on weights."""
        outs = out if isinstance(out, tuple) else (out,)
        inputs = {storage_key(t) for t in leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        plain = type(out) is tuple or isinstance(out, torch.Tensor)
        if plain and all(isinstance(t, torch.Tensor) and t.requires_grad for t in outs):
            keys = {storage_key(t) for t in outs}
            if len(keys) == len(outs) and not keys & inputs and all(map(_dense, outs)):
                self.single = not isinstance(out, tuple)
                self.outputs = [(tuple(t.shape), t.dtype, t.device) for t in outs]

    def _copy(self, args: Any, kwargs: Any) -> Any:
        tensors = [t for t in leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        out = _Copy.apply(self.outputs, *tensors)
        return out[0] if self.single else tuple(out)


class _Copy(torch.autograd.Function):
    """Outputs of the right shapes, and gradients for the inputs that need one."""

    @staticmethod
    def forward(ctx: Any, outputs: list[tuple[Any, ...]], *inputs: torch.Tensor) -> Any:
        ctx.inputs = [(tuple(t.shape), t.dtype, t.device) for t in inputs]
        return tuple(_empty(*output) for output in outputs)

    @staticmethod
    def backward(ctx: Any, *output_gradients: Any) -> Any:
        needed = ctx.needs_input_grad[1:]
        gradients = (_empty(*i) if n else None for i, n in zip(ctx.inputs, needed, strict=True))
        return None, *gradients


def _empty(shape: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def _settings(layer: nn.Module) -> list[Any]:
    """Return everything on which a layer's work can depend, but the values of its weights."""
    settings: list[Any] = []
    for path, module in layer.named_modules():
        settings.append((path, type(module)))
        for name, value in vars(module).items():
            if name in WEIGHTS:
                settings += [(name, key, *_weight(tensor)) for key, tensor in value.items()]
            elif name != CHILDREN:
                settings.append(_comparable(value))
    return settings


def _equal(first: int, settings: list[Any], second: int, others: list[Any]) -> bool:
    """Return whether two layers have equal settings, but for each one's own number."""
    return len(settings) == len(others) and all(
        a == b or (a == first and b == second) for a, b in zip(settings, others, strict=True)
    )


def _weight(tensor: torch.Tensor | None) -> tuple[Any, ...]:
    if tensor is None:
        return (None,)
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _comparable(value: Any) -> Any:
    """Return a setting in a form that compares; an object of any other class equals only itself."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, int):
        return value
    if isinstance(value, tuple | list | set | frozenset):
        return type(value), tuple(_comparable(element) for element in value)
    if isinstance(value, dict):
        return type(value), tuple((key, _comparable(element)) for key, element in value.items())
    if isinstance(value, partial):  # such as an activation with its approximation
        return partial, *map(_comparable, (value.func, value.args, value.keywords))
    return object, id(value)


def _shared(model: nn.Module) -> set[int]:
    """Return the ids of parameters that several modules hold; their gradients are summed."""
    modules = (module for _, module in model.named_modules(remove_duplicate=False))
    holders = Counter(id(p) for module in modules for p in module.parameters(recurse=False))
    return {key for key, times in holders.items() if times > 1}


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    sizes = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return tuple(size_of(size) for size in sizes)


def _dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor fills its memory in order, without comparing symbolic sizes."""
    *sizes, offset = _layout(tensor)
    shape, strides = sizes[: tensor.dim()], sizes[tensor.dim() :]
    step: Any = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride - step != 0:
            return False
        step = step * size
    return offset == 0
