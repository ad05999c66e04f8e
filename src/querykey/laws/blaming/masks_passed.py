"""Masks on their way to a module: does one arrive, and does it hide what it must hide?"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch

from querykey.laws.blaming.recorder import ModuleCall, Recorder
from querykey.laws.run import Run
from querykey.laws.understanding.facts import ModelFacts

NUMBER = re.compile(r"\d+")  # of a layer, in a module's path
NAME = "key_padding_mask"  # torch.nn's argument, in which True is hidden


def module_without_mask(
    facts: ModelFacts, run: Run, recorder: Recorder, call: ModuleCall
) -> ModuleCall | None:
    """Return the caller that passed this call no padding mask, or one that shows padding.

    Return None where the right mask arrived. The recorder must have kept arguments.
    """
    for hidden in _hidden(facts, run):
        for _, mask, keys in _masks(call):
            if not _covers(keys, hidden):
                continue
            if mask is None:
                return _dropper(recorder, call, hidden)
            if mask.shape == hidden.shape and bool((hidden & ~hides(mask)).any()):
                return _maker(recorder, call, mask)
    return None


def _hidden(facts: ModelFacts, run: Run) -> Iterator[torch.Tensor]:
    """Yield the (batch, keys) table of hidden tokens of every mask that hides some."""
    for mask in facts.masks:
        if mask.name in run.inputs:
            length = facts.signature.all_real(run.inputs, mask.axis).shape[1]
            hidden = ~mask.real(run.inputs[mask.name], length)
            if hidden.any():
                yield hidden


def _masks(call: ModuleCall) -> Iterator[tuple[str, torch.Tensor | None, Any]]:
    """Yield every padding mask that the module takes: its name, itself, and the keys it covers."""
    arguments = _by_name(call)
    whole = [v for k, v in arguments.items() if k.endswith("mask") and not k.endswith(NAME)]
    merged = any(isinstance(v, torch.Tensor) and v.dim() > 2 for v in whole)
    for name, mask in arguments.items():
        if not name.endswith(NAME) or (mask is None and merged):
            continue  # a mask per row and query may hold the padding, too
        over = name.removesuffix(NAME).rstrip("_") or "key"
        if mask is None or isinstance(mask, torch.Tensor):
            yield name, mask, arguments.get(over)


def _by_name(call: ModuleCall) -> dict[str, Any]:
    """Return all arguments of a call by name, with the defaults of those left out."""
    args, kwargs = call.arguments
    try:
        bound = inspect.signature(call.module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in inspect.signature(call.module.forward).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name)
    return arguments


def _covers(keys: Any, hidden: torch.Tensor) -> bool:
    """Return whether these keys are the tokens that a mask speaks of, batch first or not."""
    if not isinstance(keys, torch.Tensor) or keys.dim() < 3:
        return False
    return tuple(keys.shape[:2]) in (tuple(hidden.shape), tuple(hidden.shape)[::-1])


def hides(mask: torch.Tensor) -> torch.Tensor:
    """Return what a mask of torch's kind hides: True, or a large negative number."""
    mask = mask.detach().cpu()
    return mask < -1e3 if mask.is_floating_point() else mask.bool()


def _dropper(recorder: Recorder, call: ModuleCall, hidden: torch.Tensor) -> ModuleCall:
    """Return the first caller above that had the mask, in any form, and did not pass it on.

    A caller that takes the same mask by name and got none either had it for another purpose.
    """
    while call.parent is not None:
        lacking = [n for n, mask, keys in _masks(call) if mask is None and _covers(keys, hidden)]
        call = recorder.begun[call.parent]
        arguments = _by_name(call)
        if any(name in arguments and arguments[name] is None for name in lacking):
            continue
        alike = [hides(t) for t in call.inputs if t.shape == hidden.shape]
        if any(torch.equal(t, hidden) or torch.equal(t, ~hidden) for t in alike):
            break
    return call


def _maker(recorder: Recorder, call: ModuleCall, wrong: torch.Tensor) -> ModuleCall:
    """Return the first caller above that did not itself get this mask as a padding mask."""
    hidden = hides(wrong)
    while call.parent is not None:
        call = recorder.begun[call.parent]
        passed = [m for _, m, _ in _masks(call) if m is not None and m.shape == hidden.shape]
        if not any(torch.equal(hides(mask), hidden) for mask in passed):
            break
    return call


