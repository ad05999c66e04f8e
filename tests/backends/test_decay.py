"""Decay through the backends: who serves it, that chunks give what the equation gives, its cost."""

import pytest
import torch
from torch import nn

import querykey as qk
from querykey.attention import reference
from querykey.backends import BackendError

KERNEL = qk.Kernel(qk.Quadratic(), scale=0.3)
T = 300  # several chunks
REAL = torch.arange(T) < torch.tensor([[T], [171]])
LEFT = REAL.flip(1)


def draw(queries=T, keys=T, heads=4, kv_heads=2, dtype=torch.float64, batch=2):
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads, queries, 5), (kv_heads, keys, 5), (kv_heads, keys, 3), (kv_heads, keys))
    q, k, v, decay = (
        torch.randn(batch, *shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return [x.to(dtype) for x in (q / 2, k / 2, v, -(decay**2) / 4)]


def with_gradients(run, inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = run(*inputs)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]


def assert_same(ours, theirs, tolerance=1e-9):
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert (a - b).abs().max() <= tolerance * b.abs().max().clamp(min=1)


CASES = {
    "causal": ({"mask": qk.Causal()}, T),
    "right padding": ({"mask": qk.Causal() & qk.Padding(REAL)}, T),
    "left padding": ({"mask": qk.Causal() & qk.Padding(LEFT)}, T),
    "late queries": ({"mask": qk.Causal(), "start": 100}, 150),
    "late queries, padding": ({"mask": qk.Causal() & qk.Padding(LEFT), "start": 100}, 150),
}


@pytest.mark.parametrize("features", [qk.Quadratic(), qk.EluPlusOne(), qk.RandomFeatures(9)])
@pytest.mark.parametrize("case", CASES)
def test_chunks_give_what_the_equation_gives(case, features):
    options, queries = CASES[case]
    options = options | {"mechanism": qk.Kernel(features, scale=0.3)}
    inputs = draw(queries)
    q, k, v, decay = inputs
    assert qk.explain(q, k, v, decay=decay, **options).backend == "chunked"
    ours = with_gradients(lambda q, k, v, d: qk.attend(q, k, v, decay=d, **options), inputs)
    wanted = with_gradients(
        lambda q, k, v, d: reference.attend(q, k, v, decay=d, **options), inputs
    )
    assert_same(ours, wanted)


def test_ranks_without_heads_and_without_batch():
    q, k, v, decay = draw(heads=2)
    options = {"mechanism": KERNEL, "mask": qk.Causal(), "backend": "chunked"}
    whole = qk.attend(q, k, v, decay=decay, **options)
    for at in [(1,), (1, 1)]:
        some = qk.attend(q[at], k[at], v[at], decay=decay[at], **options)
        torch.testing.assert_close(some, whole[at], rtol=0, atol=1e-12)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 2.0])
def test_the_decay_of_padding_may_hold_anything(poison):
    q, k, v, decay = draw()
    options = {"mechanism": KERNEL, "mask": qk.Causal() & qk.Padding(LEFT)}
    clean = with_gradients(
        lambda q, k, v, d: qk.attend(q, k, v, decay=d, **options), [q, k, v, decay]
    )
    decay = decay.masked_fill(~LEFT[:, None], poison)
    found = with_gradients(
        lambda q, k, v, d: qk.attend(q, k, v, decay=d, **options), [q, k, v, decay]
    )
    assert all(torch.equal(a, b) for a, b in zip(found, clean, strict=True))


def refusal(backend, **options):
    q, k, v, decay = draw(dtype=torch.float32)
    options = {"mechanism": KERNEL, "mask": qk.Causal(), "decay": decay} | options
    with pytest.raises(BackendError) as caught:
        qk.attend(q, k, v, backend=backend, **options)
    return str(caught.value).removeprefix(f"backend '{backend}' cannot serve this call: ")


def test_who_refuses_decay_and_why():
    assert refusal("triton").startswith("it takes tensors on a GPU")
    for backend in ("sdpa", "flex"):
        assert refusal(backend) == "it computes softmax attention, not Kernel"
    ids = torch.zeros(2, T, dtype=torch.int64)
    both = qk.Causal() & qk.Documents(ids)
    assert refusal("triton", mask=both) == "it takes a decay or Documents(...), not both"
    assert refusal("chunked", mask=both).startswith(
        "it takes Causal() and padding, and Documents(int64 array (2, 300)) is neither"
    )


