"""The GPU kernels: in Triton's interpreter where it is installed, and on a GPU if there is one."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.backends import triton_driver
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import querykey as qk
from querykey.backends import BackendError
from querykey.backends.triton import plans

HAS_TRITON = importlib.util.find_spec("triton") is not None
on_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and triton"
)


def printed(driver, **environment):
    """Run a driver in a process of its own and return the JSON it ends with."""
    command = [sys.executable, Path(__file__).with_name(driver)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def interpreted():
    return printed("triton_driver.py", TRITON_INTERPRET="1")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
@pytest.mark.parametrize(
    "name",
    [
        *triton_driver.CASES,
        *triton_driver.GATED,
        *triton_driver.DOCUMENTS,
        *(f"vanishing, {how}" for how in ("chunks", "documents", "pairs")),
        "checkpointed",
        "compiled whole",
        "documents, compiled whole",
        "distributed",
        "second derivative",
        "second derivative, documents",
        "shapes",
        "watched",
    ],
)
def test_interpreted_against_the_quadratic_form(name, interpreted):
    assert max(interpreted[name]) < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_no_copy_lands_where_a_product_may_still_read(tmp_path):
    found = printed("triton_buffers_driver.py", TRITON_CACHE_DIR=str(tmp_path))
    assert found["loops"] > 20
    assert set(found["found"]) == {"racing"}  # a kernel that shows what is meant
    assert found["waiting"] == []


def draw(tokens, heads=2, kv_heads=2, key_dim=64, value_dim=64, size=1.0):
    shapes = [(heads, tokens, key_dim), (kv_heads, tokens, key_dim), (kv_heads, tokens, value_dim)]
    q, k, v = (torch.randn(2, *shape, device="cuda") for shape in shapes)
    inputs = [x.bfloat16() for x in (q * size, k * size, v)]
    grad = torch.randn(2, heads, tokens, value_dim, device="cuda", dtype=torch.bfloat16)
    # What is freed now is what results will get: NaN, so that whoever does not write shows.
    del q, k, v
    freed = [torch.full((n,), torch.nan, device="cuda") for n in (*[2**16] * 99, 2**27)]
    del freed
    return inputs, grad


def exact(q, k, v, similarity, causal=True, real=None, ids=None):
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    w = similarity(q @ k.mT)
    if causal:
        w = w.tril()
    if real is not None:
        w = torch.where(real[:, None, None, :], w, 0.0)
    if ids is not None:
        w = torch.where((ids[:, :, None] == ids[:, None, :])[:, None], w, 0.0)
    z = w.sum(-1, keepdim=True)
    return torch.where(z == 0, 0.0, w @ v / torch.where(z == 0, 1.0, z))


def assert_within_bounds(found, inputs, grad, similarity, causal=True, real=None, ids=None):
    wanted = triton_driver.results(
        lambda *x: exact(*x, similarity, causal, real, ids), [x.double() for x in inputs], grad
    )
    out, *gradients = triton_driver.errors(found, wanted)
    assert out < 5e-3
    assert max(gradients) < 1e-2


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 256 tokens at any length, where there are chunks."""
    for size, plan in plans.PLANS.items():
        monkeypatch.setitem(plans.PLANS, size, replace(plan, chunk=256, near=(0, 0)))


@pytest.fixture(params=["as planned", "small chunks"])
def either(request):
    if request.param == "small chunks":
        request.getfixturevalue("small_chunks")


def attend(*x, features=qk.Quadratic(), scale=0.125, mask=qk.Causal()):  # noqa: B008
    return qk.attend(*x, mechanism=qk.Kernel(features, scale), mask=mask, backend="triton")


@on_gpu
@pytest.mark.parametrize("tokens", [1, 63, 65, 1000, 4097])
def test_lengths_off_every_edge(tokens, either):
    inputs, grad = draw(tokens)
    found = triton_driver.results(attend, inputs, grad)
    assert_within_bounds(found, inputs, grad, lambda d: (0.125 * d + 1) ** 2)
    again = triton_driver.results(attend, inputs, grad)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@on_gpu
def test_a_gradient_that_nearly_cancels_keeps_its_digits():
    # Two keys, and an output's gradient that hardly tells their values apart: rounding it once more
    # would be seen. Found by a random draw whose gradients were off by 1.5e-2.
    (q, k, v), grad = draw(2, heads=32, kv_heads=32)
    apart = (v[:, :, 1:] - v[:, :, :1]).float()
    along = (grad.float() * apart).sum(-1, keepdim=True) / (apart * apart).sum(-1, keepdim=True)
    grad = (grad - 0.99 * along * apart).bfloat16()
    found = triton_driver.results(attend, (q, k, v), grad)
    assert_within_bounds(found, (q, k, v), grad, lambda d: (0.125 * d + 1) ** 2)


