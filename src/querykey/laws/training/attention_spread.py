"""How spread the weights of attention are in the first forward pass that is trained."""

from __future__ import annotations

from typing import Any

from torch import nn

from querykey.laws.catalogue.saturation import Entropies
from querykey.laws.training.recording import Recording
from querykey.targets import uncompiled


class AttentionSpread:
    """Measures the entropy of every softmax while the first module that is called runs."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.at_work: list[nn.Module] = []
        self.measuring: Any = None
        self.done = False

    @property
    def unfinished(self) -> nn.Module | None:
        """The innermost module that is at work."""
        return self.at_work[-1] if self.at_work else None

    def enter(self, module: nn.Module) -> None:
        """Begin to measure when the outermost module of the first pass is called."""
        call = self.recording.calls[0]
        first = len(self.recording.calls) == 1 and call is not None and call.with_graph
        if first and uncompiled(module) is module and not self.done and self.measuring is None:
            self.measuring = Entropies(self)
            self.measuring.__enter__()
        if self.measuring is not None:
            self.at_work.append(module)

    def leave(self, module: nn.Module) -> None:
        """Stop to measure when that module returns."""
        if self.measuring is None:
            return
        if self.at_work:
            self.at_work.pop()
        if not self.at_work:
            self.end()

    def end(self) -> None:
        """Hand over what was measured."""
        if self.measuring is None:
            return
        self.measuring.__exit__(None, None, None)
        root = self.recording.calls[0] if self.recording.calls else None
        paths = {id(m): path for path, m in root.module.named_modules()} if root else {}
        self.recording.spreads += [
            (spread, paths.get(id(module), "")) for spread, module in self.measuring.entropies
        ]
        self.measuring, self.done = None, True


def watch_attention(recording: Recording) -> AttentionSpread:
    """Return what is told of every call of a module, and measures attention in the first."""
    return AttentionSpread(recording)
