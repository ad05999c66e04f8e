"""Frozen values that describe a model over tokens: its embedding, its blocks, its head."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from querykey.attention import ALiBi, Rotary
from querykey.errors import QuerykeyError
from querykey.nn import ACTIVATIONS, BlockConfig, among
from querykey.words import check_fields, number, whole


@dataclass(frozen=True)
class Learned:
    """Positions as a learned table with one row per position, added to the tokens."""

    count: int
    offset: int = 0  # rows of the table before that of the first position
    skip: int | None = None  # tokens with this id are not counted (RoBERTa's padding)

    def __post_init__(self):
        check_fields(self)
        whole("count", self.count)
        whole("offset", self.offset, least=0)


@dataclass(frozen=True)
class Sinusoidal:
    """Positions as sines and cosines, added to the tokens (Vaswani et al., 2017)."""

    base: float = 10000.0

    def __post_init__(self):
        check_fields(self)
        if not 0 < self.base < math.inf:
            raise QuerykeyError(f"base is a finite number above 0; got {self.base}")


@dataclass(frozen=True)
class Distances:
    """Positions as a learned bias per head and bucket of distances (Raffel et al., 2020)."""

    buckets: int = 32
    furthest: int = 128

    def __post_init__(self):
        check_fields(self)
        for name in ("buckets", "furthest"):
            whole(name, getattr(self, name))


def check_activation(name: str, activation: str | None) -> None:
    """Refuse what is neither None nor the name of an activation."""
    if activation is not None:
        among(name, (activation,), ACTIVATIONS)


Positions = Learned | Sinusoidal | Rotary | ALiBi | Distances | None


@dataclass(frozen=True)
class Special:
    """Token ids with a meaning of their own: those that begin, end and pad a text."""

    bos: int | None = None
    eos: tuple[int, ...] = ()  # generation stops at any of them
    pad: int | None = None

    def __post_init__(self):
        ending = self.eos if isinstance(self.eos, tuple) else ()
        for token in (self.bos, *ending, self.pad):
            if token is not None:
                whole("the id of a special token", token, least=-1)  # -1: none, in some folders
        check_fields(self)


@dataclass(frozen=True)
class EmbeddingConfig:
    """How token ids become vectors: a table, times a scale, plus segment types, then a norm."""

    vocabulary: int
    types: int = 0  # kinds of segments (BERT's sentence A and B); 0: none
    norm: bool = False
    scale: float = 1.0
    special: Special = field(default_factory=Special)
    untrained: int | None = None  # the token whose row gets no gradient, as padding's

    def __post_init__(self):
        check_fields(self)
        whole("vocabulary", self.vocabulary)
        whole("types", self.types, least=0)
        number("scale", self.scale, least=-math.inf)
        if self.untrained is not None and self.untrained not in range(self.vocabulary):
            raise QuerykeyError(
                f"there is no token {self.untrained!r} whose row could stay untrained"
            )


@dataclass(frozen=True)
class TokenHead:
    """Scores over the vocabulary for every token: scale * (W x), W the embedding where tied."""

    tied: bool = True
    bias: bool = False
    transform: str | None = None  # the activation of a layer before it, with a norm (BERT)
    scale: float = 1.0

    def __post_init__(self):
        check_fields(self)
        check_activation("transform", self.transform)
        number("scale", self.scale, least=-math.inf)


@dataclass(frozen=True)
class ClassHead:
    """Scores over classes from a sequence's first real token."""

    classes: int
    transform: str | None = None  # the activation of a layer before it

    def __post_init__(self):
        check_fields(self)
        whole("classes", self.classes)
        check_activation("transform", self.transform)


@dataclass(frozen=True)
class PairHead:
    """Both heads of BERT's pretraining: scores for every token, and classes of the pair."""

    tokens: TokenHead
    classes: ClassHead

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class EncoderConfig:
    """Every token sees every real token; without a head the model returns its hidden states."""

    embedding: EmbeddingConfig
    block: BlockConfig
    layers: int
    positions: Positions = None
    head: TokenHead | ClassHead | PairHead | None = None
    pooler: str | None = None  # the activation of a layer over the first real token, for `pooled`

    def __post_init__(self):
        check_fields(self)
        whole("layers", self.layers)
        check_activation("pooler", self.pooler)


@dataclass(frozen=True)
class DecoderConfig:
    """Every token sees itself and what came before, no further back than its layer's window."""

    embedding: EmbeddingConfig
    block: BlockConfig
    layers: int
    positions: Positions = None
    head: TokenHead | None = field(default_factory=TokenHead)
    windows: int | tuple[int | None, ...] | None = None  # one for all layers, or one for each

    def __post_init__(self):
        check_fields(self)
        whole("layers", self.layers)
        if getattr(self.positions, "skip", None) is not None:
            raise QuerykeyError(
                f"a decoder counts every real token, so its positions skip none; "
                f"got {self.positions}"
            )
        if isinstance(self.windows, tuple) and len(self.windows) != self.layers:
            raise QuerykeyError(f"{self.layers} layers want as many windows; got {self.windows}")
        for size in self.windows if isinstance(self.windows, tuple) else (self.windows,):
            if size is not None:
                whole("a window", size)

    @property
    def window_of_each(self) -> tuple[int | None, ...]:
        """The window of every layer; None where a token sees all that came before."""
        return self.windows if isinstance(self.windows, tuple) else (self.windows,) * self.layers


@dataclass(frozen=True)
class EncoderDecoderConfig:
    """A decoder whose every token also sees all real tokens that an encoder has read."""

    encoder: EncoderConfig
    decoder: DecoderConfig
    shared: bool = True  # one table of token embeddings for both
    start: int = 0  # the token that a target sequence begins with

    def __post_init__(self):
        check_fields(self)
        if self.shared and self.encoder.embedding.vocabulary != self.decoder.embedding.vocabulary:
            raise QuerykeyError("a shared table of embeddings wants one vocabulary for both sides")
        if self.shared and self.encoder.block.width != self.decoder.block.width:
            raise QuerykeyError("a shared table of embeddings wants one width for both sides")
        if self.encoder.head is not None:
            raise QuerykeyError(
                "the encoder of a pair hands on its hidden states, so it has no head"
            )
        if self.start not in range(self.decoder.embedding.vocabulary):
            raise QuerykeyError(
                f"a target begins with a token, and there is no token {self.start!r}"
            )
