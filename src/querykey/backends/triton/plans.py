"""How the kernels are cut up, by head size: measured on an H200, in place of tuning at run time."""

from __future__ import annotations

from dataclasses import dataclass

SIZES = (16, 32, 64, 128)  # of keys and of values; others are filled up with zeros


@dataclass(frozen=True)
class Launch:
    """The near tile of a kernel (queries by keys), and how it runs."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None  # at most, so that more programs share a multiprocessor


@dataclass(frozen=True, eq=False)  # told apart by identity, so that looking one up is quick
class Plan:
    """Tokens to a chunk, the length up to which all keys are near, and each kernel's launch."""

    chunk: int
    near: tuple[int, int]  # without gradients and with them
    outputs: tuple[Launch, Launch]  # with far keys, and without any
    by_query: tuple[Launch, Launch]
    by_key: tuple[Launch, Launch]
    gated: tuple[Launch, Launch] | None = None  # by query and by key, with far keys and gates

    @property
    def granule(self) -> int:
        """Count the tokens of a granule: every block of rows is whole ones, no tile is in two."""
        launches = (*self.outputs, *self.by_query)
        return min(*(x.queries for x in launches), *(x.keys for x in self.by_key))

    def far(self, queries: int, keys: int, keep: bool) -> bool:
        """Return whether keys are summed up; `keep` says that gradients will be asked for."""
        return max(queries, keys) > self.near[keep]


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
        (Launch(64, 64, 4, 3), Launch(32, 64, 4, 3)),
    ),
    128: Plan(
        2048,
        (32768, 16384),
        (Launch(128, 64, 8, 3), Launch(128, 64, 8, 3)),
        (Launch(128, 64, 8, 2), Launch(128, 64, 8, 3)),
        (Launch(32, 64, 8, 3), Launch(64, 64, 4, 2)),
    ),
}
CACHE = 1 << 25  # bytes that programs side by side may read over and over
STEP = 64  # tokens that the sums take at a time
PLAIN = Launch(0, 0, 4, 3)  # of what only reads and writes


def fitting(size: int) -> int:
    """Return the smallest size served that holds `size`."""
    return next(s for s in SIZES if s >= size)


def plan(key_dim: int, value_dim: int) -> Plan:
    """Return the plan for sizes served."""
    return PLANS[key_dim if value_dim <= 64 else value_dim]


def sum_plan(key_dim: int, value_dim: int) -> tuple[int, Launch]:
    """Return how many pairs of octets a program sums up, and how it runs; it has no near tile."""
    return min(key_dim // 16, 4), Launch(0, 0, 4 if max(key_dim, value_dim) <= 64 else 8, 3)


@dataclass(frozen=True)
class DecodePlan:
    """The columns of values to a program, the rows of phi to a step, and how the program runs."""

    columns: int
    rows: int
    launch: Launch


def decode_plan(lanes: int, group: int) -> DecodePlan:
    """Return how one token is taken into so many states with so many queries each."""
    if lanes < 64:  # as many programs as there are multiprocessors, and much for each at a time
        return DecodePlan(8, max(1024 // group, 64), Launch(0, 0, 16, 1))
    if lanes < 256:
        return DecodePlan(32, max(128 // group, 32), Launch(0, 0, 4, 1))
    return DecodePlan(64, max(256 // group, 32), Launch(0, 0, 8, 1))
