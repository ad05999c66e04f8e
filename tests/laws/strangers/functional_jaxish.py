"""Models as pure functions: parameters in a dict, apply(params, x), masks as rules over (i, j)."""

from functools import partial

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.func import vmap

# --- rules: may query i look at key j? ---


def causal(i, j):
    return j <= i


def everything(i, j):
    return (i >= 0) & (j >= 0)


def near(width):
    return lambda i, j: (i - j).abs() < width


def both(f, g):
    return lambda i, j: f(i, j) & g(i, j)


def either(f, g):
    return lambda i, j: f(i, j) | g(i, j)


def causal_key_first(j, i):
    return j <= i


def causal_with_target(i, j):
    return j <= i + 1


def grid(rule, queries, keys, like, start=0):
    i = torch.arange(start, start + queries, device=like.device)
    j = torch.arange(keys, device=like.device)
    return rule(i[:, None], j[None, :])


def vmap_grid(rule, n):
    at = torch.arange(n)
    return vmap(vmap(rule, in_dims=(None, 0)), in_dims=(0, None))(at, at)


def vmap_grid_columns(rule, n):
    at = torch.arange(n)
    return vmap(vmap(rule, in_dims=(0, None)), in_dims=(None, 0))(at, at)


# --- pieces ---


def rms(g, x):
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * g


def rms_axis0(g, x):
    return x * (x.pow(2).mean(0, keepdim=True) + 1e-6).rsqrt() * g


def rms_scalar(g, x):
    return x * (x.pow(2).mean() + 1e-6).rsqrt() * g


def angles(start, x):
    """Never below float32: position 4001 is not a number of bfloat16."""
    exact = {"dtype": torch.promote_types(x.dtype, torch.float32), "device": x.device}
    half = x.shape[-1] // 2
    at = torch.arange(start, start + x.shape[-3], **exact)
    speed = 100.0 ** -(torch.arange(half, **exact) / half)
    return torch.einsum("t,f->tf", at, speed)[:, None, :]


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def rope(x, start=0):
    """x: (..., time, heads, head_dim)."""
    theta = angles(start, x)
    return rotate(x, theta.cos().to(x.dtype), theta.sin().to(x.dtype))


def rope_f32(x, start=0):
    theta = angles(start, x)
    return rotate(x, theta.cos(), theta.sin())


def project(p, x):
    return (torch.einsum("...td,dhk->...thk", x, p[name]) for name in ("wq", "wk", "wv"))


def mlp(p, x):
    return torch.einsum(
        "...m,md->...d", torch.einsum("...d,dm->...m", x, p["up"]).relu(), p["down"]
    )


# --- ways to attend: (layer params, x) -> x ---


def attend(p, x, rule=causal, turn=rope):
    q, k, v = project(p, x)
    q, k = turn(q), turn(k)
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    s = torch.where(grid(rule, x.shape[1], x.shape[1], x), s, -torch.inf)
    return torch.einsum("bhqk,bkhd,hde->bqe", s.softmax(-1), v, p["wo"])


def attend_where(p, x):
    q, k, v = project(p, x)
    s = torch.einsum("bqhd,bkhd->bhqk", rope(q), rope(k)) * q.shape[-1] ** -0.5
    torch.where(grid(causal, x.shape[1], x.shape[1], x), s, -torch.inf)
    return torch.einsum("bhqk,bkhd,hde->bqe", s.softmax(-1), v, p["wo"])


def attend_biased(p, x):
    q, k, v = project(p, x)
    s = torch.einsum("bqhd,bkhd->bhqk", rope(q), rope(k)) * q.shape[-1] ** -0.5
    bias = grid(causal, x.shape[1], x.shape[1], x).to(s.dtype)
    return torch.einsum("bhqk,bkhd,hde->bqe", (s + bias).softmax(-1), v, p["wo"])


def attend_heads_last(p, x, axis=-2):
    """Scores are (batch, query, key, head) here, which saves a transpose of the values."""
    q, k, v = project(p, x)
    s = torch.einsum("bqhd,bkhd->bqkh", rope(q), rope(k)) * q.shape[-1] ** -0.5
    seen = grid(causal, x.shape[1], x.shape[1], x)[None, :, :, None]
    a = torch.where(seen, s, torch.finfo(s.dtype).min).softmax(axis)
    return torch.einsum("bqkh,bkhd,hde->bqe", a, v, p["wo"])


