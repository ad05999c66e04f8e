"""Code written for the array API standard, and einops, on Tensors."""

import subprocess
import sys

import array_api_compat
import einops
import numpy as np
import pytest
import torch

import querykey.ag as ag

NEEDED = [
    *"asarray zeros ones full arange where exp log sum max min sqrt abs matmul".split(),  # noqa: SIM905
    *"matrix_transpose permute_dims reshape expand_dims squeeze broadcast_to concat stack".split(),  # noqa: SIM905
    *"take take_along_axis cumulative_sum isfinite isnan isinf logical_and logical_or".split(),  # noqa: SIM905
    *"logical_not logical_xor equal not_equal less less_equal greater greater_equal argmax".split(),  # noqa: SIM905
    *"astype result_type isdtype finfo ones_like zeros_like tril triu maximum minimum tanh".split(),  # noqa: SIM905
    *"any all pow sin cos float32 float64 int64 bool mean multiply divide add subtract".split(),  # noqa: SIM905
    *"negative full_like sign floor clip pi inf nan newaxis e moveaxis square var std flip".split(),  # noqa: SIM905
    *"roll unstack sort argsort linspace eye iinfo can_cast broadcast_arrays meshgrid".split(),  # noqa: SIM905
    *"remainder round vecdot count_nonzero".split(),  # noqa: SIM905
]


def reference_attention(q, k, v, causal):
    """Softmax attention as the standard spells it: no name here is NumPy's or ours."""
    xp = array_api_compat.array_namespace(q, k, v)
    scores = xp.matmul(q, xp.matrix_transpose(k)) / xp.sqrt(xp.asarray(q.shape[-1], dtype=q.dtype))
    rows = xp.expand_dims(xp.arange(q.shape[-2]), axis=-1)
    seen = (rows >= xp.arange(k.shape[-2])) | xp.asarray(not causal)
    scores = xp.where(seen, scores, xp.asarray(-xp.inf, dtype=scores.dtype))
    top = xp.max(scores, axis=-1, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    weights = xp.exp(scores - top)
    weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    return xp.matmul(weights, v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_reference_attention_runs_and_has_gradients(causal, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 3, 7, 5)).astype(dtype) for _ in range(3)]
    ours = [ag.Tensor(a) for a in arrays]
    theirs = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    out = reference_attention(*ours, causal)
    want = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=causal)
    assert isinstance(out, ag.Tensor)
    assert out.dtype == np.dtype(dtype)
    rtol = 1e-10 if dtype == "float64" else 2e-5
    np.testing.assert_allclose(out.data, want.detach().numpy(), rtol=rtol, atol=rtol)
    ag.sum(out * out).backward()
    (want * want).sum().backward()
    for a, t in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.grad, t.grad.numpy(), rtol=rtol, atol=rtol)


def test_the_namespace_has_what_is_needed():
    xp = array_api_compat.array_namespace(ag.Tensor([1.0]))
    assert [name for name in NEEDED if not hasattr(xp, name)] == []


