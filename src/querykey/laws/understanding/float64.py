"""Float64 copies of a model, in which what a lawful model deviates by is rounding.

A copy computes in float64 (code that asks for float32 gets float64), its dropout does nothing, and
its weights are drawn anew, large enough that nothing hides behind a small initialisation.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, MethodWrapperType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from querykey.laws.private import CONVOLUTIONS, GROUPED_PRODUCTS, buffers_of, is_persistent
from querykey.laws.understanding.closures import bind_functions
from querykey.laws.understanding.reachable import every_module, hidden_modules
from querykey.words import checked, seed_number

NARROW = {torch.float32, torch.float16, torch.bfloat16}
WIDER = dict.fromkeys(NARROW, torch.float64) | {torch.complex64: torch.complex128}
CASTS = {"float", "half", "bfloat16"}
DROPOUTS = {
    "dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "alpha_dropout_", "feature_dropout", "feature_dropout_", "feature_alpha_dropout",
    "feature_alpha_dropout_",
}  # fmt: skip
FUSED = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}  # where it is
CONTAINERS = (dict, set, OrderedDict)
# What draws numbers: a seed gives other ones in float64 than in float32.
DRAWN, DRAWN_IN_PLACE = {"rand", "randn", "rand_like", "randn_like"}, {"normal_", "uniform_"}
GAIN = 1.2  # of a redrawn matrix: scores spread enough for every weight to matter


class Float64Mode(TorchFunctionMode):
    """Turns narrow floats into float64 (`wide`) and lets dropout keep everything (`still`)."""

    idle = False  # True while a tensor is rounded on purpose

    def __init__(self, wide: bool = True, still: bool = True, seen: set[str] | None = None):
        super().__init__()
        self.wide, self.still = wide, still
        self.seen = set() if seen is None else seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        # What reads an attribute such as shape is most of all calls.
        if func.__class__ is MethodWrapperType or self.idle:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        self.seen.add(name)
        if self.still:
            if name in DROPOUTS:
                return args[0] if args else kwargs["input"]
            if name in FUSED:
                args, kwargs = _without_dropout(name, args, kwargs)
            elif func.__class__ is FunctionType and func.__module__[:6] != "torch.":
                args, kwargs = _without_rates(func, args, kwargs)
        if self.wide:
            if name in CASTS and len(args) == 1:
                return args[0].double()
            if name in GROUPED_PRODUCTS and args[0].dtype is torch.float64:
                return _grouped(*args, **kwargs)
            for value in args:
                if value.__class__ is torch.dtype:
                    args = tuple(_wider(arg) for arg in args)
                    break
            if name in DRAWN and kwargs.get("dtype") in (None, torch.float32):
                return func(*args, **kwargs | {"dtype": torch.float32}).to(torch.float64)
            if name in DRAWN_IN_PLACE:
                return _drawn(func, *args, **kwargs)
            if kwargs and kwargs.get("dtype") in WIDER:
                kwargs = {**kwargs, "dtype": WIDER[kwargs["dtype"]]}
        return func(*args, **kwargs)


def _drawn(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Fill a tensor with the numbers that a seed gives in float32, where it is float64."""
    if tensor.dtype is not torch.float64:
        return func(tensor, *args, **kwargs)
    with torch.no_grad():
        return tensor.copy_(func(tensor.detach().float(), *args, **kwargs))


def _grouped(
    mat_a: torch.Tensor, mat_b: torch.Tensor, offs: torch.Tensor, bias=None, out_dtype=None
) -> torch.Tensor:
    """Multiply the rows up to every offset by their own matrix; torch's kernel refuses float64."""
    ends = [0, *offs.tolist()]
    products = [
        mat_a[start:stop] @ matrix
        for start, stop, matrix in zip(ends, ends[1:], mat_b, strict=False)
    ]
    products.append(mat_a.new_zeros(len(mat_a) - ends[-1], mat_b.shape[-1]))
    return torch.cat(products)


def _wider(value: Any) -> Any:
    return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _without_dropout(name: str, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict]:
    """Return the arguments of fused attention with a dropout rate of 0."""
    place = FUSED[name]
    if len(args) > place:
        args = (*args[:place], 0.0, *args[place + 1 :])
    elif "dropout_p" in kwargs:
        kwargs = {**kwargs, "dropout_p": 0.0}
    return args, kwargs


def _without_rates(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict]:
    """Return the arguments of a user's function with dropout rates of 0.

    A function that asks torch who overrides it runs out of this mode's sight, dropout as well.
    """
    bound = inspect.signature(func).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        if "drop" in name and isinstance(value, float):
            bound.arguments[name] = 0.0
    return bound.args, bound.kwargs


@contextmanager
def lifted(wide: bool = True, still: bool = True, seen: set[str] | None = None) -> Iterator[None]:
    """Run the code inside in float64 and without dropout; new tensors are float64, too."""
    dtype = torch.float64 if wide else torch.get_default_dtype()
    with new_tensors_in(dtype), Float64Mode(wide, still, seen):
        yield


