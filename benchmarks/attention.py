"""Quadratic-kernel attention in chunks against torch's fused softmax attention and the naive form.

    python benchmarks/attention.py --decay
    python benchmarks/attention.py [--quick] [--plot docs/dev/attention.svg]

Causal, float32, 4 heads. Answers are compared first, and nothing is timed when one is wrong. Then
all contenders run in turn, round after round, and the median of each counts. Softmax and kernel
attention are different mechanisms: the question is what a token costs, not which is better.

Peak memory is that of a fresh process that runs one case once: its highest resident set, less what
it held with the inputs in place, less the bytes of the output and of the gradients.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from querykey.attention.features import Quadratic
from querykey.attention.mechanisms import Kernel
from querykey.backends.chunked import linear
from querykey.show.figure import Series, line_chart
from querykey.show.table import print_table

HEADS = 4
SIZES = (16, 32, 64)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
LONGEST_NAIVE = 8192
BAR = (32, 16384)  # head size and tokens of the bars: 4x forward, 3x with backward
MODES = ("forward", "both")
DECAY_LENGTHS = (2048, 16384)  # with decay at most 1.35x the time without, at head size 32


def run_chunked(q, k, v):
    return linear.attend(q, k, v, Kernel(Quadratic()), causal=True)


def run_sdpa(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def run_naive(q, k, v):
    w = ((q @ k.mT + 1) ** 2).tril_()
    return w @ v / w.sum(-1, keepdim=True)


def naive_softmax(q, k, v):
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf).softmax(-1) @ v


CONTENDERS = {"chunked": run_chunked, "sdpa": run_sdpa, "naive": run_naive}


def draw(size: int, tokens: int, grad: bool) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    shape = (1, HEADS, tokens, size)
    return [torch.randn(shape, generator=made).requires_grad_(grad) for _ in range(3)]


def run_once(attend, x: list[torch.Tensor], g: torch.Tensor) -> None:
    if not x[0].requires_grad:
        attend(*x)
        return
    for t in x:
        t.grad = None
    attend(*x).backward(g)


def errors(attend, x: list[torch.Tensor], exact: list[torch.Tensor]) -> list[float]:
    leaves = [t.detach().clone().requires_grad_() for t in x]
    out = attend(*leaves)
    out.backward(gradient(out))
    found = [out.detach(), *(t.grad for t in leaves)]
    return [
        float((ours - truth).abs().max() / truth.abs().max())
        for ours, truth in zip(found, exact, strict=True)
    ]


def gradient(out: torch.Tensor) -> torch.Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)


def check(size: int) -> None:
    """Stop unless each is as right as twice the naive form in float32, plus a rounding step."""
    x = draw(size, 1000, grad=False)
    for attend, plain in ((run_chunked, run_naive), (run_sdpa, naive_softmax)):
        leaves = [t.double().requires_grad_() for t in x]
        out = plain(*leaves)
        out.backward(gradient(out))
        exact = [out.detach(), *(t.grad for t in leaves)]
        allowed = [2 * e + torch.finfo(torch.float32).eps for e in errors(plain, x, exact)]
        found = errors(attend, x, exact)
        if any(e > a for e, a in zip(found, allowed, strict=True)):
            sys.exit(f"{attend.__name__} is wrong at head size {size}: {found}, allowed {allowed}")


def run_decay(q, k, v, log_g):
    return linear.attend(q, k, v, Kernel(Quadratic()), causal=True, decay=log_g)


def naive_decay(q, k, v, log_g):
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
    running = log_g.cumsum(-1)
    between = (running[..., None] - running[..., None, :]).masked_fill(later, -math.inf)
    w = (q @ k.mT + 1) ** 2 * between.exp()
    return w @ v / w.sum(-1, keepdim=True)


def draw_decay(size: int, tokens: int, grad: bool) -> list[torch.Tensor]:
    log_g = -torch.rand(1, HEADS, tokens, generator=torch.Generator().manual_seed(2)) / 10
    return [*draw(size, tokens, grad), log_g.requires_grad_(grad)]


def check_decay(size: int) -> None:
    """Stop unless the answers and the gradients of q, k, v are as right as `check` asks.

    The gradient of log_g adds up roundings along the sequence, and is held to 40 rounding steps.
    """
    x, eps = draw_decay(size, 2000, grad=False), torch.finfo(torch.float32).eps
    leaves = [t.double().requires_grad_() for t in x]
    out = naive_decay(*leaves)
    out.backward(gradient(out))
    exact = [out.detach(), *(t.grad for t in leaves)]
    allowed = [2 * e + eps for e in errors(naive_decay, x, exact)]
    allowed[-1] = 40 * eps
    found = errors(run_decay, x, exact)
    if any(e > a for e, a in zip(found, allowed, strict=True)):
        sys.exit(f"decay is wrong at head size {size}: {found}, allowed {allowed}")


def measure_decay(size: int, tokens: int, rounds: int) -> dict:
    """Time chunks with decay and without, in turn; also processor time, which others disturb less.

    The ratio is the median of those of the turns.
    """
    g = torch.randn(1, HEADS, tokens, size)
    result = {"size": size, "tokens": tokens, "rounds": rounds}
    for mode in MODES:
        x = draw_decay(size, tokens, mode == "both")
        contenders = {"plain": (run_chunked, x[:3]), "decay": (run_decay, x)}
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for turn in range(rounds + 1):
            for name, (attend, inputs) in contenders.items():
                began = time.perf_counter(), time.process_time()
                run_once(attend, inputs, g)
                if turn:  # the first turn warms up
                    spent = time.perf_counter() - began[0], time.process_time() - began[1]
                    seconds[name].append(spent)
        for clock, index in (("", 0), (" processor", 1)):
            pairs = zip(seconds["decay"], seconds["plain"], strict=True)
            ratio = statistics.median(a[index] / b[index] for a, b in pairs)
            result[f"ratio {mode}{clock}"] = round(ratio, 3)
            for name, spent in seconds.items():
                result[f"{name} {mode}{clock}"] = statistics.median(s[index] for s in spent)
    return result


def rate() -> float:
    """Return the machine's rate for a large float32 product just now, in GFLOP/s."""
    a, out = torch.randn(2048, 2048), torch.empty(2048, 2048)
    began = time.perf_counter()
    torch.mm(a, a, out=out)
    return 2 * 2048**3 / (time.perf_counter() - began) / 1e9


