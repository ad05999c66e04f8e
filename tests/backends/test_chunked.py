"""Chunked kernel attention against the quadratic form, written out here in float64."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from querykey.attention.features import (
    EluPlusOne,
    FeatureMap,
    Polynomial,
    Quadratic,
    RandomFeatures,
    Taylor,
)
from querykey.attention.mechanisms import Kernel
from querykey.backends.chunked import features, linear, ops, panel

NAN, INF = math.nan, math.inf

pytestmark = pytest.mark.usefixtures("poisoned")


def by_phi(phi):
    return lambda scale: lambda q, k: phi(q * scale**0.5) @ phi(k * scale**0.5).mT


def by_dots(f):
    return lambda scale: lambda q, k: f(scale * (q @ k.mT))


def elu_plus_one(x):
    return torch.where(x > 0, x + 1, torch.exp(x))


RANDOM = RandomFeatures(11, seed=3)
MAPS = [
    (Quadratic(), by_dots(lambda d: (d + 1) ** 2)),
    (Polynomial(2, bias=0.0), by_dots(lambda d: d**2)),
    (Polynomial(1, signed=True), by_dots(lambda d: d + 1)),
    (Polynomial(3, signed=True), by_dots(lambda d: (d + 1) ** 3)),
    (Polynomial(4, bias=0.3), by_dots(lambda d: (d + 0.3) ** 4)),
    (Taylor(2), by_dots(lambda d: 1 + d + d**2 / 2)),
    (EluPlusOne(), by_phi(elu_plus_one)),
    (RANDOM, by_phi(lambda x: RANDOM(x))),
]
QUADRATIC = MAPS[0][1](1.0)
# q.k of either sign makes the sums of an odd power vanish, where no two roundings agree.
SIGNED = {Polynomial(1, signed=True), Polynomial(3, signed=True)}


def quadratic_form(q, k, v, similarity, causal=False, real=None, start=0):
    """sum_j w_ij v_j / sum_j w_ij over the keys j that query i sees, in the precision of q."""
    copies = q.shape[-3] // k.shape[-3]
    k, v = (x.repeat_interleave(copies, -3) for x in (k, v))
    w = similarity(q, k)
    seen = torch.ones(w.shape[-2:], dtype=torch.bool)
    if causal:
        seen = torch.arange(w.shape[-1]) <= start + torch.arange(w.shape[-2])[:, None]
    if real is not None:
        seen = seen & real[..., None, None, :]
    w = torch.where(seen, w, 0.0)
    d = w.sum(-1, keepdim=True)
    return torch.where(d == 0, 0.0, w @ v / torch.where(d == 0, 1.0, d))


def draw(queries, keys, heads=4, kv_heads=2, key_dim=5, value_dim=3, batch=(2,), seed=0):
    made = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=made, dtype=torch.float64)

    q = normal(*batch, heads, queries, key_dim) / 2
    k = normal(*batch, kv_heads, keys, key_dim) / 2
    return q, k, normal(*batch, kv_heads, keys, value_dim)


def results(attend, q, k, v, seed=1):
    """Return the output and the gradients of q, k, v for a random gradient of the output."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attend(*leaves)
    made = torch.Generator().manual_seed(seed)
    out.backward(torch.randn(out.shape, generator=made, dtype=torch.float64).to(out.dtype))
    return [out.detach(), *(x.grad for x in leaves)]


def assert_close(found, wanted, tolerance=1e-10):
    for name, ours, theirs in zip(
        ["out", "dq", "dk", "dv"][: len(found)], found, wanted, strict=True
    ):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if ours.numel():
            error = (ours - theirs).abs().max() / (1 + theirs.abs().max())
            assert error < tolerance, f"{name} is off by {error}"


LENGTHS = [1, 7, 63, 64, 65, 130, 257]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("causal", [True, False])
def test_lengths_off_every_edge(length, causal, form):
    x = draw(length, length)
    found = results(lambda *x: linear.attend(*x, Kernel(Quadratic()), causal=causal), *x)
    assert_close(found, results(lambda *x: quadratic_form(*x, QUADRATIC, causal), *x))


@pytest.mark.parametrize(("features", "similarity"), MAPS, ids=lambda x: str(x)[:24])
@pytest.mark.parametrize("causal", [True, False])
def test_every_map(features, similarity, causal, small_chunks):
    q, k, v = draw(67, 67)
    if features in SIGNED:
        q, k = q.abs(), k.abs()
    kernel, same = Kernel(features, scale=0.7), similarity(0.7)
    found = results(lambda *x: linear.attend(*x, kernel, causal=causal), q, k, v)
    assert_close(found, results(lambda *x: quadratic_form(*x, same, causal), q, k, v))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("group", [1, 3])
