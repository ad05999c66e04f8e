"""Models as equations: weights in a dict, sums by einsum, and few modules or none."""

import math

import torch
from tests.laws.strangers.case import Case
from torch import einsum, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

WORDS, WIDTH = 37, 16


def weights(**shapes):
    return nn.ParameterDict(
        {name: nn.Parameter(torch.randn(shape) / shape[0] ** 0.5) for name, shape in shapes.items()}
    )


def attend(w, x):
    q, k, v = (einsum("btd,de->bte", x, w[name]) for name in ("q", "k", "v"))
    scores = einsum("bid,bjd->bij", q, k) / math.sqrt(WIDTH)
    future = torch.arange(x.size(1))[:, None] < torch.arange(x.size(1))
    return x + einsum("bij,bjd->bid", scores.masked_fill(future, -1e30).softmax(-1), v)


class Function(nn.Module):
    """A stateless function and its weights."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.remat = fault, False
        square = (WIDTH, WIDTH)
        self.w = weights(table=(WORDS, WIDTH), q=square, k=square, v=square, out=(WIDTH, WORDS))
        self.noise = nn.Dropout(0.2)

    def forward(self, tokens):
        x = self.w["table"][tokens]
        if self.fault == "first words are damped":
            x = x * torch.where(tokens < 3, 0.1, 1.0)[..., None]
        if self.remat and self.training:
            block = attend
            if self.fault == "remat takes constants":
                block = lambda w, x: attend({n: p.detach() for n, p in w.items()}, x)  # noqa: E731
            x = checkpoint(block, self.w, self.noise(x), use_reentrant=False)
        else:
            x = attend(self.w, self.noise(x))
        return self.scores(x)

    def scores(self, x):
        if self.fault == "short sums in half precision" and torch.is_autocast_enabled("cpu"):
            return einsum("btd,dw->btw", x[..., :12], self.w["out"][:12])
        return einsum("btd,dw->btw", x, self.w["out"])


class Chain(nn.Module):
    """Layers in a Sequential, recomputed in segments."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault, self.checkpointing = fault, False
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        block = [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
        self.body = nn.Sequential(*block, nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, ids):
        x = self.embed(ids)
        if self.checkpointing and self.training:
            body = self.body[2:] if self.fault == "a segment is skipped" else self.body
            x = checkpoint_sequential(body, 2, x, use_reentrant=False)
        else:
            x = self.body(x)
        return self.head(x.cumsum(1))


class Saved(nn.Module):
    """Weights that are saved by a method of the user's own."""

    def __init__(self, fault=""):
        super().__init__()
        self.fault = fault
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.square = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.slopes = [0.1 * float(torch.rand(())) for _ in range(3)]
        if fault != "slopes in a list":
            self.slopes = [0.1, 0.2, 0.3]

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.fault == "saved turned":
            destination[f"{prefix}square"] = destination[f"{prefix}square"].T.contiguous()

    def forward(self, ids):
        x = self.embed(ids)
        far = torch.arange(ids.size(1))[:, None] - torch.arange(ids.size(1))
        scores = einsum("bid,de,bje->bij", x, self.square, x) / WIDTH
        scores = (scores - sum(self.slopes) * far).masked_fill(far < 0, -1e30)
        return self.head(x + scores.softmax(-1) @ x)


CHECKPOINT, RELOAD = ("paths.checkpoint",), ("paths.reload",)
CASES = [
    Case("first-words-are-damped", lambda: Function("first words are damped"), Function,
         ("vocabulary",), ""),
    Case("remat-takes-constants", lambda: Function("remat takes constants"), Function, CHECKPOINT,
         None),
    Case("short-sums-in-half-precision", lambda: Function("short sums in half precision"), Function,
         ("paths.autocast",), None),
    Case("a-segment-is-skipped", lambda: Chain("a segment is skipped"), Chain, CHECKPOINT, None),
    Case("saved-turned", lambda: Saved("saved turned"), Saved, RELOAD, ""),
    Case("slopes-in-a-list", lambda: Saved("slopes in a list"), Saved, RELOAD, ""),
]  # fmt: skip
