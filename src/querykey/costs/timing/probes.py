"""What a calibration measures: single operations over shapes, and what starting them costs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from querykey.costs.counting.operations import CAUSAL
from querykey.costs.counting.trace import Trace
from querykey.costs.counting.traffic import OperationCall, Traffic
from querykey.costs.timing.streams import STREAMS, Work

CHAIN = 100  # small operations in a row, by which overheads are measured
PLAIN, TURNED, GRADIENT, BIASED = range(4)  # x @ w, x @ w.T, x.T @ w, x @ w.T + b
Sizes = tuple[int, int]  # the smallest and the largest


@dataclass(frozen=True)
class ProbeSizes:
    """How many operations of which sizes are measured on one kind of device."""

    products: int  # how many shapes of matrix products
    batched: int
    layouts: int
    tokens: Sizes  # of a product: its rows, or what it sums over in a gradient
    widths: Sizes
    most: float  # FLOPs of one of them
    cold: int  # bytes of weights that are read in turn, so that no cache holds them
    copies: int  # of weights, at most
    rows: tuple[tuple[int, tuple[int, ...]], ...]  # widths, and how many rows stream of each
    attention: tuple[tuple[int, int, int], ...]  # heads of all rows, length, width of a head
    causal: tuple[bool, ...]


ON_CPU = ProbeSizes(
    56, 20, 3, (16, 4096), (16, 4096), 6e8, 48 << 20, 256, ((256, (4, 120, 1200, 8000)),),
    ((8, 16, 64), (16, 64, 32), (8, 128, 64), (8, 512, 64), (32, 256, 64)), (False,),
)  # fmt: skip
ELEMENTS = tuple(2**power for power in (16, 19, 21, 23, 25, 27))
LENGTHS = (64, 250, 512, 1000, 1999)  # fused attention is slower where tiles do not fit
HEADS = (
    *((heads, length, 64) for length in LENGTHS for heads in (8, 64, 512)),
    *((heads, length, 64) for length in (256, 1024, 2048) for heads in (64, 512)),
    *((64, length, 32) for length in (250, 1000)),
    *((heads, length, 128) for heads, length in ((16, 256), (128, 1000), (32, 2048))),
    *((32, length, width) for width in (256, 512) for length in (250, 1000)),
)
ON_GPU = ProbeSizes(
    200, 24, 4, (128, 32768), (256, 16384), 1e12, 150 << 20, 16,
    tuple((width, tuple(n // width for n in ELEMENTS)) for width in (256, 1024, 4096)),
    HEADS, (False, True),
)  # fmt: skip


@dataclass(frozen=True)
class TimingProbe:
    """Something to time: a name, how to set it up, and how many operations one run has."""

    name: str
    make: Callable[[], Work]
    runs: int = 1
    prefix: str = ""  # of its kind, where shapes do not tell it


def sizes_on(device: str) -> ProbeSizes:
    """Return the sizes that are measured on a device."""
    return ON_CPU if device == "cpu" else ON_GPU


def operations(device: str, dtype: torch.dtype) -> Iterator[TimingProbe]:
    """Yield single operations of which a model's time is made."""
    numbers, sizes = random.Random(0), sizes_on(device)
    for place in range(sizes.products):
        layout = place % sizes.layouts
        shape = shape_of_product(numbers, sizes, layout)
        yield TimingProbe(f"product {place}", _product(device, dtype, shape, layout))
    for place in range(sizes.batched):
        batch, m, n = (_between(numbers, 4, 96), *(_between(numbers, 8, 512) for _ in range(2)))
        k = numbers.choice((16, 32, 64, 128))
        shape = (m, k, n) if place % 2 else (m, n, k)
        yield TimingProbe(f"batched product {place}", _batched(device, dtype, batch, shape))
    for name, make in STREAMS.items():
        for width, counts in sizes.rows:
            for rows in counts:
                work = _stream(device, dtype, make, rows, width)
                yield TimingProbe(f"{name} {rows} x {width}", work)
    for heads, length, width in sizes.attention:
        for backward, causal in itertools.product((False, True), sizes.causal):
            label = f"attention {heads} {length} {width} {backward} {causal}"
            work = _attention(device, dtype, (heads, length, width), backward, causal)
            yield TimingProbe(label, work, prefix=f"{CAUSAL} " if causal else "")


