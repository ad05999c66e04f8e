"""Every mechanism, mask, head layout and query position against loops over Python floats."""

import math

import numpy as np
import pytest
import torch
from tests import oracle

from querykey.attention.features import (
    EluPlusOne,
    Polynomial,
    Quadratic,
    RandomFeatures,
    Taylor,
)
from querykey.attention.masks import (
    FULL,
    Blocks,
    Causal,
    Dense,
    Dilated,
    Documents,
    Global,
    Padding,
    Prefix,
    Strided,
    Window,
)
from querykey.attention.mechanisms import Argmax, Kernel, Similarity, Softmax
from querykey.attention.reference import attend, weights
from querykey.attention.tables import orthogonal_rows

D, M, S = 5, 3, 7
DIRECTIONS = orthogonal_rows(11, D, 3).tolist()


def gaussian(q, k):
    square = ((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1)
    return square.__neg__().exp() if hasattr(square, "exp") else np.exp(-square)


def random_features(q, k, scale=1.0):
    root = math.sqrt(scale)
    a, b = (oracle.positive_features([root * e for e in x], DIRECTIONS) for x in (q, k))
    return oracle.dot(a, b)


def elu(q, k, scale=1.0):
    root = math.sqrt(scale)
    return oracle.dot(*(oracle.elu_plus_one([root * e for e in x]) for x in (q, k)))


def capped(q, k):
    return 2 * math.tanh(oracle.dot(q, k) / math.sqrt(D) / 2)


# Each mechanism beside its similarity or score in plain words, and how scores become weights.
SOFT, HARD, SHARE = oracle.softmax_weights, oracle.argmax_weights, oracle.share_weights
MECHANISMS = {
    "softmax": (Softmax(), lambda q, k: oracle.dot(q, k) / math.sqrt(D), SOFT),
    "softmax-unscaled": (Softmax(scale=1.0), oracle.dot, SOFT),
    "softmax-capped": (Softmax(softcap=2.0), capped, SOFT),
    "argmax": (Argmax(), oracle.dot, HARD),
    "quadratic": (Kernel(Quadratic()), lambda q, k: (oracle.dot(q, k) + 1) ** 2, SHARE),
    "quadratic-scaled": (
        Kernel(Quadratic(), scale=0.3),
        lambda q, k: (0.3 * oracle.dot(q, k) + 1) ** 2,
        SHARE,
    ),
    "polynomial": (
        Kernel(Polynomial(4, bias=0.5)),
        lambda q, k: (oracle.dot(q, k) + 0.5) ** 4,
        SHARE,
    ),
    "elu": (Kernel(EluPlusOne()), elu, SHARE),
    "elu-scaled": (Kernel(EluPlusOne(), scale=0.5), lambda q, k: elu(q, k, 0.5), SHARE),
    "taylor": (
        Kernel(Taylor(4), scale=0.5),
        lambda q, k: oracle.exp_taylor(oracle.dot(q, k) / 2, 4),
        SHARE,
    ),
    "random": (
        Kernel(RandomFeatures(11, seed=3), scale=0.4),
        lambda q, k: random_features(q, k, 0.4),
        SHARE,
    ),
    "similarity": (
        Similarity(gaussian),
        lambda q, k: math.exp(-math.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True))),
        SHARE,
    ),
}

REAL = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0]])  # the second row sees nothing
IDS = np.array([[4, 4, 9, 9, 9, 4, 2], [0, 1, 1, 1, 1, 1, 1]])
TABLE = np.random.default_rng(5).integers(0, 2, (7, 7)).astype(bool)

