"""Functions made operators of torch: what autograd, torch.compile and `qk cost` see as one step.

What the backends use of torch that it does not promise (names with an underscore) is here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd import forward_ad

from querykey.errors import GraphError


def only_backward(*tensors: torch.Tensor | None) -> str | None:
    """Say why operators made here cannot serve: they have a backward, and no other derivative."""
    if torch.compiler.is_compiling():
        return None
    if _TRANSFORMS.peek_interpreter_stack() is not None:
        return "it has no rules for the transforms of torch.func"
    return no_forward_mode(*tensors)


def no_forward_mode(*tensors: Any) -> str | None:
    """Say why what has no derivative in forward mode cannot serve: one is being taken."""
    if torch.compiler.is_compiling():
        return None
    taken = forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(x).tangent is not None
        for x in tensors
        if isinstance(x, torch.Tensor)
    )
    # Inside of another transform, tangents of an outer one are not seen.
    levels = _TRANSFORMS.get_interpreter_stack() or ()
    taken = taken or any(level.key() == _TRANSFORMS.TransformType.Jvp for level in levels)
    return "it has no derivative in forward mode" if taken else None


_TRANSFORMS: Any = torch._C._functorch  # type: ignore[attr-defined]


def unwatched(*tensors: torch.Tensor) -> bool:
    """Whether nobody but autograd looks at what happens to these tensors.

    Compilers, modes such as a FLOP counter, transforms and subclasses of tensors see operators, and
    nothing that passes these by.
    """
    return (
        not torch.compiler.is_compiling()
        and all(type(x) in _PLAIN for x in tensors)
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
        and forward_ad._current_level < 0
        and _TRANSFORMS.peek_interpreter_stack() is None
    )


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def version(tensor: torch.Tensor) -> Any:
    """Return what changes whenever a tensor is written to; of an inference tensor, no two agree."""
    return object() if tensor.is_inference() else tensor._version


def recompiling_up_to(limit: int) -> AbstractContextManager[Any]:
    """Return a context in which torch.compile makes so many versions of one function."""
    return torch._dynamo.config.patch(recompile_limit=limit)


def no_second_derivative(ctx: object, *_: object) -> None:
    """Refuse the backward of a backward, in place of zeros."""
    raise GraphError(
        "this backend has a first derivative alone: for a second one ask for backend='reference'"
    )


def operator(name: str, run: Callable, shapes: Callable) -> Callable:
    """Make an operator from its function and one that returns results of the right shapes.

    This is `torch.library.custom_op` without the import of torch's compiler at the first call,
    which takes a second or two.
    """
    name = f"querykey::{name}"
    torch.library.define(name, torch.library.infer_schema(run, mutates_args=()))
    torch.library.impl(name, "default")(run)
    torch.library.register_fake(name)(shapes)
    return getattr(torch.ops.querykey, name.partition("::")[2]).default
