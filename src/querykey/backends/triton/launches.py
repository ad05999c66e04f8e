"""Kernels started quickly: what Triton found out about a call is kept for the next one like it.

Triton looks at every argument to choose among the compiled versions of a kernel, which takes the
host several times as long as the start itself. A `Launcher` holds all arguments but the tensors, so
that only these are looked at.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from querykey.backends.triton.plans import Launch


class Launcher:
    """A kernel with its grid, its launch options, and all of its arguments that are no tensors."""

    def __init__(self, kernel: Any, grid: tuple[int, ...], launch: Launch, **numbers: Any):
        self.kernel, self.grid, self.launch, self.numbers = kernel, grid, launch, numbers
        self._known: dict[tuple, tuple] = {}

    def __call__(self, **tensors: Tensor | None) -> None:
        """Run the kernel on tensors of one device, by name; None where it does not read one."""
        # As numbers: of a tensor, Triton asks the driver where it lies.
        given = tensors.values()
        addresses = [None if x is None else x.data_ptr() for x in given]
        device = next(iter(given)).get_device()  # the first is never None
        # What decides on a kernel's version: which tensors there are, their types and alignment.
        types = [None if x is None else x.dtype for x in given]
        key = (device, *tensors, *types, *[x and x & 15 for x in addresses])
        known = self._known.get(key)
        if known is None:
            self._start(key, tensors)
            return
        run, numbers, places = known
        args = numbers.copy()
        for place, address in zip(places, addresses, strict=True):
            args[place] = address
        run(*args)

    def _start(self, key: tuple, tensors: dict[str, Tensor | None]) -> None:
        """Run the kernel through Triton, and keep the version that it chose."""
        launch = self.launch
        options = {"num_warps": launch.warps, "num_stages": launch.stages}
        compiled = self.kernel[self.grid](
            **tensors, **self.numbers, **options, maxnreg=launch.registers
        )
        if compiled is None:  # as in Triton's interpreter
            return
        names = self.kernel.arg_names
        numbers = [self.numbers.get(name) for name in names]
        run = compiled[(*self.grid, 1, 1)[:3]]
        self._known[key] = run, numbers, [names.index(name) for name in tensors]
