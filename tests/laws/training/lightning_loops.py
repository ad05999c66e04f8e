"""Loops of Lightning's fit: each takes the name of a fault, or "" for none."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import torch
from tests.laws.training.models import Decoder, loss_of, texts
from tests.laws.training.planting import Faults, into
from torch import nn
from torch.utils.data import DataLoader

FAULTS: Faults = {}
faults = into(FAULTS)


def rows(batches: int, seed: int = 1) -> DataLoader:
    pairs = [pair for batch in texts(batches, seed=seed) for pair in zip(*batch, strict=True)]
    return DataLoader(pairs, batch_size=5)


def module(**methods: Any) -> Any:
    """A LightningModule around a decoder, with methods in place of its own."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Decoder()

        def training_step(self, batch, index):
            ids, labels = batch
            return loss_of(self.model(ids), labels)

        def validation_step(self, batch, index):
            ids, labels = batch
            return loss_of(self.model(ids), labels)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    return type("Module", (Module,), methods)()


def fit(
    subject: Any, steps: int = 4, loader: Any = None, check: Any = None, **options: Any
) -> None:
    import lightning

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has much advice on loaders and on the machine
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
            **options,
        )  # fmt: skip
        trainer.fit(subject, loader or rows(12), check)


def by_hand(fault: str) -> Any:
    """Return the step of a module that optimises by itself, four batches at a time."""

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        ids, labels = batch
        loss = loss_of(self.model(ids), labels)
        self.manual_backward(loss if fault == "four losses not divided" else loss / 4)
        if index % 4 == 3:
            optimizer.step()
            if fault != "gradients kept by hand":
                optimizer.zero_grad()

    return training_step


@faults("training.zero-grad", "gradients kept by hand")
def clear(fault: str) -> None:
    subject = module(training_step=by_hand(fault))
    subject.automatic_optimization = False
    fit(subject, 3)


@faults("training.zero-grad", "a hook that clears nothing")
def clear_by_hook(fault: str) -> None:
    keep = {"optimizer_zero_grad": lambda self, epoch, index, optimizer: None} if fault else {}
    fit(module(**keep))


@faults("training.accumulation", "four losses not divided")
def accumulate(fault: str) -> None:
    subject = module(training_step=by_hand(fault))
    subject.automatic_optimization = False
    fit(subject, 3)


@faults("training.optimizer", "an optimizer of the head")
def cover(fault: str) -> None:
    def configure(self):
        parameters = [*self.model.embed.parameters(), *self.model.head.parameters()]
        return torch.optim.AdamW(parameters if fault else self.parameters(), lr=1e-2)

    fit(module(configure_optimizers=configure))


@faults("training.registration", "layers in a list")
def register_all(fault: str) -> None:
    subject = module()
    if fault:
        subject.model = Decoder(list)
    fit(subject)


@faults("training.update", "a detached answer of the body")
def move(fault: str) -> None:
    subject = module()
    if fault:
        subject.model.blocks[1].register_forward_hook(lambda module, args, out: out.detach())
    fit(subject)


@faults("training.mode", "a body in evaluation")
def modes(fault: str) -> None:
    subject = module()
    if fault:
        subject.model.eval()  # which fit leaves as it is
    fit(subject, check=rows(2))


@faults("training.mode", "measured in training")
def measure(fault: str) -> None:
    def validation_step(self, batch, index):
        self.model.train(bool(fault))
        return loss_of(self.model(batch[0]), batch[1])

    def on_train_batch_start(self, batch, index):
        self.model.train()

    subject = module(validation_step=validation_step, on_train_batch_start=on_train_batch_start)
    fit(subject, check=rows(2, seed=5), val_check_interval=2, num_sanity_val_steps=0)


@faults("training.batch-norm", "batch norm under accumulation")
def normalise(fault: str) -> None:
    subject = module()
    norm = nn.BatchNorm1d(9) if fault else nn.LayerNorm(16)
    subject.model.blocks.append(norm)
    fit(subject, 2, accumulate_grad_batches=4)


@faults("training.scheduler", "one cycle, stepped for epochs")
def schedule(fault: str) -> None:
    def configure(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=16)
        interval = "epoch" if fault else "step"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle, "interval": interval}}

    fit(module(configure_optimizers=configure), 12, rows(4))
