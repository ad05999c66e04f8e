"""Linear probing: how much of the labels a linear classifier reads off a frozen model's vectors.

report = probe(model, (inputs, labels))
print(report)     # accuracy 0.953, 95 % interval 0.941 to 0.964, 5 splits
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from querykey.errors import QuerykeyError, WrongTypeError


@dataclass(frozen=True)
class Probe:
    """The accuracy on held-out examples, once per seed, and what it would be by guessing."""

    scores: tuple[float, ...]
    chance: float  # the share of the most frequent label

    @property
    def accuracy(self) -> float:
        """The mean accuracy over all seeds."""
        return sum(self.scores) / len(self.scores)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean over seeds, by Student's t; of one seed, everything."""
        from scipy.special import stdtrit  # which scikit-learn brings along

        count = len(self.scores)
        if count < 2:
            return 0.0, 1.0
        spread = sum((score - self.accuracy) ** 2 for score in self.scores) / (count - 1)
        half = float(stdtrit(count - 1, 0.975)) * math.sqrt(spread / count)
        return max(0.0, self.accuracy - half), min(1.0, self.accuracy + half)

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"accuracy {self.accuracy:.3f}, 95 % interval {low:.3f} to {high:.3f}, "
            f"{len(self.scores)} splits, {self.chance:.3f} by guessing"
        )


def probe(
    model: nn.Module,
    data: tuple[Any, Any],
    *,
    seeds: int = 5,
    test_share: float = 0.25,
    batch: int = 256,
) -> Probe:
    """Fit a linear classifier to a frozen model's vectors, on several random splits.

    `data` is (inputs, labels); inputs may be a tuple of tensors, passed to the model in order, such
    as (ids, real), `real` of booleans or of 0 and 1. The vectors are those of `encode` where the
    model has it, else of `hidden`, else its output; where there is one per token or place, their
    mean over those that are real.
    """
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import train_test_split
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise ImportError(
            "probe fits its classifier with scikit-learn, which is not installed; "
            "`pip install scikit-learn` adds it"
        ) from None

    inputs, y = _checked(model, data, seeds, test_share)
    x = features(model, inputs, batch).numpy()
    scores = []
    for seed in range(seeds):
        split = train_test_split(x, y, test_size=test_share, random_state=seed, stratify=y)
        x_train, x_test, y_train, y_test = split
        classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
        classifier.fit(x_train, y_train)
        scores.append(float(classifier.score(x_test, y_test)))
    counts = np.unique(y, return_counts=True)[1]
    return Probe(tuple(scores), float(counts.max() / counts.sum()))


def _checked(
    model: Any, data: Any, seeds: int, test_share: float
) -> tuple[tuple[Any, ...], np.ndarray]:
    """Return inputs and labels, or say what keeps a classifier from being fitted."""
    if not isinstance(model, nn.Module):
        raise WrongTypeError(f"probe wants a torch.nn.Module; got {type(model).__name__}")
    if not (isinstance(data, tuple) and len(data) == 2):
        raise WrongTypeError(f"probe wants data (inputs, labels); got {type(data).__name__}")
    inputs, labels = _several(data[0]), data[1]
    y = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if y.ndim != 1 or y.dtype.kind == "f":
        raise QuerykeyError(f"labels are classes, one for each input; got {y.dtype} {y.shape}")
    if len(inputs[0]) != len(y):
        raise QuerykeyError(f"there are {len(inputs[0])} inputs and {len(y)} labels")
    names, counts = np.unique(y, return_counts=True)
    if len(names) < 2 or counts.min() < 2:
        few = "there are no two" if len(names) < 2 else f"there is one of {names[counts.argmin()]}"
        raise QuerykeyError(f"probe wants two classes or more, and two inputs of each; {few}")
    if seeds < 1 or not 0 < test_share < 1:
        raise QuerykeyError(
            f"probe wants one seed or more and a test share between 0 and 1; "
            f"got {seeds} and {test_share}"
        )
    return inputs, y


def features(model: nn.Module, inputs: Any, batch: int = 256) -> Tensor:
    """Return one vector per input, (examples, width), in float64; the model stays as it was."""
    parts = [torch.as_tensor(part) for part in _several(inputs)]
    padded = len(parts) > 1 and bool(((parts[1] == 0) | (parts[1] == 1)).all())
    like = next(iter(model.parameters()), torch.empty(0))
    modes = [(module, module.training) for module in model.modules()]
    run = getattr(model, "encode", None) or getattr(model, "hidden", None) or model
    vectors = []
    model.eval()
    try:
        with torch.no_grad():
            for first in range(0, len(parts[0]), batch):
                piece = [_beside(part[first : first + batch], like) for part in parts]
                real = piece[1] if padded else None
                vectors.append(_mean_vector(_tensor_of(run(*piece)), real).double().cpu())
    finally:
        for module, mode in modes:
            module.training = mode
    return torch.cat(vectors)


def _several(inputs: Any) -> tuple[Any, ...]:
    if isinstance(inputs, list) and all(isinstance(part, Tensor) for part in inputs):
        return tuple(inputs)
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _beside(part: Tensor, like: Tensor) -> Tensor:
    """Bring a piece of the inputs to the model: its device, and its dtype where both are floats."""
    return part.to(like if part.is_floating_point() and like.is_floating_point() else like.device)


def _tensor_of(out: Any) -> Tensor:
    """Return the vectors among what a model returns: the last hidden states, or the first."""
    if isinstance(out, Tensor):
        return out
    named = getattr(out, "last_hidden_state", None)
    parts = [named, *(out.values() if isinstance(out, Mapping) else _several(out))]
    for part in parts:
        if isinstance(part, Tensor):
            return part
    raise WrongTypeError(f"probe wants a model that returns vectors; got {type(out).__name__}")


def _mean_vector(out: Tensor, real: Tensor | None) -> Tensor:
    """Average (batch, ..., width) over tokens or places, to (batch, width)."""
    if out.ndim == 2:
        return out
    if out.ndim == 3 and real is not None and real.shape == out.shape[:2]:
        weight = (real != 0).to(out.dtype)[..., None]
        return (out * weight).sum(1) / weight.sum(1).clamp(min=1)
    return out.flatten(1, -2).mean(1)
