"""Decay in the equation and in states: against the oracle, in every library, split at will."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import oracle

import querykey as qk
from querykey.attention import Mechanism, shares
from querykey.attention.reference import attend, weights

S, D, M = 7, 5, 3
QUADRATIC = qk.Kernel(qk.Quadratic())
REAL = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 1, 1, 0]])
IDS = np.array([[4, 4, 9, 9, 9, 4, 2], [0, 1, 1, 1, 1, 1, 1]])  # 4 comes back: interleaved
EVERY = np.ones_like(REAL)

KERNELS = {
    "quadratic": (QUADRATIC, lambda q, k: (oracle.dot(q, k) + 1) ** 2),
    "polynomial": (
        qk.Kernel(qk.Polynomial(4, bias=0.5), scale=0.3),
        lambda q, k: (0.3 * oracle.dot(q, k) + 0.5) ** 4,
    ),
    "elu": (
        qk.Kernel(qk.EluPlusOne()),
        lambda q, k: oracle.dot(oracle.elu_plus_one(q), oracle.elu_plus_one(k)),
    ),
}
# Each mask beside its rule in plain words, and which tokens are real.
MASKS = {
    "causal": (qk.Causal(), lambda b, i, j: j <= i, EVERY),
    "padding": (qk.Causal() & qk.Padding(REAL), lambda b, i, j: j <= i and REAL[b][j] == 1, REAL),
    "documents": (
        qk.Documents(IDS) & qk.Causal(),
        lambda b, i, j: j <= i and IDS[b][i] == IDS[b][j],
        EVERY,
    ),
    "both": (
        qk.Documents(IDS) & qk.Padding(REAL == 1) & qk.Causal(),
        lambda b, i, j: j <= i and IDS[b][i] == IDS[b][j] and REAL[b][j] == 1,
        REAL,
    ),
}
POSITIONS = {"T=S": (7, None), "T<S": (3, 2), "T=1": (1, 6), "ragged": (2, np.array([1, 5]))}
HEADS = {"single": (1, 1), "multi": (3, 3), "grouped": (6, 2)}


def draw(queries=S, heads=6, kv_heads=2, keys=S, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((2, heads, queries, D)),
        rng.standard_normal((2, kv_heads, keys, D)),
        rng.standard_normal((2, kv_heads, keys, M)),
        -rng.exponential(0.7, (2, kv_heads, keys)),
    )


def expected(q, k, v, decay, similarity, rule, real, starts):
    """The oracle, head by head: similarities times factors, made into shares."""
    all_weights, all_outputs = [], []
    heads, kv_heads = len(q[0]), len(k[0])
    for b in range(len(q)):
        for h in range(heads):
            g = oracle.serving_head(h, heads, kv_heads)

            def score(q_i, k_j, i, j, b=b, g=g):
                factor = oracle.decay_factor(decay[b][g], real[b], starts[b] + i, j)
                return similarity(q_i, k_j) * factor

            rows = oracle.head_weights(
                q[b][h],
                k[b][g],
                score,
                oracle.share_weights,
                lambda i, j, b=b: rule(b, starts[b] + i, j),
            )
            all_weights.append(rows)
            all_outputs.append(oracle.head_output(rows, v[b][g], M))
    shape = (len(q), heads, len(q[0][0]))
    return np.reshape(all_weights, (*shape, -1)), np.reshape(all_outputs, (*shape, M))


def wrapper(library):
    ag = pytest.importorskip("querykey.ag")
    return {"numpy": np.asarray, "torch": torch.tensor, "ag": ag.Tensor}[library]


@pytest.mark.parametrize("library", ["numpy", "torch", "ag"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_decay_agrees_with_the_oracle(kernel, mask, position, library):
    spec, similarity = KERNELS[kernel]
    rule_spec, rule, real = MASKS[mask]
    queries, start = POSITIONS[position]
    starts = [0, 0] if start is None else np.broadcast_to(start, 2).tolist()
    for heads, kv_heads in HEADS.values():
        arrays = draw(queries, heads, kv_heads)
        lists = [x.tolist() for x in arrays]
        want_weights, want = expected(*lists, similarity, rule, real, starts)
        q, k, v, decay = (wrapper(library)(x) for x in arrays)
        options = {"mechanism": spec, "mask": rule_spec, "start": start, "decay": decay}
        np.testing.assert_allclose(np.asarray(attend(q, k, v, **options)), want, rtol=0, atol=1e-12)
        found = np.asarray(weights(q, k, **options))
        np.testing.assert_allclose(found, want_weights, rtol=0, atol=1e-12)
        through = np.asarray(qk.attend(q, k, v, **options))
        np.testing.assert_allclose(through, want, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
def test_jax_has_decay(mask):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        q, k, v, decay = (jax.numpy.asarray(x) for x in draw())
        options = {"mechanism": QUADRATIC, "mask": MASKS[mask][0]}
        out = jax.jit(lambda *x: attend(*x[:3], decay=x[3], **options))(q, k, v, decay)
        ours = attend(*draw()[:3], decay=draw()[3], **options)
        np.testing.assert_allclose(np.asarray(out), ours, rtol=0, atol=1e-12)


@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
def test_ranks_without_batch_or_heads_and_with_more_batch(wrap):
    q, k, v, decay = (wrap(x) for x in draw(heads=3, kv_heads=3))
    options = {"mechanism": QUADRATIC, "mask": qk.Causal()}
    whole = np.asarray(attend(q, k, v, decay=decay, **options))
    for at in [(1,), (1, 2)]:
        some = attend(q[at], k[at], v[at], decay=decay[at], **options)
        np.testing.assert_allclose(np.asarray(some), whole[at], rtol=0, atol=1e-14)
    at = (1, 2)
    late = attend(q[at][3:], k[at], v[at], decay=decay[at], start=3, **options)
    np.testing.assert_allclose(np.asarray(late), whole[at][3:], rtol=0, atol=1e-14)
    lifted = attend(*(x[:, None] for x in (q, k, v)), decay=decay[:, None], **options)
    np.testing.assert_allclose(np.asarray(lifted)[:, 0], whole, rtol=0, atol=1e-14)


def test_no_decay_is_a_decay_of_zeros():
    q, k, v, decay = draw()
    options = {"mechanism": QUADRATIC, "mask": qk.Causal()}
    plain = attend(q, k, v, **options)
    np.testing.assert_allclose(attend(q, k, v, decay=0 * decay, **options), plain, atol=1e-14)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 3.0])
@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
def test_the_decay_of_padding_may_hold_anything(wrap, poison):
    q, k, v, decay = draw()
    options = {"mechanism": QUADRATIC, "mask": qk.Causal() & qk.Padding(REAL)}
    poisoned = np.where(REAL[:, None] == 1, decay, poison)
    want = attend(q, k, v, decay=decay, **options)
    found = attend(*(wrap(x) for x in (q, k, v)), decay=wrap(poisoned), **options)
    np.testing.assert_allclose(np.asarray(found), want, rtol=0, atol=1e-14)
    if wrap is torch.tensor:
        leaf = torch.tensor(poisoned, requires_grad=True)
        attend(*(wrap(x) for x in (q, k, v)), decay=leaf, **options).square().sum().backward()
        assert leaf.grad.isfinite().all()
        assert not leaf.grad[torch.tensor(REAL == 0)[:, None].expand(2, 2, S)].any()


def test_strong_decay_leaves_the_own_key_and_no_nan():
    q, k, v, _ = (torch.tensor(x) for x in draw())
    decay = torch.full((2, 2, S), -1e30, dtype=torch.float64, requires_grad=True)
    out = attend(q, k, v, mechanism=QUADRATIC, mask=qk.Causal(), decay=decay)
    own = v.repeat_interleave(3, 1)
    torch.testing.assert_close(out, own, rtol=0, atol=1e-15)
    out.sum().backward()
    assert (decay.grad == 0).all()


def test_small_decays_behind_a_strong_one_keep_their_digits():
    q, k, v, _ = draw(heads=1, kv_heads=1)
    decay = np.full((2, 1, S), -0.3)
    decay[..., 2] = -1e12
    whole = attend(q, k, v, mechanism=QUADRATIC, mask=qk.Causal(), decay=decay)
    behind = attend(
        *(x[:, :, 2:] for x in (q, k, v)),
        mechanism=QUADRATIC, mask=qk.Causal(), decay=np.full((2, 1, S - 2), -0.3),
    )  # fmt: skip
    np.testing.assert_allclose(whole[:, :, 2:], behind, rtol=0, atol=1e-14)


@pytest.mark.parametrize("mask", MASKS)
def test_gradients_in_float64(mask):
    inputs = [torch.tensor(x, requires_grad=True) for x in draw(queries=4, heads=2, kv_heads=1)]

    def run(q, k, v, decay):
        # The check of values would refuse the steps above 0 that gradcheck takes: there are none.
        return attend(
            q, k, v, mechanism=QUADRATIC, mask=MASKS[mask][0], start=3, decay=decay - 1e-3
        )

    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.slow
def test_ag_gives_the_gradient_of_torch():
    ag = pytest.importorskip("querykey.ag")
    options = {"mechanism": QUADRATIC, "mask": MASKS["both"][0]}
    ours = [ag.Tensor(x) for x in draw()]
    theirs = [torch.tensor(x, requires_grad=True) for x in draw()]
    for arrays in (ours, theirs):
        out = attend(*arrays[:3], decay=arrays[3], **options)
        (out * out).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(a.grad), b.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_in_float32(dtype):
    q, k, v, decay = (torch.tensor(x).to(dtype) for x in draw(keys=S))
    options = {"mechanism": QUADRATIC, "mask": qk.Causal()}
    out = attend(q, k, v, decay=decay, **options)
    exact = attend(*(x.double() for x in (q, k, v)), decay=decay.double(), **options)
    assert out.dtype == dtype
    assert (out.double() - exact).abs().max() <= 2 * torch.finfo(dtype).eps * exact.abs().max()
    long = torch.full((1, 1, 600), -0.01, dtype=dtype)
    x = torch.zeros(1, 1, 600, D, dtype=dtype)
    table = weights(x, x, decay=long, **options).double()
    ratios = table[0, 0, -1] / table[0, 0, -1, -1]
    between = torch.arange(599, -1, -1).double() * long[0, 0, 0].double()
    assert (ratios / between.exp() - 1).abs().max() < 0.01


def states(kernel, batch=2):
    return qk.empty_state(kernel, batch=batch, kv_heads=2, key_dim=D, value_dim=M)


WAYS = {"equation": partial(qk.extend, backend="reference"), "backends": qk.extend}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("library", ["numpy", "torch", "torch-gradient"])
@settings(max_examples=25, deadline=None)
@given(kernel=st.sampled_from(list(KERNELS)), cuts=st.lists(st.integers(0, 11), max_size=4))
def test_any_split_equals_the_whole(library, way, kernel, cuts):
    spec = KERNELS[kernel][0]
    q, k, v, decay = draw(11, keys=11)
    arrays = [0.4 * q, 0.4 * k, v, decay]
    if library != "numpy":
        arrays = [torch.tensor(x, requires_grad="grad" in library) for x in arrays]
    ends = [0, *sorted(cuts), 11]
    state, outs = states(spec), []
    size = state.started(arrays[0]).nbytes
    for first, last in itertools.pairwise(ends):
        piece = [x[:, :, first:last] for x in arrays]
        out, state = WAYS[way](*piece[:3], state, decay=piece[3])
        outs.append(out)
        assert state.nbytes == size
    whole = attend(*arrays[:3], mechanism=spec, mask=qk.Causal(), decay=arrays[3])
    if library == "numpy":
        np.testing.assert_allclose(np.concatenate(outs, 2), whole, rtol=0, atol=1e-12)
        return
    joined = torch.cat(outs, 2)
    torch.testing.assert_close(joined, whole, rtol=0, atol=1e-12)
    if "grad" in library:
        weight = torch.randn_like(whole)
        ours = torch.autograd.grad((joined * weight).sum(), arrays)
        theirs = torch.autograd.grad((whole * weight).sum(), arrays)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_ragged_rows_decode_as_if_each_were_alone(way, data):
    """What is not real counts as 0 and may hold anything; calls without decay count as 0 too."""
    state, seen = states(QUADRATIC, batch=3), [[] for _ in range(3)]
    outs = []
    for turn in range(data.draw(st.integers(1, 3))):
        tokens = data.draw(st.integers(0, 4))
        flat = data.draw(st.lists(st.booleans(), min_size=3 * tokens, max_size=3 * tokens))
        real = np.array(flat, dtype=bool).reshape(3, tokens)
        rng = np.random.default_rng(turn)
        q, k, v = (
            0.4 * rng.standard_normal((3, n, tokens, w)) for n, w in ((6, D), (2, D), (2, M))
        )
        decay = -rng.exponential(0.7, (3, 2, tokens)) * (turn != 1)
        poisoned = np.where(real[:, None], decay, np.nan)
        given_decay = None if turn == 1 else poisoned
        out, state = WAYS[way](q, k, v, state, real, decay=given_decay)
        outs.append((real, out))
        for b in range(3):
            seen[b].append([x[b : b + 1][:, :, real[b]] for x in (q, k, v, decay)])
    for b in range(3):
        alone = [np.concatenate([piece[i] for piece in seen[b]], axis=2) for i in range(4)]
        whole = attend(*alone[:3], mechanism=QUADRATIC, mask=qk.Causal(), decay=alone[3])[0]
        found = np.concatenate([out[b][:, real[b]] for real, out in outs], axis=1)
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
def test_a_long_chunk_goes_through_block_by_block(way, wrap):
    q, k, v, decay = draw(300, keys=300)
    arrays = [wrap(x) for x in (0.4 * q, 0.4 * k, v, decay / 9)]
    out, state = WAYS[way](*arrays[:3], states(QUADRATIC), decay=arrays[3])
    more, _ = WAYS[way](*(x[:, :, :2] for x in arrays[:3]), state, decay=arrays[3][:, :, :2])
    twice = [np.concatenate([np.asarray(x), np.asarray(x)[:, :, :2]], 2) for x in arrays]
    whole = attend(*twice[:3], mechanism=QUADRATIC, mask=qk.Causal(), decay=twice[3])
    found = np.concatenate([np.asarray(out), np.asarray(more)], 2)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-12)


class Tent(Mechanism):
    """A mechanism of one's own that takes a decay."""

    takes_decay = True

    def weights(self, q, k, seen, *, decay=None):
        ones = seen & (q[..., :, None, 0] == q[..., :, None, 0])
        return shares(ones * (1.0 if decay is None else decay), seen)


