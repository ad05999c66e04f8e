"""The first document's code, as text, run on `querykey.ag` and compared with torch."""

import numpy as np
import pytest
import torch

import querykey.ag as ag
from querykey.ag import nn

DOCUMENT = """
# IMPORTANT: the batch data tensor has shape (n_samples, n_context, n_features)
#
class SingleHeadAttention:
    def __init__(self, n_features):
        self.Wq = ag.Tensor(np.random.randn(n_features, n_features), label="Wq")
        self.Wk = ag.Tensor(np.random.randn(n_features, n_features), label="Wk")
        self.Wv = ag.Tensor(np.random.randn(n_features, n_features), label="Wv")
    def __call__(self, Xin):
        Queries = Xin @ self.Wq
        Keys = Xin @ self.Wk
        KQ = (Keys @ ag.moveaxis(Queries, 1,2))
        expKQ = ag.exp(KQ)
        softmaxKQ = expKQ / ag.sum(expKQ, axis=1, keepdims=True)
        Xout = ag.moveaxis(ag.moveaxis(Xin,1,2) @ softmaxKQ, 1,2) @ self.Wv
        return Xout

class MLP:
    def __init__(self, n_features, n_hidden):
        self.Wh = ag.Tensor(np.random.randn(n_features, n_hidden), label="Wh")
        self.bh = ag.Tensor(np.random.randn(n_hidden), label="bh")
        self.wo = ag.Tensor(np.random.randn(n_hidden, n_features), label="Wo")
        self.bo = ag.Tensor(np.random.randn(n_features), label="bo")

    def __call__(self, Xin):
        hidden = ag.relu((Xin @ self.Wh) + self.bh)
        return hidden @ self.wo + self.bo

class TransformerBlock:
    def __init__(self, n_features, n_hidden):
        self.att = SingleHeadAttention(n_features)
        self.mlp = MLP(n_features, n_hidden)
    def __call__(self, Xin):
        return self.mlp(self.att(Xin))
"""


class RandomIn:
    """NumPy, except that random numbers come in one type: the text asks for no type."""

    def __init__(self, dtype, seed):
        self.random, self.dtype, self.rng = self, dtype, np.random.default_rng(seed)

    def randn(self, *shape):
        return self.rng.standard_normal(shape).astype(self.dtype)


def block(d, h, dtype="float64", seed=0, scale=1.0):
    names = {"ag": ag, "np": RandomIn(dtype, seed)}
    exec(DOCUMENT, names)
    made = names["TransformerBlock"](d, h)
    for w in (made.att.Wq, made.att.Wk):
        w.data *= scale
    return made


def weights_of(made):
    a, m = made.att, made.mlp
    return [a.Wq, a.Wk, a.Wv, m.Wh, m.bh, m.wo, m.bo]


def torch_block(X, Wq, Wk, Wv, Wh, bh, Wo, bo):
    scores = (X @ Wk) @ (X @ Wq).transpose(1, 2)
    mixed = (X.transpose(1, 2) @ torch.softmax(scores, dim=1)).transpose(1, 2)
    return torch.relu(mixed @ Wv @ Wh + bh) @ Wo + bo


def torch_gradients(made, X, y, pick):
    """In float64, with torch's own stable softmax."""
    inputs = [torch.tensor(np.asarray(t, dtype="float64"), requires_grad=True) for t in (X, *made)]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        pick(torch_block(*inputs)), torch.tensor(y, dtype=torch.float64)
    )
    loss.backward()
    return loss.item(), [t.grad.numpy() for t in inputs]


def relative(ours, theirs):
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


def every(out):
    return out.reshape(-1)


def one_token(out):
    return out[:, 3, 0]


@pytest.mark.parametrize("pick", [one_token, every])
@pytest.mark.parametrize(("n", "C", "d", "h"), [(5, 4, 3, 8), (7, 11, 5, 13), (3, 37, 29, 41)])
def test_every_gradient_agrees_with_torch_to_twelve_digits(n, C, d, h, pick):
    made, rng = block(d, h, scale=d**-0.75), np.random.default_rng(1)
    X = ag.Tensor(rng.standard_normal((n, C, d)), label="X")
    y = rng.integers(0, 2, pick(np.zeros((n, C, d))).shape)
    loss = nn.BinaryCrossEntropyLoss()(pick(made(X)), y)
    loss.backward()
    value, grads = torch_gradients([w.data for w in weights_of(made)], X.data, y, pick)
    assert abs(loss.item() - value) < 1e-12 * abs(value)
    for tensor, theirs in zip([X, *weights_of(made)], grads, strict=True):
        assert tensor.grad.shape == tensor.shape
        assert relative(tensor.grad, theirs) < 1e-12, tensor.label


def test_the_text_takes_plain_arrays_too():
    made, X = block(3, 8), np.random.default_rng(1).standard_normal((5, 4, 3))
    loss = nn.BinaryCrossEntropyLoss()(made(X)[:, 3, 0], np.array([0, 1, 0, 1, 1]))
    loss.backward()
    again = block(3, 8)
    loss_again = nn.BinaryCrossEntropyLoss()(again(ag.Tensor(X))[:, 3, 0], [0, 1, 0, 1, 1])
    loss_again.backward()
    for a, b in zip(weights_of(made), weights_of(again), strict=True):
        assert np.array_equal(a.grad, b.grad)


