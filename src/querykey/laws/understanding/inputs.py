"""Finding out what a model takes and gives, by running it with inputs of several sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from querykey.laws.run import PLAIN
from querykey.laws.subject import Subject
from querykey.laws.understanding.copies import CopyRecipe, ModelCopies
from querykey.laws.understanding.float64 import duplicate
from querykey.laws.understanding.mask_inputs import mask_of_example, tellings
from querykey.laws.understanding.outputs import Slot, answers, locate, tensors
from querykey.laws.understanding.signature import LENGTHS, CallSignature, length_of
from querykey.laws.understanding.snapshot import Snapshot
from querykey.targets import Input, find_inputs
from querykey.words import a_type, raised

DATA = ("tokens", "features", "image", "signal")
SAYING = "with --input NAME=KIND(AXIS, ...), or an example in Python"
ALONE = 32  # the one length at which a model is tried whose answers follow none
LENGTHS_OF_ROWS = re.compile(r"(\w+_)?(len|length)s?")
ECHOES = re.compile(r"^(targets?|labels?|y)$")


class UnfitError(Exception):
    """One sentence: why a model cannot be run, so that no law can be tried."""

    verdict = "error"


class UnsuitedError(UnfitError):
    """One sentence: why no law can be tried on a model although it runs."""

    verdict = "not-applicable"


def find_signature(subject: Subject, seed: int) -> tuple[ModelCopies, CallSignature]:
    """Return copies in the widest precision that the model takes, and what it takes and gives.

    An UnfitError says why a model cannot be run.
    """
    last = UnfitError("it was not run")
    for wide in (True, False):
        copies = ModelCopies(subject, CopyRecipe(seed, wide))
        try:
            return copies, _signature(copies)
        except UnfitError as error:
            last = error
    raise last


def _signature(copies: ModelCopies) -> CallSignature:
    """Return what the model takes and gives, by the first grouping of lengths that runs."""
    inputs = _inputs(copies)
    reason, cause = "it was not run", None
    for grouped in chain.from_iterable(tellings(g) for g in _groupings(inputs)):
        try:
            signature = _located(copies, grouped)
        except Exception as error:
            reason, cause = f"forward raised {raised(error, 200)}", error
            continue
        if signature is not None:
            return signature
        reason = (
            "its output holds no floating tensor with a batch axis; check a model that returns "
            "scores or hidden states, and not only a loss"
        )
    if kept := _at_own_lengths(copies, inputs):
        with suppress(Exception):
            if signature := _located(copies, kept):
                return signature
    raise UnfitError(reason) from cause


def _inputs(copies: ModelCopies) -> tuple[Input, ...]:
    """Return the inputs that the owner's example shows, or those that the model requires."""
    if copies.subject.example is not None:
        described = tuple(_described(copies, copies.subject.example))
        if not described:
            raise UnfitError("the example holds no tensor; give one for every input")
        return described
    if copies.subject.forward is not copies.model:
        return tuple(_of_function(copies))
    try:
        inputs, why = _found(copies.model)
    except Exception as error:
        raise UnfitError(f"it cannot be copied and run: {raised(error, 200)}") from error
    if not inputs:
        raise UnfitError(f"no input can be made up: {why} {SAYING}")
    return tuple(entry for entry in inputs if entry.required)


def _found(model: nn.Module) -> tuple[tuple[Input, ...], str]:
    """Return what a model takes, found on a copy; what its calls leave behind is undone."""
    copied = duplicate(model, wide=False)
    snapshot = Snapshot(copied)  # its classes and files keep things, too
    try:
        return find_inputs(copied)
    finally:
        snapshot.restore()


def _of_function(copies: ModelCopies) -> Iterator[Input]:
    """Describe the inputs of a function around a model: the model's own under other names."""
    inputs, why = _found(copies.model)
    names = [n for n, p in copies.parameters.items() if p.default is p.empty]
    if not inputs:
        raise UnfitError(f"no input can be made up: {why} {SAYING}")
    for index, name in enumerate(names):
        yield replace(inputs[min(index, len(inputs) - 1)], name=name)