def test_a_mechanism_of_ones_own_may_take_a_decay():
    q, k, _, decay = draw(heads=2)
    found = weights(q, k, mechanism=Tent(), mask=qk.Causal(), decay=decay)
    _, rule, real = MASKS["causal"]
    lists = [x.tolist() for x in (*draw(heads=2)[:3], decay)]
    want, _ = expected(*lists, lambda q, k: 1.0, rule, real, [0, 0])
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)


Q, K, V, DECAY = (torch.tensor(x, dtype=torch.float32) for x in draw(queries=3))
SHOWN = """
  q      (2, 6, 3, 5) torch float32 on cpu
  k      (2, 2, 7, 5) torch float32 on cpu
  v      (2, 2, 7, 3) torch float32 on cpu
  decay  """


def changed(value, place):
    decay = DECAY.clone()
    decay[place] = value
    return decay


GATE = "decay is the logarithm of a gate, so it is finite and at most 0; got "
WANTS = (
    "a decay runs from a key to a later query: it wants Causal(), with Padding and Documents or "
    "without; got "
)
REFUSED = [
    ({"decay": changed(0.5, (1, 0, 3))}, ValueError, GATE + "0.5 at (1, 0, 3)"),
    ({"decay": changed(float("nan"), (0, 1, 6))}, ValueError, GATE + "nan at (0, 1, 6)"),
    ({"decay": changed(-float("inf"), (1, 1, 0))}, ValueError, GATE + "-inf at (1, 1, 0)"),
    ({"decay": changed(0.5, (1, 0, 3)).bfloat16()}, TypeError, "`q` is torch.float32 but `decay`"),
    ({"decay": DECAY.numpy()}, TypeError, "`q` is a torch array but `decay` is of numpy"),
    ({"decay": -1.0}, TypeError, "`decay` is no array but a float"),
    ({"decay": DECAY.to("meta")}, ValueError, "`q` is on cpu but `decay` is on meta"),
    ({"decay": DECAY[:, :1]}, ValueError, "axis `kv_head` is 2 in `k` but 1 in `decay`"),
    ({"decay": DECAY[..., :5]}, ValueError, "axis `key` is 7 in `k` but 5 in `decay`"),
    ({"decay": DECAY[0]}, ValueError, "`decay` has 2 axes but wants 3"),
    ({"mask": qk.FULL}, ValueError, WANTS + "FULL"),
    ({"mask": qk.Padding(REAL)}, ValueError, WANTS + "Padding(int64 array (2, 7))"),
    ({"mask": qk.Causal() & qk.Window(3)}, ValueError, WANTS + "Causal() & Window(size=3)"),
    ({"mask": qk.Causal() | qk.Prefix(3)}, ValueError, WANTS + "Causal() | Prefix(count=3)"),
    (
        {"mechanism": qk.Softmax()},
        ValueError,
        "a decay multiplies the similarities of Kernel; Softmax(scale=None, softcap=None) has no "
        "use for it",
    ),
    ({"start": 5}, ValueError, "decay has no value for the last query, at position 7"),
    (
        {"start": torch.tensor([0, 6])},
        ValueError,
        "decay has no value for the last query, at position 8",
    ),
]


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED)
def test_refusals(options, kind, text):
    options = {"mechanism": QUADRATIC, "mask": qk.Causal(), "start": 4, "decay": DECAY} | options
    for call in (attend, qk.attend, qk.explain):
        with pytest.raises(kind) as caught:
            call(Q, K, V, **options)
        assert str(caught.value).startswith(text)
    with pytest.raises(kind):
        weights(Q, K, **options)


