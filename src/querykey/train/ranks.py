"""The processes that train together: who this one is, and how a model is spread over all.

`torchrun --nproc-per-node 2 --no-python qk train CONFIG.toml` starts two ranks.
"""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from querykey.train.config import ConfigError
from querykey.words import last_line

# How long ranks wait for one that is busy: the first one hashes and syncs whole checkpoints. A rank
# that has died is noticed at once, by its closed connections or by torchrun.
PATIENCE = timedelta(minutes=10)
# How long they wait for the first one to prepare the data, which may be a large text.
PREPARING = timedelta(days=2)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    def total(self, number: float, device: torch.device) -> float:
        """Return the sum of one number over all ranks."""
        if self.world == 1:
            return number
        tensor = torch.tensor(number, dtype=torch.float64, device=device)
        dist.all_reduce(tensor)
        return float(tensor)

    def wait(self) -> None:
        """Return when every rank has come here."""
        if self.world > 1:
            dist.barrier()

    def all_well(self, well: bool) -> bool:
        """Return whether all is well on every rank, when the last one has come here, in days."""
        if self.world == 1:
            return well
        group: Any = dist.new_group(backend="gloo", timeout=PREPARING)
        answer = torch.tensor(int(well))
        dist.all_reduce(answer, dist.ReduceOp.MIN, group)
        dist.destroy_process_group(group)
        return bool(answer)

    def agree(self, digest: str, device: torch.device) -> bool:
        """Return whether every rank has the same hash, given in hexadecimal."""
        if self.world == 1:
            return True
        own = int(digest[:15], 16)
        ends = torch.tensor([own, -own], device=device)
        dist.all_reduce(ends, dist.ReduceOp.MAX)
        return int(ends[0]) == -int(ends[1])


# Groups that a process ended with after an error. Nobody waits for their threads, which may be
# waiting for a rank that is gone.
_LEFT: list[Any] = []
# The modules of DDP that still hold a group: see `_part`.
_COPIES: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
# How long threads of gloo get to hand back their tensors where the end of them cannot be seen.
HANDING_BACK = 0.2


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Join the processes that torchrun started, if it did, and part from them at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or dist.is_initialized():
        count = dist.get_world_size() if dist.is_initialized() else 1
        yield Ranks(dist.get_rank() if dist.is_initialized() else 0, count)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield Ranks(dist.get_rank(), world)
    except BaseException:
        _LEFT.append(dist.group.WORLD)
        dist.destroy_process_group()
        raise
    _part()


def _part() -> None:
    """Leave the group and see its threads end.

    They may still be about to hand back tensors, for which they need Python's lock. If they come to
    that after Python has begun to end, the process aborts. And were a module of DDP the last to
    hold the group, it would wait for them with that lock in its hands, so modules let go first.
    """
    for copies in list(_COPIES):
        module: Any = copies
        module.reducer = module.logger = module.process_group = None
    dist.destroy_process_group()
    time.sleep(HANDING_BACK)  # torch keeps the group of a module in shards for good


def device_for(name: str) -> torch.device:
    """Return the device of this process: a GPU of its own where there are any, unless named."""
    if name != "auto":
        return _named_device(name)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _named_device(name: str) -> torch.device:
    """Return a device by name, or raise the ConfigError that says why it cannot be used."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"loop.device: `{name}` cannot be used here: {last_line(error, 120)}"
        ) from error
    return device


def spread(learner: nn.Module, ranks: Ranks, shard: bool, unused: bool = False) -> nn.Module:
    """Return the module as every rank runs it: alone, as copies (DDP), or in shards (FSDP2).

    `unused` says that some parameters may get no gradient; copies look for them in every step.
    """
    if ranks.world == 1:
        return learner
    if not shard:
        with warnings.catch_warnings():
            # The option's name will change; torch 2.11 does not know the new one.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated")
            copies = DistributedDataParallel(
                learner, broadcast_buffers=False, find_unused_parameters=unused
            )
        _COPIES.add(copies)
        return copies
    for module in reversed(list(learner.modules())):  # lists within layers come first
        if isinstance(module, nn.ModuleList):
            for layer in module:
                fully_shard(layer)
    fully_shard(learner)  # in place
    return learner


def without_exchange(module: Any, last: bool) -> AbstractContextManager[Any]:
    """Let ranks add up gradients alone, until the last piece of a step makes them exchange."""
    if isinstance(module, DistributedDataParallel):
        return nullcontext() if last else module.no_sync()
    if hasattr(module, "set_requires_gradient_sync"):
        module.set_requires_gradient_sync(last)
    return nullcontext()


def lost_rank(error: BaseException, ranks: Ranks) -> bool:
    """Whether an error says that another rank no longer answers."""
    if ranks.world == 1:
        return False
    words = ("gloo", "nccl", "connection", "timed out", "peer")
    return isinstance(error, dist.DistError) or any(word in str(error).lower() for word in words)


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor with all its shards."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
