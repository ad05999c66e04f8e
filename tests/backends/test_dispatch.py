"""Which backend serves a call, what is refused and in which words, and where attend can be used."""

import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import querykey as qk
from querykey.attention import FULL
from querykey.backends import triton
from querykey.backends.backend import Request
from querykey.backends.dispatch import BackendError

T, KERNEL = 33, qk.Kernel(qk.Quadratic(), scale=0.3)
REAL = torch.arange(T) < torch.tensor([[T], [20]])


def draw(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def three(dtype=torch.float64, tokens=T):
    return [draw(2, 4, tokens, 6, dtype=dtype, seed=i) for i in range(3)]


@pytest.mark.parametrize(
    ("spec", "backend"),
    [
        ({}, "sdpa"),
        ({"mask": qk.Causal() & qk.Window(3)}, "sdpa"),
        ({"bias": qk.ALiBi(4)}, "sdpa"),
        ({"mechanism": qk.Softmax(softcap=5.0)}, "reference"),
        ({"mechanism": qk.Argmax()}, "reference"),
        ({"mechanism": KERNEL, "mask": qk.Causal() & qk.Padding(REAL)}, "chunked"),
        ({"mechanism": KERNEL, "mask": qk.Causal() & qk.Window(3)}, "reference"),
    ],
)
def test_auto_takes_the_fastest_that_serves(spec, backend):
    q, k, v = three()
    explained = qk.explain(q, k, v, **spec)
    assert explained.backend == backend
    assert set(explained.others) == {"sdpa", "flex", "triton", "chunked", "reference"} - {backend}
    # the answer is the named backend's, to the last bit
    assert torch.equal(qk.attend(q, k, v, **spec), qk.attend(q, k, v, backend=backend, **spec))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own making
def test_a_call_like_one_that_was_served_is_checked_where_it_differs():
    q, k, v = three(torch.float32)
    served = qk.attend(q, k, v, mask=qk.Causal())
    assert torch.equal(qk.attend(q, k, v, mask=qk.Causal()), served)
    with pytest.raises(qk.QuerykeyError, match="`k` is a sparse"):
        qk.attend(q, k.to_sparse(), v, mask=qk.Causal())
    with pytest.raises(qk.QuerykeyError, match=r"`v` is torch\.float64"):
        qk.attend(q, k, v.double(), mask=qk.Causal())
    with pytest.raises(BackendError, match="there is no backend `sdqa`"):
        qk.attend(q, k, v, mask=qk.Causal(), backend="sdqa")
    # Only a run that asks again takes the backend that has a derivative in forward mode.
    _, tangent = torch.func.jvp(lambda x: qk.attend(x, k, v, mask=qk.Causal()), (q,), (k,))
    step = 1e-3
    ahead, behind = (
        qk.attend(q.double() + e * k.double(), k.double(), v.double(), mask=qk.Causal())
        for e in (step, -step)
    )
    assert ((ahead - behind) / (2 * step) - tangent).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [
        ((2, 4, 20, 6), (2, 4, 20, 6), (2, 4, 20, 6)),
        ((2, 4, 20, 6), (2, 2, 20, 6), (2, 2, 20, 6)),  # grouped heads
        ((2, 4, 17, 6), (2, 4, 20, 6), (2, 4, 20, 6)),  # no mask may ask where queries stand
        ((2, 4, 20, 6), (2, 4, 20, 6), (2, 4, 20, 9)),  # values of another size
        ((2, 4, 5, 6), (2, 4, 5, 6), (2, 4, 5, 6)),  # fewer keys than a vector has places
        ((20, 6), (20, 6), (20, 6)),
        ((3, 2, 4, 20, 6), (3, 2, 4, 20, 6), (3, 2, 4, 20, 6)),
    ],
)
@pytest.mark.parametrize("mask", [FULL, qk.Causal(), qk.Causal() & qk.Window(3)], ids=str)
@pytest.mark.parametrize("scale", [None, 0.7, -0.7])
def test_calls_that_are_alike_have_answers_of_their_own(q, k, v, mask, scale):
    """The first is settled, and the others are computed as it was, from their own numbers."""
    mechanism, mask = qk.Softmax(scale=scale), mask if q[-2] == k[-2] else FULL
    for seed in range(3):
        parts = [draw(*shape, seed=3 * seed + i) for i, shape in enumerate((q, k, v))]
        out = qk.attend(*parts, mechanism=mechanism, mask=mask)
        wanted = qk.attend(*(part.numpy() for part in parts), mechanism=mechanism, mask=mask)
        assert np.abs(out.numpy() - wanted).max() < 1e-12


