"""How a model is called in one experiment: the setting, and the run that gives an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from querykey.laws.understanding.outputs import Slot
from querykey.words import check_fields

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Conditions:
    """What an experiment changes around a call, beside the ways in which users call a model."""

    reseeded: int = 0  # random numbers differ from those of any other number here
    earlier: tuple[tuple[int, int], ...] = ()  # calls that come first: rows and tokens of each
    reset: str = ""  # the model's method that is called between those and the call itself
    dropout: bool = False  # dropout may act
    bare: bool = False  # the copy computes in its own precision, and nothing is intercepted


@dataclass(frozen=True)
class Setting:
    """One way of calling a model: its size, its weights, and what users often leave unset."""

    batch: int = 3
    length: int = 13
    weights: str = "random"  # "random": drawn anew; "own": the model's own
    train: bool = False
    attention: str | None = None  # the implementation of attention, where a model has several
    arguments: tuple[tuple[str, Any], ...] = ()  # optional arguments, passed on top of the inputs
    embeds: bool = False  # embeddings are passed in place of ids
    mask: bool = False  # a padding mask that hides nothing is passed
    conditions: Conditions = Conditions()

    def __post_init__(self):
        check_fields(self)

    def __str__(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.label().items()) or "the plain call"

    def label(self) -> dict[str, Any]:
        """Return what differs from the plain call, as names and values for a report."""
        differences: dict[str, Any] = dict(self.arguments)
        for name in ("weights", "train", "attention", "embeds", "batch", "length", "mask"):
            if getattr(self, name) != getattr(PLAIN, name):
                differences[name] = getattr(self, name)
        return differences


PLAIN = Setting()


@dataclass(frozen=True)
class Run:
    """One way to an answer: a single call, or one call per chunk with the cache passed on."""

    inputs: Inputs
    setting: Setting = PLAIN
    chunks: tuple[int, ...] | None = None
    masked: bool = False  # every chunk gets a mask over all tokens so far
    slot: Slot | None = None  # the output that is compared, where it is not the main one
    beams: tuple[int, ...] = ()  # after the first chunk the cache's rows are taken in this order
    drafts: int = 0  # after the first chunk so many other tokens are fed, and dropped again
