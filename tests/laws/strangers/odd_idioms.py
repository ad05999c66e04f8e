"""Idioms of unlike frameworks: trees of weights, hooks, odd axes, rings, buckets, scans, FFTs."""

import math

import torch
import torch.nn.functional as F
from tests.laws.strangers.case import Case
from torch import nn

V, D, H = 47, 16, 2
CAUSALITY = ("causality.perturb", "causality.gradient", "causality.prefix")
CACHE = ("cache.step", "cache.chunk")


# ------------------------------------------------------------ a tree of weights, pure functions


def dense(params, name, x):
    return torch.tensordot(x, params[f"{name}/kernel"], 1) + params[f"{name}/bias"]


class PureApply(nn.Module):
    """params is a flat dict with slashes in its names; apply(params, tokens) does the work."""

    def __init__(self):
        super().__init__()
        shapes = {"q": (D, D), "k": (D, D), "v": (D, D), "out": (D, V)}
        self.leaves = nn.ParameterList()
        self.names = []
        for name, shape in shapes.items():
            self.names += [f"{name}/kernel", f"{name}/bias"]
            self.leaves += [torch.randn(shape) / 4, torch.zeros(shape[1])]
        self.names.append("embed/table")
        self.leaves.append(torch.randn(V, D))

    def tree(self):
        return dict(zip(self.names, self.leaves, strict=True))

    def bias(self, n):
        where = torch.arange(n)
        return torch.where(where[:, None] >= where[None, :], 0.0, -1e30)

    def forward(self, tokens):
        params = self.tree()
        x = params["embed/table"][tokens]
        q, k, v = (dense(params, name, x) for name in "qkv")
        logits = torch.einsum("bid,bjd->bij", q, k) * D**-0.5 + self.bias(tokens.shape[1])
        return dense(params, "out", x + torch.einsum("bij,bjd->bid", logits.softmax(-1), v))


class PureApplyAddsOnes(PureApply):
    """The table of what is visible is added to the logits as it is."""

    def bias(self, n):
        where = torch.arange(n)
        return (where[:, None] >= where[None, :]).float()


class PureApplyFrozen(PureApply):
    """jax.lax.stop_gradient, by somebody who wanted plain arrays."""

    def tree(self):
        return {k: v.data if k.startswith("k/") else v for k, v in super().tree().items()}


# ------------------------------------------------------------ a Sequential whose hooks mix tokens


class RunningMean(nn.Module):
    def forward(self, x):
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]


def residual(module, args, output):
    return output + args[0]


class SmoothedBy:
    """A hook that blends an output with the one it saw before."""

    def __init__(self):
        self.last = None

    def __call__(self, module, args, output):
        blend = output if self.last is None else 0.9 * output + 0.1 * self.last.mean()
        self.last = output.detach()
        return blend


def hooked(extra=None):
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Embedding(V, D), RunningMean(), nn.Linear(D, D), nn.GELU(), nn.Linear(D, V)
    )
    net[2].register_forward_hook(residual)
    if extra:
        net[2].register_forward_hook(extra)
    return net


# ------------------------------------------------------------ einsum with axes named by taste


