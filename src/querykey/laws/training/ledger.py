"""Which backward passes every gradient is made of, and which of these were applied already."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

Mark = tuple[float, float]


def mark_of(gradient: torch.Tensor | None) -> Mark:
    """Return two numbers that tell gradients or values apart: the norm, 0 for none, and a sum.

    The sum has uneven weights: a plain one, and the norm, may stay as they are for a reason, as
    those of scales that another normalisation follows.
    """
    if gradient is None or not gradient.numel():
        return 0.0, 0.0
    values = gradient.detach()
    if values.is_sparse:
        values = values.coalesce().values()
    if values.is_meta:
        return 0.0, 0.0
    values = torch.view_as_real(values) if values.is_complex() else values
    values = values.double().flatten()
    weights = torch.arange(values.numel(), dtype=values.dtype, device=values.device).cos()
    return float(torch.linalg.vector_norm(values)), float(values @ weights)


class Ledger:
    """An account of the gradients of all parameters, kept by looking at them.

    However a loop clears gradients, what counts is that they are gone: None, or all zero.
    """

    def __init__(self) -> None:
        self.parameters: dict[int, torch.Tensor] = {}  # kept alive, so that ids stay taken
        self.parts: dict[int, list[int]] = {}  # the backward passes in a gradient
        self.marks: dict[int, Mark] = {}
        self.applied: dict[tuple[int, int], set[int]] = {}  # by optimizer and parameter

    def _looked(self, parameter: torch.Tensor) -> Mark:
        """Return the mark of a gradient, after its parts were forgotten if it is gone."""
        key = id(parameter)
        self.parameters[key] = parameter
        mark = mark_of(parameter.grad)
        if mark == (0.0, 0.0):
            self.parts[key] = []
        return mark

    def before_backward(self, parameters: Iterable[torch.Tensor]) -> dict[int, float]:
        """Look at gradients; return the norms of those that were applied and are still there.

        One that the loop itself has changed since, such as one that decays, is kept on purpose.
        """
        carried = {}
        for parameter in parameters:
            key, mark = id(parameter), self._looked(parameter)
            used = self._used(key)
            if used and mark != self.marks.get(key):
                self.parts[key] = [part for part in self.parts[key] if part not in used]
            elif used:
                carried[key] = mark[0]
        return carried

    def _used(self, key: int) -> set[int]:
        """Return the parts of a gradient that some optimizer has applied."""
        parts = set(self.parts.get(key, ()))
        return {p for (_, k), done in self.applied.items() if k == key for p in done & parts}

    def after_backward(self, number: int, parameters: Iterable[torch.Tensor]) -> None:
        """Note that a backward pass has added to the gradients of these."""
        for parameter in parameters:
            key, mark = id(parameter), mark_of(parameter.grad)
            self.parameters[key] = parameter
            if mark != (0.0, 0.0):
                self.parts.setdefault(key, []).append(number)
            self.marks[key] = mark

    def look_again(self) -> None:
        """Note that a known function, such as one that clips, has changed gradients."""
        for key, parameter in self.parameters.items():
            self.marks[key] = mark_of(parameter.grad)

    def is_pending(self, key: int) -> bool:
        """Return whether a gradient has parts that no optimizer has applied."""
        return bool(set(self.parts.get(key, ())) - self._used(key))

    def changed_by_loop(self, optimizer: torch.optim.Optimizer) -> float:
        """Return the factor by which the loop itself has scaled gradients since they were made.

        NaN stands for any other change of them, and 1 for none.
        """
        factors = set()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                before, now = self.marks.get(id(parameter)), mark_of(parameter.grad)
                if before is None or not before[0] or now == before:
                    continue
                factors.add(now[0] / before[0])
        if not factors:
            return 1.0
        return max(factors) if max(factors) - min(factors) < 1e-3 * max(factors) else math.nan

    def apply(
        self, optimizer: torch.optim.Optimizer
    ) -> tuple[dict[int, float], dict[int, list[int]], dict[int, list[int]]]:
        """Note that an optimizer applies its gradients.

        Returns by parameter the norm, the backward passes in the gradient, and which of these the
        same optimizer has applied to it before.
        """
        sizes, sources, again = {}, {}, {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                key, mark = id(parameter), self._looked(parameter)
                if parameter.grad is None:
                    continue
                self.marks[key] = mark
                parts = self.parts.get(key, [])
                done = self.applied.setdefault((id(optimizer), key), set())
                sizes[key], sources[key] = mark[0], list(parts)
                if repeated := [part for part in parts if part in done]:
                    again[key] = repeated
                done |= set(parts)
        return sizes, sources, again