SAME = [  # (name, arguments, options): the same in our namespace and in NumPy's
    ("any", (np.array([[True, False], [False, False]]),), {"axis": 1}),
    ("all", (np.array([[True, False], [True, True]]),), {"axis": 1, "keepdims": True}),
    ("cumulative_sum", (np.arange(6.0).reshape(2, 3),), {"axis": 1, "include_initial": True}),
    ("cumulative_sum", (np.arange(4.0),), {}),
    ("std", (np.arange(6.0).reshape(2, 3),), {"axis": 0, "correction": 1.0}),
    ("argsort", (np.array([3.0, 1.0, 3.0, 2.0]),), {}),
    ("sort", (np.array([[3.0, 1.0], [0.0, 2.0]]),), {}),
    ("roll", (np.arange(6).reshape(2, 3), (1, -1)), {"axis": (0, 1)}),
    ("flip", (np.arange(6).reshape(2, 3),), {"axis": 1}),
    ("tril", (np.ones((3, 4)),), {"k": -1}),
    ("triu", (np.ones((3, 4)),), {"k": 1}),
    ("eye", (3, 4), {"k": 1}),
    ("full", ((2, 3), 7), {}),
    ("full_like", (np.ones(3, "float32"), 7), {}),
    ("linspace", (0.0, 1.0, 5), {"endpoint": False}),
    ("arange", (1, 7, 2), {}),
    ("arange", (4,), {}),
    ("matrix_transpose", (np.arange(6).reshape(1, 2, 3),), {}),
    ("permute_dims", (np.arange(6).reshape(1, 2, 3), (2, 0, 1)), {}),
    ("vecdot", (np.arange(6.0).reshape(2, 3), np.arange(3.0)), {}),
    ("sum", (np.ones((2, 3), "float32"),), {"dtype": np.float64}),
    ("argmax", (np.array([[1, 5], [7, 2]]),), {"axis": 1}),
    ("count_nonzero", (np.array([[1, 0], [7, 2]]),), {"axis": 1}),
    ("logical_xor", (np.array([True, True]), np.array([True, False])), {}),
    ("remainder", (np.array([5.0, -5.0]), np.array([3.0, 3.0])), {}),
    ("isinf", (np.array([1.0, np.inf, np.nan]),), {}),
    ("repeat", (np.arange(6).reshape(2, 3), 2), {"axis": 1}),
    ("repeat", (np.arange(3), np.array([2, 0, 1])), {}),
    ("tile", (np.arange(6).reshape(2, 3), (2, 1, 2)), {}),
    ("log1p", (np.array([0.5, 1e-9]),), {}),
    ("floor", (np.array([1.5, -1.5]),), {}),
]


@pytest.mark.parametrize(("name", "args", "options"), SAME)
def test_functions_give_what_numpy_gives(name, args, options):
    xp = ag.Tensor([1.0]).__array_namespace__()
    ours = getattr(xp, name)(
        *[xp.asarray(a) if isinstance(a, np.ndarray) else a for a in args], **options
    )
    want = getattr(np, name)(*args, **options)
    assert isinstance(ours, ag.Tensor)
    assert ours.dtype == want.dtype
    np.testing.assert_array_equal(ours.data, want)


def test_types_and_their_limits():
    xp, x = ag.Tensor([1.0]).__array_namespace__(), ag.Tensor(np.ones(2, "float32"))
    assert xp.result_type(x, xp.float64) == xp.float64
    assert xp.result_type(x, 1.0) == xp.float32
    assert xp.finfo(x.dtype).eps == np.finfo("float32").eps
    assert xp.iinfo(xp.int32).max == 2**31 - 1
    assert xp.isdtype(x.dtype, "real floating")
    assert not xp.isdtype(xp.bool, ("integral", "real floating"))
    assert xp.can_cast(x, xp.float64)
    assert xp.astype(x, xp.int64).dtype == xp.int64
    assert not xp.astype(x, xp.int64).requires_grad
    assert not xp.zeros(3).requires_grad
    assert x.to_device(x.device) is x
    assert [array_api_compat.device(x), array_api_compat.size(x)] == ["cpu", 2]


def test_copies_and_reorderings_pass_gradients_on():
    xp, x = ag.Tensor([1.0]).__array_namespace__(), np.array([[3.0, 1.0, 2.0], [0.0, 5.0, -1.0]])
    ag.gradcheck(lambda a: xp.asarray(a, copy=True) * a, x)
    ag.gradcheck(lambda a: xp.sort(a, axis=1, descending=True) * np.arange(3.0), x)
    ag.gradcheck(lambda a: xp.roll(a, 1, axis=1) * a, x)
    ag.gradcheck(lambda a: xp.flip(a, axis=0) * a, x)
    ag.gradcheck(lambda a: xp.cumulative_sum(a, axis=1, include_initial=True) ** 2, x)
    ag.gradcheck(lambda a: xp.unstack(a, axis=1)[1] * xp.broadcast_arrays(a, a[0])[1][:, 2], x)
    ag.gradcheck(lambda a: xp.std(a, axis=1), x)
    ag.gradcheck(lambda a: xp.repeat(a, 2, axis=1) ** 2 * np.arange(6.0), x)
    ag.gradcheck(lambda a: xp.tile(a, (2, 2)) * np.arange(24.0).reshape(4, 6), x)
    ag.gradcheck(lambda a: xp.log1p(a * a) + xp.expm1(a) + xp.reciprocal(a * a + 1.0), x)
    ag.gradcheck(lambda a: xp.astype(a, xp.float64, copy=False, device="cpu") * a, x)
    descending = xp.argsort(xp.asarray(np.array([1.0, 3.0, 1.0])), descending=True)
    assert descending.tolist() == [1, 0, 2]


