"""Autoencoders: what they see, what they are judged by, and that they learn."""

import pytest
import torch

from querykey.models import (
    Autoencoder,
    AutoencoderConfig,
    Hide,
    Noise,
    PatchAutoencoder,
    PatchAutoencoderConfig,
    build,
    preset,
)
from querykey.nn import BlockConfig


def test_no_hidden_layer_is_two_matrices():
    model = Autoencoder(AutoencoderConfig(7, 3, bias=False)).double()
    x = torch.randn(5, 7, dtype=torch.float64)
    first, second = model.encoder[0].weight, model.decoder[0].weight
    assert [tuple(p.shape) for p in model.parameters()] == [(3, 7), (7, 3)]
    assert (model(x) - x @ first.T @ second.T).abs().max() < 1e-12
    assert (model.loss(x) - (x - x @ first.T @ second.T).square().mean()).abs() < 1e-12


def test_depth_and_activations():
    model = Autoencoder(AutoencoderConfig(7, 3, hidden=(11, 5), activation="tanh"))
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim == 2]
    assert shapes == [(11, 7), (5, 11), (3, 5), (5, 3), (11, 5), (7, 11)]
    x = torch.randn(2, 7)
    one, two, three = model.encoder
    assert torch.allclose(model.encode(x), three(torch.tanh(two(torch.tanh(one(x))))))


def test_noise_is_added_and_the_whole_is_judged():
    model = Autoencoder(AutoencoderConfig(50, 3, corruption=Noise(0.5)))
    x = torch.zeros(400, 50)
    seen, judged = model.corrupt(x, torch.Generator().manual_seed(0))
    assert abs(seen.std().item() - 0.5) < 0.02
    assert judged.all()
    again, _ = model.corrupt(x, torch.Generator().manual_seed(0))
    assert torch.equal(seen, again)


def test_hidden_features_are_zero_and_alone_judged():
    model = Autoencoder(AutoencoderConfig(50, 3, corruption=Hide(0.3)))
    x = torch.ones(400, 50)
    seen, judged = model.corrupt(x, torch.Generator().manual_seed(0))
    assert torch.equal(seen == 0, judged)
    assert abs(judged.float().mean().item() - 0.3) < 0.02
    loss = model.loss(x, torch.Generator().manual_seed(0))
    assert torch.allclose(loss, (model(seen) - x)[judged].square().mean())


@pytest.mark.parametrize("corruption", [None, Noise(0.1), Hide(0.2)])
def test_it_learns(corruption):
    torch.manual_seed(0)
    x = torch.randn(256, 4) @ torch.randn(4, 20)
    model = Autoencoder(AutoencoderConfig(20, 4, (16,), "tanh", corruption=corruption))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = model.loss(x).item()
    for _ in range(150):
        optimizer.zero_grad()
        model.loss(x).backward()
        optimizer.step()
    assert model.loss(x).item() < before / 3


def patches(share=0.75):
    wide, narrow = (BlockConfig.preset("pre-norm", width, 2) for width in (16, 12))
    return PatchAutoencoderConfig((8, 12), (4, 3), wide, narrow, share=share, channels=2)


def test_patches_are_cut_and_joined():
    model, images = PatchAutoencoder(patches()), torch.arange(2 * 2 * 8 * 12.0).view(2, 2, 8, 12)
    cut = model.cut(images)
    assert cut.shape == (2, 8, 24)
    assert torch.equal(cut[1, 5].view(2, 4, 3), images[1, :, 4:8, 3:6])
    assert torch.equal(model.joined(cut), images)


def test_the_encoder_reads_the_visible_alone():
    model = PatchAutoencoder(patches()).eval()
    assert (model.config.tokens, model.config.visible) == (8, 2)
    lengths = []
    model.encoder[0].register_forward_hook(lambda _, inputs, out: lengths.append(out.shape[1]))
    images = torch.randn(3, 2, 8, 12)
    model.loss(images, torch.Generator().manual_seed(0)).backward()
    assert lengths == [2]
    visible = torch.tensor([[0, 5]]).expand(3, -1)
    other = images.clone()
    other[:, :, :4, 3:6] += 1  # patch 1, which nobody sees
    with torch.no_grad():
        assert torch.equal(model.encode(images, visible), model.encode(other, visible))
        other[:, :, 4:, 3:6] += 1  # patch 5
        assert not torch.equal(model.encode(images, visible), model.encode(other, visible))
        assert model(images).shape == images.shape


def test_patches_are_completed_under_autocast():
    torch.manual_seed(0)
    model, images = PatchAutoencoder(patches()), torch.randn(3, 2, 8, 12)
    losses = []
    for on in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            losses.append(model.loss(images, torch.Generator().manual_seed(0)))
    losses[0].backward()
    assert model.hidden_token.grad.abs().sum() > 0
    assert abs(losses[0] - losses[1]) < 0.01 * losses[1]


def test_patches_that_do_not_fit_are_refused():
    wide = BlockConfig.preset("pre-norm", 8)
    with pytest.raises(ValueError, match="a width of 10 pixels is not cut evenly"):
        PatchAutoencoderConfig((8, 10), (4, 3), wide, wide)
    with pytest.raises(ValueError, match="some of the 4 patches are hidden"):
        PatchAutoencoderConfig((8, 8), (4, 4), wide, wide, share=0.95)
    with pytest.raises(ValueError, match="the share that is hidden is between 0 and 1"):
        Hide(1.0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AutoencoderConfig(64, 0), "latent is at least 1; got 0"),
        (lambda: AutoencoderConfig(64, 3, (-1,)), "a hidden size is at least 1; got -1"),
        (
            lambda: AutoencoderConfig(64, 3, 8),
            r"hidden is a tuple of sizes, such as \(32,\); got 8",
        ),
        (lambda: AutoencoderConfig(64, 3, activation="rulu"), "there is no 'rulu'"),
        (lambda: Noise(-1.0), "standard deviation is a finite number, at least 0"),
        (
            lambda: Autoencoder(AutoencoderConfig(64, 3))(torch.ones(2, 63)),
            r"x is of floats \(\.\.\., 64\); got torch.float32 \(2, 63\)",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises((ValueError, TypeError), match=words):
        make()


def test_the_loss_of_patches_does_not_follow_torchs_default_device():
    model = build(preset("masked-patches"))
    config = model.config
    images = torch.rand(2, config.channels, *config.image)
    losses = []
    for device in ("cpu", "meta"):
        torch.set_default_device(device)
        try:
            generator = torch.Generator("cpu").manual_seed(0)
            losses.append(model.loss(images, generator).item())
        finally:
            torch.set_default_device(None)
    assert losses[0] == losses[1]
