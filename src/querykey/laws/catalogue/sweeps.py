"""Which settings a law is tried in: what users leave unset, once each."""

from __future__ import annotations

from collections.abc import Iterator

from querykey.laws.runner import Specimen
from querykey.laws.understanding.arguments import attempt
from querykey.laws.understanding.copies import Setting

LONGEST = 90
LONG = (150, 60, 30)  # where what begins at some length has begun, if the model takes as many


def plain(specimen: Specimen) -> Iterator[Setting]:
    """As it comes, and once more with the user's own weights."""
    yield Setting()
    yield Setting(weights="own")


def as_called(specimen: Specimen) -> Iterator[Setting]:
    """The ways to call it that must not matter: mask, switches, implementation, embeddings."""
    yield from plain(specimen)
    if specimen.masks:
        yield Setting(mask=True)
    for flag in specimen.flags:
        yield Setting(given=((flag, True),))
        yield Setting(given=((flag, False),))
    yield from other_implementations(specimen)
    if specimen.embeds:
        yield Setting(embeds=True)


def other_implementations(specimen: Specimen) -> Iterator[Setting]:
    """Each implementation of attention that the model has, where it has several."""
    usual = getattr(getattr(specimen.bench.model, "config", None), "_attn_implementation", None)
    if len(specimen.implementations) > 1:
        names = [name for name in specimen.implementations if name != usual]
        yield from (Setting(attention=name) for name in names)


def lengths(specimen: Specimen) -> Iterator[Setting]:
    """Just above the largest window or chunk found in the model, so that it acts."""
    spans = [span for span in specimen.spans if 8 < span + 5 <= LONGEST and span + 5 > 13]
    if spans and specimen.anatomy.axis:
        yield Setting(length=max(spans) + 5)


def long(specimen: Specimen) -> Iterator[Setting]:
    """Far more tokens, with a window found or not: a leak may begin at any length."""
    if specimen.bench.device.type != "cpu":
        return  # where a table without such a row ends all work of the process, and does not raise
    for setting in (Setting(length=length) for length in LONG if specimen.anatomy.axis):
        if attempt(specimen, specimen.inputs(setting), setting) is not None:
            yield setting
            return


def everything(specimen: Specimen) -> Iterator[Setting]:
    """All of it, training mode and one row included."""
    yield from as_called(specimen)
    yield Setting(train=True)
    if specimen.masks:
        yield Setting(train=True, mask=True)
    yield Setting(batch=1)
    yield Setting(length=5)
    yield from lengths(specimen)
    yield from long(specimen)


def shapes(specimen: Specimen) -> Iterator[Setting]:
    """What may act when the length changes."""
    yield from plain(specimen)
    if specimen.masks:
        yield Setting(mask=True)
    for flag in specimen.flags:
        yield Setting(given=((flag, False),))
    yield from lengths(specimen)


def once(specimen: Specimen) -> Iterator[Setting]:
    """As it comes."""
    yield Setting()