def measure(size: int, tokens: int, rounds: int) -> dict:
    """Time every contender, forward and with backward, in turn."""
    g = torch.randn(1, HEADS, tokens, size)
    inputs = {mode: draw(size, tokens, mode == "both") for mode in MODES}
    seconds: dict[tuple[str, str], list[float]] = {}
    rates = []
    for turn in range(rounds + 1):
        rates.append(rate())
        for name, attend in CONTENDERS.items():
            if name == "naive" and tokens > LONGEST_NAIVE:
                continue
            for mode in MODES:
                began = time.perf_counter()
                run_once(attend, inputs[mode], g)
                if turn or rounds == 1:  # the first turn warms up
                    seconds.setdefault((name, mode), []).append(time.perf_counter() - began)
        if rounds == 1:
            break
    result = {"size": size, "tokens": tokens, "rounds": rounds}
    result |= {f"{name} {mode}": statistics.median(s) for (name, mode), s in seconds.items()}
    for mode in MODES:
        pairs = zip(seconds["sdpa", mode], seconds["chunked", mode], strict=True)
        result[f"ratio {mode}"] = statistics.median(a / b for a, b in pairs)
    return result | {"gflops": statistics.median(rates)}


def resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes: VmRSS now, VmHWM its highest so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"this system does not tell {field}")


def peak(name: str, size: int, tokens: int, mode: str) -> int:
    """Return the bytes one call takes at its highest, beyond inputs, output and gradients."""
    attend = CONTENDERS[name]
    small = draw(size, 64, mode == "both")
    run_once(attend, small, torch.ones_like(small[0]))  # libraries load what they load
    x = draw(size, tokens, mode == "both")
    g = torch.ones_like(x[0])
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    before = resident("VmRSS")
    run_once(attend, x, g)
    results = g.nbytes * (4 if mode == "both" else 1)
    return max(resident("VmHWM") - before - results, 0)


def peak_in_a_process(name: str, size: int, tokens: int, mode: str) -> int | None:
    call = [sys.executable, __file__, "--peak", name, str(size), str(tokens), mode]
    done = subprocess.run(call, capture_output=True, text=True, env=os.environ)
    return int(done.stdout) if done.returncode == 0 else None


