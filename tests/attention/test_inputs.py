"""One clear error for each way a call can be wrong, with the arrays shown: texts held literally."""

import math

import numpy as np
import pytest
import torch

from querykey.attention.biases import ALiBi, Buckets
from querykey.attention.masks import FULL, Causal, Dense, Documents, Padding, Window
from querykey.attention.mechanisms import Argmax, Similarity, Softmax
from querykey.attention.reference import attend, weights
from querykey.errors import QuerykeyError
from querykey.shapes import ShapeError


def zeros(*shape, dtype=torch.float32, device="cpu"):
    return torch.zeros(shape, dtype=dtype, device=device)


Q, K, V = zeros(2, 3, 4, 5), zeros(2, 3, 7, 5), zeros(2, 3, 7, 6)

BUCKETS = "Buckets(table (32, 5), both_ways=True, furthest=128)"
SHOWN = """
  q      (2, 3, 4, 5) torch float32 on cpu
  k      (2, 3, 7, 5) torch float32 on cpu
  v      (2, 3, 7, 6) torch float32 on cpu"""

SHAPES = [
    (
        (zeros(2, 3, 4, 5), zeros(2, 3, 4, 4), zeros(2, 3, 4, 4)),
        {},
        """axis `key_dim` is 5 in `q` but 4 in `k`
  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)
  k      wants (batch, head, key, key_dim), has (2, 3, 4, 4)  <-- here
  v      wants (batch, head, key, value_dim), has (2, 3, 4, 4)""",
    ),
    (
        (zeros(2, 4, 5), K, V),
        {},
        """`q` has 3 axes but wants 4
  q      wants (batch, head, query, key_dim), has (2, 4, 5)  <-- here
  k      wants (batch, kv_head, key, key_dim), has (2, 3, 7, 5)
  v      wants (batch, kv_head, key, value_dim), has (2, 3, 7, 6)
  `q[:, None]` adds a head axis to `q`""",
    ),
    (
        (zeros(5), zeros(7, 5), zeros(7, 6)),
        {},
        """`q` has 1 axis but wants 2
  q      wants (query, key_dim), has (5,)  <-- here
  k      wants (key, key_dim), has (7, 5)
  v      wants (key, value_dim), has (7, 6)""",
    ),
    (
        (zeros(5), zeros(5), zeros(5)),
        {},
        """`q` has 1 axis but wants 2
  q      wants (query, key_dim), has (5,)  <-- here
  k      wants (key, key_dim), has (5,)
  v      wants (key, value_dim), has (5,)""",
    ),
    (
        (Q, K, V[:1]),
        {},
        """axis `batch` is 2 in `q` but 1 in `v`
  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)
  k      wants (batch, head, key, key_dim), has (2, 3, 7, 5)
  v      wants (batch, head, key, value_dim), has (1, 3, 7, 6)  <-- here""",
    ),
    (
        (Q, K[:, :2], V[:, :2]),
        {},
        """3 query heads cannot share 2 key heads evenly
  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)
  k      wants (batch, kv_head, key, key_dim), has (2, 2, 7, 5)  <-- here
  v      wants (batch, kv_head, key, value_dim), has (2, 2, 7, 6)""",
    ),
    (
        (Q, K[:, :1], V),
        {},
        """`k` and `v` have different numbers of heads
  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)
  k      wants (batch, kv_head, key, key_dim), has (2, 1, 7, 5)
  v      wants (batch, head, key, value_dim), has (2, 3, 7, 6)  <-- here""",
    ),
    (
        (Q, K, V),
        {"mask": Padding(np.ones((2, 4), dtype=bool))},
        """axis `key` is 7 in `k` but 4 in `mask`
  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)
  k      wants (batch, head, key, key_dim), has (2, 3, 7, 5)
  v      wants (batch, head, key, value_dim), has (2, 3, 7, 6)
  mask   wants (batch, key), has (2, 4)  <-- here""",
    ),
    (
        (Q[0], K[0], V[0]),
        {"mask": Padding(np.ones((3, 7), dtype=bool))},
        """`mask` has 2 axes but wants 1
  q      wants (head, query, key_dim), has (3, 4, 5)
  k      wants (head, key, key_dim), has (3, 7, 5)
  v      wants (head, key, value_dim), has (3, 7, 6)
  mask   wants (key,), has (3, 7)  <-- here
  three axes are (head, query, key_dim); `q[:, None]` makes the first a batch""",
    ),
    (
        (Q, K, V),
        {"mask": Causal() & Dense(np.ones((2, 3, 5, 7), dtype=bool)), "start": 3},
        """axis `query` is 4 in `q` but 5 in `mask`
  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)
  k      wants (batch, head, key, key_dim), has (2, 3, 7, 5)
  v      wants (batch, head, key, value_dim), has (2, 3, 7, 6)
  mask   wants (batch, head, query, key), has (2, 3, 5, 7)  <-- here""",
    ),
    (  # one for each row or one for each head? Where there are as many, nobody could tell
        (Q, K, V),
        {"mask": Dense(np.ones((3, 4, 7), dtype=bool))},
        """the array of Dense has rank 2, (query, key), or that of `q`, 4; it has rank 3
  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)
  k      wants (batch, head, key, key_dim), has (2, 3, 7, 5)
  v      wants (batch, head, key, value_dim), has (2, 3, 7, 6)
  mask   wants (query, key), has (3, 4, 7)  <-- here""",
    ),
    (
        (Q, K, V),
        {"bias": zeros(7)},
        """`bias` has 1 axis but wants 2
  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)
  k      wants (batch, head, key, key_dim), has (2, 3, 7, 5)
  v      wants (batch, head, key, value_dim), has (2, 3, 7, 6)
  bias   wants (query, key), has (7,)  <-- here""",
    ),
    (
        (Q, K, V),
        {"mask": Causal(), "start": np.array([1, 2, 3])},
        """axis `batch` is 2 in `q` but 3 in `start`
  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)
  k      wants (batch, head, key, key_dim), has (2, 3, 7, 5)
  v      wants (batch, head, key, value_dim), has (2, 3, 7, 6)
  start  wants (batch,), has (3,)  <-- here""",
    ),
]