class OddAxes(nn.Module):
    """z: sample, u: asking, w: asked, f: head, g: feature."""

    axis = "w"

    def __init__(self):
        super().__init__()
        self.read = nn.Embedding(V, D)
        self.ask, self.answer, self.say = (
            nn.Parameter(torch.randn(D, H, D // H) / 4) for _ in range(3)
        )
        self.back = nn.Parameter(torch.randn(H, D // H, D) / 4)
        self.write = nn.Linear(D, V)

    def forward(self, symbols):
        s = self.read(symbols)
        scores = torch.einsum("zud,dfg,zwe,efg->zuwf", s, self.ask, s, self.answer) / 3
        n = symbols.size(1)
        late = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(late[None, :, :, None], -1e9)
        share = scores.softmax("zuwf".index(self.axis))
        return self.write(s + torch.einsum("zuwf,zwd,dfg,fge->zue", share, s, self.say, self.back))


class OddAxesOverQuestions(OddAxes):
    axis = "u"


# ------------------------------------------------------------ complex rotary, keys kept in a list


class ComplexRotary(nn.Module):
    """The cache is a list [keys, values] that is returned and handed in again."""

    def __init__(self):
        super().__init__()
        self.tok, self.qkv = nn.Embedding(V, D), nn.Linear(D, 3 * D)
        self.head = nn.Linear(D, V)
        angle = torch.arange(128)[:, None] * 100.0 ** (-torch.arange(D // 2) / (D // 2))
        self.register_buffer("angle", angle, persistent=False)

    def turn(self, x, start):
        z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        angle = self.get_buffer("angle")[start : start + x.shape[1]].to(x.dtype)
        return torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    def began(self, past):
        return past

    def forward(self, ids, kept=None):
        past = 0 if kept is None else kept[0].shape[1]
        x = self.tok(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = self.turn(q, past), self.turn(k, self.began(past))
        if kept is not None:
            k, v = torch.cat([kept[0], k], 1), torch.cat([kept[1], v], 1)
        scores = q @ k.mT / 4
        late = torch.ones(ids.shape[1], k.shape[1], dtype=torch.bool).triu(past + 1)
        y = scores.masked_fill(late, -1e9).softmax(-1) @ v
        return self.head(x + y), [k, v]


class ComplexRotaryKeysRestart(ComplexRotary):
    def began(self, past):
        return 0


# ------------------------------------------------------------ a window kept in a ring


class Ring(nn.Module):
    """Attends to the last SIZE tokens; step by step they live in a ring of SIZE slots."""

    SIZE = 4

    def __init__(self):
        super().__init__()
        self.tok, self.qkv, self.head = nn.Embedding(V, D), nn.Linear(D, 3 * D), nn.Linear(D, V)

    def slots(self, count):
        return min(count, self.SIZE)

    def forward(self, ids, cache=None):
        x = self.tok(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache is None:
            place = torch.arange(ids.shape[1])
            far = place[:, None] - place
            hidden = (far < 0) | (far >= self.SIZE)
            y = (q @ k.mT / 4).masked_fill(hidden, -1e9).softmax(-1) @ v
            return self.head(x + y)
        out = []
        for t in range(ids.shape[1]):
            slot = cache["count"] % self.SIZE
            cache["k"][:, slot], cache["v"][:, slot] = k[:, t], v[:, t]
            cache["count"] += 1
            n = self.slots(cache["count"])
            share = (q[:, t : t + 1] @ cache["k"][:, :n].mT / 4).softmax(-1)
            out.append(x[:, t : t + 1] + share @ cache["v"][:, :n])
        return self.head(torch.cat(out, 1))

    def new_cache(self, rows):
        zeros = torch.zeros(rows, self.SIZE, D)
        return {"k": zeros, "v": zeros.clone(), "count": 0}


class RingForgetsOne(Ring):
    """Once full, the slot that comes next is taken for the oldest that fell out."""

    def slots(self, count):
        return min(count, self.SIZE - 1)


# ------------------------------------------------------------ biases by bucket


class Buckets(nn.Module):
    """A learned bias for each bucket of distances, as in T5, halves and logarithms."""

    def __init__(self):
        super().__init__()
        self.tok, self.qkv, self.head = nn.Embedding(V, D), nn.Linear(D, 3 * D), nn.Linear(D, V)
        self.bias = nn.Embedding(8, 1)

    def distance(self, n):
        return torch.arange(n)[:, None] - torch.arange(n)

    def forward(self, ids):
        n, x = ids.shape[1], self.tok(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        far = self.distance(n).clamp(min=0)
        bucket = torch.where(far < 4, far, 4 + (far / 4).clamp(min=1).log2().long()).clamp(max=7)
        scores = q @ k.mT / 4 + self.bias(bucket)[..., 0]
        return self.head(x + scores.masked_fill(self.distance_hides(n), -1e9).softmax(-1) @ v)

    def distance_hides(self, n):
        return torch.ones(n, n, dtype=torch.bool).triu(1)


class BucketsFromTheEnd(Buckets):
    """Distances are counted to the last token of the sequence."""

    def distance(self, n):
        return (n - 1 - torch.arange(n))[None].expand(n, n)


# ------------------------------------------------------------ one key head for all


class OneKeyHead(nn.Module):
    """Multi-query attention over frames, with a table of frames that are there."""

    def __init__(self):
        super().__init__()
        self.inp, self.q, self.kv = nn.Linear(7, D), nn.Linear(D, D), nn.Linear(D, 2 * D // H)
        self.out = nn.Linear(D, 5)

    def spread(self, frame_mask):
        return frame_mask[:, None, None, :]

    def forward(self, frames, frame_mask=None):
        x = self.inp(frames)
        q = self.q(x).unflatten(-1, (H, -1)).transpose(1, 2)
        k, v = self.kv(x)[:, None].chunk(2, -1)
        scores = q @ k.mT / 3
        if frame_mask is not None:
            scores = scores.masked_fill(self.spread(frame_mask) == 0, -1e9)
        return self.out(x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class OneKeyHeadHidesQuestions(OneKeyHead):
    def spread(self, frame_mask):
        return frame_mask[:, None, :, None]


# ------------------------------------------------------------ experts


class Routed(nn.Module):
    """Two of four experts for each token, their shares renormalised."""

    def __init__(self):
        super().__init__()
        self.tok, self.gate = nn.Embedding(V, D), nn.Linear(D, 4, bias=False)
        self.w1, self.w2 = (nn.Parameter(torch.randn(4, D, D) / 4) for _ in range(2))
        self.head = nn.Linear(D, V)

    def shares(self, logits):
        return logits.softmax(-1)

    def forward(self, ids):
        x = self.tok(ids)
        x = x + x.cumsum(1) / torch.arange(1, ids.shape[1] + 1)[:, None]
        flat = x.flatten(0, 1)
        top, which = self.shares(self.gate(flat)).topk(2, -1)
        top = top / top.sum(-1, keepdim=True)
        every = torch.einsum("nd,edf->nef", flat, self.w1).relu()
        every = torch.einsum("nef,efd->ned", every, self.w2)
        chosen = every.gather(1, which[..., None].expand(-1, -1, D))
        return self.head(x + (chosen * top[..., None]).sum(1).view_as(x))


class RoutedOverTokens(Routed):
    """The gate's softmax runs over the flattened tokens."""

    def shares(self, logits):
        return logits.softmax(0)


# ------------------------------------------------------------ convolutions


class Dilated(nn.Module):
    """A stack of dilated convolutions that are padded on both sides and chopped at the end."""

    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.convs = nn.ModuleList(
            nn.Conv1d(D, D, 3, padding=2 * d, dilation=d, groups=2) for d in (1, 2)
        )
        self.head = nn.Conv1d(D, V, 1)

    def chop(self, y, extra):
        return y[..., :-extra]

    def forward(self, ids):
        x = self.tok(ids).mT
        for extra, conv in zip((2, 4), self.convs, strict=True):
            x = x + self.chop(conv(x), extra).relu()
        return self.head(x).mT


class DilatedChoppedInFront(Dilated):
    def chop(self, y, extra):
        return y[..., extra:]


class LongFilter(nn.Module):
    """A filter as long as the sequence, applied by FFT; twice as long, so that nothing wraps."""

    def __init__(self):
        super().__init__()
        self.tok, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.filter = nn.Parameter(torch.randn(D, 512) / 8)

    def size(self, n):
        return 2 * n

    @torch.no_grad()
    def generate(self, ids, count):
        for _ in range(count):
            ids = torch.cat([ids, self(ids)[:, -1:].argmax(-1)], 1)
        return ids

    def forward(self, ids):
        x, n = self.tok(ids).mT, ids.shape[1]
        m = self.size(n)
        y = torch.fft.irfft(torch.fft.rfft(x, n=m) * torch.fft.rfft(self.filter[:, :n], n=m), n=m)
        return self.head((x + y[..., :n]).mT)


class LongFilterWraps(LongFilter):
    def size(self, n):
        return n


# ------------------------------------------------------------ state spaces


class DiagonalState(nn.Module):
    """h = a h + b x with a diagonal of its own for every feature, gated by x."""

    def __init__(self):
        super().__init__()
        self.tok, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.log_a, self.b = nn.Parameter(torch.rand(D)), nn.Linear(D, D)

    def scaled(self, u):
        return u / (1 + u.abs())

    def forward(self, ids, targets=None):
        x = self.tok(ids)
        u, a = self.scaled(self.b(x)), torch.exp(-F.softplus(self.log_a))
        h, states = torch.zeros_like(x[:, 0]), []
        for t in range(ids.shape[1]):
            h = a * h + u[:, t]
            states.append(h)
        scores = self.head(torch.stack(states, 1) * x.sigmoid())
        if targets is None:
            return scores, None
        return scores, F.cross_entropy(scores[:, :-1].flatten(0, 1), targets[:, 1:].flatten())


class DiagonalStateScaledByTheWhole(DiagonalState):
    def scaled(self, u):
        return u / u.abs().amax(1, keepdim=True)


class Chunked(nn.Module):
    """Linear attention in chunks of eight; what came before is a sum."""

    CHUNK = 8

    def __init__(self):
        super().__init__()
        self.tok, self.qkv, self.head = nn.Embedding(V, D), nn.Linear(D, 3 * D), nn.Linear(D, V)

    def after(self, state, k, v):
        return state, state + k.mT @ v

    def forward(self, ids):
        x = self.tok(ids)
        state, out = x.new_zeros(len(ids), D, D), []
        for piece in x.split(self.CHUNK, 1):
            q, k, v = self.qkv(piece).chunk(3, -1)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            before, state = self.after(state, k, v)
            out.append((q @ k.mT).tril() @ v + q @ before)
        return self.head(x + torch.cat(out, 1) / math.sqrt(D))


class ChunkedSeesItself(Chunked):
    """The state takes the chunk in before it is read."""

    def after(self, state, k, v):
        state = state + k.mT @ v
        return state, state


CASES = [
    Case("mask-of-ones-is-added", PureApplyAddsOnes, PureApply, CAUSALITY, ""),
    Case("keys-are-plain-arrays", PureApplyFrozen, PureApply, ("gradient.reaches",), ""),
    Case("hook-remembers", lambda: hooked(SmoothedBy()), hooked, ("determinism",), ("", "2")),
    Case("softmax-over-questions", OddAxesOverQuestions, OddAxes, CAUSALITY, ""),
    Case("rotated-keys-restart", ComplexRotaryKeysRestart, ComplexRotary, CACHE, ""),
    Case("ring-forgets-one", RingForgetsOne, Ring, CACHE, ""),
    Case("buckets-from-the-end", BucketsFromTheEnd, Buckets, CAUSALITY, ""),
    Case(
        "mask-over-questions",
        lambda: (OneKeyHeadHidesQuestions(), {"frames": torch.randn(2, 9, 7)}),
        lambda: (OneKeyHead(), {"frames": torch.randn(2, 9, 7)}),
        ("padding.right", "padding.gradient"),
        "",
    ),
    Case(
        "gate-over-tokens",
        RoutedOverTokens,
        Routed,
        (*CAUSALITY, "batch.others", "batch.alone"),
        "",
    ),
    Case("chopped-in-front", DilatedChoppedInFront, Dilated, CAUSALITY, ("", "convs.*")),
    Case("filter-wraps", LongFilterWraps, LongFilter, CAUSALITY, ""),
    Case("state-scaled-by-the-whole", DiagonalStateScaledByTheWhole, DiagonalState, CAUSALITY, ""),
    Case("chunk-sees-itself", ChunkedSeesItself, Chunked, CAUSALITY, ""),
]
