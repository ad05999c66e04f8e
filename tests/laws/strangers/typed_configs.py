"""A modern code base: typed, configured, registered by name; experts, windows, sinks, soft caps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import torch
from tests.laws.strangers.case import Case
from torch import Tensor, nn

Router = Literal["token", "token-over-positions", "expert", "capacity", "jitter"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    vocab: int = 67
    width: int = 24
    heads: int = 4
    layers: int = 2
    window: int = 6
    sinks: int = 2
    softcap: float | None = 20.0
    experts: int = 4
    router: Router = "token"
    visible: str = "windowed-causal"
    qk_norm: str = "per-head"
    temperature: str = "learned"


class Rule(Protocol):
    def __call__(self, query: Tensor, key: Tensor, config: ModelConfig) -> Tensor: ...


RULES: dict[str, Rule] = {}


def rule(name: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES[name] = function
        return function

    return register


@rule("windowed-causal")
def _windowed(query: Tensor, key: Tensor, config: ModelConfig) -> Tensor:
    near = (query - key < config.window) | (key < config.sinks)
    return near & (key <= query)


@rule("window-both-ways")
def _both_ways(query: Tensor, key: Tensor, config: ModelConfig) -> Tensor:
    return ((query - key).abs() < config.window) | (key < config.sinks) & (key <= query)


@rule("sinks-for-everyone")
def _sinks_first(query: Tensor, key: Tensor, config: ModelConfig) -> Tensor:
    return (query - key < config.window) & (key <= query) | (key < config.sinks)


@rule("precedence")
def _precedence(query: Tensor, key: Tensor, config: ModelConfig) -> Tensor:
    return (key <= query) & (query - key < config.window) | (key % config.window == 0)


class Output(NamedTuple):
    logits: Tensor
    aux: dict[str, Tensor]


class Norm(nn.Module):
    def __init__(self, width: int, axis: int = -1) -> None:
        super().__init__()
        self.scale, self.axis = nn.Parameter(torch.ones(width)), axis

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(self.axis, keepdim=True) + 1e-6).rsqrt() * self.scale


class SelfAttention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, per_head = config, config.width // config.heads
        self.q, self.k, self.v, self.o = (
            nn.Linear(config.width, config.width, bias=False) for _ in range(4)
        )
        axis = {"per-head": -1, "over-time": -2}[config.qk_norm]
        self.q_norm, self.k_norm = Norm(per_head, axis), Norm(per_head, axis)
        self.log_temperature = nn.Parameter(torch.zeros(config.heads))

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.heads, -1)).transpose(-3, -2)

    def temperature(self) -> Tensor:
        value = self.log_temperature.exp()
        return torch.tensor(value.tolist()) if self.config.temperature == "listed" else value

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        q, k = self.q_norm(q), self.k_norm(k)
        scores = q @ k.mT * self.temperature().to(q)[:, None, None] / q.shape[-1] ** 0.5
        if self.config.softcap is not None:
            scores = self.config.softcap * torch.tanh(scores / self.config.softcap)
        place = torch.arange(x.shape[-2], device=x.device)
        visible = RULES[self.config.visible](place[:, None], place[None, :], self.config)
        weights = scores.where(visible, torch.finfo(scores.dtype).min).softmax(-1)
        return self.o((weights @ v).transpose(-3, -2).flatten(-2))


class Experts(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.width, config.experts, bias=False)
        self.up = nn.Parameter(torch.randn(config.experts, config.width, config.width) * 0.2)
        self.down = nn.Parameter(torch.randn(config.experts, config.width, config.width) * 0.2)
        self.register_buffer("load", torch.zeros(config.experts), persistent=False)

    def weigh(self, x: Tensor) -> Tensor:
        logits = self.router(x)
        match self.config.router:
            case "token":
                return self.two_of(logits.softmax(-1))
            case "token-over-positions":
                return self.two_of(logits.softmax(-2))
            case "jitter":
                return self.two_of((logits * (1 + 0.1 * torch.rand_like(logits))).softmax(-1))
            case "expert":
                scores = logits.softmax(-1)
                count = max(1, x.shape[-2] // 2)
                least = scores.topk(count, dim=-2).values[..., -1:, :]
                return scores * (scores >= least)
            case "capacity":
                weights = self.two_of(logits.softmax(-1))
                flat = weights.flatten(0, -2)
                room = max(1, len(flat) // 3)
                return (flat * ((flat > 0).cumsum(0) <= room)).view_as(weights)

    def two_of(self, weights: Tensor) -> Tensor:
        least = weights.topk(2, dim=-1).values[..., -1:]
        return weights * (weights >= least)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weigh(x)
        hidden = torch.einsum("btd,edf->btef", x, self.up).relu().square()
        return torch.einsum("btef,efd,bte->btd", hidden, self.down, weights)


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention, self.experts = SelfAttention(config), Experts(config)
        self.before_attention, self.before_experts = Norm(config.width), Norm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.experts(self.before_experts(x))


class LanguageModel(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = Norm(config.width)

    def forward(self, tokens: Tensor) -> Output:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return Output(self.norm(x) @ self.embed.weight.T, {})


class AverageIncluded(LanguageModel):
    """Removes the mean of the residual stream, which drifts."""

    def forward(self, tokens: Tensor) -> Output:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
            x = x - x.mean(dim=(-2, -1), keepdim=True)
        return Output(self.norm(x) @ self.embed.weight.T, {})


def built(**changes: object) -> Callable[[], nn.Module]:
    return lambda: LanguageModel(replace(ModelConfig(), **changes))


CAUSAL = ("causality.perturb", "causality.gradient", "causality.prefix")
ROWS = ("batch.alone", "batch.others", "accumulation")
CASES = [
    Case(
        "window-is-a-band", built(visible="window-both-ways"), built(), CAUSAL, "layers.*.attention"
    ),
    Case(
        "sinks-for-everyone",
        built(visible="sinks-for-everyone"),
        built(),
        CAUSAL,
        "layers.*.attention",
    ),
    Case("and-before-or", built(visible="precedence"), built(), CAUSAL, "layers.*.attention"),
    Case(
        "norm-of-queries-over-time",
        built(qk_norm="over-time"),
        built(),
        CAUSAL,
        ("layers.*.attention.q_norm", "layers.*.attention.k_norm"),
    ),
    Case(
        "router-over-positions",
        built(router="token-over-positions"),
        built(),
        CAUSAL,
        "layers.*.experts",
    ),
    Case("experts-choose-tokens", built(router="expert"), built(), CAUSAL, "layers.*.experts"),
    Case("capacity-of-the-batch", built(router="capacity"), built(), ROWS, "layers.*.experts"),
    Case(
        "router-noise-stays", built(router="jitter"), built(), ("determinism",), "layers.*.experts"
    ),
    Case(
        "temperature-through-a-list",
        built(temperature="listed"),
        built(),
        ("gradient.reaches",),
        "layers.*.attention",
    ),
    Case("mean-over-positions", lambda: AverageIncluded(ModelConfig()), built(), CAUSAL, ""),
]
