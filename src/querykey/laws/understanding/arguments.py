"""Finding out by trying what a model's optional arguments mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from querykey.laws.run import PLAIN, Inputs, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import deviation
from querykey.laws.understanding.copies import backends_of
from querykey.laws.understanding.facts import (
    REAL,
    MaskArgument,
    OptionalArguments,
    PositionArgument,
)
from querykey.laws.understanding.padding_ids import find_padding_ids
from querykey.laws.understanding.signature import length_of

MASKS = re.compile(
    r"^((decoder_|encoder_|cross_)?attention_mask|(\w+_)?(key_)?pad(ding)?_mask|mask|real|valid|"
    r"is_pad(ding)?|(src|source|input|token|context|memory|key|kv)_mask)$"
)
# Names that are masks only if hiding tokens by them is seen to matter.
PERHAPS_MASKS = re.compile(
    r"^((\w+_)?pad(ding)?|(valid|seq|sequence|tok|attn|padded|(non|not|no)_?pad|x|ids?|words?|inputs|"
    r"tokens|sentences?|text|frames?|items?|history|nodes?|atoms?|speech|audio)_mask)$"
)
ELSEWHERE = re.compile(r"^(src|source|context|memory|encoder|cross|key|kv)_(?!padding)")
HIDES = re.compile(r"key_padding_mask|is_pad")  # names by which a 1 marks padding
POSITIONS = re.compile(r"^(position_?ids|positions?|pos|pos_ids|decoder_position_ids)$")
TOGGLES = re.compile(r"_?(use_|is_)?(flash|sdpa|fused|efficient)(_?(attn|attention|sdpa|kernel))?")
FUSED = "scaled_dot_product_attention"
FLAGS = re.compile(r"^(use|return)_(cache|state|kv|past)s?$")


def find_arguments(runner: Runner) -> OptionalArguments:
    """Return the optional arguments whose meaning trying them shows."""
    masks = tuple(_masks(runner))
    return OptionalArguments(
        masks,
        _positions(runner),
        _embeds(runner),
        tuple(name for name in runner.copies.parameters if FLAGS.match(name)),
        _implementations(runner),
        tuple(find_padding_ids(runner, masks)),
    )


def _lengths(runner: Runner) -> Iterator[MaskArgument]:
    """Yield every argument that takes the number of real tokens of each row."""
    signature = runner.signature
    for entry in signature.inputs:
        if entry.kind == "lengths":
            mask = MaskArgument(entry.name, signature.length_told_by(entry), counts="any order")
            inputs = runner.inputs()
            real = signature.all_real(inputs, mask.axis)
            real[0, -3:] = False  # a packed sequence may want the longest row first
            fits = runner.attempt({**inputs, mask.name: mask.value(real)}, PLAIN) is not None
            yield mask if fits else replace(mask, counts="longest first")


def _masks(runner: Runner) -> Iterator[MaskArgument]:
    """Yield every mask argument with the length it covers and what its True means."""
    signature = runner.signature
    for entry in signature.inputs:
        if entry.kind == "mask" and entry.axes[0] == "batch" and len(entry.axes) == 2:
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


def _names_of_masks(runner: Runner) -> Iterator[tuple[str, list[str]]]:
    """Yield the arguments that may be masks, each with the lengths that it may cover."""
    signature, padding = runner.signature, runner.subject.padding
    lengths = dict.fromkeys(length_of(entry) for entry in signature.inputs if length_of(entry))
    taken = {entry.name for entry in signature.inputs}
    for name in runner.copies.parameters:
        wanted = (
            name == padding if padding else bool(MASKS.match(name) or PERHAPS_MASKS.match(name))
        )
        elsewhere = name.startswith(("encoder_", "cross_")) and len(lengths) < 2
        if wanted and not elsewhere and name not in taken:
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
    if not by_owner and not MASKS.match(name):
        return next(iter(used), None)
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
    """Return whether the content of three late hidden tokens does not matter to the others."""
    real = runner.signature.all_real(inputs, mask.axis)
    real[:, -3:] = False
    hiding = {mask.name: mask.value(real)}
    changed = runner.signature.with_other(inputs, runner.inputs(seed=1), ~real, mask.axis)
    before, after = (runner.attempt({**i, **hiding}, PLAIN) for i in (inputs, changed))
    if before is None or after is None or not before.isfinite().all():
        return False
    stop = before.shape[1] - 3 if mask.axis == runner.signature.axis else None
    return deviation(before[:, :stop], after[:, :stop])[0] < runner.facts.threshold


def _positions(runner: Runner) -> PositionArgument | None:
    """Return the position argument that changes nothing when it counts from its first position."""
    setting = PLAIN
    inputs = runner.inputs(setting)
    names = [n for n in runner.copies.parameters if POSITIONS.match(n) and n not in inputs]
    if not names or not runner.signature.axis:
        return None
    plain = runner.attempt(inputs, setting)
    count = torch.arange(runner.signature.length_of(inputs)).expand(setting.batch, -1)
    for name in names:
        for offset in (0, 1, 2, 3):
            for batched in (True, False):
                argument = PositionArgument(name, offset, batched)
                answer = runner.attempt({**inputs, name: argument.value(count)}, setting)
                if plain is None or answer is None:
                    continue
                if deviation(plain, answer)[0] < runner.facts.threshold:
                    return argument
    return None


def _embeds(runner: Runner) -> str | None:
    """Return the argument that takes embeddings in place of ids, where both give one answer."""
    prefix = "decoder_" if runner.signature.main.name.startswith("decoder_") else ""
    name = f"{prefix}inputs_embeds"
    if name not in runner.copies.parameters or runner.signature.echo:
        return None
    trying = runner.learning(replace(runner.facts, arguments=OptionalArguments(embeds=name)))
    inputs = runner.inputs()
    ids, embeds = (trying.attempt(inputs, Setting(embeds=embeds)) for embeds in (False, True))
    if ids is None or embeds is None:
        return None
    return name if deviation(ids, embeds)[0] < runner.facts.threshold else None


def _toggles(runner: Runner) -> Iterator[str]:
    """Yield attributes, turned round, that choose between torch's fused attention and other code.

    They count only where turning them brings the fused operation in, or does away with it.
    """
    held = dict.fromkeys(
        (name, value)
        for module in runner.copies.of().modules()
        for name, value in vars(module).items()
        if isinstance(value, bool) and TOGGLES.fullmatch(name)
    )
    for name, value in held:
        if (name, not value) in held:
            continue
        functions = []
        for setting in (PLAIN, Setting(attention=f"{name}={not value}")):
            copies = replace(runner.copies, functions=set())
            trying = replace(runner, copies=copies, answers={})
            ran = trying.attempt(runner.inputs(), setting) is not None
            functions.append(FUSED in copies.functions if ran else None)
        if None not in functions and functions[0] != functions[1]:
            yield f"{name}={not value}"


def _implementations(runner: Runner) -> tuple[str, ...]:
    """Return the implementations of attention that the model can switch between."""
    model: Any = runner.copies.of()
    ours = dict.fromkeys(name for module in model.modules() for name in backends_of(module))
    if not ours and not hasattr(model, "set_attn_implementation"):
        return ("math", *_toggles(runner))
    inputs = runner.inputs()
    names = ours or ("eager", "sdpa")
    return tuple(n for n in names if runner.attempt(inputs, Setting(attention=n)) is not None)
