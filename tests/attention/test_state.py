"""Any split of a sequence equals the whole; a state is a value; what cannot decode is refused."""

import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import querykey as qk
from querykey.attention.biases import ALiBi
from querykey.attention.decoding.empty_state import empty_state
from querykey.attention.decoding.growing import Growing
from querykey.attention.decoding.recurrent import Recurrent
from querykey.attention.decoding.sliding import Sliding
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
from querykey.attention.mechanisms import Argmax, Kernel, Similarity, Softmax
from querykey.attention.reference import attend
from querykey.shapes import ShapeError

D, M, HEADS, KV_HEADS = 5, 3, 6, 2
extend = partial(qk.extend, backend="reference")


def gaussian(q, k):
    square = ((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1)
    return square.__neg__().exp() if hasattr(square, "exp") else np.exp(-square)


MECHANISMS = [
    Softmax(),
    Softmax(scale=0.2, softcap=1.5),
    Argmax(),
    Kernel(Quadratic()),
    Kernel(Polynomial(4, bias=0.5), scale=0.5),
    Kernel(EluPlusOne()),
    Kernel(Taylor(2), scale=0.4),
    Kernel(RandomFeatures(9), scale=0.3),
    Similarity(gaussian),
]
MASKS = [
    Causal(),
    Causal() & Window(1),
    Causal() & Window(4),
    Causal() & Dilated(3, 2),
    Causal() & Strided(2),
    Causal() & (Window(2) | Global(2)),
    Causal() & Blocks(3),
    Causal() & ~Window(2),
]


def draw(batch, tokens, seed=0):
    """Queries and keys short enough to keep (q.k + bias)^n away from 0.

    Near 0, sums of features lose digits to cancellation that the closed form does not lose.
    """
    rng = np.random.default_rng(seed)
    return (
        0.4 * rng.standard_normal((batch, HEADS, tokens, D)),
        0.4 * rng.standard_normal((batch, KV_HEADS, tokens, D)),
        rng.standard_normal((batch, KV_HEADS, tokens, M)),
    )


def empty(mechanism, mask=Causal(), batch=1, **options):  # noqa: B008
    sizes = {"kv_heads": KV_HEADS, "key_dim": D, "value_dim": M}
    return empty_state(mechanism, mask, batch, **sizes, **options)


def pieces(arrays, cuts):
    ends = [0, *sorted(cuts), arrays[0].shape[2]]
    for first, last in itertools.pairwise(ends):
        yield tuple(x[:, :, first:last] for x in arrays)


@pytest.mark.parametrize("library", ["numpy", "torch", "torch-gradient"])
@settings(max_examples=60, deadline=None)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    mask=st.sampled_from(MASKS),
    tokens=st.integers(0, 11),
    data=st.data(),
)
def test_any_split_equals_the_whole(library, mechanism, mask, tokens, data):
    arrays = draw(2, tokens)
    if library != "numpy":
        arrays = tuple(torch.tensor(x, requires_grad="grad" in library) for x in arrays)
    cuts = data.draw(st.lists(st.integers(0, tokens), max_size=4))
    state = empty(mechanism, mask, batch=2)
    outs = []
    for piece in pieces(arrays, cuts):
        out, state = extend(*piece, state)
        outs.append(out)
    whole = attend(*arrays, mechanism=mechanism, mask=mask)
    if library == "numpy":
        np.testing.assert_allclose(np.concatenate(outs, 2), whole, rtol=0, atol=1e-12)
    else:
        joined = torch.cat(outs, 2)
        torch.testing.assert_close(joined, whole, rtol=0, atol=1e-12)
        if "grad" in library and tokens:
            weight = torch.randn_like(whole)
            ours = torch.autograd.grad((joined * weight).sum(), arrays)
            theirs = torch.autograd.grad((whole * weight).sum(), arrays)
            for a, b in zip(ours, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    assert state.lengths.tolist() == [tokens, tokens]


@pytest.mark.parametrize("library", ["numpy", "torch", "torch-gradient"])
@settings(max_examples=60, deadline=None)
@given(mechanism=st.sampled_from(MECHANISMS), mask=st.sampled_from(MASKS), data=st.data())
def test_ragged_rows_decode_as_if_each_were_alone(library, mechanism, mask, data):
    """Chunks with holes anywhere; what is not real holds NaN and leaves nothing behind."""
    batch, rounds = 3, data.draw(st.integers(1, 3))
    state, seen, outs = empty(mechanism, mask, batch=batch), [[] for _ in range(batch)], []
    wrap = np.asarray if library == "numpy" else torch.tensor
    for turn in range(rounds):
        tokens = data.draw(st.integers(0, 4))
        flat = data.draw(st.lists(st.booleans(), min_size=batch * tokens, max_size=batch * tokens))
        real = np.array(flat, dtype=bool).reshape(batch, tokens)
        q, k, v = draw(batch, tokens, seed=turn)
        poisoned = [wrap(np.where(real[:, None, :, None], x, np.nan)) for x in (q, k, v)]
        if "gradient" in library:
            poisoned = [x.requires_grad_() for x in poisoned]
        out, state = extend(*poisoned, state, real=wrap(real))
        if "gradient" in library:
            out.sum().backward(retain_graph=True)
            assert all(x.grad is None or x.grad.isfinite().all() for x in poisoned)
            out = out.detach()
        outs.append((real, np.asarray(out)))
        for b in range(batch):
            seen[b].append([x[b : b + 1][:, :, real[b]] for x in (q, k, v)])
    assert state.lengths.tolist() == [sum(r[b].sum() for r, _ in outs) for b in range(batch)]
    for b in range(batch):
        alone = [np.concatenate([piece[i] for piece in seen[b]], axis=2) for i in range(3)]
        whole = attend(*alone, mechanism=mechanism, mask=mask)[0]
        got = np.concatenate([out[b][:, real[b]] for real, out in outs], axis=1)
        np.testing.assert_allclose(got, whole, rtol=0, atol=1e-12)
        for real, out in outs:
            assert not out[b][:, ~real[b]].any()


@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(4)])
@pytest.mark.parametrize("mechanism", [Softmax(), Kernel(Quadratic())])
@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
@pytest.mark.parametrize("capacity", [None, 3, 40])
def test_an_old_state_stays_valid(mechanism, mask, wrap, capacity):
    """One prompt, continued three ways from the same state, in turns."""
    arrays = draw(2, 12)
    states = [empty(mechanism, mask, batch=2, capacity=capacity)]
    first = tuple(x[:, :, :5] for x in arrays)
    _, prompt = extend(*(wrap(x) for x in first), states[0])
    branches = []
    for seed in (1, 2, 3):
        fresh = draw(2, 4, seed=seed)
        branches.append([prompt, fresh, []])
    for step in range(4):
        for branch in branches:
            piece = (wrap(x[:, :, step : step + 1]) for x in branch[1])
            out, branch[0] = extend(*piece, branch[0])
            branch[2].append(np.asarray(out))
    for _, fresh, outs in branches:
        joined = [np.concatenate(pair, axis=2) for pair in zip(first, fresh, strict=True)]
        whole = attend(*joined, mechanism=mechanism, mask=mask)[:, :, 5:]
        np.testing.assert_allclose(np.concatenate(outs, 2), whole, rtol=0, atol=1e-12)
    assert prompt.lengths.tolist() == [5, 5]


