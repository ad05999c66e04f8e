"""The verb `qk train`: a config and flags in, a progress line while it runs, a run folder out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from querykey.models import PRESETS
from querykey.show import number, table
from querykey.train.config import TrainConfig, flag_names, read_config
from querykey.train.loop import Progress, Result
from querykey.train.parts import DATA, OBJECTIVES
from querykey.train.recipes import RECIPES
from querykey.train.run import run


def train_command(config: str | None, flags: Mapping[str, str]) -> Result:
    """Train as a TOML file or a recipe says, with flags on top, and show how it goes."""
    source = RECIPES[config].config if config in RECIPES else config
    made = read_config(source, flags)
    with _line(made) as tell:
        return run(made, tell)


def listing() -> list[Any]:
    """Return tables of the recipes, and of the names that a config may have."""
    kinds = [("data.name", ", ".join(DATA)), ("model.name", ", ".join(PRESETS))]
    objectives = [(name, kind.says) for name, kind in OBJECTIVES.items()]
    flags = [(f"--{name}", section or "") for name, (section, _) in flag_names().items()]
    return [
        table(("recipe", "what it trains"), [(name, r.says) for name, r in RECIPES.items()]),
        table(("objective.name", "what is predicted"), objectives),
        table(("field", "names"), kinds),
        table(("flag", "section"), flags),
    ]


@contextmanager
def _line(config: TrainConfig) -> Iterator[Any]:
    """Yield what shows progress on a terminal: step, loss, tokens per second, time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = [
        TextColumn("step"), MofNCompleteColumn(), BarColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[speed]}"), TimeRemainingColumn(),
    ]  # fmt: skip
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=config.loop.steps, loss="", speed="")
        clock = _Clock()

        def tell(progress: Progress) -> None:
            speed = f"{number(clock.rate(progress.tokens))} tokens/s"
            loss = f"{progress.loss:.3f}"
            bar.update(task, completed=progress.step, loss=loss, speed=speed)

        yield tell


class _Clock:
    """Tokens per second, over the last few steps."""

    def __init__(self):
        self.last, self.smooth = time.perf_counter(), 0.0

    def rate(self, tokens: int) -> float:
        now = time.perf_counter()
        newest, self.last = tokens / max(now - self.last, 1e-9), now
        self.smooth = newest if not self.smooth else 0.9 * self.smooth + 0.1 * newest
        return self.smooth


def summary(result: Result) -> str:
    """Return the last line of a run: how it ended, how good it is, and where it lies."""
    ending = "done" if result.finished else "stopped; the same command goes on from here"
    figures = ", ".join(f"{name} {value:.4f}" for name, value in result.evaluation.items())
    validated = f"; validation {figures}" if figures else ""
    return f"{result.folder}: step {result.step}, {ending}{validated}"


def matrix_peak(device: torch.device, size: int = 1024) -> float:
    """Return the FLOPs per second of one large matrix product, the best of a few."""
    a = torch.randn(size, size, device=device)
    best = float("inf")
    for _ in range(4):
        began = time.perf_counter()
        torch.matmul(a, a)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
