"""Print which files of querykey a call walks through, in order of first entry.

python tools/walks.py             # the three walks that tests/house/test_walks.py bounds
python tools/walks.py attend      # one of them
"""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import querykey

SOURCE = Path(querykey.__file__).parent
ROOT = Path(__file__).parent.parent


@dataclass
class Walk:
    """The files in which a function ran, in order of first entry, and the calls between files."""

    files: list[str] = field(default_factory=list)
    steps: dict[tuple[str, str], str] = field(default_factory=dict)  # (caller, callee): function

    def between(self, caller: str, callee: str) -> list[str]:
        """The calls that go from one room directly into another."""
        return [
            f"{before} -> {after} ({function})"
            for (before, after), function in self.steps.items()
            if before.startswith(f"{caller}/") and after.startswith(f"{callee}/")
        ]


def file_of(frame: FrameType | None) -> str | None:
    """The file of a frame, relative to the source, or None where it is not ours."""
    path = Path(frame.f_code.co_filename) if frame else None
    return str(path.relative_to(SOURCE)) if path and SOURCE in path.parents else None


def caller_of(frame: FrameType) -> str | None:
    """The file of the nearest frame of ours above a frame; torch may stand between the two."""
    above = frame.f_back
    while above is not None and file_of(above) is None:
        above = above.f_back
    return file_of(above)


def trace(call: Callable[[], Any]) -> Walk:
    """Run a call twice and follow the second run, in every thread that works for it."""
    walk, following = Walk(), False

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = file_of(frame) if following and event == "call" else None
        if file is None:
            return
        if file not in walk.files:
            walk.files.append(file)
        caller = caller_of(frame)
        if caller is not None and caller != file:
            walk.steps.setdefault((caller, file), frame.f_code.co_qualname)

    threading.setprofile(note)  # before the first run, whose threads may serve the second
    sys.setprofile(note)
    try:
        call()  # what is imported and prepared once is no part of the walk
        following = True
        call()
    finally:
        following = False
        sys.setprofile(None)
        threading.setprofile(None)
    return walk


def attend() -> Walk:
    """Causal quadratic-kernel attention of 2048 tokens on the CPU."""
    import torch

    q, k, v = (torch.randn(1, 4, 2048, 32) for _ in range(3))
    kernel = querykey.Kernel(querykey.Quadratic(), scale=32**-0.5)
    return trace(lambda: querykey.attend(q, k, v, mechanism=kernel, mask=querykey.Causal()))


def generate() -> Walk:
    """Four tokens of a small GPT-2; building the model is no part of the walk."""
    import torch

    model = querykey.models.build(querykey.models.preset("gpt"))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    return trace(lambda: querykey.generate(model, ids, max_new_tokens=4))


def backward() -> Walk:
    """The backward pass of the block in examples/ag_train_block.py; the forward pass is before."""
    import numpy as np

    from querykey import ag

    example = runpy.run_path(str(ROOT / "examples" / "ag_train_block.py"))
    rng = np.random.default_rng(0)
    attention, mlp = example["SingleHeadAttention"](8, rng), ag.nn.MLP(8, 32, rng=rng)
    tokens, _ = example["draw_batch"](rng, 16, 2 * np.eye(4))
    losses = [ag.mean(mlp(attention(tokens)) ** 2) for _ in range(2)]
    return trace(lambda: losses.pop().backward())


WALKS = {"attend": attend, "generate": generate, "ag backward": backward}


def main(names: list[str]) -> None:
    """Print the walks with these names, or all of them."""
    for name in names or WALKS:
        walk = WALKS[name]()
        print(f"{name}: {len(walk.files)} files")
        for file in walk.files:
            print(f"  {file}")


if __name__ == "__main__":
    main(sys.argv[1:])
