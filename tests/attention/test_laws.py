"""What holds for every mechanism and mask: invisible means without effect, order means nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from querykey.attention.biases import ALiBi
from querykey.attention.features import EluPlusOne, Polynomial, Quadratic, RandomFeatures, Taylor
from querykey.attention.masks import (
    FULL,
    Blocks,
    Causal,
    Dense,
    Documents,
    Global,
    Padding,
    Strided,
    Window,
)
from querykey.attention.mechanisms import Argmax, Kernel, Similarity, Softmax
from querykey.attention.reference import attend, weights

B, H, G, S, D, M = 2, 4, 2, 6, 3, 5
MECHANISMS = [
    Softmax(),
    Softmax(scale=3.0, softcap=2.0),
    Argmax(),
    Kernel(Quadratic()),
    Kernel(Polynomial(4, 0.5)),
    Kernel(Polynomial(3, signed=True)),
    Kernel(EluPlusOne()),
    Kernel(Taylor(2)),
    Kernel(RandomFeatures(7)),
    Similarity(lambda q, k: (q @ k.mT).exp()),
]
REAL = np.array([[1, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 0]], dtype=bool)
MASKS = [
    FULL,
    Causal(),
    Causal() & Padding(REAL),
    Padding(REAL),
    Strided(2) & Window(3),
    Global(1) & Window(2),
    ~Causal(),
    Documents(np.array([[0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 3, 3]])) & Padding(REAL),
    Blocks(4) & Causal(),
    Dense(np.random.default_rng(0).integers(0, 2, (B, H, S, S))),
    Dense(np.zeros((S, S), dtype=bool)),
]
POISON = [np.nan, np.inf, -np.inf, 1e200]

mechanisms, masks = st.sampled_from(MECHANISMS), st.sampled_from(MASKS)


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, H, S, D), (B, G, S, D), (B, G, S, M), (B, H, S, M))
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def with_gradients(q, k, v, towards, **options):
    q, k, v = (x.detach().clone().requires_grad_() for x in (q, k, v))
    out = attend(q, k, v, **options)
    grads = torch.autograd.grad((out * towards).sum(), (q, k, v))
    return out.detach(), grads


def seen_by(mask):
    return mask.matrix(S, S, like=torch.zeros(1)).broadcast_to(B, H, S, S)


@settings(max_examples=80, deadline=None)
@given(mechanisms, masks, st.sampled_from(POISON), st.integers(0, 5))
def test_what_no_query_may_see_changes_nothing(mechanism, mask, poison, seed):
    q, k, v, towards = draw(seed)
    hidden = ~seen_by(mask).reshape(B, G, H // G, S, S).any(2).any(2)[..., None]
    out, grads = with_gradients(q, k, v, towards, mechanism=mechanism, mask=mask)
    spoiled = (torch.where(hidden, poison, x) for x in (k, v))
    out_spoiled, grads_spoiled = with_gradients(
        q, *spoiled, towards, mechanism=mechanism, mask=mask
    )
    assert torch.equal(out, out_spoiled)
    for a, b in zip(grads, grads_spoiled, strict=True):
        assert torch.equal(a, b)
    for grad in grads_spoiled[1:]:
        assert not grad[hidden.expand_as(grad)].any()


@settings(max_examples=80, deadline=None)
@given(
    mechanisms,
    masks,
    st.sampled_from(POISON[:3]),
    st.integers(0, S - 1),
    st.sampled_from(["key", "value", "both"]),
)
def test_a_spoiled_key_reaches_only_the_queries_that_see_it(mechanism, mask, poison, j, where):
    """Where visibility differs per query; the loss looks only at queries that do not see key j."""
    q, k, v, towards = draw(j)
    sees = seen_by(mask)[..., j]
    towards = torch.where(sees[..., None], 0.0, towards)
    options = {"mechanism": mechanism, "mask": mask}
    out, grads = with_gradients(q, k, v, towards, **options)
    k_spoiled, v_spoiled = k.clone(), v.clone()
    if where != "value":
        k_spoiled[:, :, j] = poison
    if where != "key":
        v_spoiled[:, :, j] = poison
    out_spoiled, _ = with_gradients(q, k_spoiled, v_spoiled, towards, **options)
    assert torch.equal(out[~sees], out_spoiled[~sees])
    if not (isinstance(mechanism, Argmax) and where == "value"):
        assert out_spoiled[sees].isnan().all()
    # The gradient of those queries alone: the others' outputs never enter the loss.
    leaves = _leaves(q, k_spoiled, v_spoiled)
    rows = attend(*leaves, **options)[~sees]
    found = torch.autograd.grad((rows * towards[~sees]).sum(), leaves)
    for a, b in zip(grads, found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def _leaves(*arrays):
    return [x.detach().clone().requires_grad_() for x in arrays]


@settings(max_examples=50, deadline=None)
@given(mechanisms, masks, st.sampled_from([0.3, *POISON]))
def test_a_query_that_sees_nothing_returns_zeros_and_gives_no_gradient(mechanism, mask, poison):
    q, k, v, towards = draw(1)
    blind = ~seen_by(mask).any(-1)
    q = torch.where(blind[..., None], poison, q)
    towards = torch.where(blind[..., None], towards, 0.0)
    out, grads = with_gradients(q, k, v, towards, mechanism=mechanism, mask=mask)
    assert not out[blind].any()
    assert not grads[0][blind].any()
    for grad in grads[1:]:
        assert not grad.any()


def test_argmax_meets_only_the_winners_value():
    q, k, v, _ = draw(0)
    winners = weights(q, k, mechanism=Argmax()) == 1
    v[:, :, 2] = torch.nan
    out = attend(q, k, v, mechanism=Argmax())
    assert torch.equal(out.isnan().all(-1), winners[..., 2])
    assert torch.equal(out.isnan().any(-1), winners[..., 2])


def test_a_spoiled_query_spoils_itself_alone():
    q, k, v, towards = draw(0)
    clean = attend(q, k, v, mask=Causal())
    q[:, :, 3] = torch.nan
    towards[:, :, 3] = 0
    out, grads = with_gradients(q, k, v, towards, mask=Causal())
    assert out[:, :, 3].isnan().all()
    others = [0, 1, 2, 4, 5]
    assert torch.equal(out[:, :, others], clean[:, :, others])
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize(
    "mechanism",
    [Softmax(), Argmax(), Kernel(Quadratic()), Kernel(Polynomial(4)), Kernel(Taylor(2))],
    ids=str,
)
def test_hidden_pairs_may_overflow(mechanism):
    """Two documents in units 1e100 apart: q.k is the same within each and 1e200 across."""
    q, k, v, towards = draw(9)
    mask = Documents(np.array([[0, 0, 0, 1, 1, 1]] * B))
    units = torch.tensor([1e100] * 3 + [1e-100] * 3, dtype=torch.float64)[:, None]
    out, grads = with_gradients(q, k, v, towards, mechanism=mechanism, mask=mask)
    scaled = with_gradients(q * units, k / units, v, towards, mechanism=mechanism, mask=mask)
    torch.testing.assert_close(scaled[0], out, rtol=0, atol=1e-12)
    back = (scaled[1][0] * units, scaled[1][1] / units, scaled[1][2])
    for a, b in zip(back, grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(mechanisms, st.permutations(range(S)))
def test_permutation_equivariance_without_positions(mechanism, order):
    """Ties would break it for argmax; random numbers have none."""
    q, k, v, _ = draw(2)
    out = attend(q, k, v, mechanism=mechanism)
    permuted = attend(q[:, :, order], k[:, :, order], v[:, :, order], mechanism=mechanism)
    torch.testing.assert_close(permuted, out[:, :, order], rtol=0, atol=1e-12)
    only_keys = attend(q, k[:, :, order], v[:, :, order], mechanism=mechanism)
    torch.testing.assert_close(only_keys, out, rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(mechanisms, masks)
def test_weights_are_shares(mechanism, mask):
    q, k, _, _ = draw(3)
    found, sees = weights(q, k, mechanism=mechanism, mask=mask), seen_by(mask)
    sums = sees.any(-1).to(torch.float64)
    torch.testing.assert_close(found.sum(-1), sums, rtol=0, atol=1e-9)
    assert not found[~sees].any()


BEFORE_ADDRESS = " at "  # a function is shown with where it is, another place in every process


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: str(m).split(BEFORE_ADDRESS)[0])
def test_gradients_against_finite_differences(mechanism):
    q, k, v, _ = draw(4)
    mask = Causal() & Padding(REAL)

    def function(q, k, v):
        return attend(q, k, v, mechanism=mechanism, mask=mask)

    leaves = [x[:, :, :, :2].clone().requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(function, leaves)


def test_argmax_gives_zeros_for_gradients_not_none():
    q, k, v = _leaves(*draw(5)[:3])
    attend(q, k, v, mechanism=Argmax(), mask=Causal()).sum().backward()
    assert not q.grad.any()
    assert not k.grad.any()
    assert v.grad.any()


def test_a_bias_is_added_to_visible_scores_and_has_a_gradient():
    q, k, v, _ = draw(6)
    bias = torch.randn(H, S, S, dtype=torch.float64)
    hidden = ~Causal().matrix(S, S, like=bias)
    poisoned = torch.where(hidden, torch.nan, bias).requires_grad_()
    out = attend(q, k, v, mask=Causal(), bias=poisoned)
    scores = q @ k.repeat_interleave(H // G, 1).mT / D**0.5 + bias
    plain = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.repeat_interleave(H // G, 1)
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-12)
    out.square().sum().backward()
    assert poisoned.grad.isfinite().all()
    assert not poisoned.grad[hidden.expand(H, S, S)].any()
    for shape in ((S, S), (1, S, S), (B, 1, S, S), (1, H, S, S), (B, H, S, S)):
        small = torch.randn(shape, dtype=torch.float64)
        want = (scores - bias + small).softmax(-1) @ v.repeat_interleave(H // G, 1)
        torch.testing.assert_close(attend(q, k, v, bias=small), want, rtol=0, atol=1e-12)


def test_a_bias_of_minus_infinity_everywhere_gives_zeros():
    q, k, v = _leaves(*draw(7)[:3])
    out = attend(q, k, v, bias=torch.full((S, S), -torch.inf, dtype=torch.float64))
    out.sum().backward()
    assert not out.any()
    assert not any(x.grad.any() for x in (q, k, v))


def test_positions_of_queries_shift_with_start_in_masks_and_biases():
    q, k, v, _ = draw(8)
    for options in ({"mask": Causal() & Window(3)}, {"bias": ALiBi(H)}, {"mask": Global(2)}):
        whole = attend(q, k, v, **options)
        late = attend(q[:, :, 4:], k, v, start=4, **options)
        torch.testing.assert_close(late, whole[:, :, 4:], rtol=0, atol=1e-14)
        each = torch.stack([q[0, :, 1:3], q[1, :, 3:5]])
        ragged = attend(each, k, v, start=torch.tensor([1, 3]), **options)
        want = torch.stack([whole[0, :, 1:3], whole[1, :, 3:5]])
        torch.testing.assert_close(ragged, want, rtol=0, atol=1e-14)
