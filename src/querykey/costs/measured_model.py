"""The model that is measured, or the builder of one model per choice of sizes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import nn

from querykey.costs.counting.tensors import random_state
from querykey.costs.counting.whole_numbers import WholeNumbers
from querykey.costs.inputs import CostError, Inputs, whole_size
from querykey.targets import is_lazy
from querykey.words import a_type, last_line, suggest

FINE = (1, 2, 3, 4, 6, 8, 12)  # these divide the coarse values
COARSE = tuple(24 * n for n in range(1, 10))
COUNT = 9  # values to choose from per size
FEW = 6  # the same where they are multiples


class MeasuredModel:
    """A model under named sizes: those of its inputs, and those that its builder takes.

    `names` are all sizes, `hyper` those of the builder; `values` are the numbers to choose from.
    `stated` are the sizes about which the user's `sizes` says something: `listed` ones take only
    the user's list, and `steps` holds the number of which an input's size is a multiple.
    """

    def __init__(
        self,
        source: nn.Module | Callable[..., nn.Module],
        inputs: Inputs,
        sizes: Mapping[str, int | Sequence[int]],
        near: Mapping[str, int],
    ):
        self.source = source
        self.hyper = [] if isinstance(source, nn.Module) else _arguments(source, inputs)
        self.names = list(dict.fromkeys([*inputs.names(), *self.hyper]))
        for name in [*sizes, *near]:
            self._check_name(name)
        # An input's size of 1 is too special to stand for others.
        self.near = {n: whole_size(n, s, 1 if n in self.hyper else 2) for n, s in near.items()}
        stated = {name: _step_or_list(name, statement) for name, statement in sizes.items()}
        self.stated = {*stated}
        self.listed = {name for name, values in stated.items() if not isinstance(values, int)}
        self.steps = {
            name: step
            for name, step in stated.items()
            if isinstance(step, int) and name not in self.hyper
        }
        self._fixed = {*stated, *near}
        self._models: dict[tuple[int, ...], nn.Module] = {}
        self.values = self._choose(stated)
        base = self.model(self.base())
        refuse_lazy(base)
        self.inputs = inputs.limited(_vocabulary(base))
        other = self.model({name: values[2] for name, values in self.values.items()})
        paths = [{path for path, _ in model.named_modules()} for model in (base, other)]
        self.varies = paths[0] != paths[1]  # as when the number of layers is a size
        self.whole_numbers = WholeNumbers()
        self.picked: dict[str, str] = {}  # sizes that depend on values: the module of each

    def add_picked(self, modules: Mapping[str, str]) -> None:
        """Add sizes that depend on values, each with the module in which it comes up."""
        for name, path in modules.items():
            if name in self.names:
                raise CostError(f"`{name}` is what a size that values decide is called; rename it")
            self.picked[name] = path
            self.names.append(name)
            self.values[name] = list(range(2, 2 + COUNT))

    @property
    def movable(self) -> list[str]:
        """Return the inputs' sizes about which the user said nothing."""
        return [n for n in self.names if n not in self.hyper and n not in self._fixed]

    @property
    def moved(self) -> list[str]:
        """Return the sizes that `move` changes: all movable but the first, usually the batch."""
        return self.movable[1:] or self.movable

    def move(self, start: int, step: int) -> None:
        """Choose the values of the moved sizes from `start` on, in steps."""
        for place, name in enumerate(self.moved):
            first = start + 2 * place * step
            count = COUNT if step == 1 else FEW
            self.values[name] = list(range(first, first + count * step, step))
            self.steps.pop(name, None)
            if step > 1:
                self.steps[name] = step

    def base(self) -> dict[str, int]:
        """Return the first choice for every size."""
        return {name: self.near.get(name, values[0]) for name, values in self.values.items()}

    def model(self, sizes: Mapping[str, int]) -> nn.Module:
        """Return the model at these sizes, built once for each choice of the builder's own."""
        if isinstance(self.source, nn.Module):
            return self.source
        key = tuple(sizes[name] for name in self.hyper)
        if key not in self._models:
            self._models[key] = _build(self.source, dict(zip(self.hyper, key, strict=True)))
        return self._models[key]

    def at(self, fields: Mapping[str, int]) -> MeasuredModel:
        """Return the same with the builder's sizes fixed, as the first choice."""
        other = copy(self)
        other.near = {**self.near, **fields}
        other.picked = dict(self.picked)
        return other

    def fold(self, path: str) -> str:
        """Return a module's path, with `*` for its numbers where their range is not fixed."""
        if not self.varies:
            return path
        return ".".join("*" if part.isdigit() else part for part in path.split("."))

    def _check_name(self, name: str) -> None:
        if name not in self.names:
            have = f"the sizes are {', '.join(self.names)}" if self.names else "no size is free"
            raise CostError(f"there is no size `{name}`{suggest(name, self.names)} ({have})")

    def _choose(self, stated: Mapping[str, int | Sequence[int]]) -> dict[str, list[int]]:
        """Return values per size: the user's, else plain ones, else ones that divide each other."""
        plain = {}
        for place, name in enumerate(self.names):
            statement = stated.get(name)
            start = self.near.get(name, 3 + 2 * place)
            if isinstance(statement, int):
                plain[name] = [statement * n for n in range(1, COUNT + 1)]
            else:
                plain[name] = list(statement) if statement else list(range(start, start + COUNT))
            if len(plain[name]) < 4:
                raise CostError(f"`{name}` needs at least 4 values to choose from")
        free = [name for name in self.hyper if name not in stated]
        first_refusal = None
        for coarse in _subsets(free):
            values = dict(plain)
            if coarse is not None:
                values |= {n: list(COARSE if n in coarse else FINE) for n in free}
            refusal = self._refusal(values)
            if refusal is None:
                return values
            first_refusal = first_refusal or refusal
        raise CostError(
            f"{first_refusal} (a builder takes whole numbers by name and returns a module; say "
            "which numbers it takes with sizes={'width': 12} for multiples of 12, or a list of "
            "them)"
        ) from None

    def _refusal(self, values: dict[str, list[int]]) -> str | None:
        """Return why the builder refuses one of a few choices of values, or None."""
        for places in ((0, 0), (1, 2), (2, 1), (3, 3)):
            point = {n: v[places[i % 2]] for i, (n, v) in enumerate(values.items())}
            try:
                self.model(point)
            except CostError as error:
                return str(error)
        return None


