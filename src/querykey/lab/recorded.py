"""Times on a GPU that this project measured before, for machines that have none.

They are those of docs/dev/performance.md, by `benchmarks/gpu.py`, November 2026: one NVIDIA H200,
torch 2.11.0+cu130, triton 3.6.0; causal, batch 1, 16 heads, bfloat16, forward pass, milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

MACHINE = "H200, docs/dev/performance.md"


class Timing(NamedTuple):
    """The time of both mechanisms for one size of heads and one length."""

    width: int  # D = M
    tokens: int
    kernel: float  # the quadratic kernel by the backend `triton`, ms
    softmax: float  # cuDNN's, ms


H200 = (
    Timing(16, 2048, 0.0225, 0.0511),
    Timing(16, 8192, 0.079, 0.42),
    Timing(16, 32768, 0.231, 4.74),
    Timing(16, 131072, 0.836, 70.8),
    Timing(32, 2048, 0.0271, 0.0517),
    Timing(32, 8192, 0.153, 0.42),
    Timing(32, 32768, 0.497, 4.86),
    Timing(32, 131072, 1.83, 74),
    Timing(64, 1024, 0.0188, 0.0214),
    Timing(64, 2048, 0.0361, 0.0496),
    Timing(64, 4096, 0.0808, 0.124),
    Timing(64, 8192, 0.243, 0.366),
    Timing(64, 16384, 0.653, 1.28),
    Timing(64, 32768, 1.21, 4.59),
    Timing(64, 65536, 2.41, 18.6),
    Timing(64, 131072, 4.8, 77.6),
    Timing(128, 8192, 0.526, 0.577),
    Timing(128, 16384, 1.89, 1.91),
    Timing(128, 32768, 6.71, 7.13),
    Timing(128, 131072, 26.6, 120),
)
