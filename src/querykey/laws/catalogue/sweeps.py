"""The settings that a law is tried in: what users leave unset, varied one thing at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator

from querykey.laws.law import plain_settings
from querykey.laws.private import attention_implementation
from querykey.laws.run import PLAIN, Setting
from querykey.laws.runner import Runner

HEADS = re.compile(r"_?((n|num|number_of)_?)?(attn_|attention_)?(heads?|h)|nhead", re.I)
LONGEST = 90
LONG = (320, 150, 60, 30)  # what begins at some length shows at the first that the model takes


def once(runner: Runner) -> Iterator[Setting]:
    """Yield the one setting in which nothing optional is passed, with random weights."""
    yield PLAIN


def with_a_mask(runner: Runner) -> Iterator[Setting]:
    """Try a padding mask that hides nothing, where the model takes one."""
    if runner.facts.masks:
        yield Setting(mask=True)


def plain_and_masked(runner: Runner) -> Iterator[Setting]:
    """Try the plain call, the model's own weights, and a mask that hides nothing."""
    yield from plain_settings(runner)
    yield from with_a_mask(runner)


def as_called(runner: Runner) -> Iterator[Setting]:
    """Try the ways to call a model that must not matter: mask, switches, attention, embeddings."""
    yield from plain_and_masked(runner)
    for flag in runner.facts.arguments.flags:
        yield Setting(arguments=((flag, True),))
        yield Setting(arguments=((flag, False),))
    yield from other_implementations(runner)
    if runner.facts.arguments.embeds:
        yield Setting(embeds=True)


def as_many_rows_as_heads(runner: Runner) -> Iterator[Setting]:
    """Try as many rows as attention has heads: a table that is spread over the wrong one of two
    axes fits only then."""
    modules = [*runner.copies.model.modules(), getattr(runner.copies.model, "config", None)]
    held = [pair for module in modules for pair in getattr(module, "__dict__", {}).items()]
    counts = [n for name, n in held if type(n) is int and HEADS.fullmatch(name) and 2 <= n <= 8]
    if counts and counts[0] != PLAIN.batch:
        yield Setting(batch=counts[0])


def other_implementations(runner: Runner) -> Iterator[Setting]:
    """Try every implementation of attention that the model does not use by default."""
    usual = attention_implementation(runner.copies.model)
    names = runner.facts.arguments.implementations
    if len(names) > 1:
        yield from (Setting(attention=n) for n in names if n not in (usual, "math"))


def lengths(runner: Runner) -> Iterator[Setting]:
    """Try a length just above the largest window or chunk of the model, so that it acts."""
    spans = [span for span in runner.facts.spans if 8 < span + 5 <= LONGEST and span + 5 > 13]
    if spans and runner.signature.varies:
        yield Setting(length=max(spans) + 5)


def long(runner: Runner) -> Iterator[Setting]:
    """Try far more tokens, because a leak may begin at any length."""
    if runner.copies.device.type != "cpu":
        return  # on a GPU an embedding without such a row ends the process, and does not raise
    for setting in (Setting(batch=2, length=n) for n in LONG if runner.signature.varies):
        if runner.attempt(runner.inputs(setting), setting) is not None:
            yield setting
            return


def everything(runner: Runner) -> Iterator[Setting]:
    """Try all of these, training mode, one row and a short sequence."""
    yield from as_called(runner)
    yield Setting(train=True)
    if runner.facts.masks:
        yield Setting(train=True, mask=True)
    yield Setting(batch=1)
    yield Setting(length=5)
    yield from lengths(runner)
    yield from long(runner)


def shapes(runner: Runner) -> Iterator[Setting]:
    """Try what may act when the length of the sequence changes."""
    yield from plain_and_masked(runner)
    for flag in runner.facts.arguments.flags:
        yield Setting(arguments=((flag, False),))
    yield from lengths(runner)