def test_edges_of_chunks_and_panels(length, group, small_chunks):
    x = draw(length, length, heads=2 * group)
    found = results(lambda *x: linear.attend(*x, Kernel(Quadratic()), causal=True), *x)
    assert_close(found, results(lambda *x: quadratic_form(*x, QUADRATIC, True), *x))


@pytest.mark.parametrize(
    ("queries", "keys", "start"),
    [(9, 30, 21), (9, 30, 5), (1, 30, 29), (30, 9, 0), (30, 9, 4), (17, 12, -6), (5, 7, -9)],
)
def test_queries_that_start_elsewhere(queries, keys, start, small_chunks):
    x = draw(queries, keys)
    kernel = Kernel(Quadratic())
    found = results(lambda *x: linear.attend(*x, kernel, causal=True, start=start), *x)
    assert_close(found, results(lambda *x: quadratic_form(*x, QUADRATIC, True, start=start), *x))


@pytest.mark.parametrize(("features", "similarity"), MAPS, ids=lambda x: str(x)[:24])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_changes_nothing_whatever_it_holds(features, similarity, causal, small_chunks):
    q, k, v = draw(45, 45)
    if features in SIGNED:
        q, k = q.abs(), k.abs()
    real = torch.rand(2, 45, generator=torch.Generator().manual_seed(2)) > 0.3
    real[1, :10] = False  # the first queries of this row see nothing
    wanted = results(lambda *x: quadratic_form(*x, similarity(1.0), causal, real), q, k, v)
    hidden = ~real[:, None, :, None]
    k, v = k.masked_fill(hidden, NAN), v.masked_fill(hidden, INF)
    kernel = Kernel(features)
    found = results(lambda *x: linear.attend(*x, kernel, causal=causal, real=real), q, k, v)
    assert_close(found, wanted)
    for grad in found[2:]:
        assert (grad.masked_select(hidden) == 0).all()


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_lanes_shared_among_threads(small_chunks, three_threads):
    q, k, v = draw(45, 45, kv_heads=4, batch=(2,))  # eight lanes for three threads
    real = torch.rand(2, 45, generator=torch.Generator().manual_seed(2)) > 0.3
    kernel = Kernel(Quadratic())
    found = results(lambda *x: linear.attend(*x, kernel, causal=True, real=real), q, k, v)
    assert_close(found, results(lambda *x: quadratic_form(*x, QUADRATIC, True, real), q, k, v))
    with torch.inference_mode():
        out = linear.attend(q, k, v, kernel, causal=True, real=real)
    assert torch.equal(out, found[0])


def test_threads_are_left_as_they_were(three_threads):
    linear.attend(*draw(45, 45), Kernel(Quadratic()), causal=True)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 3
    assert torch.get_num_threads() == 3


def test_what_goes_wrong_in_a_thread_is_raised(three_threads, monkeypatch):
    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(ops, "PAIRS", 0)
    monkeypatch.setattr(panel.Lanes, "load", fail)
    with pytest.raises(MemoryError, match="no room"):
        linear.attend(*draw(45, 45), Kernel(Quadratic()), causal=True)


def test_a_vanishing_denominator_gives_zeros_and_no_gradient(form):
    q, k, v = draw(20, 20)
    q[:, :, 3] = 0
    kernel = Kernel(Polynomial(2, bias=0.0))
    out, *grads = results(lambda *x: linear.attend(*x, kernel, causal=True), q, k, v)
    assert (out[:, :, 3] == 0).all()
    assert (grads[0][:, :, 3] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)


def test_without_heads_and_with_more_batch_axes(form):
    q, k, v = draw(19, 19, heads=1, kv_heads=1, batch=())
    out = linear.attend(q[0], k[0], v[0], Kernel(Quadratic()), causal=True)
    assert_close([out], [quadratic_form(q, k, v, QUADRATIC, True)[0]])
    x = draw(19, 19, batch=(2, 3))
    found = results(lambda *x: linear.attend(*x, Kernel(Quadratic())), *x)
    assert_close(found, results(lambda *x: quadratic_form(*x, QUADRATIC), *x))


def test_inputs_that_are_views(small_chunks):
    x = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in draw(21, 21)]
    found = results(lambda *x: linear.attend(*x, Kernel(Quadratic()), causal=True), *x)
    assert_close(found, results(lambda *x: quadratic_form(*x, QUADRATIC, True), *x))