def _step_or_list(name: str, statement: Any) -> int | list[int]:
    """Return the number of which a size is a multiple, or the list of its values."""
    if isinstance(statement, Sequence) and not isinstance(statement, str):
        return list(dict.fromkeys(whole_size(name, value) for value in statement))
    return whole_size(name, statement)


def _subsets(names: list[str]) -> list[set[str] | None]:
    """Return None for plain values, then every choice of sizes that get coarse values."""
    subsets = [
        set(chosen) for n in range(1, len(names) + 1) for chosen in itertools.combinations(names, n)
    ]
    return [None, *subsets[:256]]


def _arguments(builder: Callable[..., Any], inputs: Inputs) -> list[str]:
    """Return the arguments of a builder that are sizes: required, or named by the inputs."""
    if not callable(builder):
        raise CostError(
            f"{a_type(builder)} has no cost; give a torch.nn.Module, or a callable returning one"
        )
    try:
        parameters = inspect.signature(builder).parameters.values()
    except (TypeError, ValueError):
        raise CostError("the builder's arguments cannot be read; wrap it in a function") from None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = inputs.names()
    if any(p.kind == inspect.Parameter.POSITIONAL_ONLY for p in parameters):
        raise CostError("a builder takes its sizes by name, not by position")
    required = inspect.Parameter.empty
    return [
        p.name for p in parameters if p.kind in kinds and (p.default is required or p.name in named)
    ]


def _build(builder: Callable[..., Any], sizes: dict[str, int]) -> nn.Module:
    """Return the builder's model, without memory for its weights where the builder allows it."""
    try:
        with torch.device("meta"):
            model = builder(**sizes)
    except (Exception, SystemExit):
        try:
            with random_state(0):
                model = builder(**sizes)
        except (Exception, SystemExit) as error:
            at = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise CostError(f"the builder refused {at}: {last_line(error, 200)}") from error
    if not isinstance(model, nn.Module):
        raise CostError(f"the builder returned {a_type(model)}; it returns a torch.nn.Module")
    return model


def refuse_lazy(model: nn.Module) -> None:
    """Refuse a model some of whose sizes its first run decides."""
    if is_lazy(model):
        raise CostError(
            "the model has lazy layers, whose sizes its first run decides; "
            "run it once where it is built"
        )


def _vocabulary(model: nn.Module) -> int | None:
    """Return the number of rows of the first embedding, below which token ids must stay."""
    rows = (m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding))
    return next(rows, None)
