"""All private names of torch that the costs need, in this one file.

Both engines use `TorchDispatchMode`, `next_node` and `running_node`. Symbolic sizes need the rest;
where a version of torch lacks it, `symbolic_shapes()` returns None and only interpolation is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import sympy
import torch
from sympy.core.operations import LatticeOp
from torch._ops import OpOverload as OpOverload
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

# The attributes in which a module keeps its weights, and its children.
WEIGHTS = ("_parameters", "_buffers")
CHILDREN = "_modules"


def _floor(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    quotient = sympy.expand(a / b)
    whole = sympy.Add(*(term for term in sympy.Add.make_args(quotient) if _is_whole(term)))
    rest = quotient - whole
    if rest.could_extract_minus_sign():
        return whole - sympy.ceiling(-rest)
    return whole + sympy.floor(rest)


def _is_whole(term: sympy.Expr) -> bool:
    """Return whether a term is a whole number wherever the sizes in it are."""
    powers: Any = term.as_powers_dict()
    return all(
        (base.is_Integer or base.is_Symbol or isinstance(base, sympy.floor | sympy.ceiling))
        and power.is_Integer
        and power > 0
        for base, power in powers.items()
    )


def _mod(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    return a - b * _floor(a, b)  # written so, padding to a multiple simplifies to a ceiling


class Rounded(sympy.Function):
    """A number rounded as Python's `round` does it, halves to the even side."""

    @classmethod
    def eval(cls, size: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the number where the argument is one."""
        return sympy.Integer(round(float(size))) if size.is_number else None

    def _sympystr(self, printer: Any) -> str:
        return f"round({printer.doprint(self.args[0])})"


# torch's own functions of symbolic sizes, by name, as sympy's.
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
    "RoundToInt": Rounded,
    "ToFloat": lambda a: a,
    "TruncToInt": sympy.floor,  # sizes are positive, where both agree
    "Identity": lambda a: a,
    "FloatPow": sympy.Pow,
    "OpaqueUnaryFn_sqrt": sympy.sqrt,
}
CYCLES = 2e9  # of a GPU in a second, at most
EXACT = 1024  # a number such as 0.25 is a fraction of at most this denominator, and exact


def _written_mod(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    return sympy.Mod(a, b) if b.is_number else _mod(a, b)


# The same for conditions, in which a remainder stays as a person writes it: `t % 8 == 0`.
IN_CONDITIONS = {**PLAIN, "Mod": _written_mod, "PythonMod": _written_mod}


def _exact(number: sympy.Float) -> Any:
    """Return a float as a fraction where that changes no product; 0.3 times 10 is rounded."""
    fraction = Fraction(float(number))
    if fraction.denominator <= EXACT:
        return sympy.Rational(fraction.numerator, fraction.denominator)
    return number


def no_torch_function() -> AbstractContextManager[Any]:
    """Return a context in which no mode and no subclass overrides the functions of torch."""
    return torch._C.DisableTorchFunction()


def next_node() -> int:
    """Return the sequence number that the next node of this thread's autograd graph will get."""
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]


