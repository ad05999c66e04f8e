"""Watch one pass over a model: which operations run, for which module, forward or backward."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.flop_counter import flop_registry

from querykey.costs.counting.data_dependent import DATA_DEPENDENT, DataDependentSizes
from querykey.costs.counting.depths import Depths
from querykey.costs.counting.operations import MOVES, PRODUCTS, WORK, Operation, Shape
from querykey.costs.counting.positions import Positions
from querykey.costs.counting.traffic import Traffic
from querykey.costs.memory.timeline import Timeline, work_space
from querykey.costs.private import (
    OpOverload,
    TorchDispatchMode,
    next_node,
    no_torch_function,
    running_node,
    size_of,
    storage_key,
)

FORWARD, BACKWARD = "forward", "backward"


class Trace(TorchDispatchMode):
    """Counts operations by (operation, module, phase), and what autograd saves by module.

    The module is the path of the innermost one that runs. In the backward pass it is the module
    that ran when the node of the graph was created, found by the node's sequence number. (Following
    the tensors that enter and leave a module would go wrong for keyword arguments.)
    """

    def __init__(
        self,
        model: nn.Module,
        formulas: frozenset[str] = frozenset(),
        valueless: bool = True,
        data_dependent: DataDependentSizes | None = None,
    ):
        super().__init__()
        self.valueless, self.data_dependent = valueless, data_dependent
        self.operations: Counter[tuple[Operation, str, str]] = Counter()
        self.unknown: Counter[tuple[str, str]] = Counter()  # (name of the operation, module)
        self.saved: list[tuple[str, Any]] = []  # (module, bytes), each piece of memory once
        self.state: list[Any] = []  # bytes of every tensor that generation hands on
        self.causal: Counter[tuple[Operation, str]] = Counter()  # attention with a causal flag
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.phase = FORWARD
        self.copied = False  # whether some layers were not run, being equal to others
        self.counting = True
        self.timeline: Timeline | None = None  # watched instead of costs, where there is one
        self.depths: Depths | None = None  # the same for chains of operations
        self.traffic: Traffic | None = None  # watched beside the costs, where there is one
        self._formulas = formulas
        self._stack: list[str] = []
        self._starts: list[int] = []  # the sequence number at which a module began to run
        self._owners: list[str] = []  # and that module
        self._kinds: dict[Any, tuple[str, str]] = {}  # by operation: its name and kind
        self._seen: dict[int, Any] = {}
        self._positions = Positions()

    @contextmanager
    def watch(self, excluded: list[torch.Tensor]) -> Iterator[None]:
        """Watch modules, operations and saved tensors; the memory of `excluded` is not counted."""
        for tensor in excluded:
            self._remember(tensor)
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            stack.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            if self.timeline is None:  # the hooks would hold what they see
                stack.enter_context(
                    torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)
                )
            stack.enter_context(self)
            self._mark()
            yield

    @property
    def module(self) -> str:
        """Return the path of the module to which work belongs now."""
        if self._stack or self.phase == FORWARD:
            return self._stack[-1] if self._stack else ""
        node = running_node()
        place = bisect_right(self._starts, node) - 1 if node is not None else -1
        return self._owners[place] if place >= 0 else ""

    def seen(self, tensor: torch.Tensor) -> bool:
        """Return whether its memory is a weight's, an input's, or was saved before."""
        return storage_key(tensor) in self._seen

    def copy_module(self, path: str, copies: list[str]) -> None:
        """Count for every copy what one module did, its children included."""

        def targets(of: str) -> list[str]:
            inside = of == path or of.startswith(f"{path}.")
            return [copy + of[len(path) :] for copy in copies] if inside else []

        if not copies:
            return
        self.copied = True
        for (operation, of, phase), times in list(self.operations.items()):
            self.operations.update({(operation, to, phase): times for to in targets(of)})
        for (name, of), times in list(self.unknown.items()):
            self.unknown.update({(name, to): times for to in targets(of)})
        for (operation, of), times in list(self.causal.items()):
            self.causal.update({(operation, to): times for to in targets(of)})
        self.saved += [(to, size) for of, size in self.saved for to in targets(of)]
        if self.traffic is not None:
            self.traffic.copy_module(targets)

    def record(
        self,
        operation: Operation,
        read: Iterable[torch.Tensor] = (),
        written: Iterable[torch.Tensor] = (),
    ) -> None:
        """Count an operation that is not one of torch's own, with what it reads and writes."""
        if self.counting:
            self.operations[operation, self.module, self.phase] += 1
            if self.traffic is not None:
                self.traffic.record(operation, read, written, (self.module, self.phase))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Shapes and devices are read very often below; no mode above this one needs to see it.
        with no_torch_function():
            entry = self._kinds.get(func)
            if entry is None:
                name = str(_packet(func))
                entry = self._kinds[func] = name, self._kind_of(name, func)
            decomposed = entry[1] == "unknown"
            if self.timeline is not None:
                return self._follow(self.timeline, *entry, func, args, kwargs or {})
            out = self._dispatch(*entry, func, args, kwargs or {})
            if self.depths is not None and not decomposed:
                operation = describe(entry[0], args, kwargs or {}, out, entry[1])
                self.depths.follow(operation, (args, kwargs or {}), out)
            elif self.traffic is not None and not decomposed:
                self._move(*entry, func, args, kwargs or {}, out)
            elif self.valueless and self.depths is None:
                self._positions.follow(entry[0], args, out)
            return out

    def _follow(
        self, timeline: Timeline, name: str, kind: str, func: Any, args: Any, kwargs: Any
    ) -> Any:
        """Run one operation and tell the timeline about its results; nothing is counted."""
        shape = SHAPES.get(name) if self.valueless else None
        if kind == "padding":
            out = _pad(func, args, kwargs)
        elif shape is not None:
            out = args[0].new_empty(shape(*args))
        else:
            out = func(*args, **kwargs)
        taken = out, work_space(name, args, out)
        timeline.follow(name, taken, self.module, self.phase == BACKWARD)
        return out

    def _dispatch(self, name: str, kind: str, func: Any, args: Any, kwargs: Any) -> Any:
        if kind == "free":
            return func(*args, **kwargs)
        if kind == "padding":
            return _pad(func, args, kwargs)
        if kind == "data-dependent" and self.data_dependent is not None:
            return self.data_dependent.run(name, func, args, kwargs, self.module)
        if kind == "unknown":
            return self._decompose(name, func, args, kwargs)
        shape = SHAPES.get(name) if self.valueless else None
        if shape is not None:
            out = args[0].new_empty(shape(*args))
        else:
            out = func(*args, **kwargs)
        if self.data_dependent is not None:
            self.data_dependent.follow(name, args, out)
        if self.counting:
            operation = _operation(name, kind, func, args, kwargs, out)
            self.operations[operation, self.module, self.phase] += 1
        return out

    def _move(self, name: str, kind: str, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Tell what an operation reads and writes to the traffic that is watched."""
        if self.traffic is not None and self.counting:
            operation = _operation(name, kind, func, args, kwargs, out)
            where = self.module, self.phase
            self.traffic.follow(operation, func, args, kwargs, out, where)

    def _kind_of(self, name: str, func: Any) -> str:
        if name == "aten.constant_pad_nd":
            return "padding"
        if self.data_dependent is not None and name in DATA_DEPENDENT:
            return "data-dependent"
        if name in PRODUCTS or name in WORK or name in self._formulas:
            return "formula"
        if name.startswith("prim.") or name in MOVES or getattr(func, "is_view", False):
            return "free"
        if _packet(func) in flop_registry:
            return "registered"
        tags = getattr(func, "tags", ())
        if torch.Tag.pointwise in tags:
            return "pointwise"
        return "reduction" if torch.Tag.reduction in tags else "unknown"

    def _decompose(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation without a formula as the operations it consists of, or list it."""
        if isinstance(func, OpOverload):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if self.depths is not None:
            self.depths.unknown[name] = None
        self._move(name, "unknown", func, args, kwargs, out)
        if self.counting and describe(name, args, kwargs, out, "").floating:
            self.unknown[name, self.module] += 1
        return out

    def _enter(self, module: nn.Module, args: Any) -> None:
        path = self.paths.get(id(module))
        if path is not None:
            self._stack.append(path)
            self._mark()

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        path = self.paths.get(id(module))
        if path is not None and path in self._stack:
            while self._stack.pop() != path:
                pass
            self._mark()

    def _mark(self) -> None:
        self._starts.append(next_node())
        self._owners.append(self._stack[-1] if self._stack else "")

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.phase == FORWARD and self.counting and not self.seen(tensor):
            size = size_of(tensor.untyped_storage().nbytes())
            self.saved.append((self.module, size))
            self._remember(tensor)
        return tensor

    def _remember(self, tensor: torch.Tensor) -> None:
        # The storage is held: if it were freed, another one could get the same key.
        self._seen[storage_key(tensor)] = tensor.untyped_storage()


def _pad(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the shape of padding where a size is symbolic, of which torch's own makes a number."""
    tensor, pad = args[0], args[1]
    if not any(isinstance(size, torch.SymInt) for size in (*tensor.shape, *pad)):
        return func(*args, **kwargs)
    shape = list(tensor.shape)
    for axis in range(len(pad) // 2):
        shape[-1 - axis] = shape[-1 - axis] + pad[2 * axis] + pad[2 * axis + 1]
    # The result keeps the memory layout, which decides what later operations copy and save.
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if layout is None or tensor.is_contiguous() or not tensor.is_contiguous(memory_format=layout):
        layout = torch.contiguous_format
    return torch.empty(shape, dtype=tensor.dtype, device=tensor.device, memory_format=layout)


def _grouped_shape(a: Any, b: Any, offsets: Any = None, *rest: Any) -> tuple[Any, ...]:
    if a.dim() == 2 and b.dim() == 2:
        return offsets.shape[0], a.shape[0], b.shape[1]
    if a.dim() == 2 or b.dim() == 2:
        return a.shape[-2], b.shape[-1]
    return a.shape[0], a.shape[1], b.shape[2]


# Shapes of operations for which torch's own rule is stricter than the operation itself.
SHAPES = {"aten._grouped_mm": _grouped_shape}


def describe(name: str, args: Any, kwargs: Any, out: Any, kind: str) -> Operation:
    """Return a call of an operation reduced to its shapes and constants."""
    floating: list[bool] = []
    reduced = tuple(_reduce(arg, floating) for arg in args)
    if kwargs:
        reduced += tuple(_reduce(arg, floating) for arg in kwargs.values())
    outs = out if isinstance(out, tuple | list) else (out,)
    shapes = tuple(_reduce(result, floating) for result in outs if isinstance(result, torch.Tensor))
    return Operation(name, reduced, shapes, any(floating), kind)


def _reduce(value: Any, floating: list[bool]) -> Any:
    if isinstance(value, torch.Tensor):
        floating.append(value.dtype.is_floating_point or value.dtype.is_complex)
        return Shape(size_of(size) for size in value.shape)
    if isinstance(value, tuple | list):
        return tuple(_reduce(element, floating) for element in value)
    if isinstance(value, torch.SymInt):
        return size_of(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return str(value) if isinstance(value, torch.dtype) else type(value).__name__


def _operation(name: str, kind: str, func: Any, args: Any, kwargs: Any, out: Any) -> Operation:
    """Return a call reduced to shapes, with the FLOPs of torch's registry where that has them."""
    operation = describe(name, args, kwargs, out, kind)
    if kind == "registered":
        flops = flop_registry[_packet(func)](*args, **kwargs, out_val=out)
        operation = replace(operation, flops=size_of(flops))
    return operation


def _packet(func: Any) -> Any:
    return getattr(func, "overloadpacket", func)