@pytest.mark.parametrize("tokens", [5, 20])
def test_calls_that_are_alike_answer_not_a_number_where_all_keys_are_none(tokens):
    q, k, v = three(tokens=tokens)
    for keys in (k, k, torch.full_like(k, torch.nan)):
        out = qk.attend(q, keys, v, mask=qk.Causal())
    assert out.isnan().all()


def test_what_stands_in_an_array_is_read_at_every_call():
    q, k, v = three()
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    mask = qk.Dense(seen)
    first = qk.attend(q, k, v, mask=mask)
    seen[:, 5:] = False
    assert not torch.equal(qk.attend(q, k, v, mask=mask), first)


def test_an_explanation_in_words():
    q, k, v = three()
    assert str(qk.explain(q, k, v, mask=qk.Causal())) == (
        "sdpa: torch's fused softmax attention\n"
        "  note: NaN or inf in a key that only some queries may see can reach the others\n"
        "  not flex: FlexAttention on the CPU takes no float64\n"
        "  not triton: it computes kernel attention, not Softmax\n"
        "  not chunked: it computes kernel attention, not Softmax\n"
        "  not reference: it gives the same for finite numbers, but sdpa is faster"
    )
    assert str(qk.explain(*(x.numpy() for x in (q, k, v)))).splitlines()[0] == (
        "reference: the equation itself; fast backends take torch tensors, and q is a numpy array"
    )


def refusal(backend, q=None, **spec):
    first, k, v = three(torch.float32)
    with pytest.raises(BackendError) as caught:
        qk.attend(first if q is None else q, k, v, backend=backend, **spec)
    return str(caught.value)


def test_refusals_by_name():
    cannot = "cannot serve this call: "
    assert refusal("sdpa", mechanism=KERNEL) == (
        f"backend 'sdpa' {cannot}it computes softmax attention, not Kernel"
    )
    assert refusal("sdpa", mechanism=qk.Softmax(softcap=2.0)) == (
        f"backend 'sdpa' {cannot}it has no softcap"
    )
    assert refusal("chunked") == (
        f"backend 'chunked' {cannot}it computes kernel attention, not Softmax"
    )
    assert refusal("chunked", mechanism=KERNEL, mask=qk.Causal() & qk.Window(3)) == (
        f"backend 'chunked' {cannot}it takes Causal() and padding, and Window(size=3) is neither"
    )
    asked = {
        "it takes kernels of degree 2 in q.k, and Taylor(order=4, signed=False) is none": (
            {"mechanism": qk.Kernel(qk.Taylor(4))}
        ),
        "it takes Causal(), padding and documents, and Window(size=3) is none of these": (
            {"mechanism": KERNEL, "mask": qk.Causal() & qk.Window(3)}
        ),
        "with Causal() it takes as many queries as keys, the first at position 0": (
            {"mechanism": KERNEL, "mask": qk.Causal(), "start": 2}
        ),
        "with Documents(...) it takes as many queries as keys, the first at position 0": (
            {"mechanism": KERNEL, "mask": qk.Documents(REAL), "start": 1}
            | {"q": three(torch.float32)[0][:, :, 1:]}
        ),
        "it takes one Documents(...), not several at once": (
            {"mechanism": KERNEL, "mask": qk.Documents(REAL) & qk.Documents(~REAL)}
        ),
    }
    for reason, spec in asked.items():
        assert refusal("triton", **spec) == f"backend 'triton' {cannot}{reason}"
    assert refusal("triton", mechanism=KERNEL).startswith(
        f"backend 'triton' {cannot}it takes tensors on a GPU; q is on cpu"
    )
    assert refusal("flex", q=three(torch.float32)[0].requires_grad_()) == (
        f"backend 'flex' {cannot}FlexAttention has no backward on the CPU"
    )
    assert refusal("flex", bias=draw(T, T, dtype=torch.float32)) == (
        f"backend 'flex' {cannot}it takes a bias that is a rule over positions, not an array"
    )
    assert refusal("spda") == (
        "there is no backend `spda`; did you mean `sdpa`? "
        "(auto, sdpa, flex, triton, chunked, reference)"
    )
    x = np.ones((2, 3))
    with pytest.raises(BackendError, match="it takes torch tensors, and q is a numpy array"):
        qk.attend(x, x, x, backend="sdpa")


