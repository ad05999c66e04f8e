"""From how many tokens on quadratic-kernel attention is faster and smaller than softmax.

Document 004, 5 c and d. By count, the pseudocodes' multiplications and numbers kept are added up as
polynomials, and the N where both are equal is solved for. On the clock, `attend` runs both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import sympy
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from querykey.attention import Kernel, Quadratic, Softmax
from querykey.backends import attend
from querykey.costs import CostReport, array, cost
from querykey.lab.claim import AtLeast, AtMost, Claim, Equal, Near
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.gpu import LONG, MORE_MEMORY, measure_gpu
from querykey.lab.measurement import Chart, Measured, Measurement, exact, sampled, unmeasured
from querykey.lab.pseudocode import C, D, M, N, at_width, counts, equal_from
from querykey.lab.recorded import H200, MACHINE

WIDTHS = (8, 16, 32, 64, 128, 256)  # D = M of the counts
TIMED = (16, 32, 64)  # D = M on the clock
MECHANISMS: dict[str, Softmax | Kernel] = {
    "softmax": Softmax(),
    "quadratic kernel": Kernel(Quadratic()),
}
PREDICTED, COUNTED = "predicted by qk.cost", "predicted by count"
Points = list[tuple[float, float]]
RIGHT = (
    "Equal FLOPs are not equal times: fused softmax is one call that runs near the machine's peak, "
    "the kernel a chain of smaller ones over features that have to be made first."
)
NO_GPU = "this machine has no CUDA device: run `qk lab crossover` on one"

CLAIMS = (
    Claim("E9", "time of softmax is O(N^2 max(D, M)): multiplications grow as N^{value}", 2,
          of="power of N in softmax's time"),
    Claim("E9", "the second double loop of softmax, exp and sum, costs O(N^2 D): it grows as "
          "D^{value}", 1,
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
    Claim("E9", "with features kept, the kernel is smaller from about D^{value} on", 2,
          of="power of D in the N of equal memory, features kept", within=Equal(0.1)),
    Claim("E9", "beside fused softmax, which keeps no scores, the kernel is smaller from some N "
          "on: there are {value} such N", 1, of="N of equal memory, fused softmax, D = 64",
          right="Fused softmax keeps N (2D + 2M + 1) numbers, which the kernel's N (2D + 2M) + C M "
          "comes below only after C M tokens, and never with features kept."),
    Claim("E9", "on this CPU, D = 16, the kernel is faster at N = 16 D^2 = 4096: its time over "
          "softmax's is at most {value}", 1, of="kernel over softmax on CPU, D = 16, N = 4096",
          within=AtMost()),
    *(
        Claim("E9", f"on this CPU, D = {width}, both take the same time at {{value}} times the N "
              "that `qk.cost` predicts by FLOPs", 1,
              of=f"measured N over the predicted, D = {width}", within=Near(0.25), right=RIGHT)
        for width in TIMED
    ),
    Claim("E9", "softmax keeps the scores: as `attend` runs it, bytes kept for backward grow as "
          "N^{value}", 2, of="power of N in the bytes kept: softmax, attend", within=Equal(0.1),
          right="So does its equation; torch's fused attention computes scores again instead."),
    Claim("E9", "computed by its equation, softmax keeps the scores: bytes kept for backward grow "
          "as N^{value}", 2,
          of="power of N in the bytes kept: softmax, equation", within=Equal(0.15)),
    Claim("E9", "the kernel uses much less memory: of the bytes that fused softmax keeps, a share "
          "of {value} at most", 0.5, of="bytes kept by the kernel over fused softmax",
          within=AtMost(),
          right="The same: inputs, outputs and one number for each query, either way."),
    Claim("E9", "on a GPU, too, the kernel is faster if N is far above D^2: on an H200, causal, "
          "D = 64, N = 65536, its time over softmax's is at most {value}", 1,
          of="kernel over softmax on an H200, D = 64, N = 65536", within=AtMost()),
    Claim("E9", "on an H200 the kernel is not faster below the N of equal counts, 4358: at N = "
          "1024 it takes {value} of softmax's time or more", 1,
          of="kernel over softmax on an H200, D = 64, N = 1024", within=AtLeast(),
          right="Short sequences are served pair by pair there, as softmax is, and a square costs "
          "less than an exponential."),
    Claim("E9", "on the GPU of this machine, too, at D = 64, N = 65536, the kernel's time over "
          "softmax's is at most {value}", 1,
          of=LONG, within=AtMost()),
    Claim("E9", "on the GPU of this machine the kernel uses much less memory, too: at N = 65536 a "
          "forward pass takes {value} of what fused softmax takes, inputs left out, or less",
          0.5, of=MORE_MEMORY,
          within=AtMost(),
          right="Neither keeps scores or features; the kernel keeps sums over pieces of the keys."),
)  # fmt: skip


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


class Attending(nn.Module):
    """One head of attention for `qk.cost`; the weight is there to have something to train."""

    def __init__(self, mechanism: Softmax | Kernel, width: int):
        super().__init__()
        self.mechanism, self.shift = mechanism, nn.Parameter(torch.zeros(width))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the outputs for queries q."""
        return attend(q + self.shift, k + self.shift, v + self.shift, mechanism=self.mechanism)


