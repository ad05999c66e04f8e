"""Quadratic-kernel attention on a GPU against its peers and torch's fused softmax attention.

    python benchmarks/gpu.py [--quick] [--plot docs/dev/performance.svg]

Causal, bfloat16, batch 1, 16 heads. Answers are compared with float64 on the device first: nothing
is timed when one of ours or torch's is wrong, and a peer that is off by ten times what they may be,
or not importable, is left out and named. A time is the median over runs, after warm-up, of a pair
of CUDA events around one call that the GPU meets after some milliseconds of other work, so that the
host is ahead of it, as in training; what the host takes for one call is told apart, and so is each
kernel's time with its share of the rate of a large product or copy. Softmax and kernel attention
are different mechanisms: the question is what a token costs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from gpu_kernels import kernels
from gpu_peers import (
    HEADS,
    LENGTHS,
    SIZES,
    Contender,
    draw,
    gather,
    interleaved,
    milliseconds,
    run_triton,
)

from querykey.attention.features import Quadratic
from querykey.show.figure import Series, line_chart
from querykey.show.table import print_table

BOUNDS = (5e-3, 1e-2, 1e-2, 1e-2)  # relative errors of the output and of dq, dk, dv


def results(attend: Callable, x: list[torch.Tensor], g: torch.Tensor) -> list[torch.Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in x]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, g.to(out.dtype))]


def turned(contender: Contender) -> Callable:
    """Return a contender's function for (batch, heads, tokens, size)."""
    if not contender.tokens_first:
        return contender.attend
    return lambda *x: contender.attend(*(t.transpose(1, 2) for t in x)).transpose(1, 2)


def check(name: str, contender: Contender, size: int, tokens: int) -> list[float]:
    """Return the relative errors against the equation in float64; refuse large ones."""
    *x, g = draw(size, tokens, heads=2)
    wanted = results(contender.plain, [t.double() for t in x], g)
    found = results(turned(contender), x, g)
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
    room = 10 if contender.peer else 1
    if not all(e < room * bound for e, bound in zip(errors, BOUNDS, strict=True)):
        raise ArithmeticError(f"{name}, head size {size}, {tokens} tokens: errors {errors}")
    return errors


def checked(
    contenders: dict[str, Contender], absent: dict[str, str], sizes: tuple[int, ...]
) -> dict[str, dict[str, list[float]]]:
    """Compare all answers, once with all keys near and once with chunks, both off every edge."""
    found: dict = {}
    for name, contender in list(contenders.items()):
        try:
            found[name] = {
                f"{size} {tokens}": check(name, contender, size, tokens)
                for size in sizes
                if size in contender.sizes
                for tokens in (1000, 8385)
            }
        except Exception as error:
            if not contender.peer:
                raise
            absent[name] = f"{type(error).__name__}: {error}"[:200]
            del contenders[name]
    return found


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


def measure(contenders: dict[str, Contender], size: int, tokens: int) -> dict:
    """Time every contender forward, and forward with backward, in turns."""
    drawn, calls = draw(size, tokens), {}
    for name, contender in contenders.items():
        if tokens > contender.longest or size not in contender.sizes:
            continue
        *x, g = drawn
        if contender.tokens_first:
            *x, g = (t.transpose(1, 2).contiguous() for t in drawn)
        leaves = [t.clone().requires_grad_() for t in x]

        def both(attend=contender.attend, leaves=leaves, g=g):
            for t in leaves:
                t.grad = None
            attend(*leaves).backward(g)

        calls[f"{name} forward"] = lambda attend=contender.attend, x=x: attend(*x)
        calls[f"{name} both"] = both
    found: dict = {"size": size, "tokens": tokens}
    found |= interleaved(calls, 5 if tokens > 65536 else 20, other_work())
    print(found, file=sys.stderr, flush=True)
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


def report(found: list[dict], names: list[str]) -> None:
    heads = ["head", "tokens", *names, "cudnn/triton"]
    rows = []
    for r in found:
        shown = [
            " / ".join(f"{r[f'{name} {mode}']:.3g}" for mode in ("forward", "both"))
            if f"{name} both" in r
            else "-"
            for name in names
        ]
        ratios = (f"{r[f'cudnn {m}'] / r[f'triton {m}']:.2f}" for m in ("forward", "both"))
        rows.append([r["size"], r["tokens"], *shown, " / ".join(ratios)])
    table(heads, rows)


def table(heads: list[str], rows: list[list]) -> None:
    """Print a table, as Markdown where nobody looks: for docs/dev/performance.md."""
    if sys.stdout.isatty():
        print_table(heads, rows)
        return
    for row in (heads, ["---"] * len(heads), *rows):
        print("| " + " | ".join(map(str, row)) + " |")


def plot(found: list[dict], names: list[str]) -> str:
    series = []
    for name in names:
        for mode in ("forward", "both"):
            points = [
                (r["tokens"], r[f"{name} {mode}"])
                for r in found
                if r["size"] == 64 and f"{name} {mode}" in r
            ]
            series.append(Series(f"{name}, {mode.replace('both', 'with backward')}", points))
    title = f"Causal attention on {torch.cuda.get_device_name()}, {HEADS} heads of 64, bfloat16"
    return line_chart(series, x="tokens", y="ms", title=title, log=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="head size 64, four lengths")
    parser.add_argument("--plot", metavar="FILE", help="write the times at head size 64 as SVG")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("nothing was timed: this needs a CUDA device")
        return
    sizes = (64,) if args.quick else SIZES
    contenders, absent = gather()
    errors = checked(contenders, absent, sizes)
    machine: dict = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    machine["triton"] = importlib.import_module("triton").__version__
    machine |= ceilings()
    lengths = dict.fromkeys(sizes, LENGTHS[1::2]) | ({} if args.quick else {64: LENGTHS})
    found = [measure(contenders, s, n) for s in sizes for n in lengths[s]]
    shares = kernels(131072, machine["product TFLOP/s"], machine["copy TB/s"])
    memory = {f"{s} 131072": peak(s, 131072) for s in sizes}
    hosts = {name: host(turned(one)) for name, one in contenders.items() if not one.peer}
    for r in found:
        r["triton TFLOP/s"] = rate(r["size"], r["tokens"], r["triton forward"])
    print({k: round(v, 2) if isinstance(v, float) else v for k, v in machine.items()})
    for name, why in absent.items():
        print(f"not timed: {name}, {why}")
    report(found, list(contenders))
    table(["kernel, 131072 tokens", "calls", "ms each", "rate", "share"], shares)
    shown = {name: [round(x, 3) for x in taken] for name, taken in hosts.items()}
    print(f"the host's ms for one call, forward and with backward: {shown}")
    print(f"MiB beyond inputs, output and gradients: { {k: round(v) for k, v in memory.items()} }")
    if args.plot:
        names = [n for n in ("triton", "cudnn", "flash", "retention") if n in contenders]
        Path(args.plot).write_text(plot(found, names))
    print(
        json.dumps(
            {"machine": machine, "errors": errors, "times": found, "peak MiB": memory}
            | {"host ms": hosts, "kernels": shares, "absent": absent}
        )
    )


if __name__ == "__main__":
    main()