def test_growing_writes_into_spare_room_only_as_the_newest_owner():
    q, k, v = (torch.tensor(x) for x in draw(1, 3))
    state = empty(Softmax(), capacity=30, like=k)
    _, one = extend(q, k, v, state)
    _, two = extend(q, k, v, one)
    assert two.room is one.room  # no copy: `one` was the newest
    _, other = extend(q, k, v, one)
    assert other.room is not one.room  # `two` is newer, so `one` is copied
    _, three = extend(q, k, v, two)
    assert three.room is two.room
    leaf = q.clone().requires_grad_()
    out, tracked = extend(leaf, k, v, three)
    assert tracked.room is not three.room  # a gradient needs what was read to stay as it was
    _, four = extend(q, k, v, tracked)
    assert four.room is not tracked.room
    out.sum().backward()
    assert leaf.grad.any()


@pytest.mark.parametrize("mechanism", [Kernel(Quadratic()), Kernel(EluPlusOne())])
def test_a_long_chunk_goes_through_block_by_block(mechanism):
    q, k, v = draw(2, 300)  # more than two blocks of the recurrent state
    real = np.ones((2, 300), dtype=bool)
    real[1, 7:150] = False
    out, state = extend(q, k, v, empty(mechanism, batch=2), real=real)
    assert state.lengths.tolist() == [300, 157]
    more, _ = extend(*(x[:, :, :2] for x in (q, k, v)), state)
    for b in range(2):
        alone = [x[b : b + 1][:, :, real[b]] for x in (q, k, v)]
        alone = [np.concatenate([x, x[:, :, :2]], axis=2) for x in alone]
        want = attend(*alone, mechanism=mechanism, mask=Causal())[0]
        got = np.concatenate([out[b][:, real[b]], more[b]], axis=1)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_gradients_of_a_bias_survive_later_tokens():
    """Even where the backward pass keeps the very keys and values that the state lets it read."""
    q, k, v = (torch.tensor(x)[:, :KV_HEADS] for x in draw(1, 3))
    table = torch.randn(8, KV_HEADS, dtype=torch.float64, requires_grad=True)

    state, total = empty(Softmax(), capacity=30, like=k), 0
    for _ in range(3):
        reading, state = state.reading(state.chunk(q, k, v), learning=True)
        out = (q @ reading.keys.mT + table.sum()).softmax(-1) @ reading.values
        total = total + out.square().sum()
    total.backward()
    assert table.grad is not None


