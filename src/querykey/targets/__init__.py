"""What a user names on the command line, built.

    target = build("hf:gpt2")      # or "model.py:make", "package.module:make", a folder, a preset
    target.model, target.inputs    # an nn.Module, and what its forward takes
    target.run(target.example())   # one forward pass on inputs made up for it

A name that cannot be built raises a TargetError of one sentence that says what to do instead.
"""

from querykey.targets.describe import describe
from querykey.targets.generation import generates, greedy
from querykey.targets.huggingface import pairs, preload
from querykey.targets.inputs import Input, find_inputs, floating, is_lazy, quiet, uncompiled
from querykey.targets.target import PRESETS, Target, TargetError, build

__all__ = [
    "PRESETS",
    "Input",
    "Target",
    "TargetError",
    "build",
    "describe",
    "find_inputs",
    "floating",
    "generates",
    "greedy",
    "is_lazy",
    "pairs",
    "preload",
    "quiet",
    "uncompiled",
]
