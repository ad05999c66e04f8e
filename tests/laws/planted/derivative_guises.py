"""Derivatives by hand in other models: a recurrent cell, a convolution, a router, a softmax."""

import torch
from tests.laws.strangers.case import Case
from torch import nn
from torch.autograd import Function
from torch.nn import functional

WORDS, WIDTH = 41, 12


class Cell(Function):
    """One step of a gated cell with two inputs and two outputs."""

    @staticmethod
    def forward(ctx, x, h):
        gate, new = x.chunk(2, -1)
        z, n = gate.sigmoid(), (new + h).tanh()
        ctx.save_for_backward(z, n, h)
        return (1 - z) * n + z * h, z

    @staticmethod
    def backward(ctx, dh, dz):
        z, n, h = ctx.saved_tensors
        dz = (dz + dh * (h - n)) * z * (1 - z)
        dn = dh * (1 - z) * (1 - n * n)
        return torch.cat([dz, dn], -1), dn + dh * z


class CellWithoutItsGate(Cell):
    @staticmethod
    def backward(ctx, dh, dz):
        z, n, _ = ctx.saved_tensors
        dn = dh * (1 - z) * (1 - n * n)
        return torch.cat([dz * z * (1 - z), dn], -1), dn + dh * z


class Unrolled(nn.Module):
    def __init__(self, cell=Cell):
        super().__init__()
        self.cell = cell
        self.embed, self.inner = nn.Embedding(WORDS, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        h, outputs = torch.zeros(len(ids), WIDTH, dtype=self.out.weight.dtype), []
        for x in self.embed(ids).unbind(1):
            h, z = self.cell.apply(x, self.inner(h))
            outputs.append(h * z)
        return self.out(torch.stack(outputs, 1))


class Convolution(Function):
    """A convolution of images with weights, by torch's own operations."""

    @staticmethod
    def forward(ctx, image, weight, padding):
        ctx.save_for_backward(image, weight)
        ctx.padding = padding
        return functional.conv2d(image, weight, padding=padding)

    @staticmethod
    def backward(ctx, grad):
        image, weight = ctx.saved_tensors
        by_image = functional.conv_transpose2d(grad, weight, padding=ctx.padding)
        by_weight = functional.conv2d(image.transpose(0, 1), grad.transpose(0, 1),
                                      padding=ctx.padding).transpose(0, 1)  # fmt: skip
        return by_image, by_weight, None


class ConvolutionTurned(Convolution):
    @staticmethod
    def backward(ctx, grad):
        by_image, by_weight, _ = Convolution.backward(ctx, grad)
        return by_image, by_weight.flip(-1), None


class Images(nn.Module):
    def __init__(self, convolution=Convolution):
        super().__init__()
        self.convolution = convolution
        self.filters = nn.Parameter(torch.randn(6, 3, 3, 3) / 5)
        self.head = nn.Linear(6, 4)

    def forward(self, images):
        features = self.convolution.apply(images, self.filters, 1).tanh()
        return self.head(features.mean((-1, -2)))


class Route(Function):
    """The share of the best expert, beside its number, which has no derivative."""

    @staticmethod
    def forward(ctx, scores):
        shares = scores.softmax(-1)
        best, place = shares.max(-1, keepdim=True)
        ctx.mark_non_differentiable(place)
        ctx.save_for_backward(shares, place)
        return best, place

    @staticmethod
    def backward(ctx, grad, unused):
        shares, place = ctx.saved_tensors
        best = shares.gather(-1, place)
        one = torch.zeros_like(shares).scatter(-1, place, 1.0)
        return grad * best * (one - shares)


class RouteToTheBestAlone(Route):
    @staticmethod
    def backward(ctx, grad, unused):
        shares, place = ctx.saved_tensors
        best = shares.gather(-1, place)
        return torch.zeros_like(shares).scatter(-1, place, grad * best * (1 - best))


class Experts(nn.Module):
    def __init__(self, route=Route):
        super().__init__()
        self.route = route
        self.embed, self.gate = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3)
        self.experts = nn.Parameter(torch.randn(3, WIDTH, WORDS) / WIDTH**0.5)

    def forward(self, ids):
        x = self.embed(ids)
        share, place = self.route.apply(self.gate(x))
        every = torch.einsum("btd,edw->btew", x, self.experts)
        index = place[..., None].expand(*place.shape, WORDS)
        return share * every.gather(2, index).squeeze(2)


class Softmax(Function):
    @staticmethod
    def forward(ctx, x, axis):
        y = (x - x.amax(axis, keepdim=True)).exp()
        y = y / y.sum(axis, keepdim=True)
        ctx.save_for_backward(y)
        ctx.axis = axis
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(ctx.axis, keepdim=True)), None


class SoftmaxOverQueries(Softmax):
    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return y * (grad - (grad * y).sum(-2, keepdim=True)), None


class Pairs(nn.Module):
    """An encoder whose attention is called by functions."""

    def __init__(self, softmax=Softmax):
        super().__init__()
        self.normalise = softmax.apply
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.normalise(x @ x.mT / WIDTH**0.5, -1) @ x)


def images(convolution=Convolution):
    return Images(convolution), {"images": torch.randn(2, 3, 6, 6)}


LAW = ("gradient.custom",)
CASES = [
    Case("a-cell-without-its-gate", lambda: Unrolled(CellWithoutItsGate), Unrolled, LAW, ""),
    Case("filters-turned", lambda: images(ConvolutionTurned), images, LAW, ""),
    Case("routes-to-the-best-alone", lambda: Experts(RouteToTheBestAlone), Experts, LAW, ""),
    Case("softmax-over-queries", lambda: Pairs(SoftmaxOverQueries), Pairs, LAW, ""),
]  # fmt: skip
