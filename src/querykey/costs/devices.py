"""Devices by name, with the figures that their makers publish."""

from __future__ import annotations

import os
from dataclasses import dataclass

from querykey.costs.inputs import CostError
from querykey.words import suggest


@dataclass(frozen=True)
class Device:
    """A device: FLOP/s of dense matrix products by dtype, bytes/s, and bytes of memory."""

    name: str
    products: dict[str, float]  # FLOP/s of matrix products
    bandwidth: float  # bytes/s
    memory: int  # bytes
    source: str  # where the figures are published

    def products_in(self, dtype: str) -> float:
        """Return the FLOP/s of matrix products in a dtype, those of float32 where none is given."""
        return self.products.get(dtype, self.products["float32"])


def _gpu(
    name: str, half: float, tf32: float, single: float, bandwidth: float, gigabytes: int, sheet: str
) -> Device:
    products = {
        "float16": half, "bfloat16": half, "tf32": tf32, "float32": single, "float64": single,
    }  # fmt: skip
    source = f"NVIDIA's data sheet {sheet}, SXM, dense"
    return Device(name, products, bandwidth, gigabytes * 10**9, source)


def _memory_here() -> int:
    """Return the bytes of memory that this machine has, 64 GiB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 64 << 30


# Figures of float64 are those of the tensor cores. A CPU is whatever it is: one server's processor
# stands for it, 56 cores at their base clock of 2 GHz with two units of AVX-512 each (64 FLOPs per
# cycle) and AMX (2048), until `qk cost --calibrate` has measured the machine itself.
DEVICES = {
    "h200": _gpu("h200", 989.4e12, 494.7e12, 66.9e12, 4.8e12, 141, "H200 Tensor Core GPU"),
    "h100": _gpu("h100", 989.4e12, 494.7e12, 66.9e12, 3.35e12, 80, "H100 Tensor Core GPU"),
    "a100": _gpu("a100", 312e12, 156e12, 19.5e12, 2.039e12, 80, "A100 80GB"),
    "cpu": Device(
        "cpu",
        {"float32": 56 * 2e9 * 64, "float64": 56 * 2e9 * 32, "bfloat16": 56 * 2e9 * 2048},
        8 * 4.8e9 * 8,
        _memory_here(),
        "Intel's data sheet Xeon Platinum 8480+, eight channels of DDR5-4800",
    ),
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