def test_documents_are_served_by_the_equation():
    q, k, v, decay = draw()
    mask = qk.Causal() & qk.Documents(torch.arange(T).expand(2, T) // 100)
    assert qk.explain(q, k, v, decay=decay, mechanism=KERNEL, mask=mask).backend == "reference"
    out = qk.attend(q, k, v, decay=decay, mechanism=KERNEL, mask=mask)
    alone = (x[:, :, 100:200] for x in (q, k, v, decay))
    q, k, v, decay = alone
    some = qk.attend(q, k, v, decay=decay, mechanism=KERNEL, mask=qk.Causal())
    torch.testing.assert_close(out[:, :, 100:200], some, rtol=0, atol=1e-11)


def begun(like):
    return qk.empty_state(KERNEL, batch=2, kv_heads=2, key_dim=5, value_dim=3, like=like)


@pytest.mark.parametrize("backend", ["auto", "chunked"])
def test_a_long_ragged_prompt_is_taken_in_as_by_the_equation(backend):
    inputs, real = draw(), LEFT & REAL
    results = []
    for way in (backend, "reference"):
        leaves = [x.clone().requires_grad_() for x in inputs]
        q, k, v, decay = leaves
        poisoned = decay.masked_fill(~real[:, None], float("nan"))
        last = [x[:, :, :3] for x in leaves]
        state = begun(q)
        out, state = qk.extend(q, k, v, state, real, decay=poisoned, backend=way)
        more, state = qk.extend(*last[:3], state, decay=last[3], backend=way)
        loss = out.square().sum() + more.square().sum() + state.outer.square().sum() / 100
        results.append([out, more, *state.arrays, *torch.autograd.grad(loss, leaves)])
    assert_same(*results, tolerance=1e-8)


def test_the_gpu_kernels_refuse_a_decaying_state_on_a_cpu():
    q, k, v, decay = (x[:, :, :1] for x in draw(dtype=torch.float32))
    with pytest.raises(BackendError, match="'triton' cannot serve this call: it takes tensors on"):
        qk.extend(q, k, v, begun(q), decay=decay, backend="triton")


class Gated(nn.Module):
    """Causal quadratic attention of one head group, with or without a gate."""

    def __init__(self, gated):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.gate = nn.Linear(8, 2) if gated else None

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        decay = None
        if self.gate is not None:
            decay = nn.functional.logsigmoid(self.gate(x)).transpose(1, 2)
        return qk.attend(q, k, v, mechanism=KERNEL, mask=qk.Causal(), decay=decay)


@pytest.mark.slow
def test_cost_counts_a_module_with_decay():
    plain, gated = (qk.cost(Gated(x), qk.array("batch", "seq", 8)) for x in (False, True))
    assert gated.params - plain.params == 18
    sizes = {"batch": 2, "seq": 700}
    ours, theirs = gated.at(**sizes), plain.at(**sizes)
    assert ours.flops.forward - theirs.flops.forward == 2 * 2 * 700 * 8 * 2  # the gate's product
    assert ours.flops.backward >= theirs.flops.backward


@pytest.mark.slow
@pytest.mark.parametrize("case", ["causal", "left padding"])
def test_compiled_whole(case):
    torch.compiler.reset()
    options = CASES[case][0] | {"mechanism": KERNEL}

    def run(q, k, v, decay):
        return qk.attend(q, k, v, decay=decay, **options)

    whole = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert_same(with_gradients(whole, draw()), with_gradients(run, draw()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_lower_precision_stays_near_the_exact_answer(dtype):
    q, k, v, decay = draw(dtype=dtype)
    options = {"mechanism": KERNEL, "mask": qk.Causal()}
    wide = [x.double() for x in (q, k, v, decay)]
    exact = reference.attend(*wide[:3], decay=wide[3], **options)
    low = reference.attend(q, k, v, decay=decay, **options)
    found = qk.attend(q, k, v, decay=decay, **options)
    allowed = 2 * (low - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()
    assert (found - exact).abs().max() <= allowed
