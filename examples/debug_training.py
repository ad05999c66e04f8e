"""Three questions of a homework on debugging, answered by watching a few steps of training.

Why does a loop diverge? Why does accumulating gradients change what is trained? Why does a network
of 56 layers train worse than one of 20?

python examples/debug_training.py      # or, of one loop, from the command line:
qk check --training examples/debug_training.py:without_zero_grad
"""

from collections.abc import Callable

import torch
from torch import nn

import querykey as qk


def images(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 3, 8, 8), torch.randint(10, (rows,))


def network(layers: int, norm: Callable[[], nn.Module] = nn.Identity, he: bool = False):
    """Convolutions one after another, with no connection that skips any."""
    parts: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(layers):
        block = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), norm(), nn.ReLU())
        parts.append(block)
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    for part in model.modules():
        if he and isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight)
    return model


def batch_norm() -> nn.Module:
    return nn.BatchNorm2d(16)


def layer_norm() -> nn.Module:
    return nn.GroupNorm(1, 16)


def train(model: nn.Module, rows: int = 8, pieces: int = 1, clear: bool = True) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        for _ in range(pieces):
            inputs, labels = images(rows)
            (nn.functional.cross_entropy(model(inputs), labels) / pieces).backward()
        optimizer.step()
        if clear:
            optimizer.zero_grad()


def without_zero_grad() -> None:
    train(network(2), clear=False)


# What is asked, and what must be found: the words that name the cause, or none.
QUESTIONS = {
    "6c: the loop diverges": (without_zero_grad, "zero_grad"),
    "6c, corrected": (lambda: train(network(2)), ""),
    "6b: (4, 8) with batch norm": (lambda: train(network(2, batch_norm), 4, 8), "batch norm"),
    "6b: (4, 8) with layer norm": (lambda: train(network(2, layer_norm), 4, 8), ""),
    "6a: 56 layers as PyTorch makes them": (lambda: train(network(56)), "gradients die"),
    "6a: 56 layers, He initialisation": (lambda: train(network(56, he=True)), ""),
    "6a: 56 layers, batch norm": (lambda: train(network(56, batch_norm)), "gradients explode"),
    "6a: 20 layers, batch norm": (lambda: train(network(20, batch_norm)), ""),
}


def main() -> None:
    for question, (run, cause) in QUESTIONS.items():
        found = [f"{f.law}: {f.note}" for f in qk.check_training(run).violations]
        print(question, *(found or ["no law is broken"]), sep="\n    ")
        assert len(found) == bool(cause)
        assert cause in "".join(found)


if __name__ == "__main__":
    main()
