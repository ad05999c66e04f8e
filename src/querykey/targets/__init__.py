"""Targets: the models that a user names, on the command line or in a call, built.

    target = build("hf:gpt2")      # or "model.py:make", "package.module:make", a folder, a preset
    target.model, target.inputs    # an nn.Module, and what its forward takes
    target.run(target.example())   # one forward pass on random inputs

A name that cannot be built raises a TargetError, which says in one sentence what to do instead.
"""

from querykey.targets.batches import TakesBatch, takes_batch
from querykey.targets.describe import count_parameters, describe
from querykey.targets.errors import TargetError
from querykey.targets.factories import function_at, seeded, seeded_outside_torch
from querykey.targets.folders import save_pretrained
from querykey.targets.generation import generates, greedy
from querykey.targets.guessing import argument_names, by_name, find_inputs
from querykey.targets.huggingface import pairs, preload
from querykey.targets.inputs import Input, stated_inputs
from querykey.targets.kinds import is_hugging_face, is_lazy, signature_of, uncompiled
from querykey.targets.outlines import field_of, outline, parse_fields, rebuilt
from querykey.targets.sources import source_of
from querykey.targets.target import MODEL_PRESETS, PRESETS, TORCH_PRESETS, WAYS, Target, build
from querykey.targets.trial import floating, quiet

__all__ = [
    "MODEL_PRESETS",
    "PRESETS",
    "TORCH_PRESETS",
    "WAYS",
    "Input",
    "TakesBatch",
    "Target",
    "TargetError",
    "argument_names",
    "build",
    "by_name",
    "count_parameters",
    "describe",
    "field_of",
    "find_inputs",
    "floating",
    "function_at",
    "generates",
    "greedy",
    "is_hugging_face",
    "is_lazy",
    "outline",
    "pairs",
    "parse_fields",
    "preload",
    "quiet",
    "rebuilt",
    "save_pretrained",
    "seeded",
    "seeded_outside_torch",
    "signature_of",
    "source_of",
    "stated_inputs",
    "takes_batch",
    "uncompiled",
]
