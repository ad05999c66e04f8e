"""New tokens by the short way equal the long way, and an old state stays valid."""

import pytest
import torch

import querykey as qk
from querykey import backends
from querykey.models.decoding.step import attend_plainly


def follow(q, k, v, state):
    """Take the short way where there is one, as the twin of a layer does."""
    return attend_plainly(q, k, v, state) or backends.follow(q, k, v, state)


def pieces(batch, heads, kv_heads, tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, 5), (kv_heads, 5), (kv_heads, 5))
    return [
        torch.randn(batch, count, tokens, width, generator=generator, dtype=torch.float64)
        for count, width in shapes
    ]


@pytest.mark.parametrize("mechanism", [qk.Softmax(), qk.Softmax(scale=0.7), qk.Argmax()], ids=repr)
@pytest.mark.parametrize("capacity", [None, 32])
@pytest.mark.parametrize("gradients", [False, True])
def test_it_equals_extend(mechanism, capacity, gradients):
    like = torch.empty(0, dtype=torch.float64)
    sizes = {"kv_heads": 2, "key_dim": 5, "value_dim": 5, "capacity": capacity, "like": like}
    long = short = qk.empty_state(mechanism, batch=3, **sizes)
    with torch.set_grad_enabled(gradients):
        for number, count in enumerate((4, 1, 1, 3, 1)):
            q, k, v = pieces(3, 4, 2, count, number)
            wanted, long = qk.extend(q, k, v, long)
            got, short = follow(q, k, v, short)
            assert (got - wanted).abs().max() < 1e-12
            assert short.counts == long.counts


@torch.no_grad()
def test_two_futures_of_one_state():
    sizes = {"kv_heads": 2, "key_dim": 5, "value_dim": 5, "capacity": 32}
    state = qk.empty_state(qk.Softmax(), batch=1, like=torch.empty(0, dtype=torch.float64), **sizes)
    _, state = follow(*pieces(1, 2, 2, 4, 0), state)
    one, _ = follow(*pieces(1, 2, 2, 1, 1), state)
    other, _ = follow(*pieces(1, 2, 2, 1, 2), state)
    again, _ = follow(*pieces(1, 2, 2, 1, 1), state)
    assert torch.allclose(one, again, atol=1e-12)
    assert not torch.allclose(one, other)


@torch.no_grad()
def test_a_second_future_leaves_the_first_alone():
    like = torch.empty(0, dtype=torch.float64)
    sizes = {"kv_heads": 2, "key_dim": 5, "value_dim": 5, "capacity": 32, "like": like}
    outs = []
    for disturbed in (False, True):
        state = qk.empty_state(qk.Softmax(), batch=1, **sizes)
        _, state = follow(*pieces(1, 2, 2, 4, 0), state)
        _, later = follow(*pieces(1, 2, 2, 1, 1), state)
        if disturbed:
            follow(*pieces(1, 2, 2, 1, 2), state)
        outs.append(follow(*pieces(1, 2, 2, 1, 3), later)[0])
    assert torch.equal(*outs)


def test_a_state_made_in_inference_mode_can_be_used_outside():
    sizes = {"kv_heads": 2, "key_dim": 5, "value_dim": 5, "capacity": 32}
    with torch.inference_mode():
        state = qk.empty_state(
            qk.Softmax(), batch=1, like=torch.empty(0, dtype=torch.float64), **sizes
        )
        _, state = follow(*pieces(1, 2, 2, 4, 0), state)
    with torch.no_grad():
        out, _ = follow(*pieces(1, 2, 2, 1, 1), state)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(
    ("mechanism", "counts", "gradients", "taken"),
    [
        (qk.Softmax(), (4, 1, 1), False, (True, True, True)),
        (qk.Softmax(), (4, 3, 1), False, (True, False, True)),
        (qk.Softmax(), (4, 1), True, (False, False)),
        (qk.Softmax(scale=-1.0), (4, 1), False, (False, True)),
        (qk.Softmax(softcap=5.0), (4, 1), False, (False, False)),
        (qk.Kernel(qk.Quadratic()), (4, 1), False, (False, False)),
        (qk.Softmax(), (31, 1, 1), False, (True, True, False)),  # no room is left
    ],
    ids=repr,
)
def test_when_the_short_way_is_taken(mechanism, counts, gradients, taken):
    like = torch.empty(0, dtype=torch.float64)
    sizes = {"kv_heads": 2, "key_dim": 5, "value_dim": 5, "capacity": 32, "like": like}
    state = qk.empty_state(mechanism, batch=2, **sizes)
    with torch.set_grad_enabled(gradients):
        for number, (count, short) in enumerate(zip(counts, taken, strict=True)):
            new = pieces(2, 2, 2, count, number)
            done = attend_plainly(*new, state)
            assert (done is not None) is short
            _, state = done or backends.follow(*new, state)
