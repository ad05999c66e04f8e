"""What a configuration may ask for: numbers that are numbers, and sizes that memory could hold."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from querykey.targets.errors import TargetError

LAYERS = re.compile(r"n_layers?|num_.*layers|.*_layers|depth")
SIZES = re.compile(
    r"hidden_.*|.*hidden_size|vocab.*|n_embd|n_inner|n_head|n_positions|d_model|d_ff|d_kv|d_inner|"
    r".*_dim|.*_size|.*ffn.*|num_.*heads|num_.*experts|max_position.*|num_labels"
)
DIVISORS = ("factor", "rope_theta")  # of the angles of rotary positions
MOST_LAYERS, LARGEST_SIZE = 10_000, 10**9  # well above every published model


def refuse_numbers(name: str, entries: Any, layers: int = MOST_LAYERS) -> None:
    """Raise the error for an entry of a configuration that is no number or a hostile size."""
    for key, value in _numbers(entries, ""):
        last = key.rpartition(".")[2]
        added = "eps" in last  # to what roots are taken of
        if math.isnan(value) or (added and not 0 <= value < math.inf):
            raise TargetError(f"`{name}`: `{key}` is {value}, which is no number to compute with")
        if last in DIVISORS and not 0 < value < math.inf:
            raise TargetError(f"`{name}`: `{key}` is {value}, which is no number to divide by")
        if isinstance(value, float):
            continue
        if LAYERS.fullmatch(last) and value > layers:
            raise TargetError(f"`{name}`: `{key}` is {value}, and more than {layers} are not built")
        if SIZES.fullmatch(last) and value > LARGEST_SIZE:
            raise TargetError(f"`{name}`: `{key}` is {value}; a size is at most {LARGEST_SIZE}")


def _numbers(entry: Any, key: str) -> Iterator[tuple[str, int | float]]:
    """Yield every number of a configuration, by its path."""
    if isinstance(entry, bool):
        return
    if isinstance(entry, int | float):
        yield key, entry
    elif isinstance(entry, dict):
        for name, value in entry.items():
            yield from _numbers(value, f"{key}.{name}" if key else str(name))
    elif isinstance(entry, list | tuple):
        for value in entry:
            yield from _numbers(value, key)
