"""Images with labels as two tensors: scikit-learn's digits, and MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from querykey.train import DataConfig, load_digits, load_mnist


@dataclass(frozen=True)
class Pictures:
    """Images (count, 1, height, width) of about mean 0 and variance 1, and what they show."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> Pictures:
        return Pictures(self.images[rows], self.labels[rows])

    def to(self, device: str) -> Pictures:
        """Return the same pictures on a device."""
        return Pictures(self.images.to(device), self.labels.to(device))

    def split(self, size: int) -> list[Pictures]:
        """Return pieces of so many pictures; the last may be smaller."""
        pieces = zip(self.images.split(size), self.labels.split(size), strict=True)
        return [Pictures(*piece) for piece in pieces]


@cache
def pictures(name: str) -> tuple[Pictures, Pictures]:
    """Return the pictures to train with and those to test with of `digits` or `mnist`."""
    data = load_digits() if name == "digits" else load_mnist(DataConfig())
    train, test = (_stacked(source) for source in (data.train, data.valid))
    return train, test


def _stacked(source: Any) -> Pictures:
    samples = [source.sample(index) for index in range(len(source))]
    images = torch.stack([torch.from_numpy(sample["image"]) for sample in samples])
    return Pictures(images, torch.tensor([sample["label"] for sample in samples]))