def test_a_refusal_shows_the_arrays():
    with pytest.raises(ValueError, match="decay has no value") as caught:
        attend(Q, K, V, mechanism=QUADRATIC, mask=qk.Causal(), start=5, decay=DECAY)
    assert str(caught.value) == (
        "decay has no value for the last query, at position 7"
        + SHOWN
        + "(2, 2, 7) torch float32 on cpu"
    )


def test_the_place_of_a_wrong_value_in_a_half_precision_tensor_and_in_ag():
    ag = pytest.importorskip("querykey.ag")
    for wrap in (lambda x: torch.tensor(x).bfloat16(), ag.Tensor):
        q, k, v, decay = draw()
        decay[1, 0, 4] = 2
        with pytest.raises(ValueError, match=r"got 2 at \(1, 0, 4\)"):
            attend(
                *(wrap(x) for x in (q, k, v)), mechanism=QUADRATIC, mask=qk.Causal(),
                decay=wrap(decay),
            )  # fmt: skip


def test_refusals_of_states():
    q, k, v, decay = draw()
    wrong = decay.copy()
    wrong[0, 1, 2] = 1
    with pytest.raises(ValueError, match=r"got 1 at \(0, 1, 2\)"):
        qk.extend(q, k, v, states(QUADRATIC), decay=wrong)
    for mechanism, mask, text in (
        (qk.Softmax(), qk.Causal(), "a decay multiplies the similarities of Kernel"),
        (QUADRATIC, qk.Causal() & qk.Strided(2), "a decay runs from a key to a later query"),
    ):
        state = qk.empty_state(mechanism, mask, 2, kv_heads=2, key_dim=D, value_dim=M)
        for way in (*WAYS.values(), qk.backends.follow):
            with pytest.raises(ValueError, match=text):
                way(q, k, v, state.started(k), decay=decay)
    with pytest.raises(ValueError, match="axis `key` is 7 in `k` but 5 in `decay`"):
        qk.extend(q, k, v, states(QUADRATIC), decay=decay[..., :5])


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["causal", "both"])
def test_compiled_whole(mask):
    inputs = [torch.tensor(x) for x in draw()]

    def run(q, k, v, decay):
        return attend(q, k, v, mechanism=QUADRATIC, mask=MASKS[mask][0], decay=decay)

    torch.compiler.reset()
    whole = torch.compile(run, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(*inputs), run(*inputs), rtol=0, atol=1e-12)
