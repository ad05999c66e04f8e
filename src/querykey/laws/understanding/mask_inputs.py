"""Masks that a call must give: what they look like, and what a 1 in them says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from querykey.laws.runner import Runner
from querykey.laws.understanding.mask_argument import MaskArgument
from querykey.laws.understanding.mask_evidence import OTHERS, hides_tokens
from querykey.laws.understanding.signature import CallSignature, MaskInput, length_of
from querykey.targets import Input


def tellings(inputs: tuple[Input, ...]) -> Iterator[tuple[Input, ...]]:
    """Yield the inputs with their masks as they are, as booleans, and as booleans of padding."""
    yield inputs
    if any(_is_mask(entry) and type(entry.real) is int for entry in inputs):
        for real in (True, False):
            yield tuple(replace(e, real=real) if _is_mask(e) else e for e in inputs)


def with_meanings(runner: Runner) -> CallSignature:
    """Return the signature with every required mask read as trying shows that it is meant."""
    signature = runner.signature
    for entry in signature.inputs:
        if may_hide(runner, entry):
            options = [replace(entry, kind="mask", real=real) for real in (1, True, False)]
        elif _is_mask(entry):
            options = [entry, *(replace(entry, real=real) for real in (True, False))]
        else:
            continue
        for option in options:
            if _hides(runner, signature, entry, option):
                signature = _replaced(signature, entry, option)
                break
    return signature


def mask_of_example(
    name: str, value: torch.Tensor, lengths: Mapping[int, str], optional: bool
) -> Input | None:
    """Return the mask that a tensor of an example is, or None where it is none.

    One that may be left out is left out: what it means is found by trying.
    """
    axis = lengths.get(value.shape[-1] if value.dim() else 0)
    if value.dim() != 4 or not axis or value.shape[1] != 1:
        return None
    if value.shape[2] != 1 and not optional:
        return None  # pairs that must be given: nothing but its owner knows which
    told = MaskArgument(name, axis, False, value.dtype, form="keys")
    return MaskInput(name, "mask", ("batch", 1, 1, axis), required=not optional, told=told)


def may_hide(runner: Runner, entry: Input) -> bool:
    """Return whether an input of whole numbers beside the ids may be a mask of any name."""
    alike = [e for e in runner.signature.inputs if length_of(e) == length_of(entry)]
    beside = bool(length_of(entry)) and entry not in (runner.signature.main, alike[0])
    small = entry.kind == "tokens" and len(entry.axes) == 2 and entry.axes[0] == "batch"
    return bool(small and beside and not OTHERS.fullmatch(entry.name))


def _is_mask(entry: Input) -> bool:
    return entry.kind == "mask" and entry.axes[0] == "batch" and len(entry.axes) == 2


def _replaced(signature: CallSignature, entry: Input, option: Input) -> CallSignature:
    inputs = tuple(option if e is entry else e for e in signature.inputs)
    return replace(signature, inputs=inputs)


def _hides(runner: Runner, signature: CallSignature, entry: Input, option: Input) -> bool:
    """Return whether tokens are hidden by a mask that is read in this way."""
    signature = _replaced(signature, entry, option)
    trying = replace(runner, facts=replace(runner.facts, signature=signature), drawn={}, answers={})
    dtype = torch.bool if isinstance(option.real, bool) else torch.long
    mask = MaskArgument(option.name, length_of(option), not option.real, dtype)
    return hides_tokens(trying, trying.inputs(), mask)
