"""A recurrent decoder with a short convolution: the state is handed in and out."""

import torch
from torch import nn


class Conv(nn.Module):
    def __init__(self, width, reach=3):
        super().__init__()
        self.reach = reach
        self.conv = nn.Conv1d(width, width, reach, groups=width)

    def forward(self, x, before):
        joined = torch.cat([before, x], 1)
        return self.conv(joined.mT).mT, joined[:, -(self.reach - 1) :]


class Recurrence(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.decay, self.write = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, state, real):
        keep, new = torch.sigmoid(self.decay(x)), self.write(x)
        outputs = []
        for t in range(x.size(1)):
            fresh = keep[:, t] * state + (1 - keep[:, t]) * new[:, t]
            state = torch.where(real[:, t, None], fresh, state)
            outputs.append(state)
        return torch.stack(outputs, 1), state


class Mixer(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv, self.core = Conv(width), Recurrence(width)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, state, real):
        h = self.norm(x) * real[..., None]
        h, window = self.conv(h, state[0])
        h, memory = self.core(h, state[1], real)
        return x + self.out(h * torch.sigmoid(self.gate(x))), (window, memory)


class Recurrent(nn.Module):
    def __init__(self, words=59, width=24):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList([Mixer(width) for _ in range(2)])
        self.head = nn.Linear(width, words)

    def forward(self, ids, attention_mask=None, state=None):
        x = self.embed(ids)
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        real = real[:, -ids.size(1) :].bool()
        after = []
        for index, layer in enumerate(self.layers):
            if state is None:
                before = (x.new_zeros(len(x), 2, self.width), x.new_zeros(len(x), self.width))
            else:
                before = state[index]
            x, new = layer(x, before, real)
            after.append(new)
        return self.head(x), after


def make():
    return Recurrent()
