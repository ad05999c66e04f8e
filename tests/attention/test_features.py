"""phi(q).phi(k) is the kernel; widths, signs and draws are what they say."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from querykey import attend, empty_state, extend, weights
from querykey.attention.features import EluPlusOne, Polynomial, Quadratic, RandomFeatures, Taylor
from querykey.attention.masks import Causal
from querykey.attention.mechanisms import Kernel
from querykey.attention.tables import orthogonal_rows

vectors = arrays(np.float64, (2, 5), elements=st.floats(-3, 3, width=32))


@given(vectors)
def test_the_quadratic_map_reproduces_its_kernel_to_rounding(pair):
    q, k = pair
    phi = Quadratic()
    exact = (math.fsum(a * b for a, b in zip(q, k, strict=True)) + 1) ** 2
    size = (np.abs(q) @ np.abs(k) + 1) ** 2
    assert abs(phi(q) @ phi(k) - exact) <= 1e-15 * 8 * size
    assert abs(phi.similarity(q @ k) - exact) <= 1e-15 * 8 * size


@given(vectors, st.integers(1, 5), st.sampled_from([0.0, 0.3, 1.0, 2.0]))
@settings(max_examples=50)
def test_polynomials_of_any_degree_and_bias(pair, degree, bias):
    q, k = pair
    phi = Polynomial(degree, bias, signed=True)
    exact = (math.fsum(a * b for a, b in zip(q, k, strict=True)) + bias) ** degree
    size = (np.abs(q) @ np.abs(k) + bias) ** degree
    assert abs(phi(q) @ phi(k) - exact) <= 1e-14 * size + 1e-300
    assert abs(phi.similarity(q @ k) - exact) <= 1e-14 * size + 1e-300


@given(vectors, st.integers(1, 5))
@settings(max_examples=50)
def test_taylor_is_the_sum_of_its_terms(pair, order):
    q, k = pair
    phi, dot = Taylor(order, signed=True), float(q @ k)
    exact = math.fsum(dot**m / math.factorial(m) for m in range(order + 1))
    size = math.fsum((np.abs(q) @ np.abs(k)) ** m / math.factorial(m) for m in range(order + 1))
    assert abs(phi(q) @ phi(k) - exact) <= 1e-14 * size
    assert abs(phi.similarity(dot) - exact) <= 1e-14 * size
    if order % 2 == 0:
        assert phi.positive
        assert phi.similarity(dot) > 0


def test_the_quadratic_map_holds_the_documents_features():
    x = np.array([2.0, 3.0, 5.0])
    root = math.sqrt(2)
    document = [1, root * 2, root * 3, root * 5, 4, 9, 25, root * 6, root * 10, root * 15]
    np.testing.assert_allclose(sorted(Quadratic()(x)), sorted(document), rtol=1e-15)


@pytest.mark.parametrize("key_dim", [0, 1, 3, 6])
@pytest.mark.parametrize(
    ("phi", "width"),
    [
        (Quadratic(), lambda d: 1 + d + d * (d + 1) // 2),
        (Polynomial(4), lambda d: math.comb(d + 4, 4)),
        (Polynomial(2, bias=0.0), lambda d: d * (d + 1) // 2),
        (Taylor(2), lambda d: 1 + d + d * (d + 1) // 2),
        (EluPlusOne(), lambda d: d),
        (RandomFeatures(7), lambda d: 7),
    ],
)
def test_widths_are_known_without_running(phi, width, key_dim):
    x = np.random.default_rng(0).standard_normal((2, 3, key_dim))
    assert phi.width(key_dim) == width(key_dim) == phi(x).shape[-1]
    assert phi(x).shape[:-1] == (2, 3)


def test_the_contract_of_positive_and_exact():
    positive = [Quadratic(), Polynomial(2), Polynomial(4, 0.0), Taylor(2), EluPlusOne()]
    assert all(phi.positive for phi in [*positive, RandomFeatures(3)])
    assert not Polynomial(3, signed=True).positive
    assert not Taylor(1, signed=True).positive
    assert [phi.exact for phi in positive] == [True, True, True, False, True]
    assert not RandomFeatures(3).exact
    x = np.random.default_rng(0).standard_normal((50, 4)) * 3
    for phi in (EluPlusOne(), RandomFeatures(8)):
        assert (phi(x) > 0).all()


MISTAKES = [
    (lambda: Polynomial(2.0), "the degree of a polynomial kernel is a whole number; got 2.0"),
    (lambda: Polynomial(2, bias=math.inf), "only for a finite bias of at least 0; got inf"),
    (lambda: Taylor(2.5), "the order of a Taylor polynomial is a whole number; got 2.5"),
    (lambda: RandomFeatures(4, seed=-1), "the seed of random features is at least 0; got -1"),
    (
        lambda: Polynomial(3),
        "(q.k + 1)^3 can be below 0, so its sums can vanish and its weights have no bound; "
        "pass signed=True to accept that, or take an even degree",
    ),
    (
        lambda: Taylor(3),
        "the Taylor polynomial of order 3 can be below 0, so its sums can vanish and its weights "
        "have no bound; pass signed=True to accept that, or take an even order",
    ),
    (
        lambda: Polynomial(2, bias=-0.5),
        "(q.k + bias)^degree has a feature map only for a finite bias of at least 0; got -0.5",
    ),
    (lambda: Polynomial(0), "the degree of a polynomial kernel is at least 1; got 0"),
    (lambda: Taylor(0), "the order of a Taylor polynomial is at least 1; got 0"),
    (lambda: RandomFeatures(0), "the number of random features is at least 1; got 0"),
    (lambda: Kernel(Quadratic(), scale=0.0), "a kernel's scale is above 0; got 0.0"),
]


@pytest.mark.parametrize(("make", "message"), MISTAKES)
def test_mistakes(make, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        make()


def test_a_degree_that_soon_exceeds_float32_is_warned_of():
    with pytest.warns(UserWarning, match=r"\(q.k \+ 1\)\^50 exceeds float32 where .* above 5.9"):
        kernel = Kernel(Polynomial(50))
    x = torch.full((1, 1), 2.5)
    assert kernel.similarity(x, x).isinf().all()


def test_kernel_wants_a_feature_map():
    with pytest.raises(TypeError, match=r"Kernel wants a feature map, such as Quadratic\(\); got"):
        Kernel("quadratic")
    with pytest.raises(TypeError, match=r"EluPlusOne\(\) is no function of q.k alone"):
        EluPlusOne().similarity(1.0)


def test_random_features_are_the_same_in_every_library_and_by_seed():
    x = np.random.default_rng(1).standard_normal((4, 6))
    ours = RandomFeatures(10, seed=3)(x)
    np.testing.assert_allclose(RandomFeatures(10, seed=3)(torch.tensor(x)), ours, rtol=1e-14)
    assert (RandomFeatures(10, seed=4)(x) != ours).all()
    np.testing.assert_allclose(
        RandomFeatures(10, seed=3)(torch.tensor(x, dtype=torch.float32)), ours, rtol=1e-5
    )


def test_random_features_approximate_exp_without_bias():
    """Over many seeds the mean of phi(q).phi(k) meets exp(q.k) within five standard errors."""
    q, k = np.random.default_rng(2).standard_normal((2, 4)) * 0.5
    found = [RandomFeatures(8, seed=s)(q) @ RandomFeatures(8, seed=s)(k) for s in range(600)]
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - math.exp(q @ k)) < 5 * error
    assert error < 0.05 * math.exp(q @ k)


def test_random_directions_are_orthogonal_in_blocks():
    rows = orthogonal_rows(10, 4, seed=0)
    for block in (rows[:4], rows[4:8], rows[8:]):
        gram = block @ block.T
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-12)


def test_elu_plus_one_has_gradients_where_exp_overflows():
    x = torch.tensor([1000.0, 0.5, -1000.0], requires_grad=True)
    EluPlusOne()(x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 0.0]


def test_the_scale_is_inside_the_map():
    q, k = np.random.default_rng(3).standard_normal((2, 5, 4))
    kernel = Kernel(Polynomial(4, 0.7), scale=0.3)
    np.testing.assert_allclose(kernel.phi(q) @ kernel.phi(k).T, (0.3 * q @ k.T + 0.7) ** 4)
    np.testing.assert_allclose(kernel.similarity(q, k), (0.3 * q @ k.T + 0.7) ** 4)


@pytest.mark.parametrize(
    "phi", [Quadratic(), Polynomial(4), Taylor(2), EluPlusOne(), RandomFeatures(6)]
)
def test_maps_have_gradients(phi):
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(phi, x)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_kernel_that_overflows_says_so(backend, dtype):
    q, k, v = torch.full((3, 1, 2, 5, 2), 70.0, dtype=dtype)
    large = {"mechanism": Kernel(Polynomial(12)), "mask": Causal()}
    for call in (
        lambda: attend(q, k, v, **large, backend=backend),
        lambda: extend(q, k, v, state(), backend=backend)[0],
    ):
        with pytest.warns(UserWarning, match=r"similarities of Kernel.* beyond the range of float"):
            assert not call().isfinite().all()
    with pytest.warns(UserWarning, match="beyond the range of floats"):
        weights(q, k, **large)
    assert attend(q, k, v, mechanism=Kernel(Polynomial(4))).isfinite().all()


def test_no_overflow_is_told_of_where_an_input_is_infinite():
    q, k, v = torch.ones(3, 1, 2, 5, 4)
    v[0, 0, 1, 2] = math.inf
    assert attend(q, k, v, mechanism=Kernel(Polynomial(4))).isinf().any()


def state():
    return empty_state(Kernel(Polynomial(12)), batch=1, kv_heads=2, key_dim=2, value_dim=2)
