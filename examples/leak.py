"""A language model whose second layer sees one token ahead, and the law that catches it.

python examples/leak.py               # or, from the command line:
qk check examples/leak.py:make
"""

import torch
from torch import nn

import querykey as qk


class Layer(nn.Module):
    def __init__(self, ahead: int) -> None:
        super().__init__()
        self.ahead, self.mix = ahead, nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        visible = torch.ones(x.size(1), x.size(1), dtype=torch.bool).tril(self.ahead)
        scores = (x @ self.mix(x).mT / 4).masked_fill(~visible, float("-inf"))
        return x + scores.softmax(-1) @ x


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(40, 16), Layer(0), Layer(1), nn.Linear(16, 40))


def main() -> None:
    for law in qk.check(make(), laws=["causality"]).violations:
        print(f"{law.law} is broken by module {law.module}: {law.note}")


if __name__ == "__main__":
    main()
