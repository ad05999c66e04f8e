"""The kinds of name a target can have, and the value it becomes."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from querykey.errors import QuerykeyError
from querykey.words import last_line, suggest

if TYPE_CHECKING:
    from torch import nn

    from querykey.targets.inputs import Input

# Named by where they live, not imported: a preset is a factory like any a user could name.
PRESETS = {
    "encoder": "querykey.targets.presets:encoder",
    "decoder": "querykey.targets.presets:decoder",
    "encoder-decoder": "querykey.targets.presets:encoder_decoder",
    **{
        name: f"querykey.models.presets:make_{name.replace('-', '_')}"
        for name in (
            "bert",
            "gpt",
            "llama",
            "mistral",
            "alibi",
            "argmax",
            "elu",
            "quadratic",
            "transformer",
            "t5",
            "vit",
            "davit",
            "autoencoder",
            "linear-autoencoder",
            "denoising-autoencoder",
            "masked-autoencoder",
            "masked-patches",
        )
    },
}


class TargetError(QuerykeyError):
    """One sentence: which target could not be built, why, and what to do."""


@dataclass(frozen=True)
class Target:
    """A model that somebody named, and what its forward takes."""

    name: str
    kind: str  # preset, python, hf or folder
    model: nn.Module
    inputs: tuple[Input, ...]
    note: str = ""  # why `inputs` is empty, or what was shrunk
    built_in: float = field(default=0.0, compare=False)  # seconds

    def example(self, batch: int = 2, length: int = 7, seed: int = 0) -> dict[str, Any]:
        """Make up one value per required input, the same for the same seed."""
        from querykey.targets.inputs import examples

        if not self.inputs:
            raise TargetError(f"`{self.name}`: no example can be made up; {self.note}")
        return examples(self.inputs, batch, length, seed)

    def run(self, example: dict[str, Any]) -> Any:
        """Call the model's forward once, without gradients, in the mode it is in."""
        import torch

        with torch.no_grad():
            return self.model(**example)


def build(name: str) -> Target:
    """Build what `name` stands for; a TargetError says why it cannot be."""
    import time

    began = time.perf_counter()
    kind, model, inputs, note = _build(name.strip())
    return Target(name.strip(), kind, model, inputs, note, time.perf_counter() - began)


def _build(name: str) -> tuple[str, nn.Module, tuple[Input, ...], str]:
    if not name:
        raise TargetError(f"a target cannot be empty; it is {WHAT}")
    if name.startswith("hf:"):
        from querykey.targets import huggingface

        return "hf", *huggingface.build(name)
    if name in PRESETS:
        return "preset", *_python(name, PRESETS[name])
    # A folder wins over `module:factory`, whose colon a path may hold too. Path.is_dir would raise
    # where a name is too long for a file.
    if os.path.isdir(name):
        from querykey.targets import huggingface

        return "folder", *huggingface.build_folder(name)
    if ":" in name:
        return "python", *_python(name, name)
    if name.endswith(".py"):
        raise TargetError(f"`{name}` names a file but no factory; write `{name}:FACTORY`")
    if "/" in name or name.startswith("."):
        raise TargetError(f"`{name}` is no folder; a target is {WHAT}")
    raise TargetError(f"no preset is called `{name}`{suggest(name, PRESETS)} (a target is {WHAT})")


WHAT = (
    "`file.py:factory`, `package.module:factory`, `hf:NAME[:causal|masked|seq2seq]`, a folder with "
    f"config.json and safetensors, or a preset ({', '.join(PRESETS)})"
)


def _python(name: str, where: str) -> tuple[nn.Module, tuple[Input, ...], str]:
    """Call what `file.py:factory` or `package.module:factory` names, or take the model there."""
    from torch import nn

    from querykey.targets.inputs import find_inputs

    source, _, attribute = where.rpartition(":")
    with _neighbours(source) if source.endswith(".py") else nullcontext():
        factory = _factory(name, source, attribute)
        try:
            model = factory()
        except (Exception, SystemExit) as error:
            raise TargetError(f"`{name}`: {attribute}() raised {last_line(error)}") from error
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise TargetError(
                f"`{name}`: {attribute}() returned a {kind}; a factory returns a torch.nn.Module"
            )
        inputs, note = find_inputs(model)
    return model, inputs, note


def _factory(name: str, source: str, attribute: str) -> Callable[[], Any]:
    from torch import nn

    try:
        module = _load_file(source) if source.endswith(".py") else importlib.import_module(source)
    except FileNotFoundError as error:
        raise TargetError(f"`{name}`: there is no file `{source}`") from error
    except (Exception, SystemExit) as error:
        raise TargetError(f"`{name}`: importing `{source}` raised {last_line(error)}") from error
    if not hasattr(module, attribute):
        callables = [
            n for n, value in vars(module).items() if callable(value) and not n.startswith("_")
        ]
        hint = suggest(attribute, callables)
        raise TargetError(f"`{name}`: `{source}` has no `{attribute}`{hint}")
    factory = getattr(module, attribute)
    if isinstance(factory, nn.Module):  # a model that its file has built: calling it would run it
        return lambda: factory
    if not callable(factory):
        kind = type(factory).__name__
        raise TargetError(
            f"`{name}`: `{attribute}` is a {kind}, not a callable that returns a torch.nn.Module"
        )
    missing = _required(factory)
    if missing:
        raise TargetError(
            f"`{name}`: `{attribute}` needs {', '.join(missing)}; a factory takes no arguments "
            "(wrap it in a function that gives them)"
        )
    return factory


def _required(factory: Callable[..., Any]) -> list[str]:
    """Names of the arguments a call must give; none where the signature cannot be read."""
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
    """Import a file by its path."""
    import importlib.util

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


_IMPORTED: dict[str, Path] = {}  # what files imported from their own folders, and those folders


@contextmanager
def _neighbours(source: str) -> Iterator[None]:
    """Let a file import what lies beside it, as when Python runs it, not what lay beside others."""
    folder = Path(source).resolve().parent
    for name in [name for name, home in _IMPORTED.items() if home != folder]:
        del _IMPORTED[name]
        sys.modules.pop(name, None)
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the file may have taken it away itself
            sys.path.remove(str(folder))
        new = set(sys.modules) - before
        _IMPORTED.update({name: folder for name in new if _lies_in(folder, name)})


def _lies_in(folder: Path, name: str) -> bool:
    """Whether a module is, or belongs to, `folder/name.py` or the package `folder/name`."""
    top = name.partition(".")[0]
    module = sys.modules.get(top)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    return any(Path(place).with_suffix("") == folder / top for place in places if place)
