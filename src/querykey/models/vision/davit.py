"""DaViT: attention within windows of patches, then between channels (Ding et al., 2022).

Sides of an image are multiples of all strides together, or the image is refused. A grid that its
windows do not cover evenly is padded at its right and lower edge: padding is hidden from every
window's attention and cut off after, so that it changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.attention import attend_channels
from querykey.backends import attend
from querykey.errors import QuerykeyError
from querykey.models.text.config import ClassHead
from querykey.models.text.heads import ClassScores, initialise
from querykey.models.vision.images import Pair, check_image
from querykey.nn import MLP, AttentionConfig, MLPConfig, MultiHeadAttention
from querykey.words import check_fields, checked, whole


@dataclass(frozen=True)
class Stage:
    """Patches joined stride x stride into one of `width` channels, then pairs of blocks."""

    width: int
    heads: int  # of attention in windows, and groups of attention between channels
    depth: int = 1
    stride: int = 2

    def __post_init__(self):
        check_fields(self)
        for name in ("width", "heads", "depth", "stride"):
            whole(name, getattr(self, name))
        if self.width % self.heads:
            raise QuerykeyError(f"{self.width} channels do not split into {self.heads} heads")


@dataclass(frozen=True)
class DaViTConfig:
    """The image, its stages, and the window in which positions see each other."""

    image: Pair
    stages: tuple[Stage, ...]
    window: Pair = (7, 7)
    channels: int = 3
    head: ClassHead | None = None

    def __post_init__(self):
        check_fields(self)
        whole("the number of stages", len(self.stages))
        whole("channels", self.channels)
        for side in self.window:
            whole("a side of the window", side)
        stride = math.prod(stage.stride for stage in self.stages)
        for name, side in zip(("height", "width"), self.image, strict=True):
            if side < 1 or side % stride:
                raise QuerykeyError(
                    f"a {name} of {side} pixels is no multiple of {stride}, the strides together"
                )

    @property
    def grids(self) -> tuple[Pair, ...]:
        """The height and width of the grid of positions in every stage."""
        sizes, (height, width) = [], self.image
        for stage in self.stages:
            height, width = height // stage.stride, width // stage.stride
            sizes.append((height, width))
        return tuple(sizes)

    @property
    def windows(self) -> tuple[int, ...]:
        """The number of windows in every stage, those with padding included."""
        (h, w) = self.window
        return tuple(-(-height // h) * -(-width // w) for height, width in self.grids)


class WindowAttention(nn.Module):
    """Every position of a grid (batch, X, Y, width) sees the positions of its window."""

    def __init__(self, width: int, heads: int, window: Pair):
        super().__init__()
        self.window = window
        self.attention = MultiHeadAttention(width, AttentionConfig(heads))

    def forward(self, x: Tensor) -> Tensor:
        """Turn a grid (batch, X, Y, width) into one of the same size."""
        batch, height, width, features = x.shape
        (h, w), (down, right) = self.window, (-height % self.window[0], -width % self.window[1])
        real = None
        if down or right:
            x = F.pad(x, (0, 0, 0, right, 0, down))
            there = torch.ones(1, height, width, 1, dtype=torch.bool, device=x.device)
            there = F.pad(there, (0, 0, 0, right, 0, down)).expand(batch, -1, -1, -1)
            real = _windows(there, (h, w))[..., 0]
        out = self.attention(_windows(x, (h, w)), real=real)
        tall, wide = x.shape[1] // h, x.shape[2] // w
        out = out.reshape(batch, tall, wide, h, w, features).transpose(2, 3)
        return out.reshape(x.shape)[:, :height, :width]


def _windows(x: Tensor, window: Pair) -> Tensor:
    """Turn (batch, X, Y, features) into (batch * windows, tokens of a window, features)."""
    batch, height, width, features = x.shape
    h, w = window
    x = x.reshape(batch, height // h, h, width // w, w, features).transpose(2, 3)
    return x.reshape(-1, h * w, features)


class ChannelAttention(nn.Module):
    """Every channel sees the channels of its group; its values at all positions describe it."""

    def __init__(self, width: int, groups: int):
        super().__init__()
        self.groups = groups
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Turn a grid (batch, X, Y, width) into one of the same size."""
        flat = x.flatten(1, 2)
        out = attend_channels(
            self.q(flat), self.k(flat), self.v(flat), groups=self.groups, attend=attend
        )
        return self.o(out).view_as(x)

    def extra_repr(self) -> str:
        """Return what the module prints of itself beside its submodules."""
        return f"{self.groups} groups"


class DaViTBlock(nn.Module):
    """A 3 x 3 convolution per channel, which tells positions apart, then attention and an MLP."""

    def __init__(self, width: int, attention: nn.Module):
        super().__init__()
        self.near = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = attention, MLP(width, MLPConfig(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """Turn a grid (batch, X, Y, width) into one of the same size."""
        x = x + self.near(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class DaViT(nn.Module):
    """Images in; the last grid's vectors (batch, X, Y, width), or scores over classes, out."""

    @checked
    def __init__(self, config: DaViTConfig):
        super().__init__()
        self.config = config
        channels, self.patches, self.stages = config.channels, nn.ModuleList(), nn.ModuleList()
        for stage in config.stages:
            self.patches.append(nn.Conv2d(channels, stage.width, stage.stride, stage.stride))
            parts = []
            for _ in range(stage.depth):
                within = WindowAttention(stage.width, stage.heads, config.window)
                parts += [DaViTBlock(stage.width, within)]
                parts += [DaViTBlock(stage.width, ChannelAttention(stage.width, stage.heads))]
            self.stages.append(nn.Sequential(*parts))
            channels = stage.width
        self.norm = nn.LayerNorm(channels)
        self.head = None if config.head is None else ClassScores(config.head, channels)
        initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the last grid, or (batch, classes) from its mean where there is a head."""
        hidden = self.hidden(images)
        return hidden if self.head is None else self.head(hidden.mean((1, 2)))

    def hidden(self, images: Tensor) -> Tensor:
        """Return the vectors of the last grid, (batch, X, Y, width)."""
        check_image(images, self.config.channels, self.config.image, self.patches[0])
        x = images
        for patches, stage in zip(self.patches, self.stages, strict=True):
            x = stage(patches(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.norm(x.permute(0, 2, 3, 1))

    def tie(self) -> None:
        """Do nothing: this model has no tied tensors. `load` calls it on every model."""
