"""Why 56 layers train worse than 20 (document 004, 6 a): norms, shortcuts, and initial weights.

Every setting trains on scikit-learn's digits by SGD, from the same images in the same order. The
gradient of each layer is taken before the first step, over one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from math import isfinite, log10

import torch

from querykey.errors import QuerykeyError
from querykey.lab.claim import AtLeast, AtMost, Claim
from querykey.lab.classification import NetworkResult, TrainingSetting, outcome
from querykey.lab.convolutional import ConvolutionalConfig, NormKind, Start
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Grid, Measured, Measurement, sampled, unmeasured
from querykey.lab.workers import all_kept, side_by_side

NORMS: tuple[NormKind, ...] = ("none", "batch", "layer")
STARTS: tuple[Start, ...] = ("default", "he", "xavier")
DEPTHS = (20, 56)
MNIST = "MNIST is for the GPU: run `QUERYKEY_DATA=FOLDER qk lab depth` where there is a CUDA device"
SMALLEST = 1e-45  # that a number in float32 can be without being 0
RATES = (0.005, 0.02, 0.1)
FULL = "at quick depth this setting is not trained"

CLAIMS = (
    Claim("E10", "a plain network of 56 layers trains worse than one of 20 (batch norm, He's "
          "weights): its training loss is higher by {value} or more", 0.1,
          of="loss of 56 less 20 layers, plain, batch norm, he", within=AtLeast()),
    Claim("E10", "56 plain layers train worse at the best of three rates for each, too: the loss "
          "is higher by {value} or more", 0.1,
          of="loss of 56 less 20 layers, plain, batch norm, he, best rates", within=AtLeast()),
    Claim("E10", "56 plain layers are worse in test error, too: it is higher by {value} or more",
          0.05, of="test error of 56 less 20 layers, plain, batch norm, he", within=AtLeast()),
    Claim("E10", "without a norm, too, 56 plain layers train worse: the loss is higher by {value} "
          "or more", 0.1,
          of="loss of 56 less 20 layers, plain, none norm, he", within=AtLeast()),
    Claim("E10", "the reason is a dying gradient: in that network with batch norm, log10 of the "
          "first layer's gradient is {value} or less", -3,
          of="log10 of the first gradient, 56 layers, plain, batch norm, he", within=AtMost(),
          right="It grows on the way to the input: batch norm keeps the outputs of each layer at "
          "one size, and its derivative makes the gradient larger at every layer. The first "
          "layers' steps are too large, not too small."),
    Claim("E10", "without a norm, with torch's default weights, the gradient does die: log10 of "
          "the first layer's is {value} or less", -3,
          of="log10 of the first gradient, 56 layers, plain, none norm, default",
          within=AtMost()),
    Claim("E10", "He's initial weights help against that: log10 of the first layer's gradient is "
          "{value} or more", -3,
          of="log10 of the first gradient, 56 layers, plain, none norm, he", within=AtLeast()),
    Claim("E10", "Xavier's initial weights help against that, too: log10 of the first layer's "
          "gradient is {value} or more", -3,
          of="log10 of the first gradient, 56 layers, plain, none norm, xavier", within=AtLeast(),
          right="Better than the default, but they are for linear layers: ReLU halves the variance "
          "in each of 56, and all gradients have the size 2^-28 or less."),
    Claim("E10", "with He's weights 56 plain layers without a norm train: their loss is {value} or "
          "less (log 10 = 2.303 is that of guessing)", 2.0,
          of="loss, 56 layers, plain, none norm, he", within=AtMost(),
          right="A gradient of a good size is not enough: nothing is learned in these steps."),
    Claim("E10", "residual connections mitigate the problem: they lower the loss of 56 layers "
          "(batch norm, He's weights) by {value} or more", 0.5,
          of="loss of plain less residual, 56 layers, batch norm, he", within=AtLeast()),
    Claim("E10", "with residual connections 56 layers are no worse than 20: the loss is higher by "
          "{value} at most", 0.1,
          of="loss of 56 less 20 layers, residual, batch norm, he", within=AtMost()),
    Claim("E10", "residual connections help without any norm, too: they lower the loss of 56 "
          "layers with default weights by {value} or more", 0.5,
          of="loss of plain less residual, 56 layers, none norm, default", within=AtLeast()),
    Claim("E10", "He's weights help 56 residual layers without norm, too: log10 of the first "
          "layer's gradient is {value} or less", 2,
          of="log10 of the first gradient, 56 layers, residual, none norm, he", within=AtMost(),
          right="He's weights keep the variance of what a shortcut goes around, and the sum of "
          "both has twice that, pair after pair: they fit plain layers, or residual ones with a "
          "norm. Training diverges."),
    Claim("E10", "norms could help: with batch norm, 20 plain layers with default weights come to "
          "a loss of {value} or less, where without norm they learn nothing", 1.5,
          of="loss, 20 layers, plain, batch norm, default", within=AtMost()),
    Claim("E10", "norms help 56 plain layers, too: batch norm lowers their loss by {value} or more",
          0.05, of="loss of none less batch norm, 56 layers, plain, he",
          within=AtLeast(), right="Hardly: at that depth it takes a residual connection."),
    Claim("E10", "layer norm lowers the loss of 56 plain layers by {value} or more", 0.05,
          of="loss of none less layer norm, 56 layers, plain, he", within=AtLeast(),
          right="Plain layers with layer norm learn nothing in these steps, neither 20 nor 56; "
          "residual ones do."),
    Claim("E10", "on MNIST, too, 56 plain layers train worse than 20: the loss is higher by "
          "{value} or more", 0.02,
          of="MNIST: loss of 56 less 20 layers, plain, batch norm, he", within=AtLeast()),
    Claim("E10", "on MNIST, too, 56 residual layers are no worse than 20: the loss is higher by "
          "{value} at most", 0.02,
          of="MNIST: loss of 56 less 20 layers, residual, batch norm, he", within=AtMost()),
)  # fmt: skip


DIGITS = TrainingSetting("digits", channels=8, batch=32, steps=200)
ON_GPU = TrainingSetting("mnist", channels=16, batch=128, steps=200, device="cuda")


def name_of(config: ConvolutionalConfig) -> str:
    """Return how the values of a setting are called."""
    shape = "residual" if config.residual else "plain"
    return f"{config.layers} layers, {shape}, {config.norm} norm, {config.start}"


def settings(channels: int) -> list[ConvolutionalConfig]:
    """Return the whole grid: 2 depths, 3 norms, plain and residual, 3 ways to draw weights."""
    return [
        ConvolutionalConfig(layers, channels, norm, residual, start)
        for norm, residual, start, layers in product(NORMS, (False, True), STARTS, DEPTHS)
    ]


Part = tuple[ConvolutionalConfig, TrainingSetting, int]


def parts_of(training: TrainingSetting, seeds: Sequence[int], depth: Depth) -> list[Part]:
    """Return every setting and seed; at quick depth few settings are trained."""
    parts = []
    for config in settings(training.channels):
        trained = depth.name == "full" or (config.norm == "batch" and config.start == "he")
        chosen = replace(training, steps=training.steps if trained else 0)
        parts += [(config, chosen, seed) for seed in seeds]
    return parts


def grid(parts: list[Part], depth: Depth) -> dict[ConvolutionalConfig, list[NetworkResult]]:
    """Return the outcomes of every setting, one per seed."""
    found: dict[ConvolutionalConfig, list[NetworkResult]] = {}
    for (config, *_), result in zip(parts, side_by_side(depth, outcome, parts), strict=True):
        found.setdefault(config, []).append(result)
    return found


def at_the_best_rate(
    training: TrainingSetting, layers: int, seeds: Sequence[int], depth: Depth
) -> list[NetworkResult]:
    """Return the outcomes of the plain network with batch norm at the rate that suits it best."""
    config = ConvolutionalConfig(layers, training.channels, "batch", start="he")
    parts = [(config, replace(training, rate=rate), seed) for rate in RATES for seed in seeds]
    results = iter(side_by_side(depth, outcome, parts))
    by_rate = [[next(results) for _ in seeds] for _ in RATES]
    losses = [mean(run.loss for run in runs) for runs in by_rate]
    return by_rate[losses.index(min(loss for loss in losses if isfinite(loss)))]


def differences(above: list[NetworkResult], below: list[NetworkResult], what: str) -> Measured:
    """Return by how much one setting's loss or error is above another's, seed by seed."""
    pairs = [(getattr(a, what), getattr(b, what)) for a, b in zip(above, below, strict=True)]
    return summary([None if None in pair else pair[0] - pair[1] for pair in pairs])


def summary(numbers: list[float | None]) -> Measured:
    """Return numbers of all seeds as one measured value, or why there is none."""
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return unmeasured(FULL)
    if not all(map(isfinite, known)):
        return unmeasured("training diverged: the loss is not finite")
    return sampled(known)


def values_of(found: dict[ConvolutionalConfig, list[NetworkResult]]) -> dict[str, Measured]:
    """Return what was measured of every setting, and the differences between settings."""
    values = {}
    for config, runs in found.items():
        name = name_of(config)
        shape = name.partition(", ")[2]
        values[f"log10 of the first gradient, {name}"] = sampled(
            log10(run.gradients[0] + SMALLEST) for run in runs
        )
        values[f"loss, {name}"] = summary([run.loss for run in runs])
        if config.layers == 20:
            deeper = found[replace(config, layers=56)]
            values[f"loss of 56 less 20 layers, {shape}"] = differences(deeper, runs, "loss")
            values[f"test error of 56 less 20 layers, {shape}"] = differences(deeper, runs, "error")
        elif not config.residual:
            other = found[replace(config, residual=True)]
            values[f"loss of plain less residual, 56 layers, {shape.removeprefix('plain, ')}"] = (
                differences(runs, other, "loss")
            )
            if config.norm != "none":
                bare = found[replace(config, norm="none")]
                values[
                    f"loss of none less {config.norm} norm, 56 layers, plain, {config.start}"
                ] = differences(bare, runs, "loss")
    return values


def figures_of(
    found: dict[ConvolutionalConfig, list[NetworkResult]], data: str
) -> dict[str, Chart | Grid]:
    """Return the losses of the grid, and the gradient by layer of 56 layers."""
    rows = [(norm, residual) for norm in NORMS for residual in (False, True)]
    columns = [(start, layers) for start in STARTS for layers in DEPTHS]
    by_place = {(c.norm, c.residual, c.start, c.layers): runs for c, runs in found.items()}
    table = [[by_place[(*row, *column)] for column in columns] for row in rows]
    losses = [[mean(run.loss for run in runs) for runs in line] for line in table]
    lines = {}
    for norm, residual, start in (
        ("none", False, "default"), ("none", False, "he"), ("batch", False, "he"),
        ("layer", False, "he"), ("none", True, "default"), ("batch", True, "he"),
    ):  # fmt: skip
        norms = by_place[norm, residual, start, 56][0].gradients
        points = [(layer + 1, log10(g)) for layer, g in enumerate(norms) if g > 0]
        lines[f"{'residual' if residual else 'plain'}, {norm}, {start}"] = points
    return {
        "losses": Grid(
            f"Training loss on {data}: norm and shortcut (down), weights and layers (across); "
            "nan: it diverged",
            losses, [f"{norm}, {'residual' if residual else 'plain'}" for norm, residual in rows],
            [f"{start} {layers}" for start, layers in columns],
        ),
        "gradients": Chart(f"Gradient by layer before training on {data}, 56 layers",
                           "layer, from the input on", "log10 of its norm", lines),
    }  # fmt: skip


def mean(numbers: Iterable[float | None]) -> float:
    """Return the mean of numbers, or what is no number where one is missing."""
    known = [*numbers]
    return float("nan") if None in known else sum(n for n in known if n is not None) / len(known)


def measure(depth: Depth) -> Measurement:
    """Train the grid on digits, and on a GPU also on MNIST."""
    seeds = [*depth.seeds(quick=2, full=3)]
    training = replace(DIGITS, steps=depth.pick(quick=30, full=DIGITS.steps))
    found = grid(parts_of(training, seeds, depth), depth)
    values, figures = values_of(found), figures_of(found, "digits")
    depth.tell("the best of three rates")
    name = "loss of 56 less 20 layers, plain, batch norm, he, best rates"
    values[name] = unmeasured(FULL)
    if depth.name == "full":
        deep, shallow = (at_the_best_rate(DIGITS, layers, seeds, depth) for layers in (56, 20))
        values[name] = differences(deep, shallow, "loss")
    names = [claim.of for claim in CLAIMS if claim.of.startswith("MNIST: ")]
    values |= dict.fromkeys(names, unmeasured(MNIST))
    images = parts_of(ON_GPU, seeds, depth)
    known = depth.name == "full" and all_kept(depth, outcome, images)  # by another machine
    if known or (depth.name == "full" and torch.cuda.is_available()):
        try:
            more = grid(images, depth)
        except QuerykeyError as error:  # MNIST is not there
            return Measurement(values | dict.fromkeys(names, unmeasured(str(error))), figures)
        values |= {f"MNIST: {name}": value for name, value in values_of(more).items()}
        figures |= {f"mnist-{name}": figure for name, figure in figures_of(more, "MNIST").items()}
    return Measurement(values, figures)


EXPERIMENT = Experiment(
    "depth", "Why do 56 layers train worse than 20, and what helps?", CLAIMS, measure
)
