"""What every training objective answers: how a sample becomes an example, and what is judged.

An objective's loss is a sum over what it judges, and its batch knows how many terms that sum has.
So a step that is cut into pieces, or spread over ranks, divides by the terms of the whole step. A
loss may have several parts, each with terms of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from querykey.words import a_type

Sample = dict[str, Any]
Example = dict[str, np.ndarray]
# Makes the random numbers of a sample: a generator costs more than most samples, and few need one.
MakeGenerator = Callable[[], np.random.Generator]
Sums = dict[str, Tensor]  # what is measured, each a sum over the terms that a batch names for it
Terms = dict[str, int]

IGNORED = -100  # the label of a place that is not judged, as in torch's cross entropy


@dataclass(frozen=True)
class Batch:
    """Tensors of several examples, and how many terms each sum over them has."""

    tensors: dict[str, Tensor]
    terms: Terms  # of every sum
    tokens: int  # positions that the model works on, padding included

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """Return the batch on a device, its floating-point tensors in a dtype."""
        moved = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in self.tensors.items()
        }
        return Batch(moved, self.terms, self.tokens)


class Objective(Protocol):
    """How a model is trained: examples made from samples, batches of them, and their loss."""

    @property
    def losses(self) -> tuple[str, ...]:
        """The sums whose means, added up, are the loss."""
        ...

    def example(self, sample: Sample, new_generator: MakeGenerator) -> Example:
        """Return what the model is to see of a sample and what it is judged by."""
        ...

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return examples side by side, the shorter ones filled up."""
        ...

    def sums(self, model: nn.Module, batch: Batch) -> Sums:
        """Return the sums of `losses`, and others worth knowing, as `correct`."""
        ...


LOSS = ("loss",)  # the parts of a loss that has one


class Learner(nn.Module):
    """A model and its objective as one module, so that whatever wraps modules wraps both."""

    def __init__(self, model: nn.Module, objective: Objective):
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, tensors: dict[str, Tensor]) -> Sums:
        """Return the objective's sums over a batch with these tensors."""
        return self.objective.sums(self.model, Batch(tensors, {}, 0))


def stacked(examples: Sequence[Example], name: str, fill: float = 0) -> Tensor:
    """Return one array of every example as (batch, ...), the first axis filled up on the right."""
    arrays = [example[name] for example in examples]
    longest = max(len(array) for array in arrays)
    rows = np.full((len(arrays), longest, *arrays[0].shape[1:]), fill, arrays[0].dtype)
    for row, array in zip(rows, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(rows)


def padding(examples: Sequence[Example], name: str, called: str = "real") -> dict[str, Tensor]:
    """Return which tokens of the filled-up rows are real; nothing where all of them are."""
    lengths = torch.tensor([len(example[name]) for example in examples])
    longest = int(lengths.max())
    if int(lengths.min()) == longest:
        return {}
    return {called: torch.arange(longest) < lengths[:, None]}


def cross_entropy_sum(output: Any, labels: Tensor) -> Sums:
    """Return the summed cross entropy of a model's scores, and how often the best score is right.

    In float32 at least; labels of IGNORED are not judged. Where gradients are wanted the loss is
    returned alone: to look for the best score costs as much time as a layer of a small model.
    """
    scores, labels = scores_of(output, labels.shape).flatten(0, -2), labels.flatten()
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    loss = nn.functional.cross_entropy(wide, labels, ignore_index=IGNORED, reduction="sum")
    if torch.is_grad_enabled():
        return {"loss": loss}
    return {"loss": loss, "correct": (scores.argmax(-1) == labels).sum()}


def terms_in(labels: Tensor) -> Terms:
    """Count the labels that are judged: the terms of their cross entropy."""
    count = int((labels != IGNORED).sum())
    return {"loss": count, "correct": count}


def scores_of(output: Any, shape: torch.Size) -> Tensor:
    """Return the scores (*shape, any) in what a model returns: a tensor, a tuple, or logits.

    Of a tuple it is the first tensor whose shape fits. Scores of another shape are refused, for
    they would be compared with the labels of other tokens.
    """
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    parts = output if isinstance(output, tuple | list) and logits is None else (logits, output)
    tensors = [part for part in parts if isinstance(part, Tensor)]
    for tensor in tensors:
        if tensor.ndim > 1 and tensor.shape[:-1] == shape:
            return tensor
    if tensors:
        sizes = ", ".join(map(str, shape))
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(f"the model returned {shapes}, where scores are ({sizes}, any number)")
    of = f" of {', '.join(f'`{name}`' for name in output)}" if isinstance(output, dict) else ""
    raise TypeError(
        f"the model returned {a_type(output)}{of} without scores; a model that is trained "
        f"returns a tensor, a tuple with one, or an object or a dict with `logits`"
    )
