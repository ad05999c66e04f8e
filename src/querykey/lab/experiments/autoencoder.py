"""Autoencoders and what a linear probe reads off their latent vectors (document 004, 1 a).

Row E1 trains them on the text's 100-dimensional data over latent sizes, with a linear encoder and
with a ReLU layer before it. Row E2 corrupts what they see: nothing, noise, or hidden parts, on the
same data and on images; a transformer over patches of images is the fourth.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import sub, truediv
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from querykey.lab.claim import AtLeast, AtMost, Claim
from querykey.lab.experiment import Depth, Experiment, Name
from querykey.lab.masked_images import measure_masked_images
from querykey.lab.measurement import Chart, Grid, Measured, Measurement, sampled
from querykey.lab.pictures import largest, picture_grid, pictures
from querykey.lab.workers import side_by_side
from querykey.models import Autoencoder, AutoencoderConfig, Hide, Noise, probe
from querykey.train import load_data, read_config

Look = tuple[int, float, float]  # steps of training, error, accuracy of the probe
Courses = dict[tuple[str, int], list[Look]]  # by setting and latent size

# Of each setting: hidden layers of the encoder, number of classes, latent sizes.
SETTINGS: dict[str, tuple[tuple[int, ...], int, tuple[int, ...]]] = {
    "linear": ((), 2, (5, 10, 20, 50, 100, 200)),
    "ReLU": ((100,), 2, (5, 20, 100, 200)),
    "ten classes": ((), 10, (5, 20)),  # with a linear encoder
}
PROBED = 4000  # vectors that the probe's classifier is fitted to and judged by
QUICK = (5, 20, 100, 200)
KINDS = {"vanilla": None, "denoising": Noise(0.5), "masked": Hide(0.5)}

CLAIMS = (
    Claim("E1", "the reconstruction error falls as the latent size grows: at 20 it is at most "
          "{value} of that at 5", 0.5, of="error at 20 over error at 5", within=AtMost()),
    Claim("E1", "past 100, the dimension of the data, a larger latent vector saves at most {value} "
          "of the data's variance", 0.05, of="variance saved from 100 to 200", within=AtMost()),
    Claim("E1", "before 100 the fall is not marginal: from 20 to 100 a latent vector saves at "
          "least {value} of the variance", 0.05, of="variance saved from 20 to 100",
          within=AtLeast(),
          right="It is marginal past 20 already: the 80 directions of standard deviation 1 have "
          "80 / (20 * 100 + 80), which is 4 %, of the variance."),
    Claim("E1", "latent size 5 fails to capture what the classes need: a trained encoder's probe "
          "accuracy is at most {value}", 0.8, of="accuracy at 5, linear, trained",
          within=AtMost()),
    Claim("E1", "at 20, the dimension that tells the classes, training is essential: it adds at "
          "least {value} to the accuracy", 0.05, of="gain by training at 20, linear",
          within=AtLeast()),
    Claim("E1", "at 20 the accuracy reaches {value} or more with training", 0.95,
          of="accuracy at 20, linear, trained", within=AtLeast()),
    Claim("E1", "past 100 the accuracy is about 100 % without training: at 100 it is at least "
          "{value} with a linear encoder",
          0.97, of="accuracy at 100, linear, untrained", within=AtLeast()),
    Claim("E1", "at 200 the accuracy without training is at least {value} with a linear encoder",
          0.97, of="accuracy at 200, linear, untrained", within=AtLeast()),
    Claim("E1", "at 200 the accuracy without training is at least {value} with a ReLU layer before "
          "the probe, too", 0.97,
          of="accuracy at 200, ReLU, untrained", within=AtLeast(),
          right="A random layer of 100 ReLU loses some of what 100 random directions keep: only "
          "the linear encoder can be undone by a linear probe."),
    Claim("E1", "the ReLU encoder too reaches {value} or more at 20 with training", 0.95,
          of="accuracy at 20, ReLU, trained", within=AtLeast()),
    Claim("E1", "with ten classes training at 20 adds at least {value} to the accuracy", 0.05,
          of="gain by training at 20, ten classes", within=AtLeast()),
    Claim("E1", "with ten classes the trained accuracy at 5 is at least {value} below that at 20",
          0.1, of="accuracy at 20 over that at 5, ten classes", within=AtLeast()),
    Claim("E1", "representations are more likely to be useful if they are low-dimensional: with 20 "
          "trained numbers the probe is right more often than with 200, by {value} or more", 0.01,
          of="accuracy at 20 over that at 200, linear, trained", within=AtLeast(),
          right="For a linear probe more numbers are no worse; few of them are shorter to store, "
          "and the fewer they are, the more training matters."),
    *(Claim("E2", f"the {kind} autoencoder's 20 numbers of the synthetic data keep the classes: "
            "the probe's accuracy is at least {value}", 0.95, of=f"accuracy, {kind}, synthetic",
            within=AtLeast()) for kind in KINDS),
    *(Claim("E2", f"what the {kind} autoencoder learns of images is useful for telling them: "
            "training adds at least {value} to the probe's accuracy", 0.02,
            of=f"gain by training, {kind}, images", within=AtLeast()) for kind in KINDS),
    Claim("E2", "what a transformer learns that fills in the hidden patches of MNIST is useful, "
          "too: the probe's accuracy is at least {value}",
          0.95, of="accuracy, masked transformer, MNIST",
          within=AtLeast()),
)  # fmt: skip


def vectors(seed: int, count: int, classes: int = 2) -> tuple[Tensor, Tensor]:
    """Return the text's synthetic data, scaled by a tenth."""
    sections = {
        "data": {"name": "vectors", "samples": count, "classes": classes},
        "objective": {"name": "autoencoding"},
        "loop": {"seed": seed},
    }
    source = load_data(read_config(sections)).train
    rows = [source.sample(index) for index in range(count)]
    inputs = torch.stack([torch.from_numpy(row["vector"]) for row in rows])
    return inputs, torch.tensor([row["label"] for row in rows])


