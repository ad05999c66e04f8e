"""Every function of the array API keeps its gradient, returns what has none, or refuses."""

import numpy as np
import pytest
import torch

import querykey.ag as ag
from querykey.errors import QuerykeyError

XP = ag.Tensor([1.0]).__array_namespace__()
RNG = np.random.default_rng(0)
WIDE = RNG.standard_normal((3, 4))
SHARE = RNG.uniform(-0.9, 0.9, (3, 4))  # inside (-1, 1)
ABOVE = RNG.uniform(1.1, 3.0, (3, 4))
ZEROS = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 5.0], [1.0, -2.0, 0.5]])
SQUARE = RNG.standard_normal((2, 3, 3))


def symmetric(a):
    return a @ XP.matrix_transpose(a) + np.eye(a.shape[-1])


# One call for every name, at a place where the function is smooth; its gradient is that of finite
# differences.
SMOOTH = {
    **dict.fromkeys("acos asin atanh".split(), (lambda f, a: f(a), SHARE)),  # noqa: SIM905
    **dict.fromkeys("acosh log log10 log2 sqrt reciprocal".split(), (lambda f, a: f(a), ABOVE)),  # noqa: SIM905
    **dict.fromkeys(
        "abs absolute asinh atan conj cos cosh exp expm1 negative positive real sin sinh square "  # noqa: SIM905
        "tan tanh floor ceil trunc round sign".split(),
        (lambda f, a: f(a) * 1.0, WIDE),
    ),
    "arccos": (lambda f, a: f(a), SHARE),
    "arccosh": (lambda f, a: f(a), ABOVE),
    "arcsin": (lambda f, a: f(a), SHARE),
    "arcsinh": (lambda f, a: f(a), WIDE),
    "arctan": (lambda f, a: f(a), WIDE),
    "arctan2": (lambda f, a: f(a, x2=a[0] + 5.0), WIDE),
    "arctanh": (lambda f, a: f(a), SHARE),
    "log1p": (lambda f, a: f(a), SHARE),
    **dict.fromkeys(
        "add subtract multiply divide maximum minimum hypot logaddexp atan2 copysign".split(),  # noqa: SIM905
        (lambda f, a: f(a, x2=a[0] * 0.7 + 3.0), WIDE),
    ),
    "pow": (lambda f, a: f(a, a[0]), ABOVE),
    "power": (lambda f, a: f(a, a[0]), ABOVE),
    "remainder": (lambda f, a: f(a * 7.0, a[0] * 0.31 + 2.0), ABOVE),
    "floor_divide": (lambda f, a: f(a * 7.0, 2.0) + a, ABOVE),
    "asarray": (lambda f, a: f(a, copy=True) * a, WIDE),
    "astype": (lambda f, a: f(a, XP.float64), WIDE),
    "broadcast_arrays": (lambda f, a: f(a, a[0])[1], WIDE),
    "broadcast_to": (lambda f, a: f(a, (2, 3, 4)), WIDE),
    "clip": (lambda f, a: f(a, min=-0.5, max=0.5), WIDE),
    "concat": (lambda f, a: f([a, a * 2.0], axis=None), WIDE),
    "cumulative_prod": (lambda f, a: f(a, axis=1, include_initial=True), ZEROS),
    "cumulative_sum": (lambda f, a: f(a, axis=1, include_initial=True), WIDE),
    "diff": (lambda f, a: f(a, n=2, prepend=a[:, :1]), WIDE),
    "expand_dims": (lambda f, a: f(a, axis=1), WIDE),
    "flip": (lambda f, a: f(a), WIDE),
    "logsumexp": (lambda f, a: f(a, axis=1), WIDE),
    "matmul": (lambda f, a: f(a, XP.matrix_transpose(a)), WIDE),
    "matrix_transpose": (lambda f, a: f(a), WIDE),
    "max": (lambda f, a: f(a, axis=1), WIDE),
    "mean": (lambda f, a: f(a, axis=1), WIDE),
    "meshgrid": (lambda f, a: f(a[0], a[1])[0] * f(a[0], a[1])[1], WIDE),
    "min": (lambda f, a: f(a, axis=1), WIDE),
    "moveaxis": (lambda f, a: f(a, 0, 1), WIDE),
    "permute_dims": (lambda f, a: f(a, (1, 0)), WIDE),
    "prod": (lambda f, a: f(a, axis=1), ZEROS),
    "repeat": (lambda f, a: f(a, 2, axis=1), WIDE),
    "reshape": (lambda f, a: f(a, (2, 6), copy=True), WIDE),
    "roll": (lambda f, a: f(a, 1), WIDE),
    "sort": (lambda f, a: f(a), WIDE),
    "squeeze": (lambda f, a: f(a[:1], 0), WIDE),
    "stack": (lambda f, a: f([a, a]), WIDE),
    "std": (lambda f, a: f(a, axis=1, correction=1), WIDE),
    "sum": (lambda f, a: f(a, axis=1, dtype=XP.float64), WIDE),
    "take": (lambda f, a: f(a, np.array([1, 1]), axis=1), WIDE),
    "take_along_axis": (lambda f, a: f(a, np.array([[1], [1], [0]]), axis=1), WIDE),
    "tensordot": (lambda f, a: f(a, a[:2], axes=((1,), (1,))), WIDE),
    "tile": (lambda f, a: f(a, (2, 1)), WIDE),
    "tril": (lambda f, a: f(a), WIDE),
    "triu": (lambda f, a: f(a), WIDE),
    "unique_all": (lambda f, a: f(a).values, WIDE),
    "unique_counts": (lambda f, a: f(a).values, WIDE),
    "unique_inverse": (lambda f, a: f(a).values, WIDE),
    "unique_values": (lambda f, a: f(a), WIDE),
    "unstack": (lambda f, a: f(a)[1], WIDE),
    "var": (lambda f, a: f(a, axis=1), WIDE),
    "vecdot": (lambda f, a: f(a, a[0]), WIDE),
    "where": (lambda f, a: f(a.data > 0, a, a * 2.0), WIDE),
    "linalg.cholesky": (lambda f, a: f(symmetric(a), upper=True), SQUARE),
    "linalg.cross": (lambda f, a: f(a[0], a[1]), SQUARE),
    "linalg.det": (lambda f, a: f(a), SQUARE),
    "linalg.diagonal": (lambda f, a: f(a, offset=1), SQUARE),
    "linalg.inv": (lambda f, a: f(a), SQUARE),
    "linalg.matmul": (lambda f, a: f(a, a), SQUARE),
    "linalg.matrix_norm": (lambda f, a: f(a, ord=1) + f(a), SQUARE),
    "linalg.matrix_power": (lambda f, a: f(a, -3) + f(a, 2) + f(a, 0), SQUARE),
    "linalg.matrix_transpose": (lambda f, a: f(a), SQUARE),
    "linalg.outer": (lambda f, a: f(a[0], a[1]), WIDE),
    "linalg.slogdet": (lambda f, a: f(a)[1], SQUARE),
    "linalg.solve": (lambda f, a: f(a, a[0]) + XP.sum(f(a, a[0, 0])), SQUARE),
    "linalg.tensordot": (lambda f, a: f(a, a, axes=0), WIDE[:2, :2]),
    "linalg.trace": (lambda f, a: f(a), SQUARE),
    "linalg.vecdot": (lambda f, a: f(a, a), WIDE),
    "linalg.vector_norm": (
        lambda f, a: f(a, axis=0) + f(a, ord=3) + f(a, ord=1) * f(a, ord=np.inf),
        WIDE,
    ),
}
# Their answers are no floats, or no arrays, so that there is no gradient to lose.
NO_FLOATS = {
    "all",
    "any",
    "argmax",
    "argmin",
    "argsort",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "can_cast",
    "count_nonzero",
    "equal",
    "finfo",
    "greater",
    "greater_equal",
    "iinfo",
    "isdtype",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "nonzero",
    "not_equal",
    "result_type",
    "searchsorted",
    "signbit",
    "linalg.matrix_rank",
    "__array_namespace_info__",
}
# What is made of sizes alone, or only looks at the shape and type of what it is given.
NEW = set("empty empty_like eye imag ones ones_like zeros zeros_like".split())  # noqa: SIM905
# Given a Tensor that wants a gradient, they refuse it.
REFUSES = {
    "arange": lambda f, a: f(a),
    "from_dlpack": lambda f, a: f(a),
    "full": lambda f, a: f((2,), a),
    "full_like": lambda f, a: f(np.ones(2), a),
    "linspace": lambda f, a: f(0.0, a, 3),
    "nextafter": lambda f, a: f(a, a),
    "linalg.eigh": lambda f, a: f(XP.reshape(a, (1, 1))),
    "linalg.eigvalsh": lambda f, a: f(XP.reshape(a, (1, 1))),
    "linalg.pinv": lambda f, a: f(XP.reshape(a, (1, 1))),
    "linalg.qr": lambda f, a: f(XP.reshape(a, (1, 1))),
    "linalg.svd": lambda f, a: f(XP.reshape(a, (1, 1))),
    "linalg.svdvals": lambda f, a: f(XP.reshape(a, (1, 1))),
}