# Each mask beside its rule in plain words: (batch row b, query position i, key position j).
MASKS = {
    "full": (FULL, lambda b, i, j: True),
    "causal": (Causal(), lambda b, i, j: j <= i),
    "window": (Causal() & Window(3), lambda b, i, j: j in (i - 2, i - 1, i)),
    "two-sided": (Window(2), lambda b, i, j: j in (i - 1, i, i + 1)),
    "dilated": (Dilated(3, 2), lambda b, i, j: j in (i - 4, i - 2, i, i + 2, i + 4)),
    "strided": (Strided(3), lambda b, i, j: j in (0, 3, 6)),
    "global": (Global(2) | Window(1), lambda b, i, j: i < 2 or j < 2 or i == j),
    "blocks": (
        Blocks(3),
        lambda b, i, j: (i < 3 and j < 3) or (min(i, j) >= 3 and max(i, j) < 6) or i == j == 6,
    ),
    "prefix": (Causal() | Prefix(4), lambda b, i, j: j <= i or j < 4),
    "padding": (Padding(REAL), lambda b, i, j: REAL[b][j] == 1),
    "causal-padding": (Causal() & Padding(REAL == 1), lambda b, i, j: j <= i and REAL[b][j] == 1),
    "documents": (Documents(IDS) & Causal(), lambda b, i, j: j <= i and IDS[b][i] == IDS[b][j]),
    "not": (~Causal() | Strided(5), lambda b, i, j: j > i or j in (0, 5)),
}
POSITIONS = {"T=S": (7, None), "T<S": (3, 4), "T=1": (1, 6), "ragged": (2, np.array([1, 4]))}
HEADS = {"single": (1, 1), "multi": (3, 3), "grouped": (6, 2)}


def draw(queries, heads, kv_heads, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((2, heads, queries, D)),
        rng.standard_normal((2, kv_heads, S, D)),
        rng.standard_normal((2, kv_heads, S, M)),
    )