def hides_enough(facts: ModelFacts, run: Run, tensor: torch.Tensor) -> bool | None:
    """Return whether a mask over (queries, keys) hides enough; None for any other tensor.

    What is visible is written in many ways (True or False, 0 or 1, 0 or a large negative number),
    but a query's own key is always visible, so what looks like it is visible too.
    """
    if not facts.signature.axis or tensor.dim() not in (2, 3, 4):
        return None
    length, batch = facts.signature.length_of(run.inputs), facts.signature.batch_of(run.inputs)
    queries, keys = tensor.shape[-2:]
    if not queries <= keys <= length or keys < 4 or (tensor.dim() == 2 and queries != keys):
        return None
    ends = _ends(run, length)
    if keys not in ends or queries not in (1, keys, *([] if run.chunks is None else run.chunks)):
        return None
    if tensor.dim() > 2 and tensor.shape[0] not in (1, batch):
        return None
    if not _is_mask(tensor):
        return None
    rows = 1 if tensor.dim() == 2 else tensor.shape[0]
    mask = tensor.reshape(rows, -1, queries, keys)[:, 0]
    count = keys if run.chunks is None else ends[keys]
    mask = mask.expand(-1, count, -1) if queries == 1 else mask
    if mask.shape[1] != count:
        return None
    own = mask.diagonal(keys - count, 1, 2).unsqueeze(-1)
    forbidden = _forbidden(facts, run, count, keys).expand(batch, -1, -1)
    # What is added to scores hides where it is large and negative, whatever a query's own key is.
    shown = mask == 0 if float(mask.min()) < -1e3 else mask == own
    visible = shown.expand(batch, -1, -1)
    return not bool((visible & forbidden).any())


def withheld(facts: ModelFacts, run: Run, recorder: Recorder, call: ModuleCall) -> bool:
    """Return whether the same part of another layer got a mask by an argument that is not here."""
    own, part = _by_name(call), NUMBER.sub("*", call.path)
    for other in recorder.begun:
        if other is not call and NUMBER.sub("*", other.path) == part:
            lacking = [v for name, v in _by_name(other).items() if own.get(name) is None]
            if any(_hides_well(facts, run, value) for value in lacking):
                return True
    return False


def _hides_well(facts: ModelFacts, run: Run, value: Any) -> bool:
    """Return whether a value is a mask that hides what must be hidden, of rows or of pairs."""
    if not isinstance(value, torch.Tensor):
        return False
    tables = [hidden for hidden in _hidden(facts, run) if hidden.shape == value.shape]
    alike = [value.bool(), hides(value)] if tables else []
    if any(torch.equal(a, t) or torch.equal(a, ~t) for a in alike for t in tables):
        return True
    return bool(hides_enough(facts, run, value))


def differing_masks(whole: list[torch.Tensor], chunk: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the masks of a chunk that differ from the same rows of the mask of one call."""
    masks = []
    for first, second in zip(whole, chunk, strict=False):
        if first.dim() != second.dim() or first.dim() not in (2, 3, 4) or not _is_mask(first):
            continue
        (length, width), (queries, keys) = first.shape[-2:], second.shape[-2:]
        if length != width or not queries <= keys <= length or first.dtype != second.dtype:
            continue
        rows = first[..., keys - queries : keys, :keys]
        if rows.shape == second.shape and not torch.equal(rows, second):
            masks.append(second)
    return masks


def _is_mask(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds booleans, zeros and ones, or zeros and large negatives."""
    if tensor.dtype is torch.bool:
        return True
    low, high = float(tensor.min()), float(tensor.max())
    two = bool(((tensor == low) | (tensor == high)).all())
    return two and ((low, high) in ((0, 1), (0, 0), (1, 1)) or (high == 0 and low < -1e3))


def _ends(run: Run, length: int) -> dict[int, int]:
    """Return the number of tokens after every chunk, with the number of new ones."""
    ends, past = {}, 0
    for size in run.chunks or (length,):
        past += size
        ends[past] = size
    return ends


def _forbidden(facts: ModelFacts, run: Run, queries: int, keys: int) -> torch.Tensor:
    """Return the (batch, queries, keys) that must be hidden: later keys, and padding."""
    query = torch.arange(keys - queries, keys)[:, None]
    key = torch.arange(keys)[None]
    none = torch.zeros(1, queries, keys, dtype=torch.bool)
    hidden = none | ((key > query)[None] if facts.causal else none)
    for mask in facts.masks_over(facts.signature.axis):
        if mask.name in run.inputs:
            real = mask.real(run.inputs[mask.name], keys)[:, :keys]
            # What a query that is padding sees is nobody's matter.
            hidden = (hidden | ~real[:, None, :]) & real[:, keys - queries :, None]
    return hidden
