"""What a backend may not do at the edge of what it serves: NaN, zeros or old answers in silence."""

import re
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

import querykey as qk
from querykey.attention.biases import bucket
from querykey.attention.positions import sinusoids
from querykey.backends.dispatch import BackendError
from querykey.nn import AttentionConfig, MultiHeadAttention

QUADRATIC = qk.Kernel(qk.Quadratic())


def drawn(*shapes, dtype=torch.float64, grad=False):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_(grad)
        for shape in shapes
    ]


@pytest.mark.parametrize("scale", [-1.0, 0.0])
def test_any_scale_is_causal(scale):
    q, k, v = drawn(*[(1, 2, 5, 3)] * 3)
    spec = {"mechanism": qk.Softmax(scale=scale), "mask": qk.Causal()}
    wanted = qk.attend(q, k, v, **spec, backend="reference")
    torch.testing.assert_close(qk.attend(q, k, v, **spec), wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own making
def test_forward_mode_through_kernels():
    q, k, v = drawn(*[(1, 1, 6, 4)] * 3)

    def outputs(q, backend="auto"):
        return qk.attend(q, k, v, mechanism=QUADRATIC, mask=qk.Causal(), backend=backend)

    wanted = torch.autograd.functional.jvp(
        lambda q: outputs(q, "reference"), q, torch.ones_like(q)
    )[1]
    torch.testing.assert_close(torch.func.jvp(outputs, (q,), (torch.ones_like(q),))[1], wanted)
    gradient = torch.func.grad(lambda q: outputs(q).sum())(q)
    assert gradient.abs().max() > 0
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        tangent = torch.autograd.forward_ad.unpack_dual(outputs(dual)).tangent
        torch.testing.assert_close(tangent, wanted)
        with pytest.raises(BackendError, match="no derivative in forward mode"):
            outputs(dual, "chunked")


def test_forward_mode_through_softmax():
    q, k, v = drawn(*[(1, 2, 6, 4)] * 3)
    layer = MultiHeadAttention(8, AttentionConfig(heads=2), mask=qk.Causal()).double()
    x = drawn((1, 5, 8))[0]

    def outputs(q, backend="auto"):
        return qk.attend(q, k, v, mask=qk.Causal(), backend=backend)

    tangent = torch.ones_like(q)
    found = torch.func.jvp(outputs, (q,), (tangent,))[1]
    wanted = torch.autograd.functional.jvp(lambda q: outputs(q, "reference"), q, tangent)[1]
    torch.testing.assert_close(found, wanted)
    found = torch.func.hessian(lambda x: layer(x).square().sum())(x)
    assert found.shape == (*x.shape, *x.shape)
    torch.testing.assert_close(found.reshape(40, 40), found.reshape(40, 40).mT)
    with pytest.raises(BackendError, match="no derivative in forward mode"):
        torch.func.jvp(lambda q: outputs(q, "sdpa"), (q,), (tangent,))
    gradient = torch.func.grad(lambda q: outputs(q, "sdpa").sum())  # which torch's kernel has
    assert gradient(q).shape == q.shape


@pytest.mark.parametrize("mask", [qk.Causal() & qk.Global(2), qk.Global(1) & qk.Blocks(2)], ids=str)
@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_nobody_sees_what_global_positions_hide(mask, backend):
    q, k, v = drawn(*[(1, 1, 6, 4)] * 3)
    seen = torch.tensor(mask.matrix(6, 6))
    q[:, :, ~seen.any(1)] = torch.nan
    k[:, :, ~seen.any(0)] = v[:, :, ~seen.any(0)] = torch.nan
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = qk.attend(*inputs, mask=mask, backend=backend)
    out.sum().backward()
    assert all(x.isfinite().all() for x in (out, *(x.grad for x in inputs)))
    wanted = qk.attend(*(x.detach() for x in inputs), mask=mask, backend="reference")
    torch.testing.assert_close(out.detach(), wanted)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_an_empty_batch_has_an_empty_answer(make):
    x, mask = make(np.zeros((0, 1, 3, 4))), qk.Dense(make(np.zeros((0, 1, 3, 3), bool)))
    assert tuple(qk.attend(x, x, x, mask=mask).shape) == (0, 1, 3, 4)


def test_long_doubles_keep_their_digits():
    x = np.random.default_rng(0).standard_normal((3, 2, 5, 4))
    found = qk.attend(*x.astype(np.longdouble))
    assert found.dtype == np.longdouble
    assert np.abs(found - qk.attend(*x)).max() < 1e-14


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: qk.ALiBi(2.5), "the number of heads is a whole number; got 2.5"),
        (lambda: qk.Softmax(softcap="a"), "a softcap bounds the scores, so it is above 0; got a"),
        (lambda: qk.Kernel(qk.Quadratic(), "a"), "a kernel's scale is above 0; got a"),
        (
            lambda: qk.empty_state(QUADRATIC, kv_heads=0, key_dim=2, value_dim=2),
            "kv_heads is at least 1; got 0",
        ),
        (
            lambda: qk.empty_state(QUADRATIC, kv_heads=1, key_dim=-1, value_dim=2),
            "key_dim is at least 1; got -1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(wrong, said):
    with pytest.raises((TypeError, ValueError), match=f"^{said}"):
        wrong()


def test_rows_of_a_state_are_whole_and_there():
    state = qk.empty_state(QUADRATIC, batch=3, kv_heads=1, key_dim=2, value_dim=2)
    assert state.select([-1, 0]).counts == (0, 0)
    with pytest.raises(TypeError, match=r"by their numbers, or by booleans; got 0\.5"):
        state.select([0.5])
    with pytest.raises(IndexError, match="there is no row 5, there are 3"):
        state.select([5])


@pytest.mark.parametrize("tokens", [5, 600])
def test_a_second_derivative_in_chunks_is_refused(tokens):
    q, k, v = drawn((1, 2, tokens, 4), (1, 1, tokens, 4), (1, 1, tokens, 2), grad=True)
    out = qk.attend(q, k, v, mechanism=QUADRATIC, mask=qk.Causal(), backend="chunked")
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="ask for backend='reference'"):
        torch.autograd.grad(first.square().sum(), q)