@on_gpu
@pytest.mark.parametrize(
    ("features", "similarity"), [(qk.Quadratic(), lambda d: (d + 1) ** 2),
                                 (qk.Taylor(2), lambda d: 1 + d + d * d / 2),
                                 (qk.Polynomial(2, bias=0.5), lambda d: (d + 0.5) ** 2)],
)  # fmt: skip
@pytest.mark.parametrize(("size", "scale"), [(0.1, 0.125), (3.0, 0.125), (1.0, 1.0)])
def test_kernels_and_scales(features, similarity, size, scale, small_chunks):
    inputs, grad = draw(1000, size=size)
    found = triton_driver.results(
        lambda *x: attend(*x, features=features, scale=scale), inputs, grad
    )
    assert_within_bounds(found, inputs, grad, lambda d: similarity(scale * d))


@on_gpu
@pytest.mark.parametrize(
    ("key_dim", "value_dim"),
    [(16, 64), (32, 16), (64, 32), (16, 16), (20, 7), (5, 40), (128, 128), (99, 16), (32, 80)],
)
@pytest.mark.parametrize("causal", [True, False])
def test_sizes_groups_and_padding(key_dim, value_dim, causal, either):
    inputs, grad = draw(777, 4, 2, key_dim, value_dim)
    real = torch.rand(2, 777, device="cuda") > 0.2
    real[0, :5], real[1, -99:] = False, False
    for x in inputs[1:]:
        x.masked_fill_(~real[:, None, :, None], float("nan"))
    mask = qk.Padding(real) & qk.Causal() if causal else qk.Padding(real)
    found = triton_driver.results(lambda *x: attend(*x, mask=mask), inputs, grad)
    clean = [inputs[0], *(x.nan_to_num(0.0) for x in inputs[1:])]
    assert_within_bounds(found, clean, grad, lambda d: (0.125 * d + 1) ** 2, causal, real)


@on_gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["packed", "mixed"])
def test_documents(causal, kind, either):
    inputs, grad = draw(2999, 4, 2, 64, 32)
    longest = torch.randint(1, 900, (2, 40), device="cuda").cumsum(1)
    ids = (torch.arange(2999, device="cuda")[:, None] >= longest[:, None]).sum(-1)
    if kind == "mixed":
        ids = torch.randint(0, 5, (2, 2999), device="cuda")
    real = torch.rand(2, 2999, device="cuda") > 0.2
    for x in inputs[1:]:
        x.masked_fill_(~real[:, None, :, None], float("nan"))
    mask = qk.Documents(ids) & qk.Padding(real)
    mask = mask & qk.Causal() if causal else mask
    found = triton_driver.results(lambda *x: attend(*x, mask=mask), inputs, grad)
    clean = [inputs[0], *(x.nan_to_num(0.0) for x in inputs[1:])]
    assert_within_bounds(found, clean, grad, lambda d: (0.125 * d + 1) ** 2, causal, real, ids)
    again = triton_driver.results(lambda *x: attend(*x, mask=mask), inputs, grad)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@on_gpu
@pytest.mark.parametrize("order", [1, -1])
def test_long_documents_whether_or_not_the_host_knows_how_long_they_are(order):
    inputs, grad = draw(6801, key_dim=32)
    lengths = torch.tensor([300, 5001, 1500], device="cuda")  # the second goes through sums
    ids = order * torch.arange(3, device="cuda").repeat_interleave(lengths).expand(2, -1)
    mask = qk.Causal() & qk.Documents(ids)
    found = triton_driver.results(lambda *x: attend(*x, mask=mask), inputs, grad)
    assert_within_bounds(found, inputs, grad, lambda d: (0.125 * d + 1) ** 2, ids=ids)
    torch.cuda.synchronize()  # what was found of the ids has come to the host
    again = triton_driver.results(lambda *x: attend(*x, mask=mask), inputs, grad)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def gated(q, k, v, decay, real):
    """The equation with gates, from running sums: exact enough in float64."""
    decay = torch.where(real[:, None], decay, 0).cumsum(-1)
    left = (decay[..., :, None] - decay[..., None, :]).clamp(max=0).exp()
    group, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    k, v, left = (x.repeat_interleave(group, 1) for x in (k, v, left))
    w = ((scale * (q @ k.mT) + 1) ** 2 * left).tril()
    w = torch.where(real[:, None, None, :], w, 0.0)
    z = w.sum(-1, keepdim=True)
    return torch.where(z == 0, 0.0, w @ v / torch.where(z == 0, 1.0, z))


