"""Gradient accumulation with layer norm and with batch norm (document 004, 6 b).

The text's loop goes over the same 32 images in every division of them. All is in float64, so that
what differs by more than 1e-9 does not differ by rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from querykey.lab.claim import AtLeast, Claim, Equal
from querykey.lab.convolutional import ConvolutionalConfig, ConvolutionalNetwork, NormKind
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measured, Measurement, exact, sampled
from querykey.lab.pictures import Pictures, pictures

EFFECTIVE = 32
SIZES = (1, 2, 4, 8, 16)  # of a batch; 32 // size steps are accumulated
SAME = 1e-9

CLAIMS = (
    Claim("E11", "with layer norm, logits of all five divisions agree with those of (32, 1): they "
          "differ by {value} of their size", 0, of="logits, layer norm", within=Equal(SAME)),
    Claim("E11", "with layer norm the accumulated gradients agree, too: they differ by {value} of "
          "their size", 0,
          of="gradients, layer norm", within=Equal(SAME)),
    Claim("E11", "with batch norm the test fails: of the five divisions, {value} agree", 0,
          of="divisions that agree, batch norm"),
    Claim("E11", "with batch norm, logits of (16, 2), the nearest division, differ by {value} of "
          "their size or more",
          0.01, of="logits, batch norm, size 16", within=AtLeast()),
    Claim("E11", "with batch norm, gradients of (16, 2) differ by {value} of their size or more",
          0.01, of="gradients, batch norm, size 16", within=AtLeast()),
    Claim("E11", "the same holds for a residual network of 152 layers: with layer norm, logits "
          "differ by {value}", 0, of="logits, layer norm, 152 layers", within=Equal(SAME)),
    Claim("E11", "with batch norm, logits of those 152 layers in (1, 32) differ by {value} or more",
          0.01, of="logits, batch norm, 152 layers", within=AtLeast()),
    Claim("E11", "the cause is that statistics are those of the batch: with the kept ones, in "
          "evaluation mode, logits with batch norm differ by {value}", 0,
          of="logits, batch norm, evaluation", within=Equal(SAME)),
    Claim("E11", "batch norm allows each of the six divisions: of images of 4 by 4 pixels, {value} "
          "run", 6, of="divisions that run, 4 by 4 pixels",
          right="Of these, one pixel is left in the last stage, and a batch of 1 has a single "
          "value for each channel: torch refuses it. Of 8 by 8 pixels four are left."),
    Claim("E11", "dividing by accumulation_steps gives the gradient of the whole batch: for 32 "
          "images in pieces of 5 it differs by {value} of its size", 0,
          of="gradients, layer norm, pieces of 5", within=Equal(SAME),
          right="The last piece has 2 images, and each of them counts for 2.5. The sum over all "
          "terms of a step has to be divided by their number, as `querykey.train` does."),
    Claim("E11", "the loop uses every batch: of 10 batches with accumulation_steps = 4, {value} "
          "change the parameters", 10, of="batches that count, of 10",
          right="The gradients of the last 2 are never stepped with."),
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What one step of the text's loop gave: all logits, and the gradient as one vector."""

    logits: Tensor
    gradient: Tensor


def accumulated(model: nn.Module, pieces: list[Pictures]) -> Answer:
    """Run the text's loop up to its optimizer.step(), and return logits and gradients."""
    model.zero_grad()
    logits = []
    for piece in pieces:
        predictions = model(piece.images)
        loss = F.cross_entropy(predictions, piece.labels)
        loss = loss / len(pieces)
        loss.backward()
        logits.append(predictions.detach())
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return Answer(torch.cat(logits), torch.cat(gradients))


def network(norm: NormKind, layers: int, seed: int) -> ConvolutionalNetwork:
    """Return a residual network in float64."""
    torch.manual_seed(seed)
    config = ConvolutionalConfig(layers, channels=4, norm=norm, residual=True, start="he")
    return ConvolutionalNetwork(config).double()


def one_batch(seed: int) -> Pictures:
    """Return 32 images of digits in float64 with their labels, drawn by the seed."""
    digits = pictures("digits")[0]
    rows = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    batch = digits[rows[:EFFECTIVE]]
    return Pictures(batch.images.double(), batch.labels)


def distance(found: Tensor, expected: Tensor) -> float:
    """Return how far one vector is from another, over the size of that."""
    return float(torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected))


