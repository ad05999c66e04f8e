"""Padding masks on their way down, where they are named as in torch: what is True is hidden."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from querykey.laws.blaming.recorder import Call, Recorder
from querykey.laws.runner import Specimen
from querykey.laws.trial import Run

NAME = "key_padding_mask"


def loser_of_mask(specimen: Specimen, run: Run, recorder: Recorder, call: Call) -> Call | None:
    """Whoever handed this call no padding mask, or one that shows padding; None where it got it.

    The recorder must have kept arguments.
    """
    for hidden in _told(specimen, run):
        for _, mask, keys in _masks(call):
            if not _lies_over(keys, hidden):
                continue
            if mask is None:
                return _dropper(recorder, call, hidden)
            if mask.shape == hidden.shape and bool((hidden & ~hides(mask)).any()):
                return _maker(recorder, call, mask)
    return None


def _told(specimen: Specimen, run: Run) -> Iterator[torch.Tensor]:
    """What the model was told to hide: (batch, keys) per mask that hides something."""
    for mask in specimen.masks:
        if mask.name in run.inputs:
            hidden = ~(run.inputs[mask.name].bool() ^ mask.hides)
            if hidden.any():
                yield hidden


def _masks(call: Call) -> Iterator[tuple[str, torch.Tensor | None, Any]]:
    """Each padding mask that the module takes: its name, itself, and the tensor it lies over."""
    given = _by_name(call)
    whole = [v for k, v in given.items() if k.endswith("mask") and not k.endswith(NAME)]
    merged = any(isinstance(v, torch.Tensor) and v.dim() > 2 for v in whole)
    for name, mask in given.items():
        if not name.endswith(NAME) or (mask is None and merged):
            continue  # a mask per row and query may hold the padding, too
        over = name.removesuffix(NAME).rstrip("_") or "key"
        if mask is None or isinstance(mask, torch.Tensor):
            yield name, mask, given.get(over)


def _by_name(call: Call) -> dict[str, Any]:
    """All arguments of a call, those left out as well."""
    args, kwargs = call.arguments
    try:
        bound = inspect.signature(call.module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    return bound.arguments


def _lies_over(keys: Any, hidden: torch.Tensor) -> bool:
    """Whether these are the tokens that were told about, batch first or not."""
    if not isinstance(keys, torch.Tensor) or keys.dim() < 3:
        return False
    return tuple(keys.shape[:2]) in (tuple(hidden.shape), tuple(hidden.shape)[::-1])


def hides(mask: torch.Tensor) -> torch.Tensor:
    """What a mask of torch's kind hides: True, or a large negative number."""
    mask = mask.detach().cpu()
    return mask < -1e3 if mask.is_floating_point() else mask.bool()


def _dropper(recorder: Recorder, call: Call, hidden: torch.Tensor) -> Call:
    """The first above that had the mask, in any form, and did not hand it on.

    One that takes the same mask by name and was given none, either, had it for another purpose.
    """
    while call.parent is not None:
        lacking = [n for n, mask, keys in _masks(call) if mask is None and _lies_over(keys, hidden)]
        call = recorder.begun[call.parent]
        given = _by_name(call)
        if any(name in given and given[name] is None for name in lacking):
            continue
        alike = [hides(t) for t in call.inputs if t.shape == hidden.shape]
        if any(torch.equal(t, hidden) or torch.equal(t, ~hidden) for t in alike):
            break
    return call


def _maker(recorder: Recorder, call: Call, wrong: torch.Tensor) -> Call:
    """The first above that was not handed this mask as a padding mask, so that it made it one."""
    hidden = hides(wrong)
    while call.parent is not None:
        call = recorder.begun[call.parent]
        handed = [m for _, m, _ in _masks(call) if m is not None and m.shape == hidden.shape]
        if not any(torch.equal(hides(mask), hidden) for mask in handed):
            break
    return call
