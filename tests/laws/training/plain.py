"""Plain loops: each takes the name of a fault, which is one line, or "" for none."""

from __future__ import annotations

import copy

import torch
from tests.laws.training.models import WIDTH, WORDS, Block, Decoder, Deep, loss_of, texts
from tests.laws.training.planting import Faults, into
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

FAULTS: Faults = {}
faults = into(FAULTS)


def adamw(parameters, rate: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate)


@faults("training.zero-grad", "never cleared", "only the head is cleared", "stepped twice")
def clear(fault: str) -> None:
    model = Decoder()
    optimizer = adamw(model.parameters())
    for ids, labels in texts(4):
        if fault != "never cleared":
            cleared = model.head if fault == "only the head is cleared" else model
            cleared.zero_grad()
        loss_of(model(ids), labels).backward()
        optimizer.step()
        if fault == "stepped twice":
            optimizer.step()


@faults("training.accumulation", "not divided", "divided twice", "divided nowhere for sums")
def accumulate(fault: str) -> None:
    model = Decoder()
    optimizer = adamw(model.parameters())
    for i, (ids, labels) in enumerate(texts(12)):
        loss = loss_of(model(ids), labels)
        if fault != "not divided":
            loss = loss / 4
        if fault == "divided twice":
            loss = loss / 4
        if fault == "divided nowhere for sums":
            loss = 4 * loss
        loss.backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@faults("training.terms", "mean of means")
def unequal_lengths(fault: str) -> None:
    model = Decoder()
    optimizer = adamw(model.parameters())
    for step in range(2):
        batches = texts(3, seed=step)
        for i, (_, labels) in enumerate(batches):
            labels[:, 2 + 3 * i :] = -100
        count = sum(int((labels != -100).sum()) for _, labels in batches)
        for ids, labels in batches:
            scores = model(ids).flatten(0, 1)
            if fault == "mean of means":
                loss = nn.functional.cross_entropy(scores, labels.flatten()) / len(batches)
            else:
                total = nn.functional.cross_entropy(scores, labels.flatten(), reduction="sum")
                loss = total / count
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@faults(
    "training.optimizer",
    "head replaced after the optimizer was made",
    "only the blocks",
    "made for a copy",
)
def cover(fault: str) -> None:
    model = Decoder()
    if fault == "only the blocks":
        optimizer = adamw(model.blocks.parameters())
    elif fault == "made for a copy":
        optimizer = adamw(copy.deepcopy(model).parameters())
    elif fault:
        optimizer = adamw(model.parameters())
        model.head = nn.Linear(WIDTH, WORDS)
    else:
        model.head = nn.Linear(WIDTH, WORDS)
        optimizer = adamw(model.parameters())
    for ids, labels in texts(3):
        optimizer.zero_grad()
        loss_of(model(ids), labels).backward()
        optimizer.step()


class Scaled(nn.Module):
    """Scores that are multiplied by a number that is learned."""

    def __init__(self, registered: bool):
        super().__init__()
        self.body, scale = Decoder(), torch.ones(WORDS)
        self.scale = nn.Parameter(scale) if registered else scale.requires_grad_()

    def forward(self, ids):
        return self.scale * self.body(ids)


@faults("training.registration", "blocks in a list", "blocks in a dict", "a plain tensor")
def register_all(fault: str) -> None:
    kept = {
        "blocks in a list": list,
        "blocks in a dict": lambda blocks: dict(enumerate(blocks)),
    }.get(fault, nn.ModuleList)
    model = Scaled(False) if fault == "a plain tensor" else Decoder(kept)
    if fault == "blocks in a dict":
        model.forward = lambda ids: model.head(
            model.blocks[1](model.blocks[0](model.embed(ids)))
        )  # a dict yields its keys
    optimizer = adamw(model.parameters())
    for ids, labels in texts(3):
        optimizer.zero_grad()
        loss_of(model(ids), labels).backward()
        optimizer.step()


@faults(
    "training.update",
    "rate of 0",
    "detached",
    "embedded without a graph",
    "cleared before the step",
    "bfloat16",
)
def move(fault: str) -> None:
    model = Decoder(
        embed_without_graph=fault == "embedded without a graph", cut=fault == "detached"
    )
    rate = {"rate of 0": 0.0, "bfloat16": 1e-5}.get(fault, 1e-2)
    if fault == "bfloat16":
        model.bfloat16()
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for ids, labels in texts(4):
        loss_of(model(ids), labels).backward()
        if fault == "cleared before the step":
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()


