"""How the kernels are cut up, by head size: measured on an H200, in place of tuning at run time."""

from __future__ import annotations

from dataclasses import dataclass

SIZES = (16, 32, 64, 128)  # of keys and of values; others are filled up with zeros
SUMMED = 64  # the largest for which far tokens are summed up


@dataclass(frozen=True)
class Launch:
    """The near tile of a kernel (queries by keys), and how it runs."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None  # at most, so that more programs share a multiprocessor


@dataclass(frozen=True)
class Plan:
    """Tokens to a chunk, the length up to which all keys are near, and each kernel's launch."""

    chunk: int
    near: tuple[int, int]  # without gradients and with them
    outputs: tuple[Launch, Launch]  # with far keys, and without any
    by_query: tuple[Launch, Launch]
    by_key: tuple[Launch, Launch]

    def far(self, queries: int, keys: int, keep: bool) -> bool:
        """Return whether keys are summed up; `keep` says that gradients will be asked for."""
        return max(queries, keys) > self.near[keep]


NEVER = 2**62
SMALL = (Launch(64, 64, 4, 3), Launch(64, 64, 4, 3))
SMALL_QUERY = (Launch(128, 32, 4, 3), Launch(64, 64, 4, 3))
SMALL_KEY = (Launch(32, 64, 4, 3), Launch(64, 64, 4, 3))
PLANS = {
    16: Plan(256, (2048, 2048), SMALL, SMALL_QUERY, SMALL_KEY),
    32: Plan(512, (4096, 2048), SMALL, SMALL_QUERY, SMALL_KEY),
    64: Plan(
        1024,
        (8192, 4096),
        (Launch(128, 64, 8, 3, 128), Launch(128, 64, 8, 3, 128)),
        (Launch(128, 64, 8, 3, 128), Launch(64, 64, 4, 3)),
        (Launch(32, 64, 4, 3, 168), Launch(64, 64, 4, 3)),
    ),
    128: Plan(
        1024,
        (NEVER, NEVER),
        (Launch(128, 64, 8, 3), Launch(128, 64, 8, 3)),
        (Launch(128, 64, 8, 3), Launch(128, 64, 8, 3)),
        (Launch(64, 64, 4, 2), Launch(64, 64, 4, 2)),
    ),
}
CACHE = 1 << 25  # bytes that programs side by side may read over and over
STEP = 64  # tokens that the sums take at a time
SUMS = Launch(0, 0, 4, 3)  # of degree 2; no kernel of these has a near tile
PLAIN = Launch(0, 0, 4, 3)  # of what only reads and writes


def fitting(size: int) -> int:
    """Return the smallest size served that holds `size`."""
    return next(s for s in SIZES if s >= size)


def plan(key_dim: int, value_dim: int) -> Plan:
    """Return the plan for sizes served."""
    return PLANS[key_dim if value_dim <= SUMMED else value_dim]
