"""Training without zero_grad (document 004, 6 c): what the loop does, and where it diverges.

Gradients that are never cleared add up to g_1 + ... + g_t, so that each step is the one before it
less rate * g_t: SGD with momentum 1, a heavy ball without friction. On a curvature h, with
x = rate * h, its steps obey w[t+1] = (2 - x) w[t] - w[t-1]. The roots lie on the unit circle while
0 < x < 4: it swings for ever, with 2 - x = 2 cos(angle) in each step. Noise of variance s^2 in the
gradients is never forgotten: after t steps its variance in w is t rate s^2 / (2 h (1 - x / 4)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from querykey.lab.claim import AtLeast, AtMost, Claim, Equal, Near
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measured, Measurement, exact, sampled
from querykey.lab.pictures import Pictures, pictures
from querykey.laws import check_training

RATE, BATCH = 0.001, 100  # of the text
RATES = (0.0001, 0.001, 0.01, 0.1, 1.0)
CURVATURES = torch.arange(0.05, 5.0, 0.05, dtype=torch.float64)  # rate * h, as the rate is 1
Loop = Callable[[torch.optim.Optimizer, Iterable[Callable[[], Tensor]]], list[float]]

CLAIMS = (
    Claim("E12", "old gradients are applied again and again: the loop is the corrected one with "
          "momentum {value}", 1, of="momentum that gives the same parameters"),
    Claim("E12", "applying old gradients again makes training unstable: at rate * curvature = 1, "
          "swings grow by the factor {value} or more from the first to the last thousand of 4000 "
          "steps", 2,
          of="growth of swings, rate * curvature = 1", within=AtLeast(),
          right="They neither grow nor shrink: the loop does not converge, but it is bounded."),
    Claim("E12", "the printed loop diverges on a curvature h from rate * h = {value} on", 4,
          of="largest rate * curvature without growth, as printed", within=Equal(0.06)),
    Claim("E12", "the corrected loop diverges from rate * h = {value} on", 2,
          of="largest rate * curvature without growth, corrected", within=Equal(0.06)),
    Claim("E12", "at smaller rates one swing of the printed loop takes 2 pi / arccos(1 - rate * h "
          "/ 2) steps: at rate * h = 1, {value}", 6, of="steps of a swing, rate * curvature = 1"),
    Claim("E12", "with gradients from batches the swings do grow: the variance of w grows as "
          "t^{value}", 1,
          of="power of t in the variance, as printed", within=Equal(0.1)),
    Claim("E12", "the variance of w is {value} times t rate s^2 / (2 h (1 - rate * h / 4))", 1,
          of="variance over theory, as printed", within=Near(0.1)),
    Claim("E12", "in the corrected loop the variance of w stays: it grows as t^{value}", 0,
          of="power of t in the variance, corrected", within=Equal(0.1)),
    Claim("E12", "at the text's rate, 0.001, and batches of 100, a network diverges: the mean loss "
          "at the end is {value} of the first one or more", 1,
          of="last losses over the first, rate 0.001, as printed", within=AtLeast(),
          right="On digits it swings from a loss of about 0 to one of about 1 and back; the "
          "corrected loop is slow at this rate, and its loss is still higher after 1600 steps."),
    Claim("E12", "at ten times that rate the network diverges, too: its mean loss at the end is "
          "{value} of the first one or more", 1,
          of="last losses over the first, rate 0.01, as printed", within=AtLeast()),
    Claim("E12", "at ten times the text's rate the corrected loop converges: the mean loss at the "
          "end is {value} of the first one or less", 0.2,
          of="last losses over the first, rate 0.01, corrected", within=AtMost()),
    Claim("E12", "at a hundred times the text's rate the corrected loop converges, too: the mean "
          "loss at the end is {value} of the first one or less", 0.1,
          of="last losses over the first, rate 0.1, corrected", within=AtMost()),
    Claim("E12", "`qk.check_training` names the fault: of the laws, the printed loop breaks "
          "{value}", ("training.zero-grad",), of="laws that are broken, as printed"),
    Claim("E12", "`qk.check_training` lets the corrected loop pass: it breaks {value}",
          (), of="laws that are broken, corrected"),
)  # fmt: skip


def as_printed(
    optimizer: torch.optim.Optimizer, training_set: Iterable[Callable[[], Tensor]]
) -> list[float]:
    """Run the text's loop; a batch is a function that returns its loss."""
    losses = []
    optimizer.zero_grad()
    for batch in training_set:
        loss = batch()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def corrected(
    optimizer: torch.optim.Optimizer, training_set: Iterable[Callable[[], Tensor]]
) -> list[float]:
    """Run the loop as the text corrects it: gradients are cleared for every batch."""
    losses = []
    for batch in training_set:
        optimizer.zero_grad()
        loss = batch()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