def function(name):
    room, _, own = name.rpartition(".")
    return getattr(getattr(XP, room) if room else XP, own)


def public():
    names = {name for name in XP.__all__ if callable(getattr(XP, name))}
    theirs = vars(XP.linalg)
    own = {n for n, f in theirs.items() if callable(f) and not n.startswith("_")}
    shared = {"Tensor", "Any", "Callable", "raw", "record", "primitive", "getitem", "namedtuple"}
    helpers = {"decomposition", "refuse_tensors_that_want", "Axis", "QuerykeyError"}
    results = {n for n in own if n.endswith("Result")}
    return names | {f"linalg.{n}" for n in own - shared - helpers - results}


def test_every_name_of_the_namespace_is_in_one_list():
    lists = [set(SMOOTH), NO_FLOATS, NEW, set(REFUSES)]
    assert set().union(*lists) == public()
    assert sum(map(len, lists)) == len(set().union(*lists))


@pytest.mark.parametrize("name", SMOOTH)
def test_a_gradient_is_that_of_finite_differences(name):
    call, x = SMOOTH[name]
    f = function(name)
    ag.gradcheck(lambda a: call(f, a) ** 2 if name != "unique_all" else call(f, a), x)


@pytest.mark.parametrize("name", REFUSES)
def test_what_has_no_derivative_refuses_a_tensor_that_wants_one(name):
    with pytest.raises(QuerykeyError, match=r"no derivative|lose the gradient"):
        REFUSES[name](function(name), ag.Tensor(3.0))
    REFUSES[name](function(name), ag.Tensor(3.0).detach())


