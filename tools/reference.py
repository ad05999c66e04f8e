"""Print the page of all public names, each with the first sentence of its docstring.

UPDATE_SNAPSHOTS=1 python -m pytest tests/house/test_reference.py  # writes docs/reference.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

INTRODUCTION = """# Reference

Every public name in one line, written from the code by `tools/reference.py`. `help(qk.attend)`
prints a whole docstring, and the [pages by subject](../README.md#where-to-read-on) explain how the
names work together. T is the number of queries, S that of keys. The values of a cost report, such
as `report.flops`, are explained in [cost.md](cost.md#what-is-counted).
"""
ROOMS = {
    "attention": "Attention: mechanisms, masks, states",
    "backends": "Attention: the calls",
    "laws": "Laws",
    "costs": "Cost",
    "models": "Models",
    "shapes": "Errors",
    "errors": "Errors",
}


def page() -> str:
    """Return the whole page as Markdown."""
    import querykey
    from querykey import models, nn
    from querykey.costs import CostReport

    parts = [INTRODUCTION]
    for title in dict.fromkeys(ROOMS.values()):
        homes = [room for room, name in ROOMS.items() if name == title]
        names = [name for name, home in querykey._HOME.items() if home in homes]
        parts += [f"## {title}\n", table("qk.", {n: getattr(querykey, n) for n in sorted(names)})]
    parts += [
        "## What `qk.check` returns: a `qk.Report`\n",
        table("report.", members(querykey.Report)),
    ]
    parts += ["## What `qk.cost` returns: a `CostReport`\n", table("report.", members(CostReport))]
    public = {n: getattr(models, n) for n in models.__all__ if n not in querykey._HOME}
    parts += ["## In `querykey.models`\n", table("models.", public)]
    layers = {n: getattr(nn, n) for n in nn.__all__ if inspect.isclass(getattr(nn, n))}
    parts += ["## In `querykey.nn`\n", table("nn.", layers)]
    return "\n".join(parts)


def members(kind: type) -> dict[str, Any]:
    """Return the public methods, properties and fields of a class that have a docstring."""
    listed = {n: getattr(kind, n) for n in dir(kind) if not n.startswith("_")}
    return {n: member for n, member in listed.items() if documented(member)}


def table(prefix: str, named: dict[str, Any]) -> str:
    """Return a table of names and what they are."""
    lines = ["| name | what it is or does |", "|---|---|"]
    for name, value in named.items():
        if documented(value):
            lines.append(f"| `{prefix}{name}{arguments(value)}` | {first_sentence(value)} |")
    return "\n".join(lines) + "\n"


def documented(value: Any) -> bool:
    """Return whether a value has a docstring of this project; plain constants have Python's."""
    return not isinstance(value, int | float | str | tuple | dict | None)


def arguments(value: Any) -> str:
    """Return how a function or class is called, without types and with plain defaults alone."""
    if not callable(value) or getattr(value, "_is_protocol", False):
        return ""
    if inspect.isclass(value) and issubclass(value, Exception):
        return ""
    return f"({', '.join(_written(inspect.signature(value)))})"


def _written(signature: inspect.Signature) -> Iterator[str]:
    starred = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        default = parameter.default
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
            yield f"*{parameter.name}"
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield f"**{parameter.name}"
        elif default is parameter.empty:
            yield parameter.name
        elif isinstance(default, int | float | str | tuple | None):
            yield f"{parameter.name}={default!r}"
        else:
            yield f"{parameter.name}=..."


def first_sentence(value: Any) -> str:
    """Return the first sentence of a docstring; the class's where a value has none of its own."""
    doc = inspect.getdoc(value if callable(value) or isinstance(value, property) else type(value))
    paragraph = " ".join((doc or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0].replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