def expected(q, k, v, score, normalise, rule, starts):
    """The oracle, head by head; starts has one entry per batch row."""
    all_weights, all_outputs = [], []
    heads, kv_heads = len(q[0]), len(k[0])
    for b in range(len(q)):
        for h in range(heads):
            g = oracle.serving_head(h, heads, kv_heads)
            found = oracle.head_weights(
                q[b][h],
                k[b][g],
                lambda q_i, k_j, i, j: score(q_i, k_j),
                normalise,
                lambda i, j, b=b: rule(b, starts[b] + i, j),
            )
            all_weights.append(found)
            all_outputs.append(oracle.head_output(found, v[b][g], M))
    shape = (len(q), heads, len(q[0][0]))
    return np.reshape(all_weights, (*shape, -1)), np.reshape(all_outputs, (*shape, M))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_attend_agrees_with_the_oracle(mechanism, mask, position):
    spec, score, normalise = MECHANISMS[mechanism]
    rule_spec, rule = MASKS[mask]
    queries, start = POSITIONS[position]
    starts = [0, 0] if start is None else np.broadcast_to(start, 2).tolist()
    for heads, kv_heads in HEADS.values():
        q, k, v = draw(queries, heads, kv_heads)
        want_weights, want = expected(
            *(x.tolist() for x in (q, k, v)), score, normalise, rule, starts
        )
        options = {"mechanism": spec, "mask": rule_spec, "start": start}
        np.testing.assert_allclose(attend(q, k, v, **options), want, rtol=0, atol=1e-12)
        np.testing.assert_allclose(weights(q, k, **options), want_weights, rtol=0, atol=1e-12)
        if heads == 6:
            tensors = (torch.tensor(x) for x in (q, k, v))
            np.testing.assert_allclose(attend(*tensors, **options), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("library", [np.asarray, torch.asarray])
def test_dense_masks_go_by_row_and_may_repeat_their_outer_axes(library):
    q, k, _ = (library(x) for x in draw(7, 3, 3))
    tables = [
        TABLE,
        np.stack([TABLE, TABLE.T, ~TABLE])[None],
        np.stack([TABLE, TABLE.T])[:, None],
        np.stack([TABLE, TABLE.T, ~TABLE, TABLE, TABLE, TABLE]).reshape(2, 3, 7, 7),
    ]
    for table in tables:
        found = weights(q, k, mask=Dense(library(table)), start=100)
        full = np.broadcast_to(table, (2, 3, 7, 7))
        assert ((np.asarray(found) != 0) == full).all()
        assert (np.asarray(Dense(table).matrix(7, 7)) == table).all()


def test_rank_2_is_tokens_and_rank_5_adds_batch_before_heads():
    q, k, v = draw(7, 3, 3)
    whole = attend(q, k, v, mask=Causal())
    np.testing.assert_array_equal(attend(q[1, 2], k[1, 2], v[1, 2], mask=Causal()), whole[1, 2])
    np.testing.assert_array_equal(attend(q[1], k[1], v[1], mask=Causal()), whole[1])
    lifted = attend(q[:, None], k[:, None], v[:, None], mask=Causal())
    np.testing.assert_array_equal(lifted[:, 0], whole)
    real = np.arange(7) < 4
    np.testing.assert_array_equal(
        attend(q[0, 0], k[0, 0], v[0, 0], mask=Padding(real)),
        attend(q[0, 0], k[0, 0, :4], v[0, 0, :4]),
    )


def test_the_worked_example_of_document_004():
    q = np.array([[1.0, 1.0, 2.0]])
    k = np.array([[1.0, 2.0, 0.0], [0.0, 3.0, 4.0], [5.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    v = np.array([[2.0, 0.0, 1.0], [1.0, 4.0, 3.0], [0.0, -1.0, 4.0], [1.0, 0.0, -1.0]])
    assert attend(q, k, v, mechanism=Argmax()).tolist() == [[1.0, 4.0, 3.0]]
    assert weights(q, k, mechanism=Argmax()).tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_argmax_ties_go_to_the_first_visible_key():
    q, k = np.ones((1, 2)), np.ones((4, 2))
    seen = Dense(np.array([[0, 1, 1, 1]]))
    assert weights(q, k, mechanism=Argmax(), mask=seen).tolist() == [[0.0, 1.0, 0.0, 0.0]]
    q, k = torch.ones(1, 2), torch.ones(4, 2)
    assert weights(q, k, mechanism=Argmax(), mask=seen).tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("queries", "keys", "batch"), [(0, 4, 2), (3, 0, 2), (0, 0, 2), (3, 4, 0)])
def test_nothing_in_gives_nothing_out(mechanism, queries, keys, batch):
    spec = MECHANISMS[mechanism][0]
    for library in (np.zeros, torch.zeros):
        q, k = library((batch, 2, queries, D)), library((batch, 2, keys, D))
        v = library((batch, 2, keys, M))
        for mask in (FULL, Causal(), Causal() & Padding(np.ones((batch, keys), dtype=bool))):
            out = attend(q, k, v, mechanism=spec, mask=mask, start=0)
            assert tuple(out.shape) == (batch, 2, queries, M)
            assert not out.any()
            assert weights(q, k, mechanism=spec, mask=mask, start=0).shape[-2:] == (queries, keys)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_float32_inside(dtype):
    q, k, v = (torch.tensor(x).to(dtype) for x in draw(7, 3, 3))
    for spec in (Softmax(), Kernel(Quadratic()), Kernel(EluPlusOne())):
        out = attend(q, k, v, mechanism=spec, mask=Causal())
        wide = attend(q.float(), k.float(), v.float(), mechanism=spec, mask=Causal())
        assert out.dtype == dtype
        assert torch.equal(out, wide.to(dtype))
    half = np.float16(draw(7, 3, 3)[0])
    assert attend(half, half, half).dtype == np.float16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_does_not_lower_the_precision(dtype):
    q, k, v = (torch.tensor(x).to(dtype) for x in draw(7, 3, 3))
    for spec in (Softmax(), Kernel(Quadratic())):
        plain = attend(q, k, v, mechanism=spec, mask=Causal())
        rows = weights(q, k, mechanism=spec, mask=Causal())
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(attend(q, k, v, mechanism=spec, mask=Causal()), plain)
            assert torch.equal(weights(q, k, mechanism=spec, mask=Causal()), rows)


def test_a_signed_sum_of_exactly_zero_gives_zeros():
    q = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([[2.0], [-2.0]], dtype=torch.float64)
    v = torch.tensor([[3.0], [5.0]], dtype=torch.float64)
    odd = Kernel(Polynomial(3, bias=0.0, signed=True))
    out = attend(q, k, v, mechanism=odd)
    out.sum().backward()
    assert out.tolist() == [[0.0]]
    assert q.grad.tolist() == [[0.0]]
    even = Kernel(Quadratic())  # (q.k + 1)^2 = 0 at q.k = -1
    assert attend(q, torch.full_like(k, -1.0), v, mechanism=even).tolist() == [[0.0]]
