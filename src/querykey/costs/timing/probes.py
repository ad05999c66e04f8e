"""What a calibration measures: single operations over shapes, and what starting them costs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from querykey.costs.counting.trace import Trace
from querykey.costs.counting.traffic import OperationCall, Traffic

Work = Callable[[], object]
ROWS = (4, 120, 1200, 8000)  # of 256 numbers, in what streams through memory
WIDTH = 256
PRODUCTS, BATCHED = 56, 20  # how many shapes of matrix products are measured
MOST = 6e8  # FLOPs of one of them on a CPU
COLD, MANY = 48 << 20, 256  # bytes of weights that are read in turn, and copies at most
CHAIN = 100  # small operations in a row, by which overheads are measured


@dataclass(frozen=True)
class TimingProbe:
    """Something to time: a name, how to set it up, and how many operations one run has."""

    name: str
    make: Callable[[], Work]
    runs: int = 1


def operations(device: str, dtype: torch.dtype) -> Iterator[TimingProbe]:
    """Yield single operations of which a model's time is made."""
    numbers = random.Random(0)
    scale = 1 if device == "cpu" else 64
    for place in range(PRODUCTS):
        m, k, n = (_between(numbers, 16, 4096) for _ in range(3))
        while 2 * m * k * n > MOST * scale:
            m, k, n = (max(16, size // 2) for size in (m, k, n))
        yield TimingProbe(f"product {place}", _product(device, dtype, (m, k, n), place % 3))
    for place in range(BATCHED):
        batch, m, n = (_between(numbers, 4, 96), *(_between(numbers, 8, 512) for _ in range(2)))
        k = numbers.choice((16, 32, 64, 128))
        shape = (m, k, n) if place % 2 else (m, n, k)
        yield TimingProbe(f"batched product {place}", _batched(device, dtype, batch, shape))
    for name, make in STREAMS.items():
        for rows in (scale * rows for rows in ROWS):
            yield TimingProbe(f"{name} {rows}", _stream(device, dtype, make, rows))
    for heads, length, width in (
        (8, 16, 64),
        (16, 64, 32),
        (8, 128, 64),
        (8, 512, 64),
        (32, 256, 64),
    ):
        for backward in (False, True):
            size = (heads, length * (1 if device == "cpu" else 4), width)
            label = f"attention {heads} {length} {width} {backward}"
            yield TimingProbe(label, _attention(device, dtype, size, backward))


def small_streams(device: str, dtype: torch.dtype) -> list[TimingProbe]:
    """Return the smallest of the operations that stream, which run after each other too."""
    names = {f"{name} {ROWS[0] * (1 if device == 'cpu' else 64)}" for name in STREAMS}
    return [probe for probe in operations(device, dtype) if probe.name in names]


def overheads(device: str, dtype: torch.dtype) -> Iterator[TimingProbe]:
    """Yield chains of small operations: plain, recorded by autograd, backward, and others."""

    def chain(record: bool) -> Callable[[], Work]:
        def make() -> Work:
            x = torch.ones(8, device=device, dtype=dtype, requires_grad=record)

            def run() -> object:
                y = x
                for _ in range(CHAIN):
                    y = y * 1.5
                return y

            return run

        return make

    def backward() -> Work:
        y = chain(True)()()
        assert isinstance(y, torch.Tensor)
        gradient = torch.ones_like(y)
        return lambda: y.backward(gradient, retain_graph=True)

    def views() -> Work:
        x = torch.ones(4, 6, 8, device=device, dtype=dtype)
        return lambda: [x.transpose(1, 2) for _ in range(CHAIN)]

    def modules() -> Work:
        model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(CHAIN)))
        model, x = model.to(device, dtype), torch.ones(8, 8, device=device, dtype=dtype)
        return lambda: _without_gradients(model, x)

    def products() -> Work:
        x = torch.ones(8, 8, device=device, dtype=dtype)
        return lambda: [x @ x for _ in range(CHAIN)]

    def mixed() -> Work:
        works = [probe.make() for probe in small]
        return lambda: [work() for work in works]

    small = small_streams(device, dtype)
    yield TimingProbe("mixed", mixed, len(small))
    yield TimingProbe("plain", chain(False), CHAIN)
    yield TimingProbe("recorded", chain(True), CHAIN)
    yield TimingProbe("backward", backward, CHAIN)
    yield TimingProbe("view", views, CHAIN)
    yield TimingProbe("module", modules, CHAIN)
    yield TimingProbe("small product", products, CHAIN)


