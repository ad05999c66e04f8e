"""What was found out about a model, as one frozen value that every law reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from querykey.laws.understanding.mask_argument import MaskArgument
from querykey.laws.understanding.outputs import Path, Slot
from querykey.laws.understanding.signature import CallSignature

WIDE, NARROW = 1e-6, 2e-3  # a relative deviation below these, in float64 and float32, is rounding
FLOORS = 1e3  # and so is one below so many times the measured floor, which may not exceed BLIND
BLIND = 1e-3


@dataclass(frozen=True)
class PositionArgument:
    """An argument that takes the position of every token."""

    name: str
    offset: int = 0  # the number of the first position
    batched: bool = True

    def value(self, positions: torch.Tensor) -> torch.Tensor:
        """Return what to pass for these positions, which count from 0."""
        return (positions if self.batched else positions[0]) + self.offset


@dataclass(frozen=True)
class PaddingSigns:
    """What speaks of padding beside the masks that are known to hide it."""

    ids: tuple[tuple[str, int], ...] = ()  # from which it makes its own mask, by length
    idle: tuple[str, ...] = ()  # called masks, and nothing that is passed for them matters
    contrary: tuple[str, ...] = ()  # masks that hide the opposite of what their name says
    counted: bool = False  # real tokens are counted by the mask, as positions of left-padded rows


@dataclass(frozen=True)
class OptionalArguments:
    """The optional arguments and switches of a model whose meaning is known."""

    masks: tuple[MaskArgument, ...] = ()
    positions: PositionArgument | None = None
    embeds: str | None = None  # takes embeddings in place of ids
    flags: tuple[str, ...] = ()  # switches such as use_cache
    implementations: tuple[str, ...] = ()  # of attention
    padding: PaddingSigns = PaddingSigns()


@dataclass(frozen=True)
class Intent:
    """Whether a model is meant to be causal, why we think so, and what speaks against it."""

    causal: bool
    why: str = ""
    doubt: str = ""
    outputs: tuple[Slot, ...] = ()  # outputs beside the main one that are meant to be causal


@dataclass(frozen=True)
class FoundStep:
    """A step that was found by trying, and what it calls or passes."""

    by: str
    step: Callable[..., Any]

    def __call__(self, model: Any, inputs: Mapping[str, Any], cache: Any) -> tuple[Any, Any]:
        """Feed tokens, and return the output and the cache."""
        return self.step(model, inputs, cache)


@dataclass(frozen=True)
class CacheProtocol:
    """Where a cache goes in, where it comes out, and what else every call needs."""

    argument: str | None  # None: the model keeps its cache to itself
    source: Path | None  # its place in the output; None: the cache that is passed is changed
    arguments: tuple[tuple[str, Any], ...] = ()
    start: str | None = None  # the argument that takes the number of tokens so far
    make: Callable[[nn.Module, int], Any] | None = (
        None  # makes the first cache, where one is needed
    )
    step: Callable[..., Any] | None = None  # (model, inputs, cache or None) -> output, cache

    def __str__(self) -> str:
        if self.step:
            by = self.step.by if isinstance(self.step, FoundStep) else "as you said"
            return f"{self.argument}, beside all ids so far" if self.argument else by
        return self.argument or f"kept inside{f', with {self.start} passed' if self.start else ''}"


@dataclass(frozen=True)
class LossInterface:
    """The argument by which a model returns its own loss, and the label that does not count."""

    name: str
    ignored: int | None = None  # None: every label that it takes counts
    tags: int | None = None  # how many labels there are, where these are no words


@dataclass(frozen=True)
class Rounding:
    """The precision that copies compute in, and how far rounding alone moves an answer."""

    wide: bool = True  # float64; float32 where the model refuses that
    floor: float = 0.0

    @property
    def threshold(self) -> float:
        """Return the relative deviation above which a difference is not rounding."""
        return max(WIDE if self.wide else NARROW, min(FLOORS * self.floor, BLIND))


@dataclass(frozen=True)
class Protocols:
    """How a model hands on a cache, and how it is told labels and returns a loss."""

    cache: CacheProtocol | None = None
    loss: LossInterface | None = None


@dataclass(frozen=True)
class ModelFacts:
    """What a model is: its call, its arguments, its cache, and whether it is causal."""

    signature: CallSignature
    rounding: Rounding = Rounding()
    arguments: OptionalArguments = OptionalArguments()
    intent: Intent = Intent(False)
    protocols: Protocols = Protocols()
    spans: tuple[int, ...] = ()  # sizes of windows and chunks that the model's attributes name

    @property
    def kind(self) -> str:
        """Return the kind of model in one word, as a report shows it."""
        if self.signature.main.kind == "image":
            return "vision"
        if not self.signature.sequential:
            return "classifier" if not self.causal else "decoder"
        if self.signature.others():
            return "encoder-decoder" if self.causal else "cross-attention"
        return "decoder" if self.causal else "encoder"

    @property
    def causal(self) -> bool:
        """Return whether the model is meant to be causal."""
        return self.intent.causal

    @property
    def cache(self) -> CacheProtocol | None:
        """Return how the model hands on a cache, if it does."""
        return self.protocols.cache

    @property
    def loss(self) -> LossInterface | None:
        """Return how the model returns a loss, if it does."""
        return self.protocols.loss

    @property
    def masks(self) -> tuple[MaskArgument, ...]:
        """Return the arguments that take a padding mask."""
        return self.arguments.masks

    @property
    def floor(self) -> float:
        """Return how far rounding alone moves an answer."""
        return self.rounding.floor

    @property
    def threshold(self) -> float:
        """Return the relative deviation above which a difference is not rounding."""
        return self.rounding.threshold

    def masks_over(self, axis: str) -> list[MaskArgument]:
        """Return the mask arguments over one length."""
        return [mask for mask in self.masks if mask.axis == axis]
