"""Quadratic-kernel attention on a GPU against torch's fused softmax attention.

    python benchmarks/gpu.py [--quick] [--plot docs/performance.svg]

Causal, bfloat16, batch 1, 16 heads. Answers are compared with float64 on the device first, and
nothing is timed when one is wrong. A time is the median over runs, after warm-up, of a pair of CUDA
events around one call that the GPU meets after some milliseconds of other work, so that the host is
ahead of it, as in training; what the host takes for one call is told apart. Softmax and kernel
attention are different mechanisms: the question is what a token costs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from querykey.attention.features import Quadratic
from querykey.attention.mechanisms import Kernel
from querykey.backends.chunked import linear
from querykey.backends.triton import quadratic
from querykey.show.figure import Series, line_chart
from querykey.show.table import print_table

HEADS = 16
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
LONGEST = {"chunked": 8192}  # made for CPUs: there to show what a GPU's kernels are for
BOUNDS = (5e-3, 1e-2, 1e-2, 1e-2)  # relative errors of the output and of dq, dk, dv
PEERS = ("retention", "fla")  # not torch's own


def run_triton(q, k, v):
    return quadratic.attend(q, k, v, Kernel(Quadratic(), q.shape[-1] ** -0.5), causal=True)


def run_chunked(q, k, v):
    return linear.attend(q, k, v, Kernel(Quadratic(), q.shape[-1] ** -0.5), causal=True)


def run_cudnn(q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def run_flash(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def plain_kernel(q, k, v):
    w = ((q @ k.mT * q.shape[-1] ** -0.5 + 1) ** 2).tril()
    return w @ v / w.sum(-1, keepdim=True)


def plain_softmax(q, k, v):
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v


CONTENDERS = {
    "triton": (run_triton, plain_kernel),
    "cudnn": (run_cudnn, plain_softmax),
    "flash": (run_flash, plain_softmax),
    "chunked": (run_chunked, plain_kernel),
}


def draw(size: int, tokens: int, heads: int = HEADS) -> list[torch.Tensor]:
    shape = (1, heads, tokens, size)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def results(attend: Callable, x: list[torch.Tensor], g: torch.Tensor) -> list[torch.Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in x]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, g.to(out.dtype))]


def check(size: int, tokens: int) -> dict[str, list[float]]:
    """Stop unless every contender is near its equation in float64; return the errors."""
    *x, g = draw(size, tokens, heads=2)
    errors = {}
    for name, (attend, plain) in CONTENDERS.items():
        wanted = results(plain, [t.double() for t in x], g)
        found = results(attend, x, g)
        errors[name] = [
            float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)
        ]
        if not all(e < bound for e, bound in zip(errors[name], BOUNDS, strict=True)):
            sys.exit(f"{name} is wrong at head size {size}, {tokens} tokens: {errors[name]}")
    return errors


def milliseconds(call: Callable, runs: int, before: Callable = lambda: None) -> float:
    """Return the GPU's median time for a call, `before` being done untimed each time."""
    for _ in range(3):
        call()
    events = []
    for _ in range(runs):
        before()
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        call()
        pair[1].record()
        events.append(pair)
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def other_work() -> Callable:
    """Make some 3 ms of matrix products, behind which the host can get ahead."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    return lambda: [torch.mm(a, a, out=out) for _ in range(2)]


def host(attend: Callable) -> list[float]:
    """Return the host's milliseconds for one short call, forward and with backward."""
    *x, g = draw(64, 128)
    leaves = [t.requires_grad_() for t in x]
    calls = [lambda: attend(*(t.detach() for t in x)), lambda: attend(*leaves).backward(g)]
    taken = []
    for call in calls:
        for turn in range(60):
            if turn == 10:
                torch.cuda.synchronize()
                began = time.perf_counter()
            call()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - began) / 50 * 1e3)
    return taken


def measure(size: int, tokens: int) -> dict:
    """Time every contender forward, and forward with backward."""
    *x, g = draw(size, tokens)
    leaves = [t.clone().requires_grad_() for t in x]
    busy = other_work()
    found: dict = {"size": size, "tokens": tokens}
    for name, (attend, _) in CONTENDERS.items():
        if tokens > LONGEST.get(name, tokens):
            continue
        runs = 7 if tokens > 65536 else 20

        def both(attend=attend):
            for t in leaves:
                t.grad = None
            attend(*leaves).backward(g)

        found[f"{name} forward"] = milliseconds(lambda attend=attend: attend(*x), runs, busy)
        found[f"{name} both"] = milliseconds(both, runs, busy)
    return found


