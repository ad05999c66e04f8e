"""Images and vectors: MNIST in its idx files, scikit-learn's digits, and document 004's vectors."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from querykey.train.config import DataConfig
from querykey.train.data.find import find_folder
from querykey.train.data.source import Data, DataError, Drawn, Facts
from querykey.train.order import sample_generator
from querykey.words import checked

MEAN, STD = 0.1307, 0.3081  # of MNIST's training images, from 0 to 1


@dataclass(frozen=True)
class Images:
    """Pictures of bytes (count, height, width), as numbers around 0, with their labels.

    With a `shift`, every epoch moves each of them by up to so many pixels; what comes in is 0.
    """

    pixels: np.ndarray
    labels: np.ndarray
    mean: float
    std: float
    shift: int = 0
    seed: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def sample(self, index: int, epoch: int = 0) -> dict[str, Any]:
        """Return one image (1, height, width) and its label."""
        pixels = self.pixels[index]
        if self.shift:
            generator = sample_generator(self.seed, "shift", epoch, index)
            pixels = moved(pixels, *generator.integers(-self.shift, self.shift + 1, size=2))
        image = (pixels.astype(np.float32) - self.mean) / self.std
        return {"image": image[None].astype(np.float32), "label": int(self.labels[index])}


def moved(pixels: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return a picture moved down and to the right, with 0 where nothing came from."""
    height, width = pixels.shape
    out = np.zeros_like(pixels)
    rows, columns = (
        (slice(max(by, 0), size + min(by, 0)), slice(max(-by, 0), size + min(-by, 0)))
        for by, size in ((int(down), height), (int(right), width))
    )
    out[rows[0], columns[0]] = pixels[rows[1], columns[1]]
    return out


@checked
def load_mnist(config: DataConfig, seed: int = 0) -> Data:
    """Return MNIST from its four idx files, packed by gzip or not."""
    folder = find_folder(config.path, "mnist", "train-images-idx3-ubyte")
    splits = []
    for name in ("train", "t10k"):
        pixels = read_idx(_either(folder, f"{name}-images-idx3-ubyte"))
        labels = read_idx(_either(folder, f"{name}-labels-idx1-ubyte"))
        if (pixels.ndim, labels.ndim) != (3, 1) or len(pixels) != len(labels):
            raise DataError(
                f"`{folder}`: the {name} images are {pixels.shape} and their labels "
                f"{labels.shape}, where (count, height, width) and (count,) are wanted"
            )
        shift = config.shift if name == "train" else 0
        splits.append(Images(pixels, labels, 255 * MEAN, 255 * STD, shift, seed))
    if splits[0].pixels.shape[1:] != splits[1].pixels.shape[1:]:
        raise DataError(f"`{folder}`: images to train and to test with have different sizes")
    height, width = splits[0].pixels.shape[1:]
    # Letters in the same format have more classes (Cohen et al., 2017).
    classes = max(10, *(int(split.labels.max(initial=0)) + 1 for split in splits))
    facts = Facts(classes=classes, image=(1, height, width), features=height * width)
    return Data(splits[0], splits[1], facts)


@checked
def load_digits(config: DataConfig | None = None, seed: int = 0) -> Data:
    """Return scikit-learn's 1797 digits of 8 by 8; every tenth is kept for evaluation."""
    try:
        from sklearn.datasets import load_digits as digits
    except ImportError as error:
        raise DataError(
            "the digits need the package scikit-learn; install querykey[lab]"
        ) from error
    bunch: Any = digits()
    held = np.arange(len(bunch.target)) % 10 == 9
    train, valid = (
        Images(bunch.images[rows], bunch.target[rows], 4.9, 6.0, shift, seed)
        for rows, shift in ((~held, config.shift if config else 0), (held, 0))
    )
    return Data(train, valid, Facts(classes=10, image=(1, 8, 8), features=64))


def read_idx(file: Path) -> np.ndarray:
    """Return the array of an idx file of bytes (Y. LeCun's format), packed by gzip or not."""
    try:
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"`{file}` cannot be read: {error}") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"`{file}` is no idx file of bytes")
    axes = content[3]
    start = 4 + 4 * axes
    shape = struct.unpack(f">{axes}I", content[4:start]) if len(content) >= start else (-1,)
    if len(content) - start != int(np.prod(shape)):
        raise DataError(f"`{file}` is cut off: its header promises {shape}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _either(folder: Path, name: str) -> Path:
    """Return the file, or its packed form."""
    for file in (folder / name, folder / f"{name}.gz", folder / name.replace("-idx", ".idx")):
        if file.exists():
            return file
    raise DataError(f"`{folder}` lacks {name}, and {name}.gz")


def load_vectors(config: DataConfig, seed: int, inputs: int = 100, telling: int = 20) -> Data:
    """Return document 004's vectors: few directions of high variance, which decide the class.

    20 of 100 features have standard deviation 1 and the others .1; a random rotation mixes all. The
    class is the sign of one direction among the 20; of more classes than two each has a direction,
    and that of the largest product is taken.
    """
    fixed = sample_generator(seed, "vectors")
    rotation = np.linalg.qr(fixed.standard_normal((inputs, inputs)))[0]
    spread = np.where(np.arange(inputs) < telling, 1.0, 0.1)
    several = (config.classes,) if config.classes > 2 else ()
    directions = fixed.standard_normal((telling, *several))

    def drawn(split: str) -> Any:
        def draw(index: int) -> dict[str, Any]:
            plain = spread * sample_generator(seed, split, index).standard_normal(inputs)
            products = plain[:telling] @ directions
            label = int(products.argmax() if several else products > 0)
            return {"vector": (plain @ rotation).astype(np.float32), "label": label}

        return draw

    facts = Facts(classes=config.classes, features=inputs)
    valid = max(config.samples // 10, 1)
    return Data(Drawn(config.samples, drawn("train")), Drawn(valid, drawn("valid")), facts)
