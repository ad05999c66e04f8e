"""Finding out whether a model is meant to be causal.

A decoder that leaks must not pass for an encoder, nor an encoder for a decoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from querykey.laws.blaming.recorder import Recorder
from querykey.laws.private import CONVOLUTIONS
from querykey.laws.run import PLAIN, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.understanding.causal_masks import masks_kept, signs_in
from querykey.laws.understanding.facts import Intent
from querykey.laws.understanding.influence import NothingSeenError, causal_parts, influence
from querykey.laws.understanding.interface import (
    TURNS,
    is_called_open,
    looks_ahead_alone,
    scores_words,
    sign_of_decoding,
    sign_of_names,
)
from querykey.laws.understanding.outputs import Slot

SWITCHES = re.compile(r"^_?(is_)?(causal|autoregressive|decoder)$")
DOUBT = "{}; if it is meant to be causal, say kind=decoder"
SCORES = "it scores the whole vocabulary at every position"
FRAMES = 128  # positions in which a look-ahead of frames must be seen to end


def find_intent(runner: Runner) -> Intent:
    """Return whether the model is meant to be causal, and which of its other outputs are."""
    intent = _intent(runner)
    return replace(intent, outputs=tuple(_causal_outputs(runner))) if intent.causal else intent


def _intent(runner: Runner) -> Intent:
    """Ask the owner, then the library's class, then what the model does, its parts and its code."""
    causal = runner.subject.causal
    if causal is not None:
        return Intent(causal, "as you said")
    if not runner.signature.axis or runner.signature.main.kind == "image":
        return Intent(False, "it takes no sequence")
    by_class = _intent_of_class(runner.copies.model)
    if by_class is not None:
        return by_class
    if not runner.signature.sequential:
        return Intent(False, "it gives no answer per position")
    try:
        back, ahead = influence(runner, PLAIN)
    except NothingSeenError as error:
        return Intent(False, str(error))
    if not ahead.any():
        if not back.any():
            return Intent(False, "no position looks at another")
        return Intent(True, "no position looks ahead")
    return _intent_despite_a_leak(runner, back, ahead)


def _causal_outputs(runner: Runner) -> Iterator[Slot]:
    """Yield the outputs beside the main one that look back, and ahead at far fewer pairs."""
    for slot in runner.signature.more:
        signature = replace(runner.signature, slot=slot)
        try:
            back, ahead = influence(
                runner.supposing(replace(runner.facts, signature=signature)), PLAIN
            )
        except Exception:  # what cannot be tried is not judged
            continue
        if back.shape[0] == back.shape[1] and _far_fewer(ahead, back):
            yield slot


def _far_fewer(ahead: torch.Tensor, back: torch.Tensor) -> bool:
    """Return whether something is seen, and far fewer pairs ahead than back."""
    return bool(back.any()) and int((ahead > 0).sum()) <= 0.6 * int((back > 0).sum())


def _intent_of_class(model: Any) -> Intent | None:
    """Return what a `transformers` class says by its name or configuration, or None."""
    config = getattr(model, "config", None)
    if not any(base.__module__.startswith("transformers.") for base in type(model).__mro__):
        return None
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        return Intent(True, "an encoder-decoder by its configuration")
    if re.search(r"ForCausalLM|(?<!With)LMHeadModel$", name) or getattr(
        config, "is_decoder", False
    ):
        return Intent(True, f"{name} is a causal language model by its name or configuration")
    if re.search(r"ForMaskedLM", name):
        return Intent(False, f"{name} is a masked language model")
    return None


def _intent_despite_a_leak(runner: Runner, back: torch.Tensor, ahead: torch.Tensor) -> Intent:
    """Decide for a model that looks ahead whether that is a fault, or what it is for."""
    switch = _switch(runner)
    frame = _frame(runner) if switch is not None and switch[1] else 0
    if frame:
        return Intent(
            False,
            f"it looks at most {frame} positions ahead, as a model of frames does",
            "if it is meant to be causal for every position, say kind=decoder",
        )
    if switch is not None:
        doubtful = (
            not switch[1] and scores_words(runner) and not is_called_open(runner.copies.model)
        )
        why = f"its attribute `{switch[0]}` is {switch[1]}"
        return Intent(switch[1], why, DOUBT.format(SCORES) if doubtful else "")
    if looks_ahead_alone(runner, back):
        return Intent(
            True, "it is meant to be, because it scores words and sees none before them, only later"
        )
    prefix = _prefix(ahead)
    if prefix:
        return Intent(
            False,
            f"it looks ahead within the first {prefix} positions only, as a prefix model does",
            "if it is meant to be causal throughout, say kind=decoder",
        )
    return (
        _intent_of_few_leaks(runner, back, ahead)
        or _intent_of_parts(runner)
        or _intent_of_evidence(runner)
    )


def _intent_of_few_leaks(runner: Runner, back: torch.Tensor, ahead: torch.Tensor) -> Intent | None:
    """Return that a model is causal which looks ahead much less than back; None for any other."""
    length, seen_back, seen_ahead = len(ahead), int((back > 0).sum()), int((ahead > 0).sum())
    fewer, weaker = _far_fewer(ahead, back), float(ahead.mean()) < 0.25 * float(back.mean())
    if not fewer and not weaker:
        return None
    if fewer and _looks_ahead_evenly(ahead) and not scores_words(runner):
        sign = sign_of_names(runner.copies.model)
        if not sign:
            return Intent(
                False,
                "it looks a fixed number of positions ahead, as a streaming model may",
                "if it is meant to be causal, say kind=decoder",
            )
    if fewer:
        pairs = length * (length - 1) // 2
        return Intent(
            True,
            f"it is meant to be, because {seen_back} of {pairs} pairs of positions look back "
            f"and only {seen_ahead} look ahead",
        )
    return Intent(True, "it is meant to be, because later tokens matter far less than earlier ones")


