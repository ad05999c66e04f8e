"""Finding out what a model is, by trying: the one place where its facts are put together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from querykey.laws.run import PLAIN, Run
from querykey.laws.runner import Runner
from querykey.laws.subject import Subject
from querykey.laws.trial import deviation
from querykey.laws.understanding.arguments import find_arguments
from querykey.laws.understanding.batches import taking_a_batch
from querykey.laws.understanding.cache_protocol import find_cache
from querykey.laws.understanding.facts import ModelFacts, Protocols, Rounding
from querykey.laws.understanding.inputs import UnfitError, UnsuitedError, find_signature
from querykey.laws.understanding.intent import find_intent
from querykey.laws.understanding.loss import find_loss
from querykey.laws.understanding.mask_inputs import with_meanings
from querykey.laws.understanding.one_length import with_its_one_length
from querykey.laws.understanding.signature import CallSignature, length_of
from querykey.laws.understanding.unbatched import is_one_sample, one_by_one
from querykey.targets import Input
from querykey.words import last_line

SPANS = re.compile(
    r".*(window|chunk|block_size|bucket_size|stride|local|span)s?(_size|_len(gth)?)?"
)


def understand(subject: Subject, seed: int = 0) -> Runner:
    """Return a runner of the model that knows what it is; an UnfitError says why it cannot run."""
    try:
        return _understood(subject, seed)
    except UnfitError:
        raise
    except Exception as error:
        raise UnfitError(f"it could not be understood: {last_line(error)[:300]}") from error


def _understood(subject: Subject, seed: int) -> Runner:
    """Find one fact after the other; every step needs those before it."""
    try:
        copies, signature = find_signature(subject, seed)
    except UnfitError:
        batched = taking_a_batch(subject)
        if batched is None:
            raise
        subject = batched
        copies, signature = find_signature(subject, seed)
    if is_one_sample(copies, signature):
        copies, signature = find_signature(one_by_one(subject, signature), seed)
    signature = with_its_one_length(copies, signature)
    if "batch" not in signature.main.axes:
        raise UnsuitedError("its rows are not free: several make one sample")
    facts = ModelFacts(signature, Rounding(copies.recipe.wide))
    facts = replace(facts, signature=with_meanings(Runner(copies, facts)))
    runner = Runner(copies, facts)
    facts = replace(facts, rounding=replace(facts.rounding, floor=measure_floor(runner)))
    runner = runner.learning(facts)
    facts = replace(facts, arguments=find_arguments(runner), spans=tuple(spans(copies.model)))
    if pads := facts.arguments.padding.ids:
        facts = replace(facts, signature=without_pads(facts.signature, pads))
        runner = Runner(copies, facts)
    runner = runner.learning(facts)
    facts = replace(facts, intent=find_intent(runner))
    facts = replace(facts, protocols=Protocols(loss=find_loss(runner)))
    runner = runner.learning(facts)
    cache = find_cache(runner) if facts.causal else None
    return runner.learning(replace(facts, protocols=replace(facts.protocols, cache=cache)))


def without_pads(signature: CallSignature, pads: tuple[tuple[str, int], ...]) -> CallSignature:
    """Return a signature whose ids are drawn clear of the padding: from the larger side of it."""
    known = dict(pads)

    def clear(entry: Input) -> Input:
        pad = known.get(length_of(entry))
        if entry.kind != "tokens" or pad is None or not entry.low <= pad < entry.high:
            return entry
        below, above = pad - entry.low, entry.high - pad - 1
        return replace(entry, high=pad) if below > above else replace(entry, low=pad + 1)

    inputs = tuple(clear(entry) for entry in signature.inputs)
    return replace(signature, inputs=inputs, main=clear(signature.main))


def measure_floor(runner: Runner) -> float:
    """Return how far rounding alone moves the answer: the same rows run twice in one batch."""
    inputs = runner.inputs()
    doubled = runner.signature.take_rows(inputs, [*range(PLAIN.batch)] * 2)
    with torch.no_grad():
        once, twice = (runner.answer(Run(i, PLAIN)) for i in (inputs, doubled))
    return min(deviation(once, twice[: len(once)])[0], 1.0)


def spans(model: Any) -> Iterator[int]:
    """Yield the sizes of windows, chunks and blocks, found by the names that people give them."""
    holders = [*model.modules(), getattr(model, "config", None)]
    sizes = set()
    for holder in holders:
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            whole = isinstance(value, int) and not isinstance(value, bool)
            if whole and SPANS.fullmatch(name) and 2 <= value <= 80:
                sizes.add(value)
    yield from sorted(sizes)