def test_sizes_that_the_gpu_kernels_take():
    ids = torch.zeros(2, 5, dtype=torch.int64)
    for size, mask, said in (
        (129, qk.FULL, "it takes keys and values of at most 128 entries"),
        (65, qk.Documents(ids), "it takes keys and values of at most 64 entries, with Documents"),
        (128, qk.FULL, "it takes tensors on a GPU"),
        (64, qk.Documents(ids), "it takes tensors on a GPU"),
    ):
        x = draw(2, 4, 5, size, dtype=torch.bfloat16)
        with pytest.raises(BackendError, match=said):
            qk.attend(x, x, x, mechanism=KERNEL, mask=mask, backend="triton")


def test_the_gpu_kernels_say_where_time_grows_with_the_square():
    documents = qk.Documents(torch.zeros(2, 5, dtype=torch.int64))
    for mask, said in (
        (qk.FULL, "sums over far tokens"),
        (documents, "every pair of a document"),
        (qk.Causal() & documents, "sums over far tokens"),
    ):
        q, v = draw(2, 4, 5, 64), draw(2, 4, 5, 16)
        request = Request.of(q, q, v, KERNEL, mask, None, None)
        assert triton.notes(request)[0].startswith(said)


@pytest.mark.parametrize("mechanism", [qk.Softmax(), qk.Argmax(), KERNEL])
@pytest.mark.parametrize(
    ("q", "k"), [((2, 4, 0, 6), (2, 4, 5, 6)), ((2, 4, 5, 6), (2, 4, 0, 6)),
                 ((0, 4, 5, 6), (0, 4, 5, 6)), ((2, 0, 5, 6), (2, 0, 5, 6))],
)  # fmt: skip
def test_nothing_is_served_too(mechanism, q, k):
    out = qk.attend(draw(*q), draw(*k), draw(*k), mechanism=mechanism)
    assert out.shape == q
    assert (out == 0).all()


SPECS = {
    "causal": {"mask": qk.Causal()},
    "padding": {"mask": qk.Causal() & qk.Padding(REAL)},
    "window": {"mask": qk.Causal() & qk.Window(4)},
    "argmax": {"mechanism": qk.Argmax()},
    "kernel": {"mechanism": KERNEL, "mask": qk.Causal()},
    "kernel padding": {"mechanism": KERNEL, "mask": qk.Padding(REAL)},
}


def with_gradients(run, inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = run(*inputs)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


def assert_same(first, second, tolerance=1e-10):
    for a, b in zip(first, second, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).abs().max() <= tolerance


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # torch's own, while it compiles
@pytest.mark.parametrize("name", SPECS)
def test_compiled_whole(name):
    torch.compiler.reset()

    def run(*x):
        return qk.attend(*x, **SPECS[name])

    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(whole, three()), with_gradients(run, three()))