@faults("training.mode", "left in evaluation", "never in training", "evaluated in training")
def modes(fault: str) -> None:
    model = Decoder()
    model.train(fault != "never in training")
    optimizer = adamw(model.parameters())
    for epoch in range(2):
        for ids, labels in texts(2, seed=epoch):
            optimizer.zero_grad()
            loss_of(model(ids), labels).backward()
            optimizer.step()
        if fault != "evaluated in training":
            model.eval()
        with torch.no_grad():
            for ids, labels in texts(2, seed=100):
                loss_of(model(ids), labels)
        model.train(fault not in ("left in evaluation", "never in training"))


@faults("training.clipping", "clipped before unscaling", "clipped after the step")
def clip(fault: str) -> None:
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for ids, labels in texts(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model(ids), labels)).backward()
        if fault != "clipped before unscaling":
            scaler.unscale_(optimizer)
        if fault != "clipped after the step":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        if fault == "clipped after the step":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.update()


@faults("training.scaler", "stepped without the scaler")
def scale(fault: str) -> None:
    model = Decoder()
    optimizer = adamw(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for ids, labels in texts(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model(ids), labels)).backward()
        if fault:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


@faults("training.gradients", "dying by depth", "exploding by depth")
def depth(fault: str) -> None:
    gain = {"dying by depth": 0.6, "exploding by depth": 1.6}.get(fault, 1.0)
    model = Deep(gain=gain)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
    for _ in range(3):
        optimizer.zero_grad()
        inputs, labels = torch.randn(11, 8), torch.randint(3, (11,))
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


@faults("training.saturation", "scale missing")
def attend(fault: str) -> None:
    model = Decoder(scale=8.0 if fault else WIDTH**-0.5)
    for block in model.blocks:
        assert isinstance(block, Block)
        nn.init.normal_(block.project.weight)
        block.project.weight.data[: 2 * WIDTH] *= 0.4
    optimizer = adamw(model.parameters())
    for ids, labels in texts(3):
        optimizer.zero_grad()
        loss_of(model(ids), labels).backward()
        optimizer.step()


@faults("training.batch-norm", "batch norm over pieces")
def normalise(fault: str) -> None:
    norm = nn.BatchNorm1d(7) if fault else nn.LayerNorm(7)
    model = nn.Sequential(nn.Linear(5, 7), norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(7, 3))
    optimizer = adamw(model.parameters())
    for _ in range(2):
        for _ in range(4):
            inputs, labels = torch.randn(8, 5), torch.randint(3, (8,))
            (nn.functional.cross_entropy(model(inputs), labels) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


SCHEDULES = {
    "stepped before the optimizer": lambda o: lr_scheduler.CosineAnnealingLR(o, 100),
    "never stepped": lambda o: lr_scheduler.StepLR(o, 5),
    "cosine of epochs for batches": lambda o: lr_scheduler.CosineAnnealingLR(o, 3),
    "decay of epochs for batches": lambda o: lr_scheduler.ExponentialLR(o, 0.2),
    "one cycle of batches for epochs": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "of another optimizer": lambda o: lr_scheduler.StepLR(o, 5),
    "stepped for every piece": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
}


@faults("training.scheduler", *SCHEDULES)
def schedule(fault: str) -> None:
    model = Decoder()
    optimizer = adamw(model.parameters())
    make = SCHEDULES.get(fault, lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20))
    scheduler = make(optimizer)
    if fault == "of another optimizer":
        optimizer = adamw(model.parameters())
    per_epoch = fault == "one cycle of batches for epochs"
    loader = DataLoader([pair for batch in texts(6) for pair in zip(*batch, strict=True)], 6, True)
    for _ in range(4):
        for ids, labels in loader:
            pieces = 2 if fault == "stepped for every piece" else 1
            optimizer.zero_grad()
            for piece in range(pieces):
                scores, wanted = model(ids[piece::pieces]), labels[piece::pieces]
                (loss_of(scores, wanted) / pieces).backward()
                if fault == "stepped for every piece" and scheduler.last_epoch < 19:
                    scheduler.step()
            if fault == "stepped before the optimizer":
                scheduler.step()
            optimizer.step()
            skipped = (*list(SCHEDULES)[:2], "stepped for every piece")
            if fault not in skipped and not per_epoch and scheduler.last_epoch < 19:
                scheduler.step()
        if per_epoch:
            scheduler.step()
