"""What the configuration says is tied is one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from querykey.laws.blaming.guilty_module import GuiltyModule, source_of
from querykey.laws.catalogue import sweeps
from querykey.laws.law import Law
from querykey.laws.run import Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome


def says_tied(runner: Runner) -> str:
    """Return why the law does not apply where no configuration or attribute ties weights."""
    return "" if _switch(runner.copies.model) else "nothing says that weights are tied"


def _switch(model: Any) -> str:
    """Return the attribute by which a model says that its embeddings are tied, or nothing."""
    holders = [model, getattr(model, "config", None)]
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        if not getattr(config, "tie_word_embeddings", True):
            return ""
        holders = [config.get_text_config()]
    for holder in holders:
        for name, value in getattr(holder, "__dict__", {}).items():
            if name.startswith(("tie_", "tied", "weight_tying", "share_embed")) and value is True:
                return name
    return ""


def tied(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compare the identity of the output layer's weight with the embedding's."""
    model: Any = runner.copies.model
    pairs = list(_library_pair(model)) or list(_pairs(model))
    if not pairs:
        return
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    for embedding, output in pairs:
        if any(output.weight is table for table in (embedding.weight, *tables)):
            yield Outcome(0.0, setting=setting)
            return
    output = pairs[0][1]
    path = next(path for path, module in model.named_modules() if module is output)
    note = (
        f"`{_switch(model)}` is set, but the output layer has weights of its own, "
        f"{'x'.join(map(str, output.weight.shape))} numbers"
    )
    guilty = GuiltyModule(path, source_of(output))
    yield Outcome(1.0, note, setting, evidence=Evidence(module=guilty))


def _library_pair(model: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the embedding and the output layer that a transformers model names, if they fit."""
    if hasattr(model, "get_output_embeddings") and hasattr(model, "get_input_embeddings"):
        try:
            embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
        except NotImplementedError:
            return
        shape = getattr(getattr(output, "weight", 0), "shape", 1)
        if shape == getattr(getattr(embedding, "weight", 0), "shape", 2):
            yield embedding, output


def _pairs(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Yield embeddings and linear layers whose weights could be one tensor."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    heads = [m for m in model.modules() if isinstance(m, nn.Linear)]
    for table in tables:
        for head in heads:
            if table.weight.shape == head.weight.shape:
                yield table, head


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
