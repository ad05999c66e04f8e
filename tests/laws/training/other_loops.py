"""Loops by accelerate, with a GradScaler, and with torch's schedules, and habits of plain ones.

Each takes the name of a fault, which is one line, or "" for none.
"""

from __future__ import annotations

import copy

import torch
from tests.laws.training.models import WORDS, Decoder, loss_of, texts
from tests.laws.training.planting import Faults, into
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

FAULTS: Faults = {}
faults = into(FAULTS)


def accelerated(fault: str, steps: int = 1) -> None:
    """Train as accelerate's own examples do."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    model = Decoder()
    made_for = copy.deepcopy(model) if fault == "made for a copy of the model" else model
    optimizer = torch.optim.AdamW(made_for.parameters(), lr=1e-3)
    length = 2 if fault == "a cosine of epochs" else 12
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, length)
    rows = DataLoader([pair for batch in texts(12) for pair in zip(*batch, strict=True)], 5)
    model, optimizer, rows, scheduler = accelerator.prepare(model, optimizer, rows, scheduler)
    for ids, labels in rows:
        with accelerator.accumulate(model):
            loss = loss_of(model(ids), labels)
            accelerator.backward(loss / steps if fault == "divided by hand too" else loss)
            if steps > 1 and (accelerator.sync_gradients or fault == "clipped for every batch"):
                accelerator.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            scheduler.step()
            if fault != "never cleared by accelerate":
                optimizer.zero_grad()


@faults("training.zero-grad", "never cleared by accelerate")
def clear(fault: str) -> None:
    accelerated(fault)


@faults("training.accumulation", "divided by hand too")
def divide(fault: str) -> None:
    accelerated(fault, steps=4)


@faults("training.clipping", "clipped for every batch")
def clip(fault: str) -> None:
    accelerated(fault, steps=4)


@faults("training.optimizer", "made for a copy of the model")
def cover(fault: str) -> None:
    accelerated(fault)


@faults("training.scheduler", "a cosine of epochs")
def anneal(fault: str) -> None:
    accelerated(fault)


@faults("training.accumulation", "cleared before every batch", "left over by the last epoch")
def accumulate(fault: str) -> None:
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for epoch in range(2):
        if fault != "left over by the last epoch":
            optimizer.zero_grad()
        for i, (ids, labels) in enumerate(texts(6, seed=epoch)):
            if fault == "cleared before every batch":
                optimizer.zero_grad()
            (loss_of(model(ids), labels) / 4).backward()
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()


@faults("training.update", "a loss made anew", "features by .data")
def move(fault: str) -> None:
    class Model(Decoder):
        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x.data if fault == "features by .data" else x)
            return self.head(x)

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for ids, labels in texts(4):
        optimizer.zero_grad()
        loss = loss_of(model(ids), labels)
        if fault == "a loss made anew":
            loss = torch.tensor(loss.item(), requires_grad=True)
        loss.backward()
        optimizer.step()


@faults("training.mode", "dropout by a function", "dropout in fused attention")
def modes(fault: str) -> None:
    class Model(Decoder):
        def forward(self, ids):
            x, on = self.embed(ids), self.training
            x = nn.functional.dropout(x, 0.1, **{} if fault == "dropout by a function" else
                                      {"training": on})  # fmt: skip
            rate = 0.1 if on or fault == "dropout in fused attention" else 0.0
            q, k, v = self.blocks[0].project(x).chunk(3, -1)
            mixed = nn.functional.scaled_dot_product_attention(
                q, k, v, dropout_p=rate, is_causal=True
            )
            return self.head(self.blocks[1](x + self.blocks[0].out(mixed)))

    model = Model()
    optimizer = torch.optim.AdamW(
        [p for n, p in model.named_parameters() if not n.startswith("blocks.0.norm")], lr=1e-3
    )
    for epoch in range(2):
        for ids, labels in texts(2, seed=epoch):
            optimizer.zero_grad()
            loss_of(model(ids), labels).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for ids, labels in texts(2, seed=100):
                loss_of(model(ids), labels)
        model.train()


@faults("training.clipping", "one of two optimizers unscaled")
def unscale(fault: str) -> None:
    model = Decoder()
    parts = [model.head.parameters(), [*model.embed.parameters(), *model.blocks.parameters()]]
    optimizers = [torch.optim.SGD(part, lr=1e-2) for part in parts]
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for ids, labels in texts(3):
        model.zero_grad()
        scaler.scale(loss_of(model(ids), labels)).backward()
        for optimizer in optimizers[: 1 if fault else 2]:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()


@faults("training.scaler", "a loss that was not scaled")
def scale(fault: str) -> None:
    model, head = Decoder(), nn.Linear(WORDS, WORDS)
    first = torch.optim.SGD(model.parameters(), lr=1e-2)
    second = torch.optim.SGD(head.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for ids, labels in texts(3):
        model.zero_grad()
        head.zero_grad()
        scores = model(ids)
        scaler.scale(loss_of(scores, labels)).backward()
        side = loss_of(head(scores.detach()), labels)
        (side if fault else scaler.scale(side)).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()


def decayed(optimizer, length):
    return lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, (length - step) / length))


@faults("training.scheduler", "linear decay of epochs", "always the same epoch", "stepped again")
def schedule(fault: str) -> None:
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    per_batch = fault in ("", "linear decay of epochs")
    scheduler = decayed(optimizer, {"": 10, "linear decay of epochs": 5}.get(fault, 100))
    for epoch in range(5):
        for ids, labels in texts(2, seed=epoch):
            optimizer.zero_grad()
            loss_of(model(ids), labels).backward()
            optimizer.step()
            if per_batch:
                scheduler.step()
        if fault == "always the same epoch":
            scheduler.step(1)
        elif not per_batch:
            scheduler.step()
        if fault == "stepped again":
            scheduler.step()


@faults("training.clipping", "clipped before backward()")
def clip_early(fault: str) -> None:
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for ids, labels in texts(4):
        optimizer.zero_grad()
        loss = loss_of(model(ids), labels)
        if fault:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        loss.backward()
        if not fault:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
