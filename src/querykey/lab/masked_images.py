"""Transformers that fill in hidden patches of images, and what a linear probe reads off them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from querykey.lab.experiment import Depth
from querykey.lab.measurement import Measured, sampled, unmeasured
from querykey.lab.pictures import NO_MNIST, pictures
from querykey.lab.weights import fit_weights
from querykey.lab.workers import side_by_side
from querykey.models import PatchAutoencoder, preset, probe

SHOWN = 4  # images whose hidden patches are drawn


@dataclass(frozen=True)
class MaskedSetting:
    """The size of patches, the share that is hidden, and how a transformer is trained with them."""

    data: str
    patch: int
    share: float
    width: int
    steps: int
    probed: int  # images that the probe's classifier is fitted to and judged by
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{100 * self.share:g} % of patches of {self.patch} by {self.patch} hidden"


@dataclass(frozen=True)
class MaskedResult:
    """The probe's accuracy before training and after it, and pictures as lists of numbers."""

    untrained: float
    trained: float
    seen: list[list[list[list[float]]]]
    returned: list[list[list[list[float]]]]


def settings(depth: Depth, data: str) -> list[MaskedSetting]:
    """Return what is trained: two ways to hide patches of MNIST, a smaller one without a GPU."""
    if data == "digits":
        return [MaskedSetting(data, 2, 0.5, 32, 60, 600)]
    if not torch.cuda.is_available():
        return [MaskedSetting(data, 7, 0.5, 128, 6000, 20000)]
    return [
        MaskedSetting(data, patch, share, 256, 8000, 20000, "cuda")
        for patch, share in ((7, 0.5), (4, 0.75))
    ]


def trained(setting: MaskedSetting, seed: int) -> MaskedResult:
    """Train one transformer, and probe it before and after."""
    data, _ = pictures(setting.data)
    images = data.images.to(setting.device)
    torch.manual_seed(seed)
    sizes = {"image": images.shape[-1], "patch": setting.patch, "width": setting.width}
    config = preset("masked-patches", sizes | {"share": setting.share})
    model = PatchAutoencoder(config)
    fit_weights(model)
    model.to(setting.device)
    some = (data.images[: setting.probed], data.labels[: setting.probed])
    before = probe(model, some, seeds=1).accuracy
    fit(model, images, setting.steps, seed)
    after = probe(model, some, seeds=1).accuracy
    return MaskedResult(before, after, *filled_in(model, images[-SHOWN:]))


def fit(model: PatchAutoencoder, images: Tensor, steps: int, seed: int) -> None:
    """Train by AdamW with 128 images a step; the rate rises for a tenth of the steps and falls."""
    rate, generator = 1e-3, torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps + 1, pct_start=0.1)
    for _ in range(steps):
        rows = torch.randint(len(images), (128,), generator=generator)
        optimizer.zero_grad()
        model.loss(images[rows.to(images.device)], generator).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def filled_in(model: PatchAutoencoder, images: Tensor) -> tuple[list, list]:
    """Return what the encoder sees of images, and the whole images that the decoder returns."""
    config, generator = model.config, torch.Generator().manual_seed(1)
    order = torch.rand(len(images), config.tokens, generator=generator).argsort(1)
    visible = order[:, : config.visible].to(images.device)
    patches = torch.zeros(len(images), config.tokens, config.pixels, device=images.device)
    patches.scatter_(1, visible[..., None].expand(-1, -1, config.pixels), 1.0)
    seen = images * model.joined(patches)
    return seen.tolist(), model(images, visible).tolist()


def measure_masked_images(depth: Depth, data: str) -> tuple[dict[str, Measured], dict[str, Tensor]]:
    """Measure every way to hide patches, and return the pictures of the best one."""
    ways, seeds = settings(depth, data), range(depth.pick(quick=2, full=3))
    results = iter(side_by_side(depth, trained, [(way, seed) for way in ways for seed in seeds]))
    found = {way: [next(results) for _ in seeds] for way in ways}
    values = {}
    for way, runs in found.items():
        values[f"accuracy, masked transformer, {data}, {way}"] = sampled(r.trained for r in runs)
        values[f"the same, untrained, {data}, {way}"] = sampled(r.untrained for r in runs)
    best = max(found.values(), key=lambda runs: fmean(run.trained for run in runs))
    name = "accuracy, masked transformer, MNIST"
    values[name] = unmeasured(NO_MNIST)
    if data != "digits":
        values[name] = sampled(run.trained for run in best)
    shown = {"seen": best[0].seen, "returned": best[0].returned}
    return values, {f"masked transformer: {part}": torch.tensor(x) for part, x in shown.items()}
