"""Convolutional networks for small images, plain or residual (He et al., 2016, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

NormKind = Literal["none", "batch", "layer"]
Start = Literal["default", "he", "xavier"]


@dataclass(frozen=True)
class ConvolutionalConfig:
    """A first convolution, three stages of pairs of convolutions, and a linear layer.

    Each stage halves the image's sides and doubles the channels of the one before.
    """

    layers: int = 20  # 6 n + 2: with n = 25 there are 152
    channels: int = 8  # of the first stage
    norm: NormKind = "none"
    residual: bool = False  # add the input of a pair of convolutions to its output
    start: Start = "default"  # how weights are drawn; "default" is torch's own way
    inputs: int = 1
    classes: int = 10

    def __post_init__(self):
        if self.layers < 8 or self.layers % 6 != 2:
            raise ValueError(f"the layers are 6 n + 2 with n at least 1; got {self.layers}")


class Pair(nn.Module):
    """Two convolutions, each with a norm and ReLU; a residual one adds its input to the second."""

    def __init__(self, config: ConvolutionalConfig, inputs: int, outputs: int):
        super().__init__()
        self.residual, self.stride = config.residual, outputs // inputs
        self.first = convolution(inputs, outputs, self.stride)
        self.second = convolution(outputs, outputs, 1)
        self.norms = nn.ModuleList(image_norm(config.norm, outputs) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, inputs, height, width)."""
        inner = F.relu(self.norms[0](self.first(x)))
        out = self.norms[1](self.second(inner))
        return F.relu(out + self.shortcut(x) if self.residual else out)

    def shortcut(self, x: Tensor) -> Tensor:
        """Return the input in the output's shape: fewer pixels, and new channels of zeros."""
        if self.stride == 1:
            return x
        new = x.shape[1] * (self.stride - 1)
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, new))


class ConvolutionalNetwork(nn.Module):
    """Images (batch, channels, height, width) to logits (batch, classes)."""

    def __init__(self, config: ConvolutionalConfig):
        super().__init__()
        pairs = (config.layers - 2) // 6
        sizes = [config.channels * 2**stage for stage in range(3) for _ in range(pairs)]
        self.first = convolution(config.inputs, config.channels, 1)
        self.norm = image_norm(config.norm, config.channels)
        self.pairs = nn.Sequential(
            *(Pair(config, *size) for size in zip([config.channels, *sizes], sizes, strict=False))
        )
        self.head = nn.Linear(sizes[-1], config.classes)
        for layer in weight_layers(self):
            draw(layer, config.start)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of every image."""
        return self.head(self.features(images))

    def features(self, images: Tensor) -> Tensor:
        """Return the last hidden vector of every image: the mean over its pixels."""
        return self.pairs(F.relu(self.norm(self.first(images)))).mean((2, 3))


def convolution(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    """Return a convolution of 3 by 3 pixels.

    Images are padded with the pixels of their edges. Zeros would make each layer's outputs smaller
    where images are small: of 2 by 2 pixels, a kernel sees 4 and 5 zeros.
    """
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, padding_mode="replicate")


def image_norm(kind: NormKind, channels: int) -> nn.Module:
    """Return a norm for images; layer norm is over all channels and pixels of one image."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(1, channels) if kind == "layer" else nn.Identity()


def weight_layers(network: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """Return the layers that have weight matrices, from the input to the output."""
    return [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]


def draw(layer: nn.Conv2d | nn.Linear, start: Start) -> None:
    """Draw a layer's weights by He et al. (2015) or by Glorot and Bengio (2010), or leave them."""
    if start == "default":
        return
    if start == "he":
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    else:
        nn.init.xavier_normal_(layer.weight)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
