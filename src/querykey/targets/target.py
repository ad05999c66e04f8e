"""A target: a model that somebody named, built; and the kinds of name there are."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from querykey.targets.errors import TargetError
from querykey.targets.factories import build_python, module_of
from querykey.targets.folders import build_folder
from querykey.targets.huggingface import build_architecture
from querykey.targets.inputs import Input, examples
from querykey.words import suggest

# A preset is a factory like any that a user could name: our models are imported when one is built.
PRESETS = {
    "encoder": "querykey.targets.presets:encoder",
    "decoder": "querykey.targets.presets:decoder",
    "encoder-decoder": "querykey.targets.presets:encoder_decoder",
    **{
        name: f"querykey.models.presets:make_{name.replace('-', '_')}"
        for name in (
            "bert",
            "gpt",
            "llama",
            "mistral",
            "alibi",
            "argmax",
            "softmax",
            "elu",
            "quadratic",
            "quadratic-decay",
            "transformer",
            "t5",
            "vit",
            "davit",
            "autoencoder",
            "linear-autoencoder",
            "denoising-autoencoder",
            "masked-autoencoder",
            "masked-patches",
        )
    },
}


@dataclass(frozen=True)
class Target:
    """A model that somebody named, and the inputs of its forward."""

    name: str
    kind: str  # preset, python, hf or folder
    model: nn.Module
    inputs: tuple[Input, ...]
    note: str = ""  # why `inputs` is empty, or how the model was built
    built_in: float = field(default=0.0, compare=False)  # seconds
    made: Any = None  # what a factory made, where that says more about its model

    def example(self, batch: int = 2, length: int = 7, seed: int = 0) -> dict[str, Any]:
        """Return a random value for every required input, the same for the same seed."""
        if not self.inputs:
            raise TargetError(f"`{self.name}`: no example can be made up; {self.note}")
        return examples(self.inputs, batch, length, seed)

    def run(self, example: dict[str, Any]) -> Any:
        """Return the output of one forward pass, without gradients, in the model's own mode."""
        with torch.no_grad():
            return self.model(**example)


def build(name: str, seed: int = 0) -> Target:
    """Return the target that `name` stands for, or raise a TargetError that says why not.

    Random weights follow from the seed.
    """
    began = time.perf_counter()
    kind, made, inputs, note = _build(name.strip(), seed)
    model = module_of(made)
    assert model is not None
    return Target(
        name.strip(), kind, model, inputs, note, time.perf_counter() - began,
        None if made is model else made,
    )  # fmt: skip


def _build(name: str, seed: int) -> tuple[str, Any, tuple[Input, ...], str]:
    if not name:
        raise TargetError(f"a target cannot be empty; it is {WHAT}")
    if name.startswith("hf:"):
        return "hf", *build_architecture(name, seed)
    if name in PRESETS:
        return "preset", *build_python(name, PRESETS[name], seed)
    # A folder comes before `module:factory`, because a path may hold a colon too. Path.is_dir would
    # raise where a name is too long for a file.
    if os.path.isdir(name):
        return "folder", *build_folder(name)
    if ":" in name:
        return "python", *build_python(name, name, seed)
    if name.endswith(".py"):
        raise TargetError(f"`{name}` names a file but no factory; write `{name}:FACTORY`")
    if "/" in name or name.startswith("."):
        raise TargetError(f"`{name}` is no folder; a target is {WHAT}")
    raise TargetError(f"no preset is called `{name}`{suggest(name, PRESETS)} (a target is {WHAT})")


WHAT = (
    "`file.py:factory`, `package.module:factory`, `hf:NAME[:causal|masked|seq2seq]`, a folder with "
    f"config.json and safetensors, or a preset ({', '.join(PRESETS)})"
)