LOOPS: dict[str, Loop] = {"as printed": as_printed, "corrected": corrected}


def network(seed: int) -> nn.Module:
    """Return a small network for digits."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def batches(model: nn.Module, steps: int, seed: int) -> Iterable[Callable[[], Tensor]]:
    """Yield batches of digits as functions that return a model's loss on them."""
    digits, generator = pictures("digits")[0], torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        rows = torch.randint(len(digits), (BATCH,), generator=generator)
        batch = Pictures(digits.images[rows].to(dtype), digits.labels[rows])
        yield lambda batch=batch: F.cross_entropy(model(batch.images), batch.labels)


def equal_momentum(seed: int, steps: int = 30) -> float | str:
    """Return with which momentum the corrected loop ends where the printed one does."""

    def end(loop: Loop, momentum: float) -> Tensor:
        model = network(seed).double()
        loop(torch.optim.SGD(model.parameters(), 0.01, momentum), batches(model, steps, seed))
        return nn.utils.parameters_to_vector(model.parameters())

    printed = end(as_printed, 0)
    same = [m for m in (0, 0.5, 0.9, 1) if torch.allclose(end(corrected, m), printed, atol=1e-12)]
    return same[0] if len(same) == 1 else f"{len(same)} of those tried"


def path(loop: Loop, steps: int, noise: Tensor | None = None) -> Tensor:
    """Return w after every step at rate 1 on all curvatures at once, from 1 on; or from 0, moved
    by noise in the gradients (steps, draws) at the curvature 1."""  # fmt: skip
    curvatures = CURVATURES if noise is None else torch.ones(noise.shape[1], dtype=torch.float64)
    w = torch.ones_like(curvatures) if noise is None else torch.zeros_like(curvatures)
    w.requires_grad_()
    seen = []

    def batch(step: int) -> Tensor:
        seen.append(w.detach().clone())
        push = 0 if noise is None else (noise[step] * w).sum()
        return (curvatures * w.square()).sum() / 2 + push

    optimizer = torch.optim.SGD([w], 1.0)
    loop(optimizer, (lambda step=step: batch(step) for step in range(steps)))
    return torch.stack(seen)


def laws_broken(loop: Loop) -> tuple[str, ...]:
    """Return which laws of training a loop breaks in four steps."""

    def run() -> None:
        model = network(0)
        loop(torch.optim.SGD(model.parameters(), RATE), batches(model, 4, 0))

    return tuple(finding.law for finding in check_training(run).violations)


def period(swing: Tensor) -> int:
    """Return after how many steps a path repeats itself."""
    return next(p for p in range(1, 1000) if torch.allclose(swing[p:][:100], swing[:100]))


