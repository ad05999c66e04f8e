"""Every backend against the reference: values, all three gradients, and what is alone."""

import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.budget import over_budget

from querykey.attention import reference
from querykey.attention.biases import ALiBi, Buckets
from querykey.attention.features import EluPlusOne, Polynomial, Quadratic, RandomFeatures, Taylor
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
from querykey.attention.mechanisms import Kernel, Softmax
from querykey.backends import pairs
from querykey.backends.dispatch import attend

B, T = 2, 67


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Fill every torch.empty with NaN, so that an entry nobody wrote shows itself."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def draw(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def real(batch=B, keys=T):
    lengths = torch.tensor([keys - 5, keys // 3])[:batch]
    return torch.arange(keys) < lengths[:, None]


def documents(batch=B, keys=T):
    return (torch.arange(keys) // 11 + torch.arange(batch)[:, None]) % 4


MASKS = {
    "full": lambda: FULL,
    "causal": lambda: Causal(),
    "window": lambda: Window(9),
    "causal window": lambda: Causal() & Window(9),
    "dilated": lambda: Causal() & Dilated(4, 3),
    "strided": lambda: Strided(3) | Causal(),
    "global": lambda: Window(5) | Global(2),
    "blocks": lambda: Blocks(16),
    "prefix": lambda: Causal() | Prefix(7),
    "only prefix": lambda: Prefix(7),
    "padding": lambda: Padding(real()),
    "causal padding": lambda: Causal() & Padding(real()),
    "left padding": lambda: Causal() & Padding(~real()),
    "documents": lambda: Causal() & Documents(documents()),
    "not": lambda: ~Causal(),
    "dense": lambda: Dense(draw(B, 4, T, T) > 0.8),
    "dense per head": lambda: Dense(torch.ones(1, 4, 1, T).bool().expand(1, 4, T, T)),
}  # fmt: skip


def gradients(run, q, k, v, grad):
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = run(*inputs)
    return [out, *torch.autograd.grad(out, inputs, grad)]


def compare(backend, q, k, v, tolerance=1e-10, **spec):
    grad = draw(*q.shape[:-1], v.shape[-1], seed=9)
    ours = gradients(lambda *x: attend(*x, backend=backend, **spec), q, k, v, grad)
    theirs = gradients(lambda *x: reference.attend(*x, **spec), q, k, v, grad)
    for name, a, b in zip(("out", "q", "k", "v"), ours, theirs, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= tolerance, name


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", MASKS)
def test_sdpa_equals_the_equation(name, kv_heads):
    q, k, v = draw(B, 4, T, 6), draw(B, kv_heads, T, 6, seed=1), draw(B, kv_heads, T, 5, seed=2)
    compare("sdpa", q, k, v, mask=MASKS[name]())


@pytest.mark.parametrize("name", MASKS)
def test_sdpa_in_small_blocks_equals_the_equation(name, monkeypatch):
    monkeypatch.setattr(pairs, "PAIRS", 13 * T * B)  # queries in blocks of 13
    q, k, v = draw(B, 4, T, 6), draw(B, 4, T, 6, seed=1), draw(B, 4, T, 6, seed=2)
    compare("sdpa", q, k, v, mask=MASKS[name]())


@pytest.mark.parametrize("queries", [1, 7, 63])
@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(9), Causal() | Prefix(7), FULL])
@pytest.mark.parametrize("start", ["end", "middle", "each"])
def test_sdpa_where_queries_stand(queries, mask, start):
    begins = {"end": T - queries, "middle": 3, "each": torch.tensor([2, T - queries])}[start]
    q, k, v = draw(B, 4, queries, 6), draw(B, 4, T, 6, seed=1), draw(B, 4, T, 6, seed=2)
    compare("sdpa", q, k, v, mask=mask, start=begins)


@pytest.mark.parametrize("mask", [FULL, Causal(), Causal() & Padding(real())])
@pytest.mark.parametrize("bias", ["alibi", "buckets", "array", "array per head"])
def test_sdpa_with_a_bias(mask, bias, monkeypatch):
    monkeypatch.setattr(pairs, "PAIRS", 29 * T * B)
    rule = {
        "alibi": ALiBi(4),
        "buckets": Buckets(draw(8, 4, seed=4)),
        "array": draw(T, T, seed=5),
        "array per head": draw(4, T, T, seed=5),
    }[bias]
    q, k, v = draw(B, 4, T, 6), draw(B, 4, T, 6, seed=1), draw(B, 4, T, 6, seed=2)
    compare("sdpa", q, k, v, mask=mask, bias=rule)


def test_a_learned_bias_gets_its_gradient():
    q, k, v = draw(B, 4, T, 6), draw(B, 4, T, 6, seed=1), draw(B, 4, T, 6, seed=2)
    found = []
    for backend in ("sdpa", "reference"):
        table = draw(8, 4, seed=4).requires_grad_()
        attend(
            q, k, v, bias=Buckets(table), mask=Causal(), backend=backend
        ).square().sum().backward()
        found.append(table.grad)
    assert (found[0] - found[1]).abs().max() < 1e-10


@pytest.mark.parametrize("shape", [(T, 6), (4, T, 6), (B, 4, T, 6), (B, 3, 4, T, 6)])
@pytest.mark.parametrize("mask", [FULL, Causal(), Causal() & Window(9)])
def test_sdpa_at_every_rank(shape, mask):
    q, k, v = draw(*shape), draw(*shape, seed=1), draw(*shape, seed=2)
    compare("sdpa", q, k, v, mask=mask)


def test_sdpa_with_two_batch_axes_and_padding():
    shape = (2, 3, 4, T, 6)
    hidden = torch.rand(2, 3, T, generator=torch.Generator().manual_seed(3)) < 0.7
    q, k, v = draw(*shape), draw(*shape, seed=1), draw(*shape, seed=2)
    compare("sdpa", q, k, v, mask=Causal() & Padding(hidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 7, 63, 65, 130])
@pytest.mark.parametrize("mask", [FULL, Causal(), Causal() & Window(9)])
def test_sdpa_in_low_precision_is_within_budget(dtype, length, mask):
    q, k, v, grad = (draw(1, 2, length, 16, seed=i, dtype=dtype) for i in range(4))
    wide = [x.double() for x in (q, k, v)]
    fast = gradients(lambda *x: attend(*x, mask=mask, backend="sdpa"), q, k, v, grad)
    low = gradients(lambda *x: reference.attend(*x, mask=mask), q, k, v, grad)
    exact = gradients(lambda *x: reference.attend(*x, mask=mask), *wide, grad.double())
    assert over_budget(fast, low, exact) == []


HIDING = {
    "padding": Padding(real(1, 9)),
    "causal padding": Causal() & Padding(real(1, 9)),
    "prefix": Prefix(4),
    "dense": Dense(torch.arange(9).expand(9, 9) < 4),
    "strided": Strided(9) & Prefix(4),
}
SERVING = {
    "sdpa": Softmax(),
    "chunked": Kernel(Quadratic()),
    "reference": Softmax(),
}


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("backend", "hiding"),
    [
        (backend, hiding)
        for backend in SERVING
        for hiding in HIDING
        if backend != "chunked" or "padding" in hiding  # which is all that it takes
    ],
)
def test_what_no_query_may_see_changes_nothing(backend, hiding, poison):
    mask, mechanism = HIDING[hiding], SERVING[backend]
    q, k, v = draw(1, 2, 9, 4), draw(1, 2, 9, 4, seed=1), draw(1, 2, 9, 4, seed=2)
    hidden = ~reference.weights(q, k, mask=mask).bool().any(dim=(0, 1, 2))
    assert hidden.any()
    grad = draw(1, 2, 9, 4, seed=5)

    def run(*x):
        return attend(*x, mechanism=mechanism, mask=mask, backend=backend)

    clean = gradients(run, q, k, v, grad)
    k, v = k.clone(), v.clone()
    k[:, :, hidden], v[:, :, hidden] = poison, poison
    spoiled = gradients(run, q, k, v, grad)
    assert all(torch.equal(a, b) for a, b in zip(clean, spoiled, strict=True))
    assert (spoiled[2][:, :, hidden] == 0).all()
    assert (spoiled[3][:, :, hidden] == 0).all()


@pytest.mark.parametrize("backend", SERVING)
def test_a_query_that_sees_nothing_gets_zeros_and_gives_no_gradient(backend):
    mask = Causal() & Padding(torch.tensor([[False, False, True, True, True]]))
    q, k, v = draw(1, 2, 5, 4), draw(1, 2, 5, 4, seed=1), draw(1, 2, 5, 4, seed=2)
    q[:, :, 0] = math.nan  # whatever stands there
    grad = draw(1, 2, 5, 4, seed=5)
    out, *grads = gradients(
        lambda *x: attend(*x, mechanism=SERVING[backend], mask=mask, backend=backend), q, k, v, grad
    )
    assert (out[:, :, :2] == 0).all()
    assert (grads[0][:, :, :2] == 0).all()
    assert all(torch.isfinite(each).all() for each in (out, *grads))


def test_a_window_is_computed_in_blocks_of_its_reach():
    call = reference.check_inputs(*[draw(1, 1, 1000, 2)] * 3, Softmax(), Causal() & Window(10))
    cut = list(pairs.blocks(Causal() & Window(10), call, alike=False))
    assert sum((b.last - b.first) * (b.high - b.low) for b in cut) < 0.15 * 1000 * 1000
    assert [b.first for b in cut[1:]] == [b.last for b in cut[:-1]]


def test_booleans_for_a_long_sequence_are_made_in_blocks():
    call = reference.check_inputs(*[draw(2, 1, 5000, 2)] * 3, Softmax(), Causal())
    mask = Causal() & Padding(torch.ones(2, 5000, dtype=torch.bool))
    for block in pairs.blocks(mask, call, alike=False):
        assert pairs.visible(mask, call, block, torch.device("cpu")).numel() <= pairs.PAIRS


KERNELS = {
    "quadratic": Kernel(Quadratic()),
    "quadratic scaled": Kernel(Quadratic(), scale=0.3),
    "polynomial 2": Kernel(Polynomial(2, bias=0.5)),
    "polynomial 4": Kernel(Polynomial(4)),
    "taylor": Kernel(Taylor(2), scale=0.5),
    "elu": Kernel(EluPlusOne()),
    "random": Kernel(RandomFeatures(24), scale=0.2),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("mask", ["full", "causal", "padding", "causal padding", "left padding"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_chunked_equals_the_equation(name, mask, kv_heads):
    q, k, v = draw(B, 4, T, 6), draw(B, kv_heads, T, 6, seed=1), draw(B, kv_heads, T, 5, seed=2)
    compare("chunked", q / 2, k / 2, v, mechanism=KERNELS[name], mask=MASKS[mask]())


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # torch's own, while it compiles
@pytest.mark.skipif(not shutil.which("g++"), reason="FlexAttention on the CPU needs a C++ compiler")
@pytest.mark.parametrize(
    ("mask", "spec"),
    [
        (FULL, {}),
        (Causal() & Window(9), {}),
        (Causal() & Padding(real()), {"mechanism": Softmax(softcap=2.0)}),
        (Causal() & Documents(documents()), {"bias": ALiBi(4)}),
        (Padding(~real()), {}),
    ],
)
def test_flex_forward_equals_the_equation(mask, spec):
    q, k, v = (draw(B, heads, T, 16, seed=heads, dtype=torch.float32) for heads in (4, 2, 2))
    spec = {"mask": mask, **spec}
    exact = reference.attend(q.double(), k.double(), v.double(), **spec)
    low = reference.attend(q, k, v, **spec)
    if isinstance(mask, Padding):  # NaN where nobody may look
        k, v = k.clone(), v.clone()
        hidden = (mask.real == 0)[:, None].expand(B, 2, T)
        k[hidden], v[hidden] = math.nan, math.inf
    with torch.no_grad():
        assert over_budget([attend(q, k, v, backend="flex", **spec)], [low], [exact]) == []


@settings(max_examples=40, deadline=None)
@given(
    queries=st.integers(1, 20),
    keys=st.integers(1, 20),
    start=st.integers(0, 25),
    window=st.integers(1, 12),
    block=st.integers(1, 40),
    both=st.booleans(),
)
def test_sdpa_anywhere(queries, keys, start, window, block, both):
    mask = (Causal() & Window(window)) if both else (Window(window) | Prefix(2))
    q, k, v = draw(1, 1, queries, 3), draw(1, 1, keys, 3, seed=1), draw(1, 1, keys, 3, seed=2)
    kept, pairs.PAIRS = pairs.PAIRS, block * keys
    try:
        compare("sdpa", q, k, v, mask=mask, start=start)
    finally:
        pairs.PAIRS = kept
