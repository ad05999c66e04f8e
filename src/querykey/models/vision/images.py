"""Sizes of images: which images a model takes, and the grid of patches that one is cut into."""

from __future__ import annotations

from torch import Tensor, nn

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.nn import check_meets
from querykey.words import whole

Pair = tuple[int, int]  # height, width


def patch_grid(image: Pair, patch: Pair) -> Pair:
    """Return how many patches an image has each way, or refuse sides that are not cut evenly."""
    for name, side, part in zip(("height", "width"), image, patch, strict=True):
        whole("a side of a patch", part)
        if side < 1 or side % part:
            raise QuerykeyError(
                f"a {name} of {side} pixels is not cut evenly into patches of {part}"
            )
    return image[0] // patch[0], image[1] // patch[1]


def check_image(images: Tensor, channels: int, size: Pair, layer: nn.Module) -> None:
    """Raise the error that says which images a model takes, `layer` being the first they meet."""
    if not isinstance(images, Tensor):
        raise WrongTypeError(f"images are a tensor of floats; got {type(images).__name__}")
    if images.ndim != 4 or tuple(images.shape[1:]) != (channels, *size):
        raise QuerykeyError(
            f"images want (batch, {channels}, {size[0]}, {size[1]}); got {tuple(images.shape)}"
        )
    if images.shape[0] == 0:  # len would fix the size in what is exported
        raise QuerykeyError("a batch of images has at least one")
    check_meets("the tensor of images", images, layer)
