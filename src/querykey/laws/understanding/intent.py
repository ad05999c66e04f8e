"""Finding out whether a model is meant to be causal.

A decoder that leaks must not pass for an encoder, nor an encoder for a decoder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from querykey.laws.run import PLAIN, Setting
from querykey.laws.runner import Runner
from querykey.laws.understanding.facts import Intent
from querykey.laws.understanding.influence import NothingSeenError, causal_parts, influence
from querykey.laws.understanding.outputs import Slot
from querykey.laws.understanding.source_code import sign_of_causality

SWITCHES = re.compile(r"^_?(is_)?(causal|autoregressive|decoder)$")


def find_intent(runner: Runner) -> Intent:
    """Return whether the model is meant to be causal, and which of its other outputs are."""
    intent = _intent(runner)
    return replace(intent, outputs=tuple(_causal_outputs(runner))) if intent.causal else intent


def _intent(runner: Runner) -> Intent:
    """Ask the owner, then the library's class, then what the model does, its parts and its code."""
    causal = runner.subject.causal
    if causal is not None:
        return Intent(causal, "as told")
    if not runner.signature.axis or runner.signature.main.kind not in ("tokens", "features"):
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
    switch = _switch(runner.copies.model)
    if switch is not None:
        return Intent(switch[1], f"its attribute `{switch[0]}` is {switch[1]}")
    length = len(ahead)
    prefix = _prefix(ahead)
    if prefix:
        return Intent(
            False,
            f"it looks ahead within the first {prefix} positions only, as a prefix model does",
            "if it is meant to be causal throughout, say causal=True",
        )
    seen_back, seen_ahead = int((back > 0).sum()), int((ahead > 0).sum())
    if not seen_back and sign_of_causality(runner.copies.model, always=False):
        return Intent(True, "it looks ahead only, as if its causal mask were turned round")
    if _far_fewer(ahead, back):
        pairs = length * (length - 1) // 2
        return Intent(
            True, f"it sees {seen_back} of {pairs} earlier but only {seen_ahead} later pairs"
        )
    if float(ahead.mean()) < 0.25 * float(back.mean()):
        return Intent(True, "later tokens matter far less than earlier ones")
    causal, open_ = causal_parts(runner)
    if open_ and causal >= open_:
        return Intent(True, f"{causal} of its {causal + open_} token-mixing modules are causal")
    for setting in _variants(runner):
        try:
            back, ahead = influence(runner, setting)
        except Exception:
            continue
        # Where nobody looks at anybody, as behind a mask turned round, nothing is told.
        if back.any() and not ahead.any():
            return Intent(True, f"it does not look ahead with {setting}")
    code = sign_of_causality(runner.copies.model)
    if code:
        return Intent(True, code)
    # Two recurrences of opposite directions look like this, and so does a leak around the parts.
    doubt = "each of its parts is causal; if it is meant to be, say causal=True"
    return Intent(False, "it looks ahead everywhere", doubt if causal and not open_ else "")


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


def _switch(model: nn.Module) -> tuple[str, bool] | None:
    """Return an attribute by which the user's code says causal or not; True anywhere wins."""
    switches = []
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            for name, value in getattr(holder, "__dict__", {}).items():
                if SWITCHES.match(name) and isinstance(value, bool):
                    switches.append((name, value))
    return max(switches, key=lambda switch: switch[1], default=None)
