"""The parts of a full measurement side by side, one for each core that this process may use."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import torch

from querykey.lab.experiment import Depth

T = TypeVar("T")


def side_by_side(
    depth: Depth, function: Callable[..., T], parts: Iterable[tuple[Any, ...]]
) -> list[T]:
    """Return function(*part) for every part, in order; at full depth in worker processes.

    There are as many workers as cores, with a thread each, so that a number does not depend on how
    many there are. The function and its parts are found again by name in another process.
    """
    parts = [*parts]
    workers = min(cores(), len(parts))
    if depth.name == "quick" or workers < 2:
        return [_told(depth, number, parts, function) for number in range(len(parts))]
    pool = ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),  # a fork would share torch's threads and its device
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    with pool:
        running = [pool.submit(function, *part) for part in parts]
        for number, _ in enumerate(as_completed(running)):
            depth.tell(f"{number + 1} of {len(parts)} parts")
        return [future.result() for future in running]


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _told(depth: Depth, number: int, parts: list[tuple[Any, ...]], function: Callable[..., T]) -> T:
    depth.tell(f"part {number + 1} of {len(parts)}")
    return function(*parts[number])
