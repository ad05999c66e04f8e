"""What the namespace has: its types, its one device and what it can do."""

from __future__ import annotations

from typing import Any

import numpy as np

from querykey.errors import QuerykeyError

KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": (),
}
GROUPS = {
    "integral": ("signed integer", "unsigned integer"),
    "numeric": ("signed integer", "unsigned integer", "real floating", "complex floating"),
}
DEFAULTS = {
    "real floating": np.dtype("float64"),
    "integral": np.dtype("int64"),
    "indexing": np.dtype("int64"),
}


class Inspection:
    """The answers of `__array_namespace_info__`; there are no complex numbers."""

    def capabilities(self) -> dict[str, Any]:
        """Return what is optional in the standard, and whether it is there."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return the one device."""
        return "cpu"

    def devices(self) -> list[str]:
        """Return the one device in a list."""
        return ["cpu"]

    def default_dtypes(self, *, device: Any = None) -> dict[str, np.dtype]:
        """Return the types that new arrays have; there is none for complex numbers."""
        return dict(DEFAULTS)

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, np.dtype]:
        """Return the types by name: all, those of a kind, or those of several kinds."""
        wanted = kind if isinstance(kind, tuple) else tuple(KINDS) if kind is None else (kind,)
        unknown = [name for name in wanted if name not in KINDS and name not in GROUPS]
        if unknown:
            kinds = ", ".join([*KINDS, *GROUPS])
            raise QuerykeyError(f"there is no kind of types {unknown[0]!r} (there is {kinds})")
        names = [name for group in wanted for name in GROUPS.get(group, (group,))]
        return {dtype: np.dtype(dtype) for name in names for dtype in KINDS[name]}


def __array_namespace_info__() -> Inspection:  # noqa: N807 - the standard's name
    """Return the namespace's own description."""
    return Inspection()
