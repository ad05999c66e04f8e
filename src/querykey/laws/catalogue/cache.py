"""A cache changes nothing: any split of the tokens gives the answers of the whole."""

from __future__ import annotations

from collections.abc import Iterator

from querykey.laws.catalogue import padding, sweeps
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Run, Trial, cells
from querykey.laws.understanding.copies import Setting


def has_a_cache(specimen: Specimen) -> str:
    """To models whose cache was found."""
    if not specimen.causal:
        return f"not causal: {specimen.why}"
    return "" if specimen.cache else "no cache was found"


def split(specimen: Specimen, setting: Setting, sizes: list[tuple[int, ...]]) -> Iterator[Trial]:
    """The whole against each split of it, and once under left padding."""
    inputs = specimen.inputs(setting)
    every = cells([(r, i) for r in range(setting.batch) for i in range(setting.length)])
    masked = setting.mask
    for chunks in sizes:
        yield Trial(
            Run(inputs, setting),
            Run(inputs, setting, chunks, masked),
            (every, every),
            None,
            f"tokens were fed {_words(chunks)} with the cache",
        )
    if masked and specimen.mask_for(specimen.anatomy.axis):
        real = padding.reality(specimen, inputs, specimen.anatomy.axis, left=True)
        told = {**inputs, **padding.given(specimen, specimen.anatomy.axis, real)}
        keep = cells([(int(r), int(i)) for r, i in real.nonzero()])
        yield Trial(
            Run(told, setting),
            Run(told, setting, sizes[0], masked),
            (keep, keep),
            None,
            f"left-padded rows were fed {_words(sizes[0])} with the cache",
        )


def step(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """A prompt and then token by token; and token by token from the start."""
    length = setting.length
    sizes = [(5, *[1] * (length - 5)), (1,) * length] if setting == Setting() else []
    yield from split(specimen, setting, sizes or [(length - 6, *[1] * 6)])


def chunk(specimen: Specimen, setting: Setting) -> Iterator[Trial]:
    """Several tokens at a time."""
    length = setting.length
    sizes = [(5, 4, length - 9), (1, length - 1), (length - 3, 3)]
    yield from split(specimen, setting, sizes if setting == Setting() else sizes[:1])


def _words(chunks: tuple[int, ...]) -> str:
    return "+".join(map(str, chunks[:4])) + ("+..." if len(chunks) > 4 else "")


def sweep(specimen: Specimen) -> Iterator[Setting]:
    """Masks, implementations and a window shorter than the sequence."""
    yield from sweeps.plain(specimen)
    if specimen.masks:
        yield Setting(mask=True)
    yield from sweeps.other_implementations(specimen)
    yield from sweeps.lengths(specimen)


LAWS = (
    Law(
        "cache.step",
        "one token at a time with the cache gives the answers of one call",
        "feed token by token",
        "all answers",
        has_a_cache,
        step,
        sweep,
    ),
    Law(
        "cache.chunk",
        "several tokens at a time with the cache give the answers of one call",
        "feed in chunks",
        "all answers",
        has_a_cache,
        chunk,
        sweep,
    ),
)