def test_a_state_from_inference_mode_can_be_extended_outside():
    arrays = tuple(torch.tensor(x) for x in draw(1, 6))
    for mechanism in (Softmax(), Kernel(Quadratic())):
        with torch.inference_mode():
            _, state = extend(*(x[:, :, :4] for x in arrays), empty(mechanism, capacity=9))
        out, _ = extend(*(x[:, :, 4:] for x in arrays), state)
        whole = attend(*arrays, mechanism=mechanism, mask=Causal())
        torch.testing.assert_close(out, whole[:, :, 4:], rtol=0, atol=1e-12)


def test_growing_copies_rarely():
    state, rooms = empty(Softmax()), set()
    for _ in range(65):
        _, state = extend(*draw(1, 1), state)
        rooms.add(state.room)
    assert [room.capacity for room in rooms if room is state.room] == [128]
    assert len(rooms) == 8  # 1, 2, 4, ..., 128


@pytest.mark.parametrize(
    ("mechanism", "mask", "kind"),
    [
        (Softmax(), Causal(), Growing),
        (Softmax(), Causal() & Window(4), Sliding),
        (Argmax(), Window(4) & Causal() & Dilated(9, 1), Sliding),
        (Kernel(Quadratic()), Causal(), Recurrent),
        (Kernel(Quadratic()), Causal() & Window(4), Sliding),
        (Kernel(Quadratic()), Causal() & Strided(2), Growing),
        (Softmax(), Causal() & Window(4) & Strided(2), Growing),
    ],
)
def test_which_memory_a_mask_needs(mechanism, mask, kind):
    state = empty(mechanism, mask)
    assert type(state) is kind
    assert (state.nbytes, state.lengths.tolist()) == (0, [0])
    sizes = []
    for tokens in (1, 6, 6, 40):
        _, state = extend(*draw(1, tokens), state)
        sizes.append(state.nbytes)
    if kind is Growing:
        assert sizes[-1] >= 53 * KV_HEADS * (D + M) * 8
    elif kind is Sliding:
        assert sizes == [3 * KV_HEADS * (D + M) * 8] * 4  # a window of 4 reaches 3 back
    else:
        width = Quadratic().width(D)
        assert sizes == [KV_HEADS * width * (M + 1) * 8] * 4


