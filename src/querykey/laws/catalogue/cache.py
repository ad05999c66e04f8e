"""A cache changes nothing: any split of the tokens gives the answers of one call."""

from __future__ import annotations

from collections.abc import Iterator

from querykey.laws.catalogue import padding, sweeps
from querykey.laws.law import Law
from querykey.laws.run import PLAIN, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Trial, every_cell


def has_a_cache(runner: Runner) -> str:
    """Return why the law does not apply to a model without a cache that was found."""
    if not runner.facts.causal:
        return f"not causal: {runner.facts.intent.why}"
    return "" if runner.facts.cache else "no cache was found"


def split(runner: Runner, setting: Setting, sizes: list[tuple[int, ...]]) -> Iterator[Trial]:
    """Compare one call with every split of it, and once under left padding."""
    inputs = runner.inputs(setting)
    every = every_cell(range(setting.batch), range(setting.length))
    masked = setting.mask
    for chunks in sizes:
        yield Trial(
            Run(inputs, setting),
            Run(inputs, setting, chunks, masked),
            (every, every),
            None,
            f"the tokens were fed with the cache in chunks of {_in_words(chunks)}",
        )
    axis = runner.signature.axis
    if masked and any(not mask.counts for mask in runner.facts.masks_over(axis)):
        real = padding.real_tokens(runner, inputs, axis, left=True)
        padded = {**inputs, **padding.arguments(runner, axis, real)}
        keep = padding.cells_where(real)
        yield Trial(
            Run(padded, setting),
            Run(padded, setting, sizes[0], masked),
            (keep, keep),
            None,
            f"left-padded rows were fed with the cache in chunks of {_in_words(sizes[0])}",
        )


def step(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Feed a prompt and then token by token; and token by token from the start."""
    length = setting.length
    sizes = [(5, *[1] * (length - 5)), (1,) * length] if setting == PLAIN else []
    yield from split(runner, setting, sizes or [(length - 6, *[1] * 6)])


def chunk(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Feed several tokens at a time."""
    length = setting.length
    sizes = [(5, 4, length - 9), (1, length - 1), (length - 3, 3)]
    yield from split(runner, setting, sizes if setting == PLAIN else sizes[:1])


def _in_words(chunks: tuple[int, ...]) -> str:
    return ", ".join(map(str, chunks[:4])) + (", ..." if len(chunks) > 4 else "")


def sweep(runner: Runner) -> Iterator[Setting]:
    """Try masks, implementations of attention, and a window shorter than the sequence."""
    yield from sweeps.plain_and_masked(runner)
    yield from sweeps.other_implementations(runner)
    yield from sweeps.lengths(runner)


LAWS = (
    Law(
        "cache.step",
        says="One token at a time with the cache gives the answers of one call.",
        why="Otherwise generation differs from training (transformers 46741).",
        how="A prompt is fed first, then token by token; the answers are those of one call.",
        trials=step,
        applies=has_a_cache,
        sweep=sweep,
    ),
    Law(
        "cache.chunk",
        says="Several tokens at a time with the cache give the answers of one call.",
        why="Otherwise a prompt that is read in chunks is read wrongly (candle 3743).",
        how="The tokens are fed in chunks of several sizes; the answers are those of one call.",
        trials=chunk,
        applies=has_a_cache,
        sweep=sweep,
    ),
)
