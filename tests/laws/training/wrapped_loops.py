"""The same faults of models and losses in loops by accelerate, by Lightning and by closures."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from tests.laws.training.models import Decoder, Deep, loss_of, texts
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

FAULTS: dict[str, tuple[Callable[[str], None], str]] = {}  # the loop, and the law that must tell
Loss = Callable[[nn.Module, tuple, int], torch.Tensor]  # of a model, a batch, and the number added


def by_accelerate(model: nn.Module, batches: list, loss: Loss, pieces: int) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-6))
    for i, batch in enumerate(batches):
        accelerator.backward(loss(model, batch, pieces))
        if i % pieces == pieces - 1:
            optimizer.step()
            optimizer.zero_grad()


def by_lightning(model: nn.Module, batches: list, loss: Loss, pieces: int) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, index):
            return loss(self.model, batch, pieces) * pieces  # fit divides by it

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
            accumulate_grad_batches=pieces,
        )  # fmt: skip
        trainer.fit(Module(), DataLoader(batches, batch_size=None))


def by_closure(model: nn.Module, batches: list, loss: Loss, pieces: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for start in range(0, len(batches), pieces):

        def closure(start=start):
            optimizer.zero_grad()
            losses = []
            for batch in batches[start : start + pieces]:
                losses.append(loss(model, batch, pieces))
                losses[-1].backward()
            return sum(losses)

        optimizer.step(closure)


def scored(model: nn.Module, batch: Any, pieces: int) -> torch.Tensor:
    return loss_of(model(batch[0]), batch[1]) / pieces


def classified(model: nn.Module, batch: Any, pieces: int) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1]) / pieces


def rows(count: int, features: int, size: int = 8) -> list:
    return [(torch.randn(size, features), torch.randint(3, (size,))) for _ in range(count)]


def saturated(fault: str) -> tuple:
    model = Decoder(scale=8.0 if fault else 0.25)
    for block in model.blocks:
        nn.init.normal_(block.project.weight)
        block.project.weight.data[:32] *= 0.4
    return model, texts(3), scored, 1


def deep(fault: str) -> tuple:
    return Deep(gain=0.6 if fault else 1.0), rows(3, 8, 11), classified, 1


def normalised(fault: str) -> tuple:
    norm = nn.BatchNorm1d(7) if fault else nn.LayerNorm(7)
    model = nn.Sequential(nn.Linear(5, 7), norm, nn.ReLU(), nn.Linear(7, 3))
    return model, rows(8, 5), classified, 4


def unregistered(fault: str) -> tuple:
    return Decoder(tuple if fault else nn.ModuleList), texts(3), scored, 1


def ragged(fault: str) -> tuple:
    batches = texts(6)
    for i, (_, labels) in enumerate(batches):
        labels[:, 2 + 3 * (i % 3) :] = -100
    count = sum(int((labels != -100).sum()) for _, labels in batches[:3])

    def loss(model, batch, pieces):
        scores, labels = model(batch[0]).flatten(0, 1), batch[1].flatten()
        if fault:
            return functional.cross_entropy(scores, labels) / pieces
        return functional.cross_entropy(scores, labels, reduction="sum") / count

    return Decoder(), batches, loss, 3


def scaled_by(how: str) -> Callable[[str], None]:
    """Return a loop with a GradScaler, which steps without it where there is a fault."""

    def loop(fault: str) -> None:
        model = Decoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        scaler, pieces = torch.amp.GradScaler("cpu", init_scale=256.0), 2 if how == "pieces" else 1
        for i, (ids, labels) in enumerate(texts(6)):
            with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
                loss = loss_of(model(ids).float(), labels) / pieces
            scaler.scale(loss).backward()
            if i % pieces == pieces - 1:
                (optimizer.step if fault else lambda: scaler.step(optimizer))()
                scaler.update(None if not fault else 256.0)
                optimizer.zero_grad()

    loop.__name__ = f"scaled_with_{how}"
    return loop


SETTINGS = {
    "training.saturation": ("no scale", saturated),
    "training.gradients": ("dying by depth", deep),
    "training.batch-norm": ("batch norm over pieces", normalised),
    "training.registration": ("blocks in a tuple", unregistered),
    "training.terms": ("a mean of means", ragged),
}


def looped(how: Callable[..., None], setting: Callable[[str], tuple]) -> Callable[[str], None]:
    def loop(fault: str) -> None:
        how(*setting(fault))

    loop.__name__ = how.__name__
    return loop


for wrapped in (by_accelerate, by_lightning, by_closure):
    for law, (words, setting) in SETTINGS.items():
        FAULTS[f"{words}, {wrapped.__name__.replace('_', ' ')}"] = (looped(wrapped, setting), law)
for way in ("autocast", "pieces"):
    FAULTS[f"stepped without the scaler, with {way}"] = (scaled_by(way), "training.scaler")