def on_curvatures() -> tuple[dict[str, Measured], Chart]:
    """Return where swings grow in both loops, and how long one takes."""
    values, lines = {}, {}
    for name, loop in LOOPS.items():
        swings = path(loop, 4000)
        growth = swings[-1000:].abs().amax(0) / swings[:1000].abs().amax(0)
        bounded = CURVATURES[growth < 1.5]
        values[f"largest rate * curvature without growth, {name}"] = exact(float(bounded.max()))
        at_one = int((CURVATURES - 1).abs().argmin())
        values[f"growth of swings, rate * curvature = 1, {name}"] = exact(float(growth[at_one]))
        lines[name] = [*enumerate(swings[:40, int((CURVATURES - 0.1).abs().argmin())].tolist())]
        if name == "as printed":
            values["growth of swings, rate * curvature = 1"] = exact(float(growth[at_one]))
            values["steps of a swing, rate * curvature = 1"] = exact(period(swings[:, at_one]))
    title = "w on a parabola, rate * curvature = 0.1"
    return values, Chart(title, "step", "w", lines)


def with_noise(seed: int, steps: int) -> dict[str, float]:
    """Return how the variance of w grows when gradients have noise of variance 1, at x = 1."""
    noise = torch.randn(steps, 2000, generator=torch.Generator().manual_seed(seed)).double()
    found = {}
    for name, loop in LOOPS.items():
        variance = path(loop, steps, noise).square().mean(1).numpy()
        first = steps // 16
        times = np.arange(len(variance))
        found[f"power of t in the variance, {name}"] = float(
            np.polyfit(np.log(times[first:]), np.log(variance[first:]), 1)[0]
        )
        if name == "as printed":
            theory = times / (2 * (1 - 1 / 4))
            found["variance over theory, as printed"] = float(
                variance[first:].sum() / theory[first:].sum()
            )
    return found


def on_digits(
    depth: Depth, rates: tuple[float, ...], seeds: list[int], steps: int
) -> tuple[dict[str, Measured], dict[str, Chart]]:
    """Return how both loops end on digits, by the rate."""
    values, ends, curves = {}, {name: [] for name in LOOPS}, {}
    for rate in rates:
        depth.tell(f"digits at rate {rate:g}")
        for name, loop in LOOPS.items():
            runs = []
            for seed in seeds:
                model = network(seed)
                optimizer = torch.optim.SGD(model.parameters(), rate)
                runs.append(loop(optimizer, batches(model, steps, seed)))
            last = [fmean(losses[-steps // 4 :]) for losses in runs]
            values[f"last losses over the first, rate {rate:g}, {name}"] = sampled(
                end / losses[0] for end, losses in zip(last, runs, strict=True)
            )
            ends[name].append((rate, fmean(last)))
            if rate == RATE:
                curves[name] = [*enumerate(runs[0])][:: max(steps // 200, 1)]
    return values, {
        "digits": Chart(f"Training on digits at rate {RATE}", "step", "loss", curves),
        "rates": Chart("Mean loss of the last quarter", "rate", "loss", ends, log=True),
    }


def measure(depth: Depth) -> Measurement:
    """Run both loops on parabolas, with noise, and on digits."""
    seeds = [*depth.seeds(quick=3, full=10)]
    momenta = {equal_momentum(seed) for seed in seeds}
    values, swings = on_curvatures()
    values["momentum that gives the same parameters"] = exact(
        momenta.pop() if len(momenta) == 1 else "not the same for every seed"
    )
    values |= {f"laws that are broken, {n}": exact(laws_broken(loop)) for n, loop in LOOPS.items()}
    noisy = [with_noise(seed, depth.pick(quick=320, full=1600)) for seed in seeds]
    values |= {name: sampled(row[name] for row in noisy) for name in noisy[0]}
    rates, steps = depth.pick(quick=((0.001, 0.01, 0.1), 1000), full=(RATES, 1600))
    found, figures = on_digits(depth, rates, seeds, steps)
    return Measurement(values | found, {"swings": swings} | figures)


EXPERIMENT = Experiment(
    "zero-grad", "What does training without zero_grad do, and where does it diverge?",
    CLAIMS, measure,
)  # fmt: skip
