"""Gradients of slices give what whole arrays give, and stay small where that is promised."""

import numpy as np
import pytest

import querykey.ag as ag
from querykey.ag.extras import slices

INDICES = [
    *(
        (slice(None), 3, 0),
        (slice(None), slice(2, 5), 1),
        (0,),
        (-1, -2),
        (slice(None), slice(1, 2)),
    ),
    *((slice(1, 2), slice(None), slice(7, 9)), (slice(-3, -1), 0), (2, slice(5, 5))),
]


def forward(x, w, b, picked, dense):
    """Everything a SliceGradient passes through, and on request what it cannot pass (cumsum)."""
    scores = (x @ w) @ ag.moveaxis(x * 0.1, 1, 2)
    e = ag.exp(scores)
    mixed = ag.moveaxis(ag.moveaxis(x, 1, 2) @ (e / ag.sum(e, axis=1, keepdims=True)), 1, 2)
    hidden = ag.relu(mixed @ w + b) - ag.tanh(x) * b / (2.0 + b * b) + (-x)
    hidden = hidden * np.linspace(1, 2, 13)[None, :, None] / np.linspace(1, 2, 55).reshape(5, 1, 11)
    out = ag.sum(picked(hidden))
    return out + ag.sum(picked(ag.cumsum(hidden, 1))) * 0.5 if dense else out


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("scale", [1.0, 40.0])
@pytest.mark.parametrize("dense", [False, True])
def test_a_slice_gradient_is_the_dense_gradient(index, scale, dense, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = (
        rng.standard_normal((5, 13, 11)),
        rng.standard_normal((11, 11)),
        rng.standard_normal(11),
    )
    results = []
    for worth in (0, 10**9):
        monkeypatch.setattr(slices, "WORTH", worth)
        tensors = [ag.Tensor(a) for a in arrays]
        tensors[1].data *= scale
        forward(*tensors, lambda out: out[index], dense).backward()
        results.append([t.grad for t in tensors])
    for small, whole in zip(*results, strict=True):
        np.testing.assert_allclose(small, whole, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("batch", [(5,), (1,), ()])
@pytest.mark.parametrize("turned", [False, True])
def test_a_slice_of_a_product(index, batch, turned, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((5, 13, 3)), rng.standard_normal((*batch, 3, 11))
    if turned:  # the array that broadcasts is on the left
        arrays = rng.standard_normal((*batch, 13, 3)), rng.standard_normal((5, 3, 11))
    results = []
    for worth in (0, 10**9):
        monkeypatch.setattr(slices, "WORTH", worth)
        a, b = (ag.Tensor(x) for x in arrays)
        (ag.sum((a @ b)[index] * 2.0)).backward()
        results.append([a.grad, b.grad])
    for small, whole in zip(*results, strict=True):
        np.testing.assert_allclose(small, whole, rtol=1e-12, atol=1e-14)


def test_two_different_slices_of_one_array_add_up(monkeypatch):
    monkeypatch.setattr(slices, "WORTH", 0)
    x = ag.Tensor(np.ones((6, 7, 8)))
    y = x * 2.0
    (ag.sum(y[:, 3, 0]) + ag.sum(y[:, 3, 0]) + ag.sum(y[0, 2:4]) + ag.sum(y)).backward()
    want = np.full((6, 7, 8), 2.0)
    want[:, 3, 0] += 4
    want[0, 2:4] += 2
    np.testing.assert_allclose(x.grad, want)


def test_labels_and_leaves_receive_whole_arrays(monkeypatch):
    monkeypatch.setattr(slices, "WORTH", 0)
    x = ag.Tensor(np.ones((6, 7, 8)))
    y = x * 2.0
    y.label = "y"
    ag.sum(y[:, 3, 0]).backward()
    assert type(x.grad) is type(y.grad) is np.ndarray
    assert y.grad.sum() == 6
    assert x.grad.sum() == 12


def test_the_documents_loss_makes_small_gradients(monkeypatch):
    seen = []
    init = slices.SliceGradient.__init__

    def spy(self, values, index, shape):
        seen.append((values.size, np.prod(shape)))
        init(self, values, index, shape)

    monkeypatch.setattr(slices.SliceGradient, "__init__", spy)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((8, 32, 16)), ag.Tensor(rng.standard_normal((16, 16)))
    out = ag.relu(ag.relu(x @ w) @ w) @ w
    ag.sum(out[:, 3, 0]).backward()
    assert len(seen) >= 5
    assert all(size * 8 <= full for size, full in seen if full > 16 * 16)
    seen.clear()
    ag.sum(ag.relu(x @ w)).backward()
    assert seen == []


def test_operators_that_would_not_stay_zero_are_refused():
    g = slices.SliceGradient(np.ones((1, 1)), (slice(0, 1), slice(0, 1)), (3, 3))
    with pytest.raises(TypeError):
        np.exp(g)
    with pytest.raises(TypeError):
        1.0 / g
    with pytest.raises(TypeError):
        g * slices.SliceGradient(np.ones((1, 1)), (slice(1, 2), slice(0, 1)), (3, 3))


def test_a_slice_gradient_reaches_a_softmax_over_everything():
    values = np.random.default_rng(0).standard_normal((70, 70))
    grads = []
    for softmax in (lambda x: ag.exp(x) / ag.sum(ag.exp(x)), by_hand, whole):
        x = ag.Tensor(values)
        softmax(x)[3, 0].backward()
        grads.append(x.grad)
    np.testing.assert_allclose(grads[1], grads[0], atol=1e-15)
    np.testing.assert_allclose(grads[2], grads[0], atol=1e-15)


def by_hand(x):
    e = ag.exp(x)
    return e / ag.sum(e)


def whole(x):
    return ag.softmax(x, axis=None)


def test_an_empty_slice_of_a_large_array_sends_zeros():
    x, w = ag.Tensor(np.ones((64, 64))), ag.Tensor(np.ones((64, 64)))
    ag.sum((x @ w)[:, 3:3]).backward()
    np.testing.assert_array_equal(x.grad, np.zeros((64, 64)))


def test_a_primitive_of_ones_own_is_given_arrays():
    x = ag.Tensor(np.linspace(-1, 1, 10_000).reshape(100, 100))
    y = ag.record("relu", np.maximum(x.data, 0), (x, lambda g: np.where(x.data > 0, g, 0)))
    ag.sum(y[99]).backward()
    assert x.grad.sum() == 100


def test_an_infinite_gradient_in_a_slice_is_blocked():
    x = ag.Tensor(np.zeros((100, 100)))
    with np.errstate(divide="ignore"):
        ag.sqrt(ag.relu(x)[0, 0]).backward()
    assert not x.grad.any()


def test_a_product_of_two_batches_keeps_both_gradients_small(monkeypatch):
    shapes, dense = [], slices.SliceGradient.dense

    def spy(self):
        shapes.append(self.shape)
        return dense(self)

    monkeypatch.setattr(slices.SliceGradient, "dense", spy)
    x, w = ag.Tensor(np.ones((5, 32, 47))), ag.Tensor(np.ones((5, 47, 43)))
    ag.sum(((x * 2.0) @ (w * 3.0))[:, 3, 0]).backward()
    assert sorted(shapes) == [x.shape, w.shape]  # for their .grad alone
