"""Find out what a model's forward takes: from its signature and layers, confirmed by a run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice, product

from torch import nn

from querykey.targets.batch_axis import with_batch_found
from querykey.targets.huggingface import inputs_of
from querykey.targets.inputs import Input
from querykey.targets.kinds import is_embedding, is_hugging_face, is_lazy, signature_of, uncompiled
from querykey.targets.trial import run_quietly, trial
from querykey.words import checked, raised

# Arguments that are not the data itself, by the names people give them.
MASKS = re.compile(r".*mask|real|valid|is_pad.*")
EDGES = re.compile(r"adj(acency)?(_?(matrix|mat|mask))?")
PLACES = re.compile(r"(input|cache)_pos(ition)?s?")
STARTS = re.compile(r"start_?pos(ition)?|start|offset|past_len(gth)?|step|pos(ition)?_offset")
LENGTHS = re.compile(r"(?!max|min|prefix)\w*(len|length)s?")
NUMBERS = re.compile(r"t|times?|(time)?steps?|y|(class_)?labels?|sigmas?")
SAYS_KIND = {  # what people call the data of each kind
    "tokens": re.compile(r"text|token|word|caption|question|query|prompt|title|(^|_)ids?$"),
    "image": re.compile(r"image|img|pixel|vision|visual|photo|frame"),
    "signal": re.compile(r"audio|speech|wave|signal|sound"),
    "features": re.compile(r"feat|embed|mel|spec|audio|speech|series"),
}
SEVERAL = 4  # data arguments whose kinds are guessed one by one
TRIALS = 16  # at most so many guesses are tried
IMAGE_SIZES = (32, 64, 224)  # a convolution does not say how large its images are
OWN_LENGTHS = range(2, 1025)  # what a table's rows may be the positions of


Candidate = tuple[str, tuple[str | int, ...], int, int]  # kind, axes, low, high


@checked
def find_inputs(model: nn.Module) -> tuple[tuple[Input, ...], str]:
    """Return what forward takes, or nothing and the reason.

    Layers suggest candidates in the order in which they were registered (an Embedding suggests
    token ids, a Linear suggests features of its width); the first that runs is taken.
    """
    model = uncompiled(model)
    if is_hugging_face(model):
        return inputs_of(model), ""
    if is_lazy(model):
        return (), "it has lazy layers, whose first run decides their sizes; say what it takes"
    names = argument_names(model)
    if not names:
        return (), "its forward names no arguments; say what it takes"
    tried, reason = 0, ""
    for inputs in chain.from_iterable(map(_marked, guesses(model, names))):
        try:
            trial(model, inputs)
        except (Exception, SystemExit) as error:  # a model that raises or exits is still built
            tried, reason = tried + 1, reason or raised(error, 160)  # the first guess is likeliest
        else:
            return with_batch_found(inputs, lambda values: run_quietly(model, values)), ""
    if not tried:
        return (), "no layer of it tells what it takes; say it"
    return (), f"none of {tried} guesses ran (the first: {reason}); say what it takes"


def guesses(model: nn.Module, names: list[str]) -> Iterator[tuple[Input, ...]]:
    """Yield guesses: all arguments alike; then later ones as a number per row, if named so.

    Then come arguments of several kinds, as images and their captions are, and at last the lengths
    of the model's own tables, for one that takes no other length.
    """
    alike = list(islice(product(_candidates(model), _masks(names)), TRIALS))
    free = [tuple(_input(name, candidate, mask) for name in names) for candidate, mask in alike]
    yield from free
    numbers = [name for name in names[1:] if NUMBERS.fullmatch(name)]
    for candidate, mask in alike if numbers else ():
        yield tuple(
            Input(name, "tokens", ("batch",), 0, 10)
            if name in numbers
            else _input(name, candidate, mask)
            for name in names
        )
    yield from _of_several_kinds(model, names)
    for length, inputs in product(_own_lengths(model), free):
        if any("seq" in entry.axes for entry in inputs):
            yield tuple(_at_length(entry, length) for entry in inputs)


def _of_several_kinds(model: nn.Module, names: list[str]) -> Iterator[tuple[Input, ...]]:
    """Yield guesses in which the layers that take the data are not all of one kind."""
    data = [name for name in names if by_name(name) is None]
    candidates = list(_candidates(model))
    if len({kind for kind, *_ in candidates}) < 2 or len(data) > SEVERAL:
        return
    fitting = [
        ([c for c in candidates if _fits(name, c[0])] or candidates)[:TRIALS] for name in data
    ]
    mixed = (p for p in product(*fitting) if len({kind for kind, *_ in p}) > 1)
    for picked in islice(mixed, TRIALS):
        chosen = dict(zip(data, picked, strict=True))
        yield tuple(by_name(name) or Input(name, *chosen[name]) for name in names)


def _fits(name: str, kind: str) -> bool:
    """Return whether an argument's name says that it is of this kind."""
    return bool(SAYS_KIND[kind].search(name.lower()))