def reports(width: int) -> list[CostReport]:
    """Return what softmax and the kernel cost as `attend` runs them, in N."""
    inputs = {name: array(1, 1, "N", width) for name in "qkv"}
    near = {"N": 4096}  # short sequences are served in other ways
    return [cost(Attending(m, width), inputs, near=near) for m in MECHANISMS.values()]


def predicted(width: int) -> float:
    """Return from which N on the kernel takes fewer FLOPs, by `qk.cost`."""
    softmax, kernel = (report.flops.forward / report.symbols["N"] for report in reports(width))
    (equal,) = sympy.solve(sympy.expand(softmax - kernel))
    return float(equal)


def seconds(mechanism: Softmax | Kernel, tokens: int, width: int) -> float:
    """Return the shortest time of a forward pass over one head, of three.

    It is the time of this process, which other processes do not change.
    """
    q, k, v = torch.randn(3, 1, 1, tokens, width) / width**0.25
    best = math.inf
    with torch.no_grad():
        for _ in range(4):  # the first warms up
            began = time.process_time()
            attend(q, k, v, mechanism=mechanism)
            best = min(best, time.process_time() - began)
    return best


def ratios(depth: Depth, width: int, sizes: Sequence[int]) -> Points:
    """Return the kernel's time over softmax's by the number of tokens."""
    points = []
    for tokens in sizes:
        depth.tell(f"D = {width}, {tokens} tokens")
        softmax, kernel = (seconds(m, tokens, width) for m in MECHANISMS.values())
        points.append((tokens, kernel / softmax))
    return points


def crossing(points: Points) -> float:
    """Return from which N on a ratio stays below 1, on a straight line between logarithms."""
    after = max((i for i, (_, ratio) in enumerate(points) if ratio >= 1), default=-1) + 1
    if not 0 < after < len(points):
        return math.nan  # below 1 everywhere, or at the end still above
    (n, above), (m, below) = points[after - 1], points[after]
    share = math.log(above) / math.log(above / below)
    return n * (m / n) ** share


def on_the_clock(depth: Depth) -> tuple[dict[str, Measured], dict[str, Chart]]:
    """Return where both take the same time on this CPU, and the ratio of their times."""
    widths = depth.pick(quick=TIMED[:1], full=TIMED)
    sizes = [2**p for p in range(7, depth.pick(quick=13, full=14))]
    expected = {width: predicted(width) for width in widths}
    left_out = unmeasured(f"at quick depth only D = {TIMED[0]} is timed")
    values = {f"measured N over the predicted, D = {width}": left_out for width in TIMED}
    lines = {}
    for width in widths:
        runs = [ratios(depth, width, sizes) for _ in range(depth.pick(quick=2, full=5))]
        lines[f"D = {width}"] = [(n, fmean(run[i][1] for run in runs)) for i, n in enumerate(sizes)]
        found = [crossing(run) for run in runs]
        values[f"kernel over softmax on CPU, D = {width}, N = 4096"] = sampled(
            dict(run)[4096] for run in runs
        )
        values[f"predicted N of equal times, D = {width}"] = exact(expected[width])
        values[f"measured N over the predicted, D = {width}"] = (
            sampled(n / expected[width] for n in found)
            if all(map(math.isfinite, found))
            else unmeasured(f"times are equal nowhere from {sizes[0]} to {sizes[-1]} tokens")
        )
    lines[PREDICTED] = [(n, 1.0) for n in expected.values()]
    chart = Chart("Kernel over softmax on this CPU", "tokens N", "ratio of times", lines, True,
                  (PREDICTED,))  # fmt: skip
    return values, {"cpu": chart}