def test_zero_columns_of_the_values_give_zero_columns_of_the_output():
    made = block(3, 8)
    made.att.Wv.data[:, 1:] = 0
    out = made.att(ag.Tensor(np.random.default_rng(1).standard_normal((5, 4, 3))))
    assert out.shape == (5, 4, 3)
    assert (out.data[..., 1:] == 0).all()
    assert (out.data[..., 0] != 0).all()


@pytest.mark.parametrize(("dtype", "d"), [("float32", 16), ("float32", 64), ("float64", 64)])
@pytest.mark.parametrize("pick", [one_token, every])
def test_raw_exp_overflows_with_the_texts_own_weights_and_is_rescued(dtype, d, pick):
    made, rng = block(d, 8, dtype=dtype), np.random.default_rng(1)
    X = ag.Tensor(rng.standard_normal((5, 32, d)).astype(dtype))
    att = made.att
    scores = (X @ att.Wk) @ ag.moveaxis(X @ att.Wq, 1, 2)
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(scores.data)).any()  # the text's exp does overflow here
    y = rng.integers(0, 2, pick(np.zeros(X.shape)).shape)
    out = made(X)
    loss = nn.BinaryCrossEntropyLoss()(pick(out), y)
    loss.backward()
    assert out.dtype == np.dtype(dtype)
    value, grads = torch_gradients([w.data for w in weights_of(made)], X.data, y, pick)
    room = 1e-10 if dtype == "float64" else 2e-3  # scores of 100s carry 1e-5 of float32's rounding
    assert abs(loss.item() - value) < room * abs(value)
    for tensor, theirs in zip(weights_of(made), grads[1:], strict=True):
        assert tensor.grad.dtype == np.dtype(dtype)
        if np.abs(theirs).max() > 1e-8:  # a saturated softmax leaves Wq and Wk next to nothing
            assert relative(tensor.grad, theirs) < room, tensor.label


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_the_rescue_leaves_finite_rows_as_they_were(axis, requires_grad):
    x = np.array([[1.0, 2.0, 3.0], [800.0, 801.0, 2.0], [-800.0, -801.0, -900.0], [300.0, 301, 3]])
    e = ag.exp(ag.Tensor(x if axis else x.T, requires_grad=requires_grad))
    ours = (e / ag.sum(e, axis=axis, keepdims=True)).data
    ours = ours if axis else ours.T
    with np.errstate(all="ignore"):
        plain = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    stable = torch.softmax(torch.tensor(x), dim=1).numpy()
    assert np.isnan(plain[1]).any()
    assert np.isnan(plain[2]).all()
    assert np.array_equal(ours[[0, 3]], plain[[0, 3]])  # bit for bit
    np.testing.assert_allclose(ours[[1, 2]], stable[[1, 2]], rtol=1e-14)


def test_the_rescue_works_without_gradients_and_over_all_axes():
    x = np.array([[1000.0, 1001.0], [999.0, 0.0]])
    e = ag.exp(ag.Tensor(x, requires_grad=False))
    ours = e / ag.sum(e)
    stable = torch.softmax(torch.tensor(x).reshape(-1), 0).reshape(2, 2).numpy()
    np.testing.assert_allclose(ours.data, stable, rtol=1e-14)
    assert not ours.requires_grad
    e = ag.exp(x)
    np.testing.assert_allclose((e / e.sum()).data, stable, rtol=1e-14)


def test_other_quotients_overflow_as_in_numpy():
    e = ag.exp(ag.Tensor([800.0, 1.0]))
    with np.errstate(invalid="ignore"):
        assert np.isnan((e / ag.sum(ag.exp(ag.Tensor([800.0, 1.0])), keepdims=True)).data[0])


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
@pytest.mark.parametrize("labels", [(None, None), (None, "total"), ("e", None)])
def test_a_quotient_by_its_own_sum_has_the_gradient_of_all_its_parts(axis, labels):
    x = np.random.default_rng(0).standard_normal((3, 4))
    weights = np.arange(12.0).reshape(3, 4)
    ours = ag.Tensor(x)
    e = ag.exp(ours)
    total = ag.sum(e, axis=axis, keepdims=True)
    e.label, total.label = labels
    ag.sum(e / total * weights + 0.5 * e * total).backward()  # e and its sum have other uses too

    theirs = torch.tensor(x, requires_grad=True)
    f = theirs.exp()
    s = f.sum(dim=axis, keepdim=True)
    f.retain_grad()
    s.retain_grad()
    (f / s * torch.tensor(weights) + 0.5 * f * s).sum().backward()
    np.testing.assert_allclose(ours.grad, theirs.grad.numpy(), rtol=1e-12)
    for part, its in ((e, f), (total, s)):
        if part.label:
            np.testing.assert_allclose(part.grad, its.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2)])
def test_a_large_softmax_has_the_same_gradient(axis):
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((2, 3, 211, 257))
    ours = ag.Tensor(x)
    e = ag.exp(ours)
    loss = e / ag.sum(e, axis=axis, keepdims=True) + 2.0 * ag.softmax(ours, axis)
    ag.sum(loss * weights).backward()
    theirs = torch.tensor(x, requires_grad=True)
    shares = theirs.exp() / theirs.exp().sum(dim=axis, keepdim=True)
    (3 * shares * torch.tensor(weights)).sum().backward()
    assert relative(ours.grad, theirs.grad.numpy()) < 1e-12
