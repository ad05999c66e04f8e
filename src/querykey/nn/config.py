"""Frozen values that describe a block: its attention, its MLP, its norms, its residual sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import Literal

from querykey.attention import Causal, Mechanism, Softmax, check_takes_decay
from querykey.errors import QuerykeyError
from querykey.words import check_fields, share, whole

ACTIVATIONS = ("relu", "gelu", "gelu-tanh", "silu", "quick-gelu", "tanh", "identity")


@dataclass(frozen=True)
class AttentionConfig:
    """Query heads, the key heads that they share, and the sizes of a key and of a value."""

    heads: int
    kv_heads: int | None = None  # None: one for each query head
    key_dim: int | None = None  # None: width / heads
    value_dim: int | None = None  # None: width / heads
    mechanism: Mechanism = field(default_factory=Softmax)
    output: bool = True  # a projection after the heads are joined
    biases: tuple[Literal["qkv", "output"], ...] = ("qkv", "output")
    dropout: float = 0.0  # of softmax's weights, while training
    decay: bool = False  # a learned gate per key head: what came before counts less and less

    def __post_init__(self):
        check_fields(self)
        whole("heads", self.heads)
        share("dropout", self.dropout)
        if self.dropout and not isinstance(self.mechanism, Softmax):
            raise QuerykeyError(f"dropout is of softmax's weights; {self.mechanism} has none")
        if self.decay:
            check_takes_decay(self.mechanism, Causal())
        for name in ("kv_heads", "key_dim", "value_dim"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        if self.heads % (self.kv_heads or self.heads):
            raise QuerykeyError(f"{self.heads} heads cannot share {self.kv_heads} key heads evenly")
        among("biases", self.biases, ("qkv", "output"))

    def sizes(self, width: int) -> tuple[int, int, int]:
        """Return key heads, key size and value size for tokens with `width` features."""
        whole("width", width)
        if None in (self.key_dim, self.value_dim) and width % self.heads:
            raise QuerykeyError(
                f"{width} features do not split into {self.heads} heads of one size; "
                "give key_dim and value_dim"
            )
        split = width // self.heads
        value_dim = self.value_dim or split
        if not self.output and self.heads * value_dim != width:
            raise QuerykeyError(
                f"without an output projection the {self.heads} heads of {value_dim} values make "
                f"{self.heads * value_dim} features, and the tokens have {width}"
            )
        return self.kv_heads or self.heads, self.key_dim or split, value_dim


@dataclass(frozen=True)
class MLPConfig:
    """An MLP of one hidden layer; a gated one multiplies activation(gate x) with up x."""

    hidden: int
    activation: str = "gelu"
    gated: bool = False
    bias: bool = True

    def __post_init__(self):
        check_fields(self)
        whole("hidden", self.hidden)
        among("activation", (self.activation,), ACTIVATIONS)


@dataclass(frozen=True)
class NormConfig:
    """torch's own norms, each before its part of the block, or after the residual sum."""

    kind: Literal["layer", "rms", "batch", "none"] = "layer"
    place: Literal["before", "after"] = "before"
    epsilon: float = 1e-5

    def __post_init__(self):
        among("kind", (self.kind,), ("layer", "rms", "batch", "none"))
        among("place", (self.place,), ("before", "after"))
        if not (isinstance(self.epsilon, Real) and self.epsilon >= 0):
            raise QuerykeyError(f"epsilon is at least 0; got {self.epsilon!r}")


PRESETS = ("bare", "residual", "post-norm", "pre-norm")


@dataclass(frozen=True)
class BlockConfig:
    """Attention, then an MLP; each with its norm, and with its input added where `residual` says.

    Attention over another sequence, where a model has it, stands between them and is joined as
    attention is.
    """

    width: int
    attention: AttentionConfig
    mlp: MLPConfig
    norm: NormConfig = field(default_factory=NormConfig)
    residual: tuple[Literal["attention", "mlp"], ...] = ("attention", "mlp")
    dropout: float = 0.0  # of what each part adds, while training

    def __post_init__(self):
        check_fields(self)
        whole("width", self.width)
        among("residual", self.residual, ("attention", "mlp"))
        self.attention.sizes(self.width)
        share("dropout", self.dropout)

    @classmethod
    def preset(
        cls, name: str, width: int, heads: int = 1, hidden: int | None = None
    ) -> BlockConfig:
        """Return a block of the literature by its name; `hidden` is 4 * width unless given.

        bare: MLP(A(x)), unscaled, without output projection, residual or norm.
        residual: MLP(A(x) + x), without norms.
        post-norm: as in the original paper (Vaswani et al., 2017). pre-norm: as in today's models.
        """
        among("name", (name,), PRESETS)
        hidden = 4 * width if hidden is None else hidden
        if name in ("bare", "residual"):
            mechanism = Softmax(scale=1.0) if name == "bare" else Softmax()
            attention = AttentionConfig(heads, mechanism=mechanism, output=False, biases=())
            residual = () if name == "bare" else ("attention",)
            relu = MLPConfig(hidden, "relu")
            return cls(width, attention, relu, NormConfig("none"), residual)
        if name == "post-norm":
            relu = MLPConfig(hidden, "relu")
            return cls(width, AttentionConfig(heads), relu, NormConfig(place="after"))
        return cls(width, AttentionConfig(heads), MLPConfig(hidden))


def among(name: str, values: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    """Raise a ValueError for the first of `values` that is not one of those allowed."""
    for value in values:
        if value not in allowed:
            raise QuerykeyError(f"{name}: there is no {value!r} (there is {', '.join(allowed)})")
