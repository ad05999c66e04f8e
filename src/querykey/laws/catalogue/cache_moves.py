"""What generation does to a cache: beams reorder its rows, drafts are dropped, rows are padded."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from querykey.laws.catalogue import padding
from querykey.laws.catalogue.cache import has_a_cache
from querykey.laws.law import Law, RefusalError
from querykey.laws.private import is_stateful
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Trial, conduct, every_cell

PROMPT, STEPS, DRAFTS = 7, 3, 3
ROWS = 5  # an unusual number, so that the axis of rows is known in a cache of any form
BEAMS = (1, 1, 3, 0, 4)  # the second row's beams push the third's out; two rows change places


def reorder(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Read prompts, take the cache's rows in another order, and go on."""
    inputs, signature = runner.inputs(setting), runner.signature
    where = torch.zeros(ROWS, setting.length, dtype=torch.bool)
    where[:, :PROMPT] = True
    prompts = signature.take_rows(inputs, BEAMS)
    moved = signature.with_other(inputs, prompts, where)
    others = {entry.name for entry in signature.others()}
    moved |= {name: prompts[name] for name in others}
    chunks = (PROMPT, *[1] * STEPS)
    fresh = every_cell(range(ROWS), range(PROMPT, setting.length))
    yield Trial(
        Run(moved, setting, chunks),
        Run(inputs, setting, chunks, beams=BEAMS),
        (fresh, fresh),
        None,
        f"the rows of the cache were taken in the order {', '.join(map(str, BEAMS))}",
    )


def crop(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Read prompts and a few wrong tokens, drop these from the cache, and go on."""
    inputs, chunks = runner.inputs(setting), (PROMPT, *[1] * STEPS)
    every = every_cell(range(setting.batch), range(setting.length))
    yield Trial(
        Run(inputs, setting, chunks),
        Run(inputs, setting, chunks, drafts=DRAFTS),
        (every, every),
        None,
        f"{DRAFTS} other tokens were fed after the prompt and then dropped from the cache",
    )


def padded(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Feed left-padded rows with the cache; every row answers as it does alone in one call."""
    signature, axis, inputs = runner.signature, runner.signature.axis, runner.inputs(setting)
    real = padding.real_tokens(runner, inputs, axis, left=True)
    rows = {**inputs, **padding.arguments(runner, axis, real)}
    length, kept = setting.length, False
    for row in range(setting.batch):
        span = real[row].nonzero().flatten().tolist()
        alone = signature.cut(signature.take_rows(inputs, [row]), span[0], length)
        cells = every_cell([0], range(len(span))), every_cell([row], span)
        whole = Trial(Run(alone, setting), Run(rows, setting), cells)
        if conduct(runner, whole).deviation > runner.facts.threshold:
            continue  # padding.left tells of it
        kept = True
        for chunks in ((length - STEPS, *[1] * STEPS), (3, length - 3 - STEPS, *[1] * STEPS)):
            sizes = ", ".join(map(str, chunks))
            yield Trial(
                Run(alone, setting),
                Run(rows, setting, chunks),
                cells,
                None,
                f"left-padded rows were fed with the cache in chunks of {sizes}",
            )
    if not kept:
        raise RefusalError("left padding changes its answers in one call already")


def takes_padded_prompts(runner: Runner) -> str:
    """Return why the law does not apply: it is for decoders with a cache and a padding mask."""
    return has_a_cache(runner) or padding.takes_left_padding(runner)


def can_forget(runner: Runner) -> str:
    """Return why the law does not apply: no cache, or a state that is said to keep every token."""
    stateful = is_stateful(runner.copies.model)
    return has_a_cache(runner) or "it says that its state cannot forget a token" * stateful


def five_rows(runner: Runner) -> Iterator[Setting]:
    """Try five rows of a prompt and some steps."""
    yield Setting(batch=ROWS, length=PROMPT + STEPS)


def three_rows(runner: Runner) -> Iterator[Setting]:
    """Try three rows with more and more padding."""
    yield Setting()


LAWS = (
    Law(
        "cache.reorder",
        says="A cache whose rows are reordered goes on with those rows.",
        why="Otherwise beam search continues one beam with the memory of another.",
        how="Prompts are read, and the cache's rows are taken in another order by its own method, "
        "the model's, or along the axis of rows. The right answers are those of a fresh cache that "
        "has read the prompts in that order.",
        trials=reorder,
        applies=has_a_cache,
        sweep=five_rows,
    ),
    Law(
        "cache.crop",
        says="A cache whose last tokens are dropped goes on as if they had never been fed.",
        why="Otherwise speculative decoding is misled by drafts that were turned down.",
        how="Three wrong tokens are fed after a prompt and dropped by the cache's own method, "
        "along the axis of tokens, or by passing a smaller start.",
        trials=crop,
        applies=can_forget,
        sweep=five_rows,
    ),
    Law(
        "cache.padded",
        says="A left-padded row that is fed with the cache answers as it does alone.",
        why="Otherwise prompts of unequal length in one batch are continued differently.",
        how="Rows padded by 0, 4 and 7 are prefilled in one piece or two and decoded; every row's "
        "answers are those of one call without padding, where a padded call gives these, too.",
        trials=padded,
        applies=takes_padded_prompts,
        sweep=three_rows,
    ),
)
