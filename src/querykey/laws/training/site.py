"""Where in the code something was called: the line that called torch, and the user's own line."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from querykey.words import is_own, short_path

TORCH = str(Path(torch.__file__).parent)
OURS = str(Path(__file__).parent)


@dataclass(frozen=True)
class Site:
    """A place in the code: the innermost line outside of torch, and that of the user's own code."""

    caller: str = ""
    own: str = ""

    def __str__(self) -> str:
        return self.own or self.caller


def here() -> Site:
    """Return the place from which the code of this folder was called."""
    caller, frame = "", sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((TORCH, OURS, "<frozen")):
            line = f"{file}:{frame.f_lineno}"
            caller = caller or line
            if is_own(file):
                return Site(caller, f"{short_path(file)}:{frame.f_lineno}")
        frame = frame.f_back
    return Site(caller)
