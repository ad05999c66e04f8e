"""Whether the data, the objective and the model of a config fit each other, before the first step.

What does not fit is said in one sentence here, and not by an exception out of the model later.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from querykey.show import number
from querykey.train.config import ConfigError, TrainConfig
from querykey.train.data.source import Data, Facts
from querykey.train.objectives.objective import IGNORED, Batch, Objective, scores_of
from querykey.train.objectives.text import NextToken
from querykey.train.order import sample_generator
from querykey.words import a_type, raised

ID_TENSORS = ("ids", "source", "target")  # the tensors of a batch that hold token ids


@torch.no_grad()
def rehearse(model: nn.Module, objective: Objective, data: Data, config: TrainConfig) -> None:
    """Run the objective on two samples, and raise a ConfigError where the model cannot do it.

    A second pass has the largest token id and the last class, so that a vocabulary that is too
    small does not wait for a rare token to be noticed. The model is left as it was.
    """
    seed, count = config.loop.seed, min(2, len(data.train))
    examples = [
        objective.example(data.train.sample(i), partial(sample_generator, seed, "rehearsal", i))
        for i in range(count)
    ]
    weight = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    batch = objective.batch(examples).to(weight.device, weight.dtype)
    _refuse_beyond_memory(batch, count, config.loop.batch)
    trio = (
        f"the model `{config.model.name}` cannot be trained with the objective "
        f"`{config.objective.name}` on the data `{config.data.name}` ({described(data.facts)})"
    )
    _refuse_odd_tensors(model, trio)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        _attempt(model, objective, batch, trio)
        extreme = with_largest_ids(batch, data.facts)
        _attempt(model, objective, extreme, f"{trio}, its last token or class above all")
        if config.data.documents and sees_other_documents(model, objective, batch):
            raise ConfigError(
                f"{trio}: its scores move when only tokens of another document change; leave out "
                f"data.documents, or take a decoder or an encoder of querykey.models"
            )
        if isinstance(objective, NextToken) and sees_later_tokens(model, batch.tensors["ids"]):
            raise ConfigError(
                f"{trio}: its scores move when only later tokens change, so it sees the tokens "
                f"that it is to predict; take a causal model, or the objective `masked`"
            )
    finally:
        for module, mode in modes:
            module.training = mode


def _refuse_beyond_memory(some: Batch, count: int, samples: int) -> None:
    """Raise a ConfigError where the samples of a step alone take more memory than there is."""
    step = samples * sum(tensor.nbytes for tensor in some.tensors.values()) // count
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if step > memory:
        raise ConfigError(
            f"loop.batch counts samples, and the {samples} of a step take {number(step)}B before "
            f"any computation, and this machine has {number(memory)}B of memory; give a smaller one"
        )


def _refuse_odd_tensors(model: nn.Module, beginning: str) -> None:
    """Raise a ConfigError where a model has what cannot be trained, or not be kept."""
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise ConfigError(
                f"{beginning}: its parameter `{name}` is complex, and training is of real ones; "
                f"keep the real and the imaginary part as two parameters"
            )
        if parameter.is_meta:
            raise ConfigError(
                f"{beginning}: its parameter `{name}` is on the device `meta`, where it has no "
                f"values; build the model on a device that has some"
            )
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, nn.Embedding | nn.EmbeddingBag):
            raise ConfigError(
                f"{beginning}: the gradient of `{name}` is sparse, and the optimizers here take "
                f"dense ones; build it with sparse=False"
            )
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{beginning}: its state dict holds {a_type(value)} as `{name}`, and checkpoints "
                f"hold tensors alone; keep it in a buffer"
            )


def _attempt(model: nn.Module, objective: Objective, batch: Batch, beginning: str) -> None:
    try:
        objective.sums(model, batch)
    except Exception as error:  # whatever a model may raise
        raise ConfigError(f"{beginning}: {raised(error, 300)}{_tables(model, error)}") from error


def _tables(model: nn.Module, error: Exception) -> str:
    """Return how long a model's embeddings are, where an index was too large for one of them."""
    tables = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Embedding)]
    if not isinstance(error, IndexError) or not tables:
        return ""
    return "; its tables: " + ", ".join(f"`{n}` of {m.num_embeddings} rows" for n, m in tables[:4])


def described(facts: Facts) -> str:
    """Say in a few words what the data ask of a model."""
    words = f"{facts.vocabulary} tokens, rows of {facts.length}" * bool(facts.vocabulary)
    words = words or f"{facts.features} features"
    return words + f", {facts.classes} classes" * bool(facts.classes)


def with_largest_ids(batch: Batch, facts: Facts) -> Batch:
    """Return the batch with the largest token id and the last class that the data may have."""
    tensors = dict(batch.tensors)
    for name in ID_TENSORS:
        if name in tensors:
            tensors[name] = tensors[name].clone()
            tensors[name][:, 0] = facts.vocabulary - 1
    labels = tensors.get("labels")
    if labels is not None:
        largest = facts.vocabulary if labels.ndim == 2 else facts.classes
        tensors["labels"] = torch.where(labels == IGNORED, labels, largest - 1)
    if "hidden" in tensors:
        judged = tensors["hidden"] != IGNORED
        tensors["hidden"] = torch.where(judged, facts.vocabulary - 1, tensors["hidden"])
    return replace(batch, tensors=tensors)


def sees_other_documents(model: nn.Module, objective: Objective, batch: Batch) -> bool:
    """Whether the loss over one document of each row changes when only the other one does."""
    ids, labels = batch.tensors["ids"], batch.tensors["labels"]
    second = torch.arange(ids.shape[1], device=ids.device) >= ids.shape[1] // 2
    tensors = batch.tensors | {
        "documents": second.long().expand_as(ids),
        "labels": torch.where(second, labels.clamp(min=0), IGNORED),
    }
    losses = [
        objective.sums(model, replace(batch, tensors=tensors | {"ids": x}))["loss"]
        for x in (ids, torch.where(second, ids, ids == 0))
    ]
    rounding = 100 * torch.finfo(losses[0].dtype).eps * losses[0].abs()
    return bool((losses[1] - losses[0]).abs() > rounding)


def sees_later_tokens(model: nn.Module, ids: Tensor) -> bool:
    """Whether the scores of the first half of the tokens change when only the second half does."""
    half = (ids.shape[1] + 1) // 2
    changed = torch.where(torch.arange(ids.shape[1], device=ids.device) < half, ids, ids == 0)
    before, after = (scores_of(model(x), ids.shape)[:, :half] for x in (ids, changed))
    rounding = 100 * torch.finfo(before.dtype).eps * before.abs().max()
    return bool((after - before).abs().max() > rounding)