def bytes_kept(mechanism: Softmax | Kernel, tokens: int, backend: str = "auto") -> int:
    """Return how many bytes torch keeps for backward, inputs included."""
    q, k, v = (torch.randn(1, 1, tokens, TIMED[0]).requires_grad_() for _ in range(3))
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        attend(q, k, v, mechanism=mechanism, backend=backend)
    return sum(storages.values())


def in_memory() -> tuple[dict[str, Measured], dict[str, Chart]]:
    """Return what both keep for backward on this machine, and what `qk.cost` says of it."""
    sizes = [2**p for p in range(7, 12)]
    lines: dict[str, Points] = {
        "softmax, equation": [(n, bytes_kept(Softmax(), n, "reference")) for n in sizes]
    }
    values = {}
    for (name, mechanism), report in zip(MECHANISMS.items(), reports(TIMED[0]), strict=True):
        title = f"{name}, attend"
        lines[title] = [(n, bytes_kept(mechanism, n)) for n in sizes]
        lines[f"{title}, qk.cost"] = [(n, int(report.at(N=n).saved_bytes)) for n in sizes]
    for name, line in lines.items():
        (n, first), (m, last) = line[0], line[-1]
        values[f"power of N in the bytes kept: {name}"] = exact(math.log(last / first, m / n))
    kernel, softmax = (lines[f"{n}, attend"][-1][1] for n in ("quadratic kernel", "softmax"))
    values["bytes kept by the kernel over fused softmax"] = exact(kernel / softmax)
    rings = tuple(name for name in lines if name.endswith("qk.cost"))
    chart = Chart(f"Kept for backward, D = {TIMED[0]}", "tokens N", "bytes", lines, True, rings)
    return values, {"memory": chart}


def on_a_gpu(depth: Depth) -> tuple[dict[str, Measured], dict[str, Chart]]:
    """Return the ratio of times on an H200, as recorded, and on this machine's GPU."""
    by_size = {(t.width, t.tokens): t.kernel / t.softmax for t in H200}
    lines: dict[str, Points] = {
        f"D = {width}": [(n, ratio) for (d, n), ratio in by_size.items() if d == width]
        for width in sorted({d for d, _ in by_size})
    }
    c = counts()
    halved = (c["softmax's first loop"] + c["softmax's third loop"]) / 2  # as it is causal
    kernel = c["kernel's sums"] + c["kernel's outputs"]
    widths = sorted({d for d, _ in by_size})
    lines[COUNTED] = [(equal_from(halved, kernel, width)[0], 1.0) for width in widths]
    title = f"Kernel over softmax ({MACHINE})"
    figures = {"h200": Chart(title, "tokens N", "ratio of times", lines, True, (COUNTED,))}
    values = {
        "kernel over softmax on an H200, D = 64, N = 65536": exact(by_size[64, 65536]),
        "kernel over softmax on an H200, D = 64, N = 1024": exact(by_size[64, 1024]),
        LONG: unmeasured(NO_GPU),
    }
    values[MORE_MEMORY] = unmeasured(NO_GPU)
    if torch.cuda.is_available():
        more, drawn = measure_gpu(depth)
        values |= more
        figures |= drawn
    return values, figures


def measure(depth: Depth) -> Measurement:
    """Solve for equal counts, and measure time and memory on what this machine has."""
    values, figures = by_count()
    for part, drawn in (on_a_gpu(depth), on_the_clock(depth), in_memory()):
        values |= part
        figures |= drawn
    return Measurement(values, figures)


EXPERIMENT = Experiment(
    "crossover", "From how many tokens on is the quadratic kernel faster and smaller?",
    CLAIMS, measure,
)  # fmt: skip
