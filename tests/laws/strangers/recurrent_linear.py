"""Recurrences in place of softmax: linear attention, retention, RWKV, Mamba, RNNs.

Mixers take (x, state) and return (y, state); state is None at the start of a sequence.
"""

import torch
import torch.nn.functional as F
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

VOCAB, DIM, HEADS, KERNEL, WINDOW = 41, 24, 3, 4, 5


def wide(x):
    """Sums over time are kept in at least float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def split(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)  # (B, H, T, d)


def merge(x):
    return x.transpose(1, 2).flatten(2)


# ---------------------------------------------------------------- linear attention


class LinearAttention(nn.Module):
    """phi(q) sum_j<=i phi(k_j) v_j^T, over phi(q) sum_j<=i phi(k_j)."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, DIM)

    def sums(self, k, v):
        kv = torch.einsum("bhtd,bhte->bhtde", k, v)
        return kv.cumsum(2), k.cumsum(2)

    def forward(self, x, state=None):
        q, k, v = (wide(split(t)) for t in self.qkv(x).chunk(3, dim=-1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv, z = self.sums(k, v)
        if state is not None:
            kv, z = kv + state[0].unsqueeze(2), z + state[1].unsqueeze(2)
        num = torch.einsum("bhtd,bhtde->bhte", q, kv)
        den = torch.einsum("bhtd,bhtd->bht", q, z).unsqueeze(-1)
        y = merge(num / (den + 1e-6)).to(x.dtype)
        return self.out(y), self.keep(kv[:, :, -1], z[:, :, -1])

    def keep(self, kv, z):
        return kv, z


class LinearAttentionOneNorm(LinearAttention):
    def sums(self, k, v):
        kv = torch.einsum("bhtd,bhte->bhtde", k, v)
        return kv.cumsum(2), k.sum(2, keepdim=True).expand_as(k)


class LinearAttentionAllAtOnce(LinearAttention):
    """No T x d x d tensor: one product k^T v, as in the paper's first figure."""

    def sums(self, k, v):
        kv = torch.einsum("bhtd,bhte->bhde", k, v).unsqueeze(2)
        return kv.expand(-1, -1, k.size(2), -1, -1), k.cumsum(2)


class LinearAttentionFirstAxis(LinearAttention):
    def sums(self, k, v):
        kv = torch.einsum("bhtd,bhte->bhtde", k, v)
        return kv.cumsum(0), k.cumsum(0)


class LinearAttentionSmallState(LinearAttention):
    """The state is what takes memory when serving many users."""

    def keep(self, kv, z):
        return kv.bfloat16(), z.bfloat16()


# ---------------------------------------------------------------- retention


class Retention(nn.Module):
    """Chunkwise retention; a whole sequence is one chunk."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=False)
        self.gate = nn.Linear(DIM, DIM)
        self.out = nn.Linear(DIM, DIM)
        self.norm = nn.GroupNorm(HEADS, DIM)
        self.register_buffer("log_gamma", torch.log(1 - 2.0 ** (-2 - torch.arange(HEADS))))

    def gamma(self, steps):
        """gamma ** steps for every head: (H, *steps.shape)."""
        log_gamma = wide(self.log_gamma)
        return torch.exp(log_gamma.view(-1, *[1] * steps.dim()) * steps)

    def inner(self, t):
        apart = t[:, None] - t[None, :]
        return self.gamma(apart).tril()

    def cross(self, t):
        return self.gamma(t + 1)

    def carry(self, S, t):
        return S * self.gamma(torch.tensor(len(t)))[:, None, None]

    def group(self, y):
        return self.norm(y.flatten(0, 1)).view_as(y)

    def forward(self, x, state=None):
        q, k, v = (wide(split(t)) for t in self.qkv(x).chunk(3, dim=-1))
        k = k * k.size(-1) ** -0.5
        t = torch.arange(x.size(1), device=x.device)
        y = (q @ k.mT * self.inner(t)) @ v
        S = torch.einsum("bhtd,ht,bhte->bhde", k, self.gamma(len(t) - 1 - t), v)
        if state is not None:
            y = y + self.cross(t)[..., None] * (q @ state)
            S = S + self.carry(state, t)
        y = self.group(merge(y).to(x.dtype))
        return self.out(F.silu(self.gate(x)) * y), S


class RetentionBothWays(Retention):
    def inner(self, t):
        return self.gamma((t[:, None] - t[None, :]).abs())


class RetentionCrossLate(Retention):
    def cross(self, t):
        return self.gamma(t)


class RetentionStill(Retention):
    def carry(self, S, t):
        return S


class RetentionGroups(Retention):
    def group(self, y):
        return self.norm(y.transpose(1, 2)).transpose(1, 2)  # GroupNorm wants (N, C, ...)


# ---------------------------------------------------------------- RWKV


def shifted(x, last=None):
    """The token before each token."""
    first = torch.zeros_like(x[:, :1]) if last is None else last.unsqueeze(1)
    return torch.cat([first, x[:, :-1]], dim=1)


class TimeMix(nn.Module):
    shift = staticmethod(shifted)

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.rand(3, DIM))
        self.decay = nn.Parameter(torch.rand(DIM))
        self.bonus = nn.Parameter(torch.rand(DIM))
        self.k, self.v, self.r, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x, state=None, real=None):
        num, den, last = state or (0.0, 0.0, None)
        before = self.shift(x, last)
        xk, xv, xr = (x * m + before * (1 - m) for m in self.mix)
        k, v, r = wide(F.softplus(self.k(xk))), wide(self.v(xv)), self.r(xr).sigmoid()
        if real is not None:
            k = k * real.unsqueeze(-1)
        w, u = torch.exp(-wide(self.decay).exp()), wide(self.bonus).exp()
        ys = []
        for t in range(x.size(1)):
            kt, vt = k[:, t], v[:, t]
            ys.append((num + u * kt * vt) / (den + u * kt + 1e-6))
            num, den = w * num + kt * vt, w * den + kt
        y = torch.stack(ys, dim=1).to(x.dtype)
        return self.o(r * y), self.remember(num, den, x)

    def remember(self, num, den, x):
        return num, den, x[:, -1]


class TimeMixRolled(TimeMix):
    """torch.roll does in one kernel what a cat does in two."""

    def shift(self, x, last=None):
        before = torch.roll(x, 1, dims=1)
        if last is not None:
            before = torch.cat([last.unsqueeze(1), before[:, 1:]], dim=1)
        return before


class TimeMixForgetful(TimeMix):
    def remember(self, num, den, x):
        return num, den, None


class ChannelMix(nn.Module):
    shift = staticmethod(shifted)

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.rand(DIM))
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x, last=None):
        x = x * self.mix + self.shift(x, last) * (1 - self.mix)
        return self.down(self.up(x).relu() ** 2)


class ChannelMixNext(ChannelMix):
    def shift(self, x, last=None):
        return F.pad(x, (0, 0, -1, 1))


class RWKV(nn.Module):
    """Takes a padding mask: 1 for tokens, on whichever side."""

    def __init__(self, time=TimeMix, channel=ChannelMix, hide_first=True):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.ln = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(4))
        self.time = nn.ModuleList([time(), time()])
        self.channel = nn.ModuleList([channel(), channel()])
        self.head = nn.Linear(DIM, VOCAB)
        self.hide_first = hide_first

    def forward(self, ids, attention_mask=None):
        real = torch.ones_like(ids) if attention_mask is None else attention_mask.long()
        x = self.embed(ids)
        for n in range(2):
            h = self.ln[2 * n](x)
            if self.hide_first:
                h = h * real.unsqueeze(-1)
            x = x + self.time[n](h, real=real)[0]
            h = self.ln[2 * n + 1](x) * real.unsqueeze(-1)
            x = x + self.channel[n](h)
        return self.head(x)


# ---------------------------------------------------------------- Mamba


class Mamba(nn.Module):
    """A short causal convolution, then h_t = exp(dt A) h_(t-1) + dt B_t x_t; y_t = C_t h_t."""

    def __init__(self, states=4):
        super().__init__()
        self.inp = nn.Linear(DIM, 2 * DIM)
        self.conv = nn.Conv1d(DIM, DIM, KERNEL, groups=DIM)
        self.bc = nn.Linear(DIM, 2 * states)
        self.dt = nn.Linear(DIM, DIM)
        self.A_log = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(DIM, 1))
        self.out = nn.Linear(DIM, DIM)

    def convolve(self, u, tail):
        """u: (B, D, T); tail: the last KERNEL - 1 inputs of the chunk before."""
        u = F.pad(u, (KERNEL - 1, 0)) if tail is None else torch.cat([tail, u], dim=2)
        return self.conv(u), u[:, :, 1 - KERNEL :]

    def rate(self, u):
        return F.softplus(self.dt(u))

    def poles(self):
        return -wide(self.A_log).exp()

    def first(self, u):
        return u.new_zeros(u.size(0), *self.A_log.shape)

    def forward(self, x, state=None):
        u, z = self.inp(x).chunk(2, dim=-1)
        tail, h = state or (None, None)
        u, tail = self.convolve(u.transpose(1, 2), tail)
        u = F.silu(u).transpose(1, 2)
        dt, (b, c) = wide(self.rate(u)).unsqueeze(-1), self.bc(u).chunk(2, dim=-1)
        h = self.first(wide(u)) if h is None else h
        decay, drive = torch.exp(dt * self.poles()), dt * u.unsqueeze(-1) * b.unsqueeze(2)
        ys = []
        for t in range(x.size(1)):
            h = decay[:, t] * h + drive[:, t]
            ys.append((h * c[:, t].unsqueeze(1)).sum(-1))
        y = torch.stack(ys, dim=1).to(x.dtype)
        return self.out(y * F.silu(z)), (tail, self.last(h))

    def last(self, h):
        return h


class MambaLateSlice(Mamba):
    def convolve(self, u, tail):
        if tail is None:
            u = F.pad(u, (KERNEL - 1, KERNEL - 1))
            return self.conv(u)[:, :, KERNEL - 1 :], u[:, :, 2 - 2 * KERNEL : 1 - KERNEL]
        u = torch.cat([tail, u], dim=2)
        return self.conv(u), u[:, :, 1 - KERNEL :]


class MambaConvTail(Mamba):
    """Keeps what came out of the convolution."""

    def convolve(self, u, tail):
        u = F.pad(u, (KERNEL - 1, 0)) if tail is None else torch.cat([tail, u], dim=2)
        y = self.conv(u)
        return y, F.pad(y, (KERNEL - 1, 0))[:, :, 1 - KERNEL :]


class MambaNormedRate(Mamba):
    def rate(self, u):
        return self.dt(u).softmax(dim=1)


class MambaWarm(Mamba):
    """Starts from the last state that was seen, so that long documents may come in pieces."""

    h = None

    def first(self, u):
        if self.h is not None and self.h.size(0) == u.size(0):
            return self.h.to(u)
        return super().first(u)

    def last(self, h):
        self.h = h.detach()
        return h


class MambaFixedPoles(Mamba):
    @torch.no_grad()
    def poles(self):
        return super().poles()


# ---------------------------------------------------------------- long convolution


class LongConv(nn.Module):
    """A filter as long as the sequence, by FFT; the filter is a sum of decaying exponentials."""

    def __init__(self):
        super().__init__()
        self.inp, self.out = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, DIM)
        self.amount, self.speed = (nn.Parameter(torch.randn(3, DIM)) for _ in range(2))

    def filter(self, n):
        t = torch.arange(n, device=self.speed.device)[:, None, None]
        return (wide(self.amount) * torch.exp(-F.softplus(wide(self.speed)) * t / 4)).sum(1)

    def size(self, n):
        return 2 * n

    def forward(self, x, state=None):
        u, gate = self.inp(x).chunk(2, dim=-1)
        n = self.size(x.size(1))
        spectrum = torch.fft.rfft(wide(u), n=n, dim=1) * torch.fft.rfft(
            self.filter(x.size(1)), n=n, dim=0
        )
        y = torch.fft.irfft(spectrum, n=n, dim=1)[:, : x.size(1)].to(x.dtype)
        return self.out(y * gate.sigmoid()), None


class LongConvSameSize(LongConv):
    def size(self, n):
        return n


# ---------------------------------------------------------------- attention with a ring of keys


class LocalAttention(nn.Module):
    """The last WINDOW tokens by softmax; positions by a bias per distance."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.bias = nn.Parameter(torch.randn(HEADS, WINDOW))

    def forward(self, x, state=None):
        q, k, v = (split(t) for t in self.qkv(x).chunk(3, dim=-1))
        if state is not None:
            k, v = torch.cat([state[0], k], dim=2), torch.cat([state[1], v], dim=2)
        k, v = self.window(k, q.size(2)), self.window(v, q.size(2))
        i = torch.arange(q.size(2), device=x.device)[:, None] + k.size(2) - q.size(2)
        apart = i - torch.arange(k.size(2), device=x.device)
        scores = q @ k.mT * q.size(-1) ** -0.5 + self.bias[:, apart.clamp(0, WINDOW - 1)]
        scores = scores.masked_fill((apart < 0) | (apart >= WINDOW), float("-inf"))
        y = merge(scores.softmax(-1) @ v)
        return self.out(y), (k[:, :, 1 - WINDOW :], v[:, :, 1 - WINDOW :])

    def window(self, t, new):
        return t


class LocalAttentionTrimmed(LocalAttention):
    """Never holds more than WINDOW keys once the prompt is read."""

    def window(self, t, new):
        return t if t.size(2) == new else t[:, :, -max(WINDOW, new) :]


# ---------------------------------------------------------------- language models


class Block(nn.Module):
    def __init__(self, mixer):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mixer = mixer
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x, state=None):
        y, state = self.mixer(self.ln1(x), state)
        x = x + y
        return x + self.mlp(self.ln2(x)), state


class StateLM(nn.Module):
    """logits, states = model(ids, states)."""

    def __init__(self, *mixers):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(mixer) for mixer in mixers)
        self.ln, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, states=None):
        x, after = self.embed(ids), []
        for n, block in enumerate(self.blocks):
            x, state = block(x, None if states is None else states[n])
            after.append(state)
        return self.head(self.ln(x)), tuple(after)