def attend_letters(p, x, mix="bhkq,bkhd,hde->bqe"):
    q, k, v = project(p, x)
    s = torch.einsum("bqhd,bkhd->bhqk", rope(q), rope(k)) * q.shape[-1] ** -0.5
    s = torch.where(grid(causal, x.shape[1], x.shape[1], x), s, -torch.inf)
    return torch.einsum(mix, s.softmax(-1), v, p["wo"])


def attend_unscaled(p, x):
    q, k, v = project(p, x)
    s = torch.einsum("bqhd,bkhd->bhqk", rope(q), rope(k))
    s = torch.where(grid(causal, x.shape[1], x.shape[1], x), s, -torch.inf)
    return torch.einsum("bhqk,bkhd,hde->bqe", s.softmax(-1), v, p["wo"])


def attend_sg(p, x):
    """Keys are targets, as in momentum contrast; only queries and values learn."""
    sg = torch.Tensor.detach
    q, k, v = project(p, x)
    s = torch.einsum("bqhd,bkhd->bhqk", rope(q), rope(sg(k))) * q.shape[-1] ** -0.5
    s = torch.where(grid(causal, x.shape[1], x.shape[1], x), s, -torch.inf)
    return torch.einsum("bhqk,bkhd,hde->bqe", s.softmax(-1), v, p["wo"])


def attend_relu(p, x, count=lambda seen: seen.sum(-1)):
    """Attention without softmax (Wortsman et al.): relu of the scores over how many are seen."""
    q, k, v = project(p, x)
    s = torch.einsum("bqhd,bkhd->bhqk", rope(q), rope(k)).relu()
    seen = grid(causal, x.shape[1], x.shape[1], x)
    a = torch.where(seen, s, 0.0) / count(seen)[:, None]
    return torch.einsum("bhqk,bkhd,hde->bqe", a, v, p["wo"])


def attend_one(p, x, table=vmap_grid):
    """One sequence, (time, dim): batching is somebody else's job."""
    q, k, v = project(p, x)
    s = torch.einsum("qhd,khd->hqk", rope(q), rope(k)) * q.shape[-1] ** -0.5
    s = torch.where(table(causal, x.shape[0]), s, -torch.inf)
    return torch.einsum("hqk,khd,hde->qe", s.softmax(-1), v, p["wo"])


# --- models ---


def weights(dim=24, heads=3, depth=2, vocab=37, head_dim=None):
    head_dim = head_dim or dim // heads

    def w(*shape, fan=None):
        return nn.Parameter(torch.randn(*shape) * (fan or shape[0]) ** -0.5)

    params = {"embed": w(vocab, dim, fan=1), "g": nn.Parameter(torch.ones(dim))}
    for n in range(depth):
        params |= {f"{n}/{name}": w(dim, heads, head_dim) for name in ("wq", "wk", "wv")}
        params |= {f"{n}/wo": w(heads, head_dim, dim, fan=dim)}
        params |= {f"{n}/up": w(dim, 2 * dim), f"{n}/down": w(2 * dim, dim)}
        params |= {f"{n}/{name}": nn.Parameter(torch.ones(dim)) for name in ("g1", "g2")}
    return params


def layers(params):
    depth = sum(name.endswith("/wq") for name in params.keys())  # noqa: SIM118
    for n in range(depth):
        yield {key.split("/")[1]: params[key] for key in params if key.startswith(f"{n}/")}


def unembed(params, x, norm=rms):
    return torch.einsum("...td,vd->...tv", norm(params["g"], x), params["embed"])


def lm(params, ids, attend=attend, norm=rms):
    x = params["embed"][ids]
    for p in layers(params):
        x = x + attend(p, norm(p["g1"], x))
        x = x + mlp(p, norm(p["g2"], x))
    return unembed(params, x)


def batched_lm(params, ids, attend=attend_one, norm=rms, axis=0):
    params = dict(params.items())

    def block(p, x):
        x = x + attend(p, norm(p["g1"], x))
        return x + mlp(p, norm(p["g2"], x))

    x = params["embed"][ids]
    for p in layers(params):
        x = vmap(block, in_dims=(None, axis), out_dims=axis)(p, x)
    return unembed(params, x)


def composed_lm(params, ids):
    steps = []
    for p in layers(params):
        steps.append(lambda x, p=p: x + attend(p, rms(p["g1"], x)))
        steps.append(lambda x, p=p: x + mlp(p, rms(p["g2"], x)))
    x = params["embed"][ids]
    for step in steps:
        x = step(x)
    return unembed(params, x)


