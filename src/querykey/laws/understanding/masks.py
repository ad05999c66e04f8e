"""Finding the arguments that hide padding, by their names and by what they do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from querykey.laws.private import is_pretrained
from querykey.laws.run import PLAIN, Inputs
from querykey.laws.runner import Runner
from querykey.laws.trial import deviation
from querykey.laws.understanding.mask_argument import REAL, MaskArgument
from querykey.laws.understanding.mask_evidence import OTHERS, hides_tokens, lowers_scores
from querykey.laws.understanding.mask_inputs import may_hide
from querykey.laws.understanding.signature import MaskInput, length_of

MASKS = re.compile(
    r"^((decoder_|encoder_|cross_)?attention_mask|(\w+_)?(key_)?pad(ding)?_mask|mask|real|valid|"
    r"is_pad(ding)?|(src|source|input|token|context|memory|key|kv)_mask)$"
)
# Names that are masks only if hiding tokens by them is seen to matter.
PERHAPS_MASKS = re.compile(
    r"^((\w+_)?pad(ding)?|(valid|seq|sequence|tok|attn|padded|(non|not|no)_?pad|x|ids?|words?|inputs|"
    r"tokens|sentences?|text|frames?|items?|history|nodes?|atoms?|speech|audio)_mask)$"
)
PADS = re.compile(r"^(\w+_)?(non|not|no|un)?_?pad(s|ded|ding)?(_tokens)?$")  # what else can it be
SAYS_MASK = re.compile(r"\w*mask\w*|\w*valid\w*|real_\w+|\w*lengths")  # names that hide something
ELSEWHERE = re.compile(r"^(src|source|context|memory|encoder|cross|key|kv)_(?!padding)")
COUNTS = re.compile(r"^((\w+_)?(len|length|count|size)s?|(n|num)_\w+)$")  # of real tokens
HIDES = re.compile(r"key_padding_mask|is_pad")  # names by which a 1 marks padding


def _lengths(runner: Runner) -> Iterator[MaskArgument]:
    """Yield every argument that takes the number of real tokens of each row."""
    signature = runner.signature
    for entry in signature.inputs:
        if entry.kind == "lengths" and signature.length_told_by(entry):
            mask = MaskArgument(entry.name, signature.length_told_by(entry), counts="any order")
            inputs = runner.inputs()
            real = signature.all_real(inputs, mask.axis)
            real[0, -3:] = False  # a packed sequence may want the longest row first
            fits = runner.attempt({**inputs, mask.name: mask.value(real)}, PLAIN) is not None
            yield mask if fits else replace(mask, counts="longest first")


def find_masks(runner: Runner) -> Iterator[MaskArgument]:
    """Yield every mask argument with the length it covers and what its True means."""
    signature = runner.signature
    for entry in signature.inputs:
        if isinstance(entry, MaskInput) and entry.told:
            yield entry.told
        elif entry.kind == "mask" and entry.axes[0] == "batch" and len(entry.axes) == 2:
            dtype = torch.bool if isinstance(entry.real, bool) else torch.long
            yield MaskArgument(entry.name, length_of(entry), not entry.real, dtype)
    yield from _lengths(runner)
    inputs = runner.inputs()
    plain = runner.attempt(inputs, PLAIN)
    if plain is None:
        return
    masks: list[MaskArgument] = []  # some arguments exclude each other: the first one is taken
    for name, axes in _names_of_masks(runner):
        mask = _meaning(runner, name, axes, plain)
        if mask is None:
            continue
        together = inputs
        for earlier in masks:
            together = _passed(runner, together, earlier)
        if runner.attempt(_passed(runner, together, mask), PLAIN) is not None:
            masks.append(mask)
            yield mask


def _hides(runner: Runner, inputs: Inputs, mask: MaskArgument, plain: torch.Tensor) -> bool:
    """Return whether a mask changes nothing where all is real, and hides tokens where not."""
    answer = runner.attempt(_passed(runner, inputs, mask), PLAIN)
    if answer is None or not deviation(plain, answer)[0] < runner.facts.threshold:
        return False
    return hides_tokens(runner, inputs, mask)


def _other_forms(name: str, axes: Iterable[str]) -> Iterator[MaskArgument]:
    """Yield masks of four axes, those that are added to scores, and numbers of real tokens."""
    for axis in axes:
        if COUNTS.match(name):
            yield MaskArgument(name, axis, counts="any order")
            continue
        for form in ("keys", "pairs"):
            for dtype in (torch.bool, torch.float64):
                yield MaskArgument(name, axis, False, dtype, form=form)
        if not REAL.search(name):
            yield MaskArgument(name, axis, True, torch.bool, form="keys")


def _may_hide(parameter: inspect.Parameter) -> bool:
    """Return whether an argument of an unknown name may be a mask, by its default and its type."""
    annotation = str(parameter.annotation)
    plain = re.search(r"bool|int|float|str\b|list|dict", annotation, re.I)
    typed = "Tensor" in annotation or not plain
    return parameter.default is None and typed and not OTHERS.fullmatch(parameter.name)


def find_idle(runner: Runner, masks: Iterable[MaskArgument]) -> Iterator[str]:
    """Yield the arguments by which nothing that was tried is hidden, though they are masks.

    They are called so, or some scores are filled where they hide tokens, and then not used.
    """
    inputs, known = runner.inputs(), {mask.name for mask in masks}
    plain = runner.attempt(inputs, PLAIN)
    if plain is None or is_pretrained(runner.copies.model):
        return
    required = ((e.name, [length_of(e)]) for e in runner.signature.inputs if may_hide(runner, e))
    for name, axes in (*_names_of_masks(runner), *required):
        if name in known or OTHERS.fullmatch(name):
            continue
        options = [*_meanings(name, axes, False), *_other_forms(name, axes)]
        tables = (m for m in options if not m.dtype.is_floating_point)  # which hold low numbers
        told = SAYS_MASK.fullmatch(name)
        if not told and not any(lowers_scores(runner, inputs, mask) for mask in tables):
            continue
        moved = [_moved(runner, inputs, mask, plain) for mask in options]
        if any(far is not None for far in moved) and not any(moved):
            yield name


def find_contrary(runner: Runner, masks: Iterable[MaskArgument]) -> Iterator[str]:
    """Yield the masks in which a 1 marks padding by their name, and which hide what a 0 marks."""
    inputs = runner.inputs()
    for mask in masks:
        if not HIDES.search(mask.name) or not mask.hides or hides_tokens(runner, inputs, mask):
            continue
        if hides_tokens(runner, inputs, replace(mask, hides=False)):
            yield mask.name


def _moved(runner: Runner, inputs: Inputs, mask: MaskArgument, plain: Any) -> bool | None:
    """Return whether a mask that hides two tokens moves the answer; None where it does not run."""
    real = runner.signature.all_real(inputs, mask.axis)
    real[:, 1:3] = False
    hidden = runner.attempt({**inputs, mask.name: mask.value(real)}, PLAIN)
    return None if hidden is None else not torch.equal(plain, hidden)


def _names_of_masks(runner: Runner) -> Iterator[tuple[str, list[str]]]:
    """Yield the arguments that may be masks, each with the lengths that it may cover.

    Those whose name tells come first, then those of any name, but in models of transformers, whose
    names are known.
    """
    signature, padding = runner.signature, runner.subject.padding
    lengths = dict.fromkeys(length_of(entry) for entry in signature.inputs if length_of(entry))
    taken = {entry.name for entry in signature.inputs}
    for name in runner.copies.parameters:
        wanted = (
            name == padding if padding else bool(MASKS.match(name) or PERHAPS_MASKS.match(name))
        )
        elsewhere = name.startswith(("encoder_", "cross_")) and len(lengths) < 2
        if wanted and not elsewhere and name not in taken:
            taken.add(name)
            yield name, _nearest(runner, name, lengths)
    if padding or not lengths or is_pretrained(runner.copies.model):
        return
    for name, parameter in runner.copies.parameters.items():
        if name not in taken and _may_hide(parameter):
            yield name, _nearest(runner, name, lengths)


def _meaning(
    runner: Runner, name: str, axes: list[str], plain: torch.Tensor
) -> MaskArgument | None:
    """Return the likeliest meaning of a mask argument, or None where no meaning fits.

    A meaning by which all tokens are real must change nothing, and hiding tokens must matter.
    Where the name or the owner settles the meaning, it only has to run.
    """
    inputs, by_owner = runner.inputs(), runner.subject.padding is not None
    options = list(_meanings(name, axes, by_owner))
    answers = [(m, runner.attempt(_passed(runner, inputs, m), PLAIN)) for m in options]
    fits = [(mask, answer) for mask, answer in answers if answer is not None]
    neutral = [m for m, answer in fits if deviation(plain, answer)[0] < runner.facts.threshold]
    used = [mask for mask in neutral if _has_effect(runner, inputs, mask, plain)]
    if not used:  # nothing of two axes hides anything
        others = [m for m in _other_forms(name, axes) if _hides(runner, inputs, m, plain)]
        if others:
            return others[0]
    if not by_owner and not MASKS.match(name) and (used or not PADS.match(name)):
        told, says = PERHAPS_MASKS.match(name) or PADS.match(name), name.endswith(("mask", "masks"))
        for mask in used:
            # What is called a mask may still count what it hides, and padding.right tells of it.
            if told or hides_tokens(runner, inputs, mask):
                return mask
            if says and _ignores_hidden(runner, inputs, mask):
                return mask
        return None
    settled = [mask for mask, _ in fits if by_owner or REAL.search(name) or HIDES.search(name)]
    settled.sort(key=lambda mask: mask not in used)
    blind = [mask for mask, _ in fits if _ignores_hidden(runner, inputs, mask)]
    return next(iter(settled or used or neutral or blind), None)


def _nearest(runner: Runner, name: str, axes: Iterable[str]) -> list[str]:
    """Return the lengths that a mask may cover; that of the input which its name has in common
    comes first."""
    first = name.split("_")[0]
    signature = runner.signature
    named = [length_of(entry) for entry in signature.inputs if entry.name.startswith(first)]
    near = [axis for axis in axes if ELSEWHERE.match(name) and axis != signature.axis]
    return list(dict.fromkeys(axis for axis in [*named, *near, *axes] if axis))


def _meanings(name: str, axes: Iterable[str], by_owner: bool) -> Iterator[MaskArgument]:
    """Yield what a mask argument may mean: the length it covers, its dtype, and what a 1 says."""
    for axis in axes:
        for dtype in (torch.long, torch.bool) if by_owner or not HIDES.search(name) else ():
            yield MaskArgument(name, axis, False, dtype)
        if not by_owner and not REAL.search(name):
            yield MaskArgument(name, axis, True, torch.bool)


def _passed(runner: Runner, inputs: Inputs, mask: MaskArgument) -> Inputs:
    """Return inputs with a mask by which all tokens are real."""
    return {**inputs, mask.name: mask.value(runner.signature.all_real(inputs, mask.axis))}


def _has_effect(runner: Runner, inputs: Inputs, mask: MaskArgument, plain: Any) -> bool:
    """Return whether hiding two early tokens changes the answer."""
    real = runner.signature.all_real(inputs, mask.axis)
    real[:, 1:3] = False
    hidden = runner.attempt({**inputs, mask.name: mask.value(real)}, PLAIN)
    return hidden is not None and deviation(plain, hidden)[0] > runner.facts.threshold


def _ignores_hidden(runner: Runner, inputs: Inputs, mask: MaskArgument) -> bool:
    """Return whether three late hidden tokens do not matter to the others, and those do.

    A mask that is read the wrong way round hides all others, and then nothing matters to them.
    """
    real = runner.signature.all_real(inputs, mask.axis)
    real[:, -3:] = False
    hiding = {mask.name: mask.value(real)}
    other = runner.inputs(seed=1)
    late, early = (
        runner.signature.with_other(inputs, other, places, mask.axis) for places in (~real, real)
    )
    answers = [runner.attempt({**i, **hiding}, PLAIN) for i in (inputs, late, early)]
    if any(answer is None or not answer.isfinite().all() for answer in answers):
        return False
    stop = -3 if mask.axis == runner.signature.axis else None
    before, *after = (answer[:, :stop] for answer in answers if answer is not None)
    unmoved, moved = (deviation(before, answer)[0] for answer in after)
    return unmoved < runner.facts.threshold <= moved