def peak(size: int, tokens: int) -> float:
    """Return the MiB that forward and backward take beyond inputs, output and gradients."""
    *x, g = draw(size, tokens)
    leaves = [t.requires_grad_() for t in x]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run_triton(*leaves).backward(g)
    return (torch.cuda.max_memory_allocated() - before - 4 * g.nbytes) / 2**20


def ceilings() -> dict[str, float]:
    """Return the rates of a large bfloat16 product, TFLOP/s, and of a large copy, TB/s."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = 2 * 8192**3 / milliseconds(lambda: a @ a, 20) / 1e9
    source = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / milliseconds(lambda: target.copy_(source), 20) / 1e9
    return {"product TFLOP/s": product, "copy TB/s": copy}


def rate(size: int, tokens: int, ms: float) -> float:
    """Return TFLOP/s by the fewest operations: tokens x width x size for sums and for outputs."""
    return 4 * HEADS * tokens * Quadratic().width(size) * size / ms / 1e9


def report(found: list[dict]) -> None:
    modes = ("forward", "both")
    names = [f"{name} {mode}" for mode in modes for name in CONTENDERS]
    heads = ["head", "tokens", *(f"{n} ms" for n in names), *(f"cudnn/triton {m}" for m in modes)]
    rows = []
    for r in found:
        ratios = [round(r[f"cudnn {m}"] / r[f"triton {m}"], 2) for m in modes]
        times = [round(r[n], 3) if n in r else "-" for n in names]
        rows.append([r["size"], r["tokens"], *times, *ratios])
    if sys.stdout.isatty():
        print_table(heads, rows)
        return
    for row in (heads, ["---"] * len(heads), *rows):  # Markdown, for docs/performance.md
        print("| " + " | ".join(map(str, row)) + " |")


def plot(found: list[dict]) -> str:
    series = []
    for name in ("triton", "cudnn", "flash"):
        for mode in ("forward", "both"):
            points = [(r["tokens"], r[f"{name} {mode}"]) for r in found if r["size"] == 64]
            series.append(Series(f"{name}, {mode.replace('both', 'with backward')}", points))
    title = f"Causal attention on {torch.cuda.get_device_name()}, {HEADS} heads of 64, bfloat16"
    return line_chart(series, x="tokens", y="ms", title=title, log=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="head size 64, three lengths")
    parser.add_argument("--plot", metavar="FILE", help="write the times at head size 64 as SVG")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA device")
    sizes = (64,) if args.quick else (64, 32, 16)
    # One length with all keys near, one with chunks, both off every edge.
    errors = {f"{s} {n}": check(s, n) for s in sizes for n in (1000, 8385)}
    machine: dict = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    machine["triton"] = importlib.import_module("triton").__version__
    machine |= ceilings()
    absent = [name for name in PEERS if importlib.util.find_spec(name) is None]
    found = [measure(s, n) for s in sizes for n in (LENGTHS[3::2] if args.quick else LENGTHS)]
    memory = {f"{s} {n}": peak(s, n) for s in sizes for n in (131072,)}
    hosts = {name: host(attend) for name, (attend, _) in CONTENDERS.items()}
    for r in found:
        r["triton TFLOP/s"] = rate(r["size"], r["tokens"], r["triton forward"])
    print({k: round(v, 2) if isinstance(v, float) else v for k, v in machine.items()})
    print(f"not importable, so not timed: {', '.join(absent) or 'none'}")
    report(found)
    shown = {name: [round(x, 3) for x in taken] for name, taken in hosts.items()}
    print(f"the host's ms for one call, forward and with backward: {shown}")
    print(f"MiB beyond inputs, output and gradients: { {k: round(v) for k, v in memory.items()} }")
    if args.plot:
        Path(args.plot).write_text(plot(found))
    print(
        json.dumps(
            {"machine": machine, "errors": errors, "times": found, "peak MiB": memory}
            | {"host ms": hosts, "absent": absent}
        )
    )


if __name__ == "__main__":
    main()
