"""A table of training loops in which faults can be planted, one for every kind of loop."""

from __future__ import annotations

from collections.abc import Callable

Loop = Callable[[str], None]  # takes the name of a fault, or "" for none
Faults = dict[str, tuple[Loop, str]]  # by name: the loop, and the law that must tell


def into(table: Faults) -> Callable[..., Callable[[Loop], Loop]]:
    """Return a decorator that registers a loop under a law and the names of its faults."""

    def faults(law: str, *names: str) -> Callable[[Loop], Loop]:
        def register(loop: Loop) -> Loop:
            table.update(dict.fromkeys(names, (loop, law)))
            return loop

        return register

    return faults
