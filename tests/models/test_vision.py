"""Vision models: sizes worked out by hand, windows and channels in plain einsum."""

import pytest
import torch

from querykey.models import (
    ClassHead,
    DaViT,
    DaViTConfig,
    Stage,
    VisionTransformer,
    VisionTransformerConfig,
)
from querykey.models.vision.davit import ChannelAttention, WindowAttention
from querykey.nn import BlockConfig


def test_vit_sizes_by_hand():
    """ViT-B/16: 224 / 16 = 14, 14 * 14 + 1 = 197 tokens; 86,567,656 parameters."""
    block = BlockConfig.preset("pre-norm", 768, 12)
    config = VisionTransformerConfig((224, 224), (16, 16), block, 12, head=ClassHead(1000))
    assert (config.grid, config.tokens) == ((14, 14), 197)
    with torch.device("meta"):
        model = VisionTransformer(config)
        assert model.hidden(torch.empty(2, 3, 224, 224)).shape == (2, 197, 768)
    assert sum(p.numel() for p in model.parameters()) == 86_567_656


def test_vit_of_an_oblong_image():
    block = BlockConfig.preset("pre-norm", 12, 3)
    config = VisionTransformerConfig((15, 8), (5, 2), block, 1, channels=1)
    assert (config.grid, config.tokens) == ((3, 4), 13)
    assert VisionTransformer(config)(torch.randn(2, 1, 15, 8)).shape == (2, 13, 12)


def test_davit_sizes_by_hand():
    """224: 56, 28, 14, 7 positions a side; windows of 7 make 64, 16, 4 and 1."""
    stages = tuple(
        Stage(width, heads, depth, stride)
        for width, heads, depth, stride in (
            (96, 3, 1, 4), (192, 6, 1, 2), (384, 12, 3, 2), (768, 24, 1, 2),
        )
    )  # fmt: skip
    config = DaViTConfig((224, 224), stages, (7, 7), head=ClassHead(1000))
    assert config.grids == ((56, 56), (28, 28), (14, 14), (7, 7))
    assert config.windows == (64, 16, 4, 1)
    with torch.device("meta"):
        model = DaViT(config)
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    for stage, width, heads in zip(model.stages, (96, 192, 384, 768), (3, 6, 12, 24), strict=True):
        assert stage[0].attention.attention.key_dim == width // heads == 32
        assert stage[1].attention.groups == heads


def test_uneven_windows_count_their_padding():
    config = DaViTConfig((36, 20), (Stage(8, 2, stride=4),), (4, 3))
    assert config.grids == ((9, 5),)
    assert config.windows == (3 * 2,)


def by_hand(layer, x, cells):
    """Attention of every position over the positions in its own cell, one position at a time."""
    attention = layer.attention
    heads, size = attention.config.heads, attention.key_dim
    q, k, v = (
        part(x).reshape(*x.shape[:2], heads, size)
        for part in (attention.q, attention.k, attention.v)
    )
    out = torch.zeros_like(q)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            same = [(a, b) for a in range(x.shape[0]) for b in range(x.shape[1])
                    if cells(a, b) == cells(i, j)]  # fmt: skip
            keys = torch.stack([k[a, b] for a, b in same])
            values = torch.stack([v[a, b] for a, b in same])
            scores = torch.einsum("hd,nhd->hn", q[i, j], keys) / size**0.5
            out[i, j] = torch.einsum("hn,nhd->hd", scores.softmax(-1), values)
    return attention.o(out.flatten(2))


@pytest.mark.parametrize("grid", [(4, 6), (5, 7), (3, 2)])
def test_windows_see_themselves_alone_and_padding_changes_nothing(grid):
    layer = WindowAttention(6, 2, (2, 3)).double()
    x = torch.randn(2, *grid, 6, dtype=torch.float64)
    with torch.no_grad():
        out = layer(x)
        for row in range(2):
            wanted = by_hand(layer, x[row], lambda a, b: (a // 2, b // 3))
            assert (out[row] - wanted).abs().max() < 1e-12


def test_channels_see_the_channels_of_their_group():
    layer = ChannelAttention(6, 2).double()
    x = torch.randn(1, 3, 5, 6, dtype=torch.float64)
    flat = x.reshape(15, 6)
    q, k, v = (part(flat) for part in (layer.q, layer.k, layer.v))
    out = torch.zeros(15, 6, dtype=torch.float64)
    for first in (0, 3):
        group = slice(first, first + 3)
        weights = (q[:, group].T @ k[:, group] / 3**0.5).softmax(-1)
        out[:, group] = (weights @ v[:, group].T).T
    assert (layer(x).reshape(15, 6) - layer.o(out)).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: VisionTransformerConfig((33, 32), (8, 8), BlockConfig.preset("pre-norm", 8), 1),
            "a height of 33 pixels is not cut evenly into patches of 8",
        ),
        (
            lambda: DaViTConfig((32, 36), (Stage(8, 2, stride=4), Stage(8, 2))),
            "a width of 36 pixels is no multiple of 8",
        ),
        (lambda: Stage(8, 3), "8 channels do not split into 3 heads"),
        (lambda: Stage(8, 0), "heads is at least 1; got 0"),
        (lambda: DaViTConfig((32, 32), ()), "the number of stages is at least 1"),
        (
            lambda: DaViTConfig((32, 32), (Stage(8, 2),), (0, 4)),
            "a side of the window is at least 1; got 0",
        ),
        (
            lambda: DaViT(DaViTConfig((32, 32), (Stage(8, 2, stride=4),)))(
                torch.ones(1, 3, 32, 31)
            ),
            r"images want \(batch, 3, 32, 32\); got \(1, 3, 32, 31\)",
        ),
        (
            lambda: VisionTransformer(
                VisionTransformerConfig((8, 8), (4, 4), BlockConfig.preset("pre-norm", 8), 1)
            )(torch.ones(1, 1, 8, 8)),
            r"images want \(batch, 3, 8, 8\); got \(1, 1, 8, 8\)",
        ),
    ],
)
def test_odd_sizes_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