class PlainLM(StateLM):
    """For training only: logits and nothing else."""

    def forward(self, ids):
        return super().forward(ids)[0]


class Recurrent(nn.Module):
    """nn.GRU or nn.LSTM as a mixer."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn
        width = rnn.hidden_size * (2 if rnn.bidirectional else 1)
        self.out = nn.Linear(width, DIM)

    def forward(self, x, state=None):
        y, state = self.rnn(x, state)
        return self.out(y), state


class CellLM(nn.Module):
    """LSTM cells in a loop, for those who want to see the hidden state: (h, c) of every layer."""

    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.cells = nn.ModuleList(nn.LSTMCell(DIM, DIM) for _ in range(layers))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids, hidden=None):
        hidden = self.start(ids.size(0)) if hidden is None else self.resume(hidden)
        ys = []
        for x in self.embed(ids).unbind(1):
            for n, cell in enumerate(self.cells):
                hidden[n] = cell(x, hidden[n])
                x = x + hidden[n][0]
            ys.append(x)
        return self.head(torch.stack(ys, dim=1)), hidden

    def start(self, batch):
        zeros = self.head.weight.new_zeros(batch, DIM)
        return [(zeros, zeros) for _ in self.cells]

    def resume(self, hidden):
        return list(hidden)


class CellLMHalf(CellLM):
    def resume(self, hidden):
        return [(h, torch.zeros_like(c)) for h, c in hidden]


class PackedTagger(nn.Module):
    """A two-way LSTM over sentences of unequal lengths, longest first as cuDNN wants them."""

    def __init__(self, tags=7):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.rnn = nn.LSTM(DIM, DIM // 2, bidirectional=True, batch_first=True)
        self.tag = nn.Linear(DIM, tags)

    def forward(self, ids, lengths):
        lengths = lengths.clamp(min=1)
        order = torch.argsort(lengths, descending=True, stable=True)
        packed = pack_padded_sequence(
            self.embed(ids[order]), lengths[order].cpu(), batch_first=True
        )
        y, _ = pad_packed_sequence(self.rnn(packed)[0], True, total_length=ids.size(1))
        return self.tag(self.unsort(y, order))

    def unsort(self, y, order):
        return y[torch.argsort(order)]


class PackedTaggerSorted(PackedTagger):
    def unsort(self, y, order):
        return y


class PaddedTagger(PackedTagger):
    """Packing is slow on short sentences; the output is cut to length afterwards."""

    def forward(self, ids, lengths):
        y, _ = self.rnn(self.embed(ids))
        inside = torch.arange(ids.size(1), device=ids.device) < lengths.unsqueeze(1)
        return self.tag(y * inside.unsqueeze(-1))


class Stepper(nn.Module):
    """forward(ids) trains; reset() and then step(token) for each token serves."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.mixers = nn.ModuleList([Mamba(), Mamba()])
        self.norms = nn.ModuleList([nn.LayerNorm(DIM), nn.LayerNorm(DIM)])
        self.head = nn.Linear(DIM, VOCAB)
        self.states = {}

    def forward(self, ids):
        x = self.embed(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))[0]
        return self.head(x)

    def reset(self):
        self.states = {}

    @torch.no_grad()
    def step(self, token):
        x = self.embed(token).unsqueeze(1)
        for n, mixer in enumerate(self.mixers):
            y, self.states[n] = mixer(self.norms[n](x), self.states.get(n))
            x = x + y
        return self.head(x).squeeze(1)