def _frame(runner: Runner) -> int:
    """Return how far a model of strided convolutions looks ahead, where that has a bound, or 0.

    What is causal in it are its frames: every sample of a frame is seen when the frame is answered.
    """
    strided = any(
        isinstance(module, CONVOLUTIONS) and max(module.stride) > 1
        for module in runner.copies.model.modules()
    )
    if not strided or scores_words(runner):
        return 0
    try:
        _, ahead = influence(runner, Setting(length=FRAMES))
    except Exception:
        return 0
    rows, columns = ahead.nonzero(as_tuple=True)
    bound = int((columns - rows).max())
    return bound if bound < FRAMES // 2 else 0


def _looks_ahead_evenly(ahead: torch.Tensor) -> bool:
    """Return whether all see up to one bound: a fixed look-ahead, or their block's end."""
    seen = ahead > 0
    last = [int(row.nonzero().max()) if row.any() else index for index, row in enumerate(seen)]
    steps = [stop - index for index, stop in enumerate(last)]
    inner = [step for step, stop in zip(steps, last, strict=True) if stop < len(last) - 1]
    if len(set(inner)) == 1 and inner[0] > 0:
        return True
    # In blocks the end stays for some positions and then leaps on; no block has one position.
    ends = [last.count(stop) for stop in dict.fromkeys(last)][:-1]
    return len(ends) > 0 and len(set(ends)) == 1 and ends[0] > 1


def _intent_of_parts(runner: Runner) -> Intent | None:
    """Return that a model is causal most of whose parts are, or which is so in some setting."""
    causal, open_ = causal_parts(runner)
    if open_ and causal >= open_:
        return Intent(
            True,
            f"it is meant to be, because {causal} of its {causal + open_} token-mixing modules are",
        )
    for setting in _variants(runner):
        try:
            back, ahead = influence(runner, setting)
        except Exception:
            continue
        # Where nobody looks at anybody, as behind a mask turned round, nothing is told.
        if back.any() and not ahead.any():
            return Intent(True, f"it is meant to be, because it does not look ahead with {setting}")
    if causal and not open_:
        if scores_words(runner) and not runner.copies.functions & TURNS:
            return Intent(True, "it is meant to be, because each of its parts is")
        # Two recurrences of opposite directions look like this, and so does a leak around them.
        doubt = "each of its parts is causal; if it is meant to be, say kind=decoder"
        return Intent(False, "it looks ahead everywhere", doubt)
    return None


def _intent_of_evidence(runner: Runner) -> Intent:
    """Judge a model that looks ahead everywhere by its names, its masks and its interface."""
    model = runner.copies.model
    name = sign_of_names(model)
    if name:
        return Intent(True, name)
    inputs = runner.inputs()
    signs = signs_in(
        lambda: runner.call(runner.complete(Run(inputs, PLAIN))), runner.signature.length_of(inputs)
    )
    if signs.both_ways:
        return Intent(False, "some scores hide later keys, others earlier ones")
    if signs.hides:
        return Intent(True, f"it is meant to be, because {signs.hides}, yet it looks ahead")
    mask = signs.exists or masks_kept(model)
    if mask and runner.signature.main.kind == "tokens":
        return Intent(True, f"it is meant to be, because {mask}, yet it looks ahead")
    if mask:
        return Intent(False, "it looks ahead everywhere", DOUBT.format(mask))
    if scores_words(runner):
        sign, others = sign_of_decoding(runner, signs.pairs), runner.signature.others()
        if sign and (others or not is_called_open(model)):
            return Intent(True, sign)
        if not is_called_open(model):
            return Intent(False, "it looks ahead everywhere", DOUBT.format(SCORES))
    return Intent(False, "it looks ahead everywhere")


def _prefix(ahead: torch.Tensor) -> int:
    """Return the length of the one block at the start in which all look ahead, or 0."""
    size = int(ahead.any(0).nonzero().max()) + 1
    block = torch.zeros_like(ahead, dtype=torch.bool)
    block[:size, :size] = True
    whole = bool(((ahead > 0) == block.triu(1)).all())
    return size if whole and 3 <= size < len(ahead) else 0


def _variants(runner: Runner) -> Iterator[Setting]:
    """Yield other settings, in some of which a model may turn out to be causal."""
    if runner.facts.masks:
        yield Setting(mask=True)
    for flag in runner.facts.arguments.flags:
        yield Setting(arguments=((flag, True),))
        yield Setting(arguments=((flag, False),))
    yield Setting(length=6)
    yield Setting(train=True)


def _switch(runner: Runner) -> tuple[str, bool] | None:
    """Return an attribute by which the user's code says causal or not; True anywhere wins.

    A module that did not run is not believed when it says causal: it may be the decoder beside an
    encoder that is called alone.
    """
    recorder = Recorder()
    with torch.no_grad():
        runner.answer(Run(runner.inputs(), PLAIN), recorder)
    ran = {call.path for call in recorder.done}
    parents = {path.rpartition(".")[0] for path in ran}
    switches = []
    for path, module in runner.copies.of(PLAIN).named_modules():
        idle = path not in ran and path not in parents
        for holder in (module, getattr(module, "config", None)):
            for name, value in getattr(holder, "__dict__", {}).items():
                if SWITCHES.match(name) and isinstance(value, bool) and not (value and idle):
                    switches.append((name, value))
    return max(switches, key=lambda switch: switch[1], default=None)
