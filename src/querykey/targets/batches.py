"""Models whose forward takes one object that holds every tensor: a dict, or one with attributes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import nn

from querykey.targets.batch_axis import with_batch_found
from querykey.targets.errors import TargetError
from querykey.targets.guessing import argument_names, guesses
from querykey.targets.inputs import Input
from querykey.targets.trial import run_quietly, trial
from querykey.words import check_fields, checked, raised

MOST = 8  # tensors in one batch


class NamedTensors(dict):
    """The tensors of one call by name, as keys and as attributes; notes what is not there."""

    def __init__(self, tensors: dict[str, Any]):
        super().__init__(tensors)
        self.__dict__["missed"] = []  # names that were asked for in vain
        self.__dict__["attributes"] = False  # some tensor was read as an attribute

    def __missing__(self, key: Any) -> Any:
        self.missed.append(key)
        raise KeyError(key)

    def __contains__(self, key: Any) -> bool:
        found = super().__contains__(key)
        if not found:
            self.missed.append(key)
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the tensor of this name, or the default."""
        return self[key] if key in self else default  # noqa: SIM401  what is not there is noted

    def __getattr__(self, name: str) -> Any:
        if super().__contains__(name):
            self.__dict__["attributes"] = True
            return self[name]
        # A model that takes a tensor asks it for such things as its shape.
        if not name.startswith("_") and not hasattr(torch.Tensor, name):
            self.missed.append(name)
        raise AttributeError(name)


@dataclass(frozen=True)
class TakesBatch:
    """Calls a model that takes its tensors in one object, with each as an argument of its own."""

    model: nn.Module
    argument: str  # the model's own name for that object
    inputs: tuple[Input, ...]  # that every batch must hold
    optional: tuple[str, ...] = field(default=())  # that a batch may hold
    attributes: bool = False  # the object has attributes, and need not be a dict

    def __post_init__(self):
        check_fields(self)

    def __call__(self, **tensors: Any) -> Any:
        """Call the model with one object that holds these tensors."""
        return self.model(NamedTensors(tensors))

    @property
    def __signature__(self) -> Signature:
        """The arguments: one for each tensor."""
        kind = Parameter.KEYWORD_ONLY
        required = [Parameter(one.name, kind) for one in self.inputs]
        return Signature([*required, *(Parameter(n, kind, default=None) for n in self.optional)])


@checked
def takes_batch(model: nn.Module) -> TakesBatch | None:
    """Return how a model that takes one object of tensors is called; None where it is not one.

    An object that notes what is asked of it is passed, with one tensor more each time, until the
    model runs; what was asked for and not needed is optional. A TargetError says what a model
    raised whatever these tensors were.
    """
    names = argument_names(model)
    wanted: list[str] = []
    while len(names) == 1 and len(wanted) <= MOST:
        more, first = None, None
        for inputs, batch, error in _tried(model, wanted):
            if error is None and wanted:
                inputs = with_batch_found(inputs, lambda v: run_quietly(model, v, NamedTensors))
                missed = (n for n in batch.missed if isinstance(n, str) and n.isidentifier())
                return TakesBatch(
                    model, names[0], inputs, tuple(dict.fromkeys(missed)), batch.attributes
                )
            if more := _lacking(batch, error):
                break
            first = first or error
        if more is None or more in wanted:
            break
        wanted.append(more)
    else:
        return None
    if wanted and first is not None:
        raise TargetError(
            f"its `{names[0]}` is asked for {', '.join(f'`{one}`' for one in wanted)}; with these "
            f"it raised {raised(first, 160)}"
        )
    return None


def _lacking(batch: NamedTensors, error: BaseException | None) -> str | None:
    """Return the tensor whose absence is what a call raised."""
    absent = isinstance(error, KeyError | AttributeError) and error.args[:1] == tuple(
        batch.missed[-1:]
    )
    name = batch.missed[-1] if absent and batch.missed else None
    return name if isinstance(name, str) and name.isidentifier() else None


def _tried(
    model: nn.Module, wanted: list[str]
) -> Iterator[tuple[tuple[Input, ...], NamedTensors, BaseException | None]]:
    """Yield guesses of these tensors, each with its batch after the call and what it raised."""
    for inputs in guesses(model, wanted):
        batch = NamedTensors({})

        def filled(values: dict[str, Any], batch: NamedTensors = batch) -> NamedTensors:
            batch.update(values)
            return batch

        try:
            trial(model, inputs, filled)
        except (Exception, SystemExit) as error:
            yield inputs, batch, error
        else:
            yield inputs, batch, None