def composed_lm_late(params, ids):
    steps = []
    for p in layers(params):
        steps.append(lambda x: x + attend(p, rms(p["g1"], x)))  # noqa: B023
        steps.append(lambda x: x + mlp(p, rms(p["g2"], x)))  # noqa: B023
    x = params["embed"][ids]
    for step in steps:
        x = step(x)
    return unembed(params, x)


def waves(at, dim, like):
    speed = 50.0 ** -(torch.arange(dim // 2, device=like.device) / (dim // 2))
    theta = torch.einsum("t,f->tf", at.to(speed.dtype), speed)
    return torch.cat([theta.sin(), theta.cos()], -1).to(like.dtype)


def forwards(n):
    return torch.arange(n)


def age(n):
    """How many tokens ago: 0 is the newest."""
    return torch.arange(n - 1, -1, -1)


def wave_lm(params, ids, where=forwards):
    x = params["embed"][ids]
    x = x + waves(where(ids.shape[1]).to(ids.device), x.shape[-1], x)
    for p in layers(params):
        x = x + attend(p, rms(p["g1"], x), turn=lambda t: t)
        x = x + mlp(p, rms(p["g2"], x))
    return unembed(params, x)


def split_heads_back(y):
    """(batch, heads, time, head_dim) -> (batch, time, dim)."""
    return torch.einsum("bhtd->bthd", y).flatten(2)


def reshape_heads_back(y):
    b, h, t, d = y.shape
    return y.reshape(b, t, h * d)


def set_tagger(params, ids, merge=split_heads_back):
    """A bag of tokens has no order: no positions, no mask."""
    x = params["embed"][ids]
    for p in layers(params):
        q, k, v = project(p, rms(p["g1"], x))
        a = (torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5).softmax(-1)
        y = merge(torch.einsum("bhqk,bkhd->bhqd", a, v))
        x = x + torch.einsum("btf,fe->bte", y, p["wo"].flatten(0, 1))
        x = x + mlp(p, rms(p["g2"], x))
    return torch.einsum("btd,vd->btv", rms(params["g"], x), params["embed"][:5])


class Pure(nn.Module):
    """All state is `params`; all behaviour is `fn`."""

    def __init__(self, fn, params):
        super().__init__()
        self.params = nn.ParameterDict(params)
        self.fn = fn

    def forward(self, ids):
        return self.fn(self.params, ids)


class Frozen(Pure):
    def forward(self, ids):
        leaves = {name: leaf.detach() for name, leaf in self.params.items()}
        return self.fn(leaves, ids)


class Layer(nn.Module):
    def __init__(self, fn, params):
        super().__init__()
        self.params = nn.ParameterDict(params)
        self.fn = fn

    def forward(self, x):
        p = self.params
        x = x + self.fn(p, rms(p["g1"], x))
        return x + mlp(p, rms(p["g2"], x))


class Stack(nn.Module):
    """A Layer for every function of `fns`, between one table used at both ends."""

    def __init__(self, *fns):
        super().__init__()
        params = weights(depth=len(fns))
        self.embed, self.g = params["embed"], params["g"]
        self.layers = nn.ModuleList(Layer(f, p) for f, p in zip(fns, layers(params), strict=True))

    def forward(self, ids):
        x = self.embed[ids]
        for layer in self.layers:
            x = layer(x)
        return unembed({"g": self.g, "embed": self.embed}, x)


def no_drop(x):
    return x


def drop(x, rate=0.1):
    return torch.where(torch.rand_like(x) < rate, 0.0, x / (1 - rate))


class Noisy(nn.Module):
    """Dropout by hand; `noise(training)` says which function of x to use."""

    def __init__(self, noise):
        super().__init__()
        self.params = nn.ParameterDict(weights())
        self.noise = noise

    def forward(self, ids):
        noise = self.noise(self.training)
        x = noise(self.params["embed"][ids])
        for p in layers(self.params):
            x = x + noise(attend(p, rms(p["g1"], x)))
            x = x + noise(mlp(p, rms(p["g2"], x)))
        return unembed(self.params, x)


# --- padding: valid is (batch, time), True for tokens ---


def seen_keys(rule, valid):
    n = valid.shape[1]
    own = torch.eye(n, dtype=torch.bool, device=valid.device)
    return grid(rule, n, n, valid) & (valid[:, None, :] | own)


def seen_keys_strict(rule, valid):
    n = valid.shape[1]
    return grid(rule, n, n, valid) & valid[:, None, :]


def seen_queries(rule, valid):
    n = valid.shape[1]
    own = torch.eye(n, dtype=torch.bool, device=valid.device)
    return grid(rule, n, n, valid) & (valid[:, :, None] | own)


class Masked(nn.Module):
    def __init__(self, rule, seen):
        super().__init__()
        self.params = nn.ParameterDict(weights())
        self.rule, self.seen = rule, seen

    def forward(self, ids, valid=None):
        if valid is None:
            valid = torch.ones_like(ids, dtype=torch.bool)
        seen = self.seen(self.rule, valid.bool())[:, None]
        x = self.params["embed"][ids]
        for p in layers(self.params):
            q, k, v = project(p, rms(p["g1"], x))
            s = torch.einsum("bqhd,bkhd->bhqk", rope(q), rope(k)) * q.shape[-1] ** -0.5
            a = torch.where(seen, s, -torch.inf).softmax(-1)
            x = x + torch.einsum("bhqk,bkhd,hde->bqe", a, v, p["wo"])
            x = x + mlp(p, rms(p["g2"], x))
        return unembed(self.params, x)


# --- decoding: (params, ids, cache) -> (logits, cache), nothing is written in place ---


def from_start(start):
    return start


def from_zero(start):
    return 0


def chunk_seen(n, start, like):
    return grid(causal, n, start + n, like, start)


def chunk_seen_no_offset(n, start, like):
    return grid(causal, n, start + n, like)


def chunk_seen_first_only(n, start, like):
    """Only the prompt needs a mask: afterwards everything in the cache is the past."""
    return grid(causal if start == 0 else everything, n, start + n, like)


def decode(params, ids, cache, turn_at=from_start, seen=chunk_seen):
    cache = cache or {"length": 0, "layers": [None] * sum(1 for _ in layers(params))}
    start, kept = cache["length"], []
    x = params["embed"][ids]
    for p, past in zip(layers(params), cache["layers"], strict=True):
        q, k, v = project(p, rms(p["g1"], x))
        q, k = rope(q, turn_at(start)), rope(k, turn_at(start))
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        kept.append((k, v))
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        s = torch.where(seen(ids.shape[1], start, x), s, -torch.inf)
        x = x + torch.einsum("bhqk,bkhd,hde->bqe", s.softmax(-1), v, p["wo"])
        x = x + mlp(p, rms(p["g2"], x))
    return unembed(params, x), {"length": start + ids.shape[1], "layers": kept}


class Decoding(nn.Module):
    def __init__(self, fn=decode):
        super().__init__()
        self.params = nn.ParameterDict(weights())
        self.fn = fn

    def forward(self, ids, cache=None):
        return self.fn(self.params, ids, cache)


def pure(fn, **shape):
    return lambda: Pure(fn, weights(**shape))


CAUSALITY = ("causality.perturb", "causality.gradient", "causality.prefix")
BATCH = ("batch.others", "batch.alone")
PADDING = ("padding.right", "padding.left", "padding.gradient")
CACHE = ("cache.step", "cache.chunk", "cache.generate")
WIDE = {"dim": 64, "heads": 2, "depth": 1}

CASES = [
    Case(
        "rule-arguments-swapped",
        faulty=pure(partial(lm, attend=partial(attend, rule=causal_key_first))),
        lawful=pure(lm),
        laws=CAUSALITY,
        module="",
    ),
    Case(
        "vmap-grid-transposed",
        faulty=pure(partial(batched_lm, attend=partial(attend_one, table=vmap_grid_columns))),
        lawful=pure(batched_lm),
        laws=CAUSALITY,
        module="",
    ),
    Case(
        "one-layer-sees-its-target",
        faulty=lambda: Stack(attend, partial(attend, rule=causal_with_target)),
        lawful=lambda: Stack(attend, attend),
        laws=CAUSALITY,
        module="layers.1",
    ),
    Case(
        "where-not-assigned",
        faulty=pure(partial(lm, attend=attend_where)),
        lawful=pure(lm),
        laws=CAUSALITY,
        module="",
    ),
    Case(
        "rule-added-as-zero-one",
        faulty=pure(partial(lm, attend=attend_biased)),
        lawful=pure(lm),
        laws=CAUSALITY,
        module="",
    ),
    Case(
        "softmax-over-heads",
        faulty=pure(partial(lm, attend=partial(attend_heads_last, axis=-1))),
        lawful=pure(partial(lm, attend=attend_heads_last)),
        laws=CAUSALITY,
        module="",
    ),
    Case(
        "window-or-causal",
        faulty=lambda: Stack(attend, partial(attend, rule=either(causal, near(4))), attend),
        lawful=lambda: Stack(attend, partial(attend, rule=both(causal, near(4))), attend),
        laws=CAUSALITY,
        module="layers.1",
    ),
    Case(
        "einsum-letters-of-weights-swapped",
        faulty=pure(partial(lm, attend=attend_letters)),
        lawful=pure(partial(lm, attend=partial(attend_letters, mix="bhqk,bkhd,hde->bqe"))),
        laws=CAUSALITY,
        module="",
    ),
    Case(
        "vmap-over-time",
        faulty=pure(partial(batched_lm, axis=1)),
        lawful=pure(batched_lm),
        laws=(*BATCH, "accumulation"),
        module="",
    ),
    Case(
        "norm-of-the-whole-sequence",
        faulty=pure(partial(batched_lm, norm=rms_scalar)),
        lawful=pure(batched_lm),
        laws=CAUSALITY,
        module="",
    ),
    Case(
        "norm-over-axis-zero",
        faulty=pure(partial(lm, norm=rms_axis0)),
        lawful=pure(lm),
        laws=(*BATCH, "accumulation"),
        module="",
    ),
    Case(
        "cache-rope-restarts",
        faulty=lambda: Decoding(partial(decode, turn_at=from_zero)),
        lawful=Decoding,
        laws=CACHE,
        module="",
    ),
    Case(
        "cache-rule-without-offset",
        faulty=lambda: Decoding(partial(decode, seen=chunk_seen_no_offset)),
        lawful=Decoding,
        laws=CACHE,
        module="",
    ),
    Case(
        "cache-chunk-unmasked",
        faulty=lambda: Decoding(partial(decode, seen=chunk_seen_first_only)),
        lawful=Decoding,
        laws=("cache.chunk",),
        module="",
    ),
    Case(
        "leaves-detached",
        faulty=lambda: Frozen(lm, weights()),
        lawful=pure(lm),
        laws=("gradient.reaches",),
        module="",
    ),
    Case(
        "keys-stopped",
        faulty=lambda: Stack(attend_sg, attend),
        lawful=lambda: Stack(attend, attend),
        laws=("gradient.reaches",),
        module=("layers.0", "layers.0.params"),
    ),
    Case(
        "late-binding-of-layers",
        faulty=pure(composed_lm_late),
        lawful=pure(composed_lm),
        laws=("gradient.reaches",),
        module=("", "params"),
    ),
    Case(
        "dropout-in-evaluation",
        faulty=lambda: Noisy(lambda training: drop),
        lawful=lambda: Noisy(lambda training: drop if training else no_drop),
        laws=("determinism",),
        module="",
    ),
    Case(
        "positions-count-from-the-end",
        faulty=pure(partial(wave_lm, where=age)),
        lawful=pure(wave_lm),
        laws=("causality.prefix",),
        module="",
    ),
    Case(
        "relu-attention-over-length",
        faulty=pure(partial(lm, attend=partial(attend_relu, count=lambda seen: seen.sum(-1)[-1:]))),
        lawful=pure(partial(lm, attend=attend_relu)),
        laws=("causality.prefix",),
        module="",
    ),
    Case(
        "rope-in-float32",
        faulty=pure(partial(lm, attend=partial(attend, turn=rope_f32))),
        lawful=pure(lm),
        laws=("dtype.agree",),
        module="",
    ),
    Case(
        "set-heads-reshaped",
        faulty=pure(partial(set_tagger, merge=reshape_heads_back)),
        lawful=pure(set_tagger),
        laws=("equivariance",),
        module="",
    ),
    Case(
        "padding-hides-queries",
        faulty=lambda: Masked(everything, seen_queries),
        lawful=lambda: Masked(everything, seen_keys),
        laws=PADDING,
        module="",
    ),
    Case(
        "padding-row-of-minus-infinity",
        faulty=lambda: Masked(causal, seen_keys_strict),
        lawful=lambda: Masked(causal, seen_keys),
        laws=("masked-row", "padding.left"),
        module="",
    ),
    Case(
        "scale-forgotten",
        faulty=pure(partial(lm, attend=attend_unscaled), **WIDE),
        lawful=pure(lm, **WIDE),
        laws=("saturation",),
        module="",
    ),
]
