"""Layers and losses over arrays of (batch, tokens, features), with weights on the right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from querykey.ag import primitives, reductions
from querykey.ag.division import softmax
from querykey.ag.functions import moveaxis, take_along_axis, where
from querykey.ag.modules import Module, named_parameters, parameters
from querykey.ag.primitives import binary_cross_entropy, relu, reshape, sqrt
from querykey.ag.protocols import raw
from querykey.ag.tensor import Tensor
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.words import share as checked_share

__all__ = [
    "MLP",
    "BatchNorm",
    "BinaryCrossEntropyLoss",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "Module",
    "MultiHeadAttention",
    "SingleHeadAttention",
    "TransformerBlock",
    "named_parameters",
    "parameters",
]


def generator(rng: Any) -> Any:
    """Return the generator of random numbers that was passed, or a new one."""
    if rng is not None and not hasattr(rng, "standard_normal"):
        raise WrongTypeError(
            f"rng is a generator, np.random.default_rng({rng!r}), which goes on from weight to "
            f"weight, not {rng!r}"
        )
    return np.random.default_rng() if rng is None else rng


def float_type(x: Any) -> Any:
    """Return the dtype of an array of floats, and float64 for any other."""
    return x.dtype if x.dtype.kind == "f" else np.dtype(float)


def weight(rng: Any, rows: int, columns: int, label: str) -> Tensor:
    """Return a matrix of normal numbers, scaled to keep the variance of what it multiplies."""
    values = generator(rng).standard_normal((rows, columns))
    return Tensor(values / np.sqrt(rows), label=label)


class Linear(Module):
    """A layer that computes x @ W + b."""

    def __init__(self, n_in: int, n_out: int, bias: bool = True, rng: Any = None):
        self.W = weight(rng, n_in, n_out, "W")
        self.b = Tensor(np.zeros(n_out), label="b") if bias else None

    def __call__(self, x: Any) -> Tensor:
        """Return x @ W + b."""
        out = x @ self.W
        return out if self.b is None else out + self.b


class MLP(Module):
    """A layer that computes relu(x @ Wh + bh) @ Wo + bo; another activation may be passed."""

    def __init__(
        self, n_features: int, n_hidden: int, activation: Callable = relu, rng: Any = None
    ):
        self.Wh = weight(rng, n_features, n_hidden, "Wh")
        self.bh = Tensor(np.zeros(n_hidden), "bh")
        self.Wo = weight(rng, n_hidden, n_features, "Wo")
        self.bo = Tensor(np.zeros(n_features), "bo")
        self.activation = activation

    def __call__(self, x: Any) -> Tensor:
        """Return the output for every token."""
        return self.activation(x @ self.Wh + self.bh) @ self.Wo + self.bo


class SingleHeadAttention(Module):
    """Attention with one head, no scale and no output projection, as a first course writes it.

    The scores are (x Wk) (x Wq)^T, with keys along the last axis but one.
    """

    def __init__(self, n_features: int, rng: Any = None):
        self.Wq = weight(rng, n_features, n_features, "Wq")
        self.Wk = weight(rng, n_features, n_features, "Wk")
        self.Wv = weight(rng, n_features, n_features, "Wv")

    def __call__(self, x: Any) -> Tensor:
        """Return every token's mixture of all tokens."""
        scores = (x @ self.Wk) @ moveaxis(x @ self.Wq, -1, -2)
        mixed = moveaxis(moveaxis(x, -1, -2) @ softmax(scores, axis=-2), -1, -2)
        return mixed @ self.Wv


class MultiHeadAttention(Module):
    """Attention that joins softmax(q k^T / sqrt(head size)) v of every head, and projects that.

    With `causal`, a token sees itself and those before it.
    """

    def __init__(self, n_features: int, n_heads: int, causal: bool = False, rng: Any = None):
        if n_features % n_heads:
            raise QuerykeyError(f"{n_heads} heads cannot share {n_features} features evenly")
        self.Wq, self.Wk, self.Wv, self.Wo = (
            weight(rng, n_features, n_features, label) for label in ("Wq", "Wk", "Wv", "Wo")
        )
        self.n_heads, self.causal = n_heads, causal

    def __call__(self, x: Any) -> Tensor:
        """Return every token's mixture of what it sees."""
        if len(x.shape) != 3:
            raise QuerykeyError(f"attention takes (batch, tokens, features), not {tuple(x.shape)}")
        batch, tokens, features = x.shape
        size = features // self.n_heads
        q, k, v = (
            moveaxis(reshape(x @ W, (batch, tokens, self.n_heads, size)), 1, 2)
            for W in (self.Wq, self.Wk, self.Wv)
        )
        scores = q @ moveaxis(k, -1, -2) / float(np.sqrt(size))
        if self.causal:
            scores = where(np.tri(tokens, dtype=bool), scores, -np.inf)
        heads = softmax(scores, axis=-1) @ v
        return reshape(moveaxis(heads, 1, 2), (batch, tokens, features)) @ self.Wo


class LayerNorm(Module):
    """A layer that gives the features of every token mean 0 and variance 1, then gain and shift."""

    def __init__(self, n_features: int, epsilon: float = 1e-5):
        self.gain = Tensor(np.ones(n_features), label="gain")
        self.shift = Tensor(np.zeros(n_features), label="shift")
        self.epsilon = epsilon

    def __call__(self, x: Any) -> Tensor:
        """Return x with every token normalised."""
        centred = x - primitives.mean(x, axis=-1, keepdims=True)
        scale = sqrt(reductions.var(x, axis=-1, keepdims=True) + self.epsilon)
        return centred / scale * self.gain + self.shift