def crossover(results: list[dict], size: int, mode: str) -> float | None:
    """Return the length where chunked overtakes SDPA, between measured ones on a log scale."""
    points = [(r["tokens"], r[f"ratio {mode}"]) for r in results if r["size"] == size]
    points.sort()
    if points and points[0][1] >= 1:
        return points[0][0]
    for (n0, r0), (n1, r1) in pairwise(points):
        if r0 < 1 <= r1:
            share = -math.log(r0) / (math.log(r1) - math.log(r0))
            return round(n0 * (n1 / n0) ** share)
    return None


def plot(results: list[dict], mode: str) -> str:
    series = []
    for size in sorted({r["size"] for r in results}):
        for name in ("chunked", "sdpa"):
            key = f"{name} {mode}"
            points = [(r["tokens"], 1e3 * r[key]) for r in results if r["size"] == size]
            label = "quadratic kernel" if name == "chunked" else "softmax (SDPA)"
            series.append(Series(f"{label}, {size}", points))
    title = f"Causal attention on a CPU, {HEADS} heads, {mode.replace('both', 'with backward')}"
    return line_chart(series, x="tokens", y="ms", title=title, log=True)


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def report(results: list[dict], peaks: list[dict], crossings: dict) -> None:
    names = [f"{name} {mode}" for mode in MODES for name in CONTENDERS]
    print_table(
        ["head", "tokens", *(f"{n} ms" for n in names), *(f"sdpa/chunked {m}" for m in MODES)],
        [
            [
                r["size"],
                r["tokens"],
                *(round(1e3 * r[n], 1) if n in r else "-" for n in names),
                *(round(r[f"ratio {m}"], 2) for m in MODES),
            ]
            for r in results
        ],
    )
    print_table(
        ["head", "tokens", "contender", "mode", "peak MiB beyond inputs, output, gradients"],
        [
            [
                p["size"],
                p["tokens"],
                p["name"],
                p["mode"],
                "-" if p["bytes"] is None else round(p["bytes"] / 2**20, 1),
            ]
            for p in peaks
        ],
    )
    print_table(["head and mode", "faster from tokens"], list(crossings.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="head size 32, to 16384 tokens")
    parser.add_argument("--longest", type=int, help="leave out longer sequences, and peak memory")
    parser.add_argument("--plot", metavar="FILE", help="write the forward times as SVG")
    parser.add_argument("--decay", action="store_true", help="chunks with decay against without")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peak:
        name, size, tokens, mode = args.peak
        print(peak(name, int(size), int(tokens), mode))
        return
    if args.decay:
        check_decay(32)
        say("answers agree")
        rows = [measure_decay(32, n, 9 if n <= 4096 else 5) for n in DECAY_LENGTHS]
        print_table(list(rows[0]), [list(row.values()) for row in rows])
        print(json.dumps({"decay": rows}))
        return
    sizes = (32,) if args.quick else SIZES
    lengths = LENGTHS[1:6:2] if args.quick else LENGTHS
    for size in sizes:
        check(size)
    say("answers agree")
    cases = [(size, n) for size in sizes for n in lengths]
    peaks = [("chunked", 64, 65536, "both")]
    if not args.quick:
        cases.append((32, 65536))
        peaks += [(n, s, 8192, m) for s in sizes for n in CONTENDERS for m in MODES]
        peaks += [(n, s, 32768, "both") for s in sizes for n in ("chunked", "sdpa")]
    if args.longest:
        cases, peaks = [(size, n) for size, n in cases if n <= args.longest], []
    results, found = [], []
    for size, tokens in cases:
        rounds = 7 if tokens <= 4096 else 5 if tokens <= 16384 else 3 if tokens <= 32768 else 1
        results.append(measure(size, tokens, rounds))
        say(f"{size} {tokens}: " + json.dumps({k: round(v, 4) for k, v in results[-1].items()}))
    for name, size, tokens, mode in peaks:
        taken = peak_in_a_process(name, size, tokens, mode)
        found.append({"name": name, "size": size, "tokens": tokens, "mode": mode, "bytes": taken})
        say(f"peak {name} {size} {tokens} {mode}: {taken}")
    crossings = {f"{s} {m}": crossover(results, s, m) for s in sizes for m in MODES}
    report(results, found, crossings)
    if args.plot:
        Path(args.plot).write_text(plot(results, "forward"))
    print(json.dumps({"times": results, "peaks": found, "crossover": crossings}))


if __name__ == "__main__":
    main()