def _without_gradients(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(x)


def call_of(work: Work) -> OperationCall | None:
    """Return the operation that a probe runs, the one that moves most where it runs several."""
    trace = Trace(nn.Module(), valueless=False)
    trace.traffic = Traffic()
    with trace:
        work()
    calls = [call for call, _, _ in trace.traffic.calls]
    return max(calls, key=lambda call: call.bytes, default=None)


def _between(numbers: random.Random, low: int, high: int) -> int:
    """Return a size drawn evenly by its logarithm."""
    return round(low * (high / low) ** numbers.random())


def _product(
    device: str, dtype: torch.dtype, sizes: tuple[int, int, int], layout: int
) -> Callable[[], Work]:
    """Return x @ w, x @ w.T as in a linear layer, or x.T @ w as in its gradient.

    Every run takes other weights, because those of a model were last read a whole pass ago.
    """

    def make() -> Work:
        m, k, n = sizes
        a = torch.ones(*((k, m) if layout == 2 else (m, k)), device=device, dtype=dtype)
        left = a.T if layout == 2 else a
        copies = max(1, min(MANY, COLD // (k * n * dtype.itemsize)))
        shape = (n, k) if layout == 1 else (k, n)
        weights = [torch.ones(*shape, device=device, dtype=dtype) for _ in range(copies)]
        rights = itertools.cycle([w.T if layout == 1 else w for w in weights])
        return lambda: left @ next(rights)

    return make


def _batched(
    device: str, dtype: torch.dtype, batch: int, sizes: tuple[int, int, int]
) -> Callable[[], Work]:
    def make() -> Work:
        m, k, n = sizes
        a = torch.ones(batch, m, k, device=device, dtype=dtype)
        b = torch.ones(batch, n, k, device=device, dtype=dtype).mT
        return lambda: a @ b

    return make


def _stream(
    device: str, dtype: torch.dtype, make_work: Callable[..., Work], rows: int
) -> Callable[[], Work]:
    def make() -> Work:
        x = torch.linspace(-2, 2, rows * WIDTH, device=device).to(dtype).view(rows, WIDTH)
        return make_work(x, torch.ones_like(x))

    return make


def _softmax_backward(x: torch.Tensor, y: torch.Tensor) -> Work:
    x.requires_grad_(True)
    out = x.softmax(-1)
    return lambda: torch.autograd.grad(out, x, y, retain_graph=True)


def _norm_backward(x: torch.Tensor, y: torch.Tensor) -> Work:
    weight = torch.ones(WIDTH, device=x.device, dtype=x.dtype)
    _, mean, scale = torch.ops.aten.native_layer_norm(x, [WIDTH], weight, weight, 1e-5)
    mask = [True, True, True]
    function = torch.ops.aten.native_layer_norm_backward
    return lambda: function(y, x, [WIDTH], mean, scale, weight, weight, mask)


def _norm(x: torch.Tensor, y: torch.Tensor) -> Work:
    weight = torch.ones(WIDTH, device=x.device, dtype=x.dtype)
    return lambda: functional.layer_norm(x, (WIDTH,), weight, weight)


def _copy(x: torch.Tensor, y: torch.Tensor) -> Work:
    heads = x.view(1, -1, 4, WIDTH // 4).transpose(1, 2)
    return lambda: heads.contiguous()


def _lookup(x: torch.Tensor, y: torch.Tensor) -> Work:
    ids = torch.arange(len(x), device=x.device) % 997
    table = torch.ones(1000, WIDTH, device=x.device, dtype=x.dtype)
    return lambda: functional.embedding(ids, table)


def _lookup_backward(x: torch.Tensor, y: torch.Tensor) -> Work:
    ids = torch.arange(256, device=x.device) % len(x)
    rows = y[:256] if len(y) >= 256 else y.new_ones(256, WIDTH)
    return lambda: torch.ops.aten.embedding_dense_backward(rows, ids, len(x), -1, False)


# What streams through memory, by a name; each gets x and ones of the same shape.
STREAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Work]] = {
    "mul": lambda x, y: lambda: x * y,
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
    "cat": lambda x, y: lambda: torch.cat([x, y]),
    "fill": lambda x, y: lambda: torch.zeros(x.shape, device=x.device, dtype=x.dtype),
    "lookup": _lookup,
    "lookup backward": _lookup_backward,
}


def _attention(
    device: str, dtype: torch.dtype, size: tuple[int, int, int], backward: bool
) -> Callable[[], Work]:
    def make() -> Work:
        shape = (1, *size)
        q, k, v = (
            torch.ones(shape, device=device, dtype=dtype, requires_grad=backward) for _ in "qkv"
        )
        if not backward:
            return lambda: functional.scaled_dot_product_attention(q, k, v)
        out = functional.scaled_dot_product_attention(q, k, v)
        gradient = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    return make
