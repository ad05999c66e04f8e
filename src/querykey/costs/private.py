"""Every name of torch that is not public and that this room needs, in one place.

`TorchDispatchMode`, `next_node` and `running_node` serve both engines. The rest makes symbolic
shapes; where a torch cannot load it, `symbolic_shapes()` is None and interpolation serves alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import sympy
import torch
from sympy.core.operations import LatticeOp
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode


def _floor(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    quotient = sympy.expand(a / b)
    if quotient.could_extract_minus_sign():
        return -sympy.ceiling(-quotient)
    return sympy.floor(quotient)


def _mod(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    return a - b * _floor(a, b)  # so that padding to a multiple becomes a ceiling


PLAIN = {
    "FloorDiv": _floor,
    "CleanDiv": lambda a, b: a / b,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "Mod": _mod,
    "PythonMod": _mod,
    "ModularIndexing": lambda a, b, c: _mod(_floor(a, b), c),
    "Max": sympy.Max,
    "Min": sympy.Min,
    "PowByNatural": sympy.Pow,
    "CeilToInt": sympy.ceiling,
    "FloorToInt": sympy.floor,
    "ToFloat": lambda a: a,
    "TruncToInt": sympy.floor,  # sizes are positive, where both agree
    "Identity": lambda a: a,
}


def _asked_mod(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    return sympy.Mod(a, b) if b.is_number else _mod(a, b)


AS_ASKED = {**PLAIN, "Mod": _asked_mod, "PythonMod": _asked_mod}  # as a person writes `t % 8 == 0`


def no_torch_function() -> AbstractContextManager[Any]:
    """A context in which functions of torch pass by every mode and subclass that overrides them."""
    return torch._C.DisableTorchFunction()


def next_node() -> int:
    """The sequence number that the next node of this thread's autograd graph will get."""
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]


def running_node() -> int | None:
    """The sequence number of the node whose backward runs now."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def storage_key(tensor: torch.Tensor) -> int:
    """The same for every tensor that views the same memory, real or fake."""
    return tensor.untyped_storage()._cdata


def size_of(size: Any) -> Any:
    """A size as an int, or as the sympy expression behind a symbolic one."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def static_shapes() -> AbstractContextManager[Any]:
    """A mode in which tensors have concrete shapes and no values; real ones where it is absent."""
    found = symbolic_shapes()
    if found is None:
        return nullcontext()
    return found["FakeTensorMode"](allow_non_fake_inputs=True)


def fake(mode: Any, tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A valueless copy of a tensor within the mode, its shape fixed."""
    if isinstance(mode, nullcontext):
        return tensor.to(device)
    if tensor.device.type != device:
        tensor = tensor.to("meta")
        return mode.from_tensor(tensor, static_shapes=True).to(device)
    return mode.from_tensor(tensor, static_shapes=True)


def fake_weight(mode: Any, tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The same for a leaf of the graph, outside the mode; quick where it has memory of its own."""
    parts, plain = symbolic_shapes(), type(tensor) in (torch.Tensor, torch.nn.Parameter)
    plain = plain and tensor.layout is torch.strided and not tensor.is_quantized
    if parts and plain and tensor.untyped_storage().nbytes() == tensor.nbytes:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        return parts["FakeTensor"](mode, made, device, requires_grad=tensor.requires_grad)
    made = fake(mode, tensor.detach(), device)
    return made.detach().requires_grad_(tensor.requires_grad)


@cache
def symbolic_shapes() -> dict[str, Any] | None:
    """The parts of torch that carry symbolic shapes, or None where this torch lacks them."""
    try:
        from torch._dynamo.source import ConstantSource
        from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import (
            DimDynamic,
            GuardOnDataDependentSymNode,
            ShapeEnv,
        )
    except ImportError:
        return None
    return {
        "ConstantSource": ConstantSource,
        "FakeTensor": FakeTensor,
        "FakeTensorMode": FakeTensorMode,
        "DimDynamic": DimDynamic,
        "ShapeEnv": ShapeEnv,
        "DataDependent": GuardOnDataDependentSymNode,
    }


class Symbols:
    """Named sizes as torch's symbolic integers, and what torch concluded about them."""

    def __init__(self, hints: dict[str, int], steps: Mapping[str, int]):
        parts = symbolic_shapes()
        assert parts is not None
        self.environment: Any = parts["ShapeEnv"](duck_shape=False)
        self.mode: Any = parts["FakeTensorMode"](
            shape_env=self.environment, allow_non_fake_inputs=True
        )
        # What torch remembers of an operation is dear with symbols, and few come more than twice.
        self.mode.cache_enabled = False
        self.sizes: dict[str, Any] = {}
        self.hints: dict[str, int] = {}
        self.names: dict[sympy.Symbol, sympy.Expr] = {}
        self._labels: dict[sympy.Symbol, str] = {}
        for name, hint in hints.items():
            self.add(name, hint, steps.get(name, 1))

    def add(self, name: str, hint: int, step: int = 1) -> Any:
        """One more size, with a number that stands for it where the model compares.

        With a step it is so many times a symbol, so that what divides the step divides it.
        """
        parts = symbolic_shapes()
        assert parts is not None
        source = parts["ConstantSource"](f"size_{name}")
        times = hint // step
        symbol = self.environment.create_symbol(times, source, parts["DimDynamic"].DYNAMIC)
        node = self.environment.create_symintnode(symbol, hint=times, source=source)
        self.sizes[name] = node * step if step > 1 else node
        self.names[symbol], self._labels[symbol] = sympy.Symbol(name) / step, name
        self.hints[name] = hint
        return self.sizes[name]

    def baked(self) -> dict[str, Any]:
        """The sizes that the model turned into a number (or into one another), by name."""
        return {
            self._labels[symbol]: self.plain(value)
            for symbol, value in self.environment.replacements.items()
            if symbol in self.names
        }

    def guards(self) -> list[sympy.Basic]:
        """What must hold of the sizes for the run to be the same, in the user's names."""
        return [self.plain(guard.expr, AS_ASKED) for guard in self.environment.guards]

    def plain(self, expression: Any, functions: Mapping[str, Any] = PLAIN) -> Any:
        """An expression in the user's names and in sympy's own functions."""
        if isinstance(expression, int):
            return sympy.Integer(expression)
        found = expression.xreplace(self.names)
        # Functions and, as torch writes them, lattices: the smaller and the larger of two sizes.
        if found.atoms(sympy.Function, LatticeOp):
            found = found.replace(
                lambda e: type(e).__module__.startswith("torch"),
                lambda e: functions.get(type(e).__name__, e.func)(*e.args),
            )
        return found
