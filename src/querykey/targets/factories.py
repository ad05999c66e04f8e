"""Models from Python code: `file.py:factory` and `package.module:factory`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from querykey.targets.errors import TargetError
from querykey.targets.guessing import find_inputs
from querykey.targets.inputs import Input
from querykey.words import a_type, checked, raised, seed_number, suggest


def build_python(
    name: str, where: str, seed: int = 0, arguments: Mapping[str, Any] | None = None
) -> tuple[Any, tuple[Input, ...], str]:
    """Return what the factory at `where` makes, the inputs of its model, and a note.

    `name` is what the user wrote, for error messages. A model may stand in place of a factory. The
    random numbers that the factory draws follow from the seed, and those of the caller go on.
    """
    arguments = arguments or {}
    source, _, attribute = where.rpartition(":")
    with _neighbours(source) if source.endswith(".py") else nullcontext():
        try:
            with seeded(seed):
                product = _factory(name, source, attribute, frozenset(arguments))(**arguments)
        except TargetError:
            raise
        except (Exception, SystemExit) as error:
            raise TargetError(f"`{name}`: {attribute}() raised {raised(error)}") from error
        try:
            model = module_of(product)
        except ValueError as error:  # what a Subject holds is no module
            raise TargetError(f"`{name}`: {error}") from error
        if model is None:
            raise TargetError(
                f"`{name}`: {attribute}() returned {a_type(product)}; a factory returns "
                "a torch.nn.Module, or a querykey.Subject"
            )
        inputs, note = find_inputs(model)
    return product, inputs, note


def module_of(product: Any) -> nn.Module | None:
    """Return the module that a factory made, or that what it made says it is about."""
    if not isinstance(product, nn.Module):
        product = getattr(product, "model", None)
    return product if isinstance(product, nn.Module) else None


@checked
@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw the random numbers of torch, NumPy and Python from a seed inside this context."""
    seed = seed_number(seed)
    with torch.random.fork_rng(devices=[]), seeded_outside_torch(seed):
        # torch.manual_seed also notes, slowly, what devices that were never used must do.
        torch.default_generator.manual_seed(seed)
        yield


@checked
@contextmanager
def seeded_outside_torch(seed: int) -> Iterator[None]:
    """Draw the random numbers of NumPy and Python from a seed inside this context."""
    seed = seed_number(seed)
    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)


def factory_at(name: str, where: str) -> Callable[..., nn.Module]:
    """Return the callable at `where` as a function of its arguments that returns a module."""
    source, _, attribute = where.rpartition(":")
    with _neighbours(source) if source.endswith(".py") else nullcontext(), seeded(0):
        factory = _attribute(name, source, attribute)
    if isinstance(factory, nn.Module):
        raise TargetError(f"`{name}` is a model, which takes no arguments")

    @wraps(factory)
    def build(*args: Any, **kwargs: Any) -> Any:
        with seeded(0):
            model = factory(*args, **kwargs)
        return module_of(model) or model

    return build


@checked
def function_at(where: str) -> Callable[[], Any]:
    """Return the function without arguments at `file.py:name` or `package.module:name`."""
    source, colon, attribute = where.rpartition(":")
    if not colon or not source or not attribute:
        raise TargetError(f"`{where}` names no function; write file.py:run or package.module:run")
    with _neighbours(source) if source.endswith(".py") else nullcontext(), seeded(0):
        function = _attribute(where, source, attribute, "function")
    missing = _required(function)
    if missing:
        raise TargetError(
            f"`{where}`: `{attribute}` needs {', '.join(missing)}; it is to take no arguments"
        )
    return function


def _factory(
    name: str, source: str, attribute: str, arguments: frozenset[str]
) -> Callable[..., Any]:
    """Return the callable that a source has under a name and that needs only `given` arguments."""
    factory = _attribute(name, source, attribute)
    if isinstance(factory, nn.Module):  # the file has built the model; calling it would run it
        if arguments:
            raise TargetError(
                f"`{name}` is a model, which takes no arguments: {', '.join(arguments)}"
            )
        return lambda: factory
    missing = [argument for argument in _required(factory) if argument.strip("`") not in arguments]
    if missing:
        raise TargetError(
            f"`{name}`: `{attribute}` needs {', '.join(missing)}; a factory takes no arguments "
            "(wrap it in a function that gives them)"
        )
    return factory


def _attribute(
    name: str,
    source: str,
    attribute: str,
    wanted: str = "callable that returns a torch.nn.Module",
) -> Any:
    """Return the callable, or the model, that a source has under a name."""
    try:
        module = _load_file(source) if source.endswith(".py") else importlib.import_module(source)
    except FileNotFoundError as error:
        raise TargetError(f"`{name}`: there is no file `{source}`") from error
    except (Exception, SystemExit) as error:
        relative = isinstance(error, ImportError) and "relative import" in str(error)
        hint = "; install its package, and name it package.module:factory" if relative else ""
        raise TargetError(f"`{name}`: importing `{source}` raised {raised(error)}{hint}") from error
    if not hasattr(module, attribute):
        raise TargetError(f"`{name}`: `{source}` has no `{attribute}`{_nearest(attribute, module)}")
    factory = getattr(module, attribute)
    if not callable(factory):
        raise TargetError(f"`{name}`: `{attribute}` is {a_type(factory)}, not a {wanted}")
    return factory


def _nearest(attribute: str, module: ModuleType) -> str:
    """Return the callable of a module that is spelt alike, or else those that it defines itself."""
    names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
    own = [n for n in names if getattr(vars(module)[n], "__module__", "") == module.__name__]
    listed = f"; it defines {', '.join(f'`{n}`' for n in own[:6])}" if own else ""
    return suggest(attribute, names) or listed + ", ..." * (len(own) > 6)


def _required(factory: Callable[..., Any]) -> list[str]:
    """Return the arguments that a call must give; none where the signature cannot be read."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        f"`{p.name}`"
        for p in parameters
        if p.default is inspect.Parameter.empty and p.kind not in optional
    ]


def _load_file(path: str) -> Any:
    """Import a file by its path, and return the module."""
    file = Path(path).resolve()
    if not file.is_file():
        raise FileNotFoundError(path)
    # The stem alone could shadow an installed package (a user's file may be called torch.py).
    spec = importlib.util.spec_from_file_location(f"querykey_target_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and inspect look their module up by name
    spec.loader.exec_module(module)
    return module


_IMPORTED: dict[str, Path] = {}  # modules that files imported from their own folder: the folder


@contextmanager
def _neighbours(source: str) -> Iterator[None]:
    """Let a file import its neighbours, as when Python runs it, but not those of other files."""
    folder = Path(source).resolve().parent
    for name in [name for name, home in _IMPORTED.items() if home != folder]:
        del _IMPORTED[name]
        sys.modules.pop(name, None)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the file may have removed it itself
            sys.path.remove(str(folder))
        new = set(sys.modules) - before
        _IMPORTED.update({name: folder for name in new if _lies_in(folder, name)})


def _lies_in(folder: Path, name: str) -> bool:
    """Return whether a module is in `folder/name.py` or in the package `folder/name`."""
    top = name.partition(".")[0]
    module = sys.modules.get(top)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    return any(Path(place).with_suffix("") == folder / top for place in places if place)
