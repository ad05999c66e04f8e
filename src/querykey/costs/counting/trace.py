"""One pass over a model, watched: which operations ran, for which module, forward or backward."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
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

from querykey.costs import private
from querykey.costs.counting.data_dependent import PICKING, Picks
from querykey.costs.counting.operations import MOVES, PRODUCTS, WORK, Call, Shape
from querykey.costs.counting.positions import Places
from querykey.costs.private import TorchDispatchMode, size_of, storage_key

FORWARD, BACKWARD = "forward", "backward"


class Tally(TorchDispatchMode):
    """Counts calls by (call, module, phase), and what autograd saves by module.

    A module is the path of the innermost one that runs; in the backward pass it is the one that
    ran when the node of the graph was made, found by the node's sequence number. (Following the
    tensors that enter and leave a module instead goes wrong where they are keyword arguments.)
    """

    def __init__(
        self,
        model: nn.Module,
        formulas: frozenset[str] = frozenset(),
        valueless: bool = True,
        picks: Picks | None = None,
    ):
        super().__init__()
        self.valueless, self.picks = valueless, picks
        self.calls: Counter[tuple[Call, str, str]] = Counter()
        self.unknown: Counter[tuple[str, str]] = Counter()  # (operation, module)
        self.saved: list[tuple[str, Any]] = []  # (module, bytes), each piece of memory once
        self.hidden: Counter[tuple[Call, str]] = Counter()  # attention that a causal flag hides
        self.paths = {id(module): path for path, module in model.named_modules()}
        self.phase = FORWARD
        self.repeated = False  # whether some modules were not run, being equal to others
        self.counting = True
        self._formulas = formulas
        self._stack: list[str] = []
        self._starts: list[int] = []  # sequence number at which the module below began to run
        self._owners: list[str] = []
        self._kinds: dict[Any, str] = {}
        self._seen: dict[int, Any] = {}
        self._places = Places()

    @contextmanager
    def watch(self, known: list[torch.Tensor]) -> Iterator[None]:
        """Watch modules, operations and saved tensors; `known` ones are not new."""
        for tensor in known:
            self._remember(tensor)
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            stack.callback(register_module_forward_hook(self._leave, always_call=True).remove)
            stack.enter_context(
                torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)
            )
            stack.enter_context(self)
            self._mark()
            yield

    @property
    def module(self) -> str:
        """The path of the module to which work belongs now."""
        if self._stack or self.phase == FORWARD:
            return self._stack[-1] if self._stack else ""
        node = private.running_node()
        place = bisect_right(self._starts, node) - 1 if node is not None else -1
        return self._owners[place] if place >= 0 else ""

    def seen(self, tensor: torch.Tensor) -> bool:
        """Whether its memory is known: a weight, an input, or saved before."""
        return storage_key(tensor) in self._seen

    def repeat(self, path: str, copies: list[str]) -> None:
        """Count for every copy what a module did, its children included."""

        def paths(of: str) -> list[str]:
            inside = of == path or of.startswith(f"{path}.")
            return [copy + of[len(path) :] for copy in copies] if inside else []

        if not copies:
            return
        self.repeated = True
        for (call, of, phase), times in list(self.calls.items()):
            self.calls.update({(call, to, phase): times for to in paths(of)})
        for (op, of), times in list(self.unknown.items()):
            self.unknown.update({(op, to): times for to in paths(of)})
        for (call, of), times in list(self.hidden.items()):
            self.hidden.update({(call, to): times for to in paths(of)})
        self.saved += [(to, size) for of, size in self.saved for to in paths(of)]

    def record(self, call: Call) -> None:
        """Count a call that is not an operation of torch."""
        if self.counting:
            self.calls[call, self.module, self.phase] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Shapes and devices are asked for a thousand times below here; no mode above needs to know.
        with private.no_torch_function():
            out = self._dispatch(func, args, kwargs or {})
            if self.valueless:
                self._places.note(func, args, out)
            return out

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = self._kind_of(func)
        if kind == "free":
            return func(*args, **kwargs)
        if kind == "padding":
            return self._pad(func, args, kwargs)
        if kind == "picking" and self.picks is not None:
            return self.picks.run(_name(func), func, args, kwargs, self.module)
        if kind == "unknown":
            return self._unfold(func, args, kwargs)
        shape = SHAPES.get(_name(func)) if self.valueless else None
        if shape is not None:
            out = args[0].new_empty(shape(*args))
        else:
            out = func(*args, **kwargs)
        if self.picks is not None:
            self.picks.note(_name(func), args, out)
        if self.counting:
            call = describe(_name(func), args, kwargs, out, kind)
            if kind == "registered":
                flops = flop_registry[_packet(func)](*args, **kwargs, out_val=out)
                call = replace(call, flops=size_of(flops))
            self.calls[call, self.module, self.phase] += 1
        return out

    def _kind_of(self, func: Any) -> str:
        name = _name(func)
        if name == "aten.constant_pad_nd":
            return "padding"
        if self.picks is not None and name in PICKING:
            return "picking"
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

    def _pad(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Padding by a symbolic amount, which torch's own rule does not let through."""
        tensor, pad = args[0], args[1]
        if not any(isinstance(size, torch.SymInt) for size in pad):
            return func(*args, **kwargs)
        shape = list(tensor.shape)
        for axis in range(len(pad) // 2):
            shape[-1 - axis] = shape[-1 - axis] + pad[2 * axis] + pad[2 * axis + 1]
        # The result keeps the layout, on which it depends what is copied, and saved, later.
        layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
        if (
            layout is None
            or tensor.is_contiguous()
            or not tensor.is_contiguous(memory_format=layout)
        ):
            layout = torch.contiguous_format
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device, memory_format=layout)

    def _unfold(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation without a formula as the operations it is made of, or list it."""
        if isinstance(func, torch._ops.OpOverload):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if self.counting and describe(_name(func), args, kwargs, out, "").floating:
            self.unknown[_name(func), self.module] += 1
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
        self._starts.append(private.next_node())
        self._owners.append(self._stack[-1] if self._stack else "")

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.phase == FORWARD and self.counting and not self.seen(tensor):
            size = size_of(tensor.untyped_storage().nbytes())
            self.saved.append((self.module, size))
            self._remember(tensor)
        return tensor

    def _remember(self, tensor: torch.Tensor) -> None:
        # The memory is held on to: were it freed, its key could come again for another piece.
        self._seen[storage_key(tensor)] = tensor.untyped_storage()


def _grouped_shape(a: Any, b: Any, offsets: Any = None, *rest: Any) -> tuple[Any, ...]:
    if a.dim() == 2 and b.dim() == 2:
        return offsets.shape[0], a.shape[0], b.shape[1]
    if a.dim() == 2 or b.dim() == 2:
        return a.shape[-2], b.shape[-1]
    return a.shape[0], a.shape[1], b.shape[2]


# Operations that run on more than what torch's own rule for their shapes lets through.
SHAPES = {"aten._grouped_mm": _grouped_shape}


def describe(name: str, args: Any, kwargs: Any, out: Any, kind: str) -> Call:
    """Reduce a call to its shapes and constants."""
    floating: list[bool] = []
    reduced = tuple(_reduce(each, floating) for each in args)
    if kwargs:
        reduced += tuple(_reduce(each, floating) for each in kwargs.values())
    outs = out if isinstance(out, tuple | list) else (out,)
    shapes = tuple(_reduce(each, floating) for each in outs if isinstance(each, torch.Tensor))
    return Call(name, reduced, shapes, any(floating), kind)


def _reduce(value: Any, floating: list[bool]) -> Any:
    if isinstance(value, torch.Tensor):
        floating.append(value.dtype.is_floating_point or value.dtype.is_complex)
        return Shape(size_of(size) for size in value.shape)
    if isinstance(value, tuple | list):
        return tuple(_reduce(each, floating) for each in value)
    if isinstance(value, torch.SymInt):
        return size_of(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return str(value) if isinstance(value, torch.dtype) else type(value).__name__


def _packet(func: Any) -> Any:
    return getattr(func, "overloadpacket", func)


def _name(func: Any) -> str:
    return str(_packet(func))
