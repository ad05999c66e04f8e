"""What each kernel of a forward and backward call takes, and its share of what the machine can."""

from __future__ import annotations

import statistics

import torch
from gpu_peers import HEADS, draw, run_triton
from torch.profiler import ProfilerActivity, profile

from querykey.backends.triton.plans import PLANS

SIZE = 64


def kernels(tokens: int, product: float, copy: float) -> list[list]:
    """Return name, calls, ms each, rate and share; operations and bytes are those it cannot avoid.

    Queries meet half of their chunk's pairs. `product` is in TFLOP/s, `copy` in TB/s.
    """
    rows, cube, square = HEADS * tokens, SIZE**3, SIZE**2
    tables = HEADS * (tokens // PLANS[SIZE].chunk) * 3 * cube // 4
    pair = rows * PLANS[SIZE].chunk // 2 * SIZE  # multiply-adds of one product over near pairs
    work = {  # FLOPs, or bytes as negative numbers
        "outputs": 2 * (rows * (3 * cube // 4 + 2 * square) + 2 * pair),
        "chunk_sums": 2 * rows * (SIZE * (SIZE + 8) // 2 * SIZE + 2 * square),
        "query_gradients": 2 * (rows * (cube + 2 * square) + 3 * pair),
        "key_gradients": 2 * (rows * (2 * cube + 3 * square) + 4 * pair),
        "running_sums": -2 * 2 * tables,
        "transposed": -2 * 2 * rows * SIZE,
        "scaled_gradients": -4 * 2 * rows * SIZE,
    }
    *x, g = draw(SIZE, tokens)
    leaves = [t.requires_grad_() for t in x]
    run_triton(*leaves).backward(g)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(5):
            run_triton(*leaves).backward(g)
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in work}
    for event in seen.events():
        if event.name in times:
            times[event.name].append(event.time_range.elapsed_us() / 1e3)
    found = []
    for name, amount in work.items():
        ms = statistics.median(times[name])
        rate = abs(amount) / ms / 1e9
        share = rate / (product if amount > 0 else copy)
        unit = "TFLOP/s" if amount > 0 else "TB/s"
        shown = f"{rate:.0f} {unit}" if amount > 0 else f"{rate:.1f} {unit}"
        found.append([name, len(times[name]) // 5, round(ms, 3), shown, f"{share:.0%}"])
    return found
