"""Seconds of operations and of models on this device, by the clock that suits it."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from querykey.costs.private import keep_device_busy
from querykey.costs.timing.streams import Work
from querykey.words import checked

SHORT = 5e-4  # seconds that one timing lasts at least
ROUNDS = 4, 12  # of a model: at least, and at most
AGREE = 1.03  # the best two rounds of a model agree if they differ by no more


@checked
def clock_of(device: str) -> Callable[[], float]:
    """Return the clock of a device: the processor's for one thread, else that of the wall."""
    if device != "cpu":

        def synchronized() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        return synchronized
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def processor(device: str) -> str:
    """Return the name of the processor."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def timed(work: Work, clock: Callable[[], float], times: int = 1) -> float:
    """Return the seconds of one call, the mean of several."""
    began = clock()
    for _ in range(times):
        work()
    return (clock() - began) / times


def best_time(work: Work, runs: int, clock: Callable[[], float], device: str) -> float:
    """Return the seconds of one of the operations of `work`, the best of a few times."""
    with torch.enable_grad():
        once = timed(work, clock)  # the first call is slower than any other
        once = min(once, timed(work, clock))
        if device != "cpu" and runs == 1:
            return _on_device(work, once)
        times = max(1, min(200, round(SHORT / max(once, 1e-7))))
        return min(once, timed(work, clock, times)) / runs


def _on_device(work: Work, once: float) -> float:
    """Return the seconds of one call on a GPU, where calls wait for each other and not for Python.

    The GPU is kept busy for as long as the host needs to queue the calls.
    """
    times = 8 if once < 1e-3 else 3
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    keep_device_busy(times * min(once, 5e-4) + 1e-4)
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def best_times(
    model: nn.Module, x: torch.Tensor, gradient: torch.Tensor, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return the best seconds of a forward pass without gradients, and of one with and backward.

    The first rounds load kernels and choose between them, so rounds go on until the best two agree.
    """
    forward, step = [], []
    while len(step) < ROUNDS[0] or (len(step) < ROUNDS[1] and not _agree(forward, step)):
        with torch.no_grad():
            forward.append(timed(lambda: model(x), clock))
        model.zero_grad()
        step.append(timed(lambda: model(x).backward(gradient), clock))
        gc.collect()
    return min(forward), min(step)


def _agree(*series: list[float]) -> bool:
    best = (sorted(times)[:2] for times in series)
    return all(second <= AGREE * first for first, second in best)
