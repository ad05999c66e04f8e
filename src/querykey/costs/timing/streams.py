"""Operations that stream through memory, of which a calibration measures how long they take."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

Work = Callable[[], object]


def _softmax_backward(x: torch.Tensor, y: torch.Tensor) -> Work:
    x.requires_grad_(True)
    out = x.softmax(-1)
    return lambda: torch.autograd.grad(out, x, y, retain_graph=True)


def _norm_backward(x: torch.Tensor, y: torch.Tensor) -> Work:
    width = x.shape[-1]
    weight = torch.ones(width, device=x.device, dtype=x.dtype)
    _, mean, scale = torch.ops.aten.native_layer_norm(x, [width], weight, weight, 1e-5)
    mask = [True, True, True]
    function = torch.ops.aten.native_layer_norm_backward
    return lambda: function(y, x, [width], mean, scale, weight, weight, mask)


def _norm(x: torch.Tensor, y: torch.Tensor) -> Work:
    width = x.shape[-1]
    weight = torch.ones(width, device=x.device, dtype=x.dtype)
    return lambda: functional.layer_norm(x, (width,), weight, weight)


def _copy(x: torch.Tensor, y: torch.Tensor) -> Work:
    heads = x.view(1, len(x), 4, -1).transpose(1, 2)
    return lambda: heads.contiguous()


def _cast(x: torch.Tensor, y: torch.Tensor) -> Work:
    other = torch.bfloat16 if x.dtype == torch.float32 else torch.float32
    return lambda: x.to(other)


def _halves(x: torch.Tensor, y: torch.Tensor) -> Work:
    first, second = x.chunk(2, -1)
    return lambda: torch.cat([second, first], -1)


def _lookup(x: torch.Tensor, y: torch.Tensor) -> Work:
    ids = torch.arange(len(x), device=x.device) % 997
    table = torch.ones(1000, x.shape[-1], device=x.device, dtype=x.dtype)
    return lambda: functional.embedding(ids, table)


def _lookup_backward(x: torch.Tensor, y: torch.Tensor) -> Work:
    """Return the gradient of a table as long as x is, from some of its rows."""
    count = 256 if x.device.type == "cpu" else max(256, len(x) // 4)
    ids = torch.arange(count, device=x.device) % len(x)
    rows = y.new_ones(count, y.shape[-1])
    return lambda: torch.ops.aten.embedding_dense_backward(rows, ids, len(x), -1, False)


# What streams through memory, by a name; each gets x and ones of the same shape.
STREAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Work]] = {
    "mul": lambda x, y: lambda: x * y,
    "mul by a row": lambda x, y: lambda: x * y[0],
    "add": lambda x, y: lambda: x + y,
    "scale": lambda x, y: lambda: x * 1.5,
    "pow": lambda x, y: lambda: x.pow(2),
    "cube": lambda x, y: lambda: x.pow(3),
    "exp": lambda x, y: lambda: x.exp(),
    "tanh": lambda x, y: lambda: x.tanh(),
    "tanh backward": lambda x, y: lambda: torch.ops.aten.tanh_backward(y, x),
    "gelu": lambda x, y: lambda: functional.gelu(x),
    "gelu backward": lambda x, y: lambda: torch.ops.aten.gelu_backward(y, x),
    "silu": lambda x, y: lambda: functional.silu(x),
    "silu backward": lambda x, y: lambda: torch.ops.aten.silu_backward(y, x),
    "relu": lambda x, y: lambda: x.relu(),
    "relu backward": lambda x, y: lambda: torch.ops.aten.threshold_backward(y, x, 0),
    "softmax": lambda x, y: lambda: x.softmax(-1),
    "softmax backward": _softmax_backward,
    "norm": _norm,
    "norm backward": _norm_backward,
    "sum": lambda x, y: lambda: x.sum(0, keepdim=True),
    "mean": lambda x, y: lambda: x.mean(-1, keepdim=True),
    "copy": _copy,
    "cast": _cast,
    "cat": _halves,
    "fill": lambda x, y: lambda: torch.zeros(x.shape, device=x.device, dtype=x.dtype),
    "lookup": _lookup,
    "lookup backward": _lookup_backward,
}
