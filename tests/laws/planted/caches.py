"""Caches of four kinds, whose faults show when beams, drafts or left padding change them."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from tests.laws.strangers.case import Case
from torch import nn

WORDS, WIDTH = 43, 16


def attend(q, k, v, seen):
    scores = q @ k.mT / q.size(-1) ** 0.5
    return scores.masked_fill(~seen, torch.finfo(q.dtype).min).softmax(-1) @ v


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, past, real, alone=False):
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        T, S = q.size(1), k.size(1)
        seen = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        if not (alone and T == 1):
            seen = seen & real[:, None, :S]
        return x + attend(q, k, v, seen), (k, v)


class Tuples(nn.Module):
    """Keys and values as tuples of tensors, positions counted from the mask."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.count = fault, 0
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(200, WIDTH)
        self.layers = nn.ModuleList([Mixer(), Mixer()])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, attention_mask=None, past_key_values=None):
        old = 0 if past_key_values is None else past_key_values[0][0].size(1)
        if self.fault == "counts by itself":
            self.count = old = 0 if past_key_values is None else self.count
            self.count += ids.size(1)
        real = torch.ones(len(ids), old + ids.size(1)) if attention_mask is None else attention_mask
        places = (real.long().cumsum(1) - 1).clamp(min=0)[:, -ids.size(1) :]
        if self.fault == "decodes at the length" and old:
            places = torch.arange(old, old + ids.size(1)).expand_as(ids)
        x, after = self.embed(ids) + self.place(places), []
        for index, layer in enumerate(self.layers):
            past = None if past_key_values is None else past_key_values[index]
            x, new = layer(x, past, real.bool(), self.fault == "a single token sees all")
            after.append(new)
        return self.head(x), tuple(after)

    @staticmethod
    def _reorder_cache(past, beam_idx):
        return tuple((k.index_select(0, beam_idx), v.index_select(0, beam_idx)) for k, v in past)


class KeysAlone(Tuples):
    @staticmethod
    def _reorder_cache(past, beam_idx):
        return tuple((k.index_select(0, beam_idx), v) for k, v in past)


class KVCache:
    """Keys and values that grow in an object with methods of its own."""

    def __init__(self):
        self.keys, self.values = [], []

    def update(self, index, k, v):
        if len(self.keys) == index:
            self.keys.append(k)
            self.values.append(v)
        else:
            self.keys[index] = torch.cat([self.keys[index], k], 1)
            self.values[index] = torch.cat([self.values[index], v], 1)
        return self.keys[index], self.values[index]

    def reorder_cache(self, rows):
        self.keys, self.values = ([t[rows] for t in held] for held in (self.keys, self.values))

    def crop(self, length):
        self.keys, self.values = (
            [t[:, :length] for t in held] for held in (self.keys, self.values)
        )


class FirstLayerForgotten(KVCache):
    def reorder_cache(self, rows):
        self.keys[1:] = [t[rows] for t in self.keys[1:]]
        self.values[1:] = [t[rows] for t in self.values[1:]]


class OneTooMany(KVCache):
    def crop(self, length):
        super().crop(length + 1)


class Objects(nn.Module):
    """A cache object that the caller gets back; relative distances in place of positions."""

    def __init__(self, cache=KVCache, alone=False, fault=""):
        super().__init__()
        self.cache, self.alone, self.fault = cache, alone, fault
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2)])

    def forward(self, ids, attention_mask=None, cache=None, use_cache=True):
        cache = self.cache() if cache is None else cache
        x = self.embed(ids)
        for index, layer in enumerate(self.layers):
            q, k, v = layer(x).chunk(3, -1)
            k, v = cache.update(index, k, v)
            T, S = q.size(1), k.size(1)
            far = torch.arange(S)[None] - torch.arange(S - T, S)[:, None]
            seen = (far <= 0)[None]
            if attention_mask is not None and not (self.alone and S > T):
                given = attention_mask.bool()
                seen = seen & (given[:, -S:] if self.fault != "mask cut" else given[:, :S].flip(1)
                               if S > T else given)[:, None]  # fmt: skip
            scores = q @ k.mT / q.size(-1) ** 0.5 + 0.3 * far
            x = x + scores.masked_fill(~seen, -1e30).softmax(-1) @ v
        return {"logits": self.head(x), "cache": cache}


class Memory(NamedTuple):
    total: torch.Tensor
    last: torch.Tensor


