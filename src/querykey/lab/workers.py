"""The parts of a full measurement side by side, one for each core that this process may use.

A part that has ended is kept in a file until the whole experiment has, so that an experiment which
was stopped goes on with the parts that are missing.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import multiprocessing
import os
import platform
import typing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from querykey.lab.experiment import Depth
from querykey.show import write_file

T = TypeVar("T")
Part = tuple[Any, ...]


def side_by_side(depth: Depth, function: Callable[..., T], parts: Iterable[Part]) -> list[T]:
    """Return function(*part) for every part, in order; at full depth in worker processes.

    There are as many workers as cores, with a thread each, so that a number does not depend on how
    many there are. The function is one of a file, which other processes find by its name, and
    returns a dataclass or what JSON holds. What `depth.keep` has of them is not computed again.
    `depth.ran_on` is called with the machine of every part.
    """
    parts = [*parts]
    kept = {i: found for i, part in enumerate(parts) if (found := _kept(depth, function, part))}
    missing = [i for i in range(len(parts)) if i not in kept]
    results = {i: value for i, (value, _) in kept.items()}
    for ran_on in [*(by for _, by in kept.values()), *(machine() for _ in missing)]:
        depth.ran_on(ran_on)
    for done, (index, value) in enumerate(_computed(depth, function, parts, missing), 1):
        depth.tell(f"{len(kept) + done} of {len(parts)} parts")
        results[index] = value
        if depth.keep is not None:
            _keep(_file(depth.keep, function, parts[index]), value)
    return [results[i] for i in range(len(parts))]


def all_kept(depth: Depth, function: Callable[..., Any], parts: Iterable[Part]) -> bool:
    """Return whether all parts were computed before, on this machine or on another one."""
    return all(_kept(depth, function, part) for part in parts)


def machine() -> str:
    """Return what measures here, as far as numbers may depend on it."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return f"torch {torch.__version__}, {device}"


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _computed(
    depth: Depth, function: Callable[..., T], parts: list[Part], missing: list[int]
) -> Iterator[tuple[int, T]]:
    """Yield the number and the value of every missing part, as they end."""
    workers = min(cores(), len(missing))
    if depth.name == "quick" or workers < 2:
        yield from ((index, function(*parts[index])) for index in missing)
        return
    pool = ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),  # a fork would share torch's threads and its device
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    with pool:
        running = {pool.submit(function, *parts[index]): index for index in missing}
        for future in as_completed(running):
            yield running[future], future.result()


def _file(folder: Path, function: Callable[..., Any], part: Part) -> Path:
    """Return the file of a part; its name changes with the arguments and with the code."""
    code = inspect.getsource(inspect.getmodule(function) or function)
    name = f"{function.__qualname__} {part!r} {code}"
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.json"


def _keep(file: Path, value: Any) -> None:
    plain: Any = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, json.dumps({"machine": machine(), "value": plain}))


def _kept(depth: Depth, function: Callable[..., T], part: Part) -> tuple[T, str] | None:
    """Return what is kept of a part, and which machine it is from; None where nothing is."""
    if depth.keep is None or not (file := _file(depth.keep, function, part)).exists():
        return None
    plain = json.loads(file.read_text(encoding="utf-8"))
    kind: Any = typing.get_type_hints(function).get("return")
    value = plain["value"]
    restored: Any = kind(**value) if hasattr(kind, "__dataclass_fields__") else value
    return restored, plain["machine"]
