"""Where data sets lie: a path that the user gives, or a folder of QUERYKEY_DATA."""

from __future__ import annotations

import os
from pathlib import Path

from querykey.train.data.source import DataError

VARIABLE = "QUERYKEY_DATA"


def find_folder(path: str, name: str, wanted: str) -> Path:
    """Return the folder of a data set: the path given, or `name` below QUERYKEY_DATA."""
    root = os.environ.get(VARIABLE, "")
    if not path and not root:
        raise DataError(
            f"data.path is empty: it names the folder with {wanted}; or set {VARIABLE} to a folder "
            f"that has {name}/ in it"
        )
    folder = Path(path).expanduser() if path else Path(root).expanduser() / name
    if not folder.is_dir():
        raise DataError(f"there is no folder `{folder}` with {wanted}")
    return folder