class BatchNorm(Module):
    """A layer that gives every feature mean 0 and variance 1, then gain and shift.

    In training these are taken over the batch and the tokens. In evaluation they are the running
    averages of the training batches, whose variances are unbiased.
    """

    def __init__(self, n_features: int, epsilon: float = 1e-5, momentum: float = 0.1):
        self.gain = Tensor(np.ones(n_features), label="gain")
        self.shift = Tensor(np.zeros(n_features), label="shift")
        self.running_mean, self.running_var = np.zeros(n_features), np.ones(n_features)
        self.epsilon, self.momentum = epsilon, momentum

    def __call__(self, x: Any) -> Tensor:
        """Return x with every feature normalised."""
        if self.training:
            axes = tuple(range(len(x.shape) - 1))
            mean, var = primitives.mean(x, axes), reductions.var(x, axes)
            count = math.prod(x.shape[:-1])
            if count < 2:
                raise QuerykeyError(
                    f"BatchNorm learns from more than one value per feature; got {tuple(x.shape)}"
                )
            self.running_mean += self.momentum * (mean._data - self.running_mean)
            unbiased = var._data * count / (count - 1)
            self.running_var += self.momentum * (unbiased - self.running_var)
        else:
            mean, var = (v.astype(float_type(x)) for v in (self.running_mean, self.running_var))
        return (x - mean) / sqrt(var + self.epsilon) * self.gain + self.shift


class Embedding(Module):
    """A layer that returns a row of its table for every integer."""

    def __init__(self, count: int, n_features: int, rng: Any = None):
        values = generator(rng).standard_normal((count, n_features))
        self.table = Tensor(values, label="table")

    def __call__(self, ids: Any) -> Tensor:
        """Return the rows of the table at the integers."""
        ids, count = np.asarray(raw(ids)), len(self.table)
        if not ids.size:
            ids = ids.astype(int)
        elif ids.dtype.kind not in "iu" or not 0 <= ids.min() <= ids.max() < count:
            raise QuerykeyError(
                f"Embedding takes integers from 0 to {count - 1}; got {ids.dtype} from "
                f"{ids.min()} to {ids.max()}"
            )
        return self.table[ids]


class Dropout(Module):
    """A layer that in training sets a share of the elements to zero, and scales up the others."""

    def __init__(self, share: float, rng: Any = None):
        self.share, self.rng = checked_share("dropout", share), generator(rng)

    def __call__(self, x: Any) -> Any:
        """Return x, in training with some elements set to zero."""
        if not self.training or not self.share:
            return x
        stays = self.rng.random(x.shape) >= self.share
        return x * (stays / (1 - self.share)).astype(float_type(x))


class TransformerBlock(Module):
    """A block that computes x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(
        self,
        n_features: int,
        n_hidden: int,
        n_heads: int = 1,
        causal: bool = False,
        dropout: float = 0.0,
        rng: Any = None,
    ):
        self.norm_att, self.norm_mlp = LayerNorm(n_features), LayerNorm(n_features)
        self.att = MultiHeadAttention(n_features, n_heads, causal, rng)
        self.mlp = MLP(n_features, n_hidden, rng=rng)
        self.dropout = Dropout(dropout, rng)

    def __call__(self, x: Any) -> Tensor:
        """Return the tokens, mixed and transformed."""
        x = x + self.dropout(self.att(self.norm_att(x)))
        return x + self.dropout(self.mlp(self.norm_mlp(x)))


class BinaryCrossEntropyLoss(Module):
    """The mean of -log p(y), with p = sigmoid(logits): it takes logits, so it is stable."""

    def __call__(self, logits: Any, y: Any) -> Tensor:
        """Return the loss as one number."""
        check_shapes("BinaryCrossEntropyLoss", logits, y)
        return binary_cross_entropy(logits, y)


class CrossEntropyLoss(Module):
    """The mean of -log softmax(logits)[label] over all but the last axis, which counts classes."""

    def __call__(self, logits: Any, labels: Any) -> Tensor:
        """Return the loss as one number."""
        labels, shape = np.asarray(raw(labels)), np.shape(raw(logits))
        if labels.dtype.kind not in "iu" or labels.shape != shape[:-1]:
            raise QuerykeyError(
                f"CrossEntropyLoss takes one integer per row of logits: they are {shape}, "
                f"the labels {labels.shape} {labels.dtype}"
            )
        classes = shape[-1]
        if labels.size and not 0 <= labels.min() <= labels.max() < classes:
            raise QuerykeyError(
                f"CrossEntropyLoss takes labels from 0 to {classes - 1}; there are labels from "
                f"{labels.min()} to {labels.max()}"
            )
        chosen = take_along_axis(
            reductions.log_softmax(logits, axis=-1), labels[..., None], axis=-1
        )
        return -primitives.mean(chosen)


class MSELoss(Module):
    """The mean squared difference between a prediction and its target."""

    def __call__(self, prediction: Any, y: Any) -> Tensor:
        """Return the loss as one number."""
        check_shapes("MSELoss", prediction, y)
        return primitives.mean(primitives.square(primitives.subtract(prediction, y)))


def check_shapes(loss: str, prediction: Any, target: Any) -> None:
    """Raise an error for a target of another shape: broadcasting would change the mean unseen."""
    shapes = np.shape(raw(prediction)), np.shape(raw(target))
    if shapes[0] != shapes[1]:
        raise QuerykeyError(
            f"{loss} compares element by element: the prediction has shape {shapes[0]}, "
            f"the target {shapes[1]}"
        )
