"""A device's roofline: how long a pass takes at least, operation by operation.

Every operation takes the longer of two times: its matrix products at the device's peak for their
dtype, or its bytes at the bandwidth of its memory. Operations run one after the other and none is
fused with its neighbours, so a compiler that fuses them can be faster than this bound, and what
starting an operation costs is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from querykey.costs.counting.operations import Operation, Shape, products
from querykey.costs.counting.trace import FORWARD
from querykey.costs.devices import Device
from querykey.costs.timing.bytes_moved import Calls

PRODUCTS, BYTES = "matrix products", "bytes"


@dataclass
class Bound:
    """The least seconds of one module, its children included, by what bounds each operation."""

    forward: float = 0.0
    backward: float = 0.0
    by: dict[str, float] = field(default_factory=lambda: {PRODUCTS: 0.0, BYTES: 0.0})

    @property
    def seconds(self) -> float:
        """Return the seconds of forward and backward together."""
        return self.forward + self.backward

    @property
    def binds(self) -> str:
        """Return what bounds most of the time: matrix products, or bytes."""
        return max(self.by, key=lambda what: self.by[what])

    @property
    def share(self) -> float:
        """Return the share of the time that `binds` bounds."""
        return self.by[self.binds] / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Roofline:
    """The bound of a pass on a device, in total and by module; the whole model's path is empty."""

    device: Device
    dtype: str
    modules: dict[str, Bound]

    @property
    def total(self) -> Bound:
        """Return the bound of the whole model."""
        return self.modules[""]

    @property
    def seconds(self) -> float:
        """Return the least seconds of forward and backward together."""
        return self.total.seconds

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        modules = {
            path: {"forward": b.forward, "backward": b.backward, "binds": b.binds, "share": b.share}
            for path, b in self.modules.items()
        }
        device, source = self.device.name, self.device.source
        return {"device": device, "source": source, "dtype": self.dtype, "modules": modules}

    def __str__(self) -> str:
        total = self.total
        parts = f"{duration(total.forward)} forward"
        parts += f", {duration(total.backward)} backward" if total.backward else ""
        return (
            f"at least {duration(total.seconds)} on {self.device.name} in {self.dtype} ({parts}); "
            f"bound by {total.binds} for {total.share:.0%} of it"
        )


def roofline(
    calls: Calls, device: Device, formulas: Mapping[str, Any], fold: Callable[[str], str]
) -> Roofline:
    """Return the bound of calls at sizes; `formulas` are the user's, by operation."""
    modules: dict[str, Bound] = {"": Bound()}
    dtypes: dict[str, float] = {}
    for (call, path, phase), times in calls.items():
        flops = times * float(flops_of(call.operation, formulas))
        in_products = flops / device.products_in(call.dtype)
        in_bytes = times * float(call.bytes) / device.bandwidth
        seconds, what = max((in_products, PRODUCTS), (in_bytes, BYTES))
        dtypes[call.dtype] = dtypes.get(call.dtype, 0.0) + seconds
        parts = fold(path).split(".") if path else []
        for length in range(len(parts) + 1):
            bound = modules.setdefault(".".join(parts[:length]), Bound())
            bound.by[what] += seconds
            if phase == FORWARD:
                bound.forward += seconds
            else:
                bound.backward += seconds
    floats = {dtype: seconds for dtype, seconds in dtypes.items() if dtype}
    dtype = max(floats, key=lambda name: floats[name], default="float32")
    return Roofline(device, dtype, modules)


def flops_of(operation: Operation, formulas: Mapping[str, Any]) -> Any:
    """Return the FLOPs of an operation's matrix products; the user's own formulas go first."""
    if operation.name in formulas:
        shapes = [arg for arg in operation.args if isinstance(arg, Shape)]
        return formulas[operation.name](shapes, list(operation.outs))
    return products(operation)


def duration(seconds: float) -> str:
    """Return seconds as a person reads them, such as 3.2 ms."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"