def _marked(inputs: tuple[Input, ...]) -> Iterator[tuple[Input, ...]]:
    """Yield the inputs, then with masks that are True, or False, for real tokens."""
    yield inputs
    for real in (True, False) if any(one.kind == "mask" for one in inputs) else ():
        yield tuple(replace(e, real=real) if e.kind == "mask" else e for e in inputs)


def _own_lengths(model: nn.Module) -> list[int]:
    """Return the lengths that a model's tables have: rows of positions, square masks."""
    ours = [m for m in model.modules() if not type(m).__module__.startswith("torch.nn.")]
    tables = chain.from_iterable(
        (*m.parameters(recurse=False), *m.buffers(recurse=False)) for m in ours
    )
    rows = dict.fromkeys(table.shape[-2] for table in tables if table.dim() >= 2)
    return [length for length in rows if length in OWN_LENGTHS][:3]


def _at_length(entry: Input, length: int) -> Input:
    return replace(entry, axes=tuple(length if axis == "seq" else axis for axis in entry.axes))


def _masks(names: list[str]) -> list[tuple[str | int, ...]]:
    """Return the shapes that a required mask may have: over keys, or over pairs."""
    shapes = [("batch", "seq"), ("seq", "seq"), ("batch", 1, 1, "seq")]
    return shapes if any(MASKS.fullmatch(name) for name in names) else shapes[:1]


def _input(name: str, candidate: Candidate, mask: tuple[str | int, ...]) -> Input:
    known = by_name(name)
    if known and MASKS.fullmatch(name):
        return replace(known, axes=mask)
    return known or Input(name, *candidate)


@checked
def by_name(name: str) -> Input | None:
    """Return what an argument is whose name tells that it is no data; None where it may be."""
    if EDGES.fullmatch(name):
        return Input(name, "mask", ("batch", "seq", "seq"))
    if MASKS.fullmatch(name):
        return Input(name, "mask", ("batch", "seq"))
    if PLACES.fullmatch(name):
        return Input(name, "positions", ("seq",))
    if STARTS.fullmatch(name):
        return Input(name, "start", ())
    if LENGTHS.fullmatch(name):
        return Input(name, "lengths", ("batch",))
    return None


@checked
def argument_names(model: nn.Module) -> list[str]:
    """Return the arguments that a call must give; the first one where all have defaults."""
    named = [
        p
        for p in signature_of(model.forward).parameters.values()
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]
    required = [p.name for p in named if p.default is inspect.Parameter.empty]
    return required or [p.name for p in named[:1]]


def _candidates(model: nn.Module) -> Iterator[Candidate]:
    """Yield what each layer would take, without repeats."""
    tokens_first = all(getattr(m, "batch_first", True) for m in model.modules())
    sequence = ("batch", "seq") if tokens_first else ("seq", "batch")
    seen = set()
    for module in model.modules():
        for candidate in _taken_by(module, sequence):
            if candidate not in seen:
                seen.add(candidate)
                yield candidate
    if any(map(is_embedding, model.modules())):
        return
    # Without an Embedding a matrix may be the table that the model's own code looks ids up in.
    for rows in dict.fromkeys(len(p) for p in model.parameters() if p.dim() == 2):
        yield "tokens", sequence, 0, rows


def _taken_by(module: nn.Module, sequence: tuple[str, str]) -> Iterator[Candidate]:
    if is_embedding(module):
        yield "tokens", sequence, 0, len(next(module.parameters()))
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