OTHERS = [
    (
        (Q.long(), K.long(), V.long()),
        {},
        TypeError,
        """attention wants floating-point arrays of 16 bits or more, but `q` is torch.int64
  q      (2, 3, 4, 5) torch int64 on cpu
  k      (2, 3, 7, 5) torch int64 on cpu
  v      (2, 3, 7, 6) torch int64 on cpu""",
    ),
    (
        (Q, K.double(), V),
        {},
        TypeError,
        """`q` is torch.float32 but `k` is torch.float64
  q      (2, 3, 4, 5) torch float32 on cpu
  k      (2, 3, 7, 5) torch float64 on cpu
  v      (2, 3, 7, 6) torch float32 on cpu""",
    ),
    (
        (Q, K, V.to("meta")),
        {},
        ValueError,
        """`q` is on cpu but `v` is on meta
  q      (2, 3, 4, 5) torch float32 on cpu
  k      (2, 3, 7, 5) torch float32 on cpu
  v      (2, 3, 7, 6) torch float32 on meta""",
    ),
    (
        (Q, K.numpy(), V),
        {},
        TypeError,
        """`q` is a torch array but `k` is of numpy
  q      (2, 3, 4, 5) torch float32 on cpu
  k      (2, 3, 7, 5) numpy float32 on cpu
  v      (2, 3, 7, 6) torch float32 on cpu""",
    ),
    (
        ([[1.0]], K, V),
        {},
        TypeError,
        """`q` is no array but a list
  q      [[1.0]]
  k      (2, 3, 7, 5) torch float32 on cpu
  v      (2, 3, 7, 6) torch float32 on cpu""",
    ),
    (
        (Q, K, V),
        {"mask": Causal()},
        ValueError,
        "Causal() asks where the queries stand, and there are 4 for 7 keys: pass start, the "
        "position of the first query" + SHOWN,
    ),
    (
        (Q, K, V),
        {"bias": ALiBi(3)},
        ValueError,
        "ALiBi(heads=3) asks where the queries stand, and there are 4 for 7 keys: pass start, the "
        "position of the first query" + SHOWN,
    ),
    (
        (Q, K, V),
        {"mask": Causal(), "start": 1.5},
        TypeError,
        "start wants an int, or an int array (*batch,); got 1.5",
    ),
    (
        (Q, K, V),
        {"mask": Causal(), "start": np.array([0.0, 1.0])},
        TypeError,
        "start wants whole numbers" + SHOWN + "\n  start  (2,) numpy float64 on cpu",
    ),
    (
        (Q, K, V),
        {"mask": Documents(np.zeros((2, 7), dtype=int)), "start": 4},
        ValueError,
        "Documents(int64 array (2, 7)) has no id for the last query, at position 7" + SHOWN,
    ),
    (
        (Q, K, V),
        {"mask": torch.ones(4, 7, dtype=torch.bool)},
        TypeError,
        "mask wants a rule, such as Causal() or Dense(array)"
        + SHOWN
        + "\n  mask   (4, 7) torch bool on cpu",
    ),
    (
        (Q, K, V),
        {"mask": Padding(torch.ones(2, 7, dtype=torch.bool, device="meta"))},
        ValueError,
        "`q` is on cpu but `mask` is on meta" + SHOWN + "\n  mask   (2, 7) torch bool on meta",
    ),
    (
        (Q, K, V),
        {"mechanism": "softmax"},
        TypeError,
        "mechanism wants a Mechanism, such as Softmax() or Kernel(Quadratic()); got 'softmax'",
    ),
    (
        (Q, K, V),
        {"mechanism": Argmax(), "bias": zeros(4, 7)},
        ValueError,
        "a bias is added to the scores of Softmax; Argmax() has no use for it",
    ),
    (
        (Q, K, V),
        {"bias": zeros(4, 7).bool()},
        TypeError,
        "bias wants a floating-point array or a rule such as ALiBi(heads); what may be seen goes "
        "into mask=" + SHOWN + "\n  bias   (4, 7) torch bool on cpu",
    ),
    (
        (Q, K, V),
        {"bias": np.zeros((4, 7))},
        TypeError,
        "`q` is a torch array but `bias` is of numpy"
        + SHOWN
        + "\n  bias   (4, 7) numpy float64 on cpu",
    ),
    (
        (Q, K, V),
        {"bias": Buckets(zeros(32, 5)), "start": 0},
        ValueError,
        BUCKETS + " does not fit the heads of `q`" + SHOWN,
    ),
    (
        (Q, K, V),
        {"mechanism": Similarity(lambda q, k: q)},
        ValueError,
        "the function of Similarity returned (2, 3, 4, 5) for q (2, 3, 4, 5) and k (2, 3, 7, 5); "
        "one number per pair is (2, 3, 4, 7)",
    ),
]