@pytest.mark.parametrize("kernel", [qk.Kernel(qk.EluPlusOne()), QUADRATIC], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 8), (400, 600)])
def test_keys_that_nobody_sees_may_hold_anything(kernel, padded, queries, keys):
    q, k, v = drawn((1, 1, queries, 4), (1, 1, keys, 4), (1, 1, keys, 3))
    k[:, :, queries + 1 :] = v[:, :, queries + 1 :] = torch.nan
    for x in (q, k, v):
        x.requires_grad_()
    mask = qk.Causal() & qk.Padding(torch.arange(keys)[None] > 0) if padded else qk.Causal()
    out = qk.attend(q, k, v, mechanism=kernel, mask=mask, start=0, backend="chunked")
    out.sum().backward()
    for x in (k, v):
        assert x.grad.isfinite().all()
        assert not x.grad[:, :, queries:].any()


def test_queries_that_see_nothing_may_hold_anything():
    q, k, v = drawn((1, 1, 5, 4), (1, 1, 8, 4), (1, 1, 8, 3))
    q[:, :, :2] = torch.nan
    real = torch.arange(8)[None] >= 2
    for x in (q, k, v):
        x.requires_grad_()
    spec = {"mechanism": QUADRATIC, "mask": qk.Causal() & qk.Padding(real), "start": 0}
    out = qk.attend(q, k, v, **spec, backend="chunked")
    assert not out[:, :, :2].any()
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (k, v))
    assert not out[:, :, 2:].isnan().any()