def running_node() -> int | None:
    """Return the sequence number of the autograd node whose backward runs now."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def run_backward(output: torch.Tensor, gradient: torch.Tensor) -> None:
    """Do what `output.backward(gradient)` does, with all modes of torch functions still on.

    What checkpointing runs again in the backward pass then runs as it did in the forward pass.
    """
    torch.autograd.Variable._execution_engine.run_backward(
        (output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def keep_device_busy(seconds: float) -> None:
    """Let the GPU wait for some time, in which the host can queue work behind it."""
    torch.cuda._sleep(int(CYCLES * seconds))


def version_of(tensor: torch.Tensor) -> int:
    """Return the number of times that a tensor was changed in place."""
    return tensor._version


@dataclass(frozen=True)
class Argument:
    """An argument of an operation: whether it is written, and whether only to take the result."""

    name: str
    written: bool
    out: bool


@cache
def schema_of(func: Any) -> tuple[Argument, ...]:
    """Return the arguments of an operation in their order."""
    arguments = getattr(getattr(func, "_schema", None), "arguments", ())
    return tuple(
        Argument(a.name, bool(a.alias_info and a.alias_info.is_write), bool(a.is_out))
        for a in arguments
    )


def storage_key(tensor: torch.Tensor) -> int:
    """Return a key that all tensors over the same memory share, real or fake."""
    return tensor.untyped_storage()._cdata


def size_of(size: Any) -> Any:
    """Return a size as an int, or as the sympy expression of a symbolic one."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def static_shapes() -> AbstractContextManager[Any]:
    """Return a mode whose tensors have shapes and no values; no mode where torch has none."""
    parts = symbolic_shapes()
    if parts is None:
        return nullcontext()
    return parts["FakeTensorMode"](allow_non_fake_inputs=True)


def fake(mode: Any, tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return a copy of a tensor within the mode: the same fixed shape, and no values."""
    if isinstance(mode, nullcontext):
        return tensor.to(device)
    if tensor.device.type != device:
        tensor = tensor.to("meta")
        return mode.from_tensor(tensor, static_shapes=True).to(device)
    return mode.from_tensor(tensor, static_shapes=True)


def fake_weight(mode: Any, tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return such a copy of a parameter, made outside the mode and faster than `fake` does."""
    parts, plain = symbolic_shapes(), type(tensor) in (torch.Tensor, torch.nn.Parameter)
    plain = plain and tensor.layout is torch.strided and not tensor.is_quantized
    if parts and plain and tensor.untyped_storage().nbytes() == tensor.nbytes:
        empty = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        return parts["FakeTensor"](mode, empty, device).requires_grad_(tensor.requires_grad)
    copy = fake(mode, tensor.detach(), device)
    return copy.detach().requires_grad_(tensor.requires_grad)


@cache
def symbolic_shapes() -> dict[str, Any] | None:
    """Return the classes of torch that carry symbolic sizes, or None where torch lacks them."""
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
        # torch's cache of operations costs much with symbolic sizes, and few operations repeat.
        self.mode.cache_enabled = False
        self.sizes: dict[str, Any] = {}
        self.hints: dict[str, int] = {}
        self.names: dict[sympy.Symbol, sympy.Expr] = {}
        self._labels: dict[sympy.Symbol, str] = {}
        for name, hint in hints.items():
            self.add(name, hint, steps.get(name, 1))

    def add(self, name: str, hint: int, step: int = 1) -> Any:
        """Add a size; where the model compares sizes, the number `hint` stands for it.

        With a step, the size is that many times a symbol, so torch knows that the step divides it.
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
        """Return the sizes that the model turned into a number or into one another, by name."""
        return {
            self._labels[symbol]: self.plain(value)
            for symbol, value in self.environment.replacements.items()
            if symbol in self.names
        }

    def guards(self) -> list[sympy.Basic]:
        """Return the conditions on the sizes under which the model runs the same way."""
        return [self.plain(guard.expr, IN_CONDITIONS) for guard in self.environment.guards]

    def plain(self, expression: Any, functions: Mapping[str, Any] = PLAIN) -> Any:
        """Return a torch expression in the user's names and in sympy's own functions."""
        if isinstance(expression, int):
            return sympy.Integer(expression)
        renamed = expression.xreplace(self.names)
        # torch writes the smaller and the larger of two sizes as lattice operations.
        if renamed.atoms(sympy.Function, LatticeOp):
            renamed = renamed.replace(
                lambda e: type(e).__module__.startswith("torch"),
                lambda e: functions.get(type(e).__name__, e.func)(*e.args),
            )
        floats = {number: _exact(number) for number in renamed.atoms(sympy.Float)}
        return renamed.xreplace(floats) if floats else renamed
