"""Second paths through a model that are not the first: recomputed, reloaded, by another kernel."""

from types import SimpleNamespace

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH = 41, 16


class Layer(nn.Module):
    """One layer of attention with a mask, dropout and two ways to compute itself."""

    backends = ("plain", "fast")

    def __init__(self, fault=""):
        super().__init__()
        self.backend, self.fault, self.calls = "plain", fault, 0
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.temperature = nn.Parameter(torch.ones(()))
        self.drop = nn.Dropout(0.1)

    def forward(self, x, seen=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if seen is None:
            seen = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril()
        t = self.temperature
        if self.backend == "fast":
            if self.fault == "keys are detached":
                k = k.detach()
            if self.fault == "temperature is a number":
                t = float(t)
            if self.fault == "weights without a gradient":
                with torch.no_grad():
                    weights = (q @ k.mT * t / 4).masked_fill(~seen, -1e30).softmax(-1)
                return x + self.out(weights @ v)
            bias = torch.zeros(seen.shape, dtype=x.dtype).masked_fill(~seen, -1e30)
            mixed = functional.scaled_dot_product_attention(q * t, k, v, bias, scale=0.25)
            if self.fault == "half the gradient":
                mixed = 0.5 * mixed + 0.5 * mixed.detach()
            return x + self.out(mixed)
        self.calls += 1
        if self.fault == "counts its calls":
            v = v * (1 + 0.1 * (self.calls % 2))
        weights = (q @ k.mT * t / 4).masked_fill(~seen, -1e30).softmax(-1)
        return x + self.out(self.drop(weights) @ v)


class Model(nn.Module):
    """A decoder with a mask and a flag, `use_checkpoint`."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.use_checkpoint = fault, False
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Layer(fault), Layer(fault)])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, attention_mask=None):
        T = ids.size(1)
        seen = torch.ones(T, T, dtype=torch.bool).tril()[None]
        if attention_mask is not None:
            seen = seen & attention_mask.bool()[:, None]
        x = self.embed(ids)
        for layer in self.layers:
            if self.use_checkpoint and self.training:
                given = None if self.fault == "the mask is lost" else seen
                x = checkpoint(layer, x, given, use_reentrant=False)
            else:
                x = layer(x, seen)
        return self.head(x)


class Switched(Model):
    """The same by timm's method."""

    def set_grad_checkpointing(self, enable=True):
        self.enabled = enable

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            if getattr(self, "enabled", False) and self.training:
                kept = self.fault != "other random numbers"
                x = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=kept)
            else:
                x = layer(x)
        return self.head(x)


class Configured(Model):
    """The same by a field of a configuration."""

    def __init__(self, fault=""):
        super().__init__(fault)
        del self.use_checkpoint
        self.config = SimpleNamespace(gradient_checkpointing=False)

    def forward(self, ids):
        x = self.embed(ids)
        layers = list(self.layers)
        if self.config.gradient_checkpointing and self.training:
            whole = nn.Sequential(*layers)
            if self.fault == "the last layer is left out":
                whole = whole[:-1]
            if self.fault == "run without a gradient":
                with torch.no_grad():
                    x = x + (whole(x) - x)
                return self.head(x)
            return self.head(checkpoint(whole, x, use_reentrant=False))
        for layer in layers:
            x = layer(x)
        return self.head(x)


class Projected(nn.Module):
    """Random features of keys and queries, drawn once when the model is made."""

    def __init__(self, kept="buffer"):
        super().__init__()
        self.kept = kept
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        drawn = torch.randn(WIDTH, WIDTH) / 4
        if kept == "attribute":
            self.directions = drawn
        else:
            self.register_buffer("directions", drawn, persistent=kept == "buffer")

    def forward(self, ids):
        x = self.embed(ids)
        features = functional.elu(x @ self.directions) + 1
        mixed = (features[:, :, None] * x[..., None]).cumsum(1)
        return self.head((features[:, :, None] * mixed).sum(-1))


class Averaged(nn.Module):
    """A mean of what was seen in training, subtracted afterwards."""

    def __init__(self, kept="buffer"):
        super().__init__()
        self.kept = kept
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        if kept != "attribute":
            self.register_buffer("mean", torch.zeros(WIDTH), persistent=kept == "buffer")
        else:
            self.mean = torch.zeros(WIDTH)

    def forward(self, ids):
        x = self.embed(ids)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return self.head(x - self.mean)


