"""Audio people: (batch, channels, frames), dilated convolutions, streaming, no tokens anywhere."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from tests.laws.strangers.case import Case

MELS = 10


class CausalConv1d(nn.Conv1d):
    def __init__(self, cin, cout, kernel_size, dilation=1, **kw):
        super().__init__(cin, cout, kernel_size, dilation=dilation, **kw)
        self.left = (kernel_size - 1) * dilation

    def forward(self, x):
        return super().forward(F.pad(x, (self.left, 0)))


class SameConv1d(CausalConv1d):
    """ "same" padding, as in the offline model"""

    def forward(self, x):
        half = self.left // 2
        return nn.Conv1d.forward(self, F.pad(x, (self.left - half, half)))


class CroppedConv1d(CausalConv1d):
    def forward(self, x):
        y = nn.Conv1d.forward(self, F.pad(x, (self.left, self.left)))
        return y[..., self.left :]


class GatedBlock(nn.Module):
    def __init__(self, c, dilation, conv=CausalConv1d):
        super().__init__()
        self.conv = conv(c, 2 * c, 3, dilation=dilation)
        self.res, self.skip = nn.Conv1d(c, c, 1), nn.Conv1d(c, c, 1)

    def forward(self, x):
        a, b = self.conv(x).chunk(2, dim=1)
        z = torch.tanh(a) * torch.sigmoid(b)
        return x + self.res(z), self.skip(z)


class WaveNet(nn.Module):
    def __init__(self, channels=12, layers=3, block=GatedBlock, conv=CausalConv1d, odd=1):
        super().__init__()
        self.first = CausalConv1d(MELS, channels, 2)
        self.blocks = nn.ModuleList(
            [block(channels, 2**i, conv if i == odd else CausalConv1d) for i in range(layers)]
        )
        self.last = nn.Sequential(
            nn.ReLU(), nn.Conv1d(channels, channels, 1), nn.ReLU(), nn.Conv1d(channels, MELS, 1)
        )

    def forward(self, mel):
        x, total = self.first(mel), 0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        return self.last(total + x)


# squeeze and excite, as in the image models it was taken from


class RunningExcite(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc = nn.Conv1d(c, c, 1)

    def pooled(self, x):
        count = torch.arange(1, x.size(-1) + 1, device=x.device)
        return x.cumsum(-1) / count

    def forward(self, x):
        return x * torch.sigmoid(self.fc(self.pooled(x)))


class GlobalExcite(RunningExcite):
    def pooled(self, x):
        return x.mean(-1, keepdim=True)


class ChannelNorm(nn.Module):
    """Norm of every frame over its channels."""

    def __init__(self, c):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(1, c, 1)), nn.Parameter(torch.zeros(1, c, 1))

    def stats(self, x):
        return x.mean(1, keepdim=True), x.var(1, keepdim=True, unbiased=False)

    def forward(self, x):
        mean, var = self.stats(x)
        return (x - mean) * torch.rsqrt(var + 1e-5) * self.g + self.b


class GlobalNorm(ChannelNorm):
    def stats(self, x):
        mean = x.mean((1, 2), keepdim=True)
        return mean, x.var((1, 2), keepdim=True, unbiased=False)


class BatchStats(ChannelNorm):
    def stats(self, x):
        mean = x.mean((0, 1), keepdim=True)
        return mean, (x - mean).pow(2).mean((0, 1), keepdim=True)


class TCNBlock(nn.Module):
    def __init__(self, c, dilation, norm, excite, depthwise=CausalConv1d):
        super().__init__()
        self.pointwise = nn.Conv1d(c, 2 * c, 1)
        self.act, self.norm = nn.PReLU(), norm(2 * c)
        self.depthwise = depthwise(2 * c, 2 * c, 3, dilation=dilation, groups=2 * c)
        self.excite, self.project = excite(2 * c), nn.Conv1d(2 * c, c, 1)

    def forward(self, x):
        y = self.norm(self.act(self.pointwise(x)))
        return x + self.project(self.excite(self.depthwise(y)))


class CausalSeparator(nn.Module):
    """Online separation: one mask per frame of a causal TCN."""

    def __init__(self, norm=ChannelNorm, excite=RunningExcite, depthwise=CausalConv1d, c=8):
        super().__init__()
        self.bottleneck = nn.Conv1d(MELS, c, 1)
        self.tcn = nn.Sequential(*[TCNBlock(c, 2**i, norm, excite, depthwise) for i in range(3)])
        self.mask = nn.Conv1d(c, MELS, 1)

    def forward(self, x):
        return torch.sigmoid(self.mask(self.tcn(self.bottleneck(x)))) * x


class SharedBuffer(CausalConv1d):
    """Keeps the end of the last chunk, for streaming."""

    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.tail = None

    def forward(self, x):
        if self.tail is None or self.tail.shape[:2] != x.shape[:2]:
            self.tail = x.new_zeros(*x.shape[:2], self.left)
        y = torch.cat([self.tail, x], -1)
        self.tail = y[..., -self.left :].detach()
        return nn.Conv1d.forward(self, y)


class NormalisesInput(WaveNet):
    def forward(self, mel):
        mel -= mel.mean(1, keepdim=True)
        return super().forward(mel)


class FrozenBySlip(WaveNet):
    def forward(self, mel):
        with torch.no_grad():
            x = self.first(mel)
        total = 0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        return self.last(total + x)


def at(model, **kw):
    return lambda: (model(**kw), (torch.randn(2, MELS, 37),))


CAUSAL = ("causality.perturb", "causality.gradient", "causality.prefix")
ROWS = ("batch.alone", "batch.others", "accumulation")
CASES = [
    Case(
        "same-padding-in-one-block",
        at(WaveNet, conv=SameConv1d),
        at(WaveNet),
        CAUSAL,
        ("blocks.1", "blocks.1.conv"),
    ),
    Case(
        "cropped-on-the-wrong-side",
        at(WaveNet, conv=CroppedConv1d),
        at(WaveNet),
        CAUSAL,
        ("blocks.1", "blocks.1.conv"),
    ),
    Case(
        "excite-over-all-frames",
        at(CausalSeparator, excite=GlobalExcite),
        at(CausalSeparator),
        CAUSAL,
        "tcn.*.excite",
    ),
    Case(
        "global-norm",
        at(CausalSeparator, norm=GlobalNorm),
        at(CausalSeparator),
        CAUSAL,
        "tcn.*.norm",
    ),
    Case(
        "norm-over-rows",
        at(CausalSeparator, norm=BatchStats),
        at(CausalSeparator),
        ROWS,
        "tcn.*.norm",
    ),
    Case(
        "tail-of-the-last-call",
        at(CausalSeparator, depthwise=SharedBuffer),
        at(CausalSeparator),
        ("determinism",),
        "tcn.*.depthwise",
    ),
    Case("input-centred-in-place", at(NormalisesInput), at(WaveNet), ("purity",), ""),
    Case("stem-under-no-grad", at(FrozenBySlip), at(WaveNet), ("gradient.reaches",), ("", "first")),
]