def test_a_position_without_an_id_is_refused():
    ids = np.array([7, 7, 8])
    for start in (-1, np.array(-1)):
        with pytest.raises(ValueError, match="no id for the first query, at position -1"):
            qk.Documents(ids).matrix(3, 3, start=start)
    q, k, v = drawn(*[(3, 2)] * 3)
    with pytest.raises(ValueError, match="no id for the last query, at position 3"):
        qk.attend(q, k, v, mask=qk.Documents(torch.from_numpy(ids)), start=1)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_a_row_that_starts_where_there_is_no_id_is_refused(kind):
    q, k = drawn((2, 1, 3, 4), (2, 1, 8, 4))
    mask = qk.Documents(torch.arange(8).expand(2, -1) // 3)
    with pytest.raises(ValueError, match="no id for the last query, at position 8"):
        qk.attend(q, k, k, mask=mask, start=kind([0, 6]))
    found = qk.attend(q, k, k, mask=mask, start=kind([5, 2]))
    wanted = [
        qk.attend(q[i], k[i], k[i], mask=qk.Documents(mask.ids[i]), start=s)
        for i, s in ((0, 5), (1, 2))
    ]
    torch.testing.assert_close(found, torch.stack(wanted))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_tells_positions_apart(dtype):
    found = sinusoids(torch.arange(2000), 8, like=torch.empty(0, dtype=dtype))
    wanted = torch.from_numpy(sinusoids(np.arange(2000), 8))
    assert found.dtype == dtype
    assert (found.double() - wanted).abs().max() < torch.finfo(dtype).eps


def test_a_bias_is_not_rounded_to_half_precision():
    q, k, v = drawn(*[(1, 8, 64, 16)] * 3, dtype=torch.bfloat16)
    bias = drawn((8, 64, 64), dtype=torch.float32)[0] * 5
    exact = qk.attend(*(x.double() for x in (q, k, v)), bias=bias.double())
    for given in (bias, qk.ALiBi(8)):
        exact = qk.attend(
            *(x.double() for x in (q, k, v)),
            bias=given.double() if given is bias else given,
            backend="reference",
        )
        gaps = [
            (qk.attend(q, k, v, bias=given, backend=name).double() - exact).norm()
            for name in ("sdpa", "reference")
        ]
        assert gaps[0] < 2 * gaps[1]


def test_autocast_leaves_float64_alone_and_lengths_alike():
    q, k, v = drawn(*[(1, 1, 300, 4)] * 3)
    state = qk.empty_state(QUADRATIC, kv_heads=1, key_dim=4, value_dim=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert qk.attend(q, k, v, mechanism=QUADRATIC).dtype == torch.float64
        out, state = qk.extend(q, k, v, state)
        one, _ = qk.extend(*(x[:, :, :1] for x in (q, k, v)), state)
        assert out.dtype == one.dtype == torch.float64
        q, k, v = (x.float() for x in (q, k, v))
        state = qk.empty_state(QUADRATIC, kv_heads=1, key_dim=4, value_dim=4)
        out, state = qk.extend(q, k, v, state)
        one, _ = qk.extend(*(x[:, :, :1] for x in (q, k, v)), state)
        assert out.dtype == one.dtype == torch.float32


def test_kernels_on_the_meta_device():
    q, k, v = (torch.empty(1, 1, 5, 4, device="meta") for _ in range(3))
    assert qk.attend(q, k, v, mechanism=QUADRATIC).shape == (1, 1, 5, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_for_any_length():
    q, k, v = drawn((1, 4, 9, 4), (1, 2, 9, 4), (1, 2, 9, 4), dtype=torch.float32)

    @torch.compile(dynamic=True, fullgraph=True)
    def run(q, k, v, start):
        mask = qk.Causal() & qk.Window(3)
        return qk.attend(q, k, v, mask=mask, start=start) + qk.attend(q, k, v)

    for start in (0, 1):
        wanted = qk.attend(q, k, v, mask=qk.Causal() & qk.Window(3), start=start)
        torch.testing.assert_close(run(q, k, v, start), wanted + qk.attend(q, k, v))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_flex_reads_a_mask_as_it_is_now():
    q, k, v = drawn(*[(1, 2, 512, 8)] * 3, dtype=torch.float32)
    for kind in (torch.from_numpy, lambda array: array):
        array = np.ones((1, 512), dtype=bool)
        mask = qk.Padding(kind(array))
        with torch.inference_mode():
            qk.attend(q, k, v, mask=mask, backend="flex")
        mask.array[:, 100:] = False
        found = qk.attend(q, k, v, mask=mask, backend="flex")
        torch.testing.assert_close(found, qk.attend(q, k, v, mask=mask, backend="reference"))


def test_flex_refuses_a_learned_bias_where_it_has_no_backward():
    q, k, v = drawn(*[(1, 2, 6, 4)] * 3, dtype=torch.float32)
    with pytest.raises(BackendError, match="no backward on the CPU"):
        qk.attend(q, k, v, bias=qk.Buckets(nn.Parameter(torch.randn(32, 2))), backend="flex")


def test_states_are_chosen_by_booleans_too():
    q, k, v = (x.numpy() for x in drawn(*[(3, 1, 4, 2)] * 3))
    real = np.arange(4) < np.array([4, 2, 1])[:, None]
    state = qk.empty_state(qk.Softmax(), batch=3, kv_heads=1, key_dim=2, value_dim=2)
    _, state = qk.extend(q, k, v, state, real)
    for rows in ([True, False, True], np.array([True, False, True]), [0, 2]):
        assert state.select(rows).counts == (4, 1)
    with pytest.raises(ValueError, match="there are 3 rows, and 2 booleans"):
        state.select([True, False])


def test_bytes_of_a_state_of_the_numpy_engine():
    import querykey.ag as ag

    q, k, v = (ag.Tensor(x.numpy()) for x in drawn(*[(1, 1, 4, 2)] * 3))
    state = qk.empty_state(qk.Softmax(), kv_heads=1, key_dim=2, value_dim=2)
    _, state = qk.extend(q, k, v, state)
    assert state.nbytes >= 2 * 4 * 2 * 8


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: qk.Window(2.5), TypeError, "whole number; got 2.5"),
        (lambda: qk.Polynomial(2.5, signed=True), TypeError, "is a whole number; got 2.5"),
        (lambda: qk.RandomFeatures(2.5), TypeError, "is a whole number; got 2.5"),
        (lambda: qk.Softmax(scale="a"), TypeError, "a scale is a number"),
        (lambda: bucket(np.arange(3), 1, False), ValueError, "at least 2 buckets; got 1"),
        (lambda: bucket(np.arange(3), 3), ValueError, "at least 4 buckets; got 3"),
        (lambda: bucket(np.arange(3), 32, furthest=8), ValueError, "got 8 as the furthest"),
        (lambda: qk.Buckets([[1.0]]), TypeError, r"a table \(buckets, heads\)"),
        (lambda: state_of(mechanism=None), TypeError, "mechanism wants"),
        (lambda: state_of(mask=None), TypeError, "mask wants a rule"),
        (lambda: state_of(batch=-1), ValueError, "batch is at least 0; got -1"),
        (lambda: state_of(capacity=-5), ValueError, "capacity is at least 0; got -5"),
        (lambda: qk.extend(*drawn(*[(1, 1, 2, 2)] * 3), None), TypeError, "wants a state"),
        (lambda: qk.extend(*drawn(*[(2,)] * 3), state_of()), ValueError, "q"),
        (lambda: qk.attend(*drawn(*[(3, 2)] * 3), backend=None), BackendError, "no backend `None`"),
        (lambda: layer(backend="nope"), BackendError, "there is no backend `nope`"),
        (lambda: layer()(torch.ones(3, 8)), ValueError, r"\(batch, tokens, 8\)"),
    ],
)  # fmt: skip
def test_one_sentence_for_what_is_wrong(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def state_of(mechanism=QUADRATIC, **options):
    return qk.empty_state(mechanism, kv_heads=1, key_dim=2, value_dim=2, **options)


def layer(**options):
    return MultiHeadAttention(8, AttentionConfig(2), **options)


def test_a_mask_of_no_rows_has_no_rows():
    mask = qk.Causal() & qk.Padding(np.zeros((0, 3), dtype=bool))
    assert mask.matrix(3, 3).shape == (0, 1, 3, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mask", [qk.FULL, qk.Causal(), qk.Causal() & qk.Window(3)])
@pytest.mark.parametrize("tokens", [1, 5, 15, 16, 40])
def test_nan_in_a_query_comes_out_of_torchs_kernel_as_of_the_equation(tokens, mask, dtype):
    q, k, v = (x.to(dtype) for x in drawn(*[(2, 3, tokens, 4)] * 3))
    q[1, 2, tokens // 2, 1] = torch.nan
    out, want = (qk.attend(q, k, v, mask=mask, backend=name) for name in ("sdpa", "reference"))
    assert out[1, 2, tokens // 2].isnan().all()
    assert torch.equal(out.isnan(), want.isnan())


@pytest.mark.slow
def test_nan_in_a_query_comes_out_of_flex_too_unless_the_query_sees_nothing():
    q, k, v = (x.float() for x in drawn(*[(2, 3, 5, 4)] * 3))
    q[1, 2, 3, 1] = q[0, :, 4] = torch.nan
    mask = qk.Causal() & ~qk.Dense(torch.tensor([[0] * 5] * 4 + [[1] * 5]))
    out, want = (qk.attend(q, k, v, mask=mask, backend=name) for name in ("flex", "reference"))
    torch.testing.assert_close(out, want, equal_nan=True)
    assert out[1, 2, 3].isnan().all()


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("sdpa", "backend 'sdpa' cannot serve this call: it has no use for sums that Kernel"),
        ("chunkd", "there is no backend `chunkd`; did you mean `chunked`?"),
    ],
)
def test_a_state_of_sums_refuses_a_backend_that_cannot_take_it(backend, message):
    q, k, v = drawn(*[(1, 1, 3, 4)] * 3)
    state = qk.empty_state(QUADRATIC, kv_heads=1, key_dim=4, value_dim=4)
    with pytest.raises(BackendError, match=re.escape(message)):
        qk.extend(q, k, v, state, backend=backend)


@contextmanager
def defaults(device="cpu", dtype=torch.float32):
    """Make new tensors elsewhere, or of another dtype, where the code names neither."""
    torch.set_default_device(device)
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("settings", [{"device": "meta"}, {"dtype": torch.float16}])
@pytest.mark.parametrize(
    "mask", [qk.FULL, qk.Causal(), qk.Causal() & qk.Window(2), qk.Dilated(2, 2)], ids=str
)
@pytest.mark.parametrize(
    "mechanism",
    [qk.Softmax(), qk.Argmax(), qk.Kernel(qk.Quadratic()), qk.Kernel(qk.RandomFeatures(8))],
    ids=str,
)
def test_an_answer_does_not_follow_torchs_defaults(mechanism, mask, settings):
    # So few keys that torch's kernel is given a mask of ours even where all is visible.
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 5, 3, generator=generator)

    def answers():
        state = qk.empty_state(
            mechanism, mask=qk.Causal(), batch=2, kv_heads=4, key_dim=3, value_dim=3
        )
        return qk.attend(q, k, v, mechanism=mechanism, mask=mask), qk.extend(q, k, v, state)[0]

    with defaults(**settings):  # first, for tables are kept from the first call on
        got = answers()
    for ours, theirs in zip(got, answers(), strict=True):
        assert torch.equal(ours, theirs)
        assert (ours.device, ours.dtype) == (theirs.device, theirs.dtype)


@pytest.mark.parametrize(
    ("mechanism", "backend", "words"),
    [
        (qk.Softmax(), "sdpa", "is not implemented"),
        (QUADRATIC, "chunked", "for a second one ask for backend='reference'"),
    ],
)
def test_a_second_derivative_is_the_references_or_an_error(mechanism, backend, words):
    q, k, v = drawn(*[(1, 1, 3, 4)] * 3, grad=True)

    def slope(k, backend="reference"):
        out = qk.attend(q, k, v, mechanism=mechanism, mask=qk.Causal(), backend=backend)
        return torch.autograd.grad(out.square().sum(), k, create_graph=True)[0].square().sum()

    step = torch.zeros_like(k)
    step[0, 0, 1, 2] = 1e-6
    wanted = (slope(k + step) - slope(k - step)) / 2e-6
    curve = torch.autograd.grad(slope(k), k)[0][0, 0, 1, 2]
    assert curve.item() == pytest.approx(wanted.item(), rel=1e-5)
    with pytest.raises(RuntimeError, match=words):
        torch.autograd.grad(slope(k, backend), k)