def test_a_list_of_tensors_is_not_made_a_constant():
    x = ag.Tensor([1.0, 2.0])
    for make in (XP.asarray, ag.Tensor):
        with pytest.raises(QuerykeyError, match=r"would lose the gradients .* ag\.stack"):
            make([x[0], x[1]])


def test_meshgrid_keeps_the_gradient_of_both_places():
    x = ag.Tensor([1.0, 2.0])
    one, other = XP.meshgrid(x, x)
    ag.sum(one + other).backward()
    np.testing.assert_array_equal(x.grad, [4.0, 4.0])


@pytest.mark.parametrize("values", [[2.0, 2.0, 2.0], [1.0, 2.0, 4.0], [7.0, 7.0, 7.0, 7.0]])
def test_std_has_the_gradient_of_torch(values):
    ours, theirs = ag.Tensor(values), torch.tensor(values, dtype=torch.float64, requires_grad=True)
    out = ag.std(ours, correction=1)
    out.backward()
    theirs.std().backward()
    assert out.item() == pytest.approx(float(theirs.detach().std()), abs=1e-15)
    np.testing.assert_allclose(ours.grad, theirs.grad, atol=1e-15)


@pytest.mark.parametrize("name", ["var", "std", "norm"])
def test_half_precision_does_not_overflow_within(name):
    v = np.array([300.0, -300.0, 200.0, 100.0], np.float16)
    x, exact = ag.Tensor(v / 4), ag.Tensor((v / 4).astype(np.float64))
    big = getattr(ag, "norm")(ag.Tensor(v)) if name == "norm" else None  # noqa: B009
    for tensor in (x, exact):
        getattr(ag, name)(tensor).backward()
    got, want = getattr(ag, name)(x), getattr(ag, name)(exact)
    assert got.dtype == np.float16
    assert got.item() == pytest.approx(want.item(), rel=1e-3)
    np.testing.assert_allclose(x.grad, exact.grad, rtol=2e-3)
    assert big is None or big.item() == pytest.approx(479.6, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_exponentials_of_one_array_are_a_softmax_too(dtype):
    v = np.array([[1.0, 900.0, 899.0], [0.0, 1.0, 2.0]], dtype)
    x, y = ag.Tensor(v), ag.Tensor(v)
    out = ag.exp(x) / ag.sum(ag.exp(x), axis=-1, keepdims=True)
    want = ag.softmax(y)
    np.testing.assert_allclose(out.data, want.data, rtol=1e-6)
    weights = np.arange(6.0).reshape(2, 3)
    ag.sum(out * weights).backward()
    ag.sum(want * weights).backward()
    np.testing.assert_allclose(x.grad, y.grad, rtol=1e-5, atol=1e-7)
    plain = ag.exp(v) / ag.sum(ag.exp(v), axis=-1, keepdims=True)
    np.testing.assert_allclose(plain.data, want.data, rtol=1e-6)


def test_exponentials_of_different_arrays_are_no_softmax():
    x, y = ag.Tensor([1.0, 2.0]), ag.Tensor([1.0, 2.0])
    (ag.exp(x) / ag.sum(ag.exp(y)))[0].backward()
    assert y.grad is not None
    x = ag.Tensor([1.0, 2.0], requires_grad=False)
    first = ag.exp(x)
    x.data[0] = 5.0
    out = first / ag.sum(ag.exp(x))
    np.testing.assert_allclose(out.data, np.exp([1.0, 2.0]) / (np.exp(5) + np.exp(2)))


def test_a_computed_tensor_can_be_pickled():
    import pickle

    x = ag.Tensor([1.0, 2.0], label="x")
    y = x * 3.0
    other = pickle.loads(pickle.dumps(y))
    np.testing.assert_array_equal(other.data, [3.0, 6.0])
    assert (other.op, other.requires_grad, other.label) == ("multiply", True, None)
    ag.sum(other * other).backward()  # a leaf: what it was computed from stayed behind
    np.testing.assert_array_equal(other.grad, [6.0, 12.0])
    assert x.grad is None


BAD_RATES = [-1, float("nan"), float("inf"), "a", None, True]


@pytest.mark.parametrize("rate", BAD_RATES)
@pytest.mark.parametrize("kind", [ag.optim.SGD, ag.optim.Adam])
def test_an_optimizer_refuses_what_is_no_rate(kind, rate):
    with pytest.raises(QuerykeyError, match="lr is a"):
        kind([ag.Tensor([1.0])], lr=rate)


@pytest.mark.parametrize("value", [None, "a", 1j, [1j], {}, object(), np.array(["a"]), print])
@pytest.mark.parametrize("f", [ag.exp, ag.sum, ag.Tensor, XP.asarray, lambda v: ag.add(1.0, v)])
def test_what_is_no_array_of_numbers_is_refused(f, value):
    with pytest.raises(QuerykeyError, match="real numbers and booleans"):
        f(value)
