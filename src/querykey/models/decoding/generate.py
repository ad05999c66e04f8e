"""Tokens one after the other: greedy or drawn, for prompts of any lengths, as a stream or at once.

ids = generate(model, prompt, max_new_tokens=20)              # (batch, tokens + new), greedy
ids = generate(model, prompt, real=real, temperature=0.8, top_p=0.9, seed=0, stop=eos)
for tokens in stream(model, prompt): ...                      # (batch,) at a time
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from querykey.models.decoding.lean import lean
from querykey.models.text.config import Special

PAYS = 32  # new tokens from which it pays to prepare the products of a model
ROOMY = 2**32  # bytes of weights up to which a second copy of them is nothing to ask about
LEAST = torch.finfo(torch.float32).tiny  # a temperature below it divides nothing
ROOM = 2048  # new tokens for which memory is taken at once; it grows beyond


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen from its scores: temperature 0 takes the largest."""

    temperature: float = 0.0
    top_k: int | None = None  # only among so many largest
    top_p: float | None = None  # only among the fewest that have this much probability together

    def __post_init__(self):
        if not self.temperature >= 0:
            raise ValueError(f"a temperature is at least 0; got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k is at least 1; got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is a probability above 0, at most 1; got {self.top_p}")

    def __call__(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return one token per row of scores (batch, vocabulary)."""
        if self.temperature < LEAST:
            return scores.argmax(-1)
        probabilities = self.probabilities(scores)
        try:
            return torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        except RuntimeError:
            if bool(probabilities.isfinite().all()):
                raise
            raise ValueError("the scores are NaN or infinite, so no token can be drawn") from None

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the probabilities that tokens are drawn with, (batch, vocabulary)."""
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = (scores - scores.amax(-1, keepdim=True)) / self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k).values[..., -1:]
            scores = scores.masked_fill(scores < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, order = scores.sort(descending=True, stable=True)
            before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
            out = (before >= self.top_p).scatter(-1, order, before >= self.top_p)
            scores = scores.masked_fill(out, -torch.inf)
        return scores.softmax(-1)


def generate(
    model: nn.Module,
    ids: Tensor,
    *,
    max_new_tokens: int = 20,
    real: Tensor | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | Collection[int] | None = None,
    seed: int | None = None,
) -> Tensor:
    """Return the prompts (batch, tokens) with up to `max_new_tokens` more tokens behind each.

    `real` (batch, tokens) is True for real tokens of the prompts, padded at either end. A row ends
    with its first stop token: one of `stop`, or unless given, of those that the model's config
    names. What follows in the row is padding: the config's, or the stop token again. Without a
    temperature the largest score is taken, or, where top_k or top_p is given, a token is drawn at
    temperature 1. A model with an encoder reads the prompts there and returns what its decoder
    begins with, then says.
    """
    tokens = _tokens(model, ids, max_new_tokens, real, temperature, top_k, top_p, stop, seed)
    with torch.inference_mode():
        new = [each[:, None] for each in tokens]
    return torch.cat([_first(model, ids.long()), *new], 1)


def stream(
    model: nn.Module,
    ids: Tensor,
    *,
    max_new_tokens: int = 20,
    real: Tensor | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | Collection[int] | None = None,
    seed: int | None = None,
) -> Iterator[Tensor]:
    """Yield the next token of every row, (batch,), as soon as it is known; see `generate`."""
    tokens = _tokens(model, ids, max_new_tokens, real, temperature, top_k, top_p, stop, seed)
    return _apart(tokens)


def _apart(tokens: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield copies that know nothing of inference mode, in which the caller does not run."""
    while True:
        with torch.inference_mode():
            each = next(tokens, None)
        if each is None:
            return
        yield each.clone()


def _tokens(
    model: nn.Module,
    ids: Tensor,
    count: int,
    real: Tensor | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    stop: int | Collection[int] | None,
    seed: int | None,
) -> Iterator[Tensor]:
    """Check what `generate` and `stream` are given, and return the tokens to come."""
    check_decodes(model)
    real = _checked(ids, real)
    count = _whole("max_new_tokens", count)
    if count < 0:
        raise ValueError(f"max_new_tokens is at least 0; got {count}")
    if temperature is None:
        temperature = 0.0 if top_k is None and top_p is None else 1.0
    choice = Choice(temperature, None if top_k is None else _whole("top_k", top_k), top_p)
    stops = special_tokens(model).eos if stop is None else _stops(stop)
    seed = None if seed is None else _whole("seed", seed)
    return _run(model, ids.long(), count, real, choice, stops, seed)


def _whole(name: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number; got {value!r}") from None


def _stops(stop: Any) -> tuple[int, ...]:
    """Return one id, or each of several, of any library."""
    with suppress(TypeError):
        return (index(stop),)
    try:
        return tuple(index(each) for each in stop)
    except TypeError:
        raise TypeError(f"stop is a token id, or several; got {stop!r}") from None


def _checked(ids: Any, real: Any) -> Tensor | None:
    """Return which tokens of a prompt are real, beside its ids."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"a prompt is a tensor of ids (batch, tokens); got {type(ids).__name__}")
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise TypeError(f"the ids of a prompt are whole numbers; got {ids.dtype}")
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(
            f"a prompt has at least one token, (batch, tokens); got {tuple(ids.shape)}"
        )
    if real is None:
        return None
    real = torch.as_tensor(real, device=ids.device) != 0
    if real.shape != ids.shape:
        raise ValueError(f"real is {tuple(real.shape)}, and the prompt is {tuple(ids.shape)}")
    if not bool(real.any(1).all()):
        raise ValueError("every prompt has at least one real token")
    return real


def _run(
    model: Any,
    ids: Tensor,
    count: int,
    real: Tensor | None,
    choice: Choice,
    stops: tuple[int, ...],
    seed: int | None,
) -> Iterator[Tensor]:
    """Yield token after token; whoever asks for the next is in inference mode."""
    fill, generator = special_tokens(model).pad, None
    if seed is not None:
        if not -(2**63) <= seed < 2**64:
            raise ValueError(f"a seed is a number of 64 bits; got {seed}")
        generator = torch.Generator(ids.device).manual_seed(seed)
    pays = count >= PAYS and sum(each.nbytes for each in model.parameters()) <= ROOMY
    model, state, tokens, said = lean(model, len(ids) if pays else 0), None, None, None
    ending = torch.tensor(stops, device=ids.device)
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(count):
        if tokens is None:
            given, state = model.begin(ids, real, ids.shape[1] + min(count, ROOM))
            hidden, state = model.step(given, state, real if given is ids else None)
            scores = model.scores(_last(hidden, real if given is ids else None))
            if bool(scores.isnan().any()):
                raise ValueError("the model's answer to this prompt is NaN, so nothing follows")
        else:
            hidden, state = model.step(tokens[:, None], state)
            scores = model.scores(hidden[:, -1])
        # What a row is fed after its end is nothing to it, and padding may be no known id.
        tokens = choice(scores, generator)
        before, said = said, tokens
        if stops:
            if before is not None:
                said = torch.where(ended, before if fill is None else fill, tokens)
            ended = ended | (said[:, None] == ending).any(1)
        yield said
        if stops and bool(ended.all()):
            return


def _last(hidden: Tensor, real: Tensor | None) -> Tensor:
    """Return the hidden state of each row's last real token, (batch, width)."""
    if real is None:
        return hidden[:, -1]
    place = torch.arange(hidden.shape[1], device=hidden.device)
    last = torch.where(real, place, -1).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def _first(model: Any, ids: Tensor) -> Tensor:
    start = getattr(model.config, "start", None)
    return ids if start is None else torch.full_like(ids[:, :1], start)


def special_tokens(model: Any) -> Special:
    """Return the special tokens of what a model says."""
    return getattr(model.config, "decoder", model.config).embedding.special


def check_decodes(model: nn.Module) -> None:
    """Raise the error that says why a model cannot generate."""
    if not (hasattr(model, "begin") and hasattr(model, "step")):
        raise TypeError(
            f"generate wants a Decoder or an EncoderDecoder; {type(model).__name__} has no state"
        )
    config: Any = model.config
    head = getattr(config, "decoder", config).head
    if head is None:
        raise ValueError(
            "this model has no head over the vocabulary, so it cannot say a next token"
        )