def test_comparisons_and_booleans_are_constants():
    x = ag.Tensor([1.0, 2.0, 3.0])
    inside = (x > 1) & ~(x >= 3) | (x == 7)
    assert inside.tolist() == [False, True, False]
    assert not inside.requires_grad
    assert (np.array([1, 5, 3]) < x).tolist() == [False, False, False]
    assert (x != 2).tolist() == [True, False, True]
    assert (7 // ag.Tensor([2, 3])).tolist() == [3, 2]
    assert (x // 2).tolist() == [0, 1, 1]
    assert hash(x) != hash(ag.Tensor([1.0, 2.0, 3.0]))


def test_einops_verbs_have_gradients():
    x = np.random.default_rng(0).standard_normal((2, 6, 3))
    verbs = [
        (lambda t: einops.rearrange(t, "b (h d) c -> b c h d", h=2) ** 2),
        (lambda t: einops.reduce(t, "b (h d) c -> b h c", "mean", h=2)),
        (lambda t: einops.reduce(t, "b s c -> c", "max")),
        (lambda t: einops.reduce(t, "b s c -> b", "sum")),
        (lambda t: einops.repeat(t, "b s c -> b s (c k)", k=3) ** 2),
        (lambda t: einops.einsum(t, t, "b i c, b j c -> b i j")),
        (lambda t: einops.rearrange([t, t * 2], "n b s c -> b (n s) c") ** 2),
        (lambda t: einops.pack([t, t * 2], "b * c")[0] ** 2),
    ]
    for verb in verbs:
        ag.gradcheck(verb, x)
    want = einops.rearrange(x, "b (h d) c -> b c h d", h=2)
    assert np.array_equal(einops.rearrange(ag.Tensor(x), "b (h d) c -> b c h d", h=2).data, want)
    assert einops.reduce(ag.Tensor(x) > 0, "b s c -> b", "any").tolist() == [True, True]
    with pytest.raises(Exception, match="no product over axes"):
        einops.reduce(ag.Tensor(x), "b s c -> b", "prod")


ORDERS = [
    "import einops; import querykey.ag as ag",
    "import querykey.ag as ag; x = 0; import einops",
]


@pytest.mark.parametrize("order", ORDERS)
def test_einops_may_be_imported_before_or_after(order):
    code = (
        f"{order}\nassert einops.rearrange(ag.Tensor([[1.0, 2.0]]), 'a b -> b a').shape == (2, 1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_import_loads_numpy_alone():
    code = (
        "import sys, querykey.ag\n"
        "heavy = {'torch', 'einops', 'sympy', 'matplotlib', 'scipy', 'array_api_compat', 'jax'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_axis_that_is_not_there_is_an_index_error():
    x = ag.Tensor(np.ones((2, 3)))
    for call in (lambda: ag.expand_dims(x, 7), lambda: ag.sum(x, 2), lambda: x[5]):
        with pytest.raises(IndexError, match="does not fit"):
            call()


def test_no_derivative_is_compared_where_a_function_is_not_finite():
    with pytest.raises(ValueError, match="compares at finite numbers; input 1 has others"):
        ag.gradcheck(ag.add, np.ones(2), np.array([1.0, np.nan]))
    with (
        pytest.raises(ValueError, match="is infinite or NaN at the inputs"),
        np.errstate(all="ignore"),
    ):
        ag.gradcheck(ag.log, np.zeros(2))
