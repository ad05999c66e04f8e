"""What a mechanism says of itself, and a mechanism of one's own in every call that takes one."""

import re
from dataclasses import dataclass

import numpy as np
import pytest
import sympy
import torch

import querykey as qk
from querykey.attention import Mechanism, shares, softmax
from querykey.backends import BackendError


@dataclass(frozen=True)
class Near(Mechanism):
    """weights = 1 / (width + |q - k|), as shares: not one of the library's own."""

    width: float = 0.5

    def weights(self, q, k, seen):
        distance = ((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1)
        return shares(1 / (self.width + distance**0.5), seen)


@dataclass(frozen=True)
class Cosine(Mechanism):
    """weights = softmax(cos(q, k) + bias): it takes a bias."""

    takes_bias = True

    def weights(self, q, k, seen, *, bias=None):
        lengths = (q**2).sum(-1)[..., :, None] * (k**2).sum(-1)[..., None, :]
        cosines = q @ k.swapaxes(-1, -2) / lengths**0.5
        return softmax(cosines if bias is None else cosines + bias, seen)


def draw(tokens=7, heads=(4, 2, 2), seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, count, tokens, 5)) for count in heads]


def by_hand(q, k, v, similarity, sees):
    """One query at a time, over lists of the keys that it sees."""
    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    for b, h, i in np.ndindex(*q.shape[:-1]):
        g = h * k.shape[1] // q.shape[1]
        keys = [j for j in range(k.shape[2]) if sees(i, j)]
        sizes = np.array([similarity(q[b, h, i], k[b, g, j], i, j) for j in keys])
        out[b, h, i] = (sizes / sizes.sum()) @ v[b, g, keys]
    return out


def near(q, k, i, j):
    return 1 / (0.5 + np.linalg.norm(q - k))


@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
def test_a_mechanism_of_ones_own_works_in_attend_weights_and_explain(wrap):
    arrays = [wrap(x) for x in draw()]
    out = qk.attend(*arrays, mechanism=Near(), mask=qk.Causal())
    np.testing.assert_allclose(out, by_hand(*draw(), near, lambda i, j: j <= i), atol=1e-12)
    weights = qk.weights(*arrays[:2], mechanism=Near(), mask=qk.Causal() & qk.Window(2))
    np.testing.assert_allclose(np.asarray(weights).sum(-1), 1, atol=1e-12)
    assert qk.explain(*arrays, mechanism=Near()).backend == "reference"


@pytest.mark.parametrize("mask", [qk.Causal(), qk.Causal() & qk.Window(3)])
@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
def test_a_mechanism_of_ones_own_decodes(mask, wrap):
    arrays = [wrap(x) for x in draw()]
    state = qk.empty_state(Near(), mask, 2, kv_heads=2, key_dim=5, value_dim=5)
    outs = []
    for at in (slice(0, 3), slice(3, 4), slice(4, 7)):
        out, state = qk.extend(*(x[:, :, at] for x in arrays), state)
        outs.append(np.asarray(out))
    whole = qk.attend(*arrays, mechanism=Near(), mask=mask)
    np.testing.assert_allclose(np.concatenate(outs, 2), whole, atol=1e-12)


def test_a_mechanism_of_ones_own_takes_a_bias_if_it_says_so():
    q, k, v = draw()
    bias = np.random.default_rng(1).standard_normal((7, 7))

    def similarity(q, k, i, j):
        return np.exp(q @ k / np.linalg.norm(q) / np.linalg.norm(k) + bias[i, j])

    out = qk.attend(q, k, v, mechanism=Cosine(), bias=bias)
    np.testing.assert_allclose(out, by_hand(q, k, v, similarity, lambda i, j: True), atol=1e-12)
    with pytest.raises(ValueError, match=re.escape("Near(width=0.5) has no use for it")):
        qk.attend(q, k, v, mechanism=Near(), bias=bias)


@pytest.mark.parametrize("backend", ["sdpa", "flex", "triton", "chunked"])
def test_fast_backends_refuse_a_mechanism_they_do_not_know(backend):
    with pytest.raises(BackendError, match=r"attention, not Near$"):
        qk.attend(*(torch.tensor(x) for x in draw()), mechanism=Near(), backend=backend)


def test_a_mechanism_without_weights_says_so():
    class Nothing(Mechanism):
        pass

    with pytest.raises(NotImplementedError, match="Nothing does not define weights"):
        qk.attend(*draw(), mechanism=Nothing())


@pytest.mark.parametrize(
    ("mechanism", "count"),
    [
        (qk.Softmax(), 2 * 7 * 11 * (5 + 3)),
        (qk.Argmax(), 2 * 7 * 11 * (5 + 3)),
        (qk.Kernel(qk.Quadratic()), 2 * 7 * 11 * (5 + 3)),
        (qk.Kernel(qk.EluPlusOne()), 2 * 7 * 11 * (5 + 3)),
        (qk.Kernel(qk.RandomFeatures(13)), 2 * 13 * 5 * (7 + 11) + 2 * 7 * 11 * (13 + 3)),
        (qk.Similarity(len), 2 * 7 * 11 * 3),
        (Near(), 2 * 7 * 11 * (5 + 3)),
    ],
)
def test_flops_of_the_equation(mechanism, count):
    assert mechanism.flops(queries=7, keys=11, key_dim=5, value_dim=3) == count


def test_flops_in_symbols():
    T, S, D, M = sympy.symbols("T S D M", positive=True)
    assert qk.Softmax().flops(T, S, D, M) == 2 * T * S * (D + M)


def test_flops_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    for mechanism in (qk.Softmax(), qk.Kernel(qk.EluPlusOne()), qk.Kernel(qk.RandomFeatures(13))):
        q, k, v = torch.randn(7, 5), torch.randn(11, 5), torch.randn(11, 3)
        with FlopCounterMode(display=False) as counter:
            mechanism.weights(q, k, torch.ones(7, 11, dtype=torch.bool)) @ v
        assert counter.get_total_flops() == mechanism.flops(7, 11, 5, 3)
