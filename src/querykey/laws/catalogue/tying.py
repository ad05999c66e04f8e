"""What the configuration says is tied is one tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from querykey.laws.blaming.guilty_module import guilty_part
from querykey.laws.catalogue import sweeps
from querykey.laws.law import Law
from querykey.laws.private import parameters_of
from querykey.laws.run import PLAIN, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome

SETTINGS = ("config", "cfg", "args", "params", "hparams", "options")  # where models keep switches
SWITCHES = re.compile(r"tie_|tied|weight_tying|tying|share_(?!all_|encoder_)\w*embed")


def says_tied(runner: Runner) -> str:
    """Return why the law does not apply where no configuration or attribute ties weights."""
    return "" if _switch(runner.copies.model) else "nothing says that weights are tied"


def _switch(model: Any) -> str:
    """Return the attribute by which a model says that its embeddings are tied, or nothing."""
    holders = [model, *(getattr(model, name, None) for name in SETTINGS)]
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        if not getattr(config, "tie_word_embeddings", True):
            return ""
        holders = [config.get_text_config()]
    for holder in holders:
        for name, value in getattr(holder, "__dict__", {}).items():
            if SWITCHES.match(name) and value is True:
                return name
    return ""


def tied(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare the identity of the output layer's weight with the embedding's."""
    model: Any = runner.copies.model
    named = dict(model.named_modules())
    outputs = list(_library_output(model)) or _scoring(runner, list(_outputs(named)))
    if not outputs:
        return
    tables = {id(m.weight) for m in named.values() if isinstance(m, nn.Embedding)}
    held = Counter(id(p) for m in named.values() for p in parameters_of(m).values())
    if any(id(weight) in tables or held[id(weight)] > 1 for _, weight in outputs):
        yield Outcome(0.0, setting=setting)
        return
    holder, weight = outputs[-1]
    path = next(path for path, module in named.items() if module is holder)
    note = (
        f"`{_switch(model)}` is set, but the output layer has weights of its own, "
        f"{'x'.join(map(str, weight.shape))} numbers"
    )
    guilty = guilty_part(model, path)
    yield Outcome(1.0, note, setting, evidence=Evidence(module=guilty))


def _scoring(
    runner: Runner, outputs: list[tuple[nn.Module, nn.Parameter]]
) -> list[tuple[nn.Module, nn.Parameter]]:
    """Return those with a row for every score of an answer; all where none has.

    A layer inside may have the shape of a table of positions by chance.
    """
    answer = runner.attempt(runner.inputs(), PLAIN)
    width = 0 if answer is None else answer.shape[-1]
    return [pair for pair in outputs if len(pair[1]) == width] or outputs


def _library_output(model: Any) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    """Yield the output layer that a transformers model names, if its embedding has its shape."""
    if hasattr(model, "get_output_embeddings") and hasattr(model, "get_input_embeddings"):
        try:
            embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
        except NotImplementedError:
            return
        shape = getattr(getattr(output, "weight", 0), "shape", 1)
        if shape == getattr(getattr(embedding, "weight", 0), "shape", 2):
            yield output, output.weight


def _outputs(named: dict[str, nn.Module]) -> Iterator[tuple[nn.Module, nn.Parameter]]:
    """Yield what could be tied by its shape: weights of linear layers, or bare parameters.

    A bare parameter that is an embedding's own weight, by another name, is tied.
    """
    shapes = {m.weight.shape for m in named.values() if isinstance(m, nn.Embedding)}
    bare: list[tuple[nn.Module, nn.Parameter]] = []
    for module in named.values():
        if isinstance(module, nn.Embedding):
            continue
        for parameter in parameters_of(module).values():
            if parameter is not None and parameter.shape in shapes:
                if isinstance(module, nn.Linear):
                    yield module, parameter
                else:
                    bare.append((module, parameter))
    yield from bare


LAWS = (
    Law(
        "tying",
        says="What the configuration says is tied is one tensor.",
        why="Otherwise two tables that are meant to be one drift apart in training.",
        how="The output layer's weight is compared with the embedding's by identity.",
        trials=tied,
        applies=says_tied,
        sweep=sweeps.once,
    ),
)
