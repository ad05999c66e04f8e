"""Every primitive against torch on drawn shapes, in value and gradient; and by differences."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import querykey.ag as ag

UNARY = {  # ours, torch's, and where the derivative exists
    "negative": (ag.negative, torch.neg, "any"),
    "exp": (ag.exp, torch.exp, "any"),
    "log": (ag.log, torch.log, "positive"),
    "sqrt": (ag.sqrt, torch.sqrt, "positive"),
    "abs": (ag.abs, torch.abs, "any"),
    "square": (ag.square, torch.square, "any"),
    "sin": (ag.sin, torch.sin, "any"),
    "cos": (ag.cos, torch.cos, "any"),
    "tanh": (ag.tanh, torch.tanh, "any"),
    "sigmoid": (ag.sigmoid, torch.sigmoid, "any"),
    "relu": (ag.relu, torch.relu, "any"),
    "gelu": (ag.gelu, torch.nn.functional.gelu, "any"),
    "erf": (ag.erf, torch.erf, "any"),
    "clip": (lambda x: ag.clip(x, -0.5, 0.7), lambda x: torch.clamp(x, -0.5, 0.7), "any"),
    "clip above": (lambda x: ag.clip(x, None, 0.7), lambda x: torch.clamp(x, max=0.7), "any"),
    "power 3": (lambda x: x**3, lambda x: x**3, "any"),
    "power 0": (lambda x: x**0, lambda x: x**0, "any"),
    "power 2.5": (lambda x: x**2.5, lambda x: x**2.5, "positive"),
    "2 to the": (lambda x: 2.0**x, lambda x: 2.0**x, "any"),
    "from 1": (lambda x: 1 - x, lambda x: 1 - x, "any"),
    "over": (lambda x: 2 / x, lambda x: 2 / x, "positive"),
    "mod": (lambda x: ag.mod(x, 0.7), lambda x: torch.remainder(x, 0.7), "any"),
    "sum": (ag.sum, torch.sum, "any"),
    "mean": (ag.mean, torch.mean, "any"),
    "norm": (ag.norm, torch.linalg.vector_norm, "any"),
    "ravel": (lambda x: ag.reshape(x, -1), lambda x: x.reshape(-1), "any"),
    "cumsum": (ag.cumsum, lambda x: x.reshape(-1).cumsum(0), "any"),
    "reversed": (ag.transpose, lambda x: x.permute(tuple(range(x.ndim))[::-1]), "any"),
    "expand_dims": (lambda x: ag.expand_dims(x, 0), lambda x: x[None], "any"),
    "squeeze": (ag.squeeze, torch.squeeze, "any"),
    "ellipsis": (lambda x: x[..., None], lambda x: x[..., None], "any"),
    "float32": (lambda x: ag.astype(x, "float32"), lambda x: x.float(), "any"),
}
BINARY = {
    "add": (ag.add, torch.add, "any"),
    "subtract": (ag.subtract, torch.subtract, "any"),
    "multiply": (ag.multiply, torch.multiply, "any"),
    "divide": (ag.divide, torch.divide, "positive"),
    "power": (ag.power, torch.pow, "positive"),
    "mod": (ag.mod, torch.remainder, "positive"),
    "maximum": (ag.maximum, torch.maximum, "any"),
    "minimum": (ag.minimum, torch.minimum, "any"),
    "where": (
        lambda a, b: ag.where(np.asarray(a) > 0.2, a, b),
        lambda a, b: torch.where(a > 0.2, a, b),
        "any",
    ),
}
ALONG = {  # functions of x and one axis
    "sum": (lambda x, i: ag.sum(x, axis=i), lambda x, i: x.sum(i)),
    "sum kept": (lambda x, i: ag.sum(x, i, keepdims=True), lambda x, i: x.sum(i, keepdim=True)),
    "mean": (lambda x, i: ag.mean(x, axis=i), lambda x, i: x.mean(i)),
    "var": (lambda x, i: ag.var(x, axis=i), lambda x, i: x.var(i, correction=0)),
    "var 1": (
        lambda x, i: ag.var(x, axis=i, correction=1, keepdims=True),
        lambda x, i: x.var(i, correction=1, keepdim=True),
    ),
    "std": (lambda x, i: ag.std(x, axis=i), lambda x, i: x.std(i, correction=0)),
    "prod": (lambda x, i: ag.prod(x, axis=i), lambda x, i: x.prod(i)),
    "norm": (lambda x, i: ag.norm(x, axis=i), lambda x, i: torch.linalg.vector_norm(x, dim=i)),
    "softmax": (lambda x, i: ag.softmax(x, axis=i), lambda x, i: x.softmax(i)),
    "log_softmax": (lambda x, i: ag.log_softmax(x, axis=i), lambda x, i: x.log_softmax(i)),
    "logsumexp": (lambda x, i: ag.logsumexp(x, axis=i), lambda x, i: x.logsumexp(i)),
    "cumsum": (lambda x, i: ag.cumsum(x, axis=i), lambda x, i: x.cumsum(i)),
    "moveaxis": (lambda x, i: ag.moveaxis(x, i, 0), lambda x, i: x.movedim(i, 0)),
    "moveaxis to": (lambda x, i: ag.moveaxis(x, 0, i), lambda x, i: x.movedim(0, i)),
    "swapaxes": (lambda x, i: ag.swapaxes(x, i, -1), lambda x, i: x.swapaxes(i, -1)),
    "stack": (lambda x, i: ag.stack([x, x * 2], i), lambda x, i: torch.stack([x, x * 2], i)),
    "concatenate": (
        lambda x, i: ag.concatenate([x, x * 2, x], i),
        lambda x, i: torch.cat([x, x * 2, x], i),
    ),
    "split": (
        lambda x, i: ag.split(x * x, [1], i)[1],
        lambda x, i: torch.tensor_split(x * x, [1], i)[1],
    ),
    "expand_dims": (lambda x, i: ag.expand_dims(x, i), lambda x, i: x.unsqueeze(i)),
}
NEED_ELEMENTS = {"max": (ag.max, torch.amax), "min": (ag.min, torch.amin)}

sizes = st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=0, max_size=4).map(tuple)
full = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=4).map(tuple)
drawn = settings(max_examples=25, deadline=None)


def numbers(shape, kind, seed, turned=False):
    """Normal or positive numbers, with some exact zeros and ties; non-contiguous when turned."""
    rng = np.random.default_rng(seed)
    if turned:
        x = rng.standard_normal((*[2 * n for n in shape[::-1]],)).T[
            tuple([slice(None, None, 2)] * len(shape))
        ]
    else:
        x = rng.standard_normal(shape)
    if kind == "positive":
        return np.abs(x) + 0.3
    return np.where(np.abs(x) < 0.1, 0.0, x) if shape else np.asarray(x)


def agree(ours, theirs, *arrays):
    """The value and every gradient of two functions are the same."""
    a = [ag.Tensor(x) for x in arrays]
    for tensor, array in zip(a, arrays, strict=True):
        tensor._data = np.asarray(array)  # a Tensor copies; the strides are part of the test
    t = [torch.tensor(np.array(x), requires_grad=True) for x in arrays]
    out, want = ours(*a), theirs(*t)
    assert out.shape == tuple(want.shape)
    np.testing.assert_allclose(out.data, want.detach().numpy(), rtol=1e-12, atol=1e-14)
    g = np.random.default_rng(7).standard_normal(out.shape).astype(out.dtype)
    out.backward(g)
    want.backward(torch.tensor(g))
    for mine, tensor in zip(a, t, strict=True):
        assert mine.grad.shape == mine.shape
        expected = np.zeros(mine.shape) if tensor.grad is None else tensor.grad.numpy()
        np.testing.assert_allclose(mine.grad, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("op", UNARY)
@drawn
@given(shape=sizes, seed=st.integers(0, 99), turned=st.booleans())
def test_functions_of_one_array(op, shape, seed, turned):
    ours, theirs, kind = UNARY[op]
    agree(ours, theirs, numbers(shape, kind, seed, turned))


@pytest.mark.parametrize("op", BINARY)
@drawn
@given(shape=sizes, seed=st.integers(0, 99), data=st.data())
def test_functions_of_two_arrays_broadcast(op, shape, seed, data):
    ours, theirs, kind = BINARY[op]
    cut = data.draw(st.integers(0, len(shape)))
    ones = data.draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)))
    other = tuple(1 if one else n for one, n in zip(ones, shape, strict=True))[cut:]
    a, b = numbers(shape, kind, seed), numbers(other, kind, seed + 1, turned=True)
    agree(ours, theirs, a, b)
    agree(lambda x, y: ours(y, x), lambda x, y: theirs(y, x), a, b)


@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_a_tie_gives_half_to_each(op):
    ours, theirs, _ = BINARY[op]
    agree(ours, theirs, np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("op", ALONG)
@drawn
@given(shape=full, seed=st.integers(0, 99), turned=st.booleans(), data=st.data())
def test_functions_along_an_axis(op, shape, seed, turned, data):
    ours, theirs = ALONG[op]
    i = data.draw(st.integers(-len(shape), len(shape) - 1))
    if op == "var 1" and shape[i] == 1:
        return
    agree(lambda x: ours(x, i), lambda x: theirs(x, i), numbers(shape, "any", seed, turned))


@pytest.mark.parametrize("op", NEED_ELEMENTS)
@drawn
@given(shape=full, seed=st.integers(0, 99), keep=st.booleans(), data=st.data())
def test_extremes_share_ties_over_any_axes(op, shape, seed, keep, data):
    ours, theirs = NEED_ELEMENTS[op]
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    x = np.round(numbers(shape, "any", seed))
    agree(lambda a: ours(a, axis=axes, keepdims=keep), lambda a: theirs(a, axes, keepdim=keep), x)
    agree(ours, theirs, x)


@drawn
@given(
    batch=st.sampled_from([(), (2,), (3, 2), (0,), (1, 5)]),
    rows=st.integers(0, 4),
    inner=st.integers(0, 4),
    columns=st.integers(0, 4),
    flip=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_matmul_of_any_batch_rank(batch, rows, inner, columns, flip, seed, data):
    lead = data.draw(st.sampled_from([batch, (), tuple(1 for _ in batch), batch[-1:]]))
    a = numbers((*batch, inner, rows) if flip[0] else (*batch, rows, inner), "any", seed)
    b = numbers((*lead, columns, inner) if flip[1] else (*lead, inner, columns), "any", seed + 1)
    a, b = (x.swapaxes(-1, -2) if f else x for x, f in zip((a, b), flip, strict=True))
    agree(ag.matmul, torch.matmul, a, b)
    agree(ag.matmul, torch.matmul, b.swapaxes(-1, -2), a.swapaxes(-1, -2))


@pytest.mark.parametrize(
    ("a", "b"), [((3,), (3,)), ((3,), (3, 4)), ((2, 5, 3), (3,)), ((3,), (2, 3, 4))]
)
def test_matmul_of_vectors(a, b):
    agree(ag.matmul, torch.matmul, numbers(a, "any", 0), numbers(b, "any", 1))


@pytest.mark.parametrize("shape", [(40, 30), (7, 40, 30), (2, 7, 40, 30)])
def test_matmul_of_large_transposed_batches(shape):
    x, y = numbers(shape, "any", 0).swapaxes(-1, -2), numbers(shape, "any", 1)
    agree(
        lambda a, b: ag.swapaxes(a @ b, -1, -2) @ np.ones((30, 2)),
        lambda a, b: (a @ b).swapaxes(-1, -2) @ torch.ones(30, 2, dtype=torch.float64),
        *(x, y),
    )


INDICES = [
    *(0, -1, slice(1, None), slice(None, None, -1), slice(None, None, 2), ..., None, (0, 1)),
    *((..., 2), (slice(None), None, 1), (slice(1, 3), slice(0, 1), -1), (0, 1, 2)),
    *([0, 0, 2], np.array([[0, 1], [1, 1]]), (np.array([0, 0, 1]), np.array([1, 1, 2]))),
    *((slice(None), [2, 0, 2]), ([1, 1], slice(None), 0), (..., np.array([0, 0]))),
    *(np.array([True, False, True, True]), (slice(None), np.array([True, False, True]))),
    *(np.array([], dtype=int), slice(2, 2)),
]


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_indices_basic_and_fancy(index):
    def torch_index(t):
        parts = index if isinstance(index, tuple) else (index,)
        parts = tuple(torch.tensor(p) if isinstance(p, list | np.ndarray) else p for p in parts)
        flipped = [p for p in parts if isinstance(p, slice) and (p.step or 1) < 0]
        return t.flip(0) if flipped else t[parts]

    agree(lambda x: x[index] * 2.0, lambda t: torch_index(t) * 2.0, numbers((4, 3, 5), "any", 0))


def test_an_index_may_be_a_tensor():
    x = ag.Tensor(np.arange(6.0).reshape(3, 2))
    ag.sum(x[ag.Tensor([2, 2, 0])] + x[ag.Tensor(1), ag.Tensor([0, 1, 1])][0]).backward()
    np.testing.assert_allclose(x.grad, [[1, 1], [6, 0], [2, 2]])


@drawn
@given(shape=full, seed=st.integers(0, 99), data=st.data())
def test_take_and_take_along_axis(shape, seed, data):
    i = data.draw(st.integers(-len(shape), len(shape) - 1))
    rng, x = np.random.default_rng(seed), numbers(shape, "any", seed)
    ids = rng.integers(0, shape[i], 4)
    agree(lambda a: ag.take(a, ids, i), lambda t: t.index_select(i, torch.tensor(ids)), x)
    size = list(shape)
    size[i] = 3
    along = rng.integers(0, shape[i], size)
    agree(
        lambda a: ag.take_along_axis(a, along, i),
        lambda t: torch.take_along_dim(t, torch.tensor(along), i),
        x,
    )
    flat = rng.integers(0, x.size, (2, 3))
    agree(lambda a: ag.take(a, flat), lambda t: torch.take(t, torch.tensor(flat)), x)


@pytest.mark.parametrize("k", [-2, 0, 1])
@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles(name, k):
    agree(
        lambda x: getattr(ag, name)(x, k),
        lambda x: getattr(torch, name)(x, k),
        numbers((2, 3, 5), "any", 0),
    )


EINSUMS = [
    *(
        "ij,jk->ik",
        "bij,bjk->bik",
        "ij,ij->",
        "i,j->ij",
        "ij->ji",
        "ij->",
        "ij->i",
        "ii->i",
        "ii->",
    ),
    *("ij,jk,kl->il", "...ij,jk->...ik", "...i,...i->...", "bhqd,bhkd->bhqk", "ij,jk", "ij", "ii"),
    *("iij,j->i", "ij,k->i", "a...,b->ab...", "i,i,i->i", "bij->jb"),
]
SIZES = {"i": 3, "j": 4, "k": 2, "l": 5, "b": 2, "h": 3, "q": 4, "d": 5, "a": 2}


@pytest.mark.parametrize("pattern", EINSUMS)
def test_einsum(pattern):
    terms = pattern.split("->")[0].split(",")
    shapes = [
        [n for c in t.replace("...", ".") for n in ((6, 2) if c == "." else (SIZES[c],))]
        for t in terms
    ]
    arrays = [numbers(tuple(s), "any", i) for i, s in enumerate(shapes)]
    agree(
        lambda *x: ag.einsum(pattern, *x) * 1.0, lambda *t: torch.einsum(pattern, *t) * 1.0, *arrays
    )


@pytest.mark.parametrize("lead", [(1, 3), (3,), (), (5, 3), (1,)])
def test_einsum_broadcasts_its_dots(lead):
    a, b = numbers((*lead, 4), "any", 0), numbers((5, 1, 4, 2), "any", 1)
    agree(
        lambda x, y: ag.einsum("...i,...ij->...j", x, y),
        lambda x, y: torch.einsum("...i,...ij->...j", x, y),
        *(a, b),
    )


def test_argmax_has_no_gradient():
    x = ag.Tensor([[1.0, 3.0, 3.0]])
    assert ag.argmax(x, axis=1).data == [1]
    assert not ag.argmax(x).requires_grad


def test_edges_of_the_softmax_family():
    x = np.array([[0.0, -np.inf, 1.0], [1e4, 1e4, -1e4]])
    agree(lambda a: ag.softmax(a, axis=1), lambda t: t.softmax(1), x)
    agree(lambda a: ag.logsumexp(a, axis=1), lambda t: t.logsumexp(1), x)
    assert ag.logsumexp(ag.Tensor([-np.inf, -np.inf])).data == -np.inf
    assert ag.softmax(ag.Tensor(np.ones((2, 0)))).shape == (2, 0)


def test_the_power_of_zero():
    agree(lambda a: a**2, lambda t: t**2, np.array([0.0, -1.0, 2.0]))
    agree(lambda a: a**0, lambda t: t**0, np.array([0.0, -1.0, 2.0]))
    agree(ag.power, torch.pow, np.array([0.0, 0.0, 3.0]), np.array([2.0, 1.0, 0.0]))


CHECKED = [
    *(ag.exp, ag.tanh, ag.sigmoid, ag.gelu, ag.erf, ag.sin, ag.cos, ag.square, ag.negative, ag.abs),
    *(ag.relu, ag.sum, ag.mean, ag.var, ag.norm, ag.max, ag.min, ag.softmax, ag.log_softmax),
    *(ag.logsumexp, ag.cumsum, ag.transpose, ag.tril, ag.triu, ag.squeeze),
    *(lambda x: ag.log(x * x + 1.0), lambda x: ag.sqrt(x * x + 1.0), lambda x: x[::-1, [0, 0, 2]]),
    *(lambda x: ag.stack([x, x * x], 1), lambda x: ag.split(x, 2, axis=0)[1]),
    *(
        lambda x: ag.clip(x, -1.0, 0.5),
        lambda x: ag.reshape(x, (5, 2)),
        lambda x: ag.moveaxis(x, 0, 1),
    ),
    *(lambda x: ag.broadcast_to(x, (3, 2, 5)), lambda x: ag.expand_dims(x, 1)),
    *(lambda x: ag.take(x, [1, 1], 0), lambda x: ag.swapaxes(x, 0, 1) % 0.7, lambda x: 1.5**x),
]
CHECKED_PAIRS = [
    *(ag.add, ag.subtract, ag.multiply, ag.maximum, ag.minimum),
    *(lambda a, b: a / (b * b + 1.0), lambda a, b: (a * a + 1.0) ** b, lambda a, b: a @ b.T),
    *(lambda a, b: ag.where(np.eye(2, 5) > 0, a, b), lambda a, b: ag.concatenate([a, b], 1)),
    *(
        lambda a, b: ag.einsum("ij,kj->ik", a, b),
        lambda a, b: ag.take_along_axis(a, [[0], [1]], 1) * b,
    ),
]


@pytest.mark.parametrize("function", CHECKED)
def test_gradcheck_of_one(function):
    assert ag.gradcheck(function, np.random.default_rng(3).standard_normal((2, 5))) < 1e-6


@pytest.mark.parametrize("function", CHECKED_PAIRS)
def test_gradcheck_of_two(function):
    rng = np.random.default_rng(3)
    assert ag.gradcheck(function, rng.standard_normal((2, 5)), rng.standard_normal((2, 5))) < 1e-6


def test_every_public_function_is_among_the_tested():
    tested = Path(__file__).read_text(encoding="utf-8")
    apart = {"Tensor", "nn", "optim", "gradcheck", "draw", "Drawing", "keep_pages", "record"}
    for name in set(ag.__all__) - apart - {"getitem"}:
        assert f"ag.{name}" in tested, name


def test_a_tuple_in_an_index_may_repeat():
    x = ag.Tensor(np.arange(6.0).reshape(3, 2))
    ag.sum(x[(0, 0, 1), :]).backward()
    np.testing.assert_array_equal(x.grad, [[2, 2], [1, 1], [0, 0]])
    assert x[[]].shape == (0, 2)


@pytest.mark.parametrize(
    ("function", "values", "wanted"),
    [
        (lambda x: ag.relu(x - 1), [0.0, 5.0], [0.0, 0.25]),
        (lambda x: ag.clip(x, 0.0, None), [-1.0, 4.0], [0.0, 0.25]),
    ],
    ids=["relu", "clip"],
)
def test_what_is_blocked_stays_blocked_under_an_infinite_gradient(function, values, wanted):
    x = ag.Tensor(values)
    with np.errstate(divide="ignore"):
        ag.sum(ag.sqrt(function(x))).backward()
    np.testing.assert_allclose(x.grad, wanted)


def test_bounds_of_clip_get_their_gradient():
    arrays = [np.array([-2.0, 0.5, 3.0]), np.array([-1.0, 0.0, 0.0]), np.array([1.0, 1.0, 2.0])]
    ours = [ag.Tensor(a) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    weights = np.array([1.0, 2.0, 3.0])
    ag.sum(ag.clip(*ours) * weights).backward()
    (torch.clamp(*theirs) * torch.tensor(weights)).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.grad, b.grad.numpy())


@pytest.mark.parametrize("number", [np.int64(3), np.int32(3), 3, np.float64(3), True])
def test_no_number_widens_float32(number):
    x = ag.Tensor(np.ones(3, np.float32))
    assert (x * number).dtype == (number * x).dtype == np.float32


def test_a_number_alone_keeps_its_type():
    assert ag.Tensor(np.int32(3)).dtype == np.int32
    assert ag.Tensor(np.float64(3)).dtype == np.float64


def test_take_refuses_an_axis_that_is_not_there():
    x = ag.Tensor(np.arange(24.0).reshape(2, 3, 4))
    with pytest.raises(ValueError, match=r"^take does not fit: .*out of bounds"):
        ag.take(x, [0], axis=3)
    bools = np.array([True, False])
    np.testing.assert_array_equal(ag.take(x, bools, axis=0).data, np.take(x.data, bools, axis=0))


def test_errors_of_max_name_it():
    with pytest.raises(ValueError, match=r"^max does not fit"):
        ag.max(ag.Tensor([1.0]), axis=5)


def test_numpys_options_are_not_taken_for_ours():
    x = ag.Tensor(np.arange(6.0).reshape(2, 3))
    with pytest.raises(TypeError, match=r"np.norm of a Tensor takes what follows the axis by name"):
        np.linalg.norm(x, 1)
    for call in (np.sum, np.argmax):
        with pytest.raises(TypeError, match="by name"):
            call(x, 0, None)
    assert np.sum(x, 0).shape == (3,)
    assert np.max(x, axis=0, keepdims=True).shape == (1, 3)


def test_softmax_of_integers():
    np.testing.assert_allclose(ag.softmax(ag.Tensor([1, 1])).data, [0.5, 0.5])


@pytest.mark.parametrize(
    ("x", "low", "high", "wanted"),
    [
        (5.0, 1.0, 1.0, (0, 0, 1)),
        (-5.0, 1.0, 1.0, (0, 1, 0)),
        (1.0, 1.0, 1.0, (1, 0, 0)),
        (1.0, 2.0, 1.0, (0, 0, 1)),
        (-5.0, 2.0, 1.0, (0, 0, 1)),
    ],
)
def test_clip_gives_its_gradient_once_where_bounds_meet_or_cross(x, low, high, wanted):
    inputs = [ag.Tensor(v) for v in (x, low, high)]
    ag.clip(*inputs).backward()
    assert tuple(float(v.grad) for v in inputs) == wanted


def test_gradients_of_exponents_stay_narrow():
    x, seen = ag.Tensor(np.ones(3, np.float32)), []
    same = ag.record("same", x.data, (x, lambda g: seen.append(g.dtype) or g))
    ag.sum(2**same + 0.5**same).backward()
    assert seen == [np.float32]


def test_concatenate_takes_any_iterator():
    x = ag.Tensor([1.0, 2.0])
    joined = ag.concatenate(part * 2.0 for part in (x, x))
    ag.sum(joined).backward()
    assert joined.tolist() == [2, 4, 2, 4]
    assert x.grad.tolist() == [4, 4]


def test_take_along_axis_refuses_another_number_of_axes():
    x = ag.Tensor(np.arange(6.0).reshape(2, 3))
    with pytest.raises(ValueError, match=r"^take_along_axis does not fit: .* 1 axes .* 2"):
        ag.take_along_axis(x, [0, 1, 1], axis=0)


@pytest.mark.parametrize("function", [ag.logsumexp, ag.log_softmax])
@pytest.mark.parametrize("values", [[1, 3], [True, False]])
def test_functions_of_integers_are_those_of_floats(function, values):
    ours, floats = function(ag.Tensor(values)), function(ag.Tensor(np.array(values, float)))
    np.testing.assert_allclose(ours.data, floats.data)


def test_an_index_of_another_library_may_repeat():
    x = ag.Tensor([1.0, 2.0, 3.0])
    ag.sum(x[torch.tensor([0, 0, 1])] + x[range(3)]).backward()
    np.testing.assert_array_equal(x.grad, [3, 2, 1])


@pytest.mark.parametrize(
    "function", [ag.sum, ag.mean, ag.negative, lambda xs: xs @ ag.Tensor([1.0, 2.0])]
)
def test_a_list_of_tensors_does_not_lose_their_gradients(function):
    x = ag.Tensor([1.0, 2.0])
    for xs in ([x[0] * x[1], 3.0], (3.0, x[0])):
        with pytest.raises(TypeError, match=r"would lose the gradients .* ag.stack"):
            function(xs)
    with pytest.raises(TypeError, match=r"would lose the gradients .* ag.stack"):
        ag.multiply(x, [[x[0], x[1]]])
    assert function([3.0, ag.Tensor(1)]).shape in ((), (2,))


def test_numpy_may_ask_for_sizes():
    x = ag.Tensor(np.ones((2, 3)))
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((2, 3), 2, 6)


def test_einsum_takes_a_diagonal_whose_dots_broadcast():
    a, b = numbers((3, 3, 1), "any", 0), numbers((3, 2), "any", 1)
    agree(
        lambda x, y: ag.einsum("ii...,i...->...", x, y),
        lambda x, y: torch.einsum("ii...,i...->...", x, y),
        *(a, b),
    )


@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
def test_the_mean_of_half_precision_does_not_leave_its_range(axis):
    x = ag.Tensor(np.full((2000, 3), 100, np.float16))
    out = ag.mean(x, axis=axis)
    assert out.dtype == np.float16
    assert (out.data == 100).all()
    ag.sum(out).backward()
    np.testing.assert_array_equal(x.grad, np.float16(1) / np.float16(x.size // max(out.size, 1)))


def test_an_index_may_be_whatever_counts_as_an_integer():
    class Place:
        def __index__(self):
            return 2

    x = ag.Tensor([1.0, 2.0, 3.0])
    (x[Place()] * x[np.int64(1)]).backward()
    np.testing.assert_array_equal(x.grad, [0, 3, 2])


def test_the_mean_of_opposite_infinities_is_no_number():
    assert np.isnan(ag.mean(ag.Tensor([np.inf, -np.inf])).item())
