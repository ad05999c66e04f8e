"""Derivatives by hand, of four kinds of operation, each with one mistake, and in float64 right."""

import torch
from tests.laws.strangers.case import Case
from torch import nn

WORDS, WIDTH = 41, 16


class Swish(torch.autograd.Function):
    """x * sigmoid(x)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s + x * s * (1 - s))


class HalfSwish(Swish):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.sigmoid()


class Norm(torch.autograd.Function):
    """A root-mean-square norm, in the style of setup_context."""

    @staticmethod
    def forward(x, weight, eps):
        return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.eps = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        r = (x.pow(2).mean(-1, keepdim=True) + ctx.eps).rsqrt()
        g = grad * weight
        by_x = r * (g - x * r * r * (g * x).mean(-1, keepdim=True))
        return by_x, (grad * x * r).flatten(0, -2).sum(0), None


class NormWithoutItsMean(Norm):
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        r = (x.pow(2).mean(-1, keepdim=True) + ctx.eps).rsqrt()
        return grad * weight * r, (grad * x * r).flatten(0, -2).sum(0), None


class Attend(torch.autograd.Function):
    """Causal attention whose weights are computed again in the backward pass."""

    @staticmethod
    def weights(q, k):
        scores = q @ k.mT * q.size(-1) ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -1e30).softmax(-1)

    @classmethod
    def scale(cls, q):
        return q.size(-1) ** -0.5

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return Attend.weights(q, k) @ v

    @staticmethod
    def backward(ctx, grad):
        return Attend.derivatives(ctx, grad, ctx.saved_tensors[0].size(-1) ** -0.5)

    @staticmethod
    def derivatives(ctx, grad, scale):
        q, k, v = ctx.saved_tensors
        p = Attend.weights(q, k)
        dp = grad @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
        return ds @ k, ds.mT @ q, p.mT @ grad


class AttendUnscaled(Attend):
    @staticmethod
    def backward(ctx, grad):
        return Attend.derivatives(ctx, grad, 1.0)


class Scan(torch.autograd.Function):
    """h[t] = a[t] h[t-1] + x[t], and its own recurrence backwards."""

    @staticmethod
    def forward(ctx, a, x):
        states = [x[:, 0]]
        for t in range(1, x.size(1)):
            states.append(a[:, t] * states[-1] + x[:, t])
        h = torch.stack(states, 1)
        ctx.save_for_backward(a, h)
        return h

    late = 0

    @classmethod
    def run(cls, ctx, grad, late):
        a, h = ctx.saved_tensors
        by_x = torch.zeros_like(grad)
        carry = torch.zeros_like(grad[:, 0])
        for t in reversed(range(grad.size(1))):
            carry = grad[:, t] + carry
            by_x[:, t] = carry
            carry = carry * a[:, max(t - late, 0)]
        before = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], 1)
        return by_x * before, by_x

    @staticmethod
    def backward(ctx, grad):
        return Scan.run(ctx, grad, 0)


class ScanOneLate(Scan):
    @staticmethod
    def backward(ctx, grad):
        return Scan.run(ctx, grad, 1)


class Sign(torch.autograd.Function):
    """A choice of its author: a sign whose derivative is let through."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Reversed(torch.autograd.Function):
    """Another choice: nothing forward, minus backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.3 * grad


class Model(nn.Module):
    def __init__(self, swish=Swish, norm=Norm, attend=Attend, scan=None, extra=None):
        super().__init__()
        self.swish, self.norm, self.attend, self.scan = swish, norm, attend, scan
        self.extra = extra
        self.embed, self.weight = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.ones(WIDTH))
        self.qkv, self.gate = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        x = self.embed(ids)
        y = self.norm.apply(x, self.weight, 1e-6)
        x = x + self.attend.apply(*self.qkv(y).chunk(3, -1))
        if self.scan is not None:
            x = x + self.scan.apply(torch.sigmoid(self.gate(x)), x)
        if self.extra is not None:
            x = x + self.extra.apply(self.gate(x))
        return self.head(self.swish.apply(self.gate(x)))


def scanning(scan=Scan):
    return Model(scan=scan)


LAW = ("gradient.custom",)
CASES = [
    Case("half-of-the-swish", lambda: Model(swish=HalfSwish), Model, LAW, ""),
    Case("norm-without-its-mean", lambda: Model(norm=NormWithoutItsMean), Model, LAW, ""),
    Case("attention-without-its-scale", lambda: Model(attend=AttendUnscaled), Model, LAW, ""),
    Case("scan-one-late", lambda: scanning(ScanOneLate), scanning, LAW, ""),
    Case("beside-a-sign", lambda: Model(swish=HalfSwish, extra=Sign),
         lambda: Model(extra=Sign), LAW,
         ""),
    Case("beside-a-reversal", lambda: Model(swish=HalfSwish, extra=Reversed),
         lambda: Model(extra=Reversed), LAW, ""),
]  # fmt: skip