def _described(copies: ModelCopies, example: Any) -> Iterator[Input]:
    """Describe an example's tensors as inputs whose batch and length are free."""
    if isinstance(example, torch.Tensor):
        example = (example,)
    if not isinstance(example, Mapping | Sequence) or isinstance(example, str):
        raise UnfitError(
            "an example is a tensor, or a tuple or a dict of the tensors of one call, not "
            f"{a_type(example)}"
        )
    if not isinstance(example, Mapping):
        names = [n for n, p in copies.parameters.items() if p.kind is not p.VAR_POSITIONAL]
        names += [f"argument_{i}" for i in range(len(names), len(example))]
        example = dict(zip(names, example, strict=False))
    words = [m.num_embeddings for m in copies.model.modules() if isinstance(m, nn.Embedding)]
    lengths: dict[int, str] = {}
    for name, value in example.items():
        if isinstance(value, Input):
            yield value
            continue
        if not isinstance(value, torch.Tensor):
            if any(True for _ in tensors(value)):
                raise UnfitError(
                    f"the example's `{name}` holds its tensors inside {a_type(value)}; "
                    f"check a function that takes every tensor by itself and joins them, as "
                    f'Subject(lambda ids: model({{"ids": ids}}), example=ids)'
                )
            continue
        parameter = copies.parameters.get(name)
        optional = parameter is not None and parameter.default is None
        if mask := mask_of_example(name, value, lengths, optional):
            if mask.required:
                yield mask
            continue
        shape = tuple(value.shape)
        if value.dim() == 3 and value.is_floating_point() and _channels_first(copies.model, shape):
            shape = ("batch", shape[1], lengths.setdefault(shape[2], "seq"))
        elif value.dim() >= 2 and value.dim() != 4:
            free = ["seq", "target_seq", "third_seq"][min(len(lengths), 2)]
            shape = ("batch", lengths.setdefault(shape[1], free), *shape[2:])
        elif shape:
            shape = ("batch", *shape[1:])
        if _counts(value, lengths):
            yield Input(name, "positions", (lengths[len(value)],))
        elif value.dim() == 1 and not value.is_floating_point() and LENGTHS_OF_ROWS.fullmatch(name):
            yield Input(name, "lengths", ("batch",))
        elif value.dtype is torch.bool or ("mask" in name and not value.is_floating_point()):
            most = value.numel() == 0 or bool(value.bool().float().mean() >= 0.5)
            real = most if value.dtype is torch.bool else int(most)
            yield Input(name, "mask", shape, real=real)
        elif value.is_floating_point():
            yield Input(name, "image" if value.dim() == 4 else "features", shape)
        else:
            yield Input(name, "tokens", shape, 0, words[0] if words else int(value.max()) + 1)


def _counts(value: torch.Tensor, lengths: Mapping[int, str]) -> bool:
    """Return whether an example numbers the positions of an input before it: 0, 1, 2, ..."""
    if value.dim() != 1 or value.is_floating_point() or len(value) not in lengths:
        return False
    return torch.equal(value.cpu().long(), torch.arange(len(value)))


