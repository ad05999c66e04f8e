"""Finding out by trying what a model's optional arguments mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from querykey.laws.run import PLAIN, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import deviation
from querykey.laws.understanding.copies import backends_of
from querykey.laws.understanding.facts import OptionalArguments, PaddingSigns, PositionArgument
from querykey.laws.understanding.mask_evidence import counts_real_tokens
from querykey.laws.understanding.masks import find_contrary, find_idle, find_masks
from querykey.laws.understanding.padding_ids import find_padding_ids

POSITIONS = re.compile(r"^(position_?ids|positions?|pos|pos_ids|decoder_position_ids)$")
TOGGLES = re.compile(
    r"_?(use_|is_)?(flash|flex|sdpa|fused|efficient)(_?(attn|attention|sdpa|kernel))?"
)
KERNELS = {"scaled_dot_product_attention", "flex_attention"}
FLAGS = re.compile(r"^(use|return)_(cache|state|kv|past)s?$")


def find_arguments(runner: Runner) -> OptionalArguments:
    """Return the optional arguments whose meaning trying them shows."""
    masks = tuple(find_masks(runner))
    return OptionalArguments(
        masks,
        _positions(runner),
        _embeds(runner),
        tuple(name for name in runner.copies.parameters if FLAGS.match(name)),
        _implementations(runner),
        PaddingSigns(
            tuple(find_padding_ids(runner, masks)),
            tuple(find_idle(runner, masks)),
            tuple(find_contrary(runner, masks)),
            counts_real_tokens(runner, masks),
        ),
    )


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

    They count only where turning them brings a fused operation in, or does away with it.
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
            functions.append(copies.functions & KERNELS if ran else None)
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