@pytest.mark.parametrize(("arrays", "options", "text"), SHAPES)
def test_shapes_that_do_not_fit(arrays, options, text):
    with pytest.raises(ShapeError) as error:
        attend(*arrays, **options)
    assert str(error.value) == text


@pytest.mark.parametrize(("arrays", "options", "kind", "text"), OTHERS)
def test_calls_that_make_no_sense(arrays, options, kind, text):
    with pytest.raises(kind) as error:
        attend(*arrays, **options)
    assert isinstance(error.value, QuerykeyError)
    assert str(error.value) == text


def test_weights_shows_what_it_was_given():
    with pytest.raises(ShapeError) as error:
        weights(zeros(4, 5), zeros(7, 3))
    assert str(error.value) == (
        "axis `key_dim` is 5 in `q` but 3 in `k`\n"
        "  q      wants (query, key_dim), has (4, 5)\n"
        "  k      wants (key, key_dim), has (7, 3)  <-- here"
    )


def test_start_is_needed_only_where_it_matters():
    real = Padding(np.ones((2, 7), dtype=bool))
    for mask in (FULL, real, Dense(np.ones((4, 7), dtype=bool))):
        assert attend(Q, K, V, mask=mask).shape == (2, 3, 4, 6)
    square = zeros(2, 3, 7, 5)
    assert attend(square, K, V, mask=Causal() & Window(2)).shape == (2, 3, 7, 6)
    assert attend(Q, K, V, mask=Causal(), start=np.int64(3)).shape == (2, 3, 4, 6)
    assert attend(Q, K, V, mask=Causal(), start=torch.tensor(3)).shape == (2, 3, 4, 6)


def test_softcap_is_positive():
    with pytest.raises(ValueError, match="a softcap bounds the scores, so it is above 0; got 0"):
        Softmax(softcap=0.0)


KINDS = {
    "`q` is torch.float8_e4m3fn": lambda x: x.to(torch.float8_e4m3fn),
    "attention wants dense arrays, but `q` is a sparse_coo tensor": torch.Tensor.to_sparse,
    "attention wants dense arrays, but `q` is a MaskedArray": lambda x: np.ma.array(x.numpy()),
}


@pytest.mark.parametrize("message", KINDS)
def test_arrays_of_other_kinds_are_refused(message):
    x = KINDS[message](torch.ones(4, 5))
    with pytest.raises(TypeError) as error:
        attend(x, x, x)
    assert message in str(error.value)


@pytest.mark.parametrize("start", [-3, np.array([0, -3]), torch.tensor([-3, 0])])
def test_no_query_stands_before_the_first_position(start):
    with pytest.raises(ValueError, match=r"start is the position of the first query.* got -3"):
        attend(Q, K, V, mask=Causal(), start=start)


def test_a_start_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match=r"start is a position, so it is at most 2\^62; got 1000"):
        attend(Q, K, V, mask=Causal(), start=10**30)


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf])
def test_a_scale_that_is_not_finite_is_refused(scale):
    with pytest.raises(ValueError, match=f"a scale is finite; got {scale}"):
        Softmax(scale=scale)
