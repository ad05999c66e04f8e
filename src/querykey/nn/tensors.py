"""Which tensors a layer takes: dense floats of its width, in the precision of its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from querykey.errors import QuerykeyError, WrongTypeError


def check_floats(name: str, x: Any, width: int, layer: nn.Module) -> None:
    """Refuse what is no tensor of floats (..., width) that the weights of a layer can meet."""
    if not isinstance(x, Tensor):
        raise WrongTypeError(f"{name} is a tensor of floats; got {type(x).__name__}")
    if x.ndim < 1 or x.shape[-1] != width or not x.is_floating_point():
        raise QuerykeyError(f"{name} is of floats (..., {width}); got {x.dtype} {tuple(x.shape)}")
    check_meets(name, x, layer)


def check_meets(name: str, x: Tensor, layer: nn.Module) -> None:
    """Refuse a tensor of another dtype, device or layout than the weights that it meets first.

    Only a layer of torch's is asked: what somebody put in its place may take what it likes.
    """
    if type(layer) not in (nn.Linear, nn.Conv2d):
        return
    weight: Any = layer.weight
    if x.layout is not torch.strided:
        raise WrongTypeError(f"{name} is a dense tensor, not a {_last(x.layout)} one")
    if x.device != weight.device:
        raise WrongTypeError(f"{name} is on {x.device} but the weights are on {weight.device}")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        dtypes = _last(x.dtype), _last(weight.dtype)
        raise WrongTypeError(f"{name} is {dtypes[0]} but the weights are {dtypes[1]}")


def check_whole(name: str, x: Any, shape: str) -> None:
    """Refuse what is no dense tensor of whole numbers or booleans, of axes that `shape` names."""
    if not isinstance(x, Tensor):
        raise WrongTypeError(f"{name} is a tensor {shape}; got {type(x).__name__}")
    if x.layout is not torch.strided or x.is_floating_point() or x.is_complex():
        kind = x.dtype if x.layout is torch.strided else x.layout
        raise WrongTypeError(
            f"{name} is a dense tensor {shape} of whole numbers; got {_last(kind)}"
        )


def check_generator(generator: Any) -> None:
    """Refuse what is neither None nor a generator of torch's."""
    if not (generator is None or isinstance(generator, torch.Generator)):
        raise WrongTypeError(
            f"generator is None or a torch.Generator; got {type(generator).__name__}"
        )


def _last(name: object) -> str:
    return str(name).removeprefix("torch.")
