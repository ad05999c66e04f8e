"""What is measured: a model, or a builder of one model per choice of sizes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from querykey.costs.counting.passes import random_state
from querykey.costs.inputs import CostError, Inputs, whole
from querykey.targets import is_lazy
from querykey.words import last_line

FINE = (1, 2, 3, 4, 6, 8, 12)  # what divides the coarse sizes
COARSE = tuple(24 * n for n in range(1, 10))
COUNT = 9  # values to choose from per size
FEW = 6  # where they are multiples


class Subject:
    """A model under named sizes: those of its inputs, and those that its builder takes."""

    def __init__(
        self,
        given: nn.Module | Callable[..., nn.Module],
        inputs: Inputs,
        sizes: Mapping[str, int | Sequence[int]],
        near: Mapping[str, int],
    ):
        self.given = given
        self.hyper = [] if isinstance(given, nn.Module) else _arguments(given, inputs)
        self.names = list(dict.fromkeys([*inputs.names(), *self.hyper]))
        for name in [*sizes, *near]:
            self.check_name(name)
        # Of what goes in, a size of 1 is too special to stand for others.
        self.near = {n: whole(n, size, 1 if n in self.hyper else 2) for n, size in near.items()}
        sizes = {name: _step_or_list(name, said) for name, said in sizes.items()}
        self.said = {*sizes}
        self.listed = {name for name, said in sizes.items() if not isinstance(said, int)}
        self.steps = {name: step for name, step in sizes.items() if isinstance(step, int)}
        self.steps = {name: step for name, step in self.steps.items() if name not in self.hyper}
        self._fixed = {*sizes, *near}
        self._models: dict[tuple[int, ...], nn.Module] = {}
        self.values = self._choose(dict(sizes))
        base = self.model(self.base())
        refuse_lazy(base)
        self.inputs = inputs.limited(_vocabulary(base))
        other = self.model({name: values[2] for name, values in self.values.items()})
        paths = [{path for path, _ in each.named_modules()} for each in (base, other)]
        self.varies = paths[0] != paths[1]  # as when the number of layers is a size
        self.picked: dict[str, str] = {}  # sizes that values decide: in which module

    def check_name(self, name: str) -> None:
        """Refuse a size that is not there."""
        from querykey.words import suggest

        if name not in self.names:
            have = f"the sizes are {', '.join(self.names)}" if self.names else "no size is free"
            raise CostError(f"there is no size `{name}`{suggest(name, self.names)} ({have})")

    def pick(self, found: Mapping[str, str]) -> None:
        """Take in sizes that only values decide."""
        for name, path in found.items():
            if name in self.names:
                raise CostError(f"`{name}` is what a size that values decide is called; rename it")
            self.picked[name] = path
            self.names.append(name)
            self.values[name] = list(range(2, 2 + COUNT))

    @property
    def movable(self) -> list[str]:
        """The sizes of the inputs whose range was not said."""
        return [n for n in self.names if n not in self.hyper and n not in self._fixed]

    @property
    def moved(self) -> list[str]:
        """Those of them that are looked at elsewhere: not the first, which is mostly a batch."""
        return self.movable[1:] or self.movable

    def move(self, start: int, step: int) -> None:
        """Choose sizes from `start` on, in steps."""
        for place, name in enumerate(self.moved):
            first = start + 2 * place * step
            few = COUNT if step == 1 else FEW
            self.values[name] = list(range(first, first + few * step, step))
            self.steps.pop(name, None)
            if step > 1:
                self.steps[name] = step

    def base(self) -> dict[str, int]:
        """The first choice for every size."""
        return {name: self.near.get(name, values[0]) for name, values in self.values.items()}

    def model(self, sizes: Mapping[str, int]) -> nn.Module:
        """The model at these sizes."""
        if isinstance(self.given, nn.Module):
            return self.given
        key = tuple(sizes[name] for name in self.hyper)
        if key not in self._models:
            self._models[key] = _build(self.given, dict(zip(self.hyper, key, strict=True)))
        return self._models[key]

    def fold(self, path: str) -> str:
        """A module's path, without its numbers where their range is not fixed."""
        if not self.varies:
            return path
        return ".".join("*" if part.isdigit() else part for part in path.split("."))

    def _choose(self, sizes: dict[str, int | Sequence[int]]) -> dict[str, list[int]]:
        """Values per size: as said, else plain ones, else ones that divide each other."""
        plain = {}
        for place, name in enumerate(self.names):
            said = sizes.get(name)
            start = self.near.get(name, 3 + 2 * place)
            if isinstance(said, int):
                plain[name] = [said * n for n in range(1, COUNT + 1)]
            else:
                plain[name] = list(said) if said else list(range(start, start + COUNT))
            if len(plain[name]) < 4:
                raise CostError(f"`{name}` needs at least 4 values to choose from")
        free = [name for name in self.hyper if name not in sizes]
        refused = None
        for coarse in _subsets(free):
            chosen = dict(plain)
            if coarse is not None:
                chosen |= {n: list(COARSE if n in coarse else FINE) for n in free}
            refusal = self._refusal(chosen)
            if refusal is None:
                return chosen
            refused = refused or refusal
        raise CostError(
            f"{refused} (a builder takes whole numbers by name and returns a module; say which "
            "numbers it takes with sizes={'width': 12} for multiples of 12, or a list of them)"
        ) from None

    def _refusal(self, values: dict[str, list[int]]) -> str | None:
        """Why the builder refuses one of a few choices, or None."""
        for places in ((0, 0), (1, 2), (2, 1), (3, 3)):
            point = {n: v[places[i % 2]] for i, (n, v) in enumerate(values.items())}
            try:
                self.model(point)
            except CostError as error:
                return str(error)
        return None


def _step_or_list(name: str, said: Any) -> int | list[int]:
    """What the user says about a size: it is a multiple of a number, or one of a list."""
    if isinstance(said, Sequence) and not isinstance(said, str):
        return list(dict.fromkeys(whole(name, each) for each in said))
    return whole(name, said)


def _subsets(names: list[str]) -> list[set[str] | None]:
    """None for plain values, then every choice of sizes that others divide."""
    subsets = [
        set(chosen) for n in range(1, len(names) + 1) for chosen in itertools.combinations(names, n)
    ]
    return [None, *subsets[:256]]


def _arguments(builder: Callable[..., Any], inputs: Inputs) -> list[str]:
    """The arguments of a builder that are sizes: required ones, and those the inputs name."""
    if not callable(builder):
        kind = type(builder).__name__
        raise CostError(
            f"a {kind} has no cost; give a torch.nn.Module, or a callable returning one"
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
    """Call a builder without allocating weights, or with, where it cannot do without."""
    said = ", ".join(f"{name}={size}" for name, size in sizes.items())
    try:
        with torch.device("meta"):
            model = builder(**sizes)
    except (Exception, SystemExit):
        try:
            with random_state(0):
                model = builder(**sizes)
        except (Exception, SystemExit) as error:
            raise CostError(f"the builder refused {said}: {last_line(error, 200)}") from error
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise CostError(f"the builder returned a {kind}; it returns a torch.nn.Module")
    return model


def refuse_lazy(model: nn.Module) -> None:
    """Refuse a model some of whose sizes are not known yet."""
    if is_lazy(model):
        raise CostError(
            "the model has lazy layers, whose sizes its first run decides; "
            "run it once where it is built"
        )


def _vocabulary(model: nn.Module) -> int | None:
    """Token ids must stay below this; the first embedding says it."""
    found = (m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding))
    return next(found, None)
