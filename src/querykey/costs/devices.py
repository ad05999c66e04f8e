"""Devices by name, with the figures that their makers publish."""

from __future__ import annotations

from dataclasses import dataclass

from querykey.costs.inputs import CostError
from querykey.words import suggest


@dataclass(frozen=True)
class Device:
    """A device: FLOP/s of dense matrix products by dtype, bytes/s, and bytes of memory."""

    name: str
    products: dict[str, float]  # FLOP/s of matrix products
    pointwise: float  # FLOP/s outside of them
    bandwidth: float  # bytes/s
    memory: int  # bytes


def _gpu(name: str, half: float, tf32: float, single: float, bandwidth: float, gigabytes: int):
    products = {"float16": half, "bfloat16": half, "tf32": tf32, "float32": single}
    return Device(name, products, single, bandwidth, gigabytes * 10**9)


# NVIDIA's data sheets, of the SXM modules, without sparsity.
DEVICES = {
    "h200": _gpu("h200", 989.4e12, 494.7e12, 66.9e12, 4.8e12, 141),
    "h100": _gpu("h100", 989.4e12, 494.7e12, 66.9e12, 3.35e12, 80),
    "a100": _gpu("a100", 312e12, 156e12, 19.5e12, 2.039e12, 80),
}


def device_of(name: str) -> Device:
    """Return the device of a name, or raise a CostError that lists them."""
    if name not in DEVICES:
        raise CostError(
            f"there is no device `{name}`{suggest(name, DEVICES)} (there are {', '.join(DEVICES)})"
        )
    return DEVICES[name]


def memory_of(device: int | str) -> int:
    """Return the bytes of a device, or the number of bytes that was given."""
    return device_of(device).memory if isinstance(device, str) else int(device)
