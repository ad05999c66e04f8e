"""Kernels started quickly: what Triton found out about a call is kept for the next one like it.

Triton looks at every argument to choose among the compiled versions of a kernel, which takes the
host several times as long as the start itself.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from querykey.backends.triton.plans import PLAIN, Launch

KEPT = 4096  # versions by exact sizes, so that sequences of every length do not add up
_known: dict[tuple, Any] = {}


def start(kernel: Any, grid: tuple[int, ...], *args: Any, launch: Launch = PLAIN) -> None:
    """Run a kernel, its constants among the arguments; the first of them is a tensor."""
    key = (kernel, launch, args[0].get_device(), *map(_kind, args))
    made = _known.get(key)
    if made is not None:
        made[(*grid, 1, 1)[:3]](*args)
        return
    made = kernel[grid](
        *args, num_warps=launch.warps, num_stages=launch.stages, maxnreg=launch.registers
    )
    if made is not None:  # as in Triton's interpreter
        if len(_known) >= KEPT:
            _known.clear()
        _known[key] = made


def _kind(x: Any) -> Any:
    """Return what decides on the version: of a tensor its type and alignment, else the value."""
    return (x.dtype, x.data_ptr() % 16) if isinstance(x, Tensor) else x