FIRST = """
import torch, querykey as qk
x = torch.randn(1, 2, 5, 4)
for mechanism in (qk.Softmax(), qk.Argmax(), qk.Kernel(qk.Quadratic())):
    run = lambda x: qk.attend(x, x, x, mechanism=mechanism, mask=qk.Causal())
    whole = torch.compile(run, fullgraph=True, backend="eager")
    assert (whole(x) - run(x)).abs().max() < 1e-6
"""


@pytest.mark.slow
def test_the_first_call_of_a_process_may_be_compiled():
    """Backends are loaded when they are first asked for, and torch.compile traces few imports."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST], check=True)


@pytest.mark.parametrize("name", SPECS)
def test_checkpointed(name):
    def run(*x):
        return qk.attend(*x, **SPECS[name])

    again = with_gradients(lambda *x: checkpoint(run, *x, use_reentrant=False), three())
    assert_same(again, with_gradients(run, three()))


@pytest.mark.parametrize("name", ["causal", "padding", "kernel"])
def test_under_autocast_the_products_are_in_its_dtype(name):
    q, k, v = three(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = qk.attend(q, k, v, **SPECS[name])
    low = qk.attend(*(x.bfloat16() for x in (q, k, v)), **SPECS[name])
    assert out.dtype == torch.bfloat16
    assert torch.isfinite(out).all()
    assert (out - low).abs().max() <= 0.02


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    kv_heads=st.sampled_from([1, 2, 4]),
    name=st.sampled_from(["softmax", "window", "kernel", "argmax"]),
)
def test_any_split_through_the_backends_equals_the_whole(cuts, kv_heads, name):
    mechanism, mask = {
        "softmax": (qk.Softmax(), qk.Causal()),
        "window": (qk.Softmax(), qk.Causal() & qk.Window(4)),
        "kernel": (KERNEL, qk.Causal()),
        "argmax": (qk.Argmax(), qk.Causal()),
    }[name]
    tokens = sum(cuts)
    q = draw(2, 4, tokens, 6)
    k, v = draw(2, kv_heads, tokens, 6, seed=1), draw(2, kv_heads, tokens, 5, seed=2)
    state = qk.empty_state(mechanism, mask, 2, kv_heads=kv_heads, key_dim=6, value_dim=5)
    outs, first, at = [], state, 0
    for cut in cuts:
        piece = (x[:, :, at : at + cut] for x in (q, k, v))
        out, state = qk.extend(*piece, state)
        outs.append(out)
        at += cut
    whole = qk.attend(q, k, v, mechanism=mechanism, mask=mask)
    assert (torch.cat(outs, dim=2) - whole).abs().max() < 1e-9
    assert state.lengths.tolist() == [tokens, tokens]
    again, _ = qk.extend(*(x[:, :, : cuts[0]] for x in (q, k, v)), first)
    assert torch.equal(again, outs[0])  # the old state is as it was


def test_a_long_ragged_prompt_is_taken_in_by_chunks_as_by_the_equation():
    tokens, prompt = 300, draw(2, 2, 300, 5, seed=7)
    q, k, v = draw(2, 4, tokens, 5) / 2, prompt / 2, draw(2, 2, tokens, 5, seed=8)
    real = torch.ones(2, tokens, dtype=torch.bool)
    real[0, 250:], real[1, :40] = False, False
    found = []
    for way in (qk.extend, partial(qk.extend, backend="reference")):
        state = qk.empty_state(KERNEL, batch=2, kv_heads=2, key_dim=5, value_dim=5)
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out, state = way(*inputs, state, real)
        more, state = way(*(x[:, :, :3] for x in inputs), state)
        loss = out.square().sum() + more.square().sum() + state.outer.square().sum() / 100
        found.append([out, more, *state.arrays, *torch.autograd.grad(loss, inputs)])
    assert state.lengths.tolist() == [253, 263]
    assert_same(*found, tolerance=1e-8)
    assert (found[0][0][~real[:, None].expand(2, 4, tokens)] == 0).all()
