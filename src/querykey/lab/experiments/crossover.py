"""From how many tokens on quadratic-kernel attention is faster and smaller than softmax.

Document 004, 5 c and d. By count, the pseudocodes' multiplications and numbers kept are added up as
polynomials, and the N where both are equal is solved for. On the clock, `attend` runs both.
"""

from __future__ import annotations

import math
import time
from typing import Any

import sympy
import torch

from querykey.attention import Kernel, Quadratic, Softmax
from querykey.backends import attend
from querykey.lab.claim import AtMost, Claim, Equal, Near
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measured, Measurement, exact, sampled, unmeasured

N, D, M, C = sympy.symbols("N D M C", positive=True)
WIDTHS = (8, 16, 32, 64, 128, 256)  # D = M of the counts
TIMED = 16  # D = M on the clock
NO_GPU = "this machine has no CUDA device: run `qk lab crossover` on one"

CLAIMS = (
    Claim("E9", "time of softmax is O(N^2 max(D, M)): multiplications grow as N^{value}", 2,
          of="power of N in softmax's time"),
    Claim("E9", "its second double loop, exp and sum, costs O(N^2 D): it grows as D^{value}", 1,
          of="power of D in softmax's second loop",
          right="That loop does not see D: O(N^2). The total is as the text says."),
    Claim("E9", "memory of softmax is O(N max(N, M, D)): it grows as N^{value}", 2,
          of="power of N in softmax's memory"),
    Claim("E9", "time of the kernel is O(N C M): it grows as D^{value} where M = D", 3,
          of="power of D in the kernel's time", within=Equal(0.15)),
    Claim("E9", "memory of the kernel is O(N (D + M) + C M): for 10^6 tokens at D = M = 64 that is "
          "{value} times what is kept for backward", 1,
          of="the text's memory over what is kept, D = 64", within=Near(0.1),
          right="The text keeps every intermediate result, but leaves out phi(Q) and phi(K), 2 N C "
          "numbers; they are most of it unless they are computed again."),
    Claim("E9", "the kernel is faster if N is far above D^2: not below {value} D^2 at D = 64", 1,
          of="N over D^2 where times are equal, D = 64", within=Equal(0.05),
          right="By count from C + C/D on, which is about D^2 / 2."),
    Claim("E9", "causal softmax does half the work: kernel faster from {value} D^2 on at D = 64",
          1.06, of="N over D^2 where times are equal, causal, D = 64", within=Equal(0.01)),
    Claim("E9", "the kernel is smaller if N is far above D^2: from about D^{value} on", 2,
          of="power of D in the N of equal memory, features computed again", within=Equal(0.1),
          right="Where features are not kept, already from about D^1.5 / 2 on; where they are, "
          "from about D^2 / 2 on."),
    Claim("E9", "with features kept, from about D^{value} on", 2,
          of="power of D in the N of equal memory, features kept", within=Equal(0.1)),
    Claim("E9", "beside fused softmax, which keeps no scores, the kernel is smaller from some N "
          "on: there are {value} such N", 1, of="N of equal memory, fused softmax, D = 64",
          right="Fused softmax keeps N (2D + 2M + 1) numbers, which the kernel's N (2D + 2M) + C M "
          "comes below only after C M tokens, and never with features kept."),
    Claim("E9", "on this CPU, D = 16, the kernel is faster at N = 16 D^2 = 4096: its time over "
          "softmax's is at most {value}", 1, of="kernel over softmax on CPU, D = 16, N = 4096",
          within=AtMost()),
    Claim("E9", "on a GPU as well: at most {value}", 1,
          of="kernel over softmax on GPU, D = 64, N = 65536", within=AtMost()),
)  # fmt: skip


def counts() -> dict[str, Any]:
    """Return multiplications and numbers kept of the two pseudocodes, line by line."""
    return {
        "softmax's first loop": N**2 * D,
        "softmax's second loop": 2 * N**2,
        "softmax's third loop": N**2 * M,
        "softmax's memory": N * (2 * D + 2 * M) + 2 * N**2,
        "fused softmax's memory": N * (2 * D + 2 * M + 1),
        "kernel's sums": N * C * M + N * C,
        "kernel's outputs": N * C * M + N * C,
        "kernel's memory": N * (2 * D + 2 * M) + C * M + C,
        "kernel's memory, features kept": N * (2 * D + 2 * M) + C * M + C + 2 * N * C,
    }


def at_width(formula: Any, width: int) -> Any:
    """Return a formula in N alone, for D = M = width and the features of the quadratic kernel."""
    return formula.subs({D: width, M: width, C: Quadratic().width(width)})


def equal_from(first: Any, second: Any, width: int) -> list[float]:
    """Return the N above 0 where two formulas are equal."""
    roots = sympy.solve(sympy.expand(at_width(first - second, width)), N)
    return [float(root) for root in roots if root.is_positive]


