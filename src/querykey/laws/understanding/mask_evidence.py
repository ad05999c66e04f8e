"""Whether an argument of any name hides tokens as a padding mask does, seen by what it does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from querykey.laws.private import SOFTMAXES
from querykey.laws.run import PLAIN, Inputs, Run
from querykey.laws.runner import Runner
from querykey.laws.trial import deviation
from querykey.laws.understanding.mask_argument import MaskArgument

# Arguments that say something else of every token, or concern the loss alone.
OTHERS = re.compile(
    r"(head|loss|label|target|causal|corrupt|global|cross_attn_head|noise|mlm|mim|drop|span|random)"
    r"\w*_mask|bool_masked_pos|\w*(indices|indexes)|"
    r"\w*(ids|idx|index|embeds?|embeddings?|types?|weights?|labels?|targets?|positions?)|"
    r"(return|output|use|past|cache|doc|seg|pack|sample|cu|max|num_items)\w*|y|k|v|memory|states?"
)
WHOLE = "multi_head_attention_forward"  # what it calls inside is not seen
FUSED = "scaled_dot_product_attention"
NONE, LOW = 1e-9, -1e4  # a weight below, and a score below, are of a key that is hidden


class HiddenKeys(TorchFunctionMode):
    """Counts the tables of attention weights in which no real query sees any of some keys."""

    def __init__(self, real: torch.Tensor):
        super().__init__()
        self.real = real[0]  # the same for every row
        self.hidden: list[bool] = []  # by table

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in SOFTMAXES and isinstance(result, torch.Tensor):
            self._note(result.detach().abs() > NONE)
        elif name == WHOLE:
            mask = (kwargs or {}).get("key_padding_mask")
            if isinstance(mask, torch.Tensor):
                self._note(~mask if mask.dtype is torch.bool else mask > LOW)
        elif name == FUSED:
            mask = (kwargs or {}).get("attn_mask", args[3] if len(args) > 3 else None)
            if isinstance(mask, torch.Tensor):
                self._note(mask if mask.dtype is torch.bool else mask > LOW)
        return result

    def _note(self, seen: torch.Tensor) -> None:
        length = len(self.real)
        if seen.dim() < 2 or seen.shape[-1] != length:
            return
        if seen.shape[-2] == length:
            seen = seen[..., self.real, :]
        self.hidden.append(not bool(seen[..., ~self.real].any()))


class LoweredScores(HiddenKeys):
    """Counts all tables over keys in which a number far below zero stands at some keys alone.

    They need not be those that attention weighs: scores may be filled and not be used.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        filled = args[0] if getattr(func, "__name__", "") == "__setitem__" else result
        if isinstance(filled, torch.Tensor) and filled.is_floating_point():
            self._note(filled.detach() > LOW)
        return result


class RunningCounts(TorchFunctionMode):
    """Notes whether a running count of real tokens, or of padding, is made inside this context."""

    def __init__(self, real: torch.Tensor):
        super().__init__()
        self.tables = (real, ~real)
        self.seen = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ("cumsum", "cumsum_") and args:
            self.seen = self.seen or any(map(self._is_table, (args[0], args[0].mT)))
        return func(*args, **(kwargs or {}))

    def _is_table(self, value: torch.Tensor) -> bool:
        value = value.squeeze()
        if value.shape != self.tables[0].shape:
            return False
        return any(torch.equal(value.cpu().double(), table.double()) for table in self.tables)


def counts_real_tokens(runner: Runner, masks: Iterable[MaskArgument]) -> bool:
    """Return whether positions count the real tokens of a mask, wherever these begin.

    Who does that means to take padding before the first token, which torch's own code does not.
    """
    signature, inputs = runner.signature, runner.inputs()
    for mask in masks:
        if mask.axis != signature.axis or mask.counts:
            continue
        real = signature.all_real(inputs, mask.axis)
        for row in range(len(real)):
            real[row, : row + 1] = False
        watch, passed = RunningCounts(real), {**inputs, mask.name: mask.value(real)}
        with suppress(Exception), watch, torch.no_grad():
            runner.call(runner.complete(Run(passed, PLAIN)))
        if watch.seen:
            return True
    return False


def hides_tokens(runner: Runner, inputs: Inputs, mask: MaskArgument) -> bool:
    """Return whether attention gives hidden tokens no weight, or nothing depends on them at all.

    What hides contents alone, as a token that takes their place does, is no mask: answers must be
    those without these tokens.
    """
    real = runner.signature.all_real(inputs, mask.axis)
    length = real.shape[1]
    if _has_tables(HiddenKeys, runner, inputs, mask):
        return True
    late = real.clone()
    late[:, -3:] = False
    kept = length - 3
    changed = runner.signature.with_other(inputs, runner.inputs(seed=1), ~late, mask.axis)
    cut = runner.signature.cut(inputs, 0, kept, mask.axis)
    calls = (
        {**inputs, mask.name: mask.value(late)},
        {**changed, mask.name: mask.value(late)},
        {**cut, mask.name: mask.value(late[:, :kept])},
        changed,
    )
    answers = [runner.attempt(call, PLAIN) for call in calls]
    if any(answer is None for answer in answers):
        return False
    stop = kept if mask.axis == runner.signature.axis and runner.signature.sequential else None
    hidden, other, without, open_ = (a[:, :stop] for a in answers if a is not None)
    near = runner.facts.threshold
    matters = deviation(hidden, open_)[0] > near
    return matters and max(deviation(hidden, other)[0], deviation(hidden, without)[0]) < near


def lowers_scores(runner: Runner, inputs: Inputs, mask: MaskArgument) -> bool:
    """Return whether some table of scores, used or not, is filled where tokens are hidden."""
    return _has_tables(LoweredScores, runner, inputs, mask)


def _has_tables(kind: type[HiddenKeys], runner: Runner, inputs: Inputs, mask: MaskArgument) -> bool:
    """Return whether hidden tokens are left out of some table which does not leave them out else.

    With `HiddenKeys` the tables are weights of attention.
    """
    real = runner.signature.all_real(inputs, mask.axis)
    some, tables = real.clone(), []
    some[:, -3:] = False
    if not mask.counts:
        some[:, 1:3], some[:, -3:] = False, True
    for told in (some, real):
        watch = kind(some)
        try:
            with watch, torch.no_grad():
                passed: Any = {**inputs, mask.name: mask.value(told)}
                runner.call(runner.complete(Run(passed, PLAIN)))
        except Exception:
            return False
        tables.append(watch.hidden)
    return len(tables[0]) == len(tables[1]) and any(
        hidden and not before for hidden, before in zip(*tables, strict=True)
    )
