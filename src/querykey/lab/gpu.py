"""Softmax and the quadratic kernel on this machine's GPU: time and memory of a forward pass."""

from __future__ import annotations

import math
from statistics import fmean

import torch

from querykey.attention import Causal, Kernel, Quadratic, Softmax
from querykey.backends import attend
from querykey.lab.experiment import Depth
from querykey.lab.measurement import Chart, Measured, sampled

WIDTHS = (16, 32, 64, 128)  # D = M
TOKENS = tuple(2**power for power in range(10, 18))
HEADS, ROUNDS, REPEATS = 16, 3, 5
MECHANISMS = {"softmax": Softmax(), "kernel": Kernel(Quadratic())}
LONG = "kernel over softmax on this machine's GPU, D = 64, N = 65536"
MORE_MEMORY = "memory of the kernel over softmax on this machine's GPU, D = 64, N = 65536"
Size = tuple[int, int]  # D and N


def milliseconds(mechanism: Softmax | Kernel, size: Size) -> tuple[float, float]:
    """Return the shortest time of a causal forward pass, and the most memory that it takes."""
    width, tokens = size
    shape = (3, 1, HEADS, tokens, width)
    q, k, v = torch.randn(shape, device="cuda", dtype=torch.bfloat16) / width**0.25
    best, before = math.inf, torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        for _ in range(1 + REPEATS):  # the first compiles and warms up
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            attend(q, k, v, mechanism=mechanism, mask=Causal())
            end.record()
            torch.cuda.synchronize()
            best = min(best, start.elapsed_time(end))
    return best, float(torch.cuda.max_memory_allocated() - before)


def measure_gpu(depth: Depth) -> tuple[dict[str, Measured], dict[str, Chart]]:
    """Measure both over heads of several sizes and numbers of tokens, in turns."""
    times: dict[tuple[str, Size], list[float]] = {}
    memory: dict[tuple[str, Size], float] = {}
    sizes = [(width, tokens) for width in WIDTHS for tokens in TOKENS]
    for turn in range(ROUNDS):
        for size in sizes:
            depth.tell(f"round {turn + 1} on the GPU, D = {size[0]}, {size[1]} tokens")
            for name, mechanism in MECHANISMS.items():
                time, memory[name, size] = milliseconds(mechanism, size)
                times.setdefault((name, size), []).append(time)
    values = {f"milliseconds on this GPU, D = {d}, N = {n}, {name}": sampled(line)
              for (name, (d, n)), line in times.items()}  # fmt: skip
    ratios = {
        size: [k / s for k, s in zip(times["kernel", size], times["softmax", size], strict=True)]
        for size in sizes
    }
    values[LONG] = sampled(ratios[64, 65536])
    shares = {size: memory["kernel", size] / memory["softmax", size] for size in sizes}
    values[MORE_MEMORY] = Measured((shares[64, 65536],))
    lines = {f"D = {d}": [(n, fmean(ratios[d, n])) for n in TOKENS] for d in WIDTHS}
    kept = {f"D = {d}": [(n, shares[d, n]) for n in TOKENS] for d in WIDTHS}
    device = torch.cuda.get_device_name()
    title = f"Kernel over softmax on this {device}, {HEADS} heads, causal"
    return values, {
        "gpu": Chart(title, "tokens N", "ratio of times", lines, True),
        "gpu-memory": Chart(title, "tokens N", "ratio of memory", kept, True),
    }