@pytest.mark.parametrize("shape", [(0, 5, 2), (5, 0, 2), (0, 0, 2), (5, 5, 0)])
@pytest.mark.parametrize("causal", [True, False])
def test_nothing_at_all(shape, causal, form):
    queries, keys, batch = shape
    x = draw(queries, keys, batch=(batch,))
    found = results(lambda *x: linear.attend(*x, Kernel(Quadratic()), causal=causal), *x)
    assert_close(found, results(lambda *x: quadratic_form(*x, QUADRATIC, causal), *x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("key_dim", [16, 32])
def test_low_precision_within_the_budget(dtype, causal, key_dim, form):
    """At most twice the error of the quadratic form in that precision, plus one rounding step."""
    x = [t.to(dtype) for t in draw(300, 300, key_dim=key_dim, value_dim=key_dim)]
    found = results(lambda *x: linear.attend(*x, Kernel(Quadratic()), causal=causal), *x)

    def rounded(q, k, v):
        q, k, v = (t.to(torch.promote_types(dtype, torch.float32)) for t in (q, k, v))
        return quadratic_form(q, k, v, QUADRATIC, causal).to(dtype)

    low = results(rounded, *x)
    exact = results(lambda *x: quadratic_form(*x, QUADRATIC, causal), *(t.double() for t in x))
    for ours, reference, truth in zip(found, low, exact, strict=True):
        assert ours.dtype == dtype
        allowed = 2 * (reference - truth).abs().max()
        allowed += torch.finfo(dtype).eps * truth.abs().max()
        assert (ours - truth).abs().max() <= allowed


@pytest.mark.parametrize(("features", "similarity"), MAPS, ids=lambda x: str(x)[:24])
def test_any_split_equals_the_whole(features, similarity, small_chunks):
    q, k, v = draw(41, 41)
    if features in SIGNED:
        q, k = q.abs(), k.abs()
    real = torch.rand(2, 41, generator=torch.Generator().manual_seed(2)) > 0.2
    kernel, width = Kernel(features, scale=0.7), features.width(5)

    def in_pieces(q, k, v):
        outs, outer, total = [], torch.zeros(2, 2, width, 3), torch.zeros(2, 2, width)
        outer, total = outer.double(), total.double()
        for cut in (slice(0, 1), slice(1, 20), slice(20, 20), slice(20, 41)):
            tokens = (x[:, :, cut] for x in (q, k, v))
            out, outer, total = linear.extend(*tokens, kernel, outer, total, real=real[:, cut])
            outs.append(out)
        phi = kernel.phi(k).detach() * real[:, None, :, None]
        assert_close([outer.detach(), total.detach()], [phi.mT @ v.detach(), phi.sum(-2)])
        return torch.cat(outs, 2)

    wanted = results(lambda *x: quadratic_form(*x, similarity(0.7), True, real), q, k, v)
    assert_close(results(in_pieces, q, k, v), wanted)


def test_gradients_by_finite_differences():
    q, k, v = (x.requires_grad_() for x in draw(9, 9, batch=(1,), key_dim=3, value_dim=2))
    outer, total = (
        torch.rand(1, 2, 10, *more, dtype=torch.float64, requires_grad=True) for more in ((2,), ())
    )
    kernel = Kernel(Quadratic())
    assert torch.autograd.gradcheck(
        lambda *x: linear.extend(*x[:3], kernel, *x[3:]), (q, k, v, outer, total)
    )
    assert torch.autograd.gradcheck(lambda *x: linear.attend(*x, kernel, causal=True), (q, k, v))


@dataclass(frozen=True)
class Squares(FeatureMap):
    """A map that the backend does not know."""

    def width(self, key_dim):
        return key_dim

    def __call__(self, x):
        return x * x


def test_a_map_of_ones_own(small_chunks):
    q, k, v = draw(33, 33)
    real = torch.ones(2, 33, dtype=torch.bool)
    real[:, 5] = False
    wanted = results(
        lambda *x: quadratic_form(*x, lambda q, k: q**2 @ (k**2).mT, True, real), q, k, v
    )
    k[:, :, 5] = NAN
    found = results(
        lambda *x: linear.attend(*x, Kernel(Squares()), causal=True, real=real), q, k, v
    )
    assert_close(found, wanted)


def test_only_inputs_output_and_one_number_per_query_are_kept():
    kept = []
    x = [t.requires_grad_() for t in draw(300, 300)]

    def note(tensor):
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = linear.attend(*x, Kernel(Quadratic()), causal=True)
    assert sum(kept) == sum(t.numel() for t in (*x, out)) + out[..., 0].numel()


def test_a_step_of_checkpointing():
    x = draw(21, 21)
    kernel = Kernel(Quadratic())
    wanted = results(lambda *x: linear.attend(*x, kernel, causal=True).sin(), *x)
    found = results(
        lambda *x: checkpoint(
            lambda *x: linear.attend(*x, kernel, causal=True).sin(), *x, use_reentrant=False
        ),
        *x,
    )
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("features", [Quadratic(), EluPlusOne(), RANDOM], ids=str)
def test_autocast_rounds_the_inputs_and_nothing_else(features):
    x = [t.float() for t in draw(70, 70)]
    kernel = Kernel(features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = results(lambda *x: linear.attend(*x, kernel, causal=True), *x)
    wanted = results(lambda *x: linear.attend(*(t.bfloat16() for t in x), kernel, causal=True), *x)
    assert found[0].dtype == torch.bfloat16
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.*is deprecated:DeprecationWarning"
)  # inductor's own
@pytest.mark.parametrize("features", [Quadratic(), EluPlusOne(), RANDOM], ids=str)
def test_compiled_whole(features, monkeypatch):
    monkeypatch.undo()  # the poison, which the compiler cannot see through
    kernel, x = Kernel(features), draw(70, 70)
    real = torch.rand(2, 70) > 0.2

    def layer(q, k, v):
        return linear.attend(q * 1.5, k, v, kernel, causal=True, real=real).sin()

    compiled = torch.compile(layer, fullgraph=True)
    assert_close(results(compiled, *x), results(layer, *x), 1e-12)


@pytest.mark.slow
def test_the_operators_keep_torchs_rules(monkeypatch):
    monkeypatch.undo()
    q, k, v = (t.requires_grad_() for t in draw(9, 9, batch=()))
    sums = torch.rand(2, 21, 4, dtype=torch.float64)
    numbers = [1.0, 1.0, 2.0, 1.0]
    q = q.reshape(2, 2, 9, 5).detach().requires_grad_()
    for past, keep in ((None, False), (sums, True)):
        args = (q, k, v, None, None, past, "series", numbers, True, 0, keep)
        torch.library.opcheck(torch.ops.querykey.chunked_forward.default, args)


@pytest.mark.parametrize(
    ("device", "keys", "taken"),
    [("cpu", 300, True), ("cpu", 700, False), ("cuda", 700, True), ("cuda", 5000, False)],
)
def test_a_gpu_meets_pairs_at_more_lengths_than_a_cpu(device, keys, taken):
    # At head size 16 there are 153 features. At head size 64 a GPU was out of the budget with sums
    # in float32, at 333 and at 2000 keys, and within it with pairs.
    q = k = SimpleNamespace(device=torch.device(device), shape=(1, keys, 16))
    assert ops.pairs_are_better(q, k, "series", [0.25, 1.0, 2.0, 1.0], causal=True) == taken


def test_rows_hold_every_monomial_as_often_as_it_counts():
    for key_dim, degree in ((3, 4), (9, 2), (17, 2), (10, 3)):
        words = features.letters(key_dim, degree)
        counts, degrees = features.orderings(key_dim, degree)
        assert len(words) == features.blocks(key_dim, degree)[1]
        for n in range(degree + 1):
            # At q = k = (1, ..., 1), (q.k)^n is key_dim^n.
            assert counts[degrees == n].sum().item() == pytest.approx(key_dim**n)


def test_put_and_take_cut_where_a_chunk_ends():
    buffer, back = torch.full((2, 3, 4), NAN), torch.full((2, 9), NAN)
    tokens = torch.arange(18.0).view(2, 9)
    panel.put(buffer, tokens)
    assert torch.equal(buffer.flatten(1)[:, :9], tokens)
    assert (buffer.flatten(1)[:, 9:] == 0).all()
    panel.take(buffer, back)
    assert torch.equal(back, tokens)


def test_a_query_of_one_key_has_no_gradient_where_its_similarity_nearly_vanishes():
    torch.manual_seed(0)
    q, k, v, g = torch.randn(4, 50, 1, 1, 64)
    q = (q / -(q * k).sum(-1, keepdim=True)).requires_grad_()  # q.k = -1
    linear.attend(q, k, v, Kernel(Quadratic(), 0.999), causal=True).backward(g)
    # What cancels: g.v times the slope of the similarity's logarithm, 2 / 0.001, but for rounding.
    cancelled = ((g * v).sum(-1, keepdim=True) * 2e3 * k).abs()
    assert (q.grad.abs() <= 3 * torch.finfo(torch.float32).eps * cancelled).all()
