"""Tokens one after the other: greedy or drawn, for prompts of any lengths, as a stream or at once.

ids = generate(model, prompt, max_new_tokens=20)              # (batch, tokens + new), greedy
ids = generate(model, prompt, real=real, temperature=0.8, top_p=0.9, seed=0, stop=eos)
for tokens in stream(model, prompt): ...                      # (batch,) at a time
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.models.decoding.lean import lean
from querykey.models.text.config import Learned, Special
from querykey.words import is_number, whole

PAYS = 32  # from this many new tokens on it pays to prepare the products of a model
ROOMY = 2**32  # up to this many bytes of weights, a second copy of them is made without asking
LEAST = torch.finfo(torch.float32).tiny  # a smaller temperature counts as 0
NOT_FINITE = "the model's scores became NaN or infinite, so no token can be chosen"
ROOM = 2048  # for this many new tokens memory is taken at once; it grows beyond


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen from its scores: temperature 0 takes the largest."""

    temperature: float = 0.0
    top_k: int | None = None  # draw only among this many largest scores
    top_p: float | None = None  # draw only among the fewest tokens with this much probability

    def __post_init__(self):
        for name, value in (("temperature", self.temperature), ("top_p", self.top_p)):
            if value is not None and not is_number(value):
                raise WrongTypeError(f"{name} is a number; got {value!r}")
        if not 0 <= float(self.temperature) < math.inf:
            raise QuerykeyError(f"a temperature is at least 0; got {self.temperature}")
        if self.top_k is not None:
            whole("top_k", self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise QuerykeyError(f"top_p is a probability above 0, at most 1; got {self.top_p}")

    def __call__(self, scores: Tensor, generator: torch.Generator | None) -> Tensor:
        """Return one token per row of scores (batch, vocabulary)."""
        if self.temperature < LEAST:
            return _largest(scores)
        probabilities = self.probabilities(scores)
        try:
            return torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        except RuntimeError:
            if bool(probabilities.isfinite().all()):
                raise
            raise QuerykeyError(NOT_FINITE) from None

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


def _largest(scores: Tensor) -> Tensor:
    """Return the token with the largest score in every row, or refuse to choose among NaN."""
    best = scores.argmax(-1)  # where there is NaN, it counts as the largest
    if bool(scores.gather(-1, best[:, None]).isnan().any()):
        raise QuerykeyError(NOT_FINITE)
    return best


@dataclass(frozen=True)
class Generation:
    """One checked call of `generate` or `stream`: the prompts, and how they are to go on."""

    ids: Tensor  # (batch, tokens)
    real: Tensor | None  # (batch, tokens), True for real tokens; None: all are
    count: int  # new tokens of every row
    choice: Choice
    stops: tuple[int, ...]  # the tokens that end a row
    seed: int | None

    @property
    def generator(self) -> torch.Generator | None:
        """A new source of random numbers; None leaves the choice to torch's own."""
        if self.seed is None:
            return None
        return torch.Generator(self.ids.device).manual_seed(self.seed)


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
    with its first stop token: one of `stop`, or by default of those that the model's config names.
    What follows in the row is padding: the config's, or the stop token again. Without a temperature
    the token with the largest score is taken; with top_k or top_p alone, a token is drawn at
    temperature 1. A model with an encoder reads the prompts there, and what is returned is what its
    decoder begins with, then the new tokens.
    """
    choice = _choice(temperature, top_k, top_p)
    generation = _checked(model, ids, real, max_new_tokens, choice, stop, seed)
    with torch.inference_mode():
        new = [tokens[:, None] for tokens in _new_tokens(model, generation)]
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
    """Return an iterator over the next tokens of all rows, (batch,) at a time; see `generate`."""
    choice = _choice(temperature, top_k, top_p)
    generation = _checked(model, ids, real, max_new_tokens, choice, stop, seed)
    return _outside_inference_mode(_new_tokens(model, generation))


def _outside_inference_mode(iterator: Iterator[Tensor]) -> Iterator[Tensor]:
    """Run an iterator in inference mode; yield copies of its tensors that are not bound to it."""
    while True:
        with torch.inference_mode():
            tokens = next(iterator, None)
        if tokens is None:
            return
        yield tokens.clone()


def _choice(temperature: float | None, top_k: int | None, top_p: float | None) -> Choice:
    if temperature is None:
        temperature = 0.0 if top_k is None and top_p is None else 1.0
    return Choice(temperature, None if top_k is None else whole("top_k", top_k), top_p)


def _checked(
    model: nn.Module, ids: Any, real: Any, count: Any, choice: Choice, stop: Any, seed: Any
) -> Generation:
    """Return the call as it will run, or raise the error that says what is wrong with it."""
    check_decodes(model)
    real, count = _checked_prompt(ids, real), whole("max_new_tokens", count, least=0)
    stops = special_tokens(model).eos if stop is None else _stop_tokens(stop)
    if seed is not None:
        seed = whole("seed", seed, least=-(2**63))
        if seed >= 2**64:
            raise QuerykeyError(f"a seed is a number of 64 bits; got {seed}")
    return Generation(ids.long(), real, count, choice, stops, seed)


def _stop_tokens(stop: Any) -> tuple[int, ...]:
    """Return the id, or the ids, as integers: those of any array library count."""
    with suppress(TypeError):
        return (whole("stop", index(stop), least=-(2**62)),)
    try:
        return tuple(whole("stop", index(token), least=-(2**62)) for token in stop)
    except TypeError:
        raise WrongTypeError(f"stop is a token id, or several; got {stop!r}") from None


def _checked_prompt(ids: Any, real: Any) -> Tensor | None:
    """Return which tokens of a prompt are real, on the device of its ids; None where all are."""
    if not isinstance(ids, Tensor):
        raise WrongTypeError(
            f"a prompt is a tensor of ids (batch, tokens); got {type(ids).__name__}"
        )
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise WrongTypeError(f"the ids of a prompt are whole numbers; got {ids.dtype}")
    if ids.is_meta:
        raise WrongTypeError("the ids of a prompt are on meta, where tensors have no values")
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise QuerykeyError(
            f"a prompt has at least one token, (batch, tokens); got {tuple(ids.shape)}"
        )
    if real is None:
        return None
    try:
        real = torch.as_tensor(real, device=ids.device) != 0
    except (TypeError, ValueError, RuntimeError):
        raise WrongTypeError(f"real is an array of booleans; got {type(real).__name__}") from None
    if real.shape != ids.shape:
        raise QuerykeyError(f"real is {tuple(real.shape)}, and the prompt is {tuple(ids.shape)}")
    if not bool(real.any(1).all()):
        raise QuerykeyError("every prompt has at least one real token")
    return real


def _new_tokens(model: Any, generation: Generation) -> Iterator[Tensor]:
    """Yield the next token of every row, (batch,); whoever asks for it is in inference mode."""
    ids, choice, stops = generation.ids, generation.choice, generation.stops
    pad, generator = special_tokens(model).pad, generation.generator
    pays = generation.count >= PAYS and _weight_bytes(model) <= ROOMY
    model = lean(model, len(ids) if pays else 0)
    positions = _learned_positions(model)
    stop_ids = torch.tensor(stops, device=ids.device)
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    chosen = tokens = None
    state: Any = None
    for _ in range(generation.count):
        if chosen is None:
            scores, state = _read_prompt(model, generation)
        else:
            real = None
            if (
                stops
                and state
                and positions is not None
                and max(state.counts, default=0) >= positions
            ):
                real = ~ended[:, None]  # no more positions: ended rows stay where they are
            hidden, state = model.step(chosen[:, None], state, real)
            scores = model.scores(hidden[:, -1])
        # A row that has ended is still fed what it would say: padding may be no id of a token.
        chosen = choice(scores, generator)
        previous, tokens = tokens, chosen
        if stops:
            if previous is not None:
                tokens = torch.where(ended, previous if pad is None else pad, chosen)
            ended = ended | (tokens[:, None] == stop_ids).any(1)
        yield tokens
        if stops and bool(ended.all()):
            return


def _read_prompt(model: Any, generation: Generation) -> tuple[Tensor, Any]:
    """Return the scores of every row's first new token, and the state after the prompt."""
    ids, room = generation.ids, generation.ids.shape[1] + min(generation.count, ROOM)
    first, state = model.begin(ids, generation.real, room)
    real = generation.real if first is ids else None  # an encoder has read the prompt already
    hidden, state = model.step(first, state, real)
    scores = model.scores(_last(hidden, real))
    if bool(scores.isnan().any()):
        raise QuerykeyError("the model's answer to this prompt is NaN, so nothing follows")
    return scores, state


def _learned_positions(model: Any) -> int | None:
    """Return how many positions the model has learned; None where it has no table of them."""
    kind = getattr(model.config, "decoder", model.config).positions
    return kind.count if isinstance(kind, Learned) else None


def _weight_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def _last(hidden: Tensor, real: Tensor | None) -> Tensor:
    """Return the hidden state of each row's last real token, (batch, width)."""
    if real is None:
        return hidden[:, -1]
    place = torch.arange(hidden.shape[1], device=hidden.device)
    last = torch.where(real, place, -1).argmax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), last]


def _first(model: Any, ids: Tensor) -> Tensor:
    """Return what every row begins with: its prompt, or the token that a target starts with."""
    start = getattr(model.config, "start", None)
    return ids if start is None else torch.full_like(ids[:, :1], start)


def special_tokens(model: Any) -> Special:
    """Return the special tokens of the sequences that a model generates."""
    return getattr(model.config, "decoder", model.config).embedding.special


def check_decodes(model: nn.Module) -> None:
    """Raise the error that says why a model cannot generate, if it cannot."""
    if isinstance(model, type) or not (hasattr(model, "begin") and hasattr(model, "step")):
        what = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise WrongTypeError(f"generate wants a Decoder or an EncoderDecoder; {what} has no state")
    config: Any = model.config
    head = getattr(config, "decoder", config).head
    if head is None:
        raise QuerykeyError(
            "this model has no head over the vocabulary, so it cannot say a next token"
        )
