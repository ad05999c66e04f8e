"""Finding out by trying what a model's optional arguments mean."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from querykey.laws.runner import MaskArgument, PositionArgument, Specimen
from querykey.laws.trial import Run, deviation
from querykey.laws.understanding.copies import Bench, Inputs, Setting, backends_of
from querykey.laws.understanding.signature import Anatomy, length_of

MASKS = re.compile(
    r"^((decoder_|encoder_|cross_)?attention_mask|(\w+_)?(key_)?pad(ding)?_mask|mask|real|valid|"
    r"is_pad(ding)?|(src|source|input|token|context|memory|key|kv)_mask)$"
)
ELSEWHERE = re.compile(r"^(src|source|context|memory|encoder|cross|key|kv)_(?!padding)")
REAL = re.compile(r"attention_mask|real|valid")  # names whose meaning is settled: 1 is real
HIDES = re.compile(r"key_padding_mask|is_pad")  # and those whose 1 is padding
POSITIONS = re.compile(r"^(position_?ids|positions?|pos|pos_ids|decoder_position_ids)$")
FLAGS = re.compile(r"^(use|return)_(cache|state|kv|past)s?$")
SPANS = re.compile(
    r".*(window|chunk|block_size|bucket_size|stride|local|span)s?(_size|_len(gth)?)?"
)


def examine(bench: Bench, anatomy: Anatomy) -> Specimen:
    """Everything but the cache and whether it is causal."""
    specimen = Specimen(bench, anatomy)
    specimen.floor = measure_floor(specimen)
    specimen.masks = tuple(_masks(specimen))
    specimen.positions = _positions(specimen)
    specimen.embeds = _embeds(specimen)
    specimen.flags = tuple(name for name in bench.parameters if FLAGS.match(name))
    specimen.implementations = _implementations(specimen)
    specimen.spans = tuple(_spans(bench.model))
    return specimen


def measure_floor(specimen: Specimen) -> float:
    """How far rounding alone moves the answer: the same rows run twice over in one batch."""
    setting = Setting()
    inputs = specimen.inputs(setting)
    doubled = specimen.take_rows(inputs, [*range(setting.batch)] * 2)
    with torch.no_grad():
        once, twice = (specimen.answer(Run(i, setting)) for i in (inputs, doubled))
    return min(deviation(once, twice[: len(once)])[0], 1.0)


def attempt(specimen: Specimen, inputs: Inputs, setting: Setting) -> torch.Tensor | None:
    """An answer, or None where the call fails."""
    try:
        return specimen.remembered(Run(inputs, setting))
    except Exception:
        return None


def _masks(specimen: Specimen) -> Iterator[MaskArgument]:
    """Each mask argument with the length it covers and what its True means."""
    anatomy, said = specimen.anatomy, specimen.bench.subject.padding
    setting = Setting()
    inputs = specimen.inputs(setting)
    for each in anatomy.inputs:
        if each.kind == "mask" and each.axes[0] == "batch" and len(each.axes) == 2:
            yield MaskArgument(each.name, length_of(each))
    taken = {each.name for each in anatomy.inputs}
    plain = attempt(specimen, inputs, setting)
    found: list[MaskArgument] = []  # some exclude each other: the first is taken
    axes = dict.fromkeys([length_of(each) for each in anatomy.inputs if length_of(each)])
    for name in specimen.bench.parameters:
        wanted = name == said if said else bool(MASKS.match(name))
        elsewhere = name.startswith(("encoder_", "cross_")) and len(axes) < 2
        if not wanted or elsewhere or name in taken or plain is None:
            continue
        options = list(_meanings(name, _nearest(specimen, name, axes), said is not None))
        fits = [(m, attempt(specimen, _given(specimen, inputs, m), setting)) for m in options]
        fits = [(m, answer) for m, answer in fits if answer is not None]
        neutral = [m for m, a in fits if deviation(plain, a)[0] < specimen.threshold]
        used = [m for m in neutral if _has_effect(specimen, inputs, m, plain)]
        settled = [m for m, _ in fits if said or REAL.search(name) or HIDES.search(name)]
        settled.sort(key=lambda m: m not in used)
        blind = [m for m, _ in fits if _ignores_hidden(specimen, inputs, m)]
        chosen = settled or used or neutral or blind
        both = {**inputs, **{m.name: m.value(specimen.all_real(inputs, m.axis)) for m in found}}
        if chosen and attempt(specimen, _given(specimen, both, chosen[0]), setting) is not None:
            found.append(chosen[0])
            yield chosen[0]


def _nearest(specimen: Specimen, name: str, axes: Iterable[str]) -> list[str]:
    """The lengths that a mask may cover, that of the input which its name speaks of first."""
    first = name.split("_")[0]
    named = [length_of(each) for each in specimen.anatomy.inputs if each.name.startswith(first)]
    near = [axis for axis in axes if ELSEWHERE.match(name) and axis != specimen.anatomy.axis]
    return list(dict.fromkeys(axis for axis in [*named, *near, *axes] if axis))


def _meanings(name: str, axes: Iterable[str], said: bool) -> Iterator[MaskArgument]:
    for axis in axes:
        for dtype in (torch.long, torch.bool) if said or not HIDES.search(name) else ():
            yield MaskArgument(name, axis, False, dtype)
        if not said and not REAL.search(name):
            yield MaskArgument(name, axis, True, torch.bool)


def _given(specimen: Specimen, inputs: Inputs, mask: MaskArgument) -> Inputs:
    return {**inputs, mask.name: mask.value(specimen.all_real(inputs, mask.axis))}


def _has_effect(specimen: Specimen, inputs: Inputs, mask: MaskArgument, plain: Any) -> bool:
    """Whether hiding two early tokens changes anything."""
    real = specimen.all_real(inputs, mask.axis)
    real[:, 1:3] = False
    hidden = attempt(specimen, {**inputs, mask.name: mask.value(real)}, Setting())
    return hidden is not None and deviation(plain, hidden)[0] > specimen.threshold


def _ignores_hidden(specimen: Specimen, inputs: Inputs, mask: MaskArgument) -> bool:
    """Whether the content of two late hidden tokens does not matter to the others."""
    real = specimen.all_real(inputs, mask.axis)
    real[:, -3:] = False
    given = {mask.name: mask.value(real)}
    other = specimen.with_other(inputs, specimen.inputs(Setting(), seed=1), ~real, mask.axis)
    both = [attempt(specimen, {**i, **given}, Setting()) for i in (inputs, other)]
    if both[0] is None or both[1] is None or not both[0].isfinite().all():
        return False
    stop = both[0].shape[1] - 3 if mask.axis == specimen.anatomy.axis else None
    return deviation(both[0][:, :stop], both[1][:, :stop])[0] < specimen.threshold


def _positions(specimen: Specimen) -> PositionArgument | None:
    """The position argument that changes nothing when it counts from its own first position."""
    setting = Setting()
    inputs = specimen.inputs(setting)
    names = [n for n in specimen.bench.parameters if POSITIONS.match(n) and n not in inputs]
    if not names or not specimen.anatomy.axis:
        return None
    plain = attempt(specimen, inputs, setting)
    count = torch.arange(specimen.length_of(inputs)).expand(setting.batch, -1)
    for name in names:
        for offset in (0, 1, 2, 3):
            for batched in (True, False):
                argument = PositionArgument(name, offset, batched)
                answer = attempt(specimen, {**inputs, name: argument.value(count)}, setting)
                if plain is None or answer is None:
                    continue
                if deviation(plain, answer)[0] < specimen.threshold:
                    return argument
    return None


def _embeds(specimen: Specimen) -> str | None:
    """The argument that takes embeddings in place of ids, where both give one answer."""
    prefix = "decoder_" if specimen.anatomy.main.name.startswith("decoder_") else ""
    name = f"{prefix}inputs_embeds"
    if name not in specimen.bench.parameters or specimen.anatomy.echo:
        return None
    specimen.embeds = name
    inputs = specimen.inputs(Setting())
    both = [attempt(specimen, inputs, replace(Setting(), embeds=e)) for e in (False, True)]
    specimen.embeds = None
    if both[0] is None or both[1] is None:
        return None
    return name if deviation(both[0], both[1])[0] < specimen.threshold else None


def _implementations(specimen: Specimen) -> tuple[str, ...]:
    """Ways to compute attention that the model can switch between."""
    model: Any = specimen.bench.twin()
    ours = dict.fromkeys(name for module in model.modules() for name in backends_of(module))
    if not ours and not hasattr(model, "set_attn_implementation"):
        return ("math",)
    inputs = specimen.inputs(Setting())
    fits = []
    for name in ours or ("eager", "sdpa"):
        try:
            answer = attempt(specimen, inputs, replace(Setting(), attention=name))
        except Exception:
            answer = None
        if answer is not None:
            fits.append(name)
    return tuple(fits)


def _spans(model: Any) -> Iterator[int]:
    """Windows, chunks and blocks by the names that people give them."""
    holders = [*model.modules(), getattr(model, "config", None)]
    found = set()
    for holder in holders:
        for name, value in list(vars(holder).items()) if holder is not None else ():
            whole = isinstance(value, int) and not isinstance(value, bool)
            if whole and SPANS.fullmatch(name) and 2 <= value <= 80:
                found.add(value)
    yield from sorted(found)
