"""Images with labels as two tensors, scikit-learn's digits and MNIST, and images as figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from querykey.lab.experiment import Depth
from querykey.lab.measurement import Grid
from querykey.train import DataConfig, DataError, load_digits, load_mnist

NO_MNIST = "without MNIST's files (QUERYKEY_DATA), and at quick depth, images are digits of 8 x 8"


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


def largest(depth: Depth) -> str:
    """Return the name of the pictures for a depth: MNIST for the full one, where it is there."""
    try:
        pictures("mnist" if depth.name == "full" else "digits")
    except DataError:
        return "digits"
    return depth.pick(quick="digits", full="mnist")


def _stacked(source: Any) -> Pictures:
    samples = [source.sample(index) for index in range(len(source))]
    images = torch.stack([torch.from_numpy(sample["image"]) for sample in samples])
    return Pictures(images, torch.tensor([sample["label"] for sample in samples]))


def picture_grid(rows: Mapping[str, Tensor], title: str) -> Grid:
    """Return batches of images (count, 1, side, side) as rows of pictures in five shades.

    Black and white are those of the batch named `image`.
    """
    lines: list[list[float]] = []
    names: list[str] = []
    black, white = rows["image"].min(), rows["image"].max()
    for row, batch in rows.items():
        small = avg_pool2d(batch, 2) if batch.shape[-1] > 8 else batch
        shades = ((small - black) / (white - black)).clamp(0, 1)
        line = pad((4 * torch.cat([*shades[:, 0]], dim=1)).round() / 4, (0, 0, 0, 1))
        lines += line.tolist()
        names += [row if i == len(line) // 2 else "" for i in range(len(line))]
    return Grid(title, lines, names)
