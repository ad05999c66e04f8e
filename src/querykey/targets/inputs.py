"""What a model's forward takes: read from its signature and layers, confirmed by a trial run."""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice, product
from typing import Any

import torch
from torch import nn

# Arguments that are not the data itself, by the names people give them.
MASKS = re.compile(r".*mask|real|valid|is_pad.*")
COUNTERS = re.compile(r"start_?pos(ition)?|start|offset|past_len(gth)?|step|pos(ition)?_offset")
NUMBERS = re.compile(r"t|times?|(time)?steps?|y|(class_)?labels?|sigmas?")
TRIALS = 16  # candidate inputs tried before giving up
IMAGE_SIZES = (32, 64, 224)  # a convolution does not say how large its images are


Candidate = tuple[str, tuple[str | int, ...], int, int]  # kind, axes, low, high


@dataclass(frozen=True)
class Input:
    """One argument of forward. An axis is a name (its size is free) or a fixed size."""

    name: str
    kind: str  # tokens, mask, start, features, image or signal
    axes: tuple[str | int, ...]
    low: int = 0  # of tokens: ids are drawn from low to high - 1, clear of special tokens
    high: int = 0
    required: bool = True

    def __str__(self) -> str:
        axes = ", ".join(str(axis) for axis in self.axes)
        what = {
            "tokens": f"token ids {self.low} to {self.high - 1}",
            "mask": "1 for real tokens",
            "start": "the first token's position, a number",
        }
        return f"({axes}) {what.get(self.kind, f'floats, {self.kind}')}"

    def make(self, sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor | int:
        """Draw a value with the free axes at these sizes."""
        if self.kind == "start":
            return 0
        shape = [axis if isinstance(axis, int) else sizes[axis] for axis in self.axes]
        if self.kind == "tokens":
            return torch.randint(self.low, self.high, shape, generator=generator)
        if self.kind == "mask":
            return torch.ones(shape, dtype=torch.long)
        return torch.randn(shape, generator=generator)


def examples(inputs: tuple[Input, ...], batch: int, length: int, seed: int) -> dict[str, Any]:
    """Make up every required input; target sequences are shorter, so that a mix-up shows."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"batch": batch, "seq": length, "target_seq": max(1, length - 2)}
    return {each.name: each.make(sizes, generator) for each in inputs if each.required}


def find_inputs(model: nn.Module) -> tuple[tuple[Input, ...], str]:
    """Return what forward takes, or nothing and the reason.

    Layers suggest candidates in the order in which they were registered (an Embedding suggests
    token ids, a Linear suggests features of its width); the first that runs is taken.
    """
    model = uncompiled(model)
    if is_hugging_face(model):
        from querykey.targets import huggingface

        inputs = huggingface.inputs_of(model)
        return inputs, ""
    if is_lazy(model):
        return (), "it has lazy layers, whose first run decides their sizes; say what it takes"
    names = _argument_names(model)
    if not names:
        return (), "its forward names no arguments; say what it takes"
    tried, reason = 0, ""
    for inputs in _guesses(model, names):
        try:
            trial(model, inputs)
        except (Exception, SystemExit) as error:  # a model that leaves is still built
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            tried, reason = tried + 1, reason or said  # the first guess is the likeliest
        else:
            return _with_batch_found(model, inputs), ""
    if not tried:
        return (), "no layer of it tells what it takes; say it"
    return (), f"none of {tried} guesses ran (the first: {reason[:160]}); say what it takes"


def trial(model: nn.Module, inputs: tuple[Input, ...]) -> object:
    """Run forward once on made-up inputs, in evaluation mode, and leave the model as it was."""
    return _run(model, examples(inputs, batch=2, length=7, seed=0))


def _run(model: nn.Module, made: dict[str, Any]) -> object:
    with evaluating(model), torch.no_grad(), quiet():
        return model(**{name: _like_weights(value, model) for name, value in made.items()})


def _with_batch_found(model: nn.Module, inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    from querykey.targets.rows import with_batch_found

    return with_batch_found(inputs, lambda made: _run(model, made))


def _like_weights(value: Any, model: nn.Module) -> Any:
    """On the model's device, and floats in the precision of its weights."""
    held = next((p for p in model.parameters() if p.is_floating_point()), None)
    if held is None or not isinstance(value, torch.Tensor):
        return value
    return value.to(held.device, held.dtype if value.is_floating_point() else value.dtype)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch and the model would log or warn about; a failure is told in one sentence."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and each back into its own mode after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _guesses(model: nn.Module, names: list[str]) -> Iterator[tuple[Input, ...]]:
    """All arguments alike; then, where names suggest it, one number per row for later ones."""
    alike = list(islice(product(_candidates(model), _masks(names)), TRIALS))
    for candidate, mask in alike:
        yield tuple(_named(name, candidate, mask) for name in names)
    numbers = [name for name in names[1:] if NUMBERS.fullmatch(name)]
    for candidate, mask in alike if numbers else ():
        made = (_named(name, candidate, mask) for name in names)
        yield tuple(
            Input(each.name, "tokens", ("batch",), 0, 10) if each.name in numbers else each
            for each in made
        )


def _masks(names: list[str]) -> list[tuple[str | int, ...]]:
    """The shapes a required mask may have: over keys, or over pairs; one try where none is."""
    shapes = [("batch", "seq"), ("seq", "seq"), ("batch", 1, 1, "seq")]
    return shapes if any(MASKS.fullmatch(name) for name in names) else shapes[:1]


def _named(name: str, candidate: Candidate, mask: tuple[str | int, ...]) -> Input:
    if MASKS.fullmatch(name):
        return Input(name, "mask", mask)
    if COUNTERS.fullmatch(name):
        return Input(name, "start", ())
    return Input(name, *candidate)


def floating(output: Any) -> Iterator[torch.Tensor]:
    """Every floating tensor in what a model returned, in its order."""
    if isinstance(output, torch.Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from floating(each)
    elif isinstance(output, tuple | list):
        for each in output:
            yield from floating(each)
    elif is_dataclass(output):
        yield from floating([getattr(output, field.name) for field in fields(output)])


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that torch.compile was given: hooks and copies see nothing of what it made."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def is_lazy(model: nn.Module) -> bool:
    """True where the sizes of some layer are not known before the first run."""
    return any(isinstance(p, nn.UninitializedParameter) for p in model.parameters())


def is_hugging_face(model: nn.Module) -> bool:
    """True for a `transformers` model, without importing `transformers` to ask."""
    return any(base.__module__ == "transformers.modeling_utils" for base in type(model).__mro__)


def _argument_names(model: nn.Module) -> list[str]:
    """The arguments a call must give; the first one where all have defaults."""
    named = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    required = [p.name for p in named if p.default is inspect.Parameter.empty]
    return required or [p.name for p in named[:1]]


def _candidates(model: nn.Module) -> Iterator[Candidate]:
    """What each layer would take, without repeats."""
    tokens_first = all(getattr(m, "batch_first", True) for m in model.modules())
    sequence = ("batch", "seq") if tokens_first else ("seq", "batch")
    seen = set()
    for module in model.modules():
        for candidate in _taken_by(module, sequence):
            if candidate not in seen:
                seen.add(candidate)
                yield candidate


def _taken_by(module: nn.Module, sequence: tuple[str, str]) -> Iterator[Candidate]:
    if isinstance(module, nn.Embedding):
        yield "tokens", sequence, 0, module.num_embeddings
    elif isinstance(module, nn.Conv2d):
        for size in IMAGE_SIZES:
            yield "image", ("batch", module.in_channels, size, size), 0, 0
    elif isinstance(module, nn.Conv1d):
        yield "signal", ("batch", module.in_channels, "seq"), 0, 0
        yield "features", (*sequence, module.in_channels), 0, 0
    else:
        for width in _widths(module):
            yield "features", (*sequence, width), 0, 0
            yield "features", ("batch", width), 0, 0


def _widths(module: nn.Module) -> list[int]:
    if isinstance(module, nn.Linear):
        return [module.in_features]
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return [module.normalized_shape[-1]]
    if isinstance(module, nn.RNNBase):
        return [module.input_size]
    matrices = [p for p in module.parameters(recurse=False) if p.dim() == 2]
    return [size for matrix in matrices for size in matrix.shape]
