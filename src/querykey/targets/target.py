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
from querykey.words import checked, room_for, seed_number, suggest, whole

# What each preset is, in the words of `qk targets`; the first three are made of torch's own layers.
TORCH_PRESETS = {
    "encoder": "torch.nn.TransformerEncoder: every token sees every token",
    "decoder": "the same under a causal mask",
    "encoder-decoder": "torch.nn.Transformer between two sequences of tokens",
}
MODEL_PRESETS = {
    "bert": "encoder in BERT's layout, scores for masked words",
    "gpt": "decoder in GPT-2's layout",
    "llama": "decoder in Llama's layout: RMS norms, rotary positions, grouped heads, gated MLP",
    "mistral": "the same with a sliding window",
    "alibi": "decoder whose positions are ALiBi's biases",
    "argmax": "decoder in which each query reads its best key alone",
    "softmax": "decoder with softmax attention and rotary positions",
    "elu": "the same with kernel attention, features elu + 1",
    "quadratic": "the same with kernel attention, similarity (q.k + 1)^2",
    "quadratic-decay": "the same with learned gates that let the past fade",
    "transformer": "encoder and decoder of the original paper",
    "t5": "encoder and decoder in T5's layout, distances as biases",
    "vit": "vision transformer (ViT) that classifies images",
    "davit": "DaViT: attention in windows, then between channels",
    "autoencoder": "autoencoder of vectors, one hidden layer each way",
    "linear-autoencoder": "autoencoder of vectors: two matrices",
    "denoising-autoencoder": "autoencoder of vectors that is shown noisy ones",
    "masked-autoencoder": "autoencoder of vectors that is shown half of the features",
    "masked-patches": "autoencoder of images that is shown a quarter of the patches",
}
# A preset is a factory like any that a user could name: our models are imported when one is built.
PRESETS = {
    **{name: f"querykey.targets.presets:{name.replace('-', '_')}" for name in TORCH_PRESETS},
    **{name: f"querykey.models.presets:make_{name.replace('-', '_')}" for name in MODEL_PRESETS},
}
WAYS = (  # to name a target, and what each of them means
    ("file.py:factory", "a callable in your file that returns a torch.nn.Module"),
    ("package.module:factory", "the same in an installed package"),
    ("hf:NAME", "a Hugging Face architecture by its model_type, with random weights"),
    ("hf:NAME:HEAD", "the same with a head: causal, masked or seq2seq"),
    ("a folder", "config.json and safetensors"),
    ("a preset", "a model of our own, such as gpt; `qk targets` lists them"),
)


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
        whole("batch", batch)
        whole("length", length)
        with room_for(f"an example of {batch} rows and {length} tokens"):
            return examples(self.inputs, batch, length, seed_number(seed))

    def run(self, example: dict[str, Any]) -> Any:
        """Return the output of one forward pass, without gradients, in the model's own mode."""
        if not isinstance(example, dict):
            raise TargetError(f"an example is a dict; got {type(example).__name__}")
        missing = [i.name for i in self.inputs if i.required and i.name not in example]
        if missing:
            raise TargetError(f"`{self.name}` wants a value for `{missing[0]}` too")
        with torch.no_grad():
            return self.model(**example)


@checked
def build(name: str, seed: int = 0) -> Target:
    """Return the target that `name` stands for, or raise a TargetError that says why not.

    Random weights follow from the seed.
    """
    began = time.perf_counter()
    kind, product, inputs, note = _build(name.strip(), seed_number(seed))
    model = module_of(product)
    assert model is not None
    return Target(
        name.strip(), kind, model, inputs, note, time.perf_counter() - began,
        None if product is model else product,
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
    "config.json and safetensors, or a preset, which `qk targets` lists"
)
