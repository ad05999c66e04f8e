"""Generation in two phases: a prompt is read into a state, and a new token reads that state.

The state is the cache of a Hugging Face model, or what our models' `extend` hands on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn

from querykey.costs.inputs import CostError
from querykey.targets import is_hugging_face

PHASES = ("train", "prefill", "decode")
CACHES = ("past_key_values", "cache_params", "state")  # how Hugging Face's outputs call it


def read_prompt(model: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the output for a prompt, and the state after it."""
    if hasattr(model, "extend") and hasattr(model, "empty_state"):
        ids, *rest = [*args, *kwargs.values()]
        if rest:
            raise CostError("a phase of generation takes the prompt's token ids and nothing else")
        return model.extend(ids, model.empty_state(ids.shape[0]))  # type: ignore[operator]
    if not is_hugging_face(model):
        raise CostError(
            "the model has no phases of generation: a decoder of Hugging Face has them, and a "
            "model with the methods empty_state(batch) and extend(ids, state)"
        )
    out = model(*args, **kwargs, use_cache=True)
    name = _name_of_cache(out)
    return out, (name, out[name], out.get("encoder_last_hidden_state"))


def read_token(model: nn.Module, args: Any, kwargs: Any, state: Any) -> tuple[Any, Any]:
    """Return the output for one new token per row, and the state after it."""
    ids = kwargs.get("decoder_input_ids", next(iter([*args, *kwargs.values()])))
    token = ids[:, :1]
    if hasattr(model, "extend") and hasattr(model, "empty_state"):
        return model.extend(token, state)  # type: ignore[operator]
    name, cache, encoded = state
    inputs: dict[str, Any] = {name: cache, "use_cache": True}
    if encoded is None:
        out = model(input_ids=token, **inputs)
    else:
        out = model(decoder_input_ids=token, encoder_outputs=(encoded,), **inputs)
    return out, (name, out[name], encoded)


def cache_in(state: Any) -> Any:
    """Return what of a state is the cache, without an encoder's output beside it."""
    return state[1] if type(state) is tuple else state


def tensors_in(value: Any, known: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Yield every tensor that a state holds, each once."""
    known = set() if known is None else known
    if id(value) in known:
        return
    known.add(id(value))
    inner: Any = ()
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, tuple | list):
        inner = value
    elif is_dataclass(value):
        inner = [getattr(value, field.name) for field in fields(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        inner = vars(value).values()
    for element in inner:
        yield from tensors_in(element, known)


def _name_of_cache(out: Any) -> str:
    for name in CACHES:
        if isinstance(out, Mapping) and out.get(name) is not None:
            return name
    raise CostError("the model hands on no cache, so it has no phases of generation")