@contextmanager
def new_tensors_in(dtype: torch.dtype) -> Iterator[None]:
    """Make new tensors in this precision where the code names none."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the values as `dtype` would hold them, inside a Float64Mode as well."""
    before, Float64Mode.idle = Float64Mode.idle, True
    try:
        return tensor.to(dtype).to(tensor.dtype)
    finally:
        Float64Mode.idle = before


@checked
def duplicate(model: nn.Module, wide: bool = True) -> nn.Module:
    """Return a copy on its own memory in evaluation mode, every float in float64 if `wide`."""
    # A model that has just been trained holds tensors that remember their graph: copied as values.
    held = [
        tensor
        for module in model.modules()
        for tensor in _plain_tensors(module)
        if not tensor.is_leaf
    ]
    memo: dict[int, Any] = {id(tensor): tensor.detach().clone() for tensor in held}
    memo |= {id(value): type(value)() for value in _empty_containers(model)}
    model = copy.deepcopy(model, memo)
    bind_functions(model, memo)
    for parameter in model.parameters():
        if not parameter.is_leaf:  # TorchScript's copies remember that they are copies
            parameter.detach_().requires_grad_()
    for part in (model, *hidden_modules(model).values()):
        part.eval()
        part.zero_grad(set_to_none=True)
        if wide:
            widen(part)
    return model


def _empty_containers(model: nn.Module) -> Iterator[Any]:
    """Yield the tables of hooks and parts that hold nothing: most of what there is to copy."""
    for module in model.modules():
        for value in vars(module).values():
            if value.__class__ in CONTAINERS and not value:
                yield value


def widen(model: nn.Module) -> None:
    """Turn parameters, buffers and tensors kept as plain attributes into float64."""
    model.double()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.dtype in WIDER:
                module.register_buffer(
                    name,
                    buffer.to(WIDER[buffer.dtype]),
                    persistent=is_persistent(module, name),
                )
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor) and value.dtype in WIDER:
                wider = value.detach().to(WIDER[value.dtype])
                setattr(module, name, wider.requires_grad_(value.requires_grad))


def randomise(model: nn.Module, seed: int = 0) -> None:
    """Draw every trained matrix anew and shake every trained vector; frozen tables stay."""
    generator = torch.Generator().manual_seed(seed)
    modules = every_module(model)
    parameters = [p for module in modules for p in module.parameters(recurse=False)]
    trained = [p for p in parameters if p.requires_grad] or parameters
    trained_ids = {id(p) for p in trained}
    done: set[int] = set()
    with torch.no_grad():
        for module in modules:
            for parameter in module.parameters(recurse=False):
                if id(parameter) in done or id(parameter) not in trained_ids:
                    continue
                done.add(id(parameter))
                if parameter.is_floating_point() and not parameter.is_meta:
                    _redraw(module, parameter, generator)


def shake(model: nn.Module, seed: int = 0) -> None:
    """Add a little noise to every weight, so that equal values become different."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                size = float(parameter.double().pow(2).mean().sqrt()) + 0.1
                parameter.add_(noise.to(parameter.device, parameter.dtype), alpha=1e-2 * size)


@checked
def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Return the copy that the laws run on, to try a reproduction by hand under `lifted`."""
    drawn = duplicate(model)
    randomise(drawn, seed_number(seed))
    return drawn


def _redraw(module: nn.Module, parameter: torch.Tensor, generator: torch.Generator) -> None:
    """Draw a matrix anew, or add noise to a vector."""
    if not parameter.numel():
        return
    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    noise = noise.to(parameter.device, parameter.dtype)
    if parameter.dim() < 2:  # NaN would spoil every answer, and is told of by gradient.reaches
        parameter.nan_to_num_(0.0, math.inf, -math.inf).add_(noise, alpha=0.1)
    else:
        parameter.copy_(noise * (GAIN / _fan_in(module, parameter) ** 0.5))


def _fan_in(module: nn.Module, parameter: torch.Tensor) -> float:
    """Return how many inputs an output sums over, as far as a shape and a class can tell."""
    if isinstance(module, CONVOLUTIONS):
        return parameter[0].numel()
    if type(module).__name__ == "Conv1D":  # a Linear stored the other way round
        return parameter.shape[0]
    if parameter.dim() == 2:
        return parameter.shape[1]
    return _fan_in_as_drawn(parameter) or (parameter.shape[-1] * parameter.shape[-2]) ** 0.5


def _fan_in_as_drawn(parameter: torch.Tensor) -> float:
    """Return the number of inputs that a tensor of more than two axes was drawn for, or 0.

    Which of its axes are inputs only its owner knows; that their product is near 1/variance tells.
    Small values that are drawn alike everywhere tell nothing.
    """
    deviation = float(parameter.double().std())
    if not 0.05 < deviation < 2.0:
        return 0.0
    shape = parameter.shape
    products = {
        math.prod(shape[start:stop])
        for start in range(len(shape))
        for stop in range(start + 1, len(shape) + 1)
    }
    nearest = min(products, key=lambda count: abs(math.log(count * deviation**2)))
    return float(nearest) if 0.5 < nearest * deviation**2 < 2.0 else 0.0


def _plain_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the module's buffers and the tensors that it keeps as plain attributes."""
    for value in [*vars(module).values(), *buffers_of(module).values()]:
        if isinstance(value, torch.Tensor):
            yield value
