"""Two dimensions, windows, shifted windows, fewer keys, and channels: each against plain loops."""

import math

import numpy as np
import pytest
import torch
from tests import oracle

from querykey.attention.biases import ALiBi
from querykey.attention.features import Quadratic
from querykey.attention.grids import (
    attend_channels,
    attend_grid,
    attend_windows,
    pooled,
    strided,
)
from querykey.attention.mechanisms import Kernel, Softmax
from querykey.attention.reference import attend

X, Y, U, I = 6, 4, 3, 2  # noqa: E741


def draw(*outer):
    rng = np.random.default_rng(3)
    return [rng.standard_normal((*outer, X, Y, width)) for width in (U, U, I)]


def by_loops(q, k, v, neighbours):
    """Softmax over the (x2, y2) in neighbours(x1, y1), for grids (X, Y, features)."""
    out = np.zeros((X, Y, I))
    for x in range(X):
        for y in range(Y):
            spots = neighbours(x, y)
            scores = [oracle.dot(q[x, y], k[spot]) / math.sqrt(U) for spot in spots]
            shares = oracle.softmax_weights(scores)
            out[x, y] = sum(w * v[spot] for w, spot in zip(shares, spots, strict=True))
    return out


EVERYWHERE = [(x, y) for x in range(X) for y in range(Y)]


@pytest.mark.parametrize("wrap", [np.asarray, torch.asarray])
@pytest.mark.parametrize("outer", [(), (3,), (2, 3), (2, 1, 3)])
def test_every_place_sees_every_place(wrap, outer):
    q, k, v = draw(*outer)
    out = attend_grid(*(wrap(x) for x in (q, k, v)))
    assert tuple(out.shape) == (*outer, X, Y, I)
    for index in np.ndindex(outer):
        want = by_loops(q[index], k[index], v[index], lambda x, y: EVERYWHERE)
        np.testing.assert_allclose(out[index], want, atol=1e-12)


@pytest.mark.parametrize("wrap", [np.asarray, torch.asarray])
@pytest.mark.parametrize("outer", [(), (3,), (2, 3)])
@pytest.mark.parametrize(
    ("window", "shift"),
    [((3, 2), (0, 0)), ((3, 2), (1, 1)), ((2, 4), (1, 0)), ((2, 4), (1, 3)), ((6, 4), (2, 1))],
)
def test_windows_and_shifted_windows(wrap, outer, window, shift):
    """A place belongs to the window its shifted coordinates fall in, counted without wrapping."""
    q, k, v = draw(*outer)

    def home(x, y):
        return (x - shift[0]) // window[0], (y - shift[1]) // window[1]

    def neighbours(x, y):
        return [spot for spot in EVERYWHERE if home(*spot) == home(x, y)]

    out = attend_windows(*(wrap(x) for x in (q, k, v)), window=window, shift=shift)
    assert tuple(out.shape) == (*outer, X, Y, I)
    for index in np.ndindex(outer):
        want = by_loops(q[index], k[index], v[index], neighbours)
        np.testing.assert_allclose(out[index], want, atol=1e-12)


def test_windows_with_another_mechanism_bias_and_gradients():
    q, k, v = (torch.tensor(x, requires_grad=True) for x in draw(2, 3))
    out = attend_windows(q, k, v, window=(3, 2), mechanism=Kernel(Quadratic()))
    part = (x[:, :, 3:, 2:].reshape(2, 3, 6, -1) for x in (q, k, v))
    want = attend(*part, mechanism=Kernel(Quadratic())).reshape(2, 3, 3, 2, I)
    torch.testing.assert_close(out[:, :, 3:, 2:], want, rtol=0, atol=1e-12)
    out = attend_windows(q, k, v, window=(3, 2), shift=(1, 1), bias=ALiBi(3))
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


def test_fewer_keys_by_stride_or_mean():
    q, k, v = draw(3)
    few = attend_grid(q, strided(k, (3, 2)), strided(v, (3, 2)))
    for h in range(3):
        want = by_loops(q[h], k[h], v[h], lambda x, y: [(0, 0), (0, 2), (3, 0), (3, 2)])
        np.testing.assert_allclose(few[h], want, atol=1e-12)
    small = pooled(k, (3, 2))
    assert small.shape == (3, 2, 2, U)
    np.testing.assert_allclose(small[1, 1, 0], k[1, 3:, :2].reshape(6, U).mean(0), atol=1e-15)
    assert attend_grid(q, small, pooled(v, (3, 2))).shape == (3, X, Y, I)


@pytest.mark.parametrize("wrap", [np.asarray, torch.asarray])
@pytest.mark.parametrize("outer", [(), (2,), (2, 3)])
def test_channels_in_groups(wrap, outer):
    """softmax(Q_g^T K_g / sqrt(C_g)) V_g^T for each group of channels, transposed back."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, *outer, 7, 6))
    out = attend_channels(*(wrap(x) for x in (q, k, v)), groups=2)
    assert tuple(out.shape) == (*outer, 7, 6)
    for index in np.ndindex(outer):
        for group in (slice(0, 3), slice(3, 6)):
            a, b, c = (x[index][:, group] for x in (q, k, v))
            scores = np.exp(a.T @ b / math.sqrt(3))
            want = (scores / scores.sum(1, keepdims=True)) @ c.T
            np.testing.assert_allclose(out[index][:, group], want.T, atol=1e-12)
    unscaled = attend_channels(q, k, v, groups=1, mechanism=Softmax(scale=1.0))
    assert unscaled.shape == (*outer, 7, 6)


def test_the_given_attend_does_the_work():
    calls = []

    def watched(q, k, v, **options):
        calls.append(tuple(q.shape))
        return attend(q, k, v, **options)

    q, k, v = draw(2, 3)
    attend_grid(q, k, v, attend=watched)
    attend_windows(q, k, v, window=(3, 2), attend=watched)
    attend_channels(q[0, 0], k[0, 0], q[0, 0], groups=3, attend=watched)
    assert calls == [(2, 3, 24, U), (2, 2, 2, 3, 6, U), (X, 3, 1, Y)]


def test_grids_that_do_not_split():
    q, k, v = draw(3)
    with pytest.raises(ValueError, match="X = 6 does not split into windows of 4"):
        attend_windows(q, k, v, window=(4, 2))
    with pytest.raises(ValueError, match="a shift moves by less than a window, 0 to 1; got 2"):
        attend_windows(q, k, v, window=(3, 2), shift=(0, 2))
    with pytest.raises(ValueError, match="Y = 4 does not split into windows of 3"):
        pooled(k, (3, 3))
    with pytest.raises(ValueError, match="3 channels do not split into 2 groups of one size"):
        attend_channels(q[0, 0], k[0, 0], k[0, 0], groups=2)
