"""Objectives over images and vectors: their class, and themselves again (autoencoding)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from querykey.train.objectives.objective import (
    LOSS,
    Batch,
    Example,
    MakeGenerator,
    Sample,
    Sums,
    cross_entropy_sum,
    scores_of,
    stacked,
    terms_in,
)


@dataclass(frozen=True)
class ImageClass:
    """Classification: a sample has an `image` (channels, height, width) and a `label`."""

    losses = LOSS

    def example(self, sample: Sample, new_generator: MakeGenerator) -> Example:
        """Return the image and its label."""
        label = np.asarray([sample["label"]], dtype=np.int64)
        return {"images": sample["image"], "labels": label}

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return images side by side, and their labels."""
        images, labels = stacked(examples, "images"), stacked(examples, "labels")[:, 0]
        return Batch({"images": images, "labels": labels}, terms_in(labels), len(labels))

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed cross entropy of the classes."""
        return cross_entropy_sum(model(batch.tensors["images"]), batch.tensors["labels"])


@dataclass(frozen=True)
class Reconstruction:
    """Autoencoding of vectors: the model sees x, x with noise, or x with features hidden.

    It is judged by the squared error of all features, or of the hidden ones where some are.
    """

    noise: float = 0.0
    share: float = 0.0  # of the features that are hidden

    losses = LOSS

    def example(self, sample: Sample, new_generator: MakeGenerator) -> Example:
        """Return what the model sees, what it should return, and which features are judged."""
        x = np.asarray(sample.get("vector", sample.get("image"))).reshape(-1)
        judged, seen = np.ones(x.shape, dtype=bool), x
        generator = new_generator()
        if self.noise:
            seen = x + (self.noise * generator.standard_normal(x.shape)).astype(x.dtype)
        if self.share:
            judged = generator.random(x.shape) < self.share
            seen = np.where(judged, np.zeros_like(x), x)
        return {"seen": seen, "wanted": x, "judged": judged}

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return the vectors side by side."""
        tensors = {name: stacked(examples, name) for name in examples[0]}
        return Batch(tensors, {"loss": int(tensors["judged"].sum())}, len(examples))

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the summed squared error of the judged features."""
        wanted = batch.tensors["wanted"]
        guess = scores_of(model(batch.tensors["seen"]), wanted.shape[:-1])
        if guess.shape != wanted.shape:  # a smaller guess would be repeated, and judged
            raise ValueError(
                f"the model returned {tuple(guess.shape)} for vectors of {tuple(wanted.shape)}"
            )
        wide = torch.promote_types(guess.dtype, torch.float32)
        error = (guess - wanted).to(wide).square()
        return {"loss": (error * batch.tensors["judged"]).sum()}


@dataclass(frozen=True)
class HiddenPatches:
    """Masked autoencoding of images: patches the encoder did not read, from those it did.

    The model is a `querykey.models.PatchAutoencoder` (He et al., 2022).
    """

    patches: int
    visible: int

    losses = LOSS

    def example(self, sample: Sample, new_generator: MakeGenerator) -> Example:
        """Return the image, and its patches in random order: those that are read come first."""
        return {"images": sample["image"], "order": new_generator().permutation(self.patches)}

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return images and orders side by side."""
        tensors = {name: stacked(examples, name) for name in examples[0]}
        pixels = tensors["images"][0].numel() // self.patches
        hidden = self.patches - self.visible
        terms = {"loss": len(examples) * hidden * pixels}
        return Batch(tensors, terms, len(examples) * self.patches)

    def sums(self, model: Any, batch: Batch) -> Sums:
        """Return the summed squared error of the pixels of hidden patches."""
        images, order = batch.tensors["images"], batch.tensors["order"]
        visible, hidden = order[:, : self.visible], order[:, self.visible :]
        guess = model.decode(model.encode(images, visible), visible)
        wanted = model.cut(images)
        index = hidden[..., None].expand(-1, -1, wanted.shape[2])
        wide = torch.promote_types(guess.dtype, torch.float32)
        return {"loss": (guess - wanted).to(wide).gather(1, index).square().sum()}