def power_of_width(points: dict[int, float]) -> float:
    """Return the exponent in D between the two largest widths."""
    (a, x), (b, y) = sorted(points.items())[-2:]
    return math.log(y / x) / math.log(b / a)


def by_count() -> tuple[dict[str, Measured], dict[str, Chart]]:
    """Return where both are equal in multiplications and in numbers kept."""
    c = counts()
    scores = c["softmax's first loop"] + c["softmax's third loop"]
    kernel = c["kernel's sums"] + c["kernel's outputs"]
    pairs = {
        "times": (scores, kernel),
        "times, causal": (scores / 2, kernel),
        "memory, features computed again": (c["softmax's memory"], c["kernel's memory"]),
        "memory, features kept": (c["softmax's memory"], c["kernel's memory, features kept"]),
    }
    lines = {name: {w: equal_from(*pair, w)[0] for w in WIDTHS} for name, pair in pairs.items()}
    fused = equal_from(c["fused softmax's memory"], c["kernel's memory, features kept"], 64)
    text = at_width(N * (D + M) + C * M, 64).subs(N, 10**6)
    kept = at_width(c["kernel's memory, features kept"], 64).subs(N, 10**6)
    time_of_kernel = {w: float(at_width(kernel, w).subs(N, 1)) for w in WIDTHS}
    values: dict[str, Any] = {
        "power of N in softmax's time": sympy.degree(scores, N),
        "power of D in softmax's second loop": sympy.degree(c["softmax's second loop"], D),
        "power of N in softmax's memory": sympy.degree(c["softmax's memory"], N),
        "power of D in the kernel's time": power_of_width(time_of_kernel),
        "the text's memory over what is kept, D = 64": float(text / kept),
        "N over D^2 where times are equal, D = 64": lines["times"][64] / 64**2,
        "N over D^2 where times are equal, causal, D = 64": lines["times, causal"][64] / 64**2,
        "N of equal memory, fused softmax, D = 64": len(fused),
    }
    for name in ("features computed again", "features kept"):
        values[f"power of D in the N of equal memory, {name}"] = power_of_width(
            lines[f"memory, {name}"]
        )
    chart = Chart("From which N the quadratic kernel is better, by count", "D = M", "tokens N",
                  {name: [*line.items()] for name, line in lines.items()}, True)  # fmt: skip
    measured = {n: exact(int(v) if float(v).is_integer() else float(v)) for n, v in values.items()}
    return measured, {"count": chart}


def seconds(mechanism: Softmax | Kernel, tokens: int, width: int, device: str) -> float:
    """Return the shortest time of a forward pass over one head, of three."""
    half = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = torch.randn(3, 1, 1, tokens, width, device=device, dtype=half) / width**0.25
    best = math.inf
    with torch.no_grad():
        for _ in range(4):  # the first warms up
            began = time.perf_counter()
            attend(q, k, v, mechanism=mechanism)
            if device == "cuda":
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
    return best


def on_the_clock(depth: Depth, device: str, width: int, sizes: tuple[int, ...]) -> Chart:
    """Return the time of both on a device over the number of tokens."""
    mechanisms = {"softmax": Softmax(), "quadratic kernel": Kernel(Quadratic())}
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in mechanisms}
    for tokens in sizes:
        depth.tell(f"{tokens} tokens on {device}")
        for name, mechanism in mechanisms.items():
            lines[name].append((tokens, 1e3 * seconds(mechanism, tokens, width, device)))
    return Chart(f"Forward pass on {device}, D = {width}", "tokens", "ms", lines, True)


def ratio(device: str, width: int, tokens: int, repeats: int) -> Measured:
    """Return the kernel's time over softmax's, several times."""
    return sampled(
        seconds(Kernel(Quadratic()), tokens, width, device)
        / seconds(Softmax(), tokens, width, device)
        for _ in range(repeats)
    )


def measure(depth: Depth) -> Measurement:
    """Solve for equal counts, and time both on what this machine has."""
    values, figures = by_count()
    repeats = depth.pick(quick=3, full=10)
    sizes = depth.pick(quick=(256, 1024), full=tuple(2**p for p in range(6, 15)))
    name = "kernel over softmax on CPU, D = 16, N = 4096"
    values[name] = ratio("cpu", TIMED, 4096, repeats)
    figures["cpu"] = on_the_clock(depth, "cpu", TIMED, sizes)
    name = "kernel over softmax on GPU, D = 64, N = 65536"
    values[name] = unmeasured(NO_GPU)
    if torch.cuda.is_available():
        values[name] = ratio("cuda", 64, 65536, repeats)
        sizes = tuple(2**p for p in range(10, 18))
        figures["gpu"] = on_the_clock(depth, "cuda", 64, sizes)
    return Measurement(values, figures)


EXPERIMENT = Experiment(
    "crossover", "From how many tokens on is the quadratic kernel faster and smaller?",
    CLAIMS, measure,
)  # fmt: skip
