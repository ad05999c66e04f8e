"""Numbered neighbours in one row: the layers 0, 1, ..., 11 of a model become `0-11`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from querykey.errors import QuerykeyError
from querykey.words import checked


@checked
def fold_numbered(names: Iterable[str], equal: Callable[[str, str], bool]) -> list[list[str]]:
    """Return the names in groups: numbers that follow each other and are `equal` share a group."""
    groups: list[list[str]] = []
    for name in names:
        last = groups[-1][-1] if groups else ""
        if name.isdigit() and last.isdigit() and equal(last, name):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


@checked
def group_name(names: list[str]) -> str:
    """Return the name of a group: its only name, or the first and the last."""
    if not names:
        raise QuerykeyError("a group has at least one name")
    return names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"
