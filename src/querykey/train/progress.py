"""The progress of a run on a terminal: step, loss, tokens per second, share of the peak, time left.

The share compares the FLOPs of a step, as `qk cost` counts them, with one large matrix product.
"""

from __future__ import annotations

import copy
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from querykey.costs import CostError, cost
from querykey.show import number
from querykey.train.loop import Progress, Trainer

PLAIN_EVERY = 30.0  # seconds between two lines where there is no terminal to draw on


class ProgressLine:
    """Shows a run while it goes: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, trainer: Trainer):
        self.steps = trainer.config.loop.steps
        self.terminal = trainer.ranks.first and sys.stderr is not None and sys.stderr.isatty()
        self.flops = step_flops(trainer) if self.terminal else 0.0
        half = trainer.config.loop.precision == "bfloat16"
        dtype = torch.bfloat16 if half else trainer.dtype  # of the matrix products of a step
        self.peak = matrix_rate(trainer.device, dtype) if self.flops else 0.0
        self.seconds, self.shown, self.bar, self.task = 0.0, time.perf_counter(), None, None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, progress: Progress) -> None:
        """Show what is known after a step."""
        # A mean that forgets: one slow step does not make the line jump.
        old = self.seconds or progress.seconds
        self.seconds = 0.9 * old + 0.1 * progress.seconds
        words = f"loss {progress.loss:.3f}  {number(progress.tokens / self.seconds)} tokens/s"
        left = timedelta(seconds=round((self.steps - progress.step) * self.seconds))
        if self.flops:
            words += f"  {self.flops / self.seconds / self.peak:.0%} of peak"
        if self.terminal:
            self._draw(progress.step, words)
        elif time.perf_counter() - self.shown > PLAIN_EVERY:
            words = f"step {progress.step}/{self.steps}  {words}  {left} left"
            print(words, file=sys.stderr, flush=True)
            self.shown = time.perf_counter()

    def _draw(self, step: int, words: str) -> None:
        if self.bar is None:
            self.bar = _new_bar()
            self.bar.start()
            self.task = self.bar.add_task("step", total=self.steps, completed=step, words="")
        self.bar.update(self.task, completed=step, words=words)


def _new_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("{task.description}"), MofNCompleteColumn(), BarColumn(20),
        TextColumn("{task.fields[words]}"), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip


class _LossAlone(nn.Module):
    """A learner whose inputs are named tensors and whose output is the loss, as `cost` asks."""

    def __init__(self, learner: nn.Module, losses: tuple[str, ...]):
        super().__init__()
        self.learner, self.losses = learner, losses

    def forward(self, **tensors: Tensor) -> Any:
        sums = self.learner(tensors)
        return sum(sums[name] for name in self.losses)


def step_flops(trainer: Trainer) -> float:
    """Return the FLOPs of the first step; 0 where they cannot be counted, or ranks share it."""
    if trainer.ranks.world > 1:
        return 0.0
    batches = trainer.pieces(0)
    try:
        # The same on every device: nothing is computed, and no kernel of a device is asked.
        tensors = batches[0].to(torch.device("meta"), trainer.dtype).tensors
        report = cost(_LossAlone(_on_meta(trainer.learner), trainer.objective.losses), tensors)
        return len(batches) * float(report.flops.forward + report.flops.backward)
    except CostError:
        return 0.0


def _on_meta(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose tensors have shapes and no values."""
    shapes: dict[int, Any] = {
        id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in module.parameters()
    }
    shapes |= {id(buffer): buffer.to("meta") for buffer in module.buffers()}
    return copy.deepcopy(module, shapes)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOPs per second of one large matrix product, the best of a few."""
    size = 8192 if device.type == "cuda" else 1024  # a GPU is not busy with less
    factor = torch.randn(size, size, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        torch.matmul(factor, factor)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