class Warmed(nn.Module):
    """A temperature that falls with the number of steps."""

    def __init__(self, saved=True):
        super().__init__()
        self.saved, self.steps = saved, 0
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, ids):
        if self.training:
            self.steps += 1
            self.count += 1
        steps = self.count if self.saved else self.steps
        return self.head(self.embed(ids).cumsum(1)) / (1 + 0.5 * steps)


class Flexible(nn.Module):
    """A decoder with a window and a softcap that may leave them to FlexAttention."""

    def __init__(self, fault=""):
        super().__init__()
        self.use_flex, self.fault = False, fault
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, ids, attention_mask=None):
        x, T = self.embed(ids), ids.size(1)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        if self.use_flex:
            size = 5 if self.fault == "the window is one wider" else 4
            if self.fault == "padding is seen":
                real = torch.ones_like(real)

            def seen(b, h, i, j):
                return (i >= j) & (i - j < size) & real[b, j].bool()

            cap = None if self.fault == "scores are not capped" else capped
            blocks = create_block_mask(seen, len(ids), None, T, T, device=ids.device)
            scale = 1 / 4 if self.fault == "the scale is that of all heads" else None
            mixed = flex_attention(q, k, v, cap, blocks, scale)
        else:
            far = torch.arange(T)[:, None] - torch.arange(T)
            hidden = ~((far >= 0) & (far < 4) & real.bool()[:, None, None])
            scores = capped(q @ k.mT / 8**0.5).masked_fill(hidden, -1e30)
            mixed = scores.softmax(-1) @ v
        return self.head(x + mixed.transpose(1, 2).flatten(2))


def capped(score, *place):
    return 3 * torch.tanh(score / 3)


CHECKPOINT, RELOAD, BACKEND = ("paths.checkpoint",), ("paths.reload",), ("paths.backend",)
CASES = [
    Case("the-mask-is-lost", lambda: Model("the mask is lost"), Model, CHECKPOINT, None),
    Case("other-random-numbers", lambda: Switched("other random numbers"), Switched, CHECKPOINT,
         None),
    Case("the-last-layer-is-left-out", lambda: Configured("the last layer is left out"),
         Configured, CHECKPOINT, None),
    Case("run-without-a-gradient", lambda: Configured("run without a gradient"), Configured,
         CHECKPOINT, None),
    Case("counts-its-calls", lambda: Model("counts its calls"), Model, CHECKPOINT, None),
    Case("drawn-into-an-attribute", lambda: Projected("attribute"), Projected, RELOAD, ""),
    Case("drawn-into-a-buffer-that-is-not-saved", lambda: Projected("unsaved"), Projected, RELOAD,
         ""),
    Case("a-mean-in-an-attribute", lambda: Averaged("attribute"), Averaged, RELOAD, ""),
    Case("a-mean-in-a-buffer-that-is-not-saved", lambda: Averaged("unsaved"), Averaged, RELOAD,
         ""),
    Case("steps-in-a-number", lambda: Warmed(False), Warmed, RELOAD, ""),
    Case("keys-are-detached", lambda: Model("keys are detached"), Model, BACKEND, None),
    Case("temperature-is-a-number", lambda: Model("temperature is a number"), Model, BACKEND,
         "layers.0"),
    Case("weights-without-a-gradient", lambda: Model("weights without a gradient"), Model, BACKEND,
         None),
    Case("half-the-gradient", lambda: Model("half the gradient"), Model, BACKEND, None),
    Case("flex-window-is-one-wider", lambda: Flexible("the window is one wider"), Flexible,
         BACKEND, ""),
    Case("flex-padding-is-seen", lambda: Flexible("padding is seen"), Flexible, BACKEND, ""),
    Case("flex-scores-are-not-capped", lambda: Flexible("scores are not capped"), Flexible,
         BACKEND, ""),
    Case("flex-scale-of-all-heads", lambda: Flexible("the scale is that of all heads"), Flexible,
         BACKEND, ""),
]  # fmt: skip
