"""Axis names bound to sizes, and the one ShapeError, which shows every array.

    sizes = bind(q=(q, "*batch head query key_dim"), k=(k, "*batch head key key_dim"))
    sizes["key_dim"], sizes["batch"]      # an int, and a tuple for the starred name

A pattern names every axis of an array, in order. The same name is the same size everywhere; at most
one starred name stands for any number of axes, also none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from querykey.errors import QuerykeyError

Pattern = str
Arrays = Mapping[str, "tuple[Any, Pattern]"]


class ShapeError(QuerykeyError):
    """The error of arrays that do not fit: it shows the shape that each should have, and has."""

    def __init__(self, problem: str, arrays: Arrays, here: str | None = None, hint: str = ""):
        self.problem, self.arrays, self.here, self.hint = problem, dict(arrays), here, hint
        lines = [problem]
        for name, (array, pattern) in self.arrays.items():
            if array is not None:
                arrow = "  <-- here" if name == here else ""
                lines.append(
                    f"  {name:<6} wants {_wants(array, pattern)}, has {_has(array)}{arrow}"
                )
        if hint:
            lines.append(f"  {hint}")
        super().__init__("\n".join(lines))

    def with_hint(self, hint: str) -> ShapeError:
        """Return the same error with a last line that says what to try."""
        return ShapeError(self.problem, self.arrays, self.here, hint)


def bind(**arrays: tuple[Any, Pattern]) -> dict[str, Any]:
    """Return the size of every named axis (a tuple for a starred one), or raise the ShapeError.

    An array is anything with a `shape`, or None, which is passed over.
    """
    sizes: dict[str, Any] = {}
    owner: dict[str, str] = {}
    for name, (array, pattern) in arrays.items():
        if array is None:
            continue
        axes = _axes(array, pattern)
        if axes is None:
            raise ShapeError(_rank_problem(name, array, pattern), arrays, here=name)
        for axis, size in axes:
            if axis not in sizes:
                sizes[axis], owner[axis] = size, name
            elif sizes[axis] != size:
                raise ShapeError(
                    _conflict(axis, owner[axis], sizes[axis], name, size), arrays, here=name
                )
    return sizes


def _axes(array: Any, pattern: Pattern) -> list[tuple[str, Any]] | None:
    """Pair the axis names with sizes; None where the number of axes does not fit."""
    names, shape = pattern.split(), tuple(array.shape)
    star = next((i for i, name in enumerate(names) if name.startswith("*")), None)
    if star is None:
        return list(zip(names, shape, strict=True)) if len(names) == len(shape) else None
    extra = len(shape) - (len(names) - 1)
    if extra < 0:
        return None
    before = list(zip(names[:star], shape[:star], strict=True))
    after = list(zip(names[star + 1 :], shape[star + extra :], strict=True))
    return [*before, (names[star][1:], shape[star : star + extra]), *after]


def _conflict(axis: str, first: str, first_size: Any, second: str, second_size: Any) -> str:
    if not isinstance(first_size, tuple):
        return f"axis `{axis}` is {first_size} in `{first}` but {second_size} in `{second}`"
    if len(first_size) != len(second_size):
        counts = [
            f"{len(size)} `{axis}` {_plural(len(size))}" for size in (first_size, second_size)
        ]
        return f"`{first}` has {counts[0]} but `{second}` has {counts[1]}"
    at = next(i for i, (a, b) in enumerate(zip(first_size, second_size, strict=True)) if a != b)
    label = axis if len(first_size) == 1 else f"{axis}_{at + 1}"
    return _conflict(label, first, first_size[at], second, second_size[at])


def _rank_problem(name: str, array: Any, pattern: Pattern) -> str:
    rank, names = len(array.shape), pattern.split()
    starred = any(axis.startswith("*") for axis in names)
    wanted = f"at least {len(names) - 1}" if starred else str(len(names))
    return f"`{name}` has {rank} {_plural(rank)} but wants {wanted}"


def _wants(array: Any, pattern: Pattern) -> str:
    """Show the pattern with the starred name written out for this array's rank."""
    axes = _axes(array, pattern)
    if axes is None:
        return _tuple(pattern.split())
    names: list[str] = []
    for axis, size in axes:
        if not isinstance(size, tuple) or len(size) == 1:
            names.append(axis)
        else:
            names.extend(f"{axis}_{i + 1}" for i in range(len(size)))
    return _tuple(names)


def _has(array: Any) -> str:
    return _tuple([str(size) for size in array.shape])


def _tuple(words: list[str]) -> str:
    return f"({words[0]},)" if len(words) == 1 else f"({', '.join(words)})"


def _plural(count: int) -> str:
    return "axis" if count == 1 else "axes"