def _channels_first(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether (batch, channels, time) fits a model's first convolution."""
    first = next((m for m in model.modules() if isinstance(m, nn.Conv1d | nn.Linear)), None)
    taken = first.in_channels if isinstance(first, nn.Conv1d) else None
    return taken == shape[1] != shape[2]


def _groupings(inputs: tuple[Input, ...]) -> Iterator[tuple[Input, ...]]:
    """Yield guesses of which inputs share a length.

    Lengths that already differ are taken as they are. Otherwise every input gets a length of its
    own, then those whose names begin alike share one, then all but the first, then all.
    """
    data = [entry for entry in inputs if entry.kind in DATA]
    settled = len({length_of(entry) for entry in inputs}) > 1 or len(data) == 1
    if not settled:
        free = ("seq", "target_seq", "third_seq")
        if len(inputs) <= 3:
            yield tuple(_renamed(entry, free[i]) for i, entry in enumerate(inputs))
        first = list(dict.fromkeys(entry.name.split("_")[0] for entry in inputs))
        if 1 < len(first) <= len(free) and len(first) < len(inputs):  # src, tgt, src_m, tgt_m
            yield tuple(_renamed(e, free[first.index(e.name.split("_")[0])]) for e in inputs)
        yield tuple(_renamed(entry, free[min(i, 1)]) for i, entry in enumerate(inputs))
    yield inputs


def _at_own_lengths(copies: ModelCopies, inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """Return the inputs at the example's own lengths, where answers follow no length.

    Such a model takes no other length, or answers at every fourth position: its rows can be tried.
    """
    if not any(length_of(entry) for entry in inputs):
        return ()
    values = [value for _, value in tensors(copies.subject.example)]
    sizes = [tuple(v.shape) for v in values] or [(ALONE,) * len(e.axes) for e in inputs]
    if len(sizes) != len(inputs):
        return ()
    return tuple(
        replace(
            entry,
            axes=tuple(n if a in LENGTHS else a for a, n in zip(entry.axes, shape, strict=True)),
        )
        for entry, shape in zip(inputs, sizes, strict=True)
    )


def _renamed(entry: Input, length: str) -> Input:
    return replace(entry, axes=tuple(length if a == "seq" else a for a in entry.axes))


def _located(copies: ModelCopies, inputs: tuple[Input, ...]) -> CallSignature | None:
    """Vary the batch and each length in turn, and see which axes of the output follow."""
    echoes = [None, *(n for n in copies.parameters if ECHOES.match(n))]
    names = {entry.name for entry in inputs}
    pooled: list[CallSignature] = []
    for echo in (e for e in echoes if e not in names):
        if echo and inputs[0].kind != "tokens":
            continue
        signature = CallSignature(inputs, inputs[0], Slot((), None, None), echo=echo)
        try:
            candidates = list(_candidates(copies, signature))
        except Exception:
            if echo is None:
                raise
            continue
        ranked = [candidate for _, candidate in sorted(candidates, key=lambda pair: pair[0])]
        placed = [candidate for candidate in ranked if candidate.sequential]
        if placed:
            main = placed[0].main
            return replace(placed[0], more=tuple(s.slot for s in placed[1:] if s.main is main))
        pooled += [candidate for _, candidate in candidates if candidate.slot.batch is not None]
    return pooled[0] if pooled else None


def _candidates(
    copies: ModelCopies, signature: CallSignature
) -> Iterator[tuple[int, CallSignature]]:
    """Yield (rank in the output, signature) for every part of the output that may be the answer."""
    axes = [a for a in LENGTHS if any(a in entry.axes for entry in signature.inputs)]
    # The last length first: an encoder-decoder answers at the decoder's positions.
    for axis in reversed(axes) if axes else [""]:
        mains = [e for e in signature.inputs if length_of(e) == axis and e.kind in DATA]
        if mains:
            for rank, slot in _slots(copies, replace(signature, main=mains[0]), axis):
                yield rank, replace(signature, main=mains[0], slot=slot)


def _slots(copies: ModelCopies, signature: CallSignature, axis: str) -> list[tuple[int, Slot]]:
    """Return the outputs whose axes follow the batch and this length, with their ranks."""
    sizes = [(2, 7), (3, 7), (2, 12)]
    if not axis:
        fixed = next((a for a in signature.main.axes[1:] if isinstance(a, int)), 7)
        own = (
            fixed if signature.main.kind == "tokens" and fixed > 1 else 7
        )  # one answer for each may come
        sizes = [(2, own), (3, own), (2, own)]
    shapes = []
    for batch, length in sizes:
        lengths = {axis: length} if axis else {}
        inputs = signature.draw(batch, lengths, 0, copies.dtype)
        copies.reset(PLAIN)
        with torch.no_grad():
            output = copies.call(inputs, PLAIN)
        shapes.append({path: tuple(t.shape) for path, t in answers(output)})
    if not axis:
        shapes[2] = shapes[0]
    return [(list(shapes[0]).index(slot.path), slot) for slot in locate(shapes, sizes)]