def test_a_sliding_state_holds_no_view_of_a_long_prompt():
    arrays = tuple(torch.tensor(x) for x in draw(1, 500))
    _, state = extend(*arrays, empty(Softmax(), Causal() & Window(4)))
    assert state.keys.untyped_storage().nbytes() == 3 * KV_HEADS * D * 8


@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(3)])
@pytest.mark.parametrize("mechanism", [Softmax(), Kernel(EluPlusOne())])
@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
def test_select_reorders_repeats_and_drops_rows(mechanism, mask, wrap):
    arrays = draw(3, 9)
    _, state = extend(*(wrap(x[:, :, :5]) for x in arrays), empty(mechanism, mask, batch=3))
    chosen = state.select(wrap(np.array([2, 0, 2, 1])))
    rows = [np.concatenate([x[[2, 0, 2, 1], :, :5], x[[0, 1, 2, 0], :, 5:]], 2) for x in arrays]
    out, after = extend(*(wrap(x[:, :, 5:]) for x in rows), chosen)
    whole = attend(*rows, mechanism=mechanism, mask=mask)[:, :, 5:]
    np.testing.assert_allclose(np.asarray(out), whole, rtol=0, atol=1e-12)
    assert after.lengths.tolist() == [9] * 4
    assert state.lengths.tolist() == [5] * 3
    assert empty(mechanism, mask, batch=3).select([1]).lengths.tolist() == [0]


def test_a_prefix_may_look_ahead_but_must_come_in_one_piece():
    mask, arrays = Causal() | Prefix(4), draw(2, 9)
    whole = attend(*arrays, mask=mask)
    state, outs = empty(Softmax(), mask, batch=2), []
    for piece in pieces(arrays, [5, 6]):
        out, state = extend(*piece, state)
        outs.append(out)
    np.testing.assert_allclose(np.concatenate(outs, 2), whole, rtol=0, atol=1e-12)
    _, state = extend(*(x[:, :, :3] for x in arrays), empty(Softmax(), mask, batch=2))
    message = (
        "under Causal() | Prefix(count=4), every query sees the first 4 keys, so these must come "
        "in one piece; row 0 stopped after 3"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        extend(*(x[:, :, 3:] for x in arrays), state)


def test_ragged_rows_of_a_prefix_do_not_see_each_others_ends():
    mask, (q, k, v) = Causal() | Prefix(4), draw(2, 6)
    real = np.array([[0, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 1]], dtype=bool)
    out, _ = extend(q, k, v, empty(Softmax(), mask, batch=2), real=real)
    for b in range(2):
        alone = (x[b : b + 1][:, :, real[b]] for x in (q, k, v))
        np.testing.assert_allclose(out[b][:, real[b]], attend(*alone, mask=mask)[0], atol=1e-12)


def test_a_short_row_slides_beside_a_long_one():
    mask, (q, k, v) = Causal() & Window(4), draw(2, 5)
    real = np.array([[1, 1, 1], [0, 1, 0]], dtype=bool)
    _, state = extend(*(x[:, :, :3] for x in (q, k, v)), empty(Softmax(), mask, batch=2), real=real)
    out, _ = extend(*(x[:, :, 3:] for x in (q, k, v)), state)
    alone = (x[1:, :, [1, 3, 4]] for x in (q, k, v))
    np.testing.assert_allclose(out[1:], attend(*alone, mask=mask)[:, :, 1:], atol=1e-12)


def test_a_distance_bias_decodes():
    arrays = draw(2, 9)
    for mask in (Causal(), Causal() & Window(4)):
        whole = attend(*arrays, mask=mask, bias=ALiBi(HEADS))
        state, outs = empty(Softmax(), mask, batch=2), []
        for piece in pieces(arrays, [2, 3]):
            out, state = extend(*piece, state, bias=ALiBi(HEADS))
            outs.append(out)
        np.testing.assert_allclose(np.concatenate(outs, 2), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(3)])