def divided(norm: NormKind, seed: int) -> dict[str, float]:
    """Return how far logits and gradients of every division are from those of the whole batch."""
    model, batch = network(norm, 20, seed), one_batch(seed)
    whole = accumulated(model, [batch])
    found = {}
    for size in (*SIZES, 5):
        answer = accumulated(model, batch.split(size))
        found[f"logits, {norm} norm, size {size}"] = distance(answer.logits, whole.logits)
        found[f"gradients, {norm} norm, size {size}"] = distance(answer.gradient, whole.gradient)
    return found


def deep(norm: NormKind, size: int) -> float:
    """Return how far the logits of a network of 152 layers are from those of the whole batch."""
    model, batch = network(norm, 152, 0), one_batch(0)
    with torch.no_grad():
        parts = torch.cat([model(piece.images) for piece in batch.split(size)])
        return distance(parts, model(batch.images))


def in_evaluation(seed: int) -> float:
    """Return how far logits of single images are from the batch's in evaluation mode."""
    model, batch = network("batch", 20, seed), one_batch(seed)
    accumulated(model, [batch])  # which leaves statistics
    model.eval()
    singles = accumulated(model, batch.split(1))
    return distance(singles.logits, accumulated(model, [batch]).logits)


def divisions_that_run(pixels: int) -> int:
    """Return how many of the six divisions batch norm accepts for images so small."""
    batch = one_batch(0)
    small = Pictures(F.adaptive_avg_pool2d(batch.images, pixels), batch.labels)
    count = 0
    for size in (*SIZES, EFFECTIVE):
        try:
            accumulated(network("batch", 20, 0), small.split(size))
        except ValueError:  # torch's: "Expected more than 1 value per channel when training"
            continue
        count += 1
    return count


def batches_that_count(batches: int, accumulation_steps: int) -> int:
    """Return how many batches have a gradient that the text's loop steps with."""
    weights = [torch.zeros((), requires_grad=True) for _ in range(batches)]  # one for each batch
    optimizer = torch.optim.SGD(weights, lr=1.0)
    optimizer.zero_grad()
    for i, weight in enumerate(weights):
        loss = weight.clone()
        loss = loss / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return sum(bool(weight) for weight in weights)


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Measured]:
    """Return the distances by division over seeds, and the largest where all should agree."""
    values = {
        name: sampled(row[name] for row in rows)
        for rows in found.values()
        for name in rows[0]
        if "size 5" not in name
    }
    layer, batch = found["layer"], found["batch"]
    for kind in ("logits", "gradients"):
        names = [f"{kind}, layer norm, size {size}" for size in SIZES]
        values[f"{kind}, layer norm"] = exact(max(row[n] for row in layer for n in names))
    values["gradients, layer norm, pieces of 5"] = exact(
        min(row["gradients, layer norm, size 5"] for row in layer)
    )
    names = [f"logits, batch norm, size {size}" for size in SIZES]
    values["divisions that agree, batch norm"] = exact(
        max(sum(row[name] < SAME for name in names) for row in batch)
    )
    return values


def measure(depth: Depth) -> Measurement:
    """Divide a batch in every way, for both norms."""
    seeds = [*depth.seeds(quick=2, full=20)]
    norms: tuple[NormKind, ...] = ("layer", "batch")
    found = {norm: [divided(norm, seed) for seed in seeds] for norm in norms}
    values = summary(found)
    depth.tell("152 layers")
    for norm in norms:
        values[f"logits, {norm} norm, 152 layers"] = exact(deep(norm, 1))
    values["logits, batch norm, evaluation"] = exact(max(in_evaluation(seed) for seed in seeds))
    values["divisions that run, 8 by 8 pixels"] = exact(divisions_that_run(8))
    values["divisions that run, 4 by 4 pixels"] = exact(divisions_that_run(4))
    values["batches that count, of 10"] = exact(batches_that_count(10, 4))
    lines = {
        f"{kind}, {norm} norm": [
            (size, values[f"{kind}, {norm} norm, size {size}"].value) for size in SIZES
        ]
        for norm in norms
        for kind in ("logits", "gradients")
    }
    chart = Chart("How far divisions of 32 images are from the whole batch", "images in a piece",
                  "relative distance", lines, True)  # fmt: skip
    return Measurement(values, {"divisions": chart})


EXPERIMENT = Experiment(
    "accumulation", "Do accumulated gradients equal those of the whole batch, for which norm?",
    CLAIMS, measure,
)  # fmt: skip