def small_streams(device: str, dtype: torch.dtype) -> list[TimingProbe]:
    """Return the smallest of the operations that stream, which run after each other too."""
    width, rows = sizes_on(device).rows[0]
    names = {f"{name} {rows[0]} x {width}" for name in STREAMS}
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


def shape_of_product(
    numbers: random.Random, sizes: ProbeSizes, layout: int
) -> tuple[int, int, int]:
    """Return the sizes of a product: its rows, what it sums over, its columns."""
    rows, inner, columns = (
        _between(numbers, *between) for between in (sizes.tokens, sizes.widths, sizes.widths)
    )
    while 2 * rows * inner * columns > sizes.most:
        rows, inner, columns = (max(16, size // 2) for size in (rows, inner, columns))
    if sizes.widths[0] >= 64:  # as models have them: a GPU is slow where they are odd
        inner, columns = (size // 64 * 64 or 64 for size in (inner, columns))
    if layout == GRADIENT and sizes.tokens != sizes.widths:
        rows, inner = inner, rows
    return rows, inner, columns


def filled(*shape: int, device: str, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers to compute with: a GPU gets slower where they differ, a CPU does not."""
    if device == "cpu":
        return torch.ones(shape, dtype=dtype)
    return torch.randn(shape, device=device, dtype=dtype)


def _product(
    device: str, dtype: torch.dtype, sizes: tuple[int, int, int], layout: int
) -> Callable[[], Work]:
    """Return x @ w, x @ w.T as in a linear layer, x.T @ w as in its gradient, or with a bias.

    Every run takes other weights, because those of a model were last read a whole pass ago.
    """

    def make() -> Work:
        m, k, n = sizes
        limits, turned = sizes_on(device), layout in (TURNED, BIASED)
        a = filled(*((k, m) if layout == GRADIENT else (m, k)), device=device, dtype=dtype)
        left = a.T if layout == GRADIENT else a
        copies = max(1, min(limits.copies, limits.cold // (k * n * dtype.itemsize)))
        shape = (n, k) if turned else (k, n)
        weights = [filled(*shape, device=device, dtype=dtype) for _ in range(copies)]
        rights = itertools.cycle([w.T if turned else w for w in weights])
        if layout == BIASED:
            bias = filled(n, device=device, dtype=dtype)
            return lambda: torch.addmm(bias, left, next(rights))
        return lambda: left @ next(rights)

    return make


def _batched(
    device: str, dtype: torch.dtype, batch: int, sizes: tuple[int, int, int]
) -> Callable[[], Work]:
    def make() -> Work:
        m, k, n = sizes
        a = filled(batch, m, k, device=device, dtype=dtype)
        b = filled(batch, n, k, device=device, dtype=dtype).mT
        return lambda: a @ b

    return make


def _stream(
    device: str, dtype: torch.dtype, make_work: Callable[..., Work], rows: int, width: int
) -> Callable[[], Work]:
    def make() -> Work:
        x = torch.linspace(-2, 2, rows * width, device=device).to(dtype).view(rows, width)
        return make_work(x, torch.ones_like(x))

    return make


def _attention(
    device: str, dtype: torch.dtype, size: tuple[int, int, int], backward: bool, causal: bool
) -> Callable[[], Work]:
    def make() -> Work:
        heads, length, width = size
        shape = (1, length, heads, width)
        q, k, v = (
            filled(*shape, device=device, dtype=dtype).transpose(1, 2).requires_grad_(backward)
            for _ in "qkv"
        )
        attend = functional.scaled_dot_product_attention
        if not backward:
            return lambda: attend(q, k, v, is_causal=causal)
        out = attend(q, k, v, is_causal=causal)
        gradient = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    return make
