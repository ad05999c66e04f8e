"""Run three of many equal layers, and repeat the events of the second for the others.

Layers after the third hand on what they get, so the events are those of a model of three layers.
What happens between the second layer and the third, forward, and between the second and the first,
backward, happens once more for every layer that did not run. Counts of all layers check it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from querykey.costs.counting.equal_layers import equal_layers
from querykey.costs.inputs import leaves
from querykey.costs.memory.timeline import Event, Timeline

RUN = 3  # layers that run, so that the second one has a neighbour on both sides
Repeats = list[tuple[str, str, int]]  # between these two marks, so many times more


@contextmanager
def three_of_equal_layers(model: nn.Module, timeline: Timeline) -> Iterator[Repeats]:
    """Let three of each row of equal layers run, and yield what is to be repeated."""
    repeats: Repeats = []
    replaced: list[nn.Module] = []
    try:
        for number, row in enumerate(rows_of_equal_layers(model)):
            _Row(timeline, f"row {number}", row, repeats).replace(replaced)
        yield repeats
    finally:
        for layer in replaced:
            del layer.forward


def rows_of_equal_layers(model: nn.Module) -> list[dict[str, nn.Module]]:
    """Return the groups of equal layers whose numbers follow each other, without inner groups."""
    rows: list[dict[str, nn.Module]] = []
    for group in equal_layers(model):
        numbers = [int(path.rpartition(".")[2]) for path in group]
        inside = any(
            path.startswith(f"{outer}.") for row in rows for outer in row for path in group
        )
        together = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        if len(group) > RUN and together and not inside:
            rows.append(group)
    return rows


def expanded(timeline: Timeline, repeats: Repeats) -> list[Event] | None:
    """Return the events with every repeated part in its place, None where a part did not come."""
    marks, events = timeline.marks, timeline.events
    parts: list[tuple[int, int, int]] = []
    for begin, end, times in repeats:
        if begin not in marks and end not in marks:
            continue  # as in a pass without backward
        if begin not in marks or end not in marks or marks[begin] >= marks[end]:
            return None
        parts.append((marks[end], marks[begin], times))
    result: list[Event] = []
    done = 0
    for end, begin, times in sorted(parts):
        result += events[done:end]
        result += events[begin:end] * times
        done = end
    return [*result, *events[done:]]


class _Row:
    """Equal layers, one after the other, while one pass runs over them."""

    def __init__(
        self, timeline: Timeline, name: str, layers: dict[str, nn.Module], repeats: Repeats
    ):
        self.timeline, self.name, self.layers, self.repeats = timeline, name, layers, repeats
        self.single = True  # whether a layer returns one tensor, as the first ones show

    def replace(self, replaced: list[nn.Module]) -> None:
        """Put our forward before each layer's own, and add the layer to `replaced`."""
        paths = list(self.layers)
        self.timeline.backward_marks[paths[1]] = f"{self.name} backward 2"
        self.timeline.backward_marks[paths[0]] = f"{self.name} backward 1"
        for place, layer in enumerate(self.layers.values()):
            layer.forward = self._forward(place, layer.forward)
            replaced.append(layer)
        more = len(self.layers) - RUN
        self.repeats.append((f"{self.name} 2", f"{self.name} 3", more))
        self.repeats.append((f"{self.name} backward 2", f"{self.name} backward 1", more))

    def _forward(self, place: int, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            self.timeline.mark(f"{self.name} {place + 1}")
            if place < RUN:
                out = original(*args, **kwargs)
                self.single = not isinstance(out, tuple)
                return out
            hidden = next(t for t in leaves((args, kwargs)) if isinstance(t, torch.Tensor))
            return hidden if self.single else (hidden,)

        return forward
