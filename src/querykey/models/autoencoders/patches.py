"""Masked autoencoder over patches: its encoder reads only what is visible (He et al., 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from querykey.attention import sinusoids
from querykey.errors import QuerykeyError
from querykey.models.text.heads import initialise
from querykey.models.vision.images import Pair, check_image, patch_grid
from querykey.nn import Block, BlockConfig, check_generator, make_norm
from querykey.words import check_fields, checked, share, whole


@dataclass(frozen=True)
class PatchAutoencoderConfig:
    """The image and its patches, the two stacks of blocks, and the share of patches hidden."""

    image: Pair
    patch: Pair
    encoder: BlockConfig
    decoder: BlockConfig
    layers: Pair = (2, 1)  # of the encoder, of the decoder
    share: float = 0.75
    channels: int = 1

    def __post_init__(self):
        check_fields(self)
        patch_grid(self.image, self.patch)
        share("share", self.share)
        whole("channels", self.channels)
        for count in self.layers:
            whole("the number of layers", count)
        if not 0 < self.visible < self.tokens:
            raise QuerykeyError(
                f"some of the {self.tokens} patches are hidden and some are not; "
                f"a share of {self.share} leaves {self.visible} visible"
            )

    @property
    def tokens(self) -> int:
        """How many patches an image is cut into."""
        return math.prod(patch_grid(self.image, self.patch))

    @property
    def visible(self) -> int:
        """How many patches of an image the encoder reads while training."""
        return self.tokens - round(self.share * self.tokens)

    @property
    def pixels(self) -> int:
        """How many numbers a patch has, all channels together."""
        return self.channels * self.patch[0] * self.patch[1]


class PatchAutoencoder(nn.Module):
    """Images (batch, channels, height, width) -> vectors of visible patches -> all patches."""

    @checked
    def __init__(self, config: PatchAutoencoderConfig):
        super().__init__()
        self.config = config
        wide, narrow = config.encoder, config.decoder
        self.embed = nn.Conv2d(config.channels, wide.width, config.patch, stride=config.patch)
        self.encoder = nn.ModuleList(Block(wide) for _ in range(config.layers[0]))
        self.encoder_norm = make_norm(wide.norm, wide.width)
        self.hidden_token = nn.Parameter(torch.zeros(narrow.width))
        self.bridge = nn.Linear(wide.width, narrow.width)
        self.decoder = nn.ModuleList(Block(narrow) for _ in range(config.layers[1]))
        self.decoder_norm = make_norm(narrow.norm, narrow.width)
        self.output = nn.Linear(narrow.width, config.pixels)
        initialise(self)

    def forward(self, images: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return whole images, completed from the patches with the indices `visible`.

        `visible` is (batch, count). By default it is as many patches as while training, spread
        evenly.
        """
        check_image(images, self.config.channels, self.config.image, self.embed)
        if visible is None:
            count, every = self.config.visible, self.config.tokens
            spread = torch.arange(count, device=images.device) * every // count
            visible = spread.expand(images.shape[0], -1)
        return self.joined(self.decode(self.encode(images, visible), visible))

    def encode(self, images: Tensor, visible: Tensor | None = None) -> Tensor:
        """Return (batch, patches, width) of the patches with the indices `visible`, or of all."""
        check_image(images, self.config.channels, self.config.image, self.embed)
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = x + sinusoids(torch.arange(x.shape[1], device=x.device), x.shape[2], like=x)
        if visible is not None:
            x = x.gather(1, visible[..., None].expand(-1, -1, x.shape[2]))
        for block in self.encoder:
            x = block(x)
        return self.encoder_norm(x)

    def decode(self, latent: Tensor, visible: Tensor) -> Tensor:
        """Return the pixels of all patches, (batch, patches, pixels), from those visible."""
        seen = self.bridge(latent)
        # Under autocast these vectors are in half precision, and a parameter is not.
        x = self.hidden_token.to(seen.dtype).expand(seen.shape[0], self.config.tokens, -1)
        x = x.scatter(1, visible[..., None].expand_as(seen), seen)
        x = x + sinusoids(torch.arange(x.shape[1], device=x.device), x.shape[2], like=x)
        for block in self.decoder:
            x = block(x)
        return self.output(self.decoder_norm(x))

    def loss(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean squared error of the patches that the encoder did not read."""
        check_image(images, self.config.channels, self.config.image, self.embed)
        check_generator(generator)
        where = "cpu" if generator is None else generator.device
        shape = len(images), self.config.tokens
        draws = torch.rand(shape, generator=generator, device=where)
        order = draws.argsort(1).to(images.device)
        visible, hidden = order.split(
            [self.config.visible, order.shape[1] - self.config.visible], 1
        )
        guess, truth = self.decode(self.encode(images, visible), visible), self.cut(images)
        index = hidden[..., None].expand(-1, -1, truth.shape[2])
        return (guess.gather(1, index) - truth.gather(1, index)).square().mean()

    def cut(self, images: Tensor) -> Tensor:
        """Turn (batch, channels, height, width) into (batch, patches, pixels)."""
        check_image(images, self.config.channels, self.config.image, self.embed)
        (h, w), (batch, channels, height, width) = self.config.patch, images.shape
        x = images.reshape(batch, channels, height // h, h, width // w, w)
        return x.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, self.config.pixels)

    def joined(self, patches: Tensor) -> Tensor:
        """Turn (batch, patches, pixels) into (batch, channels, height, width)."""
        (h, w), (height, width) = self.config.patch, self.config.image
        x = patches.reshape(patches.shape[0], height // h, width // w, self.config.channels, h, w)
        return x.permute(0, 3, 1, 4, 2, 5).reshape(patches.shape[0], -1, height, width)

    def tie(self) -> None:
        """Do nothing: this model has no tied tensors. `load` calls it on every model."""