@on_gpu
@pytest.mark.parametrize("strength", [0.03, 1.0])
@pytest.mark.parametrize(
    ("tokens", "heads", "key_dim", "value_dim"),
    [(63, 2, 64, 64), (1000, 4, 64, 32), (6017, 2, 64, 64), (2049, 2, 128, 128), (777, 4, 16, 7)],
)
def test_gates(tokens, heads, key_dim, value_dim, strength, either):
    (q, k, v), grad = draw(tokens, heads, 2, key_dim, value_dim)
    decay = -(torch.randn(k.shape[:3], device="cuda") * strength).abs().bfloat16()
    decay[torch.rand(decay.shape, device="cuda") < 0.01] = -300
    real = torch.rand(2, tokens, device="cuda") > 0.1
    mask, mechanism = qk.Causal() & qk.Padding(real), qk.Kernel(qk.Quadratic(), key_dim**-0.5)

    def fast(q, k, v, decay):
        return qk.attend(q, k, v, mechanism=mechanism, mask=mask, decay=decay, backend="triton")

    found = triton_driver.results(fast, (q, k, v, decay), grad)
    exact_inputs = [x.double() for x in (q, k, v, decay)]
    wanted = triton_driver.results(lambda *x: gated(*x, real), exact_inputs, grad)
    out, *gradients = triton_driver.errors(found, wanted)
    assert out < 5e-3
    assert max(gradients) < 1e-2
    again = triton_driver.results(fast, (q, k, v, decay), grad)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@on_gpu
def test_compiled_checkpointed_and_under_autocast(small_chunks):
    inputs, grad = draw(500)
    plain = triton_driver.results(attend, inputs, grad)
    ways = [
        torch.compile(attend, fullgraph=True, backend="aot_eager"),
        lambda *x: checkpoint(attend, *x, use_reentrant=False),
    ]
    for way in ways:
        again = triton_driver.results(way, inputs, grad)
        assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    with torch.autocast("cuda", torch.bfloat16):
        out = attend(*(x.float() for x in inputs))
    assert torch.equal(out, plain[0])


@on_gpu
def test_a_call_like_an_earlier_one_is_served_alike_and_another_is_not():
    (q, k, v), _ = draw(300)
    how = {"mechanism": qk.Kernel(qk.Quadratic(), 0.125), "mask": qk.Causal()}
    for _ in range(2):
        assert torch.equal(qk.attend(q, k, v, **how), attend(q, k, v))
        with pytest.raises(qk.ShapeError, match="axis `key` is 300 in `k` but 299 in `v`"):
            qk.attend(q, k, v[:, :, 1:], **how)
        single = [x.float() for x in (q, k, v)]
        assert qk.attend(*single, **how).dtype == torch.float32
        with torch.autocast("cuda", torch.bfloat16):
            assert torch.equal(qk.attend(*single, **how), attend(q, k, v))
        with forward_ad.dual_level():  # which the kernels have no derivative for
            dual = forward_ad.make_dual(q, torch.ones_like(q))
            out = forward_ad.unpack_dual(qk.attend(dual, k, v, **how))
            assert out.tangent is not None
        assert qk.attend(q, k, v, **how, backend="chunked").dtype == torch.bfloat16
    with pytest.raises(BackendError, match="'triton' cannot serve this call: it computes in bf"):
        qk.attend(*single, **how, backend="triton")


@on_gpu
@pytest.mark.parametrize("packed", [False, True])
def test_a_second_derivative_is_refused(packed):
    inputs, _ = draw(300)
    leaves = [x.requires_grad_() for x in inputs]
    ids = torch.arange(300, device="cuda").expand(2, -1) // 70
    out = attend(*leaves, mask=qk.Causal() & qk.Documents(ids) if packed else qk.Causal())
    (first,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="ask for backend='reference'"):
        torch.autograd.grad(first.square().sum(), leaves[0])


@on_gpu
def test_no_more_memory_than_tables_and_a_few_copies():
    inputs, grad = draw(65536, 4, 4)
    leaves = [x.requires_grad_() for x in inputs]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(*leaves).backward(grad)
    tables = 8 * 64 * 48 * 64 * 64 * 2  # lanes, chunks, tiles, of bfloat16
    assert torch.cuda.max_memory_allocated() - before < tables + 12 * grad.nbytes
