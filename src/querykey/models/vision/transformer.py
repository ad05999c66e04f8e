"""VisionTransformer: an image cut into patches, each a token, and an encoder over them.

An image whose sides are no multiples of the patch's is refused: cut it, or pad it, as you mean it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from querykey.errors import QuerykeyError
from querykey.models.text.config import ClassHead, check_activation
from querykey.models.text.heads import ClassScores, initialise
from querykey.models.vision.images import Pair, check_image, patch_grid
from querykey.nn import Block, BlockConfig, activate, make_norm
from querykey.words import check_fields, checked, whole


@dataclass(frozen=True)
class VisionTransformerConfig:
    """An image size, the patches it is cut into, and the blocks (Dosovitskiy et al., 2021)."""

    image: Pair
    patch: Pair
    block: BlockConfig
    layers: int
    channels: int = 3
    head: ClassHead | None = None
    pooler: str | None = None  # the activation of a layer over the first token, for `pooled`

    def __post_init__(self):
        check_fields(self)
        whole("layers", self.layers)
        whole("channels", self.channels)
        check_activation("pooler", self.pooler)
        patch_grid(self.image, self.patch)

    @property
    def grid(self) -> Pair:
        """How many patches an image has in height and width."""
        return patch_grid(self.image, self.patch)

    @property
    def tokens(self) -> int:
        """How many tokens the blocks see: the patches, and one for the whole image."""
        return self.grid[0] * self.grid[1] + 1


class VisionTransformer(nn.Module):
    """Images (batch, channels, height, width) in; hidden states, or scores over classes, out."""

    @checked
    def __init__(self, config: VisionTransformerConfig):
        super().__init__()
        self.config, width = config, config.block.width
        self.patches = nn.Conv2d(config.channels, width, config.patch, stride=config.patch)
        self.whole = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, config.tokens, width))
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.layers))
        before = config.block.norm.place == "before"
        self.norm = make_norm(config.block.norm, width) if before else nn.Identity()
        self.pooler = None if config.pooler is None else nn.Linear(width, width)
        self.head = None if config.head is None else ClassScores(config.head, width)
        initialise(self)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        """Return (batch, tokens, width), or (batch, classes) where the config asks for a head."""
        hidden = self.hidden(images)
        return hidden if self.head is None else self.head(hidden[:, 0])

    def hidden(self, images: Tensor) -> Tensor:
        """Return the hidden states of the last layer; the first is that of the whole image."""
        check_image(images, self.config.channels, self.config.image, self.patches)
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.whole.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def pooled(self, hidden: Tensor) -> Tensor:
        """Return activation(W x) of the first token, (batch, width)."""
        if self.pooler is None or self.config.pooler is None:
            raise QuerykeyError("this model has no pooler; its config asks for none")
        return activate(self.config.pooler, self.pooler(hidden[:, 0]))

    def tie(self) -> None:
        """Do nothing: this model has no tied tensors. `load` calls it on every model."""
