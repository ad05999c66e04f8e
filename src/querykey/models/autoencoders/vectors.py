"""Autoencoders of vectors: any depth and latent size, linear ones included, denoising, masked.

model = Autoencoder(AutoencoderConfig(inputs=100, latent=20, hidden=(64,)))
model.loss(x).backward()
latent = model.encode(x)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.nn import ACTIVATIONS, activate, among, check_floats, check_generator
from querykey.words import check_fields, checked, number, whole


@dataclass(frozen=True)
class Noise:
    """Denoising: the model sees x plus noise of this standard deviation, and learns to return x."""

    std: float

    def __post_init__(self):
        number("the noise's standard deviation", self.std)


@dataclass(frozen=True)
class Hide:
    """Masking: the model sees x with a random share of its features at 0, and learns those."""

    share: float

    def __post_init__(self):
        check_fields(self)
        if not 0 < self.share < 1:
            raise QuerykeyError(f"the share that is hidden is between 0 and 1; got {self.share}")


@dataclass(frozen=True)
class AutoencoderConfig:
    """Sizes of the layers from inputs over hidden to latent, mirrored on the way back.

    Without hidden layers the autoencoder is linear.
    """

    inputs: int
    latent: int
    hidden: tuple[int, ...] = ()
    activation: str = "relu"
    bias: bool = True
    corruption: Noise | Hide | None = None

    def __post_init__(self):
        if not isinstance(self.hidden, tuple):
            raise WrongTypeError(f"hidden is a tuple of sizes, such as (32,); got {self.hidden!r}")
        check_fields(self)
        for name, size in (("inputs", self.inputs), ("latent", self.latent)):
            whole(name, size)
        for size in self.hidden:
            whole("a hidden size", size)
        among("activation", (self.activation,), ACTIVATIONS)


class Layers(nn.Sequential):
    """Linear layers with an activation between two of them, and none after the last."""

    def __init__(self, sizes: tuple[int, ...], activation: str, bias: bool):
        pairs = pairwise(sizes)
        super().__init__(*(nn.Linear(before, after, bias=bias) for before, after in pairs))
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        """Return what the last layer returns, (batch, its size)."""
        for place, layer in enumerate(self):
            input = layer(input if place == 0 else activate(self.activation, input))
        return input

    def extra_repr(self) -> str:
        """Return what the module prints of itself: its activation."""
        return f"{self.activation} between" if len(self) > 1 else ""


class Autoencoder(nn.Module):
    """Vectors x (batch, inputs) in; latent vectors, and from those reconstructions of x, out."""

    @checked
    def __init__(self, config: AutoencoderConfig):
        super().__init__()
        self.config = config
        sizes = (config.inputs, *config.hidden, config.latent)
        self.encoder = Layers(sizes, config.activation, config.bias)
        self.decoder = Layers(sizes[::-1], config.activation, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the reconstruction of x."""
        return self.decode(self.encode(x))

    def encode(self, x: Tensor) -> Tensor:
        """Return the latent vectors, (batch, latent)."""
        check_floats("x", x, self.config.inputs, self.encoder[0])
        return self.encoder(x)

    def decode(self, latent: Tensor) -> Tensor:
        """Return reconstructions (batch, inputs) of latent vectors."""
        check_floats("latent", latent, self.config.latent, self.decoder[0])
        return self.decoder(latent)

    def corrupt(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return the corrupted x, and which entries (True) the loss is taken over."""
        match self.config.corruption:
            case Noise(std):
                noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
                return x + std * noise, torch.ones_like(x, dtype=torch.bool)
            case Hide(share):
                hidden = (torch.rand(x.shape, generator=generator) < share).to(x.device)
                return x.masked_fill(hidden, 0), hidden
            case _:
                return x, torch.ones_like(x, dtype=torch.bool)

    def loss(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the mean squared error over the entries that `corrupt` names."""
        check_floats("x", x, self.config.inputs, self.encoder[0])
        check_generator(generator)
        seen, judged = self.corrupt(x, generator)
        wide = torch.promote_types(x.dtype, torch.float32)  # sums of half precision overflow
        error = (self(seen) - x).to(wide).square() * judged
        return (error.sum() / judged.sum().clamp(min=1)).to(x.dtype)

    def tie(self) -> None:
        """Do nothing: this model has no tied tensors. `load` calls it on every model."""
