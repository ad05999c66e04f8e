"""Sizes of images: which images a model takes, and the grid of patches that one is cut into."""

from __future__ import annotations

from torch import Tensor

from querykey.errors import QuerykeyError

Pair = tuple[int, int]  # height, width


def patch_grid(image: Pair, patch: Pair) -> Pair:
    """Return how many patches an image has each way, or refuse sides that are not cut evenly."""
    for name, side, part in zip(("height", "width"), image, patch, strict=True):
        if part < 1 or side < 1 or side % part:
            raise QuerykeyError(
                f"a {name} of {side} pixels is not cut evenly into patches of {part}"
            )
    return image[0] // patch[0], image[1] // patch[1]


def check_image(images: Tensor, channels: int, size: Pair) -> None:
    """Raise the error that says which images a model takes."""
    if images.ndim != 4 or tuple(images.shape[1:]) != (channels, *size):
        raise QuerykeyError(
            f"images want (batch, {channels}, {size[0]}, {size[1]}); got {tuple(images.shape)}"
        )