def training(model: Any, x: Tensor, steps: int, batch: int, rate: float) -> Iterator[int]:
    """Yield the number of steps done, from 0 to `steps`; a step follows a random batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1)
    generator = torch.Generator().manual_seed(0)
    yield 0
    for step in range(steps):
        rows = torch.randint(len(x), (batch,), generator=generator)
        optimizer.zero_grad()
        model.loss(x[rows], generator).backward()
        optimizer.step()
        schedule.step()
        yield step + 1


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return how often a linear classifier of the model's latent vectors is right."""
    return probe(model, (x[:PROBED], y[:PROBED]), seeds=1).accuracy


def error(model: Autoencoder, x: Tensor) -> float:
    """Return the share of the data's variance that reconstructions lack."""
    with torch.no_grad():
        return float((model(x) - x).square().mean() / x.square().mean())


def course(x: Tensor, y: Tensor, config: AutoencoderConfig, steps: int, looks: int) -> list[Look]:
    """Return (steps, error, accuracy) at some moments of an autoencoder's training."""
    model, seen = Autoencoder(config), []
    for step in training(model, x, steps, batch=200, rate=5e-3):
        if step % (steps // looks) == 0:
            seen.append((step, error(model, x), accuracy(model, x, y)))
    return seen


def sizes(depth: Name, seed: int) -> list[tuple[str, int, list[Look]]]:
    """Return the courses of training over settings and latent sizes, for the data of a seed."""
    full = depth == "full"
    count, steps, looks = (10000, 400, 4) if full else (2500, 200, 1)
    courses = []
    for name, (hidden, classes, latents) in SETTINGS.items():
        x, y = vectors(seed, count, classes)
        for latent in latents if full else [n for n in latents if n in QUICK]:
            torch.manual_seed(seed)
            config = AutoencoderConfig(100, latent, hidden)
            courses.append((name, latent, course(x, y, config, steps, looks)))
    return courses


def measure_sizes(depth: Depth) -> tuple[dict[str, Measured], dict[str, Chart]]:
    """Measure row E1: what error and accuracy are before and after training."""
    parts = [(depth.name, seed) for seed in range(depth.pick(quick=3, full=5))]
    runs = side_by_side(depth, sizes, parts)
    seeds = [{(name, latent): looks for name, latent, looks in run} for run in runs]
    values = {}
    for name, latent in seeds[0]:
        ends = [(run[name, latent][0][2], run[name, latent][-1][2]) for run in seeds]
        values[f"accuracy at {latent}, {name}, untrained"] = sampled(a for a, _ in ends)
        values[f"accuracy at {latent}, {name}, trained"] = sampled(b for _, b in ends)
        values[f"gain by training at {latent}, {name}"] = sampled(b - a for a, b in ends)
    errors = {n: [run[name, n][-1][1] for run in seeds] for name, n in seeds[0] if name == "linear"}
    five, twenty, hundred, double = (errors[n] for n in (5, 20, 100, 200))
    values |= {f"error at {n}": sampled(part) for n, part in errors.items()}
    values["error at 20 over error at 5"] = sampled(map(truediv, twenty, five))
    values["variance saved from 20 to 100"] = sampled(map(sub, twenty, hundred))
    values["variance saved from 100 to 200"] = sampled(map(sub, hundred, double))
    gaps = [run["ten classes", 20][-1][2] - run["ten classes", 5][-1][2] for run in seeds]
    values["accuracy at 20 over that at 5, ten classes"] = sampled(gaps)
    below = [run["linear", 20][-1][2] - run["linear", 200][-1][2] for run in seeds]
    values["accuracy at 20 over that at 200, linear, trained"] = sampled(below)
    return values, charts(seeds)


def charts(seeds: list[Courses]) -> dict[str, Chart]:
    """Return error and accuracy over training, one line for each latent size, mean over seeds."""
    drawn = {
        "error": ("linear", 1, "error, as a share of the variance"),
        "accuracy": ("linear", 2, "accuracy of a linear probe"),
        "accuracy-relu": ("ReLU", 2, "accuracy of a linear probe"),
    }
    figures = {}
    for file, (setting, column, axis) in drawn.items():
        lines = {
            f"latent size {latent}": [
                (points[0][0], fmean(point[column] for point in points))
                for points in zip(*(run[setting, latent] for run in seeds), strict=True)
            ]
            for name, latent in seeds[0]
            if name == setting
        }
        title = f"Autoencoders with a {setting} encoder on 100-dimensional data"
        figures[file] = Chart(title, "steps of training", axis, lines)
    return figures


def ends(model: Any, x: Tensor, y: Tensor, steps: int) -> tuple[float, float]:
    """Return the probe's accuracy before and after training."""
    before = accuracy(model, x, y)
    for _ in training(model, x, steps, 128, 3e-3):
        pass
    return before, accuracy(model, x, y)


def measure_kinds(depth: Depth) -> tuple[dict[str, Measured], dict[str, Grid]]:
    """Measure row E2: accuracies before and after training, on both data sets, and pictures."""
    name = largest(depth)
    data, _ = pictures(name)
    flat, steps = data.images.flatten(1), depth.pick(quick=200, full=400)
    runs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    models: dict[str, Any] = {}
    for seed in depth.seeds(quick=3, full=3):
        vector = vectors(seed, depth.pick(quick=2500, full=10000))
        for kind, corruption in KINDS.items():
            depth.tell(f"seed {seed + 1}, {kind}")
            torch.manual_seed(seed)
            model = Autoencoder(AutoencoderConfig(100, 20, corruption=corruption))
            runs.setdefault((kind, "synthetic"), []).append(ends(model, *vector, steps))
            config = AutoencoderConfig(flat.shape[1], 32, (128,), corruption=corruption)
            models[kind] = Autoencoder(config)
            runs.setdefault((kind, "images"), []).append(
                ends(models[kind], flat, data.labels, steps)
            )
    values = {}
    for (kind, of), pairs in runs.items():
        values[f"accuracy, {kind}, {of}"] = sampled(after for _, after in pairs)
        values[f"gain by training, {kind}, {of}"] = sampled(b - a for a, b in pairs)
    tokens, masked = measure_masked_images(depth, name)
    rows = reconstructions(models, data.images[-4:]) | masked
    title = f"Images of {name}, and what autoencoders make of them"
    return values | tokens, {"pictures": picture_grid(rows, title)}


def reconstructions(models: dict[str, Any], images: Tensor) -> dict[str, Tensor]:
    """Return images, what each autoencoder sees of them, and what it makes of that."""
    flat, generator = images.flatten(1), torch.Generator().manual_seed(1)
    rows = {"image": images}
    with torch.no_grad():
        for kind in KINDS:
            seen, _ = models[kind].corrupt(flat, generator)
            rows[f"{kind}: seen"] = seen.reshape(images.shape)
            rows[f"{kind}: returned"] = models[kind](seen).reshape(images.shape)
    del rows["vanilla: seen"]  # the image itself
    return rows


def measure(depth: Depth) -> Measurement:
    """Train autoencoders over latent sizes, and with what they see corrupted."""
    sizes_of, size_charts = measure_sizes(depth)
    kinds_of, pictures = measure_kinds(depth)
    return Measurement(sizes_of | kinds_of, {**size_charts, **pictures})


EXPERIMENT = Experiment(
    "autoencoder", "What do autoencoders learn that a linear classifier can read off?",
    CLAIMS, measure,
)  # fmt: skip