class StepperStale(Stepper):
    def reset(self):
        self.states = {n: (tail, None) for n, (tail, _) in self.states.items()}


class StepperRewound(Stepper):
    """The first state is kept beside the model, and given to every step."""

    @torch.no_grad()
    def step(self, token):
        x = self.embed(token).unsqueeze(1)
        for n, mixer in enumerate(self.mixers):
            y, state = mixer(self.norms[n](x), self.states.get(n))
            self.states.setdefault(n, state)
            x = x + y
        return self.head(x).squeeze(1)


def gru(**options):
    return Recurrent(nn.GRU(DIM, DIM, **options))


LENGTHS = {"ids": torch.arange(24).view(3, 8) % VOCAB, "lengths": torch.tensor([5, 8, 6])}
CAUSALITY = ("causality.perturb", "causality.gradient", "causality.prefix")
BATCH = ("batch.others", "batch.alone")
CACHE = ("cache.step", "cache.chunk", "cache.generate")
MIXER = ("blocks.*.mixer", "blocks.*.mixer.*")

CASES = [
    Case(
        "linear-normaliser-of-everything",
        faulty=lambda: PlainLM(LinearAttention(), LinearAttentionOneNorm()),
        lawful=lambda: PlainLM(LinearAttention(), LinearAttention()),
        laws=CAUSALITY,
        module="blocks.1.mixer",
    ),
    Case(
        "linear-product-of-everything",
        faulty=lambda: StateLM(LinearAttentionAllAtOnce(), LinearAttentionAllAtOnce()),
        lawful=lambda: StateLM(LinearAttention(), LinearAttention()),
        laws=(*CAUSALITY, *CACHE),
        module="blocks.*.mixer",
    ),
    Case(
        "linear-cumsum-over-batch",
        faulty=lambda: PlainLM(LinearAttentionFirstAxis(), LinearAttention()),
        lawful=lambda: PlainLM(LinearAttention(), LinearAttention()),
        laws=(*BATCH, "accumulation"),
        module="blocks.0.mixer",
    ),
    Case(
        "linear-state-in-bfloat16",
        faulty=lambda: StateLM(LinearAttentionSmallState(), LinearAttentionSmallState()),
        lawful=lambda: StateLM(LinearAttention(), LinearAttention()),
        laws=CACHE,
        module="blocks.*.mixer",
    ),
    Case(
        "retention-decays-both-ways",
        faulty=lambda: StateLM(RetentionBothWays(), RetentionBothWays()),
        lawful=lambda: StateLM(Retention(), Retention()),
        laws=CAUSALITY,
        module="blocks.*.mixer",
    ),
    Case(
        "retention-cross-decay-off-by-one",
        faulty=lambda: StateLM(RetentionCrossLate(), RetentionCrossLate()),
        lawful=lambda: StateLM(Retention(), Retention()),
        laws=CACHE,
        module="blocks.*.mixer",
    ),
    Case(
        "retention-state-never-decays",
        faulty=lambda: StateLM(Retention(), RetentionStill()),
        lawful=lambda: StateLM(Retention(), Retention()),
        laws=CACHE,
        module="blocks.1.mixer",
    ),
    Case(
        "retention-group-norm-over-time",
        faulty=lambda: StateLM(RetentionGroups(), RetentionGroups()),
        lawful=lambda: StateLM(Retention(), Retention()),
        laws=CAUSALITY,
        module=("blocks.*.mixer", "blocks.*.mixer.norm"),
    ),
    Case(
        "rwkv-shift-rolls-around",
        faulty=lambda: RWKV(time=TimeMixRolled),
        lawful=lambda: RWKV(),
        laws=CAUSALITY,
        module="time.*",
    ),
    Case(
        "rwkv-shift-the-other-way",
        faulty=lambda: RWKV(channel=ChannelMixNext),
        lawful=lambda: RWKV(),
        laws=CAUSALITY,
        module="channel.*",
    ),
    Case(
        "rwkv-shift-forgotten-between-calls",
        faulty=lambda: StateLM(TimeMixForgetful(), TimeMixForgetful()),
        lawful=lambda: StateLM(TimeMix(), TimeMix()),
        laws=CACHE,
        module="blocks.*.mixer",
    ),
    Case(
        "rwkv-shift-reads-padding",
        faulty=lambda: RWKV(hide_first=False),
        lawful=lambda: RWKV(),
        laws=("padding.left", "padding.gradient"),
        module=("", "time.*"),
    ),
    Case(
        "mamba-convolution-cut-on-the-wrong-side",
        faulty=lambda: PlainLM(Mamba(), MambaLateSlice()),
        lawful=lambda: PlainLM(Mamba(), Mamba()),
        laws=CAUSALITY,
        module=("blocks.1.mixer", "blocks.1.mixer.conv"),
    ),
    Case(
        "mamba-convolution-keeps-its-output",
        faulty=lambda: StateLM(MambaConvTail(), MambaConvTail()),
        lawful=lambda: StateLM(Mamba(), Mamba()),
        laws=CACHE,
        module="blocks.*.mixer",
    ),
    Case(
        "mamba-rate-normalised-over-time",
        faulty=lambda: PlainLM(MambaNormedRate(), MambaNormedRate()),
        lawful=lambda: PlainLM(Mamba(), Mamba()),
        laws=CAUSALITY,
        module="blocks.*.mixer",
    ),
    Case(
        "mamba-starts-where-the-last-call-ended",
        faulty=lambda: PlainLM(MambaWarm(), MambaWarm()),
        lawful=lambda: PlainLM(Mamba(), Mamba()),
        laws=("determinism", *BATCH),
        module="blocks.*.mixer",
    ),
    Case(
        "mamba-poles-without-gradient",
        faulty=lambda: PlainLM(MambaFixedPoles(), Mamba()),
        lawful=lambda: PlainLM(Mamba(), Mamba()),
        laws=("gradient.reaches",),
        module="blocks.0.mixer",
    ),
    Case(
        "long-convolution-wraps-around",
        faulty=lambda: PlainLM(LongConvSameSize(), LongConvSameSize()),
        lawful=lambda: PlainLM(LongConv(), LongConv()),
        laws=CAUSALITY,
        module="blocks.*.mixer",
    ),
    Case(
        "local-keys-trimmed-before-a-chunk",
        faulty=lambda: StateLM(TimeMix(), LocalAttentionTrimmed()),
        lawful=lambda: StateLM(TimeMix(), LocalAttention()),
        laws=("cache.chunk",),
        module="blocks.1.mixer",
    ),
    Case(
        "gru-both-ways-in-a-decoder",
        faulty=lambda: PlainLM(
            LinearAttention(), gru(batch_first=True, bidirectional=True), Retention()
        ),
        lawful=lambda: PlainLM(LinearAttention(), gru(batch_first=True), Retention()),
        laws=CAUSALITY,
        module=("blocks.1.mixer", "blocks.1.mixer.rnn"),
    ),
    Case(
        "gru-without-batch-first",
        faulty=lambda: PlainLM(LinearAttention(), gru()),
        lawful=lambda: PlainLM(LinearAttention(), gru(batch_first=True)),
        laws=(*BATCH, "accumulation"),
        module=("blocks.1.mixer", "blocks.1.mixer.rnn"),
    ),
    Case(
        "lstm-cell-state-dropped",
        faulty=CellLMHalf,
        lawful=CellLM,
        laws=CACHE,
        module="",
    ),
    Case(
        "packed-rows-never-unsorted",
        faulty=lambda: (PackedTaggerSorted(), LENGTHS),
        lawful=lambda: (PackedTagger(), LENGTHS),
        laws=(*BATCH, "padding.right"),
        module="",
    ),
    Case(
        "two-way-lstm-reads-padding",
        faulty=lambda: (PaddedTagger(), LENGTHS),
        lawful=lambda: (PackedTagger(), LENGTHS),
        laws=("padding.right", "padding.gradient"),
        module=("", "rnn"),
    ),
    Case(
        "step-after-reset-keeps-the-convolution",
        faulty=StepperStale,
        lawful=Stepper,
        laws=(*CACHE, "determinism"),
        module="",
    ),
    Case(
        "step-never-advances",
        faulty=StepperRewound,
        lawful=Stepper,
        laws=CACHE,
        module="",
    ),
]
