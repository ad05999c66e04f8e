"""Which keys a query sees once the tokens of each document stand in one piece."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from querykey.backends.operators import unwatched, version


class Intervals(NamedTuple):
    """Tokens sorted by document, and what stands at each place; whole numbers of 32 bits.

    order (rows, T): the token at each place. table (3, rows, T): the first place of its document,
    the one after the last, and how many real keys a query sees; with padding a fourth row, 1 for
    real tokens. facts (rows, 2): the tokens of the longest document, and 1 if a token has moved.
    """

    order: Tensor
    table: Tensor
    facts: Tensor


class DocumentFacts(NamedTuple):
    """The facts of `Intervals` over all rows, once the host knows them."""

    longest: int
    moved: bool


def intervals(ids: Tensor, real: Tensor | None, causal: bool) -> Intervals:
    """Return the intervals for ids (rows, T) and real tokens (rows, T), if there is padding."""
    ids, order = ids.long().sort(stable=True, dim=-1)
    low, end = torch.searchsorted(ids, ids), torch.searchsorted(ids, ids, right=True)
    place = torch.arange(ids.shape[-1], device=ids.device).expand_as(end)
    facts = torch.stack([(end - low).amax(-1), (order != place).any(-1)], -1)
    up = place + 1 if causal else end
    if real is None:
        table = torch.stack([low, end, up - low])
    else:
        real = real.gather(-1, order)
        count = torch.nn.functional.pad(real.cumsum(-1), (1, 0))
        table = torch.stack([low, end, count.gather(-1, up) - count.gather(-1, low), real])
    return Intervals(order.int(), table.int(), facts.int())


def kept_intervals(
    ids: Tensor, batch: torch.Size, causal: bool
) -> tuple[Intervals, DocumentFacts | None]:
    """Return the intervals for ids (*batch or fewer axes, T), found once for a tensor of ids.

    They are found again if the ids have been written to. The facts come with them once they have
    come from the GPU, which nobody waits for. A graph that is being recorded may get other ids when
    it runs, and operators are what a compiler sees: neither gets what was kept.
    """
    if not unwatched(ids) or (ids.is_cuda and torch.cuda.is_current_stream_capturing()):
        return intervals(as_rows(ids, batch), None, causal), None
    stream = torch.cuda.current_stream(ids.device) if ids.is_cuda else None
    how = (version(ids), batch, causal, stream)
    kept = _KEPT.get(ids)
    if kept is None or kept.how != how:
        kept = _KEPT[ids] = _Kept(how, intervals(as_rows(ids, batch), None, causal))
    return kept.found, kept.facts()


class _Kept:
    """Intervals, how they were found, and their facts on their way to the host."""

    def __init__(self, how: tuple, found: Intervals):
        self.how, self.found = how, found
        self._facts: DocumentFacts | None = None
        self._arriving, self._event = found.facts, None
        if found.facts.is_cuda:
            self._arriving = torch.empty_like(found.facts, device="cpu", pin_memory=True)
            self._arriving.copy_(found.facts, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def facts(self) -> DocumentFacts | None:
        """Return the facts over all rows; None until they have arrived."""
        if self._facts is None and (self._event is None or self._event.query()):
            longest, moved = self._arriving.amax(0).tolist()
            self._facts = DocumentFacts(longest, bool(moved))
        return self._facts


_KEPT: WeakIdKeyDictionary = WeakIdKeyDictionary()


def as_rows(x: Tensor, batch: torch.Size) -> Tensor:
    """Return x (..., T) as one row for each of the batch."""
    return x.expand(*batch, x.shape[-1]).reshape(batch.numel(), -1)
