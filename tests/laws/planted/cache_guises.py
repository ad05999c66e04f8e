"""Caches that no usual name gives away: asked for by a switch, in an object, or fed by steps."""

from dataclasses import dataclass, field

import torch
from tests.laws.strangers.case import Case
from torch import nn

WORDS, WIDTH, HEADS = 61, 24, 2


def turned(x, start):
    """Return queries or keys turned by their positions, which count from `start`."""
    half = torch.arange(0, x.shape[-1], 2) / x.shape[-1]
    angles = torch.arange(start, start + x.shape[-2])[:, None] * 100**-half
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cosine - b * sine, a * sine + b * cosine], -1).flatten(-2)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def heads(self, x, start):
        split = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k, v = split
        return turned(q, start), turned(k, start), v

    def look(self, x, q, k, v):
        T, S = q.shape[2], k.shape[2]
        seen = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Stack(nn.Module):
    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def run(self, ids, past, start):
        x, kept = self.embed(ids), []
        for index, layer in enumerate(self.layers):
            q, k, v = layer.heads(x, start)
            if past is not None:
                k, v = torch.cat([past[index][0], k], 2), torch.cat([past[index][1], v], 2)
            kept.append((k, v))
            x = layer.look(x, q, k, v)
        return self.head(x), kept


class Memories(Stack):
    """Returned when a switch asks for it, under a name of its own."""

    def forward(self, ids, memories=None, return_memories=False):
        start = 0 if memories is None or self.fault == "restarts" else memories[0][0].shape[2]
        if memories is not None and self.fault == "swapped":
            memories = [(k, v.roll(1, 2)) for k, v in memories]
        scores, kept = self.run(ids, memories, start)
        return (scores, kept) if return_memories or memories is not None else scores


@dataclass
class Tape:
    pairs: list = field(default_factory=list)
    seen: int = 0


class Annotated(Stack):
    """An object of the user's own class, which is known by the annotation alone."""

    def forward(self, ids, tape: Tape | None = None):
        past = tape.pairs if tape is not None and tape.pairs else None
        scores, kept = self.run(ids, past, 0 if tape is None else tape.seen)
        if tape is not None:
            tape.pairs = kept
            tape.seen += 1 if self.fault == "counts calls" else ids.shape[1]
        return scores


class Stepping(Stack):
    """A method for one token, beside a forward pass that keeps nothing."""

    def forward(self, ids):
        return self.run(ids, None, 0)[0]

    def new_state(self):
        return {"past": None, "count": 0}

    def step(self, token, state):
        scores, kept = self.run(token[:, None], state["past"], state["count"])
        more = 0 if self.fault == "does not count" else 1
        return scores[:, -1], {"past": kept, "count": state["count"] + more}


class Repeating(Stack):
    """What comes back is the text so far, which is read again."""

    def forward(self, ids, tape=None):
        text = ids if tape is None else torch.cat([tape, ids], 1)
        scores = self.run(text, None, 0)[0][:, -ids.shape[1] :]
        return scores, text[:, -4:] if self.fault == "forgets" else text


STEP = ("cache.step",)
CASES = [
    Case("memories-restart", lambda: Memories("restarts"), Memories, STEP, ""),
    Case("memories-swapped", lambda: Memories("swapped"), Memories, STEP, ""),
    Case("an-annotated-object-counts-calls", lambda: Annotated("counts calls"), Annotated, STEP,
         ""),
    Case("a-step-does-not-count", lambda: Stepping("does not count"), Stepping, STEP, ""),
    Case("a-tape-forgets", lambda: Repeating("forgets"), Repeating, STEP, ""),
]  # fmt: skip
