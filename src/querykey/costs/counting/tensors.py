"""The tensors that go into a pass: without values under a mode, with random values otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from querykey.costs.inputs import Named
from querykey.costs.private import fake, fake_weight


class TensorMaker:
    """Makes inputs and weights on one device at given sizes; `inputs` lists the inputs made."""

    def __init__(self, mode: Any, device: str, sizes: Mapping[str, Any], dtype: torch.dtype):
        self.mode = None if isinstance(mode, nullcontext) else mode
        self.device, self.sizes, self.dtype = device, dict(sizes), dtype
        self.inputs: list[torch.Tensor] = []

    def input(self, source: Any) -> torch.Tensor:
        """Return a tensor for a Named shape, or a copy of the user's own tensor."""
        if not isinstance(source, Named):
            tensor = self._copy(source).requires_grad_(source.requires_grad)
        elif source.kind == "tokens":
            tensor = self._ids(source.shape(self.sizes), source.low, source.high or 2)
        else:
            shape, dtype = source.shape(self.sizes), source.dtype or self.dtype
            draw = torch.empty if self.mode else torch.randn
            tensor = draw(shape, dtype=dtype).requires_grad_(source.grad)
        self.inputs.append(tensor)
        return tensor

    def weight(
        self, tensor: torch.Tensor, dtype: torch.dtype | None = None, copy: bool = False
    ) -> torch.Tensor:
        """Return a leaf in place of a parameter or buffer, floats in `dtype` where there is one.

        It is a copy where a pass may change it.
        """
        if dtype is not None and tensor.is_floating_point() and tensor.dtype is not dtype:
            needed = tensor.requires_grad
            # Where values count for nothing, none are converted.
            tensor = tensor.detach().to("meta" if self.mode else self.device, dtype)
            tensor.requires_grad_(needed)
        if self.mode:
            return fake_weight(self.mode, tensor, self.device)
        leaf = tensor.detach().clone() if copy else tensor.detach()
        return leaf.requires_grad_(tensor.requires_grad)

    def _ids(self, shape: list[Any], low: int, high: int) -> torch.Tensor:
        if self.mode:
            return torch.empty(shape, dtype=torch.long)
        return torch.randint(low, high, shape)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.mode:
            return fake(self.mode, tensor.detach(), self.device)
        return tensor.detach().clone()


@contextmanager
def random_state(seed: int) -> Iterator[None]:
    """Draw random numbers from this seed, and leave torch's own state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