class Recurrent(nn.Module):
    """A gated sum whose state is a named tuple."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.gate, self.write = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kept = None

    def forward(self, ids, attention_mask=None, state=None):
        x = self.embed(ids)
        if state is None:
            state = Memory(x.new_zeros(len(x), WIDTH), x.new_zeros(len(x), WIDTH))
        elif self.fault == "part of the state is kept":
            state = state._replace(last=self.kept)
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        real = real[:, -ids.size(1) :].bool()
        total, last, outputs = *state, []
        if self.fault == "a padded chunk starts afresh" and not real.all():
            total = torch.zeros_like(total)
        if self.fault == "hidden rows lose what came last":
            last = last * real[:, :1]
        for t in range(ids.size(1)):
            keep = torch.sigmoid(self.gate(torch.cat([x[:, t], last], -1)))
            fresh = keep * total + (1 - keep) * self.write(x[:, t])
            total = torch.where(real[:, t, None], fresh, total)
            last = torch.where(real[:, t, None], x[:, t], last)
            outputs.append(total)
        self.kept = last
        return self.head(torch.stack(outputs, 1)), Memory(total, last)


@dataclass(frozen=True)
class Room:
    """A cache with room for more tokens than it has, and the number that it has."""

    keys: torch.Tensor
    values: torch.Tensor
    length: int = 0

    def select(self, rows):
        return replace(self, keys=self.keys[rows], values=self.values[rows])


class ValuesForgotten(Room):
    def select(self, rows):
        return replace(self, keys=self.keys[rows])


class Preallocated(nn.Module):
    """A stateless forward and an `extend` that takes and returns a value."""

    def __init__(self, room=Room, fault=""):
        super().__init__()
        self.room, self.fault = room, fault
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WORDS)

    def empty_state(self, batch):
        return self.room(torch.zeros(batch, 64, WIDTH), torch.zeros(batch, 64, WIDTH))

    def extend(self, ids, state):
        start, stop = state.length, state.length + ids.size(1)
        x = self.embed(ids) + self.place(torch.arange(start, stop))
        q, k, v = self.qkv(x).chunk(3, -1)
        keys, values = state.keys, state.values
        if self.fault != "written in place":
            keys, values = keys.clone(), values.clone()
            keys[:, start:stop], values[:, start:stop] = k, v
        else:  # a sum of what was there keeps the old value from staying true
            keys[:, start:stop] += k
            values[:, start:stop] += v
        seen = torch.arange(64)[None] <= torch.arange(start, stop)[:, None]
        x = x + attend(q, keys, values, seen)
        return self.head(x), replace(state, keys=keys, values=values, length=stop)

    def forward(self, ids):
        return self.extend(ids, self.empty_state(len(ids)))[0]


class Inside(nn.Module):
    """A cache that the model keeps, told where it stands by a number."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.high = fault, 0
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WORDS)
        self.keys = self.values = torch.zeros(8, 64, WIDTH)

    def forward(self, ids, start_pos: int = 0):
        B, T = ids.shape
        stop = start_pos + T
        if start_pos == 0:
            self.keys, self.values, self.high = (torch.zeros(B, 64, WIDTH) for _ in "kv"), None, 0
            self.keys, self.values = self.keys
        x = self.embed(ids) + self.place(torch.arange(start_pos, stop))
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys, self.values = self.keys.to(k), self.values.to(v)
        self.keys = torch.cat([self.keys[:, :start_pos], k, self.keys[:, stop:]], 1)
        self.values = torch.cat([self.values[:, :start_pos], v, self.values[:, stop:]], 1)
        self.high = max(self.high, stop)
        last = self.high if self.fault == "stale keys are seen" else stop
        seen = torch.ones(T, last, dtype=torch.bool).tril(start_pos)
        if self.fault == "stale keys are seen":
            seen = torch.ones(T, last, dtype=torch.bool).tril(last - T)
        return self.head(x + attend(q, self.keys[:, :last], self.values[:, :last], seen))


REORDER, CROP, PADDED = ("cache.reorder",), ("cache.crop",), ("cache.padded",)
CASES = [
    Case("values-stay-where-they-were", KeysAlone, Tuples, REORDER, ""),
    Case("a-layer-is-forgotten", lambda: Objects(FirstLayerForgotten), Objects, REORDER, ""),
    Case("part-of-the-state-is-kept", lambda: Recurrent("part of the state is kept"), Recurrent,
         REORDER, ""),
    Case("values-are-not-selected", lambda: Preallocated(ValuesForgotten), Preallocated, REORDER,
         None),
    Case("positions-are-counted-inside", lambda: Tuples("counts by itself"), Tuples, CROP, ""),
    Case("one-too-many-stays", lambda: Objects(OneTooMany), Objects, CROP, ""),
    Case("stale-keys-are-seen", lambda: Inside("stale keys are seen"), Inside, CROP, ""),
    Case("the-old-value-changes", lambda: Preallocated(fault="written in place"), Preallocated,
         CROP, None),
    Case("decodes-at-the-length", lambda: Tuples("decodes at the length"), Tuples, PADDED, ""),
    Case("a-single-token-sees-all", lambda: Tuples("a single token sees all"), Tuples, PADDED,
         "layers.0"),
    Case("mask-lost-with-the-cache", lambda: Objects(alone=True), Objects, PADDED, ""),
    Case("a-padded-chunk-starts-afresh", lambda: Recurrent("a padded chunk starts afresh"),
         Recurrent, PADDED, ""),
    Case("the-mask-is-turned", lambda: Objects(fault="mask cut"), Objects, PADDED, ""),
]  # fmt: skip