@pytest.mark.parametrize("mechanism", [Softmax(), Kernel(Quadratic())])
def test_half_precision_states(mechanism, mask):
    arrays = tuple(torch.tensor(x).bfloat16() for x in draw(2, 7))
    state, outs = empty(mechanism, mask, batch=2, like=arrays[1]), []
    for piece in pieces(arrays, [3, 4]):
        out, state = extend(*piece, state)
        outs.append(out)
    whole = attend(*arrays, mechanism=mechanism, mask=mask)
    assert outs[0].dtype == torch.bfloat16
    torch.testing.assert_close(torch.cat(outs, 2), whole, rtol=8e-3, atol=8e-3)
    again = empty(mechanism, mask, batch=2)
    with torch.autocast("cpu", torch.bfloat16):
        for piece, out in zip(pieces(arrays, [3, 4]), outs, strict=True):
            same, again = extend(*piece, again)
            assert torch.equal(same, out)
    recurrent = isinstance(state, Recurrent)
    assert {x.dtype for x in state.arrays} == {torch.float32 if recurrent else torch.bfloat16}


REFUSED = [
    (FULL, "FULL lets a query see keys that come after it, so what was computed would change"),
    (Window(3), "Window(size=3) lets a query see keys that come after it"),
    (Causal() | Global(2), "Causal() | Global(count=2) lets a query see keys that come after it"),
    (~Causal(), "~Causal() lets a query see keys that come after it"),
    (
        Causal() & Padding(np.ones((1, 4), bool)),
        "Padding(bool array (1, 4)) has as many entries as there are tokens, and decoding adds "
        "tokens; say which are real through extend(..., real=...)",
    ),
    (Causal() & Documents(np.ones((1, 4), int)), "Documents(int64 array (1, 4)) has as many"),
    (Causal() & Dense(np.ones((4, 4), int)), "Dense(int64 array (4, 4)) has as many entries"),
]


@pytest.mark.parametrize(("mask", "message"), REFUSED)
def test_masks_that_cannot_decode_are_refused(mask, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        empty(Softmax(), mask)


def test_new_tokens_must_fit_the_state():
    q, k, v = draw(2, 4)
    state = empty(Softmax(), batch=2)
    with pytest.raises(ShapeError) as error:
        extend(q[:1], k[:1], v[:1], state)
    assert str(error.value) == (
        "axis `batch` is 2 in `state` but 1 in `q`\n"
        "  state  wants (batch, kv_head, key_dim, value_dim), has (2, 2, 5, 3)\n"
        "  q      wants (batch, head, new, key_dim), has (1, 6, 4, 5)  <-- here\n"
        "  k      wants (batch, kv_head, new, key_dim), has (1, 2, 4, 5)\n"
        "  v      wants (batch, kv_head, new, value_dim), has (1, 2, 4, 3)"
    )
    for kind in (Softmax(), Kernel(Quadratic())):
        with pytest.raises(ShapeError, match="axis `key_dim` is 5 in `state` but 3 in `q`"):
            extend(q[..., :3], k[..., :3], v, empty(kind, batch=2))
        with pytest.raises(ShapeError, match="axis `value_dim` is 3 in `state` but 2 in `v`"):
            extend(q, k, v[..., :2], empty(kind, batch=2))
    with pytest.raises(ShapeError, match="axis `new` is 4 in `q` but 3 in `k`"):
        extend(q, k[:, :, :3], v[:, :, :3], state)
    with pytest.raises(ShapeError, match="axis `new` is 4 in `q` but 3 in `real`"):
        extend(q, k, v, state, real=np.ones((2, 3), bool))
    with pytest.raises(TypeError, match="real wants booleans, or 0 and 1, True for real tokens"):
        extend(q, k, v, state, real=np.ones((2, 4)))
    _, state = extend(q, k, v, state)
    message = "the state is numpy float64 on cpu but the new tokens are torch float64 on cpu"
    with pytest.raises(TypeError, match=message):
        extend(*(torch.tensor(x) for x in (q, k, v)), state)
    with pytest.raises(TypeError, match="a rule over positions"):
        extend(q, k, v, state, bias=np.zeros((4, 8)))
