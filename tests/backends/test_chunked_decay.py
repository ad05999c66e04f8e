"""Decay in chunks: against the naive twin, and against every pair with its gates multiplied."""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from querykey.attention.features import EluPlusOne, Polynomial, Quadratic, RandomFeatures
from querykey.attention.mechanisms import Kernel
from querykey.backends.chunked import linear, naive

MAPS = [Quadratic(), Polynomial(3, signed=True), EluPlusOne(), RandomFeatures(11, seed=3)]
QUADRATIC = Kernel(Quadratic())
NAMES = ("out", "dq", "dk", "dv", "dlog_g")

pytestmark = pytest.mark.usefixtures("poisoned")


def draw(queries, keys=None, heads=3, kv_heads=3, key_dim=5, value_dim=3):
    """Return q, k, v and log_g between about -2 and 0."""
    keys = queries if keys is None else keys
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (heads, queries, key_dim),
        (kv_heads, keys, key_dim),
        (kv_heads, keys, value_dim),
        (kv_heads, keys),
    )
    q, k, v, decay = (
        torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return [q, k, v, -decay.abs()]


def factors(decay, queries, start):
    """Multiply the gates between every key and query, one after the other; 0 where hidden."""
    keys = decay.shape[-1]
    key, position = torch.arange(keys)[:, None], torch.arange(min(start, 0), start + queries)
    gates = decay.exp()[..., None, position.clamp(0, max(keys - 1, 0))]
    passed = torch.where((key < position) & (position < keys), gates, 1).cumprod(-1)
    return torch.where(key <= position, passed, 0)[..., position >= start].mT


def every_pair(q, k, v, decay, kernel, real=None, start=0):
    """Return attention with decay, all pairs at once, from products of gates alone."""
    group = q.shape[1] // k.shape[1]
    if real is not None:
        decay = decay.masked_fill(~real[:, None], 0)
    w = factors(decay, q.shape[2], start).repeat_interleave(group, 1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    w = w * kernel.similarity(q, k)
    if real is not None:
        w = w * real[:, None, None]
    d = w.sum(-1, keepdim=True)
    return torch.where(d == 0, 0, w @ v / torch.where(d == 0, 1, d))


def results(function, *inputs):
    """Return the outputs of a function and the gradients of its inputs, for random gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(1)
    pulled = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in outputs]
    pulled = [g.to(x.dtype) for g, x in zip(pulled, outputs, strict=True)]
    gradients = torch.autograd.grad(outputs, leaves, pulled, materialize_grads=True)
    return [*(x.detach() for x in outputs), *gradients]


def assert_close(ours, theirs, tolerance=1e-10):
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        error = (a - b).abs().max() / (1 + b.abs().max()) if a.numel() else 0
        assert error < tolerance, f"result {number} is off by {error}"


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("features", MAPS, ids=str)
@pytest.mark.parametrize("tokens", [1, 70, 600])
def test_the_naive_twin_agrees(features, tokens, gated):
    kernel, width = Kernel(features, scale=0.7), features.width(5)
    generator = torch.Generator().manual_seed(2)
    sums = torch.rand(2, 3, width, 4, generator=generator, dtype=torch.float64)
    q, k, v, decay = draw(tokens)
    q, k = q.abs(), k.abs()  # where similarities can be negative, sums can vanish

    def fast(q, k, v, decay, sums):
        out, outer, total = linear.extend(
            q, k, v, kernel, sums[..., :-1], sums[..., -1], decay=decay if gated else None
        )
        return out, torch.cat([outer, total[..., None]], -1)

    def plain(q, k, v, decay, sums):
        return naive.extend(q, k, v, kernel, sums, decay if gated else torch.zeros_like(decay))

    assert_close(results(fast, q, k, v, decay, sums), results(plain, q, k, v, decay, sums))


@pytest.mark.parametrize("tokens", [70, 600])
def test_the_naive_twin_agrees_from_nothing(tokens, form):
    def plain(q, k, v, decay):
        sums = q.new_zeros(2, 3, 21, 4)
        return naive.extend(q, k, v, QUADRATIC, sums, decay)[0]

    def fast(q, k, v, decay):
        return linear.attend(q, k, v, QUADRATIC, causal=True, decay=decay)

    inputs = draw(tokens)
    assert_close(results(fast, *inputs), results(plain, *inputs))


@pytest.mark.parametrize("features", MAPS, ids=str)
@pytest.mark.parametrize("group", [1, 3])
def test_every_map_against_every_pair(features, group, small_chunks):
    kernel = Kernel(features, scale=0.7)
    q, k, v, decay = draw(67, heads=2 * group, kv_heads=2)
    if not features.positive:
        q, k = q.abs(), k.abs()
    ours = results(
        lambda q, k, v, g: linear.attend(q, k, v, kernel, causal=True, decay=g), q, k, v, decay
    )
    assert_close(ours, results(lambda *x: every_pair(*x, kernel), q, k, v, decay))


@pytest.mark.parametrize(
    ("queries", "keys", "start"),
    [(9, 30, 21), (9, 30, 5), (1, 30, 29), (30, 9, 0), (30, 9, 4), (17, 12, -6), (5, 7, -9)],
)
def test_queries_that_start_elsewhere(queries, keys, start, small_chunks):
    inputs = draw(queries, keys, heads=4, kv_heads=2)

    def fast(q, k, v, decay):
        return linear.attend(q, k, v, QUADRATIC, causal=True, start=start, decay=decay)

    theirs = results(lambda *x: every_pair(*x, QUADRATIC, start=start), *inputs)
    assert_close(results(fast, *inputs), theirs)


@pytest.mark.parametrize("features", MAPS, ids=str)
def test_padding_changes_nothing_whatever_it_holds(features, small_chunks):
    kernel = Kernel(features)
    q, k, v, decay = draw(45)
    if not features.positive:
        q, k = q.abs(), k.abs()
    real = torch.rand(2, 45, generator=torch.Generator().manual_seed(2)) > 0.3
    real[1, :10] = False  # the first queries of this row see nothing
    theirs = results(lambda *x: every_pair(*x, kernel, real=real), q, k, v, decay)
    hidden = ~real[:, None, :]
    k, v = k.masked_fill(hidden[..., None], math.nan), v.masked_fill(hidden[..., None], math.inf)

    def fast(q, k, v, decay):
        return linear.attend(q, k, v, kernel, causal=True, real=real, decay=decay)

    for anything in (math.nan, math.inf, -math.inf):
        ours = results(fast, q, k, v, decay.masked_fill(hidden, anything))
        assert_close(ours, theirs)
        assert (ours[-1].masked_select(hidden) == 0).all()


@pytest.mark.parametrize("features", MAPS, ids=str)
def test_any_split_equals_the_whole(features, small_chunks):
    kernel, width = Kernel(features, scale=0.7), features.width(5)
    q, k, v, decay = draw(41)
    if not features.positive:
        q, k = q.abs(), k.abs()
    real = torch.rand(2, 41, generator=torch.Generator().manual_seed(2)) > 0.2

    def in_pieces(q, k, v, decay):
        outs, outer, total = [], q.new_zeros(2, 3, width, 3), q.new_zeros(2, 3, width)
        for cut in (slice(0, 1), slice(1, 20), slice(20, 20), slice(20, 41)):
            out, outer, total = linear.extend(
                q[:, :, cut], k[:, :, cut], v[:, :, cut], kernel, outer, total,
                real=real[:, cut], decay=decay[:, :, cut],
            )  # fmt: skip
            outs.append(out)
        return torch.cat(outs, 2)

    theirs = results(lambda *x: every_pair(*x, kernel, real=real), q, k, v, decay)
    assert_close(results(in_pieces, q, k, v, decay), theirs)


def test_gradients_by_finite_differences(form):
    q, k, v, decay = (
        x[:1].requires_grad_() for x in draw(9, heads=2, kv_heads=1, key_dim=3, value_dim=2)
    )
    outer, total = (
        torch.rand(1, 1, 10, *more, dtype=torch.float64, requires_grad=True) for more in ((2,), ())
    )
    assert torch.autograd.gradcheck(
        lambda q, k, v, g, *sums: linear.extend(q, k, v, QUADRATIC, *sums, decay=g),
        (q, k, v, decay, outer, total),
    )
    assert torch.autograd.gradcheck(
        lambda q, k, v, g: linear.attend(q, k, v, QUADRATIC, causal=True, decay=g),
        (q, k, v, decay),
    )


@pytest.mark.parametrize("strength", [30.0, 300.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gate_that_forgets_nearly_all(strength, dtype, form):
    """After such a gate only later tokens count, and their factors keep their digits."""
    q, k, v, decay = (x.to(dtype) for x in draw(300))
    decay = decay / 100
    decay[..., 100:140] = -strength

    def fast(q, k, v, decay):
        return linear.attend(q, k, v, QUADRATIC, causal=True, decay=decay)

    ours = results(fast, q, k, v, decay)
    exact = (x.double() for x in (q, k, v, decay))
    theirs = results(lambda *x: every_pair(*x, QUADRATIC), *exact)
    theirs[-1][..., 100:140].nan_to_num_(0.0)  # of 0 times -inf, in the products' own derivative
    assert all(x.isfinite().all() for x in ours)
    tolerance = 1e-10 if dtype == torch.float64 else 3e-5
    assert_close([x.double() for x in ours], theirs, tolerance)
    assert_close([ours[0][:, :, 110]], [v[:, :, 110]], 1e-6)


def test_gates_that_underflow_all_along(form):
    q, k, v, decay = (x.float() for x in draw(600))
    decay = torch.full_like(decay, -90.0)
    out, *gradients = results(
        lambda q, k, v, g: linear.attend(q, k, v, QUADRATIC, causal=True, decay=g), q, k, v, decay
    )
    assert_close([out], [v], 1e-5)
    assert all(x.isfinite().all() for x in gradients)


def test_a_vanishing_denominator_gives_zeros_and_no_gradient(form):
    q, k, v, decay = draw(20)
    q[:, :, 3] = 0
    kernel = Kernel(Polynomial(2, bias=0.0))
    out, *gradients = results(
        lambda q, k, v, g: linear.attend(q, k, v, kernel, causal=True, decay=g), q, k, v, decay
    )
    assert (out[:, :, 3] == 0).all()
    assert (gradients[0][:, :, 3] == 0).all()
    assert all(x.isfinite().all() for x in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("key_dim", [16, 32])
def test_low_precision_within_the_budget(dtype, key_dim, form):
    """At most twice the error of every pair in that precision, plus one rounding step.

    The gradient of log_g in float32 does not keep to this: roundings add up along the sequence. It
    is held to 40 rounding steps of its largest value instead.
    """
    inputs = [x.to(dtype) for x in draw(300, key_dim=key_dim, value_dim=key_dim)]
    inputs[3] = inputs[3] / 10
    ours = results(
        lambda q, k, v, g: linear.attend(q, k, v, QUADRATIC, causal=True, decay=g), *inputs
    )

    def rounded(*inputs):
        wide = (x.to(torch.promote_types(dtype, torch.float32)) for x in inputs)
        return every_pair(*wide, QUADRATIC).to(dtype)

    low = results(rounded, *inputs)
    exact = results(lambda *x: every_pair(*x, QUADRATIC), *(x.double() for x in inputs))
    for name, x, reference, truth in zip(NAMES, ours, low, exact, strict=True):
        assert x.dtype == dtype
        allowed = 2 * (reference - truth).abs().max()
        allowed += torch.finfo(dtype).eps * truth.abs().max()
        if name == "dlog_g" and dtype == torch.float32:
            allowed = 40 * torch.finfo(dtype).eps * truth.abs().max()
        assert (x - truth).abs().max() <= allowed, name


def test_without_heads(form):
    q, k, v, decay = (x[0, 0] for x in draw(19))
    out = linear.attend(q, k, v, QUADRATIC, causal=True, decay=decay)
    whole = every_pair(q[None, None], k[None, None], v[None, None], decay[None, None], QUADRATIC)
    assert_close([out], [whole[0, 0]])


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_nothing_at_all(shape, form):
    inputs = draw(*shape)
    ours = results(
        lambda q, k, v, g: linear.attend(q, k, v, QUADRATIC, causal=True, decay=g), *inputs
    )
    assert ours[0].shape == (2, 3, shape[0], 3)
    assert all((x == 0).all() for x in ours)


def test_decay_needs_an_order():
    q, k, v, decay = draw(5)
    with pytest.raises(ValueError, match="decay counts the positions from a key to a later query"):
        linear.attend(q, k, v, QUADRATIC, decay=decay)


def test_gates_cost_no_matrix_products():
    counts = []
    for decay in (None, draw(40)[3]):
        with FlopCounterMode(display=False) as counter:
            q, k, v = (x.requires_grad_() for x in draw(40)[:3])
            linear.attend(q, k, v, QUADRATIC, causal=True, decay=decay).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*is deprecated:DeprecationWarning"
)  # inductor's own
def test_compiled_whole(monkeypatch):
    monkeypatch.undo()  # the poison, which the compiler cannot see through
    inputs, real = draw(70), torch.rand(2, 70) > 0.2

    def layer(q, k, v, decay):
        gates = decay * 1.5
        return linear.attend(q, k, v, QUADRATIC, causal=True, real=real, decay=gates).sin()

    compiled = torch.compile(layer, fullgraph=True)
    assert_close(results(compiled, *inputs), results(layer, *inputs), 1e-12)


@pytest.mark.slow
def test_the_operators_keep_torchs_rules(monkeypatch):
    monkeypatch.undo()
    q, k, v, decay = (x[0].requires_grad_() for x in draw(9, heads=4, kv_heads=2))
    q = q.reshape(2, 2, 9, 5).detach().requires_grad_()
    decay = decay.detach().requires_grad_()
    sums = torch.rand(2, 21, 4, dtype=torch.float64)
    for past, keep in ((None, False), (sums, True)):
        args = (q, k, v, None, decay, past, "series", [1.0, 1.0, 2.0, 1.0], True, 0, keep)
        torch.library.opcheck(torch.ops.querykey.chunked_forward.default, args)
